r"""Attribute the stacks of a profile to layers. Pure; input and output are in pyinstrument's format.

A record is a stack of frame infos from the outside in (`function NUL file NUL line`, then attributes after \x01), and
seconds. In the input, a frame in the file MARKER shows that the owner in its line number was entered. In the output, a
frame in the file BLOCK stands for each layer round the sample. Below the innermost are the frames of its owner only, in
whichever task they ran and whoever called them.
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
# The line number of a block that is no layer's; a layer's block has the layer's index.
NO_LAYER = -1
BUILT_IN = "<built-in>"
# Replaces separators in names.
UNPRINTABLE = "\ufffd"
# Deeper frames are added to the frame that called them, because trees are drawn by recursion.
MOST_DEPTH = 200
SEPARATOR, ATTRIBUTE = "\x00", "\x01"
HALVINGS = 50
# The attribute that is kept: the class of a method. Line numbers differ from sample to sample.
OF_CLASS = "c"


def frame_info(function: str, file: str, line: int) -> str:
    """Return a frame as pyinstrument identifies it, whatever the function is called."""
    parts = (part.replace(SEPARATOR, UNPRINTABLE).replace(ATTRIBUTE, UNPRINTABLE) for part in (function, file))
    return SEPARATOR.join((*parts, str(line)))


def file_of(frame: str) -> str:
    """Return the file of a frame info, "" if it has none."""
    parts = frame.split(ATTRIBUTE, 1)[0].split(SEPARATOR)
    return parts[1] if len(parts) > 1 else ""


def attributed(
    records: Iterable[Record], blocks: Mapping[Owner, Sequence[str]], machinery: tuple[str, ...]
) -> list[Record]:
    """Return the records below the blocks of their owners, equal stacks added up, at most MOST_DEPTH frames deep.

    Leaves out records of owners without `blocks`, and those in files whose path begins with one of `machinery`.
    """
    totals: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        owner = innermost_owner(stack)
        own = _app_frames(stack, machinery)
        if own and owner in blocks:
            deepest = max(1, MOST_DEPTH - len(blocks[owner]))
            totals[(*blocks[owner], *map(_identified, own[:deepest]))] += seconds
    return _ordered(totals)


def fitted(
    records: Iterable[Record], events: Iterable[Record], seconds: Mapping[tuple[str, ...], float], rest: float
) -> list[Record]:
    """Return the records without the profiler's own time (docs/decisions/0016).

    The records of each block in `seconds` then add up to its seconds, all others to `rest`. A block is identified by
    itself and the blocks round it. The excess is subtracted in proportion to the `events` of each stack, its calls and
    returns, down to zero; the result is scaled to the sum.
    """
    numbers = {tuple(stack): number for stack, number in events}
    groups: defaultdict[tuple[str, ...], list[Record]] = defaultdict(list)
    for stack, spent in records:
        block = blocks_of(stack)
        groups[block if block in seconds else ()].append((stack, spent))
    corrected: list[Record] = []
    for block, own in groups.items():
        stacks, sampled = [stack for stack, _ in own], [spent for _, spent in own]
        called = [numbers.get(tuple(stack), 0.0) for stack in stacks]
        corrected += zip(stacks, _fit(sampled, called, seconds.get(block, rest)), strict=True)
    return corrected


def _fit(spent: Sequence[float], numbers: Sequence[float], wanted: float) -> list[float]:
    """Subtract the same multiple of each number from `spent`, so that the sum is `wanted`."""

    def less(multiple: float) -> list[float]:
        return [max(0.0, time - multiple * number) for time, number in zip(spent, numbers, strict=True)]

    low, high = 0.0, max((time / number for time, number in zip(spent, numbers, strict=True) if number), default=0.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if math.fsum(less(middle)) > wanted else (low, middle)
    left = less(low)
    total = math.fsum(left)
    return [time * wanted / total for time in left] if total else left


def blocks_of(stack: Sequence[str]) -> tuple[str, ...]:
    """Return the blocks that a stack begins with."""
    return tuple(takewhile(lambda frame: file_of(frame) == BLOCK, stack))


def pruned(records: Iterable[Record], least: float) -> list[Record]:
    """Return the records without frames in which less than `least` seconds were spent altogether."""
    records = list(records)
    within: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        for depth in range(1, len(stack) + 1):
            within[tuple(stack[:depth])] += seconds
    kept: defaultdict[tuple[str, ...], float] = defaultdict(float)
    for stack, seconds in records:
        depth = next((d for d in range(1, len(stack) + 1) if within[tuple(stack[:d])] < least), len(stack) + 1)
        kept[tuple(stack[: depth - 1])] += seconds
    return _ordered({stack: seconds for stack, seconds in kept.items() if stack})


def innermost_owner(stack: Sequence[str]) -> Owner:
    """Return the owner of the innermost marker, -1 for none."""
    inside = _inside_markers(stack)
    return Owner(int(stack[inside - 1].split(ATTRIBUTE, 1)[0].split(SEPARATOR)[2]) if inside else -1)


def _inside_markers(stack: Sequence[str]) -> int:
    """Return the index of the first frame inside the innermost marker, 0 if there is no marker."""
    return next((place + 1 for place in reversed(range(len(stack))) if file_of(stack[place]) == MARKER), 0)


def _app_frames(stack: Sequence[str], machinery: tuple[str, ...]) -> Sequence[str]:
    """Return the frames of the app inside the innermost marker; none if the package's own code ran."""
    own = stack[_inside_markers(stack) :]
    if own and file_of(own[0]) == BUILT_IN:
        own = own[1:]  # the step of a coroutine, which the marker made
    return () if any(file_of(frame).startswith(machinery) for frame in own) else own


def _identified(frame: str) -> str:
    """Return the frame without attributes that differ from sample to sample."""
    identifier, *attributes = frame.split(ATTRIBUTE)
    return ATTRIBUTE.join([identifier, *(attribute for attribute in attributes if attribute.startswith(OF_CLASS))])


def _ordered(totals: Mapping[tuple[str, ...], float]) -> list[Record]:
    """Sort records, because pyinstrument merges equal frames of neighbours only."""
    return [(list(stack), seconds) for stack, seconds in sorted(totals.items())]
