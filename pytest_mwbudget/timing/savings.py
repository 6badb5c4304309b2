"""Measure what leaving a layer out saves: whole requests with every layer, and without one, in turns.

This comes after the rows are known and shares no request with them, so it is a second witness of a verdict. Whatever
the app does without a layer, the rows stay as they are: a layer that the app cannot do without has a reason in place of
a figure.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace

from ..analysis.samples import Series, Split
from ..analysis.savings import Round, other_way, savings
from ..analysis.verdicts import more_time
from ..analysis.witness import in_doubt, judged_by_both
from ..asgi import loops
from ..errors import MeasurementError, RepetitionError, ResponseError, of_the_app
from ..interpreter.foreign_tools import garbage_collection_paused
from ..model.estimate import Seconds
from ..model.results import Counts, ResultRow
from ..model.saves import Saves
from ..model.stack import EntryIndex, RowIndex
from .bypasses import Bypasses, inner_app
from .host_speed import reference_ns
from .run import NS_PER_S, SAFE_METHODS, Timed, Timing
from .sampler import Deadline

# The first request without a layer must end within this time, or within this many times that of a usual request.
TRIAL_S: Seconds = 1.0
TRIAL_FACTOR = 20


async def compared(timing: Timing, timed: Timed, counts: Mapping[RowIndex, Counts]) -> Timed:
    """Compare rows with what leaving out their layers saves: all rows for reports, else those with verdicts in doubt.

    `counts` are those of the rows. Verdicts that the comparison contradicts become undecided.
    """
    __tracebackhide__ = True
    schedule, everything = timing.schedule, timing.environment.saves
    rows = {b.layer.index: b.entry for b in timing.layers if b.layer.merged_with is None and b.entry is not None}
    doubtful = {row for row in rows if in_doubt(timed.layers[row], counts.get(row))}
    if everything and schedule.savings_share:
        wanted, most_ns, rounds = {*rows}, timing.savings_ns, schedule.most_savings
    else:
        fails = any(timed.layers[row].verdict == "fail" for row in doubtful)
        rounds = schedule.witness_rounds if fails else schedule.fewest_savings  # a pass must cost little
        wanted, most_ns = doubtful, schedule.witness_ns
    if not wanted or not most_ns:
        return timed
    begin = timing.environment.clock()
    run = Savings(timing, timed.whole.estimate * 1000, most_ns, rounds)
    saved = await run.measured([rows[row] for row in sorted(wanted)])
    layers = dict(timed.layers)
    for row in wanted:
        saves, report = saved[rows[row]], layers[row]
        if row in doubtful and saves.us is not None:
            layers[row] = judged_by_both(report, saves.us)
        if everything:
            layers[row] = replace(layers[row], saves=_of_the_layer(saves, report))
    if any(layers[row].judged != timed.layers[row].judged for row in doubtful):
        with suppress(MeasurementError, RepetitionError, ResponseError):  # the app has failed without a layer
            await timing.confirm()
    seconds = (timing.environment.clock() - begin) / NS_PER_S
    requests, seconds = timed.effort.requests + run.requests, timed.effort.seconds + seconds
    return replace(timed, layers=layers, effort=replace(timed.effort, requests=requests, seconds=seconds))


def _of_the_layer(saves: Saves, report: ResultRow) -> Saves:
    """Return what leaving a layer out saves, or the reason why that is not what the layer costs."""
    return saves if saves.us is None else other_way(saves.us, report.us) or saves


class Savings:
    """The requests of one stack with every layer and without one. A request takes `request_ns`.

    They are made for `most_ns` in at most `most_rounds`. `layers` are those that the app can do without; `why` has the
    reason for the others.
    """

    def __init__(self, timing: Timing, request_ns: float, most_ns: float, most_rounds: int) -> None:
        self.timing = timing
        self.caller = timing.caller
        self.clock = timing.environment.clock
        self.schedule = timing.schedule
        self.request_ns = request_ns
        self.most_ns = most_ns
        self.most_rounds = most_rounds
        self.requests = 0
        self.layers: list[EntryIndex] = []
        self.rounds: list[Round] = []
        self.why: dict[EntryIndex, str] = {}

    async def measured(self, layers: Iterable[EntryIndex]) -> dict[EntryIndex, Saves]:
        """Return what leaving out each of these layers saves, or why that is not known."""
        __tracebackhide__ = True
        inner_apps = self._inner_apps(layers)
        self.bypasses = Bypasses(self.timing.stack, inner_apps)
        if inner_apps:
            with self.bypasses.installed():
                for index in inner_apps:
                    await self._try_without(index)
                if self.layers:
                    await self._sample()
        entries = self.timing.stack.entries
        layers = {index: entries[inner_apps[index]].own_task for index in self.layers}
        quick_ns = self.timing.sampler.samples.quick_ns()
        saved = savings(self.rounds, layers, self.request_ns / 1000, quick_ns)
        return saved | {index: Saves(None, why) for index, why in self.why.items()}

    def _inner_apps(self, layers: Iterable[EntryIndex]) -> dict[EntryIndex, EntryIndex]:
        """Return the layers that requests can be sent past, each with what is called in its place."""
        layers = list(layers)
        why_none = self._why_none(len(layers))
        inner_apps = {}
        for index in layers:
            inner = why_none or inner_app(self.timing.stack, index)
            if isinstance(inner, str):
                self.why[index] = inner
            else:
                inner_apps[index] = inner
        return inner_apps

    def _why_none(self, layers: int) -> str | None:
        """Return why no request is sent past a layer, None if there is no such reason."""
        method, schedule = self.caller.template.line.method, self.schedule
        if method not in SAFE_METHODS:
            return f"a {method} request is sent past no layer"
        if self.timing.mixed is not None:
            return self.timing.mixed
        block = schedule.block_settle_calls + schedule.block_calls
        needed_ns = schedule.fewest_savings * (layers + 1) * block * self.request_ns
        if needed_ns > self.most_ns:
            longer = more_time(needed_ns / NS_PER_S / schedule.savings_share, time=self.timing.settings.more_time)
            return f"the app is so slow that there is too little time: {longer}"
        return None

    async def _try_without(self, index: EntryIndex) -> None:
        """Make a first request without a layer."""
        limit_s = max(TRIAL_S, TRIAL_FACTOR * self.request_ns / NS_PER_S)
        try:
            async with self.caller.loop.limited(limit_s):
                with self.bypasses.without(index):
                    await self._request()
        except loops.OutOfTimeError:
            self.why[index] = f"without it a request did not end within {limit_s:.3g} s"
        except Exception as error:  # whatever the app does without the layer
            self._leave(index, error)
        else:
            self.layers.append(index)

    def _leave(self, index: EntryIndex, error: Exception) -> None:
        """Drop a layer that the app cannot do without. Raises what ends the whole measurement."""
        self.caller.check()
        if index in self.layers:
            self.layers.remove(index)
        self.why[index] = _why(error)

    def _leave_all(self, why: str) -> None:
        self.why |= dict.fromkeys(self.layers, why)
        self.layers.clear()

    async def _sample(self) -> None:
        """Make rounds of blocks of requests until the time is over."""
        limit_s = self.caller.limit_s or self.timing.settings.startup_timeout_s
        try:
            async with self.caller.loop.limited(limit_s) as extend:
                end_ns = self.clock() + round(self.most_ns)
                deadline = Deadline(end_ns, self.clock, lambda: extend(limit_s))
                for _ in range(self.schedule.settle_calls):
                    await self._request()
                for _ in range(self.most_rounds):
                    if deadline.over() or not self.layers:
                        return
                    await self._round(deadline)
        except loops.OutOfTimeError:
            self._leave_all("the app stopped answering when single layers were left out")
        except Exception as error:  # a request with every layer: others without one have changed the app
            self.caller.check()
            raised = type(of_the_app(error)).__name__
            self._leave_all(f"after requests without single layers the app failed with all of them: {raised}")

    async def _round(self, deadline: Deadline) -> None:
        """Make a block of requests without each layer, and some with every layer, in random order.

        All layers are compared with the same requests, so there are more of these.
        """
        arms = [*[None] * math.isqrt(len(self.layers)), *self.layers]
        taken: dict[EntryIndex | None, Series] = {arm: Series() for arm in arms}
        self.rounds.append(taken)
        try:
            with garbage_collection_paused():
                for left_out in self.timing.environment.rng.sample(arms, len(arms)):
                    await self._block(left_out, taken[left_out])
                    if deadline.over():
                        return
        finally:
            gc.collect(0)

    async def _block(self, left_out: EntryIndex | None, taken: Series) -> None:
        """Time whole requests, each with the slower reference of before and after it.

        Between two requests a log of the split is evaluated, as between those of the total.
        """
        before, discarded = reference_ns(self.clock), Split()
        with self.bypasses.without(left_out):
            for number in range(self.schedule.block_settle_calls + self.schedule.block_calls):
                try:
                    ns = await self._request()
                except Exception as error:
                    if left_out is None:
                        raise
                    self._leave(left_out, error)
                    return
                self.timing.sampler.evaluate_a_log(before, discarded)
                after = reference_ns(self.clock)
                if number >= self.schedule.block_settle_calls:
                    taken.add(ns, max(before, after))
                before = after

    async def _request(self) -> int:
        self.requests += 1
        return (await self.caller()).elapsed_ns


def _why(error: Exception) -> str:
    """Say what the app does without a layer."""
    if isinstance(error, RepetitionError):
        return f"the app raises {type(of_the_app(error)).__name__} without it"
    if isinstance(error, ResponseError) and error.status is not None:
        return f"the app answers {error.status} without it"
    return "the app does not answer without it"
