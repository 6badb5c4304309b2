"""Measure five published packages, and write their reports and the list of docs/gallery.md.

    python docs/gallery.py [NAME ...]

Each app gets an environment of its own, with the newest versions of its packages, as in bench/real_apps.py. There,
`mwbudget measure --html` writes the report. With names, only these apps are measured, and the other entries of the list
stay. Needs a package index, a C compiler, a quiet machine and five minutes. With the variable MWBUDGET_REAL_APPS the
environments are kept in this folder, and used again.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "bench"))

from real_apps import SQLADMIN, Application, Place, environment, version  # noqa: E402

PAGE = ROOT / "docs" / "gallery.md"
REPORTS = ROOT / "docs" / "gallery"
LARGEST = 1_000_000  # bytes
MEASURE_S = 20
BLOCK = re.compile(r"(<!-- begin: gallery -->\n).*?(<!-- end -->)", re.DOTALL)
LISTED = re.compile(r"^- \[(\w+) .*?(?=^- |^<!-- end)", re.MULTILINE | re.DOTALL)
WIDTH = 120

DATASETTE = """
from datasette.app import Datasette

app = Datasette(memory=True).app()
"""
DJANGO = """
from django.conf import settings
from django.core.asgi import get_asgi_application

CONTEXT = "django.template.context_processors.request", "django.contrib.auth.context_processors.auth"
settings.configure(
    SECRET_KEY="only for this measurement",
    ROOT_URLCONF=__name__,
    ALLOWED_HOSTS=["testserver"],
    INSTALLED_APPS=[f"django.contrib.{name}" for name in ("admin", "auth", "contenttypes", "sessions", "messages")],
    MIDDLEWARE=[
        "django.middleware.security.SecurityMiddleware",
        "django.contrib.sessions.middleware.SessionMiddleware",
        "django.middleware.common.CommonMiddleware",
        "django.middleware.csrf.CsrfViewMiddleware",
        "django.contrib.auth.middleware.AuthenticationMiddleware",
        "django.contrib.messages.middleware.MessageMiddleware",
        "django.middleware.clickjacking.XFrameOptionsMiddleware",
    ],
    TEMPLATES=[
        {
            "BACKEND": "django.template.backends.django.DjangoTemplates",
            "APP_DIRS": True,
            "OPTIONS": {"context_processors": [*CONTEXT, "django.contrib.messages.context_processors.messages"]},
        }
    ],
)
app = get_asgi_application()

from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
"""
LITESTAR = """
from litestar import Litestar, get
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.config.csrf import CSRFConfig
from litestar.middleware.logging import LoggingMiddlewareConfig
from litestar.middleware.rate_limit import RateLimitConfig
from litestar.middleware.session.server_side import ServerSideSessionConfig


@get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@get("/items")
async def items() -> list[dict[str, int]]:
    return [{"id": number} for number in range(100)]


app = Litestar(
    [health, items],
    cors_config=CORSConfig(),
    csrf_config=CSRFConfig(secret="only for this measurement"),
    compression_config=CompressionConfig(backend="gzip"),
    middleware=[
        RateLimitConfig(rate_limit=("second", 1_000_000)).middleware,
        ServerSideSessionConfig().middleware,
        LoggingMiddlewareConfig().middleware,
    ],
    openapi_config=None,
)
"""
FASTAPI = """
from asgi_correlation_id import CorrelationIdMiddleware
from fastapi import FastAPI
from prometheus_fastapi_instrumentator import Instrumentator
from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware
from slowapi.util import get_remote_address
from starlette_compress import CompressMiddleware
from starlette_context.middleware import RawContextMiddleware

app = FastAPI(openapi_url=None)
app.state.limiter = Limiter(key_func=get_remote_address, default_limits=["1000000/second"])
app.add_middleware(SlowAPIASGIMiddleware)
app.add_middleware(RawContextMiddleware)
app.add_middleware(CompressMiddleware)
app.add_middleware(CorrelationIdMiddleware)
Instrumentator().instrument(app)


@app.get("/health")
async def health() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/items")
async def items() -> list[dict[str, int]]:
    return [{"id": number} for number in range(100)]
"""


@dataclass(frozen=True)
class Entry:
    """A report: the app, the requests if its routes cannot be listed, and what there is to see.

    `sight` is a format of `figures`.
    """

    application: Application
    title: str
    sight: str
    requests: Sequence[str] = ()


def entry(name: str, packages: Sequence[str], code: str, title: str, sight: str, requests: Sequence[str] = ()) -> Entry:
    """Make an entry whose app is `app` in a file `demo_app.py`. The HTML report needs jinja2."""
    application = Application(name, (*packages, "jinja2"), "demo_app:app", {"demo_app.py": code})
    return Entry(application, title, sight, requests)


ENTRIES = (
    entry(
        "sqladmin",
        ("sqladmin", "greenlet"),
        SQLADMIN,
        "an admin interface on Starlette",
        "the endpoint renders a template, and the {layers} layers hardly matter: they take {spent} of {total} µs.",
    ),
    entry(
        "datasette",
        ("datasette",),
        DATASETTE,
        "an app with a stack of its own",
        "two layers are functions; one of them, the CSRF protection of asgi-csrf, takes {us} of {total} µs on `{url}`.",
        ("/", "/_memory", "/-/versions.json"),
    ),
    entry(
        "django",
        ("django",),
        DJANGO,
        "the login page of Django's admin",
        "sync middlewares run in threads, {threads} calls per request; the {layers} layers take {spent} of {total} µs.",
        ("/admin/login/",),
    ),
    entry(
        "litestar",
        ("litestar",),
        LITESTAR,
        "an app with six of Litestar's own middlewares",
        "a matrix compares two routes by layers; the costliest layer on `{url}` is `{name}` with {us} of {total} µs.",
    ),
    entry(
        "fastapi",
        (
            "fastapi",
            "prometheus-fastapi-instrumentator",
            "asgi-correlation-id",
            "slowapi",
            "starlette-compress",
            "starlette-context",
        ),
        FASTAPI,
        "an app with five published middlewares",
        "each layer has the name of its package; the {layers} layers take {spent} of {total} µs on `{url}`.",
    ),
)


def main() -> None:
    """Measure the named apps, or all, and write their reports and the list."""
    names = sys.argv[1:] or [one.application.name for one in ENTRIES]
    REPORTS.mkdir(exist_ok=True)
    text = PAGE.read_text(encoding="utf-8")
    listed = {found[1]: found[0] for found in LISTED.finditer(text)}
    for one in ENTRIES:
        if one.application.name in names:
            listed[one.application.name] = item(one)
    items = "".join(listed[one.application.name] for one in ENTRIES)
    PAGE.write_text(BLOCK.sub(lambda found: found[1] + items + found[2], text), encoding="utf-8")


def item(one: Entry) -> str:
    """Measure an app. Write its report, and return its item of the list."""
    application, report = one.application, REPORTS / f"{one.application.name}.html"
    with environment(application) as python, TemporaryDirectory() as name:
        place = Place(Path(name), application, python)
        for file, text in application.files.items():
            (place.folder / file).write_text(text, encoding="utf-8")
        options = (f"--time={MEASURE_S}", "--json=measured.json", f"--html={report}")
        command = (str(python), "-m", "pytest_mwbudget", "measure", application.app, *one.requests, *options)
        done = place.run(*command)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        print(done.stdout)
        measured = json.loads((place.folder / "measured.json").read_text(encoding="utf-8"))["measurements"]
        title = f"{application.name} {version(place, application.packages[0])}"
    size = report.stat().st_size
    print(f"{report.relative_to(ROOT)}: {size:,} bytes")
    if size > LARGEST:
        sys.exit(f"{report.name} has more than {LARGEST:,} bytes")
    text = f"- [{title}](gallery/{report.name}), {one.title}: {one.sight.format(**figures(measured[0]))}"
    return textwrap.fill(text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False) + "\n"


def figures(route: Mapping[str, Any]) -> dict[str, str]:
    """Return the figures of a measured request: times in µs, calls in threads, its costliest layer."""
    spent = {layer["name"]: float(layer["us"]["estimate"]) for layer in route["layers"]}
    name = max(spent, key=lambda layer: spent[layer])
    return {
        "url": route["request"]["url"],
        "total": f"{route['total_us']['estimate']:,.0f}",
        "layers": str(len(spent)),
        "spent": f"{sum(spent.values()):,.0f}",
        "name": name,
        "us": f"{spent[name]:,.0f}",
        "threads": str(route["ledger"]["total"]["threads"]["count"]),
    }


if __name__ == "__main__":
    main()
