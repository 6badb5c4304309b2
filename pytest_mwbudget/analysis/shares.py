"""Estimate requests per second, latencies and the shares of layers from bursts, and judge them. Pure.

A round is one burst past each layer that can be bypassed, and one past none, in random order. Bursts of the same round
are pairs, so whatever changes slowly is in both (docs/decisions/0034). While the event loop's thread is the bottleneck,
requests per second are the inverse of its processor time for each request, which other processes hardly change: shares
are then of this time (docs/decisions/0044).
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from ..errors import tagged
from ..model.estimate import Estimate, Microseconds
from ..model.judged import Judged
from ..model.load import PROCESSOR, WALL, LayerLoad, LoadClock, Wait
from ..model.quantities import RPS_SHARE
from ..model.results import ResultRow
from ..model.stack import EntryIndex
from . import judge
from .paired import FEWEST_PAIRS, paired
from .savings import Arm
from .slowdown import slowdown

# A moment is quiet if a fixed piece of work takes at most QUIET times as long as in the quickest tenth of the moments.
QUIET, QUICK_SHARE = 1.15, 0.1
# A burst is quiet if a process was ready, and had no core, for at most this share of the time.
WAITED_SHARE = 0.05
# Above this share of a burst, the load generator may be what limits the requests per second.
SENDING_SHARE = 0.9
# The event loop's thread is the bottleneck if it works for this share of the time in which it could have a core.
BOTTLENECK_SHARE = 0.9
# From this share on, nothing but the thread's time limits the requests per second.
CERTAIN_SHARE = 0.995
# An interval says nothing that reaches farther than this share to either side, and farther than the estimate is from 0.
WIDEST_SHARE = 0.25
# A row serialises requests if its time grows by more than this many times what the turns of the event loop explain, and
# to more than this share of the whole latency.
UNEXPLAINED, SERIAL_SHARE = 3.0, 0.3
# Where requests queue, the processor is idle for at least this share of the time, or the row holds one request or
# another for at least that one.
IDLE_SHARE, FULL_SHARE = 0.2, 0.5
# By how much the share of the split may be too large.
SPLIT_ROOM = 0.5
# Behind a server a layer takes up to this many times its self time (docs/explanation/limits.md).
BEHIND_SERVER = 2.8
# A layer of less than this share of a request is not bypassed: the bursts would take too long to see it.
NEGLIGIBLE_SHARE = 0.01
# Why layers can cost more than their own times.
LEFT = "a layer may leave work to the worker of a queue or to a callback, which is in no own time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A burst of requests.

    - `request_us`: the time between two responses, or the processor time for each request
    - `latencies_us`: those that clients saw, in order of size
    - `gauges`: the slowest times that a fixed piece of work took during the burst, on the server's core and on the load
      generator's
    - `queued`: the share of the burst in which the server's thread was ready to run but had no core, and `queues`
      whether that is known
    - `starved`: the same of the load generator
    - `working_us`: the time for each request in which the server's thread worked, None if unknown
    - `idle`: of the time in which the server's thread could have a core, the share in which it had nothing to do, if
      `request_us` is processor time
    - `sending`: the share of the burst in which the load generator worked
    - `collecting_us`: the time of garbage collection for each request, `full_us` that of full collections,
      `collections` the number of all collections for each request
    """

    request_us: Microseconds
    latencies_us: Sequence[float]
    gauges: tuple[float, ...]
    queued: float = 0.0
    queues: bool = True
    starved: float = 0.0
    working_us: Microseconds | None = None
    idle: float = 0.0
    sending: float = 0.0
    collecting_us: Microseconds = 0.0
    full_us: Microseconds = 0.0
    collections: float = 0.0

    @property
    def busy(self) -> float | None:
        """The share of the burst in which the server's thread worked, None if unknown."""
        return None if self.working_us is None else min(1.0, self.working_us / self.request_us)

    @property
    def occupied(self) -> float | None:
        """In which share of the time that it could have a core the server's thread worked, None if unknown."""
        return None if self.busy is None else occupied(self.busy, 1 - self.queued, known=self.queues)

    @property
    def is_bound(self) -> bool:
        """Whether the server's thread worked nearly all the time in which it could have a core.

        Then its processor time is what limits the requests per second.
        """
        return self.occupied is not None and self.occupied >= BOTTLENECK_SHARE

    def of_processor(self) -> Burst:
        """Return the burst with the processor time of a request in place of the time between two responses.

        It does not see other processes, but for what they do to the server's core and its caches.
        """
        assert self.working_us is not None
        assert self.busy is not None
        idle = max(0.0, 1 - self.busy / (1 - self.queued)) if self.queued < 1 else 0.0
        return replace(self, request_us=self.working_us, gauges=self.gauges[:1], queued=0.0, starved=0.0, idle=idle)


def occupied(busy: float, could: float, *, known: bool) -> float | None:
    """Return the share of the time that a thread could have a core, in which it worked.

    It worked for the share `busy` of all the time, and could have a core for the share `could`. If that is not `known`,
    only a thread that worked nearly all the time tells.
    """
    share = min(1.0, busy / could) if could > 0 else 1.0
    return share if known or share >= BOTTLENECK_SHARE else None


def alone(share: float) -> float:
    """Return the factor that turns the latency that a layer adds into its self time.

    The thread is `occupied` for this share of the time. Requests wait for it about as in a queue, so the latency
    contains what a layer takes 1 / (1 - share)² times.
    """
    return (1 - min(share, BOTTLENECK_SHARE)) ** 2


Round = Mapping[Arm, Burst]


def with_full_collections_spread(rounds: Sequence[Round]) -> list[Round]:
    """Return the rounds with the time of full garbage collections divided among all bursts by their collections.

    A full collection is rare and long: it takes as long as a good part of a burst. CPython makes one after a number of
    others, so chance says in which burst. Without this, it would be most of what bursts differ by.
    """
    bursts = [burst for arms in rounds for burst in arms.values()]
    collections = sum(burst.collections for burst in bursts)
    each_us = sum(burst.full_us for burst in bursts) / collections if collections else 0.0
    return [{arm: _spread(burst, each_us) for arm, burst in arms.items()} for arms in rounds]


def _spread(burst: Burst, each_us: Microseconds) -> Burst:
    more_us = each_us * burst.collections - burst.full_us
    return replace(
        burst,
        request_us=burst.request_us + more_us,
        working_us=None if burst.working_us is None else burst.working_us + more_us,
        collecting_us=burst.collecting_us + more_us,
        full_us=burst.full_us + more_us,
    )


class Bursts:
    """All rounds, each with a burst past no layer. Only quiet bursts count, unless these are too few: then `noisy`."""

    def __init__(self, rounds: Sequence[Round], clock: LoadClock = WALL) -> None:
        self.rounds, self.clock = rounds, clock
        gauges = zip(*(burst.gauges for bursts in rounds for burst in bursts.values()), strict=True)
        self._limits = [QUIET * sorted(times)[int(QUICK_SHARE * len(times))] for times in gauges]
        numbers = [(len(self._quiet(arm)), len(self._all(arm))) for arm in {arm for bursts in rounds for arm in bursts}]
        self.noisy = any(quiet < min(FEWEST_PAIRS, every) for quiet, every in numbers)

    def is_quiet(self, burst: Burst) -> bool:
        """Return whether a burst was taken in quiet moments."""
        slow = any(gauge > most for gauge, most in zip(burst.gauges, self._limits, strict=True))
        return not slow and max(burst.queued, burst.starved) <= WAITED_SHARE

    @property
    def quiet(self) -> int:
        """The number of rounds with quiet bursts only."""
        return sum(all(map(self.is_quiet, bursts.values())) for bursts in self.rounds)

    @property
    def whole(self) -> list[Burst]:
        """The bursts past no layer that count."""
        return [whole for _, whole in self.pairs(None)]

    def pairs(self, arm: Arm) -> list[tuple[Burst, Burst]]:
        """Return the pairs of bursts without and with a layer that count."""
        return self._all(arm) if self.noisy else self._quiet(arm)

    def _all(self, arm: Arm) -> list[tuple[Burst, Burst]]:
        return [(bursts[arm], bursts[None]) for bursts in self.rounds if arm in bursts]

    def _quiet(self, arm: Arm) -> list[tuple[Burst, Burst]]:
        return [pair for pair in self._all(arm) if all(map(self.is_quiet, pair))]

    def is_bound(self, arm: Arm) -> bool:
        """Return whether the server's thread was the bottleneck in most pairs, without a layer and with it."""
        pairs = self._all(arm)
        return 2 * sum(all(burst.is_bound for burst in pair) for pair in pairs) > len(pairs)

    def of_processor(self) -> Bursts | None:
        """Return the bursts by the processor time of the server's thread, None if it is not known."""
        if any(burst.working_us is None for bursts in self.rounds for burst in bursts.values()):
            return None
        rounds = [{arm: burst.of_processor() for arm, burst in bursts.items()} for bursts in self.rounds]
        return Bursts(rounds, PROCESSOR)

    @property
    def busy(self) -> float | None:
        """The typical share of a burst in which the server's thread worked, None if unknown."""
        known = [burst.busy for burst in self.whole if burst.busy is not None]
        return median(known) if known else None

    @property
    def occupied(self) -> float | None:
        """The typical share of the time that it could have a core in which the server's thread worked.

        None if unknown in one of the bursts.
        """
        known = [bursts[None].occupied for bursts in self.rounds if None in bursts]
        certain = [share for share in known if share is not None]
        return median(certain) if certain and len(certain) == len(known) else None

    @property
    def working_us(self) -> Microseconds:
        """The typical time of a request in which the server's thread worked, or the time of a request if unknown."""
        return median(burst.request_us if burst.working_us is None else burst.working_us for burst in self.whole)

    @property
    def request_us(self) -> Microseconds:
        """The typical time of a request."""
        return median(burst.request_us for burst in self.whole)

    @property
    def limited(self) -> bool:
        """Whether the load generator may have been slower than the server."""
        return bool(self.whole) and median(burst.sending for burst in self.whole) > SENDING_SHARE

    def slowdown(self, best_ns: float) -> float:
        """Return how many times slower than at its best the server's core was in the bursts that count, at least 1."""
        return slowdown([burst.gauges[0] for burst in self.whole], best_ns)


def bypassed(bursts: Bursts, arm: Arm, own: Estimate | None, alpha: float) -> LayerLoad:
    """Return what a layer of this self time costs, by pairs of bursts without and with it. There is at least one pair.

    Garbage collection is rare, and belongs to the mean: so its time is not trimmed. A layer may make the server's
    thread idle, which is in no processor time. So the interval contains the share with this time too.
    """
    pairs = bursts.pairs(arm)
    share = paired([1 - without.request_us / whole.request_us for without, whole in pairs], alpha)
    awake_without, awake = (1 - median(burst.idle for burst in arm_bursts) for arm_bursts in zip(*pairs, strict=True))
    low, high = (1 - (1 - end) * awake / awake_without for end in (share.low, share.high))
    collecting = paired([whole.collecting_us - without.collecting_us for without, whole in pairs], alpha, trimmed=False)
    return LayerLoad(
        share=Estimate(share.estimate, min(low, share.low), max(high, share.high)),
        method="bypass",
        clock=bursts.clock,
        added_us=paired([whole.request_us - without.request_us for without, whole in pairs], alpha),
        collecting_us=collecting,
        collects=own is not None and collecting.bounded and collecting.low > own.high > 0,
    )


def too_wide(share: Estimate | None) -> str | None:
    """Say why a share is as good as unknown, None if it is not."""
    if share is None or not share.bounded or share.half_width <= max(WIDEST_SHARE, abs(share.estimate)):
        return None
    span = f"bursts past it say no more than {share.low:.0%} to {share.high:.0%}"
    return f"{span}; run it again when the machine is less busy, or give it more time"


def divided(row: ResultRow, bursts: Bursts, clients: int, why: str | None, clock: LoadClock = WALL) -> LayerLoad:
    """Return the share of a request's time under load that is the layer's own, with the reason for no bypass.

    `bursts` are by wall clock, and `clock` is what the share is said to be of. At least, the own time with its waits is
    a share of the latency, because each client waits for its own requests. At most, the part of it that holds the
    server's thread is a share of this thread's time: if the thread is the bottleneck, all wait for it, and others are
    served while a layer waits. A share can be too large by SPLIT_ROOM. One that is larger still is not known.
    """
    if row.us is None or not row.us.bounded:
        return LayerLoad(why=why)
    spent = row.occupation
    holding = spent.busy if spent is not None and spent.wait_us and spent.busy.bounded else row.us
    share = row.us / (clients * bursts.request_us)
    if clients > 1:
        share = _between(share, holding / bursts.working_us, bursts.occupied)
    if share.low > 1 + SPLIT_ROOM:
        longer = "its self time is longer than a request under load, so the two cannot be compared"
        return LayerLoad(why=f"{why}; {longer}" if why else longer)
    share = Estimate(*(min(end, 1.0) for end in (share.estimate, share.low, share.high)))
    return LayerLoad(share, "split", why or "there was too little time for it", clock)


def _between(least: Estimate, most: Estimate, occupied: float | None) -> Estimate:
    """Return the share of a layer that is the first one without competition and the second one at the bottleneck.

    Requests that come at random wait for a thread about as in a queue, 1 / (1 - occupied) times as long as it works for
    them. Those that come regularly hardly wait, and near the bottleneck the last per cents make most of the wait.
    """
    if occupied is None:
        return replace(most, low=min(least.low, most.low))
    if occupied >= CERTAIN_SHARE:
        return most
    free = 1 - occupied
    low = min(least.low, most.low)
    high = max(low, min(max(least.high, least.high / free**2), most.high))
    return Estimate(min(max(least.estimate / free, low), most.estimate, high), low, high)


def lacking(row: ResultRow, layer_load: LayerLoad, wait: Wait | None, beyond: str | None) -> str | None:
    """Return why the share of the split may be too small to pass, None if it is not.

    `beyond` says that it may be above the budget for another reason, if it may.
    """
    why = layer_load.why
    if starts(row):
        beside = "it starts tasks or threads that may work after the response, and this is in no own time"
        return tagged(f"{beside}; {why}", "not-bypassed")
    if wait is not None and wait.serialises:
        return tagged(f"requests queue in it, and this is in no own time; {why}", "not-bypassed")
    return None if beyond is None else tagged(beyond, "not-bypassed")


def behind_server(share: Estimate | None, bound: float) -> str | None:
    """Say that a share of the split may be larger behind a server, and above its budget; None if it is not."""
    if share is None or BEHIND_SERVER * share.high <= bound:
        return None
    most = BEHIND_SERVER * share.high
    return f"behind a server a layer takes up to {BEHIND_SERVER} times its self time, which is {most:.1%} here"


def left_by(past: str, left: Estimate, *, certain: bool) -> str:
    """Say what share of a request's time bursts past layers save beyond the layers' own times.

    `certain` means that the app itself does nothing less without them.
    """
    span = f"{left.estimate:.0%} ({left.low:.0%} to {left.high:.0%})"
    less = "" if certain else ", or the app may do less without them"
    return f"bursts past {past} save {span} of a request's time beyond their own times; {LEFT}{less}"


def negligible_us(working_us: Microseconds, waited_us: Microseconds, occupied: float | None) -> Microseconds:
    """Return the self time below which bursts past a layer would take too long to see it.

    The server works for `working_us` for each request, which a busy machine changes little. A client waits for
    `waited_us` for its response, while the server's thread is `occupied`, None if unknown.
    """
    of_wait = 0.0 if occupied is None or occupied >= BOTTLENECK_SHARE else alone(occupied) * waited_us
    return NEGLIGIBLE_SHARE * max(working_us, of_wait)


def is_negligible(row: ResultRow, most_us: Microseconds, wait: Wait | None) -> bool:
    """Return whether a layer takes less than `most_us`, starts nothing, and no request queues in it."""
    queues = wait is not None and wait.serialises
    return row.us is not None and row.us.high < most_us and not starts(row) and not queues


def starts(row: ResultRow) -> bool:
    """Return whether a layer starts work that may end after the request, and is then in no time of a request.

    The task in which a task-spawning layer runs the inner app ends before.
    """
    counts = row.counts
    return counts is None or counts.tasks.high > row.layer.runs_task or counts.threads.high > 0


def rps_of(bursts: Sequence[Burst], alpha: float) -> Estimate:
    """Return the requests per second with their interval."""
    us = paired([burst.request_us for burst in bursts], alpha)
    low = 1e6 / us.high if us.bounded else 0.0
    return Estimate(1e6 / us.estimate, low, 1e6 / us.low if us.bounded and us.low > 0 else math.inf)


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
        return paired(shares, alpha, trimmed=False)

    low = bisect_left(ordered, share, key=lambda end_us: below(end_us).high)
    high = bisect_left(ordered, share, key=lambda end_us: below(end_us).low)
    # Where even the longest latency leaves the percentile open, the interval has no end.
    return Estimate(
        centre,
        min(centre, ordered[low] / 1000) if low < len(ordered) else centre,
        max(centre, ordered[high] / 1000) if high < len(ordered) else math.inf,
    )


# ---- effects of concurrency --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Observation:
    """What an observed burst shows: how long a request is in each entry, its latency, and a turn of the event loop.

    `request_us` is the time between two responses, `idle` the share of the time in which the process neither worked nor
    waited for a core. `steady` is whether turns tell everything that requests waited for but queues: without threads
    and with a core for the loop.
    """

    clients: int
    own_us: Mapping[EntryIndex, Microseconds]
    latency_us: Microseconds
    turn_us: Microseconds
    request_us: Microseconds
    idle: float
    steady: bool


def wait_in(entries: Sequence[EntryIndex], turns: int, single: Observation, every: Observation) -> Wait:
    """Return how long requests are in the row of these entries, with one client and with all, and whether they queue.

    A request is suspended in the row for `turns` turns of the event loop. Requests queue in it if its time grows beyond
    these, and if they can be slow for that, and not for the processor. A row in which requests are one at a time can
    also hold up others while the processor works: if that fills most of the time.
    """
    one_us, all_us = (sum(burst.own_us.get(index, 0.0) for index in entries) for burst in (single, every))
    grown, wait = all_us - one_us, Wait(one_us, all_us)
    slow = every.clients > 1 and grown > one_us and grown > SERIAL_SHARE * every.latency_us
    holds_up = every.idle >= IDLE_SHARE or (every.steady and one_us > FULL_SHARE * every.request_us)
    return replace(wait, serialises=slow and holds_up and grows(wait, turns, every))


def grows(wait: Wait, turns: int, every: Observation) -> bool:
    """Return whether requests are in a row longer with all clients than its turns of the event loop explain."""
    return wait.all_us - wait.one_us > UNEXPLAINED * (turns + 1) * every.turn_us


def without_garbage(layer_load: LayerLoad) -> Estimate | None:
    """Return what a bypassed layer adds to a request, at least, without what garbage collection takes of it."""
    added, collecting = layer_load.added_us, layer_load.collecting_us
    if added is None or collecting is None or not collecting.bounded:
        return added
    return replace(added, low=added.low - max(0.0, collecting.high))


# ---- verdicts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conditions:
    """What can explain a figure that is over its budget, or make one too small.

    `slowdown` is at least 1. `noisy` means that there were too few quiet moments. `shared_core` means that the server
    and the load generator share one core, `limited` that the load generator may be slower than the server: neither
    changes the processor time of the server's thread. `crowded` is why another process may have measured at the same
    time. `time` is the option that gives more time.
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


def judge_share(
    layer_load: LayerLoad,
    bound: float,
    conditions: Conditions,
    doubt: str | None = None,
    lacks: str | None = None,
) -> Judged:
    """Judge the share of a layer by its budget, both from 0 to 1.

    `doubt` is why it may be too large, `lacks` why it may be too small. A share of method `split`, the layer's self
    time divided by the time of a request, can be too large. So it fails only if it is above the budget by more than
    SPLIT_ROOM. Where the time of a request contains time of the load generator, shares are too small, so none passes.
    """
    if layer_load.share is None:
        reason = layer_load.why or "there were too few rounds of bursts"
        return Judged(bound, "undecided", tagged(f"there is no share for it: {reason}", "not-bypassed"))
    room = None if layer_load.method == "bypass" else SPLIT_ROOM
    no_pass, no_fail = lacks or conditions.clients_cost, conditions.excuse or doubt
    of_share = replace(conditions.of_figure, room=room, no_pass=no_pass, no_fail=no_fail)
    if layer_load.method == "split":
        of_share = replace(
            of_share, holds="set a budget of us for its self time, or move the budget away from the figure"
        )
    return judge.judge(RPS_SHARE, layer_load.share, bound, of_share)


def judge_p99(p99_ms: Estimate, bound: float, conditions: Conditions) -> Judged:
    """Judge a latency by its budget, both in milliseconds.

    Where a latency has a part of the load generator's, latencies are too long, so none fails.
    """
    of_latency = replace(conditions.of_figure, no_fail=conditions.excuse or conditions.clients_cost)
    return judge.judge("p99_ms", p99_ms, bound, of_latency)
