"""The speed of the machine, and how runs remember it."""

from __future__ import annotations

import asyncio
import json
import math
import platform
import random
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any, cast

import pytest

# Imported here once, because pytester forgets the modules that an inner run imported.
import starlette.applications  # noqa: F401
from starlette.middleware import Middleware

from pytest_mwbudget.analysis.core_sharing import SIBLING_SLOWS, is_shared, slowed_by_caches, used_by_others
from pytest_mwbudget.analysis.intervals import quickest
from pytest_mwbudget.analysis.slowdown import Interruptions, slowdown
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.session.remembered_speed import BELIEVED_SHARE, HOPS_KEY, KEPT_RUNS, KEY, Recall, Seen, machine
from pytest_mwbudget.timing import host_speed, looks, sampler
from pytest_mwbudget.timing.host_speed import CALLS, Interrupted, Machine, kind, reference_ns

from .apps import LEAN, SPIN, run_inside
from .test_engine import Costly, Server

pytestmark = pytest.mark.once

X86 = "processor\t: 0\nmodel name\t: Xeon(R) 8375C\n\nprocessor\t: 1\nmodel name\t: other\n"
ARM = "processor\t: 0\nCPU implementer\t: 0x41\nCPU variant\t: 0x3\nCPU part\t: {part}\nCPU revision\t: 1\n\n"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems name the processor in another place")
@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        (X86, "Xeon(R) 8375C"),
        (ARM.format(part="0xd0c"), "ARM 0x41 0xd0c 0x3 1"),
        (ARM.format(part="0xd40"), "ARM 0x41 0xd40 0x3 1"),
        ("processor : 0\n", "unknown processor"),
        (None, "unknown processor"),
    ],
)
def test_the_model_of_processor_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpuinfo: str | None, name: str
) -> None:
    """On ARM, too, where Linux has no line for it: times of two models are not comparable."""
    path = tmp_path / "cpuinfo"
    if cpuinfo is not None:
        path.write_text(cpuinfo)
    monkeypatch.setattr(host_speed, "CPUINFO", path)
    assert host_speed.processor.__wrapped__() == name


# ---- the machine ------------------------------------------------------------------------------------------------


def test_tools_that_refuse_blocking_calls_while_a_loop_runs_see_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*arguments: Any) -> None:
        assert asyncio._get_running_loop() is None  # type: ignore[attr-defined]

    async def taken() -> None:
        timing: Any = SimpleNamespace(environment=SimpleNamespace(hop=refusing))
        assert (looks._interrupted(), looks.Timing._hop(timing, refusing)) == (None, None)

    monkeypatch.setattr(host_speed, "waited_ns", refusing)
    asyncio.run(taken())


def test_a_steady_machine_has_no_slowdown() -> None:
    assert slowdown([1000.0] * 50, 1000.0) == 1.0
    assert slowdown([1050.0] * 50, 1000.0) == 1.0


def test_a_series_without_quick_moments_was_slowed_down() -> None:
    assert slowdown([1600.0] * 50, 1000.0) == pytest.approx(1.6)


@pytest.mark.parametrize(
    ("us", "share", "slower"),
    [
        (10_000.0, 0.5, 2.0),
        (3_000.0, 0.2, 1.25),
        (1_000.0, 0.5, 1.0),  # most requests meet no interruption
        (10_000.0, 0.02, 1.0),  # short ones of the system
    ],
)
def test_interruptions_lengthen_figures_that_hold_many(us: float, share: float, slower: float) -> None:
    assert Interruptions(per_us=1 / 5000, share=share).slowdown(us) == pytest.approx(slower)


def test_interruptions_are_those_between_two_moments() -> None:
    begin, end = Interrupted(100, 5_000_000, 1_000_000_000), Interrupted(150, 255_000_000, 1_500_000_000)
    interruptions = begin.until(end)
    assert (interruptions.per_us, interruptions.share) == (pytest.approx(1e-4), 0.5)
    assert begin.until(begin) == Interruptions()
    assert begin.until(Interrupted(101, 10**12, 1_000_000_001)).share == 0.9


@pytest.mark.skipif(not Path("/proc/thread-self/schedstat").exists(), reason="the system does not say")
def test_this_thread_knows_its_interruptions() -> None:
    begin, end = Interrupted.now(), Interrupted.now()
    assert begin is not None
    assert end is not None
    assert 0 <= begin.waited_ns <= end.waited_ns
    assert begin.at_ns < end.at_ns


@pytest.mark.parametrize(("waits_ns", "verdict"), [(0, "fail"), (3_000_000, "undecided")])
def test_a_layer_that_others_interrupt_in_each_request_does_not_fail(
    waits_ns: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the layer's requests takes 3 ms more than its work, as on a machine whose cores have two processes."""

    class Now:
        count = 0

        @classmethod
        def now(cls) -> Interrupted:
            cls.count += 1
            return Interrupted(cls.count * 1000, cls.count * 1000 * waits_ns, cls.count * 6_000_000_000)

    server = Server(endpoint_us=5000.0)
    monkeypatch.setattr(looks, "Interrupted", Now)
    # Interruptions are only read beside the real clock, so the fake clock replaces it.
    monkeypatch.setattr(looks, "perf_counter_ns", server.clock)
    measurement = server.measure(
        [Middleware(Costly, server.clock, 3000.0)], budgets=Budgets({"us": 2000.0}), max_time_s=3.0
    )
    judged = measurement.layer("Costly").judged["us"]
    assert judged.verdict == verdict
    assert (verdict == "fail") or "2.00 times slower than at its best" in str(judged.reason)


def test_the_best_speed_is_the_quicker_of_what_was_known_and_what_was_seen() -> None:
    machine = Machine(known_ns=1000.0)
    assert (machine.best_ns, machine.seen_ns) == (1000.0, math.inf)
    machine.saw(1500.0, 2.0)
    assert (machine.best_ns, machine.seen_ns) == (1000.0, 1500.0)
    machine.saw(500.0, 2.0)
    machine.saw(700.0, 2.0)
    assert (machine.best_ns, machine.seen_ns) == (500.0, 500.0)


# ---- another thread on the same core ----------------------------------------------------------------------------


def shared(widths: Sequence[float]) -> bool | None:
    """Judge readings of moments that are all equally quick."""
    return is_shared(widths, [1000.0] * len(widths))


@pytest.mark.parametrize("width", [2, 4, 5, 6, 8])
def test_a_thread_that_has_its_core_to_itself_always_gets_its_full_width(width: int) -> None:
    chance = random.Random(width)
    assert shared([chance.gauss(width, 0.003 * width) for _ in range(200)]) is False


@pytest.mark.parametrize("width", [4, 5, 6, 8])
@pytest.mark.parametrize("share", [0.5, 0.7])
def test_what_another_thread_takes_of_the_width_varies(width: int, share: float) -> None:
    chance = random.Random(width)
    assert shared([width * chance.uniform(share - 0.15, share + 0.15) for _ in range(200)])


@pytest.mark.parametrize("seed", range(20))
def test_a_counter_with_long_steps_does_not_make_a_core_look_shared(seed: int) -> None:
    """Readings as `timing/_pipeline.c` takes them on a core that issues seven, whose counter steps by 26."""
    chance = random.Random(seed)
    per_cycle = chance.uniform(0.55, 0.75)

    def ticks(cycles: float) -> int:
        return int((chance.uniform(0, 26) + per_cycle * cycles * chance.gauss(1, 0.001)) // 26) * 26

    assert shared([4 * ticks(6400) / ticks(25_600 / 7) for _ in range(40)]) is False


@pytest.mark.parametrize(("width", "takes"), [(4, 0.3), (7, 0.27)])
@pytest.mark.parametrize("pauses", [0.07, 0.2, 0.4])
def test_another_thread_that_takes_the_same_share_until_it_pauses_is_seen(
    width: int, takes: float, pauses: float
) -> None:
    chance = random.Random(7)
    rests = [1.0 if chance.random() < pauses else 1 - takes for _ in range(2000)]
    assert shared([width * rest * chance.gauss(1, 0.003) for rest in rests])


def test_another_thread_that_always_takes_about_half_is_seen_too() -> None:
    chance = random.Random(7)
    assert shared([chance.uniform(1.95, 2.05) for _ in range(200)])


@pytest.mark.parametrize(("slow", "used"), [(0, 0.0), (30, 0.03), (100, 0.1), (700, 0.7)])
def test_the_workload_shows_for_which_share_of_the_time_others_used_the_core(slow: int, used: float) -> None:
    chance = random.Random(slow)
    readings = [1000 * chance.gauss(1.06, 0.04) * (1.7 if number < slow else 1.0) for number in range(1000)]
    assert used_by_others(readings) == pytest.approx(used, abs=0.002)
    # Beside requests of another kind the workload is a little slower.
    assert used_by_others(readings, [1.15 * ns for ns in readings]) == pytest.approx(used, abs=0.002)
    beside_processes = used_by_others(readings, interruptions=Interruptions(share=0.4))
    assert beside_processes == pytest.approx(max(used, 0.4), abs=0.002)


def test_without_readings_nobody_is_seen_to_use_the_core() -> None:
    assert used_by_others([], []) == 0.0
    assert slowed_by_caches([], 1.0) == 1.0


@pytest.mark.parametrize(
    ("cold", "used", "slower"),
    [
        (1.25, 0.5, 1.25),
        (1.25, 0.04, 1.0),  # others hardly used the core: the app has slow requests of its own
        (1.08, 0.5, 1.0),  # requests vary this much on a core of their own
        (9.0, 0.5, 1.3),
    ],
)
def test_caches_that_others_leave_cold_show_in_the_quickest_requests(cold: float, used: float, slower: float) -> None:
    """A tenth of the requests find warm caches."""
    chance = random.Random(11)
    values = [50_000 * (cold if chance.random() < 0.9 else 1.0) for _ in range(400)]
    assert slowed_by_caches(values, used) == pytest.approx(slower)


def test_few_readings_tell_nothing() -> None:
    assert shared([2.0, 3.0] * 3) is None


@pytest.mark.parametrize("between_ms", [3, 6, 10])
def test_a_core_is_shared_unless_the_quickest_moments_are_those_of_a_pause(between_ms: int) -> None:
    """A neighbour pauses for 50 ms of 250; a moment is seven readings, which do not always fit into a pause."""
    for seed in range(20):
        chance = random.Random(seed)
        widths, reference = [], []
        until_ms, busy = 0.0, True
        for now_ms in range(0, 2000, between_ms):
            while now_ms >= until_ms:
                busy = not busy
                until_ms += 200 if busy else 50
            widths.append(chance.uniform(2, 3.4) if busy else chance.gauss(4, 0.01))
            reference.append(chance.uniform(1500, 2100) if busy else chance.gauss(1000, 10))
        assert is_shared(widths, reference) is (quickest(reference) > 1300)


@pytest.mark.skipif(find_spec("pytest_mwbudget.timing._pipeline") is None, reason="the extension was not built")
def test_the_width_of_this_core_can_be_true() -> None:
    issue_width = import_module("pytest_mwbudget.timing._pipeline").issue_width
    widths = [issue_width() for _ in range(50)]
    if platform.machine() == "x86_64" and sys.platform == "linux":
        assert any(widths)  # a reading that is interrupted has none
    assert all(width is None or 0 < width <= 16 for width in widths)


@pytest.mark.live
@pytest.mark.skipif(find_spec("pytest_mwbudget.timing._pipeline") is None, reason="the extension was not built")
def test_the_width_of_this_core_does_not_depend_on_the_caches() -> None:
    """Both readings of a pair are beside the same neighbours, so this holds on a shared core too."""
    issue_width = import_module("pytest_mwbudget.timing._pipeline").issue_width
    caches = bytearray(8_000_000)
    cold_by_warm: list[float] = []
    for _ in range(200):
        caches[::64] = bytes(len(caches) // 64)
        cold, warm = issue_width(), issue_width()
        if cold and warm:
            cold_by_warm.append(cold / warm)
    if not cold_by_warm:
        pytest.skip("no width is read on this machine")
    assert median(cold_by_warm) == pytest.approx(1.0, abs=0.08)


def test_a_shared_core_has_no_best_speed_only_a_guess() -> None:
    machine = Machine()
    assert machine.best_with(1700.0, shared=True) == 1700.0 / SIBLING_SLOWS
    machine.saw(1700.0, 2.0, shared=True)
    assert (machine.seen_ns, machine.best_ns) == (math.inf, 1700.0 / SIBLING_SLOWS)
    # A slower moment does not raise the guess, and one that tells nothing does not replace it.
    assert machine.best_with(1900.0, shared=True) == 1700.0 / SIBLING_SLOWS
    machine.saw(1500.0, 2.0, shared=None)
    assert (machine.seen_ns, machine.best_with(1500.0, shared=None)) == (math.inf, 1700.0 / SIBLING_SLOWS)


def test_a_speed_that_was_seen_alone_replaces_the_guess() -> None:
    machine = Machine()
    machine.saw(1700.0, 2.0, shared=True)
    assert machine.best_with(1100.0, shared=False) == 1100.0
    machine.saw(1100.0, 2.0)
    assert machine.best_ns == machine.best_with(1700.0, shared=True) == 1100.0
    # A shared core is only slower.
    assert machine.best_with(1000.0, shared=True) == 1000.0
    machine.saw(1000.0, 2.0, shared=True)
    assert machine.best_ns == 1000.0


@pytest.mark.parametrize(
    ("widths", "us", "verdict"),
    [
        ((4.0, 4.01), 40.0, "fail"),
        ((2.0, 3.3), 40.0, "undecided"),  # may be slowed down by 1.7 in the workload, and twice this in a layer
        ((2.0, 3.3), 80.0, "fail"),
    ],
)
def test_a_first_run_on_a_shared_core_fails_only_what_would_fail_on_a_quick_one(
    widths: tuple[float, float], us: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(7)
    monkeypatch.setattr(host_speed, "_pipeline", SimpleNamespace(issue_width=lambda: chance.uniform(*widths)))
    server = Server(machine=Machine())
    # The clock stands while the reference workload runs, which would tell nothing of it.
    monkeypatch.setattr(sampler, "reference_ns", lambda clock: 1700.0)
    budgets = Budgets({"us": 20.0})
    measurement = server.measure([Middleware(Costly, server.clock, us)], budgets=budgets, max_time_s=3.0)
    assert measurement.layer("Costly").judged["us"].verdict == verdict
    guessed = widths[0] < 4
    assert any("Its best is a guess" in note for note in measurement.notes) is guessed
    assert (measurement.reference_ns is None) is guessed
    assert server.machine.seen_ns == (math.inf if guessed else 1700.0)


def test_the_best_hop_is_the_quicker_of_what_was_known_and_what_was_seen() -> None:
    machine = Machine(known_hop_ns=40_000.0)
    assert (machine.best_hop_ns, machine.seen_hop_ns) == (40_000.0, math.inf)
    machine.saw(1000.0, 2.0)
    assert machine.seen_hop_ns == math.inf
    machine.saw(1000.0, 2.0, 50_000.0)
    assert (machine.best_hop_ns, machine.seen_hop_ns) == (40_000.0, 50_000.0)
    machine.saw(1000.0, 2.0, 30_000.0)
    assert machine.best_hop_ns == 30_000.0


@pytest.mark.parametrize(("known", "watched_s"), [(1000.0, 7.5), (math.inf, 4.5)])
def test_the_time_for_which_an_unknown_machine_was_watched_says_nothing(known: float, watched_s: float) -> None:
    machine = Machine(known, 3.0)
    machine.saw(1500.0, 4.5)
    assert machine.watched_s == watched_s


def test_a_few_lucky_readings_do_not_make_the_machine_look_slow() -> None:
    assert slowdown([100.0] * 2 + [1000.0] * 98, 1000.0) == 1.0


def test_a_machine_that_was_not_timed_is_taken_as_steady() -> None:
    assert slowdown([], math.inf) == 1.0


def test_the_reference_workload_is_timed_when_it_is_warm() -> None:
    readings = iter([0, 900, 1000, 1300])
    assert reference_ns(lambda: next(readings)) == 300.0


def test_the_kind_of_machine_stays_the_same() -> None:
    assert kind() == kind()
    assert kind().startswith(f"{CALLS} calls, CPython, 3.")


# ---- from run to run --------------------------------------------------------------------------------------------

CONFTEST = f"""
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
{SPIN}

# An unknown path is no workload here: old releases of Starlette answer it in a thread.
async def home(request):
    return PlainTextResponse("ok")

@pytest.fixture
def mw_budget_app():
    return Starlette(routes=[Route("/", home)], middleware=[Middleware(Spin, us=300)])
"""
TIMED = """
import pytest

@pytest.mark.mw_budget(layers={'Spin': 30})
def test_it(mw_budget):
    mw_budget.get('/')
"""
KEPT = TIMED.replace("30", "30_000")
COUNTED = TIMED.replace("'Spin': 30", "'Spin': {'tasks': 0}")
REPORT = "--mw-budget-json=mw.json"
QUICK = ["--mw-budget", "--mw-budget-max-time=5", "--mw-budget-flamegraph=never"]
# A best speed of 1 ns, which no machine reaches, and one that every machine reaches, watched for 60 s.
QUICKEST, SLOWEST = [1.0, 60.0], [1e9, 60.0]
# The fewest of the runs that are kept whose speed is believed.
BELIEVED = int(KEPT_RUNS * BELIEVED_SHARE)


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    """A directory whose test takes ten times its budget."""
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(TIMED)
    return pytester


def run(project: pytest.Pytester, *arguments: str, workers: int = 0) -> pytest.RunResult:
    options = [*QUICK, *arguments]
    if workers:
        return project.runpytest_subprocess("-n", str(workers), *LEAN, *options)
    return run_inside(project, "-p", "cacheprovider", *options)


def kept(project: pytest.Pytester, key: str = KEY) -> Any:
    return json.loads((project.path / ".pytest_cache" / "v" / key).read_text(encoding="utf-8"))


def reported(project: pytest.Pytester) -> list[dict[str, Any]]:
    """Return the measurements of a run with REPORT."""
    text = (project.path / "mw.json").read_text(encoding="utf-8")
    return cast("list[dict[str, Any]]", json.loads(text)["measurements"])


def keep(project: pytest.Pytester, value: object, key: str = KEY) -> None:
    path = project.path / ".pytest_cache" / "v" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def test_a_run_without_hops_leaves_the_speed_that_it_saw_and_no_time_of_a_hop(project: pytest.Pytester) -> None:
    project.makepyfile(test_other=KEPT)
    run(project, REPORT).assert_outcomes(failed=1, passed=1)
    ((name, speeds),) = kept(project).items()
    assert name == kind()
    ((best_ns, watched_s),) = speeds
    assert 100 < best_ns < 1_000_000
    seconds = [measurement["seconds"] for measurement in reported(project)]
    assert len(seconds) == 2
    assert watched_s == pytest.approx(sum(seconds))
    assert not (project.path / ".pytest_cache" / "v" / HOPS_KEY).exists()


def test_a_run_compares_its_speed_with_what_earlier_runs_saw(project: pytest.Pytester) -> None:
    project.makepyfile(KEPT)
    keep(project, {kind(): [QUICKEST] * BELIEVED + [SLOWEST] * (KEPT_RUNS - BELIEVED)})
    run(project, REPORT).assert_outcomes(passed=1)
    assert [measurement["reference_ns"] for measurement in reported(project)] == [QUICKEST[0]]
    assert len(kept(project)[kind()]) == KEPT_RUNS


@pytest.mark.live
@pytest.mark.once
def test_workers_know_what_runs_saw_and_leave_together_what_they_see(project: pytest.Pytester) -> None:
    """Both are tested in one run because starting workers takes longer than their tests."""
    project.makepyfile(KEPT, test_other=KEPT)
    # The workers are other processes. A speed is not kept if another machine seems to share the core throughout.
    project.makeconftest(f"{CONFTEST}\nfrom pytest_mwbudget.timing import host_speed\nhost_speed._pipeline = None\n")
    keep(project, {kind(): [QUICKEST]})
    run(project, REPORT, "--mw-budget-max-time=1", workers=2).assert_outcomes(passed=2)
    measurements = reported(project)
    assert [measurement["reference_ns"] for measurement in measurements] == [QUICKEST[0]] * 2
    known, (best_ns, watched_s) = kept(project)[kind()]
    assert known == QUICKEST
    assert 100 < best_ns < 1_000_000
    assert watched_s == pytest.approx(sum(measurement["seconds"] for measurement in measurements))


# Runs that no run can have written.
UNUSABLE = ["1", None, 0, 1.0, [1.0], [0, 60.0], [1.0, -1], [1.0, "9"], [1.0, 1, 1]]


def test_another_kind_of_machine_and_nonsense_say_nothing_of_this_one(project: pytest.Pytester) -> None:
    keep(project, {"another": [QUICKEST], kind(): UNUSABLE})
    run(project).assert_outcomes(failed=1)
    assert kept(project)["another"] == [QUICKEST]
    assert len(kept(project)[kind()]) == 1


class Cache:
    """pytest's cache in memory."""

    def __init__(self, **stored: object) -> None:
        self.texts = {key: json.dumps(value) for key, value in stored.items()}

    def get(self, key: str, default: object) -> Any:
        return json.loads(self.texts[key]) if key in self.texts else default

    def set(self, key: str, value: object) -> None:
        self.texts[key] = json.dumps(value)


def remembered(cache: Cache) -> Machine:
    return machine(cast("pytest.Config", SimpleNamespace(cache=cache)))


@pytest.mark.parametrize("nonsense", [[1.0], {kind(): 1.0}, None, {"another": 1.0, kind(): UNUSABLE}])
def test_nonsense_is_replaced(nonsense: object) -> None:
    cache = Cache(**{KEY: nonsense})
    assert (remembered(cache).known_ns, remembered(cache).watched_s) == (math.inf, 0.0)
    recall = Recall()
    recall.seen = Seen(500.0, 2.0)
    config = SimpleNamespace(cache=cache)
    recall.pytest_sessionfinish(cast("pytest.Session", SimpleNamespace(config=config)))
    assert cache.get(KEY, None) == {kind(): [[500.0, 2.0]]}


def test_a_machine_that_has_become_slow_is_taken_as_it_is_after_some_runs() -> None:
    def known_ns(quick: int) -> float:
        return remembered(Cache(**{KEY: {kind(): [QUICKEST] * quick + [SLOWEST] * (KEPT_RUNS - quick)}})).known_ns

    assert known_ns(BELIEVED) == QUICKEST[0]
    assert known_ns(BELIEVED - 1) == SLOWEST[0]


def test_without_a_cache_a_run_knows_what_it_sees(project: pytest.Pytester) -> None:
    keep(project, {kind(): [QUICKEST]})
    run(project, "-p", "no:cacheprovider").assert_outcomes(failed=1)
    assert kept(project) == {kind(): [QUICKEST]}


def test_the_seconds_for_which_runs_have_watched_the_machine_add_up() -> None:
    def after(*runs: list[float]) -> Machine:
        return remembered(Cache(**{KEY: {kind(): runs}}))

    assert (after([900.0, 0.5]).known_ns, after([900.0, 0.5]).watched_s) == (900.0, 0.5)
    assert after([900.0, 0.5], [800.0, 0.25], [700.0, 2.5]).watched_s == 3.25
    assert after().watched_s == 0.0


def test_a_run_with_hops_leaves_the_time_of_a_hop(project: pytest.Pytester) -> None:
    hopping = CONFTEST.replace(
        "        await self.app", "        await to_thread.run_sync(int)\n        await self.app"
    )
    project.makeconftest(hopping.replace("import pytest\n", "import pytest\nfrom anyio import to_thread\n"))
    keep(project, {kind(): [QUICKEST]}, HOPS_KEY)
    run(project)
    known, (hop_ns, watched_s) = kept(project, HOPS_KEY)[kind()]
    assert known == QUICKEST
    assert 1000 < hop_ns < 1_000_000_000
    assert watched_s > 0


def test_a_run_knows_the_hop_that_enough_runs_saw() -> None:
    def known(*hops_ns: float) -> float:
        return remembered(Cache(**{HOPS_KEY: {kind(): [[ns, 1.0] for ns in hops_ns]}})).best_hop_ns

    assert known() == math.inf
    assert known(50_000.0, 40_000.0) == 40_000.0
    assert known(30_000.0, *[40_000.0] * 7) == 40_000.0


def test_a_run_that_times_nothing_leaves_nothing(project: pytest.Pytester) -> None:
    project.makepyfile(COUNTED)
    run(project).assert_outcomes(passed=1)
    assert not (project.path / ".pytest_cache" / "v" / KEY).exists()
