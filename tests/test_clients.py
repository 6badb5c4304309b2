"""Live: the clients of tests that are recorded, each with a layer of known cost.

Clients that the group `test` does not install are in the group `clients`; MWBUDGET_REQUIRE_CLIENTS=1 requires them all.
"""

from __future__ import annotations

import pytest

from .apps import LEAN, SPIN
from .conftest import needs
from .projects import QUICK
from .readings import readings
from .test_own_requests import QUIET

pytestmark = pytest.mark.live

LAYERS = f"""
import pytest
{SPIN}


class Noop:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)
"""

# For each client: the packages it needs, and what makes a request through a layer.
STARLETTE = """
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

async def endpoint(request):
    return PlainTextResponse("ok")

def make(layer):
    return Starlette(routes=[Route("/items/{n}", endpoint)], middleware=[Middleware(layer)])
"""
SYNC = """
def test_spin():
    ask(Spin)

def test_noop():
    ask(Noop)
"""
ASYNC = """
@pytest.mark.MARK
async def test_spin(anyio_backend_name=None):
    await ask(Spin)

@pytest.mark.MARK
async def test_noop(anyio_backend_name=None):
    await ask(Noop)
"""
TRANSPORT = """
import HTTPX as httpx

async def ask(layer):
    async with httpx.AsyncClient(transport=httpx.ASGITransport(make(layer)), base_url="http://shop") as client:
        assert (await client.get("/items/1")).text == "ok"
"""
CLIENTS = {
    "starlette": (
        [],
        """
from starlette.testclient import TestClient

def ask(layer):
    assert TestClient(make(layer)).get("/items/1").text == "ok"
"""
        + SYNC,
    ),
    "starlette in its lifespan": (
        [],
        """
from starlette.testclient import TestClient

def ask(layer):
    with TestClient(make(layer)) as client:
        assert client.get("/items/1").text == "ok"
"""
        + SYNC,
    ),
    "httpx": (["httpx"], TRANSPORT.replace("HTTPX", "httpx") + ASYNC.replace("MARK", "asyncio")),
    "httpx on trio": (
        ["httpx", "trio"],
        TRANSPORT.replace("HTTPX", "httpx")
        + """
@pytest.fixture
def anyio_backend():
    return "trio"

"""
        + ASYNC.replace("MARK", "anyio"),
    ),
    "httpx2": (["httpx2"], TRANSPORT.replace("HTTPX", "httpx2") + ASYNC.replace("MARK", "asyncio")),
    "litestar": (
        ["litestar"],
        """
import litestar
from litestar.testing import TestClient

@litestar.get("/items/one", media_type="text/plain")
async def item() -> str:
    return "ok"

def ask(layer):
    with TestClient(litestar.Litestar([item], middleware=[layer], logging_config=None)) as client:
        assert client.get("/items/one").text == "ok"
"""
        + SYNC,
    ),
    "litestar, async": (
        ["litestar"],
        """
import litestar
from litestar.testing import AsyncTestClient

@litestar.get("/items/one", media_type="text/plain")
async def item() -> str:
    return "ok"

async def ask(layer):
    async with AsyncTestClient(litestar.Litestar([item], middleware=[layer], logging_config=None)) as client:
        assert (await client.get("/items/one")).text == "ok"
"""
        + ASYNC.replace("MARK", "asyncio"),
    ),
    "quart": (
        ["quart"],
        """
import quart

async def ask(layer):
    app = quart.Quart("shop")
    app.asgi_app = layer(app.asgi_app)

    @app.get("/items/<n>")
    async def item(n):
        return "ok"

    assert await (await app.test_client().get("/items/1")).get_data() == b"ok"
"""
        + ASYNC.replace("MARK", "asyncio"),
    ),
    "async-asgi-testclient": (
        ["async_asgi_testclient"],
        """
from async_asgi_testclient import TestClient

async def ask(layer):
    async with TestClient(make(layer)) as client:
        assert (await client.get("/items/1")).text == "ok"
"""
        + ASYNC.replace("MARK", "asyncio"),
    ),
}


@readings
@pytest.mark.parametrize("name", CLIENTS)
def test_a_spin_of_200_us_breaks_a_budget_of_50_us_and_nothing_else_does(pytester: pytest.Pytester, name: str) -> None:
    packages, tests = CLIENTS[name]
    for package in packages:
        needs(package, "a client of tests", "clients")
    pytester.makeconftest(QUICK)
    pytester.makepyfile(LAYERS + "pytestmark = pytest.mark.mw_budget(us=50)\n" + STARLETTE + tests)
    options = [*LEAN, *QUIET, "--mw-budget", "-p", "no:xdist", "-p", "no:cacheprovider"]
    result = pytester.runpytest_subprocess(*options)  # Litestar sets up logging for the whole process
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["GET /items/*: Spin [1-4]* µs, budget 50 µs*"])


DJANGO = """
import asyncio
import os
import time

import django
import pytest
from django.conf import settings
from django.http import HttpResponse, StreamingHttpResponse
from django.test import AsyncClient
from django.urls import path

async def item(request, n):
    if "spin" in request.GET:
        end = time.perf_counter_ns() + 10_000_000
        while time.perf_counter_ns() < end:
            pass
    return HttpResponse(f"{n} {request.COOKIES.get('name')}")

def sync_item(request):
    return HttpResponse("sync")

async def echo(request):
    return HttpResponse(request.body)

async def broken(request):
    raise LookupError("no such shelf")

async def stream(request):
    async def pieces():
        yield b"a"
    return StreamingHttpResponse(pieces())

urlpatterns = [
    path("items/<int:n>", item),
    path("sync", sync_item),
    path("echo", echo),
    path("broken", broken),
    path("stream", stream),
]
settings.configure(
    ROOT_URLCONF=__name__, SECRET_KEY="x", ALLOWED_HOSTS=["*"], MIDDLEWARE=["django.middleware.common.CommonMiddleware"]
)
django.setup()
"""


@readings
def test_djangos_async_client(pytester: pytest.Pytester) -> None:
    needs("django", "a client of tests", "clients")
    tests = """
@pytest.mark.asyncio
@pytest.mark.mw_budget(total_us=2500)
async def test_whole_requests():
    client = AsyncClient()
    client.cookies["name"] = "anna"
    for n in (1, 2):
        response = await client.get(f"/items/{n}")
        assert response.content == f"{n} anna".encode()
    assert response.resolver_match.route == "items/<int:n>"
    assert len(response.asgi_request.headers["cookie"].split("anna")) == 2

@pytest.mark.asyncio
@pytest.mark.mw_budget(total_us=2500)
async def test_spin():
    await AsyncClient().get("/items/1", {"spin": 1})

@pytest.mark.asyncio
@pytest.mark.mw_budget(total_us=100_000, repeat=["POST"])
async def test_body_and_what_is_left_out():
    client = AsyncClient()
    assert (await client.post("/echo", data=b"tea", content_type="text/plain")).content == b"tea"
    assert (await client.get("/sync")).content == b"sync"
    with pytest.raises(LookupError, match="no such shelf"):
        await client.get("/broken")
    assert [piece async for piece in await client.get("/stream")] == [b"a"]
"""
    pytester.makepyfile(DJANGO + tests)
    options = [*LEAN, *QUIET, "--mw-budget", "-v", "-p", "no:xdist", "-p", "no:cacheprovider", "-p", "no:django"]
    result = pytester.runpytest_subprocess(*options, "--mw-budget-max-time=6")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*test_spin*GET /items/1?spin=1*",
            "CommonMiddleware *",
            "  django.middleware.common.CommonMiddleware, *from Django",
            "note: (outside) is the handler of the test's own client*",
            "*test_body_and_what_is_left_out GET /broken not measured: the app raised LookupError*",
            "*test_body_and_what_is_left_out GET /stream not measured: its response is read as a stream*",
        ]
    )
    output = result.stdout.str()
    assert "GET /items/1 pass" in output
    assert "GET /items/2" not in output
    assert "POST /echo pass" in output
    assert "around the app object" not in output  # one note says what (outside) is


WEBSOCKETS = {
    "quart": (
        "quart",
        """
import quart

app = quart.Quart("shop")

@app.websocket("/greeting")
async def greeting():
    await quart.websocket.send("hi")

@pytest.mark.asyncio
async def test_it():
    async with app.test_client().websocket("/greeting") as connection:
        assert await connection.receive() == "hi"
        assert type(connection).__name__ == "TestWebsocketConnection"
""",
    ),
    "async-asgi-testclient": (
        "async_asgi_testclient",
        """
from async_asgi_testclient import TestClient
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

async def greeting(websocket):
    await websocket.accept()
    await websocket.send_text("hi")

@pytest.mark.asyncio
async def test_it():
    app = Starlette(routes=[WebSocketRoute("/greeting", greeting)])
    async with TestClient(app) as client, client.websocket_connect("/greeting") as connection:
        assert await connection.receive_text() == "hi"
""",
    ),
    "litestar": (
        "litestar",
        """
import litestar
from litestar.testing import TestClient

@litestar.websocket("/greeting")
async def greeting(socket: litestar.WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hi")
    await socket.close()

def test_it():
    app = litestar.Litestar([greeting], logging_config=None)
    with TestClient(app) as client, client.websocket_connect("/greeting") as connection:
        assert connection.receive_text() == "hi"
""",
    ),
}


@pytest.mark.parametrize("name", WEBSOCKETS)
def test_a_websocket_is_left_out_with_the_reason(pytester: pytest.Pytester, name: str) -> None:
    package, tests = WEBSOCKETS[name]
    needs(package, "a client of tests", "clients")
    pytester.makepyfile(f"import pytest\npytestmark = pytest.mark.mw_budget(tasks=0)\n{tests}")
    options = [*LEAN, *QUIET, "--mw-budget", "-v", "-p", "no:xdist", "-p", "no:cacheprovider"]
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*test_it WS /greeting not measured: a WS request is not repeated automatically; *"])
