"""Write docs/evidence.md: every bench script's method and results.

    python bench/evidence.py [--quick] [--results FOLDER] [--page PATH] [--only NAME ...] [--stored]

Runs the scripts one after another, keeps what each wrote as JSON in the folder (default bench/results), and writes the
page from all that is there. With --stored nothing is run: the page is written again from what is there.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness import Report

HERE = Path(__file__).parent
SCRIPTS = ("accuracy", "verdicts", "peers", "server", "published", "scale", "idle")

INTRODUCTION = """# Evidence

What the claims of this project rest on, and where it falls short of its goals. Each part is one script in `bench/`,
with its method in its own words and its results as it printed them. A timing is a ratio or a difference, taken in one
run on one machine; other machines give other figures. `python bench/evidence.py` runs all of them and writes this page.
"""


def run(name: str, results: Path, quick: bool) -> None:
    """Run one script, and keep its readings."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(results / f"{name}.json")]
    subprocess.run([*command, "--quick"] if quick else command, check=True)


def part(name: str, stored: dict[str, Any]) -> str:
    """A script's part of the page."""
    script = importlib.import_module(name)
    title, _, method = (script.__doc__ or "").strip().partition("\n")
    machine = ", ".join(f"{key} {value}" for key, value in stored["machine"].items())
    warning = (
        "\n\n**A quick run: it shows that the script works; its figures mean nothing.**" if stored["quick"] else ""
    )
    return (
        f"## {title.rstrip('.')}\n\n{method_of(method)}{warning}\n\n{body(script.report(stored['readings']))}\n\n"
        f"{machine}; {stored['seconds'] / 60:.0f} minutes.\n"
    )


def method_of(text: str) -> str:
    """A docstring as Markdown: what is set in by four spaces is a command."""
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        command = block.startswith("    ")
        blocks.append(f"```sh\n{block.strip()}\n```" if command else block.strip("\n"))
    return "\n\n".join(blocks)


def body(report: Report) -> str:
    """Goals first, then the tables as they were printed, then what there is to say of them."""
    goals = "\n".join(f"- {goal}" for goal in report.goals)
    tables = "\n\n".join(f"```text\n{table}\n```" for table in report.tables)
    return "\n\n".join(filter(None, [goals, tables, *report.notes]))


def page(results: Path) -> str:
    """The whole page, of the scripts whose readings are there."""
    stored = {name: results / f"{name}.json" for name in SCRIPTS}
    parts = [part(name, json.loads(path.read_text(encoding="utf-8"))) for name, path in stored.items() if path.exists()]
    return "\n".join([INTRODUCTION, *parts])


def main() -> None:
    """Run what is asked for, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="as little as shows that it works")
    parser.add_argument("--results", metavar="FOLDER", type=Path, default=HERE / "results")
    parser.add_argument("--page", metavar="PATH", type=Path, default=HERE.parent / "docs" / "evidence.md")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=SCRIPTS, default=SCRIPTS)
    parser.add_argument("--stored", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    arguments.results.mkdir(parents=True, exist_ok=True)
    for name in () if arguments.stored else arguments.only:
        run(name, arguments.results, arguments.quick)
    arguments.page.write_text(page(arguments.results), encoding="utf-8")


if __name__ == "__main__":
    main()
