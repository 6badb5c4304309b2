"""All that a run measured: what is stored, compared and rendered."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from .changes import Since
from .results import RequestLine, Result, SurveyRun
from .runs import Run


class LeftOut(NamedTuple):
    """A request that was not measured: the id of its test, and the reason."""

    nodeid: str
    request: RequestLine
    reason: str


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run with its results.

    `measured` has each result with the id of its test. `survey` is what the run's survey did, None without one. `since`
    says which run it was compared with, None without a comparison.
    """

    run: Run
    measured: tuple[tuple[str, Result], ...] = ()
    left_out: tuple[LeftOut, ...] = ()
    survey: SurveyRun | None = None
    since: Since | None = None

    @property
    def results(self) -> list[Result]:
        """The results without the ids of their tests."""
        return [result for _, result in self.measured]
