"""Requests that take different ways through the layers, and stacks that change while they are measured."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from pytest_mwbudget.analysis.ways import MOST_ASTRAY, StackChangedError, Ways, note_on
from pytest_mwbudget.asgi import discovery, loops
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.model.results import LayerReport, LoopName, Measurement
from pytest_mwbudget.model.stack import Boundary, EntryIndex, Owner, owner_of
from pytest_mwbudget.session.limits import evidence
from pytest_mwbudget.timing.schedule import Schedule

from .apps import (
    ASYNCIO,
    FAST_SCHEDULE,
    Answering,
    App,
    Endpoint,
    InATask,
    Noop,
    caller,
    discovered,
    hello,
    measured,
    measured_async,
    needs,
    respond,
    run_inside,
    stack_of,
)
from .test_engine import SCHEDULE, Costly, FakeClock, Server, Silent, us
from .test_limits_plugin import measured_here

pytestmark = pytest.mark.once

TASKS = {"budgets": Budgets({"tasks": 0})}
# Enough requests that each way is counted several times, and as many on a busy machine.
BUSY_NS = 60 * 10**9
MANY = Schedule(brief_warm_calls=20, brief_warm_ns=BUSY_NS, counting_ns=BUSY_NS, executed_ns=BUSY_NS)


@pytest.fixture(autouse=True)
def _all_are_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trace as many requests as there should be on a busy machine too: of fewer, most may take another way."""
    monkeypatch.setattr(discovery, "TRACING_NS", BUSY_NS)


class Cache(Noop):
    """A layer that answers the first `first` requests and later ones with probability `hits`."""

    def __init__(self, app: App, hits: float = 0.3, first: int = 0) -> None:
        super().__init__(app)
        self.rng, self.hits, self.first, self.requests = random.Random(7), hits, first, 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        if self.requests <= self.first or self.rng.random() < self.hits:
            await respond(send)
        else:
            await self.app(scope, receive, send)


class Rebuilds:
    """An app that builds its layers anew in the requests that `when` says."""

    def __init__(self, build: Callable[[], App], when: Callable[[int], bool]) -> None:
        self.build, self.when, self.requests = build, when, 0
        self.stack = build()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.requests += 1
        if self.when(self.requests):
            self.stack = self.build()
        await self.stack(scope, receive, send)


class Retries(Noop):
    """A layer that calls the inner app again now and then, and only passes on the second response."""

    def __init__(self, app: App, again: float = 0.3) -> None:
        super().__init__(app)
        self.rng, self.again = random.Random(7), again

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def ignore(message: Any) -> None: ...

        if self.rng.random() < self.again:
            await self.app(dict(scope), receive, ignore)
        await self.app(scope, receive, send)


def tasks(measurement: Measurement) -> dict[str, int | None]:
    return {report.layer.name: report.counts.tasks.count if report.counts else None for report in measurement.layers}


def verdicts(measurement: Measurement) -> dict[str, str]:
    return {report.layer.name: judged.verdict for report in measurement.layers for judged in report.judged.values()}


def way(measurement: Measurement) -> str:
    """Return the note on the ways of requests, empty without one."""
    return next((note for note in measurement.notes if note.endswith("[other-way]")), "")


# ---- pure ---------------------------------------------------------------------------------------------------------


def boundaries(*parents: int | None) -> list[Boundary]:
    return [
        Boundary(
            parent=None if parent is None else EntryIndex(parent),
            parents=(),
            own_task=False,
            same_send=False,
            same_receive=False,
            plain=False,
            part_of=None,
            elsewhere=False,
        )
        for parent in parents
    ]


def test_ways_are_counted_beside_the_traced_one() -> None:
    outer, inner, stray = map(owner_of, map(EntryIndex, range(3)))
    ways = Ways({outer: 1, inner: 1, stray: 0})
    assert (ways.share, ways.mixed, ways.most_common) == (1, False, True)
    names = {outer: "Outer", inner: "Inner", stray: "Stray"}
    kinds: list[tuple[int, dict[Owner, int], bool]] = [
        (6, {outer: 1, inner: 1, Owner(0): 9}, True),  # other owners do not matter
        (2, {outer: 1}, False),
        (1, {outer: 1, inner: 3}, False),
        (1, {outer: 1, stray: 1}, False),
    ]
    for number, entered, same in kinds:
        assert [ways.add(entered) for _ in range(number)] == [same] * number
    assert (ways.share, ways.mixed, ways.most_common) == (0.6, True, True)
    (note,) = note_on(ways, names, boundaries(None, 0, 0), timed=True)
    assert "the 60.0% of requests that enter the layers as shown; in 20.0% Outer does not enter Inner;" in note
    assert "in 10.0% Inner is entered 3 times, not 1; " in note
    assert "in 10.0% Outer does not enter Inner, Outer enters Stray. The time of (total) is of all requests." in note
    assert list(note_on(Ways({outer: 1}, Counter({(1,): 5})), names, boundaries(None), timed=True)) == []
    assert not Ways({outer: 1}, Counter({(1,): 9, (0,): 1})).mixed


def test_a_way_that_no_request_takes_any_more_is_an_error() -> None:
    ways = Ways({Owner(1): 1})
    for _ in range(3):
        assert not any(ways.follow({}) for _ in range(MOST_ASTRAY - 1))
        assert ways.follow({Owner(1): 1})
    assert not any(ways.follow({}) for _ in range(MOST_ASTRAY - 1))
    with pytest.raises(StackChangedError):
        ways.follow({})


# ---- the layers ---------------------------------------------------------------------------------------------------


def traced(app: App) -> int:
    """Return how many requests are traced to find the layers."""

    async def main() -> int:
        call, number = await caller(app), 0

        async def counted(observer: Any) -> None:
            nonlocal number
            number += 1
            await call(observer)

        await discovered(counted)  # type: ignore[arg-type]
        return number

    return asyncio.run(main())


def test_two_requests_show_a_plain_stack() -> None:
    assert traced(Noop(InATask(Noop(hello)))) == 2
    assert traced(Starlette(routes=[Route("/", PlainTextResponse("ok"))], middleware=[Middleware(Noop)])) == 2


def test_more_requests_are_traced_where_a_layer_answers_or_two_requests_differ() -> None:
    assert traced(Answering(hello, 200)) == 16
    assert traced(Cache(Noop(hello), hits=0, first=1)) == 16
    assert traced(Rebuilds(lambda: Noop(InATask(hello)), lambda number: number > 1)) == 16


@pytest.mark.parametrize("first", [0, 1, 2])
def test_the_stack_is_that_of_the_way_that_most_requests_take(first: int) -> None:
    stack = stack_of(Noop(Cache(Noop(Endpoint()), first=first)))
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [
        ("Noop#1", True),
        ("Cache", True),
        ("Noop#2", True),
    ]
    assert stack.endpoint == 3


def test_what_only_other_ways_enter_is_watched() -> None:
    stack = stack_of(Noop(Cache(Noop(Endpoint()), hits=0.7)))
    assert [(layer.name, layer.entered) for _, layer in stack.layers] == [
        ("Noop#1", True),
        ("Cache", True),
        ("Noop#2", False),
    ]
    assert [type(stack.entries[index].callee).__name__ for index in stack.strays] == ["Noop", "Endpoint"]
    assert [stack.entries[index].parent for index in stack.strays] == [1, 2]


# ---- layers that answer now and then ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loop", "first"), [("asyncio", 0), ("asyncio", 1), ("asyncio", 3), ("uvloop", 3), ("trio", 3)]
)
def test_counts_are_of_requests_of_one_way(loop: LoopName, first: int) -> None:
    """A cache that hits in the first requests had everything inside it in its own row."""
    if loop != "asyncio":
        pytest.importorskip(loop)

    class Spawning(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            import anyio

            async with anyio.create_task_group() as group:
                group.start_soon(self.app, scope, receive, send)

    app = Noop(Cache(Spawning(hello), first=first))
    measurement = loops.run(loop, lambda: measured_async(app, schedule=MANY, settings=TASKS))
    assert tasks(measurement) == {"Noop": 0, "Cache": 0, "Spawning": 1}
    assert verdicts(measurement) == {"Noop": "pass", "Cache": "pass", "Spawning": "fail"}
    assert "Cache does not enter Spawning" in way(measurement)
    spawning = measurement.layer("Spawning").counts
    assert spawning.tasks.exact


def test_a_request_of_another_way_is_no_sample() -> None:
    server = Server()
    measurement = server.measure([Middleware(Cache), Middleware(Costly, clock=server.clock, before=20)])
    estimate = measurement.layer("Costly").us
    assert 19 < estimate.low < estimate.high < 21


def test_where_most_requests_are_answered_the_rest_is_not_judged() -> None:
    measurement = measured(Noop(Cache(InATask(hello), hits=0.7)), schedule=MANY, settings=TASKS)
    assert verdicts(measurement) == {"Noop": "pass", "Cache": "pass"}
    assert not measurement.layer("InATask").layer.entered
    assert "Cache enters InATask" in way(measurement)


def test_a_layer_that_is_entered_more_often_now_and_then() -> None:
    measurement = measured(Noop(Retries(InATask(hello))), schedule=MANY, settings=TASKS)
    assert tasks(measurement) == {"Noop": 0, "Retries": 0, "InATask": 1}
    assert "InATask is entered 2 times, not 1" in way(measurement)


def test_an_app_that_chooses_among_apps() -> None:
    rng = random.Random(7)
    apps = [Noop(InATask(hello)), Costly(Noop(hello), FakeClock())]

    class Chooses(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await apps[rng.random() < 0.4](scope, receive, send)

    measurement = measured(Chooses(hello), schedule=MANY, settings=TASKS)
    assert tasks(measurement) == {"Chooses": 0, "Noop": 0, "InATask": 1}
    assert "Chooses does not enter Noop" in way(measurement)


@needs("bytecodes")
def test_executed_code_is_of_requests_of_one_way() -> None:
    budgets = Budgets({"py_calls": 3})
    measurement = measured(Noop(Cache(InATask(hello))), settings={"budgets": budgets})
    assert {report.counts.py_calls.count for report in measurement.layers if report.counts and report.counts.py_calls}
    assert "undecided" not in verdicts(measurement).values()


def times(measurement: Measurement) -> dict[str, float]:
    return {report.layer.name: report.us.estimate for report in measurement.layers if report.us}


@pytest.mark.parametrize("first", [0, 3])
def test_times_are_of_requests_of_one_way(first: int) -> None:
    server = Server(FakeClock(70))
    costly = Middleware(Costly, clock=server.clock, before=200)
    budgets = Budgets({"us": 50}, layers={"Costly": {"us": 300}}, total_us=5000)
    measurement = server.measure([Middleware(Cache, first=first), costly], budgets=budgets)
    assert us(measurement, "Cache") == pytest.approx(0, abs=0.01)
    assert us(measurement, "Costly") == pytest.approx(200, abs=0.01)
    assert {*verdicts(measurement).values()} == {"pass"}
    assert measurement.total.verdict == "undecided"
    assert "of the requests enter other layers" in str(measurement.total.judged["us"].reason)


def test_a_rare_way_moves_no_figure_and_leaves_the_total_judged() -> None:
    server = Server(FakeClock(70))
    costly = Middleware(Costly, clock=server.clock, before=200)
    measurement = server.measure([Middleware(Cache, hits=0.03), costly], budgets=Budgets(total_us=5000))
    assert us(measurement, "Cache") == pytest.approx(0, abs=0.01)
    assert measurement.total.verdict == "pass"
    assert "Cache does not enter Costly" in way(measurement)


def test_no_layer_is_left_out_where_requests_take_different_ways() -> None:
    """Requests without probes cannot be told apart, so no row is compared with them."""
    server = Server(FakeClock(70))
    layers = [Middleware(Silent, clock=server.clock, us=100), Middleware(Cache), Middleware(Costly, server.clock, 200)]
    measurement = server.measure(layers, budgets=Budgets({"us": 50}))
    silent = measurement.layer("Silent").us
    assert silent.low <= 100 <= silent.high
    assert us(measurement, "Costly") == pytest.approx(200, abs=0.01)
    assert [verdicts(measurement)[name] for name in ("Silent", "Cache", "Costly")] == ["fail", "pass", "fail"]


# ---- stacks that change -------------------------------------------------------------------------------------------


def spawning() -> App:
    return Noop(InATask(Noop(hello)))


@pytest.mark.parametrize("number", [2, 3, 5, 20, 35, 55])
def test_a_stack_that_was_built_anew_is_measured_anew(number: int) -> None:
    """Its old layers were no longer entered, so they had no task and passed."""
    measurement = measured(Rebuilds(spawning, number.__eq__), schedule=MANY, settings=TASKS)
    assert tasks(measurement) == {"Rebuilds": 0, "Noop#1": 0, "InATask": 1, "Noop#2": 0}
    assert verdicts(measurement)["InATask"] == "fail"
    assert not way(measurement) or number > 30


@pytest.mark.parametrize("number", [5, 100, 220, 325])
def test_a_stack_that_was_built_anew_is_timed_anew(number: int) -> None:
    """The numbers are of the warm-up, the samples, and the first and the last requests that leave a layer out."""
    server, endpoint_us = Server(FakeClock(70), schedule=replace(SCHEDULE, witness_rounds=8)), 2000.0
    clock = server.clock

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        clock.let_pass(endpoint_us)
        await respond(send)

    def build() -> App:
        return Costly(Silent(Costly(endpoint, clock, 30), clock, 100), clock, 140)

    rebuilds = Rebuilds(build, number.__eq__)
    measurement = server.measure([Middleware(lambda app: rebuilds)], budgets=Budgets({"us": 50}))
    assert rebuilds.requests > number
    assert us(measurement, "Costly#1") == pytest.approx(140, abs=0.01)
    assert us(measurement, "Silent") == pytest.approx(100, abs=0.5)
    assert us(measurement, "Costly#2") == pytest.approx(30, abs=0.01)
    assert verdicts(measurement) | {"Rebuilds": "pass"} == verdicts(measurement)
    assert [verdicts(measurement)[name] for name in ("Costly#1", "Silent", "Costly#2")] == ["fail", "fail", "pass"]


def judged(report: LayerReport) -> str:
    (judged,) = report.judged.values()
    assert judged.verdict == "undecided"
    assert judged.reason is not None
    return judged.reason


@pytest.mark.parametrize("every", [3, 7, 19])
def test_nothing_is_judged_in_a_stack_that_goes_on_changing(every: int) -> None:
    app = Rebuilds(spawning, lambda number: number % every == 0)
    measurement = measured(app, settings={"budgets": Budgets({"tasks": 0, "us": 50}, total_us=1e6)})
    assert measurement.verdict == "undecided"
    assert measurement.total.verdict == "undecided"
    reasons = {judged.reason for report in measurement.layers for judged in report.judged.values()}
    assert all(reason and ("[changing-stack]" in reason or "[merged]" in reason) for reason in reasons)
    assert all(report.us is None and report.counts is None for report in measurement.layers)


def test_the_reason_names_the_layer() -> None:
    measurement = measured(Rebuilds(spawning, lambda number: number % 7 == 0), settings=TASKS)
    assert "in the others Rebuilds does not enter Noop#1; build the layers once" in judged(measurement.layers[0])
    assert any(note.startswith("Nothing is judged: the stack of layers changes") for note in measurement.notes)


def test_an_inside_that_enters_other_layers_without_the_layer_outside_is_measured_with_it() -> None:
    class Knows(Silent):
        async def dispatch(self, request: Any, call_next: Callable[[Any], Any]) -> Any:
            request.scope["user"] = "known"
            return await super().dispatch(request, call_next)

    server = Server(FakeClock(70))

    class Asks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await (self.app if "user" in scope else page_app)(scope, receive, send)

    page_app = Starlette(routes=[Route("/", page)])
    layers = [Middleware(Knows, server.clock, 100), Middleware(Asks), Middleware(Costly, server.clock, 60)]
    measurement = server.measure(layers, budgets=Budgets({"us": 50}))
    assert us(measurement, "Costly") == pytest.approx(60, abs=0.01)
    assert not way(measurement)


async def page(request: Any) -> PlainTextResponse:
    return PlainTextResponse("ok")


class Forgetful(Starlette):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.middleware_stack = None
        await super().__call__(scope, receive, send)


async def builds_all(scope: Any, receive: Any, send: Any) -> None:
    await Noop(InATask(Endpoint()))(scope, receive, send)


@pytest.mark.parametrize(
    ("app", "names"),
    [
        (
            Forgetful(routes=[Route("/", page)], middleware=[Middleware(InATask)]),
            ["ServerErrorMiddleware", "InATask", "ExceptionMiddleware"],
        ),
        (builds_all, ["Noop", "InATask"]),
    ],
)
def test_layers_that_are_new_in_every_request_are_not_judged(app: App, names: list[str]) -> None:
    """They were a part of (endpoint), and a budget of layers passed with nothing in it."""
    measurement = measured(app, settings=TASKS)
    assert [report.layer.name for report in measurement.layers] == names
    assert all("it is made anew for each request" in judged(report) for report in measurement.layers)


def test_what_a_layer_makes_anew_is_in_its_row() -> None:
    class Makes(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            await InATask(self.app)(scope, receive, send)

    measurement = measured(Noop(Makes(Noop(hello))), settings=TASKS)
    assert tasks(measurement) == {"Noop#1": 0, "Makes": 1, "Noop#2": 0}


def test_requests_that_the_app_makes_to_itself_are_no_change() -> None:
    app: App = hello

    class CallsItself(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def ignore(message: Any) -> None: ...

            if not scope["path"].endswith("/again"):
                await app({"type": "http", "path": "/again", "headers": []}, receive, ignore)
            await self.app(scope, receive, send)

    app = Noop(CallsItself(InATask(hello)))
    measurement = measured(app, settings=TASKS)
    assert tasks(measurement) == {"Noop": 0, "CallsItself": 0, "InATask": 2}
    assert not way(measurement)


# ---- whole runs ---------------------------------------------------------------------------------------------------

SHOP = """
import asyncio

import pytest
from pytest_mwbudget.asgi.http_library import httpx
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient


class InATask:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await asyncio.create_task(self.app(scope, receive, send))


class Cache:
    def __init__(self, app):
        self.app, self.requests = app, 0

    async def __call__(self, scope, receive, send):
        self.requests += scope["type"] == "http"
        if scope["type"] == "http" and self.requests % 3 == 0:
            await PlainTextResponse("ok")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Forgetful(Starlette):
    requests = 0

    async def __call__(self, scope, receive, send):
        self.requests += 1
        if self.requests == 5:
            self.middleware_stack = None
        await super().__call__(scope, receive, send)


async def page(request):
    return PlainTextResponse("ok")


def shop(kind=Starlette, *layers):
    return kind(routes=[Route("/", page)], middleware=list(map(Middleware, layers)))


cached, rebuilt = shop(Starlette, Cache, InATask), shop(Forgetful, InATask)


@pytest.fixture(params=["cached", "rebuilt"])
def app(request):
    return globals()[request.param]


@pytest.fixture
def mw_budget_app(app):
    return app


@pytest.mark.mw_budget(tasks=0)
async def test_fixture(app, mw_budget):
    await mw_budget.aget("/")


@pytest.mark.mw_budget(tasks=0)
def test_test_client(app):
    TestClient(app).get("/")


@pytest.mark.mw_budget(tasks=0)
async def test_transport(app):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        await client.get("/")
"""


CHANGES = """
class Changes(Starlette):
    requests = 0

    async def __call__(self, scope, receive, send):
        self.requests += 1
        if self.requests % 7 == 0:
            self.middleware_stack = None
        await super().__call__(scope, receive, send)


@pytest.mark.mw_budget(tasks=0, us=50, total_us=10**6, layers={"InATask": {"us": 80_000}}, undecided="pass")
def test_changes():
    TestClient(shop(Changes, InATask)).get("/")
"""


def test_nothing_judges_a_stack_that_goes_on_changing_and_every_report_says_so(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "recounted", lambda config, order, limit_s: measured_here(config, order))
    limits = ["--mw-budget", "--mw-budget-flamegraph=never", "-o", "mw_budget_file=limits.json"]
    changing = SHOP.partition("@pytest.mark")[0] + CHANGES
    steady = changing.replace("% 7", "% 10**9").replace("tasks=0, us=50", "tasks=1")
    path = pytester.makepyfile(test_it=steady)
    run_inside(pytester, *limits, "--mw-budget-update")
    assert '"tasks": 1' in Path("limits.json").read_text()
    path.write_text(changing)
    reports = [
        "--mw-budget-html=out.html",
        "--mw-budget-json=out.json",
        "--mw-budget-markdown=out.md",
        "--junitxml=out.xml",
    ]
    result = run_inside(pytester, *limits, "-v", *reports)
    result.assert_outcomes(passed=1)
    assert all("the stack of layers changes" in Path(name).read_text() for name in ("out.html", "out.json", "out.md"))
    assert "[changing-stack]" in result.stdout.str()
    (measurement,) = json.loads(Path("out.json").read_text())["measurements"]
    assert {limit["verdict"] for limit in measurement["recorded"]["limits"]} == {"undecided"}


def test_no_client_hides_what_a_request_enters(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SHOP)
    options = ["--mw-budget", "--mw-budget-flamegraph=never", "-o", "asyncio_mode=auto"]
    result = run_inside(pytester, *options, using=[ASYNCIO])
    result.assert_outcomes(failed=6)
    text = " ".join(result.stdout.str().split())
    assert text.count("InATask 1 task, budget 0 tasks") == 6
    assert text.count("Requests take different ways") >= 3
    assert "Cache does not enter InATask" in text


def test_a_survey_and_the_command_say_it_too(
    pytester: pytest.Pytester, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_mwbudget.__main__ import main
    from pytest_mwbudget.commands import measure

    pytester.makepyfile(ways_shop=SHOP)
    pytester.syspathinsert()
    monkeypatch.setattr(measure, "Schedule", lambda: FAST_SCHEDULE)
    assert main(["measure", "ways_shop:cached", "GET /", "--time", "3", "--json", "out.json"]) == 0
    assert "Requests take different ways" in Path("out.json").read_text() + capsys.readouterr().out
    pytester.makepyfile(SHOP.partition("@pytest.mark")[0] + "def test_it():\n    TestClient(cached).get('/')\n")
    result = run_inside(pytester, "--mw-budget-survey", "--mw-budget-json=survey.json")
    result.assert_outcomes(passed=1)
    assert "Requests take different ways" in Path("survey.json").read_text()


@pytest.mark.parametrize("number", [5, 100])
def test_a_layer_that_comes_round_the_stack_is_measured(number: int) -> None:
    """All the old layers are still entered, each once, so only another look at the layers shows it."""
    server = Server(FakeClock(70))

    class Extends(Noop):
        requests = 0

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            self.requests += scope["type"] == "http"
            if self.requests == number:
                self.requests += 1
                scope["app"].middleware_stack = Costly(scope["app"].middleware_stack, server.clock, 140)
            await self.app(scope, receive, send)

    measurement = server.measure([Middleware(Extends)], budgets=Budgets({"us": 50}))
    assert us(measurement, "Costly") == pytest.approx(140, abs=0.01)
    assert verdicts(measurement)["Costly"] == "fail"
    assert verdicts(measurement)["Extends"] == "pass"
