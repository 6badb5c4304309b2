"""Published applications of the package index, measured without a test.

    python bench/real_apps.py [--quick] [--json PATH]

Each application is installed into an environment of its own, with the newest versions of its packages. There,
`mwbudget measure` measures every route that GET can request as it is, and `pytest --mw-budget --mw-budget-app=…` does
the same with an item for each route. Neither has a test or a configuration. Then, in a third process, each route is
requested plainly, measured, and requested again: the answers must be those from before, and every function must have
its own code again.

Installing takes some minutes. With the variable MWBUDGET_REAL_APPS the environments are kept in this folder, and used
again. --quick measures only the first application.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import ROOT, Goal, Reading, Report, Table, inherited, main

KEPT = "MWBUDGET_REAL_APPS"
MEASURE_S, QUICK_S = 20, 2
PER_ITEM_S, QUICK_ITEM_S = 1.0, 0.3
LIMIT_S = 600
OUTCOMES = re.compile(r"\d+ (?:passed|failed|skipped|errors?)\b")


@dataclass(frozen=True)
class Application:
    """An application: what to install, the name of its app, and the files and variables that it needs.

    `prepare` is a command of its environment that runs once. `files` are written to the folder in which it runs;
    `{folder}` in a variable is this folder.
    """

    name: str
    packages: Sequence[str]
    app: str
    files: Mapping[str, str] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    prepare: Sequence[str] = ()


SQLADMIN = """
from sqladmin import Admin, ModelView
from sqlalchemy import Column, Integer, String, create_engine
from sqlalchemy.orm import declarative_base
from sqlalchemy.pool import StaticPool
from starlette.applications import Starlette

Base = declarative_base()
engine = create_engine("sqlite://", connect_args={"check_same_thread": False}, poolclass=StaticPool)


class User(Base):
    __tablename__ = "users"
    id = Column(Integer, primary_key=True)
    name = Column(String)


Base.metadata.create_all(engine)


class UserAdmin(ModelView, model=User):
    column_list = [User.id, User.name]


app = Starlette()
Admin(app, engine).add_view(UserAdmin)
"""
GRADIO = """
import gradio
from fastapi import FastAPI

with gradio.Blocks() as demo:
    name, greeting = gradio.Textbox(), gradio.Textbox()
    name.change(lambda text: "Hello " + text, name, greeting)

app = gradio.mount_gradio_app(FastAPI(), demo, path="/ui")
"""
DAGSTER = """
from dagster import DagsterInstance
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import EmptyWorkspaceTarget
from dagster_webserver.app import create_app_from_workspace_process_context

context = WorkspaceProcessContext(DagsterInstance.get(), EmptyWorkspaceTarget()).__enter__()
app = create_app_from_workspace_process_context(context)
"""
APPLICATIONS = (
    Application("sqladmin", ("sqladmin", "greenlet"), "demo_app:app", {"demo_app.py": SQLADMIN}),
    Application("gradio", ("gradio",), "demo_app:app", {"demo_app.py": GRADIO}),
    Application(
        "dagster-webserver",
        ("dagster-webserver",),
        "demo_app:app",
        {"demo_app.py": DAGSTER},
        {"DAGSTER_HOME": "{folder}", "DAGSTER_DISABLE_TELEMETRY": "1"},
    ),
    Application("chainlit", ("chainlit",), "chainlit.server:app", {}, {"CHAINLIT_APP_ROOT": "{folder}"}),
    Application(
        "apache-airflow",
        ("apache-airflow",),
        "airflow.api_fastapi.main:app",
        {},
        {"AIRFLOW_HOME": "{folder}"},
        ("airflow", "db", "migrate"),
    ),
)

# Runs in the environment of an application: request, measure, request again.
AFTERWARDS = """
import gc, io, json, sys
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import FunctionType

import httpx

from pytest_mwbudget.asgi.app import NamedApp
from pytest_mwbudget.asgi.request import build_request
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.engine import measure
from pytest_mwbudget.errors import EndlessError
from pytest_mwbudget.timing.looks import Environment
from pytest_mwbudget.workload.host import Host
from pytest_mwbudget.workload.requests import RequestFile, workload

MEASURED = Settings(max_time_s=0.3)


def status(host, url):
    async def main():
        transport = httpx.ASGITransport(host.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return (await client.get(url)).status_code

    return host.run(lambda hosting: main())


with redirect_stdout(io.StringIO()):
    app = NamedApp(sys.argv[1], Path.cwd()).load()
    host = Host(app, Settings())
    seen, codes = [], []
    for wanted in workload((), RequestFile(), app).requests:
        request = build_request(wanted.method, wanted.url, wanted.options)
        try:
            host.run(lambda hosting: measure(app, request, MEASURED, Environment(), hosting=hosting))
        except Exception:
            continue  # left out, or refused: the other commands say why
        before = status(host, wanted.url)
        codes = [(one, one.__code__) for one in gc.get_objects() if type(one) is FunctionType]
        host.run(lambda hosting: measure(app, request, MEASURED, Environment(), hosting=hosting))
        changed = [one.__qualname__ for one, code in codes if one.__code__ is not code]
        seen.append({"url": wanted.url, "before": before, "after": status(host, wanted.url), "changed": changed})
    with suppress(Exception):
        host.close()
print(json.dumps(seen))
"""


def measure(quick: bool) -> list[Reading]:
    """Install and measure the applications."""
    applications = APPLICATIONS[:1] if quick else APPLICATIONS
    return [reading(application, quick) for application in applications]


def reading(application: Application, quick: bool) -> Reading:
    """Measure one application in its environment."""
    with environment(application) as python, TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in application.files.items():
            (folder / file).write_text(text, encoding="utf-8")
        place = Place(folder, application, python)
        if application.prepare:
            place.run(str(python.parent / application.prepare[0]), *application.prepare[1:])
        time_s, item_s = (QUICK_S, QUICK_ITEM_S) if quick else (MEASURE_S, PER_ITEM_S)
        ways = ["-m", "pytest_mwbudget", "measure", application.app, f"--time={time_s}", "--json=measure.json"]
        measured, seconds = timed(place, *ways)
        items, items_s = timed(
            place,
            *("-m", "pytest", "-q", "--mw-budget", f"--mw-budget-app={application.app}", "-p", "no:cacheprovider"),
            f"--mw-budget-max-time={item_s}",
        )
        after = place.run(str(python), "-c", AFTERWARDS, application.app)
        last = after.stdout.splitlines()[-1:] or ["null"]
        return {
            "app": application.name,
            "version": version(place, application.packages[0]),
            "measure": {"status": measured.returncode, "seconds": seconds, **found(folder / "measure.json")},
            "pytest": {
                "status": items.returncode,
                "seconds": items_s,
                "outcomes": OUTCOMES.findall((items.stdout.splitlines() or [""])[-1]),
            },
            "afterwards": json.loads(last[0]) if after.returncode == 0 else None,
        }


@dataclass(frozen=True)
class Place:
    """The folder in which the commands of an application run, with its variables."""

    folder: Path
    application: Application
    python: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        variables = {key: value.format(folder=self.folder) for key, value in self.application.variables.items()}
        return subprocess.run(
            command,
            cwd=self.folder,
            env={**inherited(), **variables},
            capture_output=True,
            text=True,
            check=False,
            timeout=LIMIT_S,
        )


def timed(place: Place, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the environment's Python. Return the finished process and the seconds it took."""
    begin = time.monotonic()
    done = place.run(str(place.python), *arguments)
    return done, round(time.monotonic() - begin, 1)


@contextmanager
def environment(application: Application) -> Iterator[Path]:
    """Make the environment of an application, or take the one that was kept. Yields its Python."""
    with TemporaryDirectory() as name:
        folder = Path(os.environ.get(KEPT, name)) / application.name
        python = folder / ("Scripts" if sys.platform == "win32" else "bin") / "python"
        if not python.exists():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
            install = [str(python), "-m", "pip", "install", "--quiet", str(ROOT), *application.packages]
            subprocess.run(install, check=True)
        yield python


def version(place: Place, package: str) -> str:
    """Return the version of a package in an environment."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    return place.run(str(place.python), "-c", code).stdout.strip()


def found(path: Path) -> Reading:
    """Summarise the stored result of `measure`."""
    if not path.exists():
        return {"requests": [], "left_out": []}
    stored = json.loads(path.read_text(encoding="utf-8"))
    return {
        "requests": [summary(measurement) for measurement in stored["measurements"]],
        "left_out": [[entry["request"]["url"], entry["reason"].partition("\n")[0]] for entry in stored["left_out"]],
    }


def summary(measurement: Mapping[str, Any]) -> Reading:
    """Summarise one request: its layers, its total, its costliest layer."""
    layers = [layer for layer in measurement["layers"] if layer["us"] is not None]
    costliest = max(layers, key=lambda layer: layer["us"]["estimate"], default=None)
    total, tasks = measurement["total_us"], measurement["ledger"]["total"]["tasks"]
    return {
        "url": measurement["request"]["url"],
        "layers": len(measurement["layers"]),
        "total_us": total and total["estimate"],
        "costliest": costliest and [costliest["name"], costliest["us"]["estimate"]],
        "tasks": tasks and tasks["count"],
        "notes": len(measurement["notes"]),
    }


# ---- the report --------------------------------------------------------------------------------------------------


def report(readings: Sequence[Reading]) -> Report:
    """Derive tables and goals from the readings."""
    head = ("application", "version", "routes", "measured", "layers", "tasks", "total µs", "costliest layer", "µs", "s")
    commands = ("application", "measure", "s", "pytest", "s", "outcomes", "asked again", "as before")
    return Report(
        tables=(
            Table("What `mwbudget measure` finds", head, [row(reading) for reading in readings]),
            Table("How the commands end", commands, [ending(reading) for reading in readings]),
        ),
        goals=(
            Goal(
                "`mwbudget measure` measures at least one route of every application, and ends with status 0",
                ", ".join(f"{reading['app']} {len(reading['measure']['requests'])}" for reading in readings),
                all(reading["measure"]["requests"] and reading["measure"]["status"] == 0 for reading in readings),
            ),
            Goal(
                "after a measurement every route answers as before, and no function has other code",
                f"{sum(map(same, readings))} of {len(readings)} applications",
                all(map(same, readings)),
            ),
        ),
        notes=(
            "*total µs* is the range over the routes. *costliest layer* is that of the route on which it costs most."
            " *layers* and *tasks* are the most on any route. A route is left out if it answers with an error status,"
            " such as 401, or does not end its response: `skipped` in pytest.",
            "chainlit ends its shutdown with `os._exit(0)`. In pytest that is the error of one run, instead of a run"
            " that ends without a report; with `mw_budget_lifespan = false` there is none.",
        ),
    )


def row(one: Reading) -> tuple[str, ...]:
    """Lay out what was measured of an application."""
    requests = one["measure"]["requests"]
    totals = [request["total_us"] for request in requests if request["total_us"] is not None]
    layers = [request["costliest"] for request in requests if request["costliest"]]
    name, us = max(layers, key=lambda layer: layer[1], default=("-", None))
    return (
        one["app"],
        one["version"],
        str(len(requests) + len(one["measure"]["left_out"])),
        str(len(requests)),
        str(max((request["layers"] for request in requests), default=0)),
        str(max((request["tasks"] or 0 for request in requests), default=0)),
        f"{min(totals):.0f} … {max(totals):.0f}" if totals else "-",
        name,
        "-" if us is None else f"{us:.1f}",
        f"{one['measure']['seconds']:.0f}",
    )


def ending(one: Reading) -> tuple[str, ...]:
    """Lay out how the commands of an application ended."""
    after = one["afterwards"]
    return (
        one["app"],
        f"status {one['measure']['status']}",
        f"{one['measure']['seconds']:.0f}",
        f"status {one['pytest']['status']}",
        f"{one['pytest']['seconds']:.0f}",
        ", ".join(one["pytest"]["outcomes"]),
        "-" if after is None else str(len(after)),
        "yes" if same(one) else "NO",
    )


def same(one: Reading) -> bool:
    """Tell whether an application answers as before, with its own code."""
    after = one["afterwards"]
    return bool(after) and all(entry["before"] == entry["after"] and not entry["changed"] for entry in after)


if __name__ == "__main__":
    main(__file__, __doc__, measure, report)
