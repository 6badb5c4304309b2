"""The command `mwbudget load`: measure a request of an app under load, without pytest and without a test."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..asgi import loops
from ..asgi.app import NamedApp
from ..asgi.request import build_request
from ..config.budgets import Budgets
from ..config.checks import check, clients, seconds
from ..config.settings import Settings, Under
from ..engine import measure
from ..errors import MwBudgetError, described, of_the_app
from ..load.run import require_loop
from ..load.server import require_server
from ..model.quantities import RPS_SHARE
from ..model.remedies import TimeOption
from ..model.results import Measurement
from ..report.terminal import run
from ..report.text import printable
from ..session.turns import Turns
from ..timing.run import Environment
from ..workload.requests import Wanted, parsed
from .measure import FAILED, PASSED, add_end_of, files_of, header, output_apart, write


def main(command_line: Mapping[str, Any]) -> int:
    """Measure, print and write, as the `command_line` says. Returns the exit status.

    Raises MwBudgetError for unusable arguments, and when the app cannot be imported, started or measured.
    """
    require_server()
    settings, wanted = _settings(command_line), parsed(command_line["request"], "REQUEST")
    if settings.loop is not None:
        require_loop(settings.loop)
    headers = dict(header(line) for line in command_line["header"] or ())
    files, terminal = files_of(command_line), sys.stdout

    def waits(begun: bool) -> None:
        if begun:
            print("waiting for another process that measures", file=terminal, flush=True)

    async def measured() -> Measurement:
        request = build_request(wanted.method, wanted.url, {**wanted.options, "headers": headers})
        return await measure(named.load(), request, settings, Environment(turns=Turns(told=waits).measuring))

    named = NamedApp(command_line["app"], Path.cwd(), "APP")
    with output_apart() as output:
        try:
            named.load()  # before a loop runs, as a server does
            measurement = loops.run(settings.loop, measured)
        except MwBudgetError as error:
            add_end_of(output, error)
            raise
        except Exception as raised:
            failure = _failure(wanted, of_the_app(raised))
            add_end_of(output, failure)
            raise failure from raised
    if named.note:
        print(printable(f"note: {named.note}"))
    _report(command_line["app"], measurement)
    write(files, [(command_line["app"], measurement)])
    return FAILED if measurement.verdict == "fail" else PASSED


def _failure(wanted: Wanted, raised: BaseException) -> MwBudgetError:
    what = f"{wanted.method} {wanted.url}: the app raised {described(raised)}"
    return MwBudgetError(f"{what}; correct the request, or the app", message_id="response")


def _settings(command_line: Mapping[str, Any]) -> Settings:
    """Return the settings of the command line."""
    shares = (
        {}
        if command_line["rps_share"] is None
        else {RPS_SHARE: check(RPS_SHARE, command_line["rps_share"], "--rps-share")}
    )
    loop = None if command_line["loop"] is None else check("loop", command_line["loop"], "--loop")
    return Settings(
        load=Under(clients(command_line["clients"], "--clients")),
        load_time_s=seconds(command_line["time"], "--time"),
        load_budgets=Budgets(shares),
        p99_ms=None if command_line["p99_ms"] is None else check("p99_ms", command_line["p99_ms"], "--p99-ms"),
        loop=loop,
        flamegraph="never",
        place="configuration",
        more_time=TimeOption("--time"),
    )


def _report(app: str, measurement: Measurement) -> None:
    python = f"{platform.python_implementation()} {platform.python_version()}"
    for line in run([(app, measurement)], python, shutil.get_terminal_size().columns):
        print(line.text)
