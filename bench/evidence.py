"""Write docs/evidence.md: every bench script's method and results; also write pages of single scripts.

    python bench/evidence.py [--quick] [--only NAME ...] [--results FOLDER] [--page PATH]
    python bench/evidence.py --stored [--results FOLDER] [--page PATH]

Runs the scripts one after another, keeps their results as JSON in the folder (default bench/results), and writes the
page from all results there. Pages of single scripts are written beside it. A script that fails does not end the run: it
is named at the end, and the exit status is 1. With --quick, folder and page are temporary unless they are given. With
--stored nothing is run: the pages are written from the stored results.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import subprocess
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import stored
from harness import Goal, Report, file_to_write

HERE = Path(__file__).parent
SCRIPTS = (
    "accuracy",
    "savings",
    "verdicts",
    "peers",
    "server",
    "load",
    "published",
    "claims",
    "real_apps",
    "releases",
    "scale",
    "idle",
    "growth",
    "versus",
    "wild",
)
# The scripts with a page of their own, which their `page` writes, and its place beside docs/evidence.md.
PAGES = {"claims": "explanation/claims.md"}

INTRODUCTION = """# Evidence

This page shows what the claims of this project rest on, and where the project falls short of its goals. [Where this is
wrong](explanation/limits.md) lists what the number leaves out. Each part is one script in `bench/`: first its method,
then its results as it printed them, with the machine, the day and the revision of the package: a part with an older
revision was measured by the method of that revision. A timing is a ratio or a difference from one run on one machine;
other machines give other figures. `python bench/evidence.py` runs all scripts and writes this page.
[Design](design.md#words) defines the terms. *Ours* means pytest-mwbudget.

"""
HEAD = """The first goal of each part:

| goal | found | | goals reached in this part |
|---|---|---|---|
"""


def run(name: str, results: Path, quick: bool) -> bool:
    """Run a script and store its readings. Returns whether the script succeeded."""
    command = [sys.executable, str(HERE / f"{name}.py"), "--json", str(results / f"{name}.json")]
    return subprocess.run([*command, "--quick"] if quick else command, check=False).returncode == 0


def about(name: str) -> str:
    """Write a script's title and its method, unless the method is on a page of its own."""
    title, method = docstring(name)
    return "\n\n".join([f"## {title.rstrip('.')}", *([] if name in PAGES else [method_of(method)])])


def docstring(name: str) -> tuple[str, str]:
    """Return a script's title and method. Parses the source, because packages that it imports may be missing."""
    tree = ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8"))
    title, _, method = (ast.get_docstring(tree) or "").partition("\n")
    return title, method


def found(name: str, path: Path) -> tuple[str, Report]:
    """Write the results of a script; also return its report, which is empty without results."""
    if not path.exists():
        return f"**Not run: there are no results. `python bench/evidence.py --only {name}` runs it.**", Report([])
    result = stored.loads(path.read_text(encoding="utf-8"))
    report = importlib.import_module(name).report(result["readings"])
    results = f"Method and results are on [a page of their own]({PAGES[name]})." if name in PAGES else body(report)
    return "\n\n".join(filter(None, [warning(result), results, taken(result)])), report


def own_page(name: str, path: Path) -> str:
    """Write the page of a script that has one of its own."""
    result = stored.loads(path.read_text(encoding="utf-8"))
    about = "\n\n".join(filter(None, [warning(result), taken(result)]))
    text: str = importlib.import_module(name).page(result["readings"], method_of(docstring(name)[1]), about)
    return text


def warning(result: dict[str, Any]) -> str:
    """Return the warning before the results of a quick run; empty for others."""
    return "**A quick run: it shows that the script works; its figures mean nothing.**" if result["quick"] else ""


def line(goals: Sequence[Goal]) -> str:
    """Write the line of a script in the table at the top: its first goal, without details."""
    goal = goals[0]
    finding = goal.found.partition("; ")[0].partition(" (")[0]
    word = "reached" if goal.met else "**not reached**"
    cells = (goal.goal, finding, word, f"{sum(each.met for each in goals)} of {len(goals)}")
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def taken(result: dict[str, Any]) -> str:
    """Write machine, duration, day and revision of the readings. Old results lack the last two."""
    machine = ", ".join(f"{key} {value}" for key, value in result["machine"].items())
    day, revision = result.get("created", "").partition("T")[0], result.get("revision")
    when = ", ".join(filter(None, [day, revision and f"revision {revision}"]))
    return "; ".join(filter(None, [machine, f"{result['seconds'] / 60:.0f} minutes", when])) + "."


def method_of(text: str) -> str:
    """Convert a docstring to Markdown: a block indented by four spaces becomes a shell command."""
    blocks = []
    for block in text.strip("\n").split("\n\n"):
        command = block.startswith("    ")
        blocks.append(f"```sh\n{block.strip()}\n```" if command else block.strip("\n"))
    return "\n\n".join(blocks)


def body(report: Report) -> str:
    """Write goals, tables and notes."""
    goals = "\n".join(f"- {goal}" for goal in report.goals)
    tables = "\n\n".join(f"```text\n{table}\n```" for table in report.tables)
    return "\n\n".join(filter(None, [goals, tables, *report.notes]))


def page(results: Path) -> tuple[str, list[str]]:
    """Return the text of the page, and the names of the scripts whose results cannot be shown."""
    parts, lines, failed = [], [], []
    for name in SCRIPTS:
        goals: Sequence[Goal] = ()
        try:
            result, report = found(name, results / f"{name}.json")
            goals = report.goals
        except Exception as error:  # the results of other scripts can still be shown
            traceback.print_exc()
            failed.append(name)
            result = (
                f"**Its results cannot be shown: {type(error).__name__}: {error}. When packages are missing:"
                " `pip install -e . --group bench`; then `python bench/evidence.py --stored`.**"
            )
        if goals:
            lines.append(line(goals))
        parts.append(f"{about(name)}\n\n{result}\n")
    summary = HEAD + "\n".join(lines) + "\n\n" if lines else ""
    return INTRODUCTION + summary + "\n".join(parts), failed


def parsed() -> argparse.Namespace:
    """Parse the arguments."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--quick", action="store_true", help="as little as shows that it works; the figures mean nothing"
    )
    parser.add_argument("--results", metavar="FOLDER", type=Path, help="default: bench/results")
    parser.add_argument("--page", metavar="PATH", type=file_to_write, help="default: docs/evidence.md")
    parser.add_argument("--only", metavar="NAME", nargs="+", choices=SCRIPTS, help=f"default: {' '.join(SCRIPTS)}")
    parser.add_argument("--stored", action="store_true", help="run nothing")
    arguments = parser.parse_args()
    if arguments.stored and (arguments.only or arguments.quick):
        parser.error("--stored runs nothing, and the page has all that is stored: leave out --only and --quick")
    return arguments


def places(arguments: argparse.Namespace) -> tuple[Path, Path]:
    """Return the folder of the results and the path of the page. A quick run must not replace real results."""
    results, whole = HERE / "results", HERE.parent / "docs" / "evidence.md"
    if arguments.quick and not (arguments.results and arguments.page):
        folder = Path(mkdtemp(prefix="mwbudget-evidence-"))
        results, whole = folder / "results", folder / "evidence.md"
        print(f"a quick run: what was given no place goes to {folder}", flush=True)
    return arguments.results or results, arguments.page or whole


def main() -> None:
    """Run the requested scripts, and write the pages."""
    arguments = parsed()
    results, path = places(arguments)
    results.mkdir(parents=True, exist_ok=True)
    asked = () if arguments.stored else arguments.only or SCRIPTS
    failed = [name for name in asked if not run(name, results, arguments.quick)]
    text, hidden = page(results)
    path.write_text(text, encoding="utf-8")
    for name, place in PAGES.items():
        if name in SCRIPTS and name not in hidden and (results / f"{name}.json").exists():
            (path.parent / place).parent.mkdir(exist_ok=True)
            (path.parent / place).write_text(own_page(name, results / f"{name}.json"), encoding="utf-8")
    if failed or hidden:
        sys.exit(f"failed: {', '.join(dict.fromkeys([*failed, *hidden]))}; above is what they said")


if __name__ == "__main__":
    main()
