"""Apps of published packages, as their READMEs show them: each layer has its row, and the app answers as without us.

Each app runs in a process of its own, because packages change classes for good and Django has one configuration. The
packages are in the group `published`; MWBUDGET_REQUIRE_PUBLISHED=1 requires them all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .apps import LEAN
from .conftest import needs
from .readings import readings

ROOT = Path(__file__).parent.parent

# Makes the requests of the app, and writes the answers.
TEST = """
import json
from contextlib import nullcontext

import pytest
from starlette.testclient import TestClient

import app
from tests.apps import unchanged_code

@pytest.mark.mw_budget({budgets}, repeat=["POST"])
def test_app():
    client = TestClient(app.app, base_url="https://testserver")
    with unchanged_code(), client if app.HAS_LIFESPAN else nullcontext():
        answers = [facts(client.request(**request)) for request in app.REQUESTS]
    with open("answers.json", "w") as file:
        json.dump([answers, app.calls()], file)

def facts(response):
    return [response.status_code, response.text, sorted(response.headers), sorted(response.cookies)]
"""
# What each app has unless its source says something else.
DEFAULTS = """
HAS_LIFESPAN = True
REQUESTS = [{"method": "GET", "url": "/"}]

def calls():
    return None
"""


CONFTEST = """
from pytest_mwbudget.session.gate import SCHEDULE
from pytest_mwbudget.timing.schedule import Schedule
from tests.apps import FAST

def pytest_configure(config):
    config.stash[SCHEDULE] = Schedule(**FAST)
"""


@dataclass(frozen=True)
class Case:
    """An app: the package that it needs, and layers that each of its requests enters, outermost first."""

    package: str
    source: str
    layers: tuple[str, ...]


CSRF = "function[asgi_csrf.asgi_csrf_decorator._asgi_csrf_decorator]"
CASES = {
    "asgi-csrf": Case(
        "asgi_csrf",
        """
from asgi_csrf import asgi_csrf
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

async def page(request):
    return PlainTextResponse(str(bool(request.scope["csrftoken"]())))

async def save(request):
    form = await request.form()
    return JSONResponse(dict(form))

app = asgi_csrf(Starlette(routes=[Route("/", page), Route("/save", save, methods=["POST"])]), signing_secret="secret")
REQUESTS = [{"method": "POST", "url": "/save", "data": {"a": "b"}}, {"method": "GET", "url": "/"}]
""",
        (CSRF, "Starlette", "ServerErrorMiddleware", "ExceptionMiddleware"),
    ),
    "asgi-csrf round a router": Case(
        "asgi_csrf",
        """
from asgi_csrf import asgi_csrf
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route, Router

async def page(request):
    return PlainTextResponse(str(bool(request.scope["csrftoken"]())))

router = asgi_csrf(Router(routes=[Route("/page", page)]), signing_secret="secret", always_set_cookie=True)
app = Starlette(routes=[Mount("/sub", app=router)])
REQUESTS = [{"method": "GET", "url": "/sub/page"}]
""",
        ("ServerErrorMiddleware", "ExceptionMiddleware", CSRF),
    ),
    "channels": Case(
        "channels",
        """
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="secret",
    ROOT_URLCONF="app",
    ALLOWED_HOSTS=["*"],
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions", "channels"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
)
django.setup()

from channels.auth import AuthMiddlewareStack
from channels.generic.http import AsyncHttpConsumer
from channels.routing import ProtocolTypeRouter, URLRouter
from django.core.asgi import get_asgi_application
from django.http import HttpResponse
from django.urls import path

async def view(request):
    return HttpResponse("view")

class Consumer(AsyncHttpConsumer):
    async def handle(self, body):
        self.scope["session"]["seen"] = True
        await self.send_response(200, str(self.scope["user"]).encode())

urlpatterns = [path("view", view)]
consumers = [path("", Consumer.as_asgi()), path("view", get_asgi_application())]
app = ProtocolTypeRouter({"http": AuthMiddlewareStack(URLRouter(consumers))})
HAS_LIFESPAN = False
REQUESTS = [{"method": "GET", "url": "/"}, {"method": "GET", "url": "/view"}]
""",
        ("CookieMiddleware", "SessionMiddleware", "AuthMiddleware"),
    ),
    "sse-starlette": Case(
        "sse_starlette",
        """
import asyncio

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import Route

async def events():
    for number in range(3):
        yield {"data": f"Event {number}"}
        await asyncio.sleep(0)

async def stream(request):
    return EventSourceResponse(events())

app = Starlette(routes=[Route("/", stream)], middleware=[Middleware(GZipMiddleware)])
""",
        ("ServerErrorMiddleware", "GZipMiddleware", "ExceptionMiddleware"),
    ),
    "fastmcp": Case(
        "fastmcp",
        """
from fastmcp import FastMCP
from starlette.middleware import Middleware

class Passing:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

mcp = FastMCP("Demo")

@mcp.tool
def add(a: int, b: int) -> int:
    return a + b

app = mcp.http_app(middleware=[Middleware(Passing)], json_response=True, stateless_http=True)
call = {"name": "add", "arguments": {"a": 1, "b": 2}}
REQUESTS = [{
    "method": "POST",
    "url": "/mcp",
    "headers": {"accept": "application/json, text/event-stream"},
    "json": {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
}]
""",
        ("ServerErrorMiddleware", "Passing", "ExceptionMiddleware"),
    ),
    "starsessions": Case(
        "starsessions",
        """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starsessions import InMemoryStore, SessionAutoloadMiddleware, SessionMiddleware

async def index(request):
    request.session["visits"] = request.session.get("visits", 0) + 1
    return JSONResponse(request.session)

app = Starlette(
    routes=[Route("/", index)],
    middleware=[
        Middleware(SessionMiddleware, store=InMemoryStore(), lifetime=3600),
        Middleware(SessionAutoloadMiddleware),
    ],
)
""",
        ("ServerErrorMiddleware", "SessionMiddleware", "SessionAutoloadMiddleware", "ExceptionMiddleware"),
    ),
    # Until the function loads it, the session is an object whose attributes all raise.
    "starsessions loaded by the function": Case(
        "starsessions",
        """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.routing import Route
from starsessions import CookieStore, SessionMiddleware, load_session

async def index(request):
    await load_session(request)
    return JSONResponse(request.session)

app = Starlette(
    routes=[Route("/", index)], middleware=[Middleware(SessionMiddleware, store=CookieStore(secret_key="secret"))]
)
""",
        ("ServerErrorMiddleware", "SessionMiddleware", "ExceptionMiddleware"),
    ),
    "fastapi-cache2": Case(
        "fastapi_cache",
        """
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi_cache import FastAPICache
from fastapi_cache.backends.inmemory import InMemoryBackend
from fastapi_cache.decorator import cache

@asynccontextmanager
async def lifespan(app):
    FastAPICache.init(InMemoryBackend(), prefix="fastapi-cache")
    yield

app = FastAPI(lifespan=lifespan)
entered = []

@app.get("/")
@cache(expire=60)
async def index():
    entered.append(1)
    return {"hello": "world"}

def calls():
    return len(entered)
""",
        ("ServerErrorMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware"),
    ),
    "logfire": Case(
        "logfire",
        """
import logfire
from fastapi import FastAPI

logfire.configure(send_to_logfire=False, console=False)
app = FastAPI()
logfire.instrument_fastapi(app)

@app.get("/")
async def index():
    logfire.info("hello")
    return {"hello": "world"}
""",
        ("FastAPI", "OpenTelemetryMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware"),
    ),
    "Secweb": Case(
        "Secweb",
        """
from fastapi import FastAPI
from Secweb import SecWeb

app = FastAPI()
SecWeb(app=app, script_nonce=False)

@app.get("/")
async def index():
    return {"hello": "world"}
""",
        ("ServerErrorMiddleware", "_SetHeadersMiddleware", "ExceptionMiddleware", "AsyncExitStackMiddleware"),
    ),
    "Lilya": Case(
        "lilya",
        """
from lilya.apps import Lilya
from lilya.middleware import DefineMiddleware
from lilya.middleware.cors import CORSMiddleware
from lilya.middleware.sessions import SessionMiddleware
from lilya.responses import JSONResponse
from lilya.routing import Path

async def welcome(request):
    request.session["seen"] = True
    return JSONResponse({"message": "Welcome"})

app = Lilya(
    routes=[Path("/", welcome)],
    middleware=[
        DefineMiddleware(CORSMiddleware, allow_origins=["*"]),
        DefineMiddleware(SessionMiddleware, secret_key="secret"),
    ],
)
""",
        ("ServerErrorMiddleware", "CORSMiddleware", "SessionMiddleware", "ExceptionMiddleware"),
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Case:
    chosen = CASES[request.param]
    needs(chosen.package, f"the app of {request.param} needs it", group="published")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(app=DEFAULTS + chosen.source)
    return chosen


def ran(pytester: pytest.Pytester, budgets: str, *options: str) -> list[Any]:
    """Run the test with these budgets, and return what the app answered."""
    pytester.makepyfile(test_it=TEST.format(budgets=budgets))
    result = pytester.runpytest_subprocess(*LEAN, "-p", "no:cacheprovider", *options, "test_it.py")
    result.assert_outcomes(passed=1)
    answers: list[Any] = json.loads((pytester.path / "answers.json").read_text())
    return answers


def measured(pytester: pytest.Pytester, case: Case, budgets: str) -> list[dict[str, Any]]:
    """Return the layers of all requests, after checking what holds for every request."""
    unmeasured = ran(pytester, budgets)
    assert ran(pytester, budgets, "--mw-budget", "--mw-budget-json=found.json") == unmeasured
    document = json.loads((pytester.path / "found.json").read_text())
    assert document["left_out"] == []
    assert len(document["measurements"]) == len(unmeasured[0])
    for measurement in document["measurements"]:
        names = [layer["name"].partition("#")[0] for layer in measurement["layers"] if layer["entered"]]
        assert [name for name in names if name in case.layers] == list(case.layers), names
        timed = measurement["total_us"] is not None
        assert timed or measurement["notes"] == []
        assert (measurement["endpoint_us"] if timed else measurement["ledger"]["endpoint"]) is not None
    # Routing has a row, and a verdict only under its own name.
    layers = [layer for measurement in document["measurements"] for layer in measurement["layers"]]
    return [layer for layer in layers if layer["kind"] != "routing"]


def test_each_layer_has_its_row_and_the_app_answers_as_without_us(case: Case, pytester: pytest.Pytester) -> None:
    layers = measured(pytester, case, "tasks=1000, threads=1000")
    assert [layer["name"] for layer in layers if not layer["entered"] or layer["verdict"] != "pass"] == []


@pytest.mark.live
@readings
def test_each_layer_is_timed_and_the_app_answers_as_without_us(case: Case, pytester: pytest.Pytester) -> None:
    layers = measured(pytester, case, "us=1_000_000")
    assert [layer["name"] for layer in layers if layer["us"] is None or layer["verdict"] != "pass"] == []
