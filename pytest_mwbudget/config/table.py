"""The table of settings, the source of marker, command line, configuration, help, checks and reference pages.

To add a setting, add its entry here and a field to `settings.Settings`. Budgets of quantities come from
`model.quantities`. A new kind of value also needs a check in `checks.KINDS`. pytest reads options and keys from
`settings.json`, which `docs/tables.py` writes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..model.quantities import TRAITS

MARKER, OPTION, INI = "marker", "option", "ini"
# Kinds that the configuration takes as lines.
LISTS = ("LINES", "PARTS", "METHODS")
# The kind of options that take no value.
SWITCH = "true|false"
# Kinds of options that can be given several times.
REPEATED = ("REQUEST",)
IN_A_TEST, IN_A_RUN, EVERYWHERE = (MARKER, INI), (OPTION, INI), (MARKER, OPTION, INI)


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting: its name, its kind of value, the places that accept it, its meaning.

    `name` is the marker's keyword. `kind` is a word in capitals, or the choices separated by `|`; help shows it, and
    `checks.check` selects the check by it. If `default` is None, `text` states the behaviour without a value.
    """

    name: str
    kind: str
    places: tuple[str, ...]
    text: str
    default: object = None

    @property
    def key(self) -> str:
        """The ini key, which is also the option's name in `config.option`."""
        return f"mw_budget_{self.name}"

    @property
    def flag(self) -> str:
        """The command-line option."""
        return f"--mw-budget-{self.name.replace('_', '-')}"

    @property
    def help(self) -> str:
        """The meaning with the default."""
        return self.text if self.default is None else f"{self.text} (default: {self.default})"


def _budgets(*, under_load: bool) -> tuple[Setting, ...]:
    """Return the budgets of quantities."""
    chosen = (traits for traits in TRAITS.values() if traits.holders and (traits.source == "load") == under_load)
    return tuple(Setting(traits.name, traits.value, IN_A_TEST, traits.budget) for traits in chosen)


SETTINGS = {
    setting.name: setting
    for setting in (
        *_budgets(under_load=False),
        Setting("layers", "LINES", IN_A_TEST, "budgets for layers, one a line: NAME = 80, or NAME = us: 80, tasks: 0"),
        Setting("total_us", "MICROSECONDS", IN_A_TEST, "budget for the whole request, endpoint included"),
        Setting("outside_us", "MICROSECONDS", IN_A_TEST, "budget for the row (outside), per request"),
        Setting("endpoint_us", "MICROSECONDS", IN_A_TEST, "budget for the whole endpoint, per request"),
        Setting(
            "endpoint",
            "PARTS",
            IN_A_TEST,
            "budgets for parts of the endpoint, one a line: serialize = 200, or myapp.db:get_db = us: 80, threads: 0",
        ),
        *_budgets(under_load=True),
        Setting("expect_status", "STATUS", IN_A_TEST, "status that the response must have; unless set, any below 400"),
        Setting(
            "repeat",
            "METHODS",
            IN_A_TEST,
            "methods to measure besides GET, HEAD and OPTIONS, for a test's own client; each request is repeated many"
            " times; WS is a WebSocket",
        ),
        Setting("lifespan", "true|false", IN_A_TEST, "whether to run the app's lifespan", True),
        Setting("loop", "asyncio|uvloop|trio", EVERYWHERE, "event loop of sync tests; unless set, asyncio's default"),
        Setting(
            "trend",
            "true|false",
            EVERYWHERE,
            "whether to look for layers that grow with the requests served; sends a few thousand more requests",
            False,
        ),
        Setting("max_time", "SECONDS", EVERYWHERE, "longest time to sample one request", 5),
        Setting("load_time", "SECONDS", EVERYWHERE, "longest time under load", 10),
        Setting(
            "undecided",
            "warn|fail|pass",
            EVERYWHERE,
            "what to do about a budget without a verdict; unless set, a count that is not available here fails",
            "warn",
        ),
        Setting("startup_timeout", "SECONDS", (INI,), "time limit of the app's startup, shutdown and each request", 30),
        Setting("flamegraph", "failing|always|never", IN_A_RUN, "which requests to draw a flamegraph of", "failing"),
        Setting("dir", "PATH", IN_A_RUN, "directory of flamegraphs and saved runs", ".mw-budget"),
        Setting("survey_time", "SECONDS", IN_A_RUN, "longest time that --mw-budget-survey measures", 120),
        Setting(
            "app",
            "APP",
            IN_A_RUN,
            "the app under test: package.module:attribute, a factory, or 'package.module:factory(\"literal\")'; as an"
            " option, with --mw-budget and without a path of tests, its requests are measured instead of tests",
        ),
        Setting("request", "REQUEST", (OPTION,), "a request to measure without a test: 'GET /health'; repeatable"),
        Setting("requests", "FILE", (INI,), "TOML file with the requests to measure without a test"),
        Setting("file", "FILE", IN_A_RUN, "file of recorded limits; marked tests are judged by them too"),
        Setting(
            "record",
            "QUANTITIES",
            (INI,),
            "quantities to record in the file of limits, separated by commas; unless set, objects, tasks, threads and"
            " bytecodes, and allocations where neither objects nor bytecodes are counted",
        ),
        Setting(
            "update_mode",
            "MODES",
            (OPTION,),
            "what --mw-budget-update may do, separated by commas: create limits, trim high ones, fix broken ones",
            "create,trim",
        ),
        Setting("reason", "TEXT", (OPTION,), "why --mw-budget-update raises limits, stored in the file; fix needs it"),
        Setting("json", "PATH", (OPTION,), "write all results to PATH as JSON"),
        Setting("html", "PATH", (OPTION,), "write all results to PATH as an HTML page; needs the extra html"),
        Setting("markdown", "PATH", (OPTION,), "write all results to PATH as Markdown"),
        Setting("benchmark_json", "PATH", (OPTION,), "write the times to PATH in the JSON format of pytest-benchmark"),
        Setting("save", "NAME", (OPTION,), "save all results under NAME, for --mw-budget-compare"),
        Setting(
            "compare",
            "NAME|PATH",
            (OPTION,),
            "show what changed since the run saved under NAME, or since the results in PATH, a file or a directory",
        ),
        Setting(
            "compare_fail",
            "QUANTITY:GROWTH",
            (OPTION,),
            "with --mw-budget-compare, fail if a figure certainly grew by more, for example us:5,bytecodes:0",
        ),
        Setting(
            "history", "PATH", (OPTION,), "append all figures to PATH, as one line; the HTML page draws them over time"
        ),
    )
}
