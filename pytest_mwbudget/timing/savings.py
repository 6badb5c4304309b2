"""Measure what leaving a layer out saves: whole requests with every layer, and without one, in turns.

This comes after the rows are known and shares no request with them, so it is a second witness of a verdict. Whatever
the app does without a layer, the rows stay as they are: a layer that the app cannot do without has a reason in place of
a figure.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ..analysis.samples import Series
from ..analysis.savings import Arm, savings
from ..analysis.verdicts import more_time
from ..analysis.witness import in_doubt, judged_by_both
from ..asgi import loops
from ..errors import MeasurementError, ResponseError, of_the_app
from ..interpreter.foreign_tools import garbage_collection_deferred
from ..model.estimate import Nanoseconds, Seconds
from ..model.results import Counts
from ..model.saves import Saves
from ..model.stack import EntryIndex, RowIndex
from .arms import Arms, Blocks, other_way
from .host_speed import reference_ns
from .looks import NS_PER_S, Timed, Timing
from .sampler import Deadline

# The first request without a layer must end within this time, or within this many times that of a usual request.
TRIAL_S: Seconds = 1.0
TRIAL_FACTOR = 20


async def compared(timing: Timing, timed: Timed, counts: Mapping[RowIndex, Counts]) -> Timed:
    """Compare rows with what leaving out their layers saves: all rows for reports, else those with verdicts in doubt.

    `counts` are those of the rows. Verdicts that the comparison contradicts become undecided.
    """
    __tracebackhide__ = True
    schedule, everything = timing.schedule, timing.environment.saves and timing.schedule.savings_share > 0
    request_ns = timed.whole.estimate * 1000
    rows = {b.layer.index: b.entry for b in timing.layers if b.layer.merged_with is None and b.entry is not None}
    doubtful = {row for row in rows if in_doubt(timed.layers[row], counts.get(row))}
    run = Savings(timing, request_ns, timing.savings_ns, schedule.most_savings)
    too_slow = run.too_slow(len(rows)) if everything else None
    saved = {entry: Saves(None, too_slow) for entry in rows.values()} if too_slow else {}
    wanted = {*rows}
    if not everything or too_slow:  # for a verdict there is time of its own
        fails = any(timed.layers[row].verdict == "fail" for row in doubtful)
        rounds = schedule.witness_rounds if fails else schedule.fewest_savings  # a pass must cost little
        run, wanted = Savings(timing, request_ns, schedule.witness_ns, rounds), doubtful
    begin = timing.environment.clock()
    if wanted and run.most_ns:
        saved |= await run.measured([rows[row] for row in sorted(wanted)])
    layers = dict(timed.layers)
    for row in (row for row in rows if rows[row] in saved):
        saves, report = saved[rows[row]], layers[row]
        if row in doubtful and saves.us is not None:
            layers[row] = judged_by_both(report, saves.us)
        if everything:
            why = other_way(saves.us, report.us) if saves.us is not None else None
            layers[row] = replace(layers[row], saves=Saves(None, why) if why else saves)
    if any(layers[row].judged != timed.layers[row].judged for row in doubtful):
        with suppress(MeasurementError, ResponseError):  # the app has failed without a layer
            await timing.confirm()
    seconds = (timing.environment.clock() - begin) / NS_PER_S
    requests, seconds = timed.effort.requests + run.requests, timed.effort.seconds + seconds
    return replace(timed, layers=layers, effort=replace(timed.effort, requests=requests, seconds=seconds))


@dataclass(slots=True)
class Savings:
    """Compare whole requests with every layer and without single ones, for `most_ns` in at most `most_rounds`.

    A request takes `request_ns`. `requests` is the number of requests that were made.
    """

    timing: Timing
    request_ns: float
    most_ns: float
    most_rounds: int
    requests: int = 0

    async def measured(self, layers: Collection[EntryIndex]) -> dict[EntryIndex, Saves]:
        """Return what leaving out each of these layers saves, or why that is not known."""
        __tracebackhide__ = True
        timing, entries = self.timing, self.timing.stack.entries
        why_none = timing.mixed or self.too_slow(len(layers))
        arms = Arms(timing.stack, timing.caller, timing.environment.rng, layers, why_none=why_none)
        self.requests += len(arms.layers)
        with arms.bypasses.installed():
            await arms.try_each(max(TRIAL_S, TRIAL_FACTOR * self.request_ns / NS_PER_S))
            rounds = await self._rounds(arms) if arms.layers else []
        run_task = {index: entries[inner].own_task for index, inner in arms.layers.items()}
        saved = savings(rounds, run_task, self.request_ns / 1000, timing.sampler.samples.quick_ns())
        return saved | {index: Saves(None, why) for index, why in arms.why_not.items()}

    @property
    def _block_ns(self) -> float:
        return self.timing.schedule.block * self.timing.sampler.interval_after(self.request_ns)

    def too_slow(self, layers: int) -> str | None:
        """Say that there is too little time for the fewest rounds, None if there is enough."""
        schedule = self.timing.schedule
        needed_ns = schedule.fewest_savings * (layers + 1) * self._block_ns
        if needed_ns <= self.most_ns:
            return None
        longer = more_time(needed_ns / NS_PER_S / schedule.savings_share, time=self.timing.settings.more_time)
        return f"the app is so slow that there is too little time: {longer}"

    async def _rounds(self, arms: Arms) -> list[Blocks[Series]]:
        """Make rounds of blocks of requests. Refuses all layers if the app fails with every layer."""
        caller, clock, schedule = self.timing.caller, self.timing.environment.clock, self.timing.schedule
        limit_s = self.timing.request_limit_s
        try:
            async with caller.loop.limited(limit_s) as extend:
                deadline = Deadline(clock() + round(self.most_ns), clock, lambda: extend(limit_s))
                for _ in range(schedule.settle_calls):
                    await self._request()
                return await arms.rounds(
                    self._block,
                    deadline,
                    self._block_ns,
                    most=self.most_rounds,
                    whole=math.isqrt,
                    around=garbage_collection_deferred,
                )
        except loops.OutOfTimeError:
            arms.refuse_all("the app stopped answering when single layers were left out")
        except Exception as error:  # a request with every layer: others without one have changed the app
            caller.check()
            raised = type(of_the_app(error)).__name__
            arms.refuse_all(f"after requests without single layers the app failed with all of them: {raised}")
        return []

    async def _block(self, arm: Arm) -> Series:
        """Time whole requests, each with the slower reference of before and after it.

        Between two requests passes the same time as between those of the split.
        """
        clock, schedule = self.timing.environment.clock, self.timing.schedule
        taken, before = Series(), reference_ns(clock)
        for number in range(schedule.block):
            begin = clock()
            ns = await self._request()
            self.timing.sampler.rest(begin, before)
            after = reference_ns(clock)
            if number >= schedule.block_settle_calls:
                taken.add(ns, max(before, after))
            before = after
        return taken

    async def _request(self) -> Nanoseconds:
        self.requests += 1
        return (await self.timing.caller()).elapsed_ns
