"""The command `mwbudget measure`: measure an app without pytest and without a test.

Every request is counted first, which takes some tenths of a second each. Then as many as possible are timed, in equal
shares of the time that is left.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import extract_tb
from typing import Any, TextIO

from ..asgi import loops
from ..asgi.app import NamedApp
from ..asgi.calling import Hosting
from ..config.checks import seconds
from ..config.settings import Settings, merge
from ..counting.backend import counting_backend
from ..engine import measure
from ..errors import LifespanError, MwBudgetError, described, report_of
from ..interpreter.clocks import perf_counter_ns
from ..model.estimate import Seconds
from ..model.measured_run import LeftOut
from ..model.quantities import TRAITS, Quantity
from ..model.remedies import TimeOption
from ..model.results import RequestLine, Result
from ..report.lines import laid_out, line_width, row_of
from ..report.matrix import matrices
from ..report.overview import matrix
from ..report.table import CREATED
from ..report.text import printable, shortened, whole
from ..session.artifacts import STORED, Output
from ..session.turns import Turns
from ..timing.host_speed import Machine
from ..timing.looks import NS_PER_S, Environment
from ..timing.schedule import Schedule
from ..workload.host import Host, why_left_out
from ..workload.requests import RequestFile, Wanted, parsed, read, workload
from ..workload.time_budget import LEAST_S, TimeBudget, fitting, most_useful_first, sampled_s, warming
from .app import FAILED, INTERRUPTED, PASSED, headers_of, output_apart, print_tables, print_waits, write
from .files import files_of

# Counting a request consists of warming up, of requests that do not count yet, and of requests that count.
PARTS_OF_COUNTING = 3
# A request may take a third of the time, but not less than this.
LEAST_ANSWER_S: Seconds = 3.0
# How long a request may run over the time limit, to finish its measurement.
GRACE_S: Seconds = 0.5
# The most requests that a line names.
MOST_NAMES = 3
# The widths of the columns of counts, and of the name of a request.
COUNT_WIDTH, MOST_NAME = 9, 48


def main(command_line: Mapping[str, Any]) -> int:
    """Measure, print and write, as the `command_line` says. Returns the exit status.

    Raises MwBudgetError for unusable arguments, and when the app cannot be imported or started.
    """
    time_s = seconds(command_line["time"], "--time")
    lines = [parsed(line, "REQUEST") for line in command_line["request"]]
    file = (
        read(Path(command_line["requests"]), f"--requests={command_line['requests']!r}")
        if command_line["requests"]
        else RequestFile()
    )
    headers, files, terminal = headers_of(command_line), files_of(command_line, STORED), sys.stdout
    with output_apart():
        named = NamedApp(command_line["app"], Path.cwd(), "APP")
        app = named.load()
        work = workload(lines, file, None if lines or file.requests else app, headers)
        host = Host(app, Settings())
        host.start()
        measuring = Measuring(work.requests, host, terminal, Schedule(), TimeBudget(time_s))
        try:
            print(printable(f"{command_line['app']}: {work.summary}"), file=terminal, flush=True)
            if named.note:
                print(printable(f"note: {named.note}"), file=terminal)
            measuring.count()
            measuring.time()
        except KeyboardInterrupt:
            measuring.interrupted = True
        finally:
            measuring.close()
    _report(command_line["app"], measuring, files, terminal, verbosity=1 if command_line["verbose"] else 0)
    return measuring.status


@dataclass
class Measuring:
    """The requests of an app, and what comes of them, in the order of `requests`.

    `results`, `left_out` and `counting_s`, the time that counting took, have the place of the request as their key.
    """

    requests: Sequence[Wanted]
    host: Host
    terminal: TextIO
    schedule: Schedule
    budget: TimeBudget
    results: dict[int, Result] = field(default_factory=dict)
    left_out: dict[int, str] = field(default_factory=dict)
    counting_s: dict[int, Seconds] = field(default_factory=dict)
    machine: Machine = field(default_factory=Machine)
    failed: bool = False
    interrupted: bool = False

    @property
    def over(self) -> str:
        """Say that no time is left."""
        return f"the {self.budget.limit_s:g} s of --time were used up"

    @property
    def status(self) -> int:
        """The exit status."""
        if self.interrupted:
            return INTERRUPTED
        broken = any(self._settings(self.requests[place]).fails(result) for place, result in self.results.items())
        return FAILED if self.failed or broken or not self.results else PASSED

    def count(self) -> None:
        """Count every request, and print a row for each as soon as it is known. The first one may exceed the time."""
        uncounted = counting_backend().why_not
        what = next((quantity for quantity in CREATED if quantity not in uncounted), CREATED[0])
        title = TRAITS[what].short
        width = min(MOST_NAME, max(len(printable(request.name)) for request in self.requests))
        widths = (-width, *[COUNT_WIDTH] * 4, -1)
        self._print(row_of(("per request", "status", title, "tasks", "layers", f"  most {title}"), widths))
        late: list[Wanted] = []
        for place, wanted in enumerate(self.requests):
            if place and self.budget.left_s <= 0:
                self.left_out[place] = self.over
                late.append(wanted)
                continue
            name, begin = shortened(wanted.name, width), perf_counter_ns()
            schedule = _hurried(self.schedule, self.budget.left_s / (len(self.requests) - place))
            result = self._tried(place, replace(self._settings(wanted), timed=False), Environment(schedule=schedule))
            self.counting_s[place] = (perf_counter_ns() - begin) / NS_PER_S
            if result is None:
                # The row has the request already; the whole reason is in the files.
                reason = self.left_out[place].removeprefix(f"{wanted.method} {wanted.url}").lstrip(" :")
                self._print(f"{name:{width}}  not measured: {reason.partition('; ')[0]}")
            else:
                self.results[place] = result
                self._print(row_of((name, *_counts(result, what)), widths))
        if late:
            self._print(f"not measured, because {self.over}: {_named(late)}")
        self._print("")

    def time(self) -> None:
        """Time the requests that were counted, in equal shares; if time is too short for all, the most useful ones."""
        counted = self.results.copy()
        waiting = most_useful_first(counted)
        if not waiting:
            return
        turns = Turns(on_wait=print_waits(self.terminal))
        with self.budget.turn(turns.taken):
            needed_s = {place: self.counting_s[place] + LEAST_S for place in waiting}
            while fit := fitting(waiting, needed_s, self.budget.left_s):
                waiting.remove(fit[0])
                self._progress(f"timing {len(counted) - len(waiting)} of {len(counted)}: {self.requests[fit[0]].name}")
                self._time(fit[0], max(self.budget.left_s / len(fit), needed_s[fit[0]]), turns)
                self._progress("")
        for place in waiting:
            self.results[place] = _untimed(counted[place], self.over)
        if waiting:
            named = _named([self.requests[place] for place in sorted(waiting)])
            self._print(f"only counted, because {self.over}: {named}")
            self._print("")

    def _time(self, place: int, share_s: Seconds, turns: Turns) -> None:
        """Measure a request in its share of the time, which counting takes a part of."""
        wanted, counted = self.requests[place], self.results[place]
        timing_s, settings = share_s - self.counting_s[place], self._settings(wanted)
        own_s = min(settings.max_time_s, self.budget.left_s) if "max_time" in wanted.keywords else sampled_s(timing_s)
        schedule = warming(self.schedule, timing_s)
        environment = Environment(machine=self.machine, schedule=schedule, turns=turns.measuring, divided=True)
        timed = self._tried(place, replace(settings, max_time_s=own_s), environment)
        if timed is None:
            reason = self.left_out.pop(place)
            self.failed = self.failed or reason != self.over
            timed = _untimed(counted, reason)
        self.results[place] = timed

    def close(self) -> None:
        """Shut the app down. All figures are known by now, so a failure is only told."""
        try:
            self.host.close()
        except LifespanError as error:
            self._print(f"warning: {report_of(error)}")
            self._print("")

    def _tried(self, place: int, settings: Settings, environment: Environment) -> Result | None:
        """Measure a request; None if that fails, with the reason in `left_out`."""
        request = self.requests[place].built()
        # The first request may take what it takes: without one row there is nothing to report.
        limit_s = max(self.budget.left_s, 0.0) + GRACE_S if self.results else float("inf")

        async def measured(hosting: Hosting) -> Result:
            async with loops.current().limited(limit_s):
                return await measure(self.host.app, request, settings, environment, hosting=hosting)

        try:
            return self.host.run(measured)
        except Exception as error:  # of this package, or the app's own
            if isinstance(error, loops.OutOfTimeError) or (self.results and self.budget.left_s <= -GRACE_S):
                # An app that swallows the cancellation raises something else.
                self.left_out[place] = self.over
                return None
            self.failed = self.failed or why_left_out(error, settings) is None
            reason = str(error).partition("\n")[0] if isinstance(error, MwBudgetError) else _raised(error)
            self.left_out[place] = reason
        return None

    def _settings(self, wanted: Wanted) -> Settings:
        """Return the settings of a request. It must answer in a third of the time, so that others get theirs."""
        settings = merge([wanted.keywords], {})
        option = TimeOption("max_time") if "max_time" in wanted.keywords else TimeOption("--time", len(self.requests))
        return replace(
            settings,
            flamegraph="never",
            place="file",
            more_time=option,
            slow_answer="raise --time",
            startup_timeout_s=min(settings.startup_timeout_s, max(LEAST_ANSWER_S, self.budget.limit_s / 3)),
        )

    def _print(self, text: str) -> None:
        print(printable(text), file=self.terminal, flush=True)

    def _progress(self, text: str) -> None:
        """Show the text in place of the line of the terminal; nothing where the output goes to a file."""
        if self.terminal.isatty():
            width = shutil.get_terminal_size().columns - 1
            self.terminal.write(f"\r{shortened(text, width):{width}}\r")
            self.terminal.flush()


def _hurried(schedule: Schedule, share_s: Seconds) -> Schedule:
    """Return a schedule for counting a request in about its share of the time: of a slow app fewer requests count."""
    part_ns = max(0, round(share_s * NS_PER_S / PARTS_OF_COUNTING))
    return replace(
        schedule,
        brief_warm_ns=min(schedule.brief_warm_ns, part_ns),
        counting_ns=min(schedule.counting_ns, part_ns),
    )


def _named(requests: Sequence[Wanted]) -> str:
    """Return the names of the first requests, and the number of the others."""
    names = ", ".join(request.name for request in requests[:MOST_NAMES])
    more = len(requests) - MOST_NAMES
    return f"{names} and {more} more" if more > 0 else names


def _untimed(counted: Result, reason: str) -> Result:
    return replace(counted, notes=(*counted.notes, f"Not timed: {reason}"))


def _counts(result: Result, what: Quantity) -> tuple[str, ...]:
    """Return the counts of a whole request, and the layer that creates the most."""
    counts = [whole(count.estimate) if count else "-" for count in map(result.total.figure, (what, "tasks"))]
    created = [(count.estimate, layer.name) for layer in result.layers if (count := layer.figure(what)) is not None]
    most, name = max(created, default=(0, ""))
    return str(result.status), *counts, str(len(result.layers)), f"  {name}: {whole(most)}" if created else ""


def _raised(error: Exception) -> str:
    frames = extract_tb(error.__traceback__)
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"the app raised {described(error)}{where}"


# ---- the output --------------------------------------------------------------------------------------------------


def _report(app: str, measuring: Measuring, files: Mapping[Output, Path], terminal: TextIO, *, verbosity: int) -> None:
    """Print the matrices, a line for each request, and the tables of requests that need a look; write the files."""
    results = [(app, measuring.results[place]) for place in sorted(measuring.results)]
    if results:
        overviews = matrices([result for _, result in results])
        shown = {place for overview in overviews for place in overview.places}
        for overview in overviews:
            width = line_width(shutil.get_terminal_size().columns)
            lines = laid_out([matrix(overview, width)], width)
            print("\n".join(line.text for line in lines), end="\n\n", file=terminal)
        print_tables(results, terminal, verbosity, shown)
        if shown and not verbosity:
            print("-v shows the table of each request", file=terminal)
    left_out = [
        LeftOut(app, RequestLine(measuring.requests[place].method, measuring.requests[place].url), why)
        for place, why in sorted(measuring.left_out.items())
    ]
    write(files, results, left_out)
