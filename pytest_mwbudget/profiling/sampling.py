"""Repeat a request under pyinstrument, and attribute each sample to a layer by the marker on its stack."""

from __future__ import annotations

import math
import os
import random
import sys
import timeit
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TypeAlias

from ..analysis import profile_stacks
from ..asgi.server import Caller
from ..asgi.stack import Stack
from ..counting.attribution import Charging, owner_count
from ..interpreter.clocks import Clock, perf_counter, runs
from ..interpreter.code_patching import PROBE_FILE
from ..interpreter.foreign_tools import garbage_collection_paused
from ..model.estimate import Microseconds, Seconds
from ..model.results import Frame, Result
from ..model.stack import ENDPOINT, HARNESS, OUTSIDE, Owner, first_part, owner_of, probed_parent
from ..timing.schedule import Schedule
from .attribution import OwnerMarkers

if TYPE_CHECKING:
    from pyinstrument.session import Session

# The frames for a layer and for those round it.
Block: TypeAlias = tuple[str, ...]

MACHINERY = (str(Path(__file__).parents[1]) + os.sep, PROBE_FILE)
# A sample takes some tens of microseconds, more in a deep stack.
INTERVAL_S: Seconds = 0.0005
NS_PER_S, US_PER_S = 1e9, 1e6
ELSEWHERE = "(other tasks)"


@dataclass(frozen=True, slots=True)
class Profiled:
    """The samples of `requests` requests, which took `request_us` each under the profiler.

    `session` has the frames of each layer below its block (see `analysis.profile_stacks`), corrected for the profiler's
    own time (docs/decisions/0016).
    """

    session: Session
    requests: int
    samples: int
    request_us: Microseconds


async def profile(
    stack: Stack,
    caller: Caller,
    result: Result,
    times: Result,
    clock: Clock,
    tick: Callable[[], None],
    schedule: Schedule,
) -> Profiled:
    """Sample requests until each layer over a budget has enough samples, or the stack if no layer is over a budget.

    `times` has the times of the layers. Calls `tick` after each request. Raises the app's exceptions.
    """
    from pyinstrument import Profiler

    markers, blocks = OwnerMarkers(owner_count(stack)), _blocks(stack)
    charging = Charging(stack, markers, caller.loop.library)
    profiler = Profiler(interval=INTERVAL_S, async_mode="disabled")
    over = {report.layer.index for report in result.layers if result.is_over(report)}
    wanted = [
        blocks.get(owner_of(entry), ()) for entry, layer in stack.layers if entry is not None and layer.index in over
    ]
    chance, requests, begin = random.Random(), 0, clock()
    placed, iterations = charging.placed(), markers.iterations(caller.loop.library)
    with garbage_collection_paused(), warnings.catch_warnings(), _own_sampler(), placed, iterations as iterating:
        # If the app drops a coroutine before its first step, the coroutine round it is never awaited either.
        warnings.simplefilter("ignore", RuntimeWarning)
        while True:
            chunk = clock()
            with profiler:
                while clock() - chunk < schedule.profile_chunk_s * NS_PER_S:
                    _pause(chance.uniform(0, INTERVAL_S), clock)
                    await charging.request(caller.settled)
                    requests += 1
                    tick()
            session, seconds = profiler.last_session, (clock() - begin) / NS_PER_S
            assert session is not None
            if seconds >= schedule.profile_most_s or (
                seconds >= schedule.profile_least_s and _enough(session, blocks, wanted, schedule)
            ):
                break
        events = await _events(lambda: charging.request(caller.settled), schedule.profile_events)
    seconds_of = {
        blocks[owner]: seconds * requests
        for owner, seconds in _row_s(stack, times, waiting=iterating).items()
        if owner in blocks
    }
    assert times.total_us is not None
    rest = max(0.0, times.total_us.estimate / US_PER_S * requests - math.fsum(seconds_of.values()))
    sampled = profile_stacks.attributed(session.frame_records, blocks, MACHINERY)
    calls_and_returns = profile_stacks.attributed(events, blocks, MACHINERY)
    records = profile_stacks.fitted(sampled, calls_and_returns, seconds_of, rest)
    samples = sum(profile_stacks.innermost_owner(frames) in blocks for frames, _ in session.frame_records)
    request_us = _total_s(sampled) / requests * US_PER_S
    session = _with_records(session, records, samples, f"{result.request}, {requests} requests")
    return Profiled(session, requests, samples, request_us)


@contextmanager
def _own_sampler() -> Iterator[None]:
    """Replace pyinstrument's sampler of this thread, which `pyinstrument -m pytest` may be using.

    If a test has frozen pyinstrument's clock, the sampler gets a clock that runs.
    """
    from pyinstrument import stack_sampler

    local = stack_sampler.thread_locals
    before = stack_sampler.get_stack_sampler()
    local.stack_sampler = own = stack_sampler.StackSampler()
    if not runs(timeit.default_timer):
        own.timer_func = perf_counter
    try:
        yield
    finally:
        local.stack_sampler = before


def _pause(seconds: Seconds, clock: Clock) -> None:
    """Wait, because requests of equal length would otherwise be sampled at the same places again and again."""
    end = clock() + seconds * NS_PER_S
    while clock() < end:
        pass


def _blocks(stack: Stack) -> dict[Owner, Block]:
    """Return the blocks round the frames of each owner, outermost first; none for the probes' own work."""
    layers = dict(stack.layers)
    outside = (_block(OUTSIDE),)
    blocks: dict[Owner, Block] = {HARNESS: outside}
    for index in stack.probeable:
        outer, *_ = probed_parent(stack.entries, index, stack.probeable)
        around: Block = () if blocks.get(outer) == outside else blocks[outer]
        own: Block = () if around else outside
        first = first_part(stack.entries, index)
        if first in layers:
            own = (_block(layers[first].name, layers[first].index),)
        elif first == stack.endpoint:
            own = (_block(ENDPOINT),)
        blocks[owner_of(index)] = (*around, *own)
    blocks[Owner(len(stack.entries) + 1)] = (_block(ELSEWHERE),)
    return blocks


def _block(name: str, layer: int = profile_stacks.NO_LAYER) -> str:
    return profile_stacks.frame_info(name, profile_stacks.BLOCK, layer)


def _enough(session: Session, blocks: Mapping[Owner, Block], wanted: Sequence[Block], schedule: Schedule) -> bool:
    """Return whether each wanted block has enough samples; all blocks together if none is wanted."""
    owners = [profile_stacks.innermost_owner(stack) for stack, _ in session.frame_records]
    known = [blocks[owner] for owner in owners if owner in blocks]
    if not wanted:
        return len(known) >= schedule.profile_samples
    return all(sum(block == wanted_block for block in known) >= schedule.profile_samples for wanted_block in wanted)


async def _events(request: Callable[[], Awaitable[None]], most: int) -> list[profile_stacks.Record]:
    """Return the calls and returns of one request, by the stack that the profiler's work at them is charged to.

    None for a request that has at least `most`. The profiler's work is then subtracted in proportion to time.
    """
    from pyinstrument.stack_sampler import build_call_stack

    counts: Counter[tuple[str, ...]] = Counter()
    left = most
    previous = sys.getprofile()

    def seen(frame: FrameType, event: str, argument: object) -> None:
        nonlocal left
        counts[tuple(build_call_stack(frame, event, argument))] += 1
        left -= 1
        if not left:
            sys.setprofile(None)

    sys.setprofile(seen)
    try:
        await request()
    finally:
        sys.setprofile(previous)
    return [(list(stack), float(number)) for stack, number in counts.items()] if left else []


def _row_s(stack: Stack, result: Result, *, waiting: bool) -> dict[Owner, Seconds]:
    """Return the seconds of each owner in a request, if they were timed; without waits unless `waiting`."""
    times_us: dict[Owner, Microseconds] = {}
    entries = {layer.index: entry for entry, layer in stack.layers}
    for report in result.layers:
        entry = entries.get(report.layer.index)
        if entry is not None and report.us is not None:
            busy = report.occupation.busy if report.occupation else report.us
            times_us[owner_of(entry)] = (report.us if waiting else busy).estimate
    owners: dict[Frame, Owner] = {"outside": HARNESS}
    if stack.endpoint is not None:
        owners["endpoint"] = owner_of(stack.endpoint)
    for frame, owner in owners.items():
        if (us := result.frame(frame).us) is not None:
            times_us[owner] = us.estimate
    return {owner: max(0.0, us) / US_PER_S for owner, us in times_us.items() if math.isfinite(us)}


def _with_records(session: Session, records: list[profile_stacks.Record], samples: int, about: str) -> Session:
    """Return a session with other records."""
    total_s = _total_s(records)
    changed = {
        "frame_records": records,
        "start_call_stack": [""],
        "duration": total_s,
        # The session's own duration is by the clock of the date, which tests freeze.
        "cpu_time": total_s * session.cpu_time / _total_s(session.frame_records),
        "target_description": about,
        "sample_count": samples,
    }
    new_session: Session = type(session).from_json(session.to_json(include_frame_records=False) | changed)
    return new_session


def _total_s(records: Iterable[profile_stacks.Record]) -> Seconds:
    return math.fsum(seconds for _, seconds in records)
