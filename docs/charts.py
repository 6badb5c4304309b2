"""Draw docs/pictures/releases.svg: the bytecode instructions of starlette's middlewares, release by release.

    python docs/charts.py

Reads bench/results/releases.json, which `python bench/releases.py --json bench/results/releases.json` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

import stored  # noqa: E402
from releases import short  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "releases.json"
PICTURE = ROOT / "docs" / "pictures" / "releases.svg"

# Pixels. A panel has a title above its plot, and the releases below.
COLUMNS, PANEL, PLOT = 2, (400, 190), (300, 90)
LEFT, TOP = 60, 40
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:13px}"
    ".line{fill:none;stroke:#1f6feb;stroke-width:2}.change{fill:#1f6feb}.axis{stroke:#ccc}"
)


def main() -> None:
    """Write the picture."""
    PICTURE.write_text(picture(stored.loads(RESULTS.read_text(encoding="utf-8"))["readings"]), encoding="utf-8")


def picture(readings: Sequence[Mapping[str, Any]]) -> str:
    """Draw a panel for each layer whose count changed. A dot is a release at which it changed."""
    layers = [name for name in readings[-1]["rows"] if not name.startswith("(")]
    counts = {name: [one["rows"][name]["bytecodes"] for one in readings] for name in layers}
    panels = {name: values for name, values in counts.items() if len(set(values)) > 1}
    releases = [one["release"] for one in readings]
    width, height = COLUMNS * PANEL[0], -(-len(panels) // COLUMNS) * PANEL[1]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>Bytecode instructions per request by release of starlette</title><style>{STYLE}</style>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (name, values) in enumerate(panels.items()):
        row, column = divmod(number, COLUMNS)
        parts += [f'<g transform="translate({column * PANEL[0]},{row * PANEL[1]})">']
        parts += [*panel(short(name), releases, values), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def panel(name: str, releases: Sequence[str], values: Sequence[int]) -> Iterator[str]:
    """Draw the counts of one layer, with the scale from zero."""
    places = [
        (LEFT + PLOT[0] * number / (len(values) - 1), TOP + PLOT[1] * (1 - value / max(values)))
        for number, value in enumerate(values)
    ]
    bottom = TOP + PLOT[1]
    yield f'<text class="title" x="{LEFT}" y="18">{escape(name)}</text>'
    for value, y in ((max(values), TOP), (0, bottom)):
        yield f'<line class="axis" x1="{LEFT}" x2="{LEFT + PLOT[0]}" y1="{y}" y2="{y}"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end">{value:,}</text>'
    steps = " ".join(f"H{x:.1f}V{y:.1f}" for x, y in places[1:])
    yield f'<path class="line" d="M{places[0][0]:.1f},{places[0][1]:.1f}{steps}"/>'
    changes = [number for number, (before, after) in enumerate(pairwise(values), 1) if before != after]
    for number in changes:
        x, y = places[number]
        change = f"{releases[number]}: {values[number - 1]:,} to {values[number]:,}"
        yield f'<circle class="change" cx="{x:.1f}" cy="{y:.1f}" r="4"><title>{change}</title></circle>'
    for number in sorted({0, *changes}):
        place = f"translate({places[number][0] + 4:.1f},{bottom + 14}) rotate(-45)"
        yield f'<text transform="{place}" text-anchor="end">{releases[number]}</text>'


if __name__ == "__main__":
    main()
