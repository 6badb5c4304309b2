"""Count tests again in another process: the process, and the plugin that runs in it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from ...config.budgets import Budgets
from ...config.settings import Settings
from ...model.estimate import Seconds
from ...processes import TimeOverError, environment_of_pytest, run
from ..artifacts import HISTORY, RENDERED, SAVE
from ..configuration import plugin_of

# Names the directory of a recount in its process: `ORDER` says what to count, `RESULT` gets the results.
VARIABLE = "MWBUDGET_RECOUNT"
ORDER, RESULT = "order.json", "result.json"
# The directory for temporary files of the tests there.
TEMPORARY = "temporary"
# Options of pytest and of its plugins that write files, select tests by an earlier run, or start other processes.
WRITERS = (
    *("xmlpath", "htmlpath", "report_log", "json_report_file", "benchmark_json", "allure_report_dir", "pastebin"),
    *(f"mw_budget_{output.name.replace('-', '_')}" for output in (SAVE, HISTORY, *RENDERED)),
    *("mw_budget_compare", "mw_budget_compare_fail", "store_durations", "cacheclear"),
)
SELECTORS = ("lf", "failedfirst", "stepwise", "usepdb", "mw_budget_update", "mw_budget_update_mode", "mw_budget_reason")
# The hash seeds of these processes.
SEEDS = range(1, 7)
# The most characters of a failed process's output in a message.
SHOWN_CHARACTERS = 600


class RecountError(Exception):
    """A process could not count every test again."""


class RecountTimeError(RecountError):
    """A process took too long to count the tests again."""


@dataclass(frozen=True, slots=True)
class Recount:
    """What another process counts: the tests by their ids, in the order in which they are collected, with a hash seed.

    `alone` means that only the files of these tests are imported. `delayed` means that some requests take longer, so
    that counts that depend on a measured time vary.
    """

    tests: tuple[str, ...]
    seed: int
    alone: bool = False
    delayed: bool = False


def counted_only(settings: Settings, order: Recount) -> Settings:
    """Return the settings of a test that is counted for another process, and neither timed nor judged."""
    return replace(settings, budgets=Budgets(), timed=False, loads=False, flamegraph="never", delayed=order.delayed)


def _folder() -> Path:
    return Path(os.environ[VARIABLE])


@cache
def recount() -> Recount | None:
    """Return what this process counts again for another one, None in other processes."""
    if not os.environ.get(VARIABLE):
        return None
    order = json.loads((_folder() / ORDER).read_text(encoding="utf-8"))
    return Recount(**order | {"tests": tuple(order["tests"])})


def recounted(config: pytest.Config, order: Recount, limit_s: Seconds | None = None) -> Any:
    """Count in another process, and return the JSON document of its results.

    Raises RecountTimeError if the process takes longer than `limit_s`, and RecountError if it has no results or cannot
    be started, or if a test alone fails.
    """
    with TemporaryDirectory() as folder:
        (Path(folder) / ORDER).write_text(json.dumps(asdict(order)), encoding="utf-8")
        environment = environment_of_pytest(**{VARIABLE: folder, "PYTHONHASHSEED": str(order.seed)})
        try:
            ended = run([*_command(config)], config.invocation_params.dir, environment, limit_s)
        except TimeOverError:
            raise RecountTimeError(f"pytest took longer than {limit_s} s") from None
        except OSError as error:
            raise RecountError(f"pytest cannot be started: {error}") from None
        end = ended.end(SHOWN_CHARACTERS)
        if order.alone and ended.status:
            raise RecountError(f"pytest ended with status {ended.status}: {end}")
        try:
            return json.loads((Path(folder) / RESULT).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise RecountError(f"pytest ended with status {ended.status} and no result: {end}") from None


def _command(config: pytest.Config) -> Iterator[str]:
    """Yield the command that ran this process's pytest, with the plugin below."""
    yield sys.executable
    # Not the working directory of now: a test may have changed or even removed it.
    if str(config.invocation_params.dir) not in sys.path and "" not in sys.path:
        yield "-P"  # `pytest` does not search the working directory, `python -m pytest` does
    # The arguments of a worker of pytest-xdist are those of the process that started it.
    mainargv = getattr(config, "workerinput", {}).get("mainargv")
    arguments = mainargv[1:] if mainargv else config.invocation_params.args
    yield from ("-m", "pytest", *map(str, arguments))
    yield from ("-p", __name__)
    if plugin_of(config, "pytest_cov.plugin") is not None:
        yield "--no-cov"


# ---- in the other process ----------------------------------------------------------------------------------------


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> Any:
    """Write the results and no other file, run in this process, and update nothing."""
    order, option = recount(), config.option
    if order is not None:
        for name in (*WRITERS, *SELECTORS):
            if hasattr(option, name):
                setattr(option, name, None)
        option.numprocesses, option.dist, option.tx = None, "no", []
        option.mw_budget_json = str(_folder() / RESULT)
        # pytest empties the directory of --basetemp and the file of --log-file, which the other process uses.
        option.basetemp, option.log_file = str(_folder() / TEMPORARY), os.devnull
        files = {config.rootpath / test.partition("::")[0] for test in order.tests}
        # The files of requests without a test, and those of --pyargs, are not known.
        if order.alone and all(file.is_file() for file in files):
            config.args[:] = sorted(map(str, files))
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave only the tests whose counts are wanted."""
    order = recount()
    if order is not None:
        wanted = set(order.tests)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in wanted])
        items[:] = [item for item in items if item.nodeid in wanted]
