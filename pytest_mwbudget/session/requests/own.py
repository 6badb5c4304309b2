"""Requests of a marked test's own clients: measured where they are made, and judged with the test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pytest

from ...asgi import loops
from ...asgi.naming import qualname_of
from ...asgi.stack import Stack
from ...config.budgets import Budgets
from ...config.settings import Settings
from ...engine import Publish, measure_again
from ...errors import MwBudgetError, described, tagged
from ...model.results import Result
from ...model.stack import Layer
from ...recording.clients import recorded
from ...recording.recorder import Recorded, Recorder
from ...recording.request import endpoint_of
from ..claims import Claims
from .examples import MOST_REQUESTS, NOT_MEASURED
from .measured import MeasuredRequests
from .names import Applying, UnmatchedNames

# What stand-ins raise that allow one call only; pytest-timeout raises it too, in the handler of a signal.
OUTCOMES = (pytest.fail.Exception, pytest.skip.Exception)
# How long a request is sampled that no budget applies to, if no report shows its figures.
UNJUDGED_TIME_S = 0.5
ANSWERED = (
    "a layer answers them, such as a cache: switch it off in the test, or make the request twice to measure what it"
    " does then"
)


@dataclass(kw_only=True)
class OwnRequests(MeasuredRequests):
    """Measures the requests that one test makes with its own clients.

    A request is measured once a test: for each app, method, route, status and list of layers that it enters.
    `current` gives the test's settings at the time of a request, `publisher` the function that keeps a profile.
    `active` is whether the test has no `mw_budget` client, which measures in its place. `claims` are those of a survey,
    which does not measure again what this test has measured.
    """

    publisher: Callable[[int], Publish | None]
    current: Callable[[], Settings]
    active: Callable[[], bool]
    claims: Claims | None = None
    results: list[Result] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.settings.repeat, self._measure, self.leave_out, self.active)
        # The apps are kept, because two apps that exist one after the other may have the same id.
        self._known: dict[tuple[object, ...], object] = {}
        self._unjudged: list[Result] = []
        # By which each result was judged.
        self._budgets: list[Budgets] = []
        self.unmatched = UnmatchedNames()

    @property
    def tried(self) -> bool:
        """Whether the test has called an app."""
        return self.recorder.seen

    @property
    def unknown_clients(self) -> Sequence[str]:
        """The modules of clients whose requests cannot be recorded."""
        return self.recorder.unknown

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the requests of all clients in the block. The apps are kept until its end."""
        with recorded(self.recorder):
            try:
                yield
            finally:
                self._known = dict.fromkeys(self._known)

    def budgets_of(self, result: Result) -> Budgets:
        """Return the budgets by which a result was judged."""
        return next(budgets for own, budgets in zip(self.results, self._budgets, strict=True) if own is result)

    def why_none_judged(self) -> str | None:
        """Say that there were requests and none was judged; None if one was."""
        if not self.tried or len(self.results) > len(self._unjudged):
            return None
        whys = [f"{left_out.request}: {left_out.reason}" for left_out in self.left_out]
        whys += [f"{unjudged.request}: {_why_unjudged(unjudged.status, self.settings)}" for unjudged in self._unjudged]
        return tagged(f"none of its requests was judged ({'; '.join(whys)})", "left-out")

    def unknown_layer(self) -> str | None:
        """Say which budget names a layer that no request has; None if none does, or if a request was left out."""
        return None if self.left_out else self._unknown()

    def doubtful_layer(self) -> str | None:
        """Say which budget names a layer that no request has, if one that was left out may have it."""
        unknown = self._unknown() if self.left_out else None
        return unknown and tagged(f"{unknown}; it may be in a request that was left out", "left-out")

    def _unknown(self) -> str | None:
        return next(self.unmatched.messages(), None)

    # ---- what the recorder calls ------------------------------------------------------------------------------------

    async def _measure(self, request: Recorded) -> None:
        line = request.caller.template.line
        try:
            await self._measured(request)
        except MwBudgetError as error:
            self.leave_out(line, str(error).removeprefix(f"{line}: "))
        except Exception as error:  # a fault of the measurement must not fail the user's test
            self.leave_out(line, f"the measurement failed with {described(error)}")
        except BaseException as error:
            if isinstance(error, OUTCOMES) and self.recorder.interrupted is None:
                self.leave_out(line, f"a repetition raised {described(error)}")
                return
            why = "it was cancelled while it was measured; a time limit in the test counts the repetitions too"
            self.leave_out(line, why)
            raise

    async def _measured(self, request: Recorded) -> None:
        caller, settings = request.caller, self.current()
        self.settings = settings
        line, running = caller.template.line, caller.loop.name
        if settings.loop is not None and settings.loop != running:
            why = f"loop={settings.loop!r} was requested, but the test's client runs the app on {running}"
            self.leave_out(line, why)
            return
        unjudged = _why_unjudged(caller.status, settings)
        budgets = Budgets()

        def choose(stack: Stack, wanted: Settings) -> Settings | None:
            nonlocal budgets
            layers = [layer for _, layer in stack.layers]
            if request.endpoint and endpoint_of(caller.scope) != request.endpoint:
                self.leave_out(line, f"its repetitions do not come to {request.endpoint}; {ANSWERED}")
                return None
            self.unmatched.take(Applying.to(stack, settings).unmatched)
            if not self._is_new(request, tuple(layer.name for layer in layers if layer.entered)):
                return None
            # Another request of the test may have what is named in the other budgets.
            wanted = self._settings_of(Applying.to(stack, wanted).settings, layers)
            budgets = wanted.budgets
            return wanted

        publish = self.publisher(len(self.results) + 1)
        with self.in_time() as environment:
            if unjudged:
                brief_s = settings.max_time_s if environment.precise else min(UNJUDGED_TIME_S, settings.max_time_s)
                wanted = replace(settings.narrowed(Budgets()), limits=None, max_time_s=brief_s)
            elif settings.limits is not None:
                wanted = replace(settings, limits=settings.limits.following(self.results, request.route))
            else:
                wanted = settings
            result = await measure_again(caller, wanted, environment, publish, choose)
        if result is None:
            return
        result = replace(self.noted(result, environment), route=request.route)
        if unjudged:
            result = replace(result, notes=(*result.notes, tagged(f"Not judged: {unjudged}.", "not-judged")))
            self._unjudged.append(result)
        self.results.append(result)
        self._budgets.append(budgets)

    def _is_new(self, request: Recorded, entered: tuple[str, ...]) -> bool:
        """Return whether this request is to be measured, and remember it."""
        caller = request.caller
        key: tuple[object, ...] = (id(caller.app), caller.template.line.method, request.route, caller.status, entered)
        if self.examples:  # each of them may make the app anew
            key = (identity_of(request, entered),)
        if key in self._known:
            return False
        if self.examples and len(self._known) >= MOST_REQUESTS:
            if not any(left_out.reason == NOT_MEASURED for left_out in self.left_out):
                self.leave_out(caller.template.line, NOT_MEASURED)
            return False
        self._known[key] = caller.app
        if self.claims is not None:
            with loops.unwatched():
                self.claims.claim(identity_of(request, entered))
        return True

    def _settings_of(self, settings: Settings, layers: Sequence[Layer]) -> Settings:
        """Return the settings for a request that enters these layers, from those with the budgets that apply to it."""
        return settings


def identity_of(request: Recorded, entered: Sequence[str] = ()) -> str:
    """Return what tells requests of a whole run apart, also in several processes: a test may make its app anew."""
    caller = request.caller
    method = caller.template.line.method
    return repr((qualname_of(caller.app), method, request.route, request.endpoint, caller.status, *entered))


def _why_unjudged(status: int, settings: Settings) -> str | None:
    """Return why a response of this status is not judged; None if it is."""
    if settings.expect_status is None:
        remedy = f"; expect_status={status} in the marker judges it" if settings.place == "marker" else ""
        return None if status < 400 else f"it answered {status}{remedy}"
    return None if status == settings.expect_status else f"it answered {status}, not {settings.expect_status}"
