"""What the figures of a request changed by between two runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..analysis.paired import FEWEST_PAIRS
from ..analysis.slowdown import APPS_SLOWED, STEADY
from ..model.changes import Change, ChangeWord
from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate, independent_sum
from ..model.quantities import BETWEEN_RUNS, COMPARED, COUNTED, RECORDABLE, TRAITS, UNDER_LOAD, Traits
from ..model.runs import Run
from .figures import RequestFigures, RowFigures, is_part

# Two processes read the same row by up to BETWEEN_RUNS differently, beyond their intervals. A request that hands work
# to threads differs more, and also in counts: with the moment at which a thread answers (docs/decisions/0029).
BETWEEN_THREADED, BETWEEN_THREADED_COUNTS = 3.0, 0.02


@dataclass(frozen=True, slots=True)
class Comparable:
    """Why the times of two runs cannot be compared, and why their counts cannot; None if they can."""

    times: str | None = None
    counts: str | None = None

    def reason(self, quantity: str) -> str | None:
        """Return why a quantity cannot be compared."""
        return self.counts if quantity in COUNTED else self.times


def minor(python: str) -> str:
    """Return the first two numbers of a version of Python."""
    return ".".join(python.split(".")[:2])


def comparable(before: Run, after: Run, loop_before: str, loop_after: str) -> Comparable:
    """Say what of a request can be compared that was measured in two runs, on the given event loops."""
    counts = None
    if (before.implementation, minor(before.python)) != (after.implementation, minor(after.python)):
        counts = f"measured on {_interpreter(before)}, then on {_interpreter(after)}"
    elif loop_before != loop_after:
        counts = f"measured on the loop {loop_before}, then on {loop_after}"
    if counts is not None:
        return Comparable(counts, counts)
    processors = before.provenance.processor, after.provenance.processor
    if before.python != after.python:
        return Comparable(f"measured on {_interpreter(before)}, then on {_interpreter(after)}")
    if None in processors:
        return Comparable("one of the files does not say on which processor it was measured")
    if processors[0] != processors[1]:
        return Comparable(f"measured on {processors[0]}, then on {processors[1]}")
    return Comparable()


def _interpreter(run: Run) -> str:
    return f"{run.implementation} {run.python}"


def changes(before: RequestFigures, after: RequestFigures, limits: Comparable) -> tuple[Change, ...]:
    """Return what each quantity of each row changed by: the rows of the later run in order, then those that are gone.

    A quantity that neither run knows is left out, and so are the parts of an endpoint that only one run opened.
    """
    rows = (*after.rows, *(name for name in before.rows if name not in after.rows))
    rows = tuple(row for row in rows if not is_part(row) or (before.opened and after.opened))
    candidates = (change_of(row, quantity, before, after, limits) for row in rows for quantity in COMPARED)
    return tuple(change for change in candidates if change is not None)


def change_of(
    row: str, quantity: str, before: RequestFigures, after: RequestFigures, limits: Comparable
) -> Change | None:
    """Return what a quantity of a row changed by between two runs, None if there is nothing to say of it."""
    return _Pair(
        row,
        quantity,
        before.rows.get(row),
        after.rows.get(row),
        limits.reason(quantity) or other_load(quantity, before, after),
        (_slowed(quantity, before, after), _slowed(quantity, after, before)),
        before.in_threads or after.in_threads,
    ).change()


def other_load(quantity: str, before: RequestFigures, after: RequestFigures) -> str | None:
    """Return why a figure under load cannot be compared, None if it can and for any other figure."""
    if quantity not in UNDER_LOAD or before.load is None or after.load is None:
        return None
    if str(before.load) != str(after.load):
        return f"measured with {before.load}, then with {after.load}"
    quiet = min(before.load.quiet, after.load.quiet)
    return None if quiet >= FEWEST_PAIRS else "there were too few rounds of bursts in quiet moments"


def _slowed(quantity: str, figures: RequestFigures, other: RequestFigures) -> float:
    """Return how many times slower than at the best speed that either run knows the machine ran, at least 1."""
    ratio = (figures.load.slowdown if figures.load and quantity in UNDER_LOAD else figures.slowdown) or 1.0
    if figures.reference_ns and other.reference_ns:
        ratio *= figures.reference_ns / min(figures.reference_ns, other.reference_ns)
    return ratio if ratio > STEADY else 1.0


@dataclass(frozen=True, slots=True)
class _Pair:
    """A quantity of a row in both runs. `why_not` says why it cannot be compared, `slowed` is that of both runs.

    `threaded` says whether the request hands work to threads, in any row.
    """

    name: str
    quantity: str
    earlier: RowFigures | None
    later: RowFigures | None
    why_not: str | None
    slowed: tuple[float, float]
    threaded: bool

    def change(self) -> Change | None:
        """Return the change, None if neither run knows the figure, or only one does and it is measured on request."""
        before, after = (row.figures.get(self.quantity) if row else None for row in (self.earlier, self.later))
        if before is None and after is None:
            return None
        if self.quantity not in RECORDABLE and not all(figure and figure.bounded for figure in (before, after)):
            return None
        if self.earlier is None:
            return self._said("new", before, after)
        if self.later is None:
            return self._said("gone", before, after)
        if before is None or after is None:
            reason = f"in the earlier run {self.earlier.missing}" if before is None else self.later.missing
            return self._said("not measured", before, after, reason)
        if not (before.bounded and after.bounded):
            return self._said("not measured", before, after, "there were too few requests for an interval")
        why_not = self.why_not or (None if self._traits.counted else self._incomparable_time(self.earlier, self.later))
        if why_not is not None:
            return self._said("not comparable", before, after, why_not)
        change = self._change_of_count(before, after) if self._traits.counted else self._change_of_time(before, after)
        return Change(self.name, self.quantity, self._word(before, change), before, after, change)

    def _said(
        self, word: ChangeWord, before: Estimate | None, after: Estimate | None, reason: str | None = None
    ) -> Change:
        return Change(self.name, self.quantity, word, before, after, None, reason)

    @property
    def _traits(self) -> Traits:
        return TRAITS[self.quantity]

    def _incomparable_time(self, earlier: RowFigures, later: RowFigures) -> str | None:
        """Say why the times of a row cannot be compared, although both runs measured it on the same machine."""
        if earlier.in_threads or later.in_threads:
            return "it waits for threads, for longer or shorter with the load of the machine"
        # A layer that became another kind of layer is timed by another method rightly.
        if earlier.runs_task != later.runs_task or earlier.method == later.method:
            return None
        return f"it was timed by {earlier.method}, then by {later.method}"

    def _change_of_count(self, before: Estimate, after: Estimate) -> Estimate:
        change, larger = after - before, max(before.high, after.high)
        return change.widened(BETWEEN_THREADED_COUNTS * larger) if self.threaded else change

    def _change_of_time(self, before: Estimate, after: Estimate) -> Estimate:
        """Return the difference, with an interval that holds for any speed that the machine had in either run."""
        at_best = [self._at_best(us, slowed) for us, slowed in zip((before, after), self.slowed, strict=True)]
        larger_us = max(0.0, before.estimate, after.estimate)
        return independent_sum(at_best[1], -at_best[0]).widened(self._between * larger_us)

    def _at_best(self, figure: Estimate, slowed: float) -> Estimate:
        """Return a figure with the interval that it may have where the machine is at its best."""
        factor = slowed**APPS_SLOWED
        if self._traits.format == "share":  # bursts with the layer and past it are slowed down alike
            return figure
        if self._traits.format == "rate":
            return Estimate(figure.estimate, figure.low, max(figure.high, figure.high * factor))
        return Estimate(figure.estimate, min(figure.low, figure.low / factor), figure.high)

    @property
    def _between(self) -> float:
        """The share by which two processes read the figure differently."""
        return BETWEEN_RUNS * max(self._traits.between, BETWEEN_THREADED if self.threaded else 1.0)

    @property
    def _words(self) -> tuple[ChangeWord, ChangeWord]:
        """The words for a rise and for a fall."""
        if self._traits.counted:
            return "more", "fewer"
        return ("faster", "slower") if self._traits.format == "rate" else ("slower", "faster")

    def _word(self, before: Estimate, change: Estimate) -> ChangeWord:
        if change.low > 0 or change.high < 0:
            return self._words[change.high < 0]
        wide_us = max(0.0 if self.quantity in UNDER_LOAD else WIDE_US, WIDE_SHARE * before.estimate)
        return "same" if self._traits.counted or max(-change.low, change.high) <= wide_us else "unclear"


def differences(before: Run, after: Run) -> Iterator[str]:
    """Name what the surroundings of two runs differ by, as `starlette 0.45.3 → 0.46.0`."""
    made = (before.provenance, after.provenance)
    facts = {
        "": (_interpreter(before), _interpreter(after)),
        "platform ": (before.platform, after.platform),
        "processor ": (made[0].processor, made[1].processor),
        "hash seed ": (made[0].hash_seed, made[1].hash_seed),
    }
    packages = dict.fromkeys((*before.packages, *after.packages))
    facts |= {f"{name} ": (before.packages.get(name), after.packages.get(name)) for name in packages}
    for name, (old, new) in facts.items():
        if old != new:
            yield f"{name}{old or 'unknown'} → {new or 'unknown'}"
