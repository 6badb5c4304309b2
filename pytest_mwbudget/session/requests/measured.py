"""What the gate knows of the requests of a test, whoever makes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import get_ident
from typing import TypeVar

from ...asgi import loops
from ...config.budgets import Budgets
from ...config.settings import Settings
from ...errors import tagged
from ...interpreter.clocks import perf_counter
from ...model.estimate import Seconds
from ...model.results import RequestLine, Result
from ...timing.looks import Environment

# A measurement takes about this much longer where a report reads its figures. Under pytest-timeout the longer ones of a
# test may take this share of its limit.
LONGER_S: Seconds = 5.0
LIMIT_SHARE = 0.1
BRIEF = (
    "The test, or another task of its event loop, has a time limit, so sampling ends as soon as every verdict is known,"
    " with any option. For precise figures measure the request in a test without a time limit."
)

_Result = TypeVar("_Result", bound=Result)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A request that was not measured, and why."""

    request: RequestLine
    reason: str


@dataclass(kw_only=True)
class MeasuredRequests:
    """The requests of one test.

    `enforce` is whether they are measured. `reported` is the number of results that are in a report, `judged` whether
    their verdicts are final. `examples` is whether Hypothesis runs the test many times. `limit_s` is the time limit of
    the test, None without one, `longer_s` the time that measurements for a reader have taken. `thread` is the thread of
    the test. Tasks of another thread, in which TestClient runs the app, have time limits of the app, not of the test.
    """

    settings: Settings
    environment: Environment
    enforce: bool = True
    examples: bool = False
    limit_s: Seconds | None = None
    longer_s: Seconds = 0.0
    reported: int = 0
    judged: bool = False
    left_out: list[LeftOut] = field(default_factory=list)
    thread: int = field(default_factory=get_ident)
    _reported_left_out: int = field(default=0, init=False)

    @contextmanager
    def in_time(self) -> Iterator[Environment]:
        """Yield the environment for a measurement in the block.

        A time limit of the test must not come sooner because of an option. Then what only a reader needs is left out.
        """
        environment = self.environment
        late = self.limit_s is not None and self.longer_s + LONGER_S > LIMIT_SHARE * self.limit_s
        if environment.reads and (late or (self.thread == get_ident() and loops.current().time_limited())):
            yield replace(environment, precise=False, inside=False, saves=False)
            return
        begin = perf_counter()
        try:
            yield environment
        finally:
            self.longer_s += perf_counter() - begin

    def noted(self, result: _Result, environment: Environment) -> _Result:
        """Return the result with a note if this environment left out what the readers of the run need."""
        if environment.reads or not self.environment.reads:
            return result
        notes = [note for note in result.notes if not note.endswith("[stopped-early]")]
        return replace(result, notes=(*notes, tagged(BRIEF, "stopped-early")))

    @property
    def unknown_clients(self) -> Sequence[str]:
        """The modules of clients whose requests cannot be seen."""
        return ()

    def leave_out(self, request: RequestLine, reason: str) -> None:
        """Note that a request was not measured."""
        left_out = LeftOut(request, reason)
        if left_out not in self.left_out:
            self.left_out.append(left_out)

    def fresh_left_out(self) -> Sequence[LeftOut]:
        """Return the requests that were left out since the last call."""
        fresh, self._reported_left_out = self.left_out[self._reported_left_out :], len(self.left_out)
        return fresh

    def budgets_of(self, result: Result) -> Budgets:
        """Return the budgets by which a result was judged."""
        return self.settings.budgets

    def why_none_judged(self) -> str | None:
        """Say that there were requests and none was judged; None if one was."""
        return None

    def unknown_layer(self) -> str | None:
        """Say which budget names a layer that no request has; None if there is none."""
        return None

    def doubtful_layer(self) -> str | None:
        """Say which budget names a layer that no request has, if one that was left out may have it."""
        return None
