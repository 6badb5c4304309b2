"""What the command line, the configuration and the markers set for a run and for a test."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from ..asgi.app import NamedApp
from ..config.checks import check
from ..config.settings import MARKER_KEYS, Settings, merge
from ..config.table import INI, OPTION, SETTINGS
from ..errors import SettingError
from ..model.estimate import Seconds
from .artifacts import HTML, JSON, MARKDOWN, RENDERED, SAVE
from .markers import closest_first

if TYPE_CHECKING:
    from .limits.of_tests import RunLimits

_app: pytest.StashKey[NamedApp] = pytest.StashKey()
# The recorded limits of a run that measures, None without a file of limits.
LIMITS: pytest.StashKey[RunLimits | None] = pytest.StashKey()
# What a plugin puts here changes the merged settings of every test.
CHANGED: pytest.StashKey[Callable[[Settings], Settings]] = pytest.StashKey()


def enforced(config: pytest.Config) -> bool:
    """Whether this run measures. A survey judges marked tests too."""
    return bool(config.getoption("mw_budget") or config.getini("mw_budget") or surveying(config))


def surveying(config: pytest.Config) -> bool:
    """Whether this run is a survey."""
    return bool(config.getoption("mw_budget_survey"))


def check_survey(config: pytest.Config) -> None:
    """Raise SettingError if the time of a survey cannot be used, or no survey uses it."""
    setting = SETTINGS["survey_time"]
    value = config.getoption(setting.key)
    if value is not None and not surveying(config):
        raise SettingError(f"{setting.flag}={value!r} limits no survey; add --mw-budget-survey")
    survey_time_s(config)


def survey_time_s(config: pytest.Config) -> Seconds:
    """Return the seconds that a survey may take."""
    setting = SETTINGS["survey_time"]
    time_s: Seconds = check(setting.name, configured(config)[setting.name] or setting.default, setting.key)
    return time_s


def named_app(config: pytest.Config) -> NamedApp:
    """Return the app that the command line or the configuration names, the same for the whole run."""
    if _app not in config.stash:
        option = config.getoption("mw_budget_app")
        reference, where = (option, "--mw-budget-app") if option else (config.getini("mw_budget_app"), "mw_budget_app")
        config.stash[_app] = NamedApp(str(reference or ""), config.rootpath, where)
    return config.stash[_app]


def configured(config: pytest.Config) -> dict[str, Any]:
    """Return the command line's values, then the configuration's, by setting; None where nothing was set."""
    ini = {name: config.getini(setting.key) or None for name, setting in SETTINGS.items() if INI in setting.places}
    options = {name: config.getoption(setting.key) for name, setting in SETTINGS.items() if OPTION in setting.places}
    return ini | {name: value for name, value in options.items() if value is not None}


def test_id(item: pytest.Item) -> str:
    """Return the id of a test without the group that workers of pytest-xdist append to it with --dist=loadgroup."""
    plain = f"{item.parent.nodeid}::{item.name}" if item.parent is not None else item.nodeid
    return plain if item.nodeid.startswith(f"{plain}@") else item.nodeid


def plugin_of(config: pytest.Config, module: str) -> object | None:
    """Return a plugin by the name of its module, None if it is not active.

    Its name in pytest differs: a plugin that is found has the name of its entry point, one of `-p` that of its module.
    """
    plugins = config.pluginmanager.get_plugins()
    return next((plugin for plugin in plugins if getattr(plugin, "__name__", None) == module), None)


def time_limit_s(item: pytest.Item) -> Seconds | None:
    """Return the time limit that pytest-timeout sets the test, None without a limit."""
    if plugin_of(item.config, "pytest_timeout") is None:
        return None
    marker = item.get_closest_marker("timeout")
    values = [*(marker.args[:1] if marker else ()), marker.kwargs.get("timeout") if marker else None]
    values += [item.config.getoption("timeout", None), os.environ.get("PYTEST_TIMEOUT")]
    with suppress(ValueError):  # the key is unknown
        values.append(item.config.getini("timeout"))
    for value in values:
        with suppress(TypeError, ValueError):
            return float(value) or None
    return None


def settings_of(item: pytest.Item) -> Settings:
    """Merge the test's markers, the command line and the configuration; SettingError if a value is unusable."""
    markers = list(closest_first(item))
    for marker in markers:
        if marker.args:
            raise SettingError(
                f"the mw_budget marker got {marker.args[0]!r} without a keyword; write for example"
                f" @pytest.mark.mw_budget(us=50). The keywords are: {', '.join(MARKER_KEYS)}"
            )
    settings = merge([marker.kwargs for marker in markers], configured(item.config))
    change, limits = item.config.stash.get(CHANGED, None), item.config.stash.get(LIMITS, None)
    if change is not None:
        return change(settings)
    if surveying(item.config):  # its tables compare the times of all routes
        settings = replace(settings, timed=True)
    return settings if limits is None else limits.of(test_id(item), settings)


def check_flamegraphs(config: pytest.Config) -> None:
    """Raise SettingError if an option asks for flamegraphs that cannot be drawn or written."""
    for setting in (SETTINGS["dir"], SETTINGS["flamegraph"]):
        value = config.getoption(setting.key)
        option = f"{setting.flag}={value!r}"
        if value is not None and not enforced(config):
            raise SettingError(f"{option} draws nothing without measuring; add --mw-budget", message_id="file")
        if value is not None and setting.name == "dir":
            from .profiles import check as check_folder

            check_folder(plugin_folder(config), option)


def plugin_folder(config: pytest.Config) -> Path:
    """Return the directory of flamegraphs and saved runs.

    The option's is relative to the working directory, else to rootdir.
    """
    path: str | None = config.getoption("mw_budget_dir")
    if path is not None:
        return config.invocation_params.dir / path
    return config.rootpath / str(config.getini("mw_budget_dir") or SETTINGS["dir"].default)


def figures_read(config: pytest.Config) -> bool:
    """Whether the terminal or a file will show the figures of requests within their budgets."""
    kept = [config.getoption(f"mw_budget_{name}") for name in ("save", "compare", "history")]
    files = [config.getoption(f"--mw-budget-{output.name}") for output in (JSON, *RENDERED)]
    junit = config.getoption("xmlpath", None)  # None without pytest's junitxml plugin
    return verbosity(config) > 0 or any([*files, *kept, junit]) or configured(config)["flamegraph"] == "always"


def saves_read(config: pytest.Config) -> bool:
    """Whether the terminal or a file will show what leaving layers out saves."""
    files = [config.getoption(f"--mw-budget-{output.name}") for output in (JSON, SAVE, HTML, MARKDOWN)]
    return verbosity(config) > 0 or any(files)


def verbosity(config: pytest.Config) -> int:
    """Return how many -v there are, less -q. The method of pytest 8.2 for this fails without the terminal plugin."""
    return int(config.getoption("verbose", 0))
