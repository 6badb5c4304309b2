"""Twenty releases of starlette, measured for the middlewares that they contain.

    python bench/releases.py [--quick] [--json PATH]

Each release is installed into an environment of its own, with the newest versions of its dependencies and with this
package. There, `mwbudget measure` measures one GET of an app with starlette's own middlewares. The releases are the
newest patches of the twenty newest minor versions. Counts of two releases that differ are differences of the code;
times are of one run each.

Installing takes some minutes. With the variable MWBUDGET_RELEASES the environments are kept in this folder, and used
again. --quick measures only the newest release.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness import ROOT, Goal, Reading, Report, Table, inherited, main

KEPT = "MWBUDGET_RELEASES"
RELEASES = (
    *("0.44.0", "0.45.3", "0.46.2", "0.47.3", "0.48.0", "0.49.3", "0.50.0", "0.51.0", "0.52.1", "1.0.1"),
    *("1.1.0", "1.2.1", "1.3.1", "1.4.1", "1.5.1", "1.6.0", "1.7.0", "1.8.0", "1.9.0", "1.10.0"),
)
MEASURE_S, QUICK_S = 8, 2
LIMIT_S = 300
# Those that are the same on every machine with the same Python, in the order of the tables.
COUNTED = ("bytecodes", "calls", "py_calls", "objects", "tasks")
APP = """
from starlette.applications import Starlette
from starlette.authentication import AuthCredentials, AuthenticationBackend, SimpleUser
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.sessions import SessionMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route


async def dispatch(request, call_next):
    return await call_next(request)


class Everybody(AuthenticationBackend):
    async def authenticate(self, connection):
        return AuthCredentials(["authenticated"]), SimpleUser("somebody")


async def page(request):
    return PlainTextResponse("Hello, world! " * 100)


app = Starlette(
    routes=[Route("/", page)],
    middleware=[
        Middleware(TrustedHostMiddleware, allowed_hosts=["testserver"]),
        Middleware(CORSMiddleware, allow_origins=["https://example.org"]),
        Middleware(SessionMiddleware, secret_key="none"),
        Middleware(AuthenticationMiddleware, backend=Everybody()),
        Middleware(BaseHTTPMiddleware, dispatch=dispatch),
        Middleware(GZipMiddleware),
    ],
)
"""
HEADERS = ("Origin: https://example.org", "Accept-Encoding: gzip")


def measure(quick: bool) -> list[Reading]:
    """Install and measure the releases, the oldest first."""
    with TemporaryDirectory() as name:
        folder = Path(os.environ.get(KEPT, name)).resolve()
        package = wheel(Path(name))
        return [
            reading(environment(release, folder, package), release, quick)
            for release in (RELEASES[-1:] if quick else RELEASES)
        ]


def reading(python: Path, release: str, quick: bool) -> Reading:
    """Measure one release in its environment, which has this Python."""
    with TemporaryDirectory() as name:
        (Path(name) / "demo_app.py").write_text(APP, encoding="utf-8")
        command = [str(python), "-m", "pytest_mwbudget", "measure", "demo_app:app", "GET /"]
        command += [f"--header={header}" for header in HEADERS]
        command += [f"--time={QUICK_S if quick else MEASURE_S}", "--json=result.json"]
        done = subprocess.run(
            command, cwd=name, env=inherited(), capture_output=True, text=True, check=False, timeout=LIMIT_S
        )
        if done.returncode != 0:
            raise RuntimeError(f"starlette {release}: {done.stdout}{done.stderr}")
        document = json.loads((Path(name) / "result.json").read_text(encoding="utf-8"))
    measurement = document["measurements"][0]
    return {
        "release": release,
        "python": document["environment"]["python"],
        "anyio": document["environment"]["packages"]["anyio"],
        "rows": {name: figures(us, counts) for name, us, counts in rows(measurement)},
    }


def wheel(folder: Path) -> Path:
    """Build this package once for all environments. Returns the file."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={folder}", str(ROOT)]
    subprocess.run(pip, check=True)
    return next(folder.glob("*.whl"))


def environment(release: str, folder: Path, package: Path) -> Path:
    """Make the environment of a release, or take the one that was kept. Returns its Python.

    `package` is the file of this package, which replaces an older build in a kept environment.
    """
    place = folder / f"starlette-{release}"
    python = place / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, str(package), f"starlette=={release}", "itsdangerous"], check=True)
    subprocess.run([*pip, "--force-reinstall", "--no-deps", str(package)], check=True)
    return python


def rows(measurement: Mapping[str, Any]) -> Iterator[tuple[str, Any, Mapping[str, Any]]]:
    """Yield each row's name, time and counts, outermost first."""
    ledger = measurement["ledger"]
    yield "(outside)", measurement["outside_us"], ledger["outside"]
    for layer in measurement["layers"]:
        yield layer["name"], layer["us"], layer
    yield "(endpoint)", measurement["endpoint_us"], ledger["endpoint"]
    yield "(total)", measurement["total_us"], ledger["total"]


def figures(us: Mapping[str, float] | None, counts: Mapping[str, Any]) -> Reading:
    """Take the figures of a row that the report shows."""
    counted = {quantity: counts[quantity] and counts[quantity]["count"] for quantity in COUNTED}
    return {**counted, "us": us and [us["estimate"], us["low"], us["high"]]}


# ---- the report --------------------------------------------------------------------------------------------------


def report(readings: Sequence[Reading]) -> Report:
    """Derive tables and goals from the readings, which stand in the order of the releases."""
    names = list(dict.fromkeys(name for reading in readings for name in reading["rows"]))
    layers = [name for name in names if not name.startswith("(")]
    changes = [change for before, after in pairwise(readings) for change in changed(before, after)]
    uncounted = [reading["release"] for reading in readings if reading["rows"]["(total)"]["bytecodes"] is None]
    return Report(
        tables=(
            figures_of("bytecodes", "Bytecode instructions per request", layers, readings),
            figures_of("us", "µs per request", layers, readings),
            Table("Releases at which the counts of a layer changed", ("layer", "release", "change"), changes),
        ),
        goals=(
            Goal(
                "every release is measured and counted",
                f"{len(readings) - len(uncounted)} of {len(RELEASES)} releases",
                not uncounted and len(readings) == len(RELEASES),
            ),
        ),
    )


def figures_of(quantity: str, title: str, layers: Sequence[str], readings: Sequence[Reading]) -> Table:
    """Lay out one figure of every layer and of the whole request, with a line for each release."""
    names = (*layers, "(total)")
    lines = [(reading["release"], *(shown(reading, name, quantity) for name in names)) for reading in readings]
    return Table(title, ("starlette", *map(short, layers), "total"), lines)


def short(name: str) -> str:
    """Shorten a layer's name for the head of a column."""
    return name.partition("[")[0].replace("HTTPMiddleware", "HTTP").removesuffix("Middleware")


def shown(one: Reading, name: str, quantity: str) -> str:
    """Format a figure of a row; `-` if the release has no such row or figure."""
    figure = one["rows"].get(name, {}).get(quantity)
    if figure is None:
        return "-"
    return f"{figure[0]:.1f}" if quantity == "us" else f"{figure:,}"


def changed(before: Reading, after: Reading) -> Iterator[tuple[str, str, str]]:
    """Yield the layers whose counts changed from one release to the next, and how."""
    for name, now in after["rows"].items():
        earlier = before["rows"].get(name)
        if name == "(total)" or earlier is None:
            continue
        changes = [f"{key} {earlier[key]:,} → {now[key]:,}" for key in COUNTED if earlier[key] != now[key]]
        if changes:
            yield short(name), after["release"], ", ".join(changes)


if __name__ == "__main__":
    main(__file__, __doc__ or "", measure, report)
