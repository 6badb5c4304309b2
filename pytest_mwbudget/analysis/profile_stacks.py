r"""Stacks of a profile, told apart by layer. Pure; what pyinstrument records in, the same out.

A record is a stack of frame infos from the outside in (`function NUL file NUL line`, then attributes after \x01) and
the seconds that were spent there. In what comes in, a frame in the file `MARKER` stands wherever an owner was entered,
its line number the owner. In what goes out, a frame in the file `BLOCK` stands for each layer that encloses the sample,
and below the innermost are the frames of its owner alone: in whichever task they ran, and whoever called them.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile
from typing import TypeAlias

from ..model.stack import Owner

Record: TypeAlias = tuple[list[str], float]

MARKER, BLOCK = "<owner>", "<layer>"
# The line number of a block that is no layer's; of a layer it is the index.
NO_LAYER = -1
BUILT_IN = "<built-in>"
# In a name, what would end it.
UNPRINTABLE = "\ufffd"
# Deeper frames end in the one that called them: what draws a tree goes down it by recursion.
MOST_DEPTH = 200
SEPARATOR, ATTRIBUTE = "\x00", "\x01"
HALVINGS = 50
# The attribute that survives: the class of a method. Line numbers differ from sample to sample.
OF_CLASS = "c"


def frame_info(function: str, file: str, line: int) -> str:
    """A frame as pyinstrument identifies it, whatever the function is called."""
    parts = (part.replace(SEPARATOR, UNPRINTABLE).replace(ATTRIBUTE, UNPRINTABLE) for part in (function, file))
    return SEPARATOR.join((*parts, str(line)))


def file_of(frame: str) -> str:
    """The file of a frame info, "" where it has none."""
    parts = frame.split(ATTRIBUTE, 1)[0].split(SEPARATOR)
    return parts[1] if len(parts) > 1 else ""


def attributed(
    records: Iterable[Record], blocks: Mapping[Owner, Sequence[str]], machinery: tuple[str, ...]
) -> list[Record]:
    """The records below the blocks of their owners, equal ones added up, at most `MOST_DEPTH` frames deep.

    `blocks` has the frames to stand above what an owner does, by owner. What belongs to nobody there is left out, and
    so is what was spent in files whose path begins with one of `machinery`.
    """
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        owner = innermost_owner(stack)
        own = _app_frames(stack, machinery)
        if own and owner in blocks:
            deepest = max(1, MOST_DEPTH - len(blocks[owner]))
            found[(*blocks[owner], *map(_identified, own[:deepest]))] += seconds
    return _ordered(found)


def fitted(
    records: Iterable[Record], events: Iterable[Record], seconds: Mapping[tuple[str, ...], float], rest: float
) -> list[Record]:
    """The records without what the profiler added: those below each block take `seconds` of it together.

    A block is given by itself and those round it; those that are not given take `rest` together. The profiler works at
    calls and returns, of which `events` has the number for each stack: what is too much is taken off in proportion to
    them, as far as there is anything; then everything is scaled to what it has to be.
    """
    numbers = {tuple(stack): number for stack, number in events}
    groups: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    for stack, spent in records:
        block = blocks_of(stack)
        groups[block if block in seconds else ()].append((stack, spent))
    found: list[Record] = []
    for block, own in groups.items():
        stacks, sampled = [stack for stack, _ in own], [spent for _, spent in own]
        called = [numbers.get(tuple(stack), 0.0) for stack in stacks]
        found += zip(stacks, _fit(sampled, called, seconds.get(block, rest)), strict=True)
    return found


def _fit(spent: Sequence[float], numbers: Sequence[float], wanted: float) -> list[float]:
    """What is left of `spent` when each is less by the same multiple of its number, and all add up to `wanted`."""

    def less(multiple: float) -> list[float]:
        return [max(0.0, one - multiple * number) for one, number in zip(spent, numbers, strict=True)]

    low, high = 0.0, max((one / number for one, number in zip(spent, numbers, strict=True) if number), default=0.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(less(middle)) > wanted else (low, middle)
    left = less(low)
    total = math.fsum(left)
    return [one * wanted / total for one in left] if total else left


def blocks_of(stack: Sequence[str]) -> tuple[str, ...]:
    """The blocks that a stack begins with."""
    return tuple(takewhile(lambda frame: file_of(frame) == BLOCK, stack))


def pruned(records: Iterable[Record], least: float) -> list[Record]:
    """The records, each only as deep as where so many seconds were spent altogether."""
    records = list(records)
    within: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        for depth in range(1, len(stack) + 1):
            within[tuple(stack[:depth])] += seconds
    found: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        depth = next((d for d in range(1, len(stack) + 1) if within[tuple(stack[:d])] < least), len(stack) + 1)
        found[tuple(stack[: depth - 1])] += seconds
    return _ordered({stack: seconds for stack, seconds in found.items() if stack})


def innermost_owner(stack: Sequence[str]) -> Owner:
    """Return the owner whose marker is the innermost, -1 for none."""
    inside = _inside_markers(stack)
    return Owner(int(stack[inside - 1].split(ATTRIBUTE, 1)[0].split(SEPARATOR)[2]) if inside else -1)


def _inside_markers(stack: Sequence[str]) -> int:
    """The place of the first frame inside the innermost marker, 0 where there is none."""
    return next((place + 1 for place in reversed(range(len(stack))) if file_of(stack[place]) == MARKER), 0)


def _app_frames(stack: Sequence[str], machinery: tuple[str, ...]) -> Sequence[str]:
    """The frames of the app inside the innermost marker; none where it was not the app that ran."""
    own = stack[_inside_markers(stack) :]
    if own and file_of(own[0]) == BUILT_IN:
        own = own[1:]  # the step of a coroutine, which the marker made
    return () if any(file_of(frame).startswith(machinery) for frame in own) else own


def _identified(frame: str) -> str:
    """The frame without what differs from sample to sample."""
    identifier, *attributes = frame.split(ATTRIBUTE)
    return ATTRIBUTE.join([identifier, *(one for one in attributes if one.startswith(OF_CLASS))])


def _ordered(found: Mapping[tuple[str, ...], float]) -> list[Record]:
    """In an order in which stacks that begin alike stand together: pyinstrument merges neighbours."""
    return [(list(stack), seconds) for stack, seconds in sorted(found.items())]
