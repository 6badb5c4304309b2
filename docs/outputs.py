"""Regenerate the outputs of pytest and of `mwbudget` in two pages of docs, in the examples' pages and in README.

    python docs/outputs.py [PAGE ...]

In the tutorial and on the page for authors of middlewares, a code block whose first line is a comment with a file name
is written to that file; a Markdown block of this kind is replaced by the file, which a command has written. In every
page, the text below `$ pytest …` or `$ mwbudget …` in a console block is replaced by the output of the command. The two
pages run in a temporary folder, with their commands in sh blocks; an example runs in the repository. README's output is
an excerpt from the page of litellm_story; `python docs/charts.py` draws its picture of a failure from the same page.
Needs the packages of the tests, and a quiet machine.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPLETE = (ROOT / "docs" / "get-started.md", ROOT / "docs" / "how-to" / "middleware-authors.md")
README = ROOT / "README.md"
STORY = ROOT / "examples" / "litellm_story" / "README.md"
# The parts of a failure report to show: the headline, the table of times, the excess.
EXCERPT = re.compile(
    r"^(GET \S+: [^\n]*)\n\n(layer .*?)\n\nper request.*?^(\w+ takes .*?\.\n)(?=\S)", re.MULTILINE | re.DOTALL
)
# The counts of every route, at the begin of the output of `mwbudget measure`.
COUNTED = re.compile(r"^```console\n(\$ mwbudget measure .*?\n\n)", re.MULTILINE | re.DOTALL)
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# ([\w./]+\.\w+)\n")
WRITTEN = re.compile(r"<!-- (\w+\.md) -->\n")
# Lines of pytest's header on the machine and on other plugins.
HEADER = re.compile(
    r"^(platform|rootdir|configfile|plugins|asyncio|benchmark|cachedir|hypothesis profile)\b.*\n", re.MULTILINE
)
COMMANDS = {"$ pytest ": ("pytest", "-p", "no:cacheprovider", "-p", "no:randomly", "-W", "ignore")}
COMMANDS["$ mwbudget "] = ("pytest_mwbudget",)


def main() -> None:
    """Rewrite the named pages, or all."""
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    for page in pages or [*COMPLETE, *sorted(ROOT.glob("examples/*/README.md"))]:
        with tempfile.TemporaryDirectory() as folder:
            text = renewed(page.read_text(encoding="utf-8"), Path(folder), Path(folder) if page in COMPLETE else ROOT)
        page.write_text(text, encoding="utf-8")
    README.write_text(with_excerpt(README.read_text(encoding="utf-8")), encoding="utf-8")


def with_excerpt(readme: str) -> str:
    """Return README with the first counts of litellm_story."""
    counted = COUNTED.search(STORY.read_text(encoding="utf-8"))
    assert counted is not None
    return re.sub(
        r"(```console\n)\$ mwbudget .*?(```)",
        lambda block: block[1] + counted[1].rstrip("\n") + "\n" + block[2],
        readme,
        flags=re.DOTALL,
    )


def failure() -> tuple[str, str, str]:
    """Return the first failure of litellm_story, shortened: its headline, the table of times, the excess."""
    found = EXCERPT.search(STORY.read_text(encoding="utf-8"))
    assert found is not None
    return found[1], found[2], " ".join(found[3].split())


def renewed(text: str, folder: Path, place: Path) -> str:
    """Return the text of a page with new outputs; files are written to `folder`, pytest runs in `place`."""

    def block(found: re.Match[str]) -> str:
        code = found[2]
        name = NAMED.match(code)
        if name and place == folder:
            (folder / name[1]).parent.mkdir(parents=True, exist_ok=True)
            (folder / name[1]).write_text(code, encoding="utf-8")
        if written := WRITTEN.match(code):
            return f"```{found[1]}\n{written[0]}{(folder / written[1]).read_text(encoding='utf-8')}```"
        command = code.partition("\n")[0]
        line = command if found[1] == "console" else f"$ {command}"
        begin = next((one for one in COMMANDS if line.startswith(one)), None)
        if begin is None or not (found[1] == "console" or (found[1] == "sh" and place == folder)):
            return found[0]
        printed = output(COMMANDS[begin], line.removeprefix(begin), place)
        return f"```console\n{command}\n{printed}```" if found[1] == "console" else found[0]

    return BLOCK.sub(block, text)


def output(module: tuple[str, ...], arguments: str, place: Path) -> str:
    """Return the output of a module with its options, without `HEADER`."""
    environment = {name: value for name, value in os.environ.items() if name not in ("CI", "PYTEST_ADDOPTS")}
    environment |= {"COLUMNS": "80", "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "ignore"}
    command = (sys.executable, "-m", *module, *shlex.split(arguments))
    run = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)  # noqa: S603
    if run.returncode not in (0, 1):
        sys.exit(run.stdout + run.stderr)
    return HEADER.sub("", run.stdout)


if __name__ == "__main__":
    main()
