"""Draw the SVGs of docs/pictures: a failing test, and starlette's middlewares release by release.

    python docs/charts.py

failure.svg is drawn from the output on the page of litellm_story, which `python docs/outputs.py` writes; releases.svg
from bench/results/releases.json, which `python bench/releases.py --json bench/results/releases.json` writes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from textwrap import wrap
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "docs")]

import outputs  # noqa: E402
import stored  # noqa: E402
from releases import short  # noqa: E402

RESULTS = ROOT / "bench" / "results" / "releases.json"
PICTURE = ROOT / "docs" / "pictures" / "releases.svg"
FAILURE = ROOT / "docs" / "pictures" / "failure.svg"

# Pixels. A panel has a title above its plot, and the releases below.
COLUMNS, PANEL, PLOT = 2, (400, 190), (300, 90)
LEFT, TOP = 60, 40
STYLE = (
    "text{font:11px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:13px}"
    ".line{fill:none;stroke:#1f6feb;stroke-width:2}.change{fill:#1f6feb}.axis{stroke:#ccc}"
)

# Pixels of a character, a line and the margin of a text as in a terminal.
CHARACTER, LINE, MARGIN = 7.8, 19, 16
TERMINAL = (
    "text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
    "text{fill:#1f2328}.paper{fill:#f6f8fa;stroke:#d1d9e0}.mark{fill:#ffebe9}.head,.fail{font-weight:600}.fail{fill:#a40e26}"
    ".columns{fill:#59636e}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.paper{fill:#151b23;stroke:#3d444d}"
    ".mark{fill:#3c1618}.fail{fill:#ff9a92}.columns{fill:#9198a1}}"
)


def main() -> None:
    """Write the pictures."""
    PICTURE.write_text(picture(stored.loads(RESULTS.read_text(encoding="utf-8"))["readings"]), encoding="utf-8")
    FAILURE.write_text(terminal(*outputs.failure()), encoding="utf-8")


def terminal(headline: str, table: str, excess: str) -> str:
    """Draw the lines of a failure, those over their budgets marked, in the colours of a light or a dark system."""
    rows = table.splitlines()
    characters = max(map(len, (headline, *rows)))
    lines = [("head", headline), ("", ""), ("columns", rows[0])]
    lines += [("fail" if row.endswith("fail") else "row", row) for row in rows[1:]]
    lines += [("", ""), *(("row", line) for line in wrap(excess, characters))]
    width, height = round(2 * MARGIN + characters * CHARACTER), 2 * MARGIN + LINE * len(lines)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img" '
        'xml:space="preserve">',
        f"<title>{escape(headline)}</title><style>{TERMINAL}</style>",
        f'<rect class="paper" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="6"/>',
    ]
    for number, (kind, line) in enumerate(lines):
        y = MARGIN + LINE * number
        if kind == "fail":
            size = f'width="{width - MARGIN}" height="{LINE}"'
            parts.append(f'<rect class="mark" x="{MARGIN // 2}" y="{y}" {size} rx="3"/>')
        if line:
            # Fonts differ in width; the length keeps the columns below each other in all.
            length = f'textLength="{len(line) * CHARACTER:.1f}"'
            parts.append(f'<text class="{kind}" x="{MARGIN}" y="{y + 14}" {length}>{escape(line)}</text>')
    return "\n".join([*parts, "</svg>", ""])


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
