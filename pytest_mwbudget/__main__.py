"""The command `mwbudget`, also `python -m pytest_mwbudget`: measure an app, explain a message, render a result."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from .errors import MwBudgetError, report_of
from .messages import pages
from .report.json import SCHEMA, encodable, left_out, measured, surveyed, to_json
from .report.overview import together
from .report.terminal import run
from .session.artifacts import RENDERED, STORED, check_distinct, put

ENVIRONMENT = ("python", "implementation", "platform", "loop", "packages")
# The exit status of a program that the user has interrupted, as shells report it.
INTERRUPTED = 130
# Wider text is hard to read.
MOST_COLUMNS = 100
# The errors that reading and rendering raise for data of another shape.
MISSHAPEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return the exit status: 2 after an error; `measure` has others, too."""
    said = _said(arguments)
    status = 0
    try:
        if said.command == "measure":
            from . import measure_command

            status = measure_command.main(vars(said))
        elif said.command == "versus":
            from . import versus_command

            status = versus_command.main(vars(said))
        elif said.command == "explain":
            _explain(said.id)
        else:
            _render(Path(said.result), {name: path for name, path in vars(said).items() if path is not None})
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


def _said(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = _parser()
    given = list(sys.argv[1:] if arguments is None else arguments)
    own, behind = _split(given) if given[:1] == ["versus"] else (given, [])
    said, rest = parser.parse_known_args(own)
    said.pytest = behind
    if said.command in ("measure", "versus"):  # before Python 3.12, argparse does not take a REQUEST behind an option
        said.request += [one for one in rest if not one.startswith("-")]
        rest = [one for one in rest if one.startswith("-")]
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return said


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before the first `--`, and those behind it."""
    place = arguments.index("--") if "--" in arguments else len(arguments)
    return arguments[:place], arguments[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mwbudget",
        description="Measure the middleware layers of an app, explain messages, and render stored results.",
    )
    commands = parser.add_subparsers(required=True, dest="command", metavar="COMMAND")
    _add_measure(commands.add_parser("measure", help="measure an app without a test"))
    _add_versus(
        commands.add_parser("versus", help="compare a change with what it changes, in fresh processes by turns")
    )
    explain = commands.add_parser("explain", help="say what a message means and what to do")
    explain.add_argument("id", nargs="?", metavar="ID", help="the id of a message; without it all ids are listed")
    render = commands.add_parser("render", help="make files of a stored result, or print its tables")
    render.add_argument("result", metavar="RESULT.json", help="a file that --mw-budget-json wrote")
    for output in RENDERED:
        render.add_argument(f"--{output.name}", dest=output.name, metavar="PATH", help="write to PATH")
    return parser


def _add_measure(measure: argparse.ArgumentParser) -> None:
    app = "package.module:attribute of the app or of its factory, or 'package.module:factory(\"literal\")'"
    request = "such as 'GET /health' or /health; without any, each route that GET can request as it is"
    measure.add_argument("app", metavar="APP", help=app)
    measure.add_argument("request", nargs="*", metavar="REQUEST", help=request)
    time_s = 30
    measure.add_argument("--time", metavar="SECONDS", default=time_s, help=f"time for all requests (default: {time_s})")
    measure.add_argument("--requests", metavar="FILE", help="TOML file with requests, headers and budgets")
    several = "a header for every request; can be given several times"
    measure.add_argument("--header", action="append", metavar="'NAME: VALUE'", help=several)
    for output in STORED:
        measure.add_argument(f"--{output.name}", metavar="PATH", help=f"write the results to PATH ({output.name})")


def _add_versus(versus: argparse.ArgumentParser) -> None:
    versus.usage = "mwbudget versus [options] [REQUEST ...] [-- PYTEST ARGUMENTS]"
    request = "with --app-a and --app-b, such as 'GET /health'; without any, each route that GET can request as it is"
    versus.add_argument("request", nargs="*", metavar="REQUEST", help=request)
    base = "commit to compare HEAD with (default: the merge base with the main branch)"
    versus.add_argument("--base", metavar="REV", help=base)
    fail = "how much each layer may grow, such as us:5%%,bytecodes:0; a change that certainly grows more fails"
    versus.add_argument("--fail", metavar="LIMITS", help=fail)
    undecided = "the exit status when it is not certain that a limit is kept (default: pass)"
    versus.add_argument("--undecided", choices=("pass", "fail"), default="pass", help=undecided)
    time_s = 300
    versus.add_argument("--max-time", metavar="SECONDS", default=time_s, help=f"time for all of it (default: {time_s})")
    prepare = "shell command to run in the checkout of each side first, such as one that builds extensions"
    versus.add_argument("--prepare", metavar="CMD", help=prepare)
    for name, text in (
        ("a", "the first of two apps to compare in place of commits, named as for `measure`"),
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


def _render(source: Path, said: Mapping[str, str]) -> None:
    """Write the files, or print the tables, after everything has been rendered."""
    options = {output: f"--{output.name}={said[output.name]!r}" for output in RENDERED if output.name in said}
    paths = {output: Path(said[output.name]) for output in options}
    check_distinct({repr(str(source)): source} | {options[output]: path for output, path in paths.items()})
    for output, option in options.items():
        output.check_package(option)
    stored = _stored(source)
    try:
        document = _whole(stored)
        texts = {output: output.render(document, path) for output, path in paths.items()}
        tables = [] if texts else _tables(document)
    except MISSHAPEN as error:
        raise MwBudgetError(
            f"{str(source)!r} is not a whole result ({type(error).__name__}: {error}); give a file as --mw-budget-json"
            f" wrote it",
            message_id="file",
        ) from None
    for output, path in paths.items():
        output.check(path, options[output])
    for output, text in texts.items():
        put(paths[output], text)
    for line in tables:
        print(line)


def _tables(document: Mapping[str, Any]) -> list[str]:
    environment = document["environment"]
    python = f"{environment['implementation']} {environment['python']}"
    width, found = shutil.get_terminal_size().columns, measured(document)
    lines = [*run([(nodeid, result) for nodeid, result in found if not result.surveyed], python, width)]
    lines += together(surveyed(document), [result for _, result in found], left_out(document), width)
    return [line.text for line in lines]


def _stored(source: Path) -> Mapping[str, Any]:
    """Read the document in a file; MwBudgetError if this version cannot read it."""
    remedy = "give a file that --mw-budget-json wrote"
    try:
        found = json.loads(source.read_text(encoding="utf-8"))
    except OSError as error:
        raise MwBudgetError(f"{str(source)!r} cannot be read: {error}; {remedy}", message_id="file") from None
    except (RecursionError, ValueError) as error:
        raise MwBudgetError(f"{str(source)!r} is not JSON: {error}; {remedy}", message_id="file") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if schema != SCHEMA:
        raise MwBudgetError(
            f"{str(source)!r} has the schema {schema!r}, and this version reads {SCHEMA!r}; {remedy}, and render it"
            f" with the version of pytest-mwbudget that wrote it",
            message_id="file",
        )
    return cast("Mapping[str, Any]", found)


def _whole(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document as this version writes it; raises an error of MISSHAPEN if parts are missing."""
    environment = {key: found["environment"][key] for key in ENVIRONMENT}
    measurements = [to_json(result, nodeid) for nodeid, result in measured(found)]
    return cast("dict[str, Any]", encodable({**found, "environment": environment, "measurements": measurements}))


if __name__ == "__main__":
    raise SystemExit(main())
