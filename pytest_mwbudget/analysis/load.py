"""Estimate requests per second, latencies and the shares of layers from bursts, and judge them. Pure.

A round is one burst past each layer that can be bypassed, and one past none, in random order. Bursts of the same round
are pairs, so whatever changes slowly is in both (docs/decisions/0034).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds
from ..model.judged import Judged
from ..model.load import LayerLoad
from ..model.quantities import RPS_SHARE
from ..model.stack import RowIndex
from . import judge
from .estimates import ALPHA
from .paired import FEWEST_PAIRS, paired, student
from .savings import takes_another_way
from .slowdown import STEADY

# A moment is quiet if a fixed piece of work takes at most QUIET times as long as in the quickest tenth of the moments.
QUIET, QUICK_SHARE = 1.15, 0.1
# A burst is quiet if a process was ready, and had no core, for at most this share of the time.
WAITED_SHARE = 0.05
# Above this share of a burst, the load generator may be what limits the requests per second.
SENDING_SHARE = 0.9
# A row serialises requests if its time grows by more than this many times what the turns of the event loop explain, and
# to more than this share of the whole latency.
UNEXPLAINED, SERIAL_SHARE = 3.0, 0.3
# Where requests queue, the processor is idle for at least this share of the time, or the row holds one request or
# another for at least that one.
IDLE_SHARE, FULL_SHARE = 0.2, 0.5
# By how much the share of the split may be too large.
SPLIT_ROOM = 0.5

# What is bypassed in a burst: a layer, or None for nothing.
Arm = RowIndex | None


@dataclass(frozen=True, slots=True)
class Burst:
    """A burst of requests.

    `request_us` is the time between two responses. `latencies_us` are those that clients saw, in order of size.
    `gauges` are the slowest times of a fixed piece of work beside it, on the core of the server and on that of the load
    generator. `waited` is the largest share of the burst in which one of them was ready and had no core. `busy` is the
    share in which the server's thread worked, `sending` the share in which the load generator did. `collecting_us` is
    the time of garbage collection for each request.
    """

    request_us: Microseconds
    latencies_us: Sequence[float]
    gauges: tuple[float, ...]
    waited: float = 0.0
    busy: float | None = None
    sending: float = 0.0
    collecting_us: Microseconds = 0.0


Round = Mapping[Arm, Burst]


@dataclass(frozen=True, slots=True)
class Bursts:
    """All rounds, each with a burst past no layer. Only quiet bursts count, unless these are too few: then `noisy`."""

    rounds: Sequence[Round]
    noisy: bool = field(init=False)
    _limits: tuple[float, ...] = field(init=False)

    def __post_init__(self) -> None:
        gauges = zip(*(burst.gauges for bursts in self.rounds for burst in bursts.values()), strict=True)
        limits = tuple(QUIET * sorted(times)[int(QUICK_SHARE * len(times))] for times in gauges)
        object.__setattr__(self, "_limits", limits)
        layers = {arm for bursts in self.rounds for arm in bursts if arm is not None}
        numbers = [(len(self._quiet_pairs(layer)), len(self._all_pairs(layer))) for layer in layers]
        numbers.append((len(self._quiet_whole()), len(self.rounds)))
        object.__setattr__(self, "noisy", any(quiet < min(FEWEST_PAIRS, every) for quiet, every in numbers))

    def is_quiet(self, burst: Burst) -> bool:
        """Return whether a burst was taken in quiet moments."""
        slow = any(gauge > most for gauge, most in zip(burst.gauges, self._limits, strict=True))
        return not slow and burst.waited <= WAITED_SHARE

    @property
    def quiet(self) -> int:
        """The number of rounds with quiet bursts only."""
        return sum(all(map(self.is_quiet, bursts.values())) for bursts in self.rounds)

    @property
    def whole(self) -> list[Burst]:
        """The bursts past no layer that count."""
        return [bursts[None] for bursts in self.rounds] if self.noisy else self._quiet_whole()

    def _quiet_whole(self) -> list[Burst]:
        return [bursts[None] for bursts in self.rounds if self.is_quiet(bursts[None])]

    def pairs(self, layer: RowIndex) -> list[tuple[Burst, Burst]]:
        """Return the pairs of bursts without and with a layer that count."""
        return self._all_pairs(layer) if self.noisy else self._quiet_pairs(layer)

    def _all_pairs(self, layer: RowIndex) -> list[tuple[Burst, Burst]]:
        return [(bursts[layer], bursts[None]) for bursts in self.rounds if layer in bursts]

    def _quiet_pairs(self, layer: RowIndex) -> list[tuple[Burst, Burst]]:
        return [pair for pair in self._all_pairs(layer) if all(map(self.is_quiet, pair))]

    @property
    def limited(self) -> bool:
        """Whether the load generator may have been slower than the server."""
        return bool(self.whole) and median(burst.sending for burst in self.whole) > SENDING_SHARE

    def slowdown(self, best_ns: float) -> float:
        """Return how many times slower than at its best the server's core was in the bursts that count, at least 1."""
        ratio = median([burst.gauges[0] for burst in self.whole]) / best_ns if self.whole and best_ns > 0 else 1.0
        return ratio if ratio > STEADY else 1.0


def alpha_of(figures: int) -> float:
    """Return the error of each interval so that this many hold jointly at `1 - ALPHA`."""
    return ALPHA / figures


def share_of(pairs: Sequence[tuple[Burst, Burst]], alpha: float) -> Estimate | None:
    """Return the share of the requests per second that a layer costs, None without a pair."""
    return _paired([1 - without.request_us / whole.request_us for without, whole in pairs], alpha)


def added_us(pairs: Sequence[tuple[Burst, Burst]], alpha: float) -> Estimate | None:
    """Return what a layer adds to the time of a request, None without a pair."""
    return _paired([whole.request_us - without.request_us for without, whole in pairs], alpha)


def collecting_us(pairs: Sequence[tuple[Burst, Burst]], alpha: float) -> Estimate | None:
    """Return what a layer adds to the time of garbage collection, for each request; None without a pair.

    A full collection is rare and long, and belongs to the mean: so nothing is trimmed.
    """
    differences = [whole.collecting_us - without.collecting_us for without, whole in pairs]
    return mean_interval(differences, alpha) if differences else None


def _paired(differences: Sequence[float], alpha: float) -> Estimate | None:
    return paired(differences, alpha) if differences else None


def mean_interval(values: Sequence[float], alpha: float) -> Estimate:
    """Return the mean with the interval of Student's t, unbounded for fewer than FEWEST_PAIRS values."""
    mean, count = fmean(values), len(values)
    if count < FEWEST_PAIRS:
        return Estimate(mean, -math.inf, math.inf)
    error = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1) / count)
    half = student(count - 1, alpha) * error
    return Estimate(mean, mean - half, mean + half)


def rps_of(bursts: Sequence[Burst], alpha: float) -> Estimate:
    """Return the requests per second with their interval."""
    us = paired([burst.request_us for burst in bursts], alpha)
    low = 1e6 / us.high if us.bounded else 0.0
    return Estimate(1e6 / us.estimate, low, 1e6 / us.low if us.bounded and us.low > 0 else math.inf)


def split_share(own: Estimate, request_us: Microseconds) -> Estimate:
    """Return the share of a request's time under load that is the layer's own."""
    return own / request_us


def quantile_ms(bursts: Sequence[Burst], share: float, alpha: float) -> Estimate:
    """Return a percentile of all latencies in milliseconds, with an interval that knows bursts to differ.

    A latency is within the interval if the mean over bursts of the share of longer latencies agrees with the
    percentile, by Student's t. Neighbouring latencies of a burst are far from independent, so bursts are what counts.
    """
    ordered = sorted(latency for burst in bursts for latency in burst.latencies_us)
    centre = ordered[min(int(share * len(ordered)), len(ordered) - 1)] / 1000
    if len(bursts) < FEWEST_PAIRS:
        return Estimate(centre, -math.inf, math.inf)

    def below(latency_us: float) -> Estimate:
        shares = [bisect_right(burst.latencies_us, latency_us) / len(burst.latencies_us) for burst in bursts]
        return mean_interval(shares, alpha)

    low = _first(ordered, lambda end_us: below(end_us).high >= share)
    high = _first(ordered, lambda end_us: below(end_us).low >= share)
    # Where even the longest latency leaves the percentile open, the interval has no end.
    return Estimate(
        centre,
        min(centre, ordered[low] / 1000) if low < len(ordered) else centre,
        max(centre, ordered[high] / 1000) if high < len(ordered) else math.inf,
    )


def _first(ordered: Sequence[float], holds: Callable[[float], bool]) -> int:
    """Return the place of the first value for which `holds`, which holds for all larger ones; the length for none."""
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(ordered[middle]) else (middle + 1, high)
    return low


# ---- effects of concurrency --------------------------------------------------------------------------------------


def serialises(
    one_us: Microseconds, all_us: Microseconds, turns: float, turn_us: Microseconds, latency_us: Microseconds
) -> bool:
    """Return whether requests queue in a row, which they stay in for `one_us` with one client and `all_us` with many.

    A request that is suspended `turns` times waits for that many turns of the event loop, of `turn_us` each with many
    clients. `latency_us` is the whole latency with many clients.
    """
    grown = all_us - one_us
    return queues(one_us, all_us, turns, turn_us) and grown > one_us and grown > SERIAL_SHARE * latency_us


def queues(one_us: Microseconds, all_us: Microseconds, turns: float, turn_us: Microseconds) -> bool:
    """Return whether requests stay in a row longer with many clients than turns of the event loop explain.

    The arguments are those of `serialises`.
    """
    return all_us - one_us > UNEXPLAINED * (turns + 1) * turn_us


def holds_up(one_us: Microseconds, request_us: Microseconds, idle: float, *, steady: bool) -> bool:
    """Return whether requests can be slow for a queue in a row, and not for the processor.

    `idle` is the share of the time in which the processor had nothing to do, `request_us` the time between responses.
    A row in which requests are one at a time, for `one_us` each, can also hold up others while the processor works: if
    that fills most of the time. Turns tell so only in a `steady` burst, without threads and with a core for the loop.
    """
    return idle >= IDLE_SHARE or (steady and one_us > FULL_SHARE * request_us)


def does_something_else(added: Estimate | None, collecting: Estimate | None, own: Estimate | None) -> bool:
    """Return whether bursts past a layer are quicker by far more than its own time and its garbage explain.

    A layer in which requests queue adds more than its own time, and is no case for this question.
    """
    if added is None:
        return False
    garbage_us = max(0.0, collecting.high) if collecting is not None and collecting.bounded else 0.0
    return takes_another_way(replace(added, low=added.low - garbage_us), own)


def collects(collecting: Estimate | None, own: Estimate | None) -> bool:
    """Return whether the garbage collection for a layer certainly takes more than the layer's own time."""
    return collecting is not None and own is not None and collecting.bounded and collecting.low > own.high > 0


# ---- verdicts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conditions:
    """What can explain a figure that is over its budget, or make one too small.

    `slowdown` is at least 1. `noisy` means that there were too few quiet moments. `shared_core` means that the server
    and the load generator share one core, `limited` that the load generator may be slower than the server. `crowded` is
    why another process may have measured at the same time. `time` is the option that gives more time.
    """

    slowdown: float = 1.0
    noisy: bool = False
    shared_core: bool = False
    limited: bool = False
    crowded: str | None = None
    time: str = "--mw-budget-load-time"

    @property
    def of_figure(self) -> judge.Conditions:
        """The conditions of every figure under load."""
        few = f"there were too few rounds of bursts for an interval; give it more time with {self.time}"
        return judge.Conditions(
            slowdown=self.slowdown,
            no_fail=self.excuse,
            too_few=tagged(few, "too-few-requests"),
            holds=f"give it more time with {self.time}, or move the budget away from the figure",
            near="such figures can be off; raise the budget, or lower the cost",
        )

    @property
    def excuse(self) -> str | None:
        """Why no excess counts, None if it does."""
        if self.crowded is not None:
            return self.crowded
        if self.noisy:
            return tagged(
                "there were too few quiet moments: other processes kept the cores busy; run it again when the machine"
                f" is less busy, or give it more time with {self.time}",
                "slow-machine",
            )
        return None

    @property
    def clients_cost(self) -> str | None:
        """Why the load generator has a part in shares, which are too small, and in latencies, which are too long.

        None if it has none.
        """
        if self.shared_core:
            return tagged(
                "the server and the load generator share the only core, so the figure differs from a server that"
                " has its own core; run the test where it may use two cores",
                "one-core",
            )
        if self.limited:
            return tagged(
                "the load generator worked nearly all the time, so shares may be larger and latencies shorter behind a"
                " server whose clients are quicker; use a budget of us for so quick an app",
                "generator-limit",
            )
        return None


def judge_share(layer_load: LayerLoad, bound: float, conditions: Conditions) -> Judged:
    """Judge the share of a layer by its budget, both from 0 to 1.

    A share that is the layer's own time divided by that of a request can be too large, so it needs more room to fail.
    Where the time of a request has a part of the load generator's, shares are too small, so none passes.
    """
    if layer_load.share is None:
        reason = layer_load.why or "there were too few rounds of bursts"
        return Judged(bound, "undecided", tagged(f"there is no share for it: {reason}", "not-bypassed"))
    room = None if layer_load.method == "bypass" else SPLIT_ROOM
    of_share = replace(conditions.of_figure, room=room, no_pass=conditions.clients_cost)
    return judge.judge(RPS_SHARE, layer_load.share, bound, of_share)


def judge_p99(p99_ms: Estimate, bound: float, conditions: Conditions) -> Judged:
    """Judge a latency by its budget, both in milliseconds.

    Where a latency has a part of the load generator's, latencies are too long, so none fails.
    """
    of_latency = replace(conditions.of_figure, no_fail=conditions.excuse or conditions.clients_cost)
    return judge.judge("p99_ms", p99_ms, bound, of_latency)
