"""What a test's own clock sees of its measurements does not depend on options: time limits, deadlines of Hypothesis."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext
from typing import Any

import anyio
import hypothesis  # noqa: F401 - pytester forgets modules that are first imported in an inner run
import pytest

import pytest_mwbudget.session.requests.own
from pytest_mwbudget.asgi import loops
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.model.results import LoopName
from pytest_mwbudget.session.requests import examples, measured
from pytest_mwbudget.session.requests.measured import MeasuredRequests
from pytest_mwbudget.timing.looks import Environment

from . import test_own_requests
from .counted import every_loop

suite = test_own_requests.suite

READS = {"precise": True, "inside": True, "saves": True}


# ---- which tasks have a time limit ----------------------------------------------------------------------------------


def asyncio_limit(seconds: float | None) -> AbstractAsyncContextManager[Any]:
    return asyncio.timeout(seconds)


def anyio_limit(seconds: float | None) -> AbstractContextManager[Any]:
    return anyio.fail_after(seconds)


async def limited_in(limit: Any) -> bool:
    """Return whether the running task is seen to have a time limit inside of `limit`."""
    if hasattr(limit, "__aenter__"):
        async with limit:
            return loops.current().time_limited()
    with limit:
        return loops.current().time_limited()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: nullcontext(), False),
        (lambda: asyncio_limit(60), True),
        (lambda: asyncio_limit(None), False),
        (lambda: anyio_limit(60), True),
        (lambda: anyio_limit(None), False),
    ],
    ids=["none", "timeout", "timeout(None)", "fail_after", "fail_after(None)"],
)
@every_loop
def test_time_limits_round_a_request_are_seen(loop: LoopName, make: Callable[[], Any], expected: bool) -> None:
    async def main() -> tuple[bool, bool]:
        try:
            inside = await limited_in(make())
        except RuntimeError:
            pytest.skip("asyncio.timeout needs asyncio")
        return inside, loops.current().time_limited()

    if loop != "asyncio":
        pytest.importorskip(loop)
    assert loops.run(loop, main) == (expected, False)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_limit_of_wait_for_or_of_another_task_is_seen(loop: LoopName) -> None:
    async def seen() -> bool:
        await asyncio.sleep(0)
        return loops.current().time_limited()

    async def main() -> list[bool]:
        async with asyncio.timeout(60):
            spawned = await asyncio.create_task(seen())
        return [await asyncio.wait_for(seen(), 60), spawned, await seen()]

    pytest.importorskip(loop)
    assert loops.run(loop, main) == [True, True, False]


# ---- what is measured then ------------------------------------------------------------------------------------------


@every_loop
@pytest.mark.parametrize(
    ("limit_s", "longer_s", "reads"),
    [
        (None, math.inf, True),
        (measured.LONGER_S / measured.LIMIT_SHARE, 0.0, True),
        (measured.LONGER_S / measured.LIMIT_SHARE, 1.0, False),
        (1.0, 0.0, False),
    ],
)
def test_a_limit_of_the_test_leaves_a_share_to_readers(
    loop: LoopName, limit_s: float | None, longer_s: float, reads: bool
) -> None:
    environment = Environment(**READS)
    requests = MeasuredRequests(settings=Settings(), environment=environment, limit_s=limit_s, longer_s=longer_s)

    async def main() -> Environment:
        with requests.in_time() as environment:
            return environment

    if loop != "asyncio":
        pytest.importorskip(loop)
    in_time = loops.run(loop, main)
    assert (in_time.precise, in_time.inside, in_time.saves) == (reads, reads, reads)
    assert (requests.longer_s > longer_s) == (reads and longer_s < math.inf)


def test_a_limit_of_a_task_in_another_thread_is_the_apps_own() -> None:
    requests = MeasuredRequests(settings=Settings(), environment=Environment(**READS))

    async def main() -> bool:
        async with asyncio.timeout(60):
            with requests.in_time() as environment:
                return environment.reads

    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(asyncio.run, main()).result()
    assert not asyncio.run(main())


LIMITED = """
@pytest.mark.mw_budget({budget})
@pytest.mark.asyncio
async def test_timeout():
    async with asyncio.timeout(60):
        assert (await client_of().get("/health")).text == "ok"

@pytest.mark.mw_budget({budget})
@pytest.mark.asyncio
async def test_fail_after():
    with anyio.fail_after(60):
        assert (await client_of().get("/health")).text == "ok"

@pytest.mark.mw_budget({budget})
@pytest.mark.asyncio
async def test_no_limit():
    assert (await client_of().get("/health")).text == "ok"
"""


@pytest.mark.parametrize("option", ["-q", "-v", "--junitxml=found.xml", "--mw-budget-json=found.json"])
def test_requests_under_a_limit_are_measured_alike_with_any_option(
    suite: test_own_requests.Suite, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    reads: list[bool] = []
    original = pytest_mwbudget.session.requests.own.measure_again

    async def noting(caller: Any, settings: Settings, environment: Environment, *others: Any) -> Any:
        reads.append(environment.reads)
        return await original(caller, settings, environment, *others)

    monkeypatch.setattr(pytest_mwbudget.session.requests.own, "measure_again", noting)
    # What is read of a request depends on no budget. Only -v needs a note on times.
    outcome = suite.run(LIMITED.format(budget="us=100_000" if option == "-v" else "tasks=9"), option)
    outcome.assert_outcomes(passed=3)
    assert reads == [False, False, option != "-q"]  # only the test without a limit depends on the option
    if option == "-v":
        note = "note: The test, *has a time limit, so sampling ends as soon as every verdict is known*[stopped-early]"
        outcome.says(f"test_timeout GET /health *{note}*test_fail_after GET /health *{note}*test_no_limit GET /health ")


# ---- Hypothesis -----------------------------------------------------------------------------------------------------


HYPOTHESIS = """
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

# No example that is measured takes less.
quick = settings(deadline=1, max_examples=5, database=None, suppress_health_check=[*HealthCheck])
"""


@pytest.mark.parametrize("option", ["-q", "-v"])
def test_a_deadline_of_hypothesis_does_not_judge_measured_examples(suite: test_own_requests.Suite, option: str) -> None:
    outcome = suite.run(
        HYPOTHESIS
        + """
@pytest.mark.mw_budget(us=100_000)
@quick
@given(st.integers(0, 1000))
def test_kept(n):
    assert TestClient(app).get("/health", params={"n": n}).text == "ok"

@pytest.mark.mw_budget(total_us=0.01)
@quick
@given(st.integers(0, 1000))
def test_broken(n):
    assert TestClient(app).get("/health", params={"n": n}).text == "ok"
""",
        option,
        "--mw-budget-flamegraph=never",
    )
    outcome.assert_outcomes(passed=1, failed=1)
    assert outcome.reports.measured[0][:2] == ("test_kept", "GET /health?n=0")
    assert outcome.reports.measured[1:] == [("test_broken", "GET /health?n=0", "fail")]
    assert "Deadline" not in outcome.result.stdout.str()


def test_a_few_requests_of_all_examples_are_measured(suite: test_own_requests.Suite) -> None:
    outcome = suite.run(
        HYPOTHESIS
        + """
@pytest.mark.mw_budget(tasks=0)
@quick
@given(st.integers(0, 1000))
def test_new_app(n):
    assert TestClient(make()).get(f"/items/{n}").text == str(n)

@pytest.mark.mw_budget(tasks=0)
@quick
@given(st.integers(0, 1000))
def test_many(n):
    assert TestClient(app).get(f"/{n}").status_code == 404
    assert TestClient(app).get("/health").text == "ok"

class TestFixture:
    @pytest.mark.mw_budget(tasks=0)
    @quick
    @given(st.integers(0, 9))
    def test_it(self, mw_budget, n):
        found = mw_budget.get("/health", params={"n": n})
        assert str(found.response.url).endswith(f"n={n}")
        assert found.layer("Noop").verdict == "pass"

@pytest.fixture
def mw_budget_app():
    return app
"""
    )
    outcome.assert_outcomes(passed=3)
    tests = [test for test, *_ in outcome.reports.measured]
    assert {test: tests.count(test) for test in tests} == {
        "test_new_app": 1,
        "test_many": examples.MOST_REQUESTS,
        "TestFixture::test_it": 1,
    }
    assert outcome.reports.reasons == [examples.NOT_MEASURED]


def test_hypothesis_keeps_its_deadline_where_nothing_is_measured(suite: test_own_requests.Suite) -> None:
    outcome = suite.run(
        HYPOTHESIS
        + """
from time import sleep

@pytest.mark.mw_budget(tasks=0)
@quick
@given(st.just(1))
def test_it(n):
    TestClient(app).get("/health")
    sleep(0.01)

def test_settings():
    assert test_it._hypothesis_internal_use_settings is quick
""",
        measure=False,
    )
    outcome.assert_outcomes(passed=1, failed=1)
    outcome.says("DeadlineExceeded")
