"""The command `mwbudget load`: measure a request of an app under load, without pytest and without a test."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..asgi import loops
from ..asgi.app import NamedApp
from ..config.budgets import Budgets
from ..config.checks import check, clients, seconds
from ..config.settings import Settings, Under
from ..engine import measure
from ..errors import MwBudgetError, described, of_the_app
from ..load.bursts import require_loop
from ..load.server import require_server
from ..model.quantities import RPS_SHARE
from ..model.remedies import TimeOption
from ..model.results import Measurement
from ..report.text import printable
from ..session.artifacts import STORED
from ..session.turns import Turns
from ..timing.looks import Environment
from ..workload.requests import parsed
from .app import FAILED, PASSED, headers_of, output_apart, print_tables, print_waits, write
from .files import files_of


def main(command_line: Mapping[str, Any]) -> int:
    """Measure, print and write, as the `command_line` says. Returns the exit status.

    Raises MwBudgetError for unusable arguments, and when the app cannot be imported, started or measured.
    """
    require_server()
    settings, wanted = _settings(command_line), parsed(command_line["request"], "REQUEST")
    if settings.loop is not None:
        require_loop(settings.loop)
    request = replace(wanted, options={"headers": headers_of(command_line)}).built()
    files, terminal = files_of(command_line, STORED), sys.stdout
    named, turns = NamedApp(command_line["app"], Path.cwd(), "APP"), Turns(on_wait=print_waits(terminal))

    async def measured() -> Measurement:
        return await measure(named.load(), request, settings, Environment(turns=turns.measuring))

    with output_apart():
        try:
            named.load()  # before a loop runs, as a server does
            measurement = loops.run(settings.loop, measured)
        except MwBudgetError:
            raise
        except Exception as raised:
            what = f"{wanted.method} {wanted.url}: the app raised {described(of_the_app(raised))}"
            raise MwBudgetError(f"{what}; correct the request, or the app", message_id="response") from raised
    if named.note:
        print(printable(f"note: {named.note}"))
    results = [(command_line["app"], measurement)]
    print_tables(results, terminal)
    write(files, results)
    return FAILED if measurement.verdict == "fail" else PASSED


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
