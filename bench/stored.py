"""Results as JSON files: one line for each reading, without the names of its fields and without needless digits."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

DIGITS = 8  # significant: with fewer, medians in the reports change in their last digit

Reading = dict[str, Any]
Path = tuple[str, ...]


def dumps(result: dict[str, Any], digits: int = DIGITS) -> str:
    """Write a result as JSON.

    `kinds` lists the fields of each kind of reading, each field as the path of its keys. `texts` lists the values of
    the fields that hold only texts and nulls. A line of `readings` has the position of its kind in `kinds`, then
    the value of each field, or the position of the value in `texts`.
    """
    flat = [dict(flattened(reading)) for reading in result["readings"]]
    kinds = list({frozenset(values): list(values) for values in flat}.values())
    number = {frozenset(paths): position for position, paths in enumerate(kinds)}
    texts = texts_of(flat)
    lines = []
    for values in flat:
        kind = number[frozenset(values)]
        cells = [texts[path].index(values[path]) if path in texts else values[path] for path in kinds[kind]]
        lines.append(compact(rounded([kind, *cells], digits)))
    head = {name: value for name, value in result.items() if name != "readings"}
    head |= {"kinds": kinds, "texts": list(texts.items())}
    return "\n".join([compact(head)[:-1] + ',"readings":[', ",\n".join(lines), "]}", ""])


def loads(text: str) -> dict[str, Any]:
    """Read the text that `dumps` wrote."""
    result: dict[str, Any] = json.loads(text)
    kinds = result.pop("kinds")
    texts = {tuple(path): values for path, values in result.pop("texts")}
    readings = []
    for kind, *cells in result["readings"]:
        reading: Reading = {}
        for path, cell in zip(map(tuple, kinds[kind]), cells, strict=True):
            put(reading, path, texts[path][cell] if path in texts else cell)
        readings.append(reading)
    return {**result, "readings": readings}


def flattened(reading: Reading, *outer: str) -> Iterator[tuple[Path, Any]]:
    """Yield the path and the value of each field. An empty object counts as a value."""
    for key, value in reading.items():
        if isinstance(value, dict) and value:
            yield from flattened(value, *outer, key)
        else:
            yield (*outer, key), value


def put(reading: Reading, path: Path, value: Any) -> None:
    """Set the value at a path, and create missing objects on the path."""
    *outer, last = path
    for key in outer:
        reading = reading.setdefault(key, {})
    reading[last] = value


def texts_of(flat: list[dict[Path, Any]]) -> dict[Path, list[str | None]]:
    """Return the distinct values of each field that holds only texts and nulls."""
    by_path: dict[Path, list[Any]] = {}
    for values in flat:
        for path, value in values.items():
            by_path.setdefault(path, []).append(value)
    return {
        path: list(dict.fromkeys(values))
        for path, values in by_path.items()
        if all(value is None or isinstance(value, str) for value in values)
    }


def rounded(value: Any, digits: int) -> Any:
    """Round floats to this number of significant digits, also in lists."""
    if isinstance(value, list):
        return [rounded(each, digits) for each in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def compact(value: Any) -> str:
    """Write JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
