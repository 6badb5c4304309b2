"""The pytest side in every run: options, marker, fixtures.

pytest imports this module in every run, reads it object by object and looks at each of its names: it is small, and has
few. What is only for tests that use the plugin is in `gate` and `summary`, which an option, a setting or such a test
brings in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

if TYPE_CHECKING:
    from .session.client import MwBudget

MARKER = (
    "mw_budget(us=..., busy_us=..., objects=..., allocations=..., bytes=..., tasks=..., threads=..., retained=..., "
    "layers={...}, total_us=..., expect_status=..., lifespan=..., loop=..., max_time=..., undecided=...): measure "
    "every middleware layer of the app on the requests made through the fixture mw_budget, and with --mw-budget fail "
    "the test when a layer takes or creates more per request than its budget; the marker closest to a test wins, and "
    "None takes an inherited value away"
)
# What the command line may say after --mw-budget-: the name of the value, and what it means.
OPTIONS = {
    "json": ("PATH", "write everything that was measured to PATH as JSON"),
    "html": ("PATH", "write a page of everything that was measured to PATH (needs the extra html)"),
    "markdown": ("PATH", "write everything that was measured to PATH as Markdown"),
    "benchmark-json": ("PATH", "write the times to PATH as JSON of pytest-benchmark, for trackers that read it"),
    "flamegraph": ("always|failing|never", "which requests to draw a flamegraph of (default: failing)"),
    "dir": ("PATH", "where flamegraphs go (default: .mw-budget)"),
    "loop": (
        "asyncio|uvloop|trio",
        "the event loop of requests in tests that are not async (default: what asyncio takes)",
    ),
    "max-time": ("SECONDS", "time at most this long for one request (default: 5)"),
    "undecided": (
        "warn|fail|pass",
        "what to do about a budget without a verdict (default: warn, and fail for what cannot be counted here)",
    ),
}
# What the configuration may say, and what that means; but for the first four, defaults for the keywords of the marker.
INI = {
    "mw_budget": "measure and enforce in every run, as with --mw-budget",
    "mw_budget_app": "the app under test as package.module:attribute",
    "mw_budget_flamegraph": "always, failing or never: which requests to draw a flamegraph of (default: failing)",
    "mw_budget_dir": "where flamegraphs go (default: .mw-budget)",
    "mw_budget_us": "default budget of every middleware layer, microseconds per request",
    "mw_budget_busy_us": "default budget for holding the event loop, microseconds per request",
    "mw_budget_objects": "default budget of every middleware layer: objects created per request",
    "mw_budget_allocations": "default budget of every middleware layer: requests to Python's allocators per request",
    "mw_budget_bytes": (
        "default budget of every middleware layer: bytes requested of them, for example 16 KiB per request"
    ),
    "mw_budget_tasks": "default budget of every middleware layer: tasks spawned per request",
    "mw_budget_threads": "default budget of every middleware layer: calls handed to worker threads per request",
    "mw_budget_retained": "default budget of every middleware layer: objects left alive per request",
    "mw_budget_layers": "budgets by layer name, one a line: NAME = MICROSECONDS, or NAME = us: 80, tasks: 0",
    "mw_budget_total_us": "default budget of the whole request, microseconds",
    "mw_budget_expect_status": "the response status to expect; any below 400 when nothing is said",
    "mw_budget_lifespan": "false to leave the app's lifespan alone",
    "mw_budget_loop": "asyncio, uvloop or trio: the event loop of tests that are not async",
    "mw_budget_max_time": "seconds of timing for one request, at most (default: 5)",
    "mw_budget_undecided": "warn, fail or pass without a verdict (default: warn, and fail for what cannot be counted)",
    "mw_budget_startup_timeout": "seconds for the app's startup, for its shutdown, and for one request (default: 30)",
}
INI_TYPES: dict[str, Literal["bool", "linelist"]] = {"mw_budget": "bool", "mw_budget_layers": "linelist"}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mw-budget", "cost of ASGI middleware layers")
    group.addoption(
        "--mw-budget",
        action="store_true",
        default=None,
        help="measure the requests of tests that use the fixture mw_budget, and enforce their budgets",
    )
    for name, (metavar, meaning) in OPTIONS.items():
        group.addoption(f"--mw-budget-{name}", metavar=metavar, default=None, help=meaning)
    for name, meaning in INI.items():
        parser.addini(name, meaning, type=INI_TYPES.get(name))


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    if _addressed(config):
        from .session.gate import configure as configure_gate
        from .session.summary import configure as configure_summary

        configure_gate(config)
        configure_summary(config)


def _addressed(config: pytest.Config) -> bool:
    """Whether the command line or the configuration says anything to this plugin."""
    options = [value for name, value in vars(config.option).items() if name.startswith("mw_budget")]
    return any(value is not None for value in options) or any(map(config.getini, INI))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Before pytest selects by -m: `pytest --mw-budget -m mw_budget` runs every test that measures. No more than a
    # glance at each item, most have nothing to do with it.
    for item in items:
        if "mw_budget" in getattr(item, "fixturenames", ()) and not item.get_closest_marker("mw_budget"):
            item.add_marker("mw_budget")


def pytest_collection_finish(session: pytest.Session) -> None:
    # The hooks that run with every test are there only where a test needs them: else all tests would pay for them.
    if _used(session.items):
        from .session.gate import take_part

        take_part(session.config)


def _used(items: list[pytest.Item]) -> bool:
    """Whether a test is marked, as those that take the fixture are; again no more than a glance at each."""
    parents = {item.parent for item in items if item.parent}
    return any(marker.name == "mw_budget" for item in items for marker in item.own_markers) or any(
        parent.get_closest_marker("mw_budget") for parent in parents
    )


@pytest.fixture
def mw_budget_app(pytestconfig: pytest.Config) -> Any:
    """The ASGI app under test: override this fixture, or set `mw_budget_app` in the configuration."""
    from .asgi.server import NamedApp

    return NamedApp(pytestconfig.getini("mw_budget_app") or "", pytestconfig.rootpath)


@pytest.fixture
def mw_budget(request: pytest.FixtureRequest, mw_budget_app: Any) -> MwBudget:
    """An HTTP client of the app under test: each request is measured when `--mw-budget` is on."""
    from .session.gate import client_for

    return client_for(request, mw_budget_app)
