"""Run processes of both sides in turn until every row is known, or the time is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..analysis.paired import FEWEST_PAIRS
from ..comparison.allowed import Allowed
from ..comparison.outcome import Comparison
from ..comparison.pairs import Pair, compare_pairs
from ..errors import VersusError
from ..interpreter.clocks import perf_counter
from ..model.estimate import Seconds
from ..model.quantities import COUNTED
from ..processes import TimeOverError
from ..report.text import listed
from .order import Statement
from .sides import Ran, Side, run

# How long each request is timed in each process. Many short processes tell more than few long ones.
TIME_S: Seconds = 0.5
# Pairs with different seeds of hashes that are enough for counts.
PAIRS_OF_COUNTS = 3
# Each look has this many times as many pairs as the look before.
LOOK_FACTOR = 1.5
# A pair is begun if there is time for one that takes this much longer than the longest so far.
SLOWER = 1.1

# Runs a side with a seed and a time limit.
Run = Callable[[Side, Seconds, int, Seconds], Ran]


@dataclass
class Comparing:
    """The processes of a comparison.

    `check` is called with each side and what its process told, and raises VersusError if it measured something else.
    `first` is called once, after the first process of HEAD. `progress` takes a line on what is known so far. All of it
    ends before `end_s` of the clock, unless the first pair takes longer than that.
    """

    base: Side
    head: Side
    allowed: Allowed
    end_s: Seconds
    check: Callable[[Side, Ran], None]
    first: Callable[[Statement], None]
    progress: Callable[[str], None]
    run: Run = run
    clock: Callable[[], Seconds] = perf_counter
    pairs: list[Pair] = field(default_factory=list)
    ran: dict[str, Ran] = field(default_factory=dict)
    longest_s: Seconds = 0.0
    interrupted: bool = False

    def __post_init__(self) -> None:
        self.begin_s = self.clock()

    @property
    def seconds(self) -> Seconds:
        """The time since the first process was started."""
        return self.clock() - self.begin_s

    @property
    def timed(self) -> bool:
        """Whether times are measured: not if all limits are of counts."""
        return not self.allowed or not self.allowed.keys() <= {*COUNTED}

    def comparison(self) -> Comparison:
        """Run pairs, and return what they show. Raises VersusError if there is no pair."""
        look, next_look = 0, FEWEST_PAIRS if self.timed else PAIRS_OF_COUNTS
        try:
            while self._time_for_a_pair():
                self._pair()
                if len(self.pairs) < next_look:
                    continue
                look, next_look = look + 1, max(next_look + 1, int(next_look * LOOK_FACTOR))
                so_far = compare_pairs(self.pairs, look, self.allowed)
                self.progress(self._line(so_far))
                if not so_far.open:
                    return self._compared(so_far)
        except TimeOverError:
            pass
        except KeyboardInterrupt:
            if not self.pairs:
                raise
            self.interrupted = True
        if not self.pairs:
            raise VersusError(
                "the time was over before both sides had run once; raise --max-time, or name fewer tests after --",
                message_id="versus-side",
            )
        return self._compared(compare_pairs(self.pairs, look + 1, self.allowed, last=True))

    def _compared(self, final: Comparison) -> Comparison:
        """Return the changes. Raises VersusError if there are none to judge: such a gate would always be open."""
        if any(changes for _, changes in final.requests):
            return final
        failed = self.ran[self.base.name].statement.failed
        why = f": {listed([f'{test} ({cause})' for test, cause in failed.items()])}" if failed else ""
        raise VersusError(
            f"no request was measured with {self.base.name} and with {self.head.name}, so nothing was compared{why}",
            message_id="versus-side",
        )

    def _time_for_a_pair(self) -> bool:
        return not self.pairs or self.clock() + SLOWER * self.longest_s <= self.end_s

    def _pair(self) -> None:
        """Run both sides, HEAD first in every other pair, so that what changes slowly cancels."""
        number, begin = len(self.pairs), self.clock()
        sides = (self.base, self.head) if number % 2 else (self.head, self.base)
        for side in sides:
            self._side(side, number)
        self.pairs.append(Pair(*(self.ran[side.name].process for side in (self.base, self.head))))
        self.longest_s = max(self.longest_s, self.clock() - begin)

    def _side(self, side: Side, seed: int) -> None:
        ran = self.run(side, TIME_S if self.timed else 0.0, seed, max(1.0, self.end_s - self.clock()))
        new = side.name not in self.ran
        self.ran[side.name] = ran
        if new and side is self.head:
            _check(side, ran)
            self.first(ran.statement)
        self.check(side, ran)

    def _line(self, so_far: Comparison) -> str:
        what = "limits undecided" if self.allowed else "rows not known well enough"
        left_s = max(0.0, self.end_s - self.clock())
        number = len(so_far.open) + sum(change.reason is not None for _, change in so_far.changes)
        return f"{len(self.pairs)} pairs, {number} {what}, {left_s:.0f} s left"

    def remarks(self) -> list[str]:
        """Say which tests ran or failed on the base only, and on HEAD only."""
        base, head = (self.ran[side.name].statement for side in (self.base, self.head))
        remarks = [
            f"not measured with {side.name}: {listed(ran.left_out)}"
            for side in (self.base, self.head)
            if (ran := self.ran[side.name]).left_out
        ]
        if failed := [test for test in base.failed if test not in head.failed]:
            remarks.append(
                f"failed with {self.base.name}, so not compared in full: {listed(failed)} ({base.failed[failed[0]]})"
            )
        for own, other, name in ((base, head, self.base.name), (head, base, self.head.name)):
            if tests := [test for test in own.tests if test not in other.tests and test not in other.failed]:
                remarks.append(f"run with {name} only: {listed(tests)}")
        return remarks


def _check(side: Side, ran: Ran) -> None:
    """Refuse a side whose tests fail, or that measured nothing."""
    if ran.statement.failed:
        checked_out = side.root != side.checkout
        ignored = " If they pass in your clone, they may need files that git ignores: make these with --prepare"
        raise VersusError(
            f"tests fail with {side.name}, so its figures may be for another response: {listed(ran.statement.failed)};"
            f" correct them first.{ignored if checked_out else ''}\n{ran.output}",
            message_id="versus-side",
        )
    if not ran.process:
        reasons = "".join(f"\n{reason}" for reason in ran.left_out)
        raise VersusError(
            f"{side.name} measured no request; mark a test with mw_budget, or give requests after --, for example"
            f" -- --mw-budget-app=myapp.main:app{reasons}\n{ran.output}",
            message_id="versus-side",
        )
