"""What a figure changed by: between two runs, or in pairs of processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from .estimate import Estimate
from .judged import Verdict
from .quantities import TRAITS, Traits
from .runs import Commit

# `slower` and `faster` are said of times and rates, `more` and `fewer` of counts, only when the whole interval of the
# change says so. `unclear`: the interval is too wide to call the figure the same. `new` and `gone` are said of rows.
ChangeWord: TypeAlias = Literal[
    "slower", "faster", "more", "fewer", "same", "unclear", "not comparable", "new", "gone", "not measured"
]
CHANGE_WORDS: tuple[ChangeWord, ...] = get_args(ChangeWord)
WORSE: tuple[ChangeWord, ...] = ("slower", "more")
BETTER: tuple[ChangeWord, ...] = ("faster", "fewer")
CERTAIN: tuple[ChangeWord, ...] = (*WORSE, *BETTER)


@dataclass(frozen=True, slots=True)
class Change:
    """A figure of a row on two sides: a time, a count, or under load a rate or a share.

    `row` is the key of a row, `quantity` one of `quantities.COMPARED`. `before` and `after` are the figures with their
    intervals or ranges. `change` is their difference; its interval also contains what figures differ by from run to
    run. `reason` explains what is not comparable or not measured. `most` is the largest growth that is allowed, None
    without a limit, and `verdict` is None then; a stored result has neither.
    """

    row: str
    quantity: str
    word: ChangeWord
    before: Estimate | None = None
    after: Estimate | None = None
    change: Estimate | None = None
    reason: str | None = None
    most: float | None = None
    verdict: Verdict | None = None

    @property
    def traits(self) -> Traits:
        """What is known of the quantity."""
        return TRAITS[self.quantity]

    @property
    def changed(self) -> bool:
        """Whether the figure certainly changed, or its row is new or gone."""
        return self.word in (*CERTAIN, "new", "gone")

    @property
    def share(self) -> float | None:
        """The change as a share of what the figure was, None if that is unknown, or known to no better than half."""
        if self.change is None or self.before is None or self.before.low <= self.before.estimate / 2:
            return None
        return self.change.estimate / self.before.estimate


def word_for(quantity: str, change: Estimate, tolerance: float) -> ChangeWord:
    """Return what the interval of a change proves. Within `tolerance` a figure is the same."""
    traits = TRAITS[quantity]
    words: tuple[ChangeWord, ChangeWord] = ("more", "fewer") if traits.counted else ("slower", "faster")
    rise, fall = reversed(words) if traits.format == "rate" else words
    if change.low > 0 or change.high < 0:
        return rise if change.low > 0 else fall
    return "same" if within(change) <= tolerance else "unclear"


def within(change: Estimate) -> float:
    """Return the largest change, in either direction, that the interval holds."""
    return max(-change.low, change.high)


@dataclass(frozen=True, slots=True)
class Since:
    """The run that a run was compared with.

    - `name`: its file or saved name; `created`: when it was made; `commit`: what it measured
    - `new` and `gone`: requests that only the later or only the earlier run measured, with the ids of their tests
    - `differences`: what the surroundings of both runs differ by
    - `repeated`: requests that several files of one side have
    - `grown`: a sentence for each figure that grew by more than was allowed
    - `unjudged`: a sentence for each reason why figures were not judged by what was allowed
    """

    name: str
    created: str | None = None
    commit: Commit | None = None
    new: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    differences: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()
    grown: tuple[str, ...] = ()
    unjudged: tuple[str, ...] = ()
