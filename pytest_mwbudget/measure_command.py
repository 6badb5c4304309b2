"""The command `mwbudget measure`: measure an app without pytest and without a test.

Every request is counted first, which takes some tenths of a second, and then timed in an equal share of the time.
"""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from traceback import extract_tb
from typing import IO, Any, TextIO

from .asgi.app import NamedApp
from .asgi.request import build_request
from .config.checks import seconds
from .config.settings import Settings, merge
from .engine import measure
from .errors import EndlessError, LifespanError, MwBudgetError, SettingError, StatusError, report_of
from .interpreter.clocks import perf_counter_ns
from .model.estimate import Seconds
from .model.results import RequestLine, Result
from .report.json import document, left_out_to_json, to_json
from .report.overview import together
from .report.terminal import run
from .report.text import printable, shortened
from .session.artifacts import STORED, Output, check_distinct
from .session.turns import Turns
from .timing.run import NS_PER_S, Environment
from .timing.schedule import Schedule
from .workload.host import Host
from .workload.requests import RequestFile, Wanted, parsed, read, workload

# Each request is timed for this long at least, however many share the time.
LEAST_SHARE_S: Seconds = 0.3
# How much of the app's output is shown when it cannot be started.
SHOWN_CHARACTERS = 2000
PASSED, FAILED, INTERRUPTED = 0, 1, 130
# The widths of the columns of counts, and of the name of a request.
COUNT_WIDTH, MOST_NAME = 9, 48


def main(said: Mapping[str, Any]) -> int:
    """Measure, print and write, as the command line `said`. Returns the exit status.

    Raises MwBudgetError for unusable arguments, and when the app cannot be imported or started.
    """
    time_s = seconds(said["time"], "--time")
    lines = [parsed(line, "REQUEST") for line in said["request"]]
    file = read(Path(said["requests"]), f"--requests={said['requests']!r}") if said["requests"] else RequestFile()
    headers = dict(_header(line) for line in said["header"] or ())
    files = _files(said)
    terminal = sys.stdout
    with _output_apart() as output:
        try:
            named = NamedApp(said["app"], Path.cwd(), "APP")
            app = named.load()
            work = workload(lines, file, None if lines or file.requests else app, headers)
            host = Host(app, Settings())
            host.start()
        except MwBudgetError as error:
            _add_end_of(output, error)
            raise
        print(printable(f"{said['app']}: {work.summary}"), file=terminal, flush=True)
        if named.note:
            print(printable(f"note: {named.note}"), file=terminal)
        measuring = Measuring(work.requests, host, terminal, Schedule())
        try:
            measuring.count()
            measuring.time(time_s)
        except KeyboardInterrupt:
            measuring.interrupted = True
        finally:
            measuring.close()
    _report(said["app"], measuring, files, terminal)
    return measuring.status


@dataclass
class Measuring:
    """The requests of an app, and what comes of them, in the order of `requests`.

    `results` and `left_out` have the place of the request as their key.
    """

    requests: Sequence[Wanted]
    host: Host
    terminal: TextIO
    schedule: Schedule
    results: dict[int, Result] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    failed: bool = False
    interrupted: bool = False

    @property
    def status(self) -> int:
        """The exit status."""
        if self.interrupted:
            return INTERRUPTED
        broken = any(result.verdict == "fail" for result in self.results.values())
        return FAILED if self.failed or broken or not self.results else PASSED

    def count(self) -> None:
        """Count every request, and print a row for each as soon as it is known."""
        width = min(MOST_NAME, max(len(printable(one.name)) for one in self.requests))
        titles = "".join(f"{title:>{COUNT_WIDTH}}" for title in ("status", "objects", "tasks", "layers"))
        self._print(f"{'per request':{width}}{titles}  most objects")
        for place, wanted in enumerate(self.requests):
            name = f"{shortened(wanted.name, width):{width}}"
            result = self._tried(place, replace(_settings(wanted), timed=False))
            if result is None:
                # The row has the request already; the whole reason is in the files.
                reason = self.left_out[place].removeprefix(f"{wanted.method} {wanted.url}").lstrip(" :")
                self._print(f"{name}  not measured: {reason.partition('; ')[0]}")
            else:
                self.results[place] = result
                self._print(f"{name}{_counts(result)}")
        self._print("")

    def time(self, time_s: Seconds) -> None:
        """Time every request that was counted, each in an equal share of the time that is left."""
        turns = Turns(told=self._waits)
        with turns.taken():
            begin = perf_counter_ns()
            for number, (place, counted) in enumerate(list(self.results.items())):
                wanted = self.requests[place]
                left_s = time_s - (perf_counter_ns() - begin) / NS_PER_S
                share_s = max(LEAST_SHARE_S, left_s / (len(self.results) - number))
                settings = _settings(wanted)
                if "max_time" not in wanted.keywords:
                    settings = replace(settings, max_time_s=share_s)
                self._progress(f"timing {number + 1} of {len(self.results)}: {wanted.name}")
                timed = self._tried(place, settings, turns)
                self._progress("")
                if timed is None:
                    timed = replace(counted, notes=(*counted.notes, f"Not timed: {self.left_out.pop(place)}"))
                    self.failed = True
                self.results[place] = timed

    def close(self) -> None:
        """Shut the app down. All figures are known by now, so a failure is only told."""
        try:
            self.host.close()
        except LifespanError as error:
            self._print(f"warning: {report_of(error)}\n")

    def _tried(self, place: int, settings: Settings, turns: Turns | None = None) -> Result | None:
        """Measure a request; None if that fails, with the reason in `left_out`."""
        wanted, environment = self.requests[place], Environment(schedule=self.schedule)
        if turns is not None:
            environment = replace(environment, turns=turns.measuring)
        request = build_request(wanted.method, wanted.url, wanted.options)
        try:
            result: Result = self.host.run(
                lambda hosting: measure(self.host.app, request, settings, environment, hosting=hosting)
            )
        except (EndlessError, StatusError) as error:
            self.failed = self.failed or settings.expect_status is not None
            self.left_out[place] = _first_line(error)
        except Exception as error:  # of this package, or the app's own
            self.failed = True
            self.left_out[place] = _first_line(error) if isinstance(error, MwBudgetError) else _raised(error)
        else:
            return result
        return None

    def _print(self, text: str) -> None:
        print(printable(text), file=self.terminal, flush=True)

    def _progress(self, text: str) -> None:
        """Show the text in place of the line of the terminal; nothing where the output goes to a file."""
        if self.terminal.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.terminal.write(f"\r{shortened(text, width):{width}}\r")
            self.terminal.flush()

    def _waits(self, waits: bool) -> None:
        if waits:
            self._print("waiting for another process that measures")


def _settings(wanted: Wanted) -> Settings:
    return replace(merge([wanted.keywords], {}), flamegraph="never")


def _counts(result: Result) -> str:
    """Return the counts of a whole request as the end of its row."""
    assert result.ledger is not None
    total = result.ledger.total
    counts = [str(count.count) if count else "-" for count in (total.objects, total.tasks)]
    row = "".join(f"{cell:>{COUNT_WIDTH}}" for cell in (str(result.status), *counts, str(len(result.layers))))
    created = [(one.counts.objects.count, one.name) for one in result.layers if one.counts and one.counts.objects]
    if not created:
        return row
    objects, name = max(created)
    return f"{row}  {name}: {objects}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def _raised(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"the app raised {type(error).__name__}: {error}{where}"


# ---- the arguments -----------------------------------------------------------------------------------------------


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not (colon and name.strip()):
        raise SettingError(f"--header is {line!r}; write for example --header 'authorization: Bearer t'")
    return name.strip(), value.strip()


def _files(said: Mapping[str, Any]) -> dict[Output, Path]:
    """Return the files to write; each can be written."""
    options = {output: f"--{output.name}={said[output.name]!r}" for output in STORED if said[output.name] is not None}
    files = {output: Path(said[output.name]) for output in options}
    check_distinct({options[output]: path for output, path in files.items()})
    for output, path in files.items():
        output.check(path, options[output])
    return files


# ---- the output --------------------------------------------------------------------------------------------------


@contextmanager
def _output_apart() -> Iterator[IO[str]]:
    """Let what the app prints go to a file, which is yielded: it answers thousands of requests."""
    with TemporaryFile("w+", encoding="utf-8", errors="backslashreplace") as file:
        aside: Any = _Aside(file)
        try:
            with redirect_stdout(aside), redirect_stderr(aside):
                yield file
        finally:
            aside.stream = sys.stderr


class _Aside:
    """Stands for a stream: handlers of the app's loggers may keep it and write to it until the process ends."""

    def __init__(self, stream: IO[str]) -> None:
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def _add_end_of(output: IO[str], error: MwBudgetError) -> None:
    """Add the end of what the app printed to the notes of an error."""
    output.flush()
    output.seek(0)
    text = output.read().rstrip()
    if text:
        error.add_note(f"The app printed:\n{text[-SHOWN_CHARACTERS:]}")


def _report(app: str, measuring: Measuring, files: Mapping[Output, Path], terminal: TextIO) -> None:
    """Print the tables and write the files."""
    results = [(app, measuring.results[place]) for place in sorted(measuring.results)]
    if results:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        width = shutil.get_terminal_size().columns
        for line in (*run(results, python, width), *together(None, [result for _, result in results], (), width)):
            print(line.text, file=terminal)
    left_out = [
        left_out_to_json(app, RequestLine(measuring.requests[place].method, measuring.requests[place].url), why)
        for place, why in sorted(measuring.left_out.items())
    ]
    stored = document([to_json(result, app) for app, result in results], left_out)
    for output, path in files.items():
        output.write(path, stored)
