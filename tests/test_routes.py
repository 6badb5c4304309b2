"""The routes of an app are read from its table, whatever stands round the app, and without a call of it."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import APIRouter, FastAPI
from starlette.applications import Starlette
from starlette.endpoints import HTTPEndpoint
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Host, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles

from pytest_mwbudget.asgi.routes import routes_of
from pytest_mwbudget.errors import AppError

from .apps import hello


async def answer(request: Any) -> PlainTextResponse:
    raise AssertionError("reading routes calls nothing")


class Shelf(HTTPEndpoint):
    async def get(self, request: Any) -> None: ...


class Desk(HTTPEndpoint):
    async def post(self, request: Any) -> None: ...


def paths_of(app: object) -> list[str]:
    return list(routes_of(app).paths)


def plain() -> Starlette:
    return Starlette(routes=[Route("/a", answer)])


def test_the_table_of_starlette_with_its_mounts() -> None:
    inner = Starlette(routes=[Route("/", answer), Route("/b", answer), Route("/b/{number:int}", answer)])
    app = Starlette(
        routes=[
            Route("/a", answer),
            Route("/a", answer, methods=["POST"]),
            Route("/write", answer, methods=["POST"]),
            Route("/shelf", Shelf),
            Route("/desk", Desk),
            Route("/raw", hello_object),
            WebSocketRoute("/socket", answer),
            Mount("/inner", inner),
            Mount("/wrapped", CORSMiddleware(inner, ["*"])),
            Mount("/files", StaticFiles(directory=".")),
            Mount("/{tenant}", inner),
            Host("api.example.org", inner),
        ]
    )
    routes = routes_of(app)
    assert routes.paths == ("/a", "/shelf", "/raw", "/inner/", "/inner/b", "/wrapped/", "/wrapped/b")
    assert routes.left_out == {
        "/write": "no GET",
        "/desk": "no GET",
        "/inner/b/{number:int}": "path parameters",
        "/wrapped/b/{number:int}": "path parameters",
        "/files/": "mounts StaticFiles, whose routes are not known",
        "/{tenant}": "path parameters",
        "/": "only for the host api.example.org",
    }


class Raw:
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


hello_object = Raw()


def test_the_table_of_fastapi_with_included_routers_and_without_its_documentation() -> None:
    leaf, branch, app = APIRouter(prefix="/leaf"), APIRouter(), FastAPI()
    leaf.get("/a")(answer)
    leaf.get("/{number}")(answer)
    branch.include_router(leaf, prefix="/branch")
    app.include_router(branch, prefix="/root")
    app.api_route("/both", methods=["GET", "POST"])(answer)
    app.websocket("/socket")(answer)
    app.mount("/mounted", plain())
    routes = routes_of(app)
    assert routes.paths == ("/root/branch/leaf/a", "/both", "/mounted/a")
    assert routes.left_out["/openapi.json"] == routes.left_out["/docs"] == "of fastapi itself"
    assert routes.left_out["/root/branch/leaf/{number}"] == "path parameters"


def test_the_table_of_litestar() -> None:
    litestar = pytest.importorskip("litestar")

    async def none() -> None: ...

    # Handlers are the framework's when their functions are.
    handlers = [litestar.get(path)(none) for path in ("/a", "/a/{number:int}")]
    routes = routes_of(litestar.Litestar([*handlers, litestar.post("/write")(none)], logging_config=None))
    assert routes.paths == ("/a",)
    assert (routes.left_out["/a/{number:int}"], routes.left_out["/write"]) == ("path parameters", "no GET")
    assert routes.left_out["/schema"] == "of litestar itself"


def test_a_map_of_werkzeug() -> None:
    rules = [
        SimpleNamespace(rule="/a", methods={"GET", "HEAD"}, endpoint="a"),
        SimpleNamespace(rule="/a/<int:number>", methods={"GET"}, endpoint="a"),
        SimpleNamespace(rule="/write", methods={"POST"}, endpoint="a"),
        SimpleNamespace(rule="/socket", methods={"GET"}, endpoint="a", websocket=True),
    ]
    app = SimpleNamespace(url_map=SimpleNamespace(iter_rules=lambda: rules), view_functions={"a": answer})
    assert routes_of(app).paths == ("/a",)
    assert routes_of(app).left_out == {"/a/<int:number>": "path parameters", "/write": "no GET"}


def test_a_schema_where_there_is_no_table() -> None:
    paths = {"/a": {"get": {}}, "/a/{number}": {"get": {}}, "/write": {"post": {}}}
    routes = routes_of(SimpleNamespace(openapi=lambda: {"paths": paths}))
    assert routes.paths == ("/a",)
    assert routes.left_out == {"/a/{number}": "path parameters", "/write": "no GET"}


def test_a_schema_that_cannot_be_made() -> None:
    with pytest.raises(AppError, match="failed with ZeroDivisionError: division by zero; name the requests"):
        routes_of(SimpleNamespace(openapi=lambda: 1 / 0))


class Slotted:
    __slots__ = ("inner",)

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Raising:
    """Its attributes raise, its dictionary does not."""

    def __init__(self, app: Any) -> None:
        self.app = app

    @property
    def routes(self) -> Any:
        raise RuntimeError

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


def closure(inner: Any) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await inner(scope, receive, send)

    return app


def a_partial(inner: Any) -> Any:
    async def app(inner: Any, scope: Any, receive: Any, send: Any) -> None: ...

    return partial(app, inner)


@pytest.mark.parametrize(
    "wrap", [Slotted, Raising, closure, a_partial, lambda app: app.__call__, lambda app: CORSMiddleware(app, ["*"])]
)
def test_the_table_is_found_behind_what_stands_round_the_app(wrap: Any) -> None:
    assert paths_of(wrap(wrap(plain()))) == ["/a"]


def test_an_app_without_routes_has_none() -> None:
    class Cycle:
        def __init__(self) -> None:
            self.app = self

        async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...

    for app in (hello, Raw(), Cycle(), Starlette()):
        assert paths_of(app) == []
