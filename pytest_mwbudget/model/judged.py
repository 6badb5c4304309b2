"""A budget with its verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

Verdict: TypeAlias = Literal["pass", "fail", "undecided"]


@dataclass(frozen=True, slots=True)
class Judged:
    """A budget and its verdict. `reason` explains an undecided verdict."""

    bound: float
    verdict: Verdict
    reason: str | None = None

    def unless(self, why: str | None) -> Judged:
        """Return the same, but undecided if it is a failure and there is a reason why no failure counts."""
        return self if why is None or self.verdict != "fail" else Judged(self.bound, "undecided", why)


def worst(verdicts: Iterable[Verdict | None]) -> Verdict | None:
    """Return the worst of the verdicts, None if there are none; None stands for what has no budget."""
    ranked: tuple[Verdict | None, ...] = ("fail", "undecided", "pass", None)
    return min(verdicts, key=ranked.index, default=None)
