"""Measure how fast the machine is by fixed pieces of work, and remember how fast it can be."""

from __future__ import annotations

import _thread
import math
import platform
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ..analysis.core_sharing import SIBLING_SLOWS
from ..analysis.slowdown import Interruptions
from ..interpreter.clocks import perf_counter_ns
from ..model.estimate import Microseconds, Nanoseconds
from ..model.runs import UNKNOWN_PROCESSOR

try:
    from . import _pipeline  # type: ignore[attr-defined]
except ImportError:  # not built
    _pipeline = None

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

# The reference workload: calls of a function that does nothing. Apps consist of calls, and a noisy neighbour slows both
# equally. Calls allocate nothing, so where the app left free memory does not matter.
CALLS = 120
SCHEDSTAT = Path("/proc/thread-self/schedstat")
CPUINFO = Path("/proc/cpuinfo")
NS_PER_US = 1000
# A share of nearly all the time is no measure of what would be without.
MOST_WAITED = 0.9
# The least length of a piece of work, and the least time that a call can take.
SHORTEST_NS, QUICKEST_CALL_NS = 10_000.0, 20.0


def reference_ns(clock: Callable[[], int]) -> float:
    """Return the nanoseconds of the reference workload.

    The second of two runs counts. After an idle wait the first run is slow without any neighbour.
    """
    for _ in range(2):
        taken = work_ns(clock, CALLS)
    return taken


def work_ns(clock: Callable[[], int], calls: int) -> float:
    """Return the nanoseconds that so many calls take."""
    begin = clock()
    for number in range(calls):
        _same(number)
    return float(clock() - begin)


def issue_width() -> float | None:
    """Return the no-ops per cycle that the core issues to this thread now, in 3 to 5 µs; None if this is not known."""
    return None if _pipeline is None else _pipeline.issue_width()


def hop_ns(clock: Callable[[], int]) -> float:
    """Return the nanoseconds of a fixed hop: start a thread, hear of it, wake it, and hear of it again.

    Thread pools and event loops wait in the same way: asleep, without the GIL, until another thread wakes them. The
    thread ends with the hop, so nothing has to be closed. It is none of `threading`, so no tracer or thread check that
    an app or a test has installed there sees it.
    """
    go, back = _thread.allocate_lock(), _thread.allocate_lock()
    go.acquire()
    back.acquire()

    def partner() -> None:
        back.release()
        go.acquire()
        back.release()

    begin = clock()
    _thread.start_new_thread(partner, ())
    try:
        back.acquire()
    finally:
        go.release()  # also after an interrupt, so that the thread ends
    back.acquire()
    return float(clock() - begin)


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of fixed work that are timed after a request: their number, and the calls in each."""

    number: int
    calls: int

    @classmethod
    def as_long_as(cls, budgets_us: Sequence[Microseconds], request_ns: float, clock: Callable[[], int]) -> Pieces:
        """Return pieces as long as the least of the budgets, together as long as the greatest.

        Neither is longer than a request, which takes `request_ns`, unless that is shorter than SHORTEST_NS.
        """
        call_ns = max(reference_ns(clock) / CALLS, QUICKEST_CALL_NS)
        most_ns = max(request_ns, SHORTEST_NS)
        piece_ns, all_ns = (min(max(us * 1000, SHORTEST_NS), most_ns) for us in (min(budgets_us), max(budgets_us)))
        return cls(max(1, int(all_ns / piece_ns)), int(piece_ns / call_ns))


@dataclass(frozen=True, slots=True)
class Interrupted:
    """How often this thread lost its core to others, and how long it was ready to run and had none, until a moment."""

    times: int
    waited_ns: Nanoseconds
    at_ns: Nanoseconds

    @classmethod
    def now(cls) -> Interrupted | None:
        """Return these of the calling thread, None if the system does not say."""
        waited = waited_ns()
        if resource is None or waited is None or not hasattr(resource, "RUSAGE_THREAD"):
            return None
        return cls(resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw, waited, perf_counter_ns())

    def until(self, later: Interrupted) -> Interruptions:
        """Return the interruptions between two moments."""
        taken_ns = max(1, later.at_ns - self.at_ns)
        share = min(MOST_WAITED, (later.waited_ns - self.waited_ns) / taken_ns)
        return Interruptions((later.times - self.times) / taken_ns * NS_PER_US, share)


def waited_ns() -> Nanoseconds | None:
    """Return the time that this thread was ready to run and had no core, None if the system does not say."""
    with suppress(OSError, IndexError, ValueError):
        return int(SCHEDSTAT.read_text(encoding="ascii").split()[1])
    return None


def _same(number: int) -> int:
    return number


@dataclass(eq=False, slots=True)
class Machine:
    """The quickest nanoseconds of the reference workload and of the hop: known of earlier processes, and seen here.

    What is seen while another thread uses the same core throughout is no best speed. `guessed_ns` then stands in, until
    one is known. `shared` says whether one does, None if too few readings tell.
    """

    known_ns: float = math.inf
    # The time for which the machine was watched before the current measurement.
    watched_s: float = math.inf
    known_hop_ns: float = math.inf
    seen_ns: float = math.inf
    seen_hop_ns: float = math.inf
    guessed_ns: float = math.inf

    def __post_init__(self) -> None:
        if not math.isfinite(self.known_ns):
            self.watched_s = 0.0

    @property
    def best_ns(self) -> float:
        """The quickest known time, a guess if none is known."""
        return min(self.seen_ns, self.known_ns) if self.is_known else self.guessed_ns

    @property
    def is_known(self) -> bool:
        """Whether a best speed is known."""
        return math.isfinite(min(self.seen_ns, self.known_ns))

    @property
    def best_hop_ns(self) -> float:
        """The quickest known time of the hop, infinite if none was ever measured."""
        return min(self.seen_hop_ns, self.known_hop_ns)

    def best_with(self, quick_ns: float, *, shared: bool | None) -> float:
        """Return the best time known at the end of a measurement whose quickest is `quick_ns`, a guess if none is."""
        if self.is_known or shared is False:
            return min(quick_ns, self.seen_ns, self.known_ns)
        return min(quick_ns / SIBLING_SLOWS if shared else quick_ns, self.guessed_ns)

    def saw(
        self, quick_ns: float, seconds: float, quick_hop_ns: float = math.inf, *, shared: bool | None = False
    ) -> None:
        """Remember the quickest times of a measurement."""
        if shared is False or (self.is_known and quick_ns < self.best_ns):
            self.seen_ns = min(self.seen_ns, quick_ns)
        elif shared:
            self.guessed_ns = min(self.guessed_ns, quick_ns / SIBLING_SLOWS)
        self.seen_hop_ns = min(self.seen_hop_ns, quick_hop_ns)
        self.watched_s += seconds


def kind() -> str:
    """Return a text that is equal if speeds can be compared: same work, same build of Python, same processor.

    The host's name says nothing, because each container has another name.
    """
    python = (platform.python_implementation(), platform.python_version(), *platform.python_build())
    return ", ".join([f"{CALLS} calls", *python, platform.python_compiler(), platform.machine(), processor()])


@cache
def processor() -> str:
    """Return the name of the model of processor."""
    if sys.platform == "darwin":
        return _stated("sysctl", "-n", "machdep.cpu.brand_string") or UNKNOWN_PROCESSOR
    if sys.platform == "win32":
        return platform.processor() or UNKNOWN_PROCESSOR
    facts: dict[str, str] = {}
    # Line by line: the file is long, and slow to make, on a machine with a hundred processors.
    with suppress(OSError), CPUINFO.open(encoding="utf-8") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
            if name.startswith("model name") or not line.strip():
                break
    # Linux names no model on ARM, where all processors say the same otherwise.
    arm = [facts.get(name) for name in ("CPU implementer", "CPU part", "CPU variant", "CPU revision")]
    model = facts.get("model name") or ("ARM " + " ".join(map(str, arm)) if arm[1] else None)
    return model or UNKNOWN_PROCESSOR


def _stated(*command: str) -> str:
    """Return what a command of the system prints, empty without it."""
    import subprocess  # only macOS needs it

    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()  # noqa: S603
    return ""
