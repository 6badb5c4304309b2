"""Merge files of limits that several jobs wrote."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import TypeVar

from ..model.quantities import COUNTED
from .file import Limit, LimitsFile, Place
from .sections import without_patch

Key = TypeVar("Key")
Value = TypeVar("Value")


def merged(files: Sequence[LimitsFile], base: LimitsFile | None = None) -> LimitsFile:
    """Merge files that were made of `base`, None if there is no such file.

    What one file changed wins over what the others left as it was, also if it was removed. Where several files changed
    a limit, the higher one wins; the range of a count then covers both. The order of the files does not matter.

    An update renames a section when Python has a new patch release. What others changed in the section follows.
    """
    base, *files = _with_same_sections(base or LimitsFile(), files)
    return LimitsFile(
        _merged([file.limits for file in files], base.limits, _higher),
        _merged([file.packages for file in files], base.packages, lambda key, a, b: max(a, b, key=_version)),
    ).pruned()


def _with_same_sections(base: LimitsFile, files: Sequence[LimitsFile]) -> list[LimitsFile]:
    """Return all files with the newest name that one of `files` gives a section of `base`.

    Where a file has sections of several patch releases, they keep their names.
    """
    own = [{name: without_patch(name) for name in file.sections} for file in (base, *files)]
    apart = {group for groups in own for group, number in Counter(groups.values()).items() if number > 1}
    renamed = {*own[0].values()} - apart
    newest: dict[str, str] = {}
    for name in sorted({name for groups in own[1:] for name in groups}, key=_version):
        newest[without_patch(name)] = name
    return [
        file.renamed({name: newest.get(group, name) for name, group in groups.items() if group in renamed})
        for file, groups in zip((base, *files), own, strict=True)
    ]


def _merged(
    files: Sequence[Mapping[Key, Value]], base: Mapping[Key, Value], join: Callable[[Key, Value, Value], Value]
) -> dict[Key, Value]:
    joined: dict[Key, Value] = {}
    for key in dict.fromkeys(key for file in (base, *files) for key in file):
        changes = [file.get(key) for file in files if file.get(key) != base.get(key)]
        changed = [value for value in changes if value is not None]
        if changed:
            joined[key] = reduce(lambda a, b: join(key, a, b), changed)
        elif not changes:
            joined[key] = base[key]
    return joined


def _higher(place: Place, first: Limit, other: Limit) -> Limit:
    top = max(first, other, key=lambda limit: (limit.most, limit.reason or ""))
    if place.quantity not in COUNTED:
        return top
    low = min(limit.most if limit.low is None else limit.low for limit in (first, other))
    return Limit(top.most, low if low < top.most else None, top.reason)


def _version(text: str) -> tuple[list[int], str]:
    return [int(number) for number in re.findall(r"\d+", text)], text
