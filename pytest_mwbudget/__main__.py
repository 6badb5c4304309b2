"""The command `mwbudget`, also `python -m pytest_mwbudget`: measure, compare, merge limits, render, explain, doctor."""

from __future__ import annotations

import argparse
import io
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from .commands.app import INTERRUPTED
from .commands.files import files_of
from .comparison.history import HistoryRun
from .config.settings import CLIENTS
from .config.table import SETTINGS
from .errors import MwBudgetError, SettingError, report_of
from .messages import pages
from .model.measured_run import MeasuredRun
from .report.overview import together
from .report.terminal import run
from .report.text import printable
from .session.artifacts import HTML, RENDERED, STORED, put
from .storage.history import read as read_history
from .storage.merged_run import merged_run
from .storage.saved_runs import files_in, read

# What a shell says of a program whose reader has closed the pipe. A gate must not pass for that.
BROKEN_PIPE = 141
# Wider text is hard to read.
MOST_COLUMNS = 100


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 2 after an error; `measure` and `compare` have others, too."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # where an arrow cannot be written, the figures can
    command_line = _parsed(arguments)
    status = 0
    try:
        if command_line.command in ("measure", "load", "compare", "versus", "doctor"):
            status = BROKEN_PIPE  # until all output is written
            found = import_module(f".commands.{command_line.command}", __package__).main(vars(command_line))
            sys.stdout.flush()
            status = found
        elif command_line.command == "budgets":
            from .commands import budgets

            budgets.merge(command_line.file, command_line.output, command_line.base)
        elif command_line.command == "explain":
            _explain(command_line.id)
        else:
            _render(vars(command_line))
        sys.stdout.flush()
    except MwBudgetError as error:
        print(f"error: {report_of(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # while the app was imported or started; later, `measure` prints what is known
        return INTERRUPTED
    except BrokenPipeError:
        # The reader, such as `head`, has closed the pipe. Python flushes the rest of the output to /dev/null.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return status


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, behind = _split(given) if given[:1] == ["versus"] else (given, [])
    command_line, rest = parser.parse_known_args(own)
    command_line.pytest = behind
    # Before Python 3.12, argparse does not take a REQUEST behind an option.
    if command_line.command in ("measure", "versus"):
        command_line.request += [argument for argument in rest if not argument.startswith("-")]
        rest = [argument for argument in rest if argument.startswith("-")]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return command_line


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first `--`, and those behind it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mwbudget",
        description="Measure the middleware layers of an app, compare and render stored results, and explain messages.",
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    _add_measure(commands.add_parser("measure", help="measure an app without a test"))
    _add_load(commands.add_parser("load", help="measure a request of an app under load, without a test"))
    _add_versus(commands.add_parser("versus", help="compare a branch with the main branch, or two apps"))
    explain = commands.add_parser("explain", help="say what a message means and what to do")
    explain.add_argument("id", nargs="?", metavar="ID", help="the id of a message; without it all ids are listed")
    render = commands.add_parser("render", help="print the tables of a stored result, or write reports")
    several = "files that --mw-budget-json wrote, such as the shards of a CI matrix, or directories with such files"
    render.add_argument("result", nargs="+", metavar="RESULT.json", help=several)
    for output in RENDERED:
        render.add_argument(f"--{output.name}", dest=output.name, metavar="PATH", help="write to PATH")
    history = "the file of --mw-budget-history; with --html, the page draws every row over time"
    render.add_argument("--history", metavar="PATH", help=history)
    _add_compare(commands.add_parser("compare", help="say what changed between stored results"))
    _add_budgets(commands.add_parser("budgets", help="work with files of recorded limits"))
    doctor = commands.add_parser("doctor", help="say what can be measured in this environment, and what to do")
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")
    return parser


def _add_compare(compare: argparse.ArgumentParser) -> None:
    stored = "a file that --mw-budget-json wrote, a directory with such files, or a name of --mw-budget-save"
    compare.add_argument("before", metavar="BEFORE", help=stored)
    compare.add_argument("after", metavar="AFTER", help="the same for the later run")
    growth = "exit with status 1 if a figure certainly grew by more, for example us:10%%,bytecodes:0"
    compare.add_argument("--fail", metavar="QUANTITY:GROWTH", help=growth)
    compare.add_argument("--markdown", metavar="PATH", help="write to PATH, for a comment on a pull request")


def _add_budgets(budgets: argparse.ArgumentParser) -> None:
    merge = budgets.add_subparsers(required=True, metavar="merge").add_parser(
        "merge", help="join files of limits that several jobs wrote"
    )
    merge.add_argument("file", nargs="+", metavar="FILE", help="a file that --mw-budget-update wrote")
    merge.add_argument("-o", "--output", metavar="PATH", help="write to PATH, which is also the default of --base")
    base = "the file that the jobs started from: a change in one file wins over files that left the limit as it was"
    merge.add_argument("--base", metavar="PATH", help=base)


def _add_measure(measure: argparse.ArgumentParser) -> None:
    _add_app(measure, 30, "for all requests")
    request = "such as 'GET /health' or /health; without any, each route that GET can request as it is"
    measure.add_argument("request", nargs="*", metavar="REQUEST", help=request)
    measure.add_argument("--requests", metavar="FILE", help="TOML file with requests, headers and budgets")
    measure.add_argument("-v", "--verbose", action="store_true", help="show the table of each request")


def _add_app(command: argparse.ArgumentParser, time_s: int, what: str) -> None:
    """Add the arguments of a command that measures an app; `what` takes the time."""
    app = "package.module:attribute of the app or of its factory, or 'package.module:factory(\"literal\")'"
    command.add_argument("app", metavar="APP", help=app)
    command.add_argument("--time", metavar="SECONDS", default=time_s, help=f"time {what} (default: {time_s})")
    several = "a header of every request; can be given once for each name"
    command.add_argument("--header", action="append", metavar="'NAME: VALUE'", help=several)
    for output in STORED:
        command.add_argument(f"--{output.name}", metavar="PATH", help=SETTINGS[output.name].text)


def _add_load(load: argparse.ArgumentParser) -> None:
    _add_app(load, 10, "for the bursts")
    load.add_argument("request", metavar="REQUEST", help="such as /health or 'GET /health'")
    clients = f"clients at the same time (default: {CLIENTS})"
    load.add_argument("--clients", metavar="NUMBER", default=CLIENTS, help=clients)
    load.add_argument("--loop", metavar="LOOP", help="asyncio or uvloop (default: asyncio's default)")
    share = "budget for every middleware layer: its share of the requests per second, for example 5%%"
    load.add_argument("--rps-share", metavar="SHARE", help=share)
    load.add_argument("--p99-ms", metavar="MILLISECONDS", help="budget for the 99th percentile of latency")


def _add_versus(versus: argparse.ArgumentParser) -> None:
    versus.usage = "mwbudget versus [options] [REQUEST ...] [-- PYTEST ARGUMENTS]"
    request = "with --app-a and --app-b, such as 'GET /health'; without any, each route that GET can request as it is"
    versus.add_argument("request", nargs="*", metavar="REQUEST", help=request)
    base = "commit to compare HEAD with (default: the merge base with the main branch)"
    versus.add_argument("--base", metavar="REV", help=base)
    fail = "how much each layer may grow, such as us:5%%,bytecodes:0; fails if a layer certainly grows by more"
    versus.add_argument("--fail", metavar="LIMITS", help=fail)
    undecided = "the exit status when it is not certain that a limit is kept (default: pass)"
    versus.add_argument("--undecided", choices=("pass", "fail"), default="pass", help=undecided)
    time_s = 300
    versus.add_argument("--max-time", metavar="SECONDS", default=time_s, help=f"time limit (default: {time_s})")
    prepare = "shell command to run in the checkout of each side first, such as one that builds extensions"
    versus.add_argument("--prepare", metavar="CMD", help=prepare)
    versus.add_argument("--markdown", metavar="PATH", help="write the result to PATH, for a comment")
    for name, text in (
        ("a", "the first of two apps to compare instead of commits, named as for `measure`"),
        ("b", "the second one"),
    ):
        versus.add_argument(f"--app-{name}", metavar="APP", help=text)


def _explain(message_id: str | None) -> None:
    """Print the page of an id, or the list of all ids."""
    width = min(shutil.get_terminal_size().columns - 1, MOST_COLUMNS)
    if message_id is None:
        for line in pages.listed():
            print(line)
        return
    print(pages.shown(message_id, width), end="")


def _render(command_line: Mapping[str, Any]) -> None:
    """Write the files, or print the tables, after everything has been rendered."""
    sources = [file for source in command_line["result"] for file in files_in(Path(source))]
    paths = files_of(command_line, RENDERED, sources)
    stored, notes = merged_run({str(source): read(source) for source in sources})
    history, broken = _history(command_line["history"], drawn=HTML in paths)
    texts = {output: output.render(stored, path, history) for output, path in paths.items()}
    tables = [] if texts else _tables(stored)
    for output, text in texts.items():
        put(paths[output], text)
    for note in (*notes, *broken):
        print(f"note: {printable(note)}", file=sys.stderr)
    for line in tables:
        print(line)


def _history(path: str | None, *, drawn: bool) -> tuple[Sequence[HistoryRun], Sequence[str]]:
    """Read the history for the page, and say which of its lines are broken."""
    if path is None:
        return (), ()
    if not drawn:
        raise SettingError(f"--history={path!r} is drawn on the HTML page; add --html=PATH", message_id="file")
    try:
        return read_history(Path(path))
    except OSError as error:
        remedy = "give a file that --mw-budget-history wrote"
        raise SettingError(f"--history={path!r} cannot be read: {error}; {remedy}", message_id="file") from None


def _tables(stored: MeasuredRun) -> list[str]:
    width = shutil.get_terminal_size().columns
    own = [(nodeid, result) for nodeid, result in stored.measured if not result.surveyed]
    lines = [*run(own, stored.run.interpreter, width)]
    lines += together(stored.survey, stored.results, stored.left_out, width)
    return [line.text for line in lines]


if __name__ == "__main__":
    raise SystemExit(main())
