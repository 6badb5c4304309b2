"""Falcon's middlewares: which objects are layers, and what a request really calls of them."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_mwbudget.asgi.frameworks.seam import seam_of
from pytest_mwbudget.asgi.routes import routes_of

from .conftest import needs
from .frameworks import ENDPOINT, assert_all_entered, layer, names, watched

needs("falcon", "its middlewares are looked at", group="frameworks")

import falcon  # noqa: E402
import falcon.asgi  # noqa: E402


class Everything:
    async def process_startup(self, scope: Any, event: Any) -> None: ...

    async def process_request(self, request: Any, response: Any) -> None: ...

    async def process_resource(self, request: Any, response: Any, resource: Any, params: Any) -> None: ...

    async def process_response(self, request: Any, response: Any, resource: Any, succeeded: bool) -> None:
        response.set_header("x-succeeded", str(succeeded))


class BothInterfaces:
    """For WSGI and ASGI: Falcon takes the methods that end in _async."""

    def process_request(self, request: Any, response: Any) -> None:
        raise AssertionError("this is the method for WSGI")

    async def process_request_async(self, request: Any, response: Any) -> None: ...


class ResponseOnly:
    async def process_response(self, request: Any, response: Any, resource: Any, succeeded: bool) -> None: ...


class LifespanOnly:
    async def process_startup(self, scope: Any, event: Any) -> None: ...


class Refuses:
    async def process_request(self, request: Any, response: Any) -> None:
        if request.path == "/refused":
            raise falcon.HTTPForbidden
        response.complete = request.path == "/answered"


class Hello:
    async def on_get(self, request: Any, response: Any, name: str = "you") -> None:
        response.text = f"hello {name}"

    async def on_get_broken(self, request: Any, response: Any) -> None:
        raise ValueError("on purpose")


async def sink(request: Any, response: Any, **params: Any) -> None:
    response.text = "sunk"


def make(**options: Any) -> Any:
    app = falcon.asgi.App(middleware=[Everything(), LifespanOnly(), BothInterfaces()], cors_enable=True, **options)
    app.add_middleware([ResponseOnly(), Refuses()])
    app.add_route("/hello", Hello())
    app.add_route("/hello/{name}/again", Hello())
    app.add_route("/broken", Hello(), suffix="broken")
    app.add_sink(sink, "/sink")
    return app


LAYERS = ["Everything", "BothInterfaces", "CORSMiddleware", "ResponseOnly", "Refuses"]


@pytest.mark.parametrize("independent", [True, False])
def test_each_object_is_a_layer_with_the_methods_that_requests_call(independent: bool) -> None:
    app = make(independent_middleware=independent)
    seam, (hello, again) = watched(app, "/hello", "/hello/me/again")
    assert names(seam) == LAYERS
    assert [call.__name__ for call in layer(seam, "Everything").calls] == (
        ["process_request", "process_resource", "process_response"]
        if independent
        else ["process_request", "process_response", "process_resource"]
    )
    assert [call.__name__ for call in layer(seam, "BothInterfaces").calls] == ["process_request_async"]
    assert (hello.text, again.text) == ("hello you", "hello me")
    assert_all_entered(seam, [hello])
    assert hello.names == ["Everything", "BothInterfaces", "Refuses", ENDPOINT, "ResponseOnly", "CORSMiddleware"]
    assert again.names == hello.names
    assert all(middleware.adapts is None for middleware in seam.layers)


def test_a_class_method_enters_the_object_of_its_class() -> None:
    class OfClass:
        @classmethod
        async def process_request(cls, request: Any, response: Any) -> None: ...

    app = falcon.asgi.App(middleware=[ResponseOnly(), OfClass()])
    app.add_route("/hello", Hello())
    seam, (hello,) = watched(app, "/hello")
    assert names(seam) == ["ResponseOnly", "OfClass"]
    assert_all_entered(seam, [hello])


def test_errors_and_middlewares_that_answer() -> None:
    _, (refused, answered, broken, missing, sunk) = watched(
        make(), "/refused", "/answered", "/broken", "/missing", "/sink/x"
    )
    assert [request.status for request in (refused, answered, broken, missing)] == [403, 200, 500, 404]
    assert ENDPOINT not in refused.names
    assert ENDPOINT not in answered.names
    assert {"Refuses", "ResponseOnly"} <= set(refused.names)
    for reached in (broken, missing, sunk):
        assert set(reached.names) == {*LAYERS, ENDPOINT}


def test_a_static_route_is_an_endpoint(tmp_path: Any) -> None:
    app = make()
    (tmp_path / "page.txt").write_text("page")
    app.add_static_route("/files", str(tmp_path))
    _, (page,) = watched(app, "/files/page.txt")
    assert page.text == "page"
    assert ENDPOINT in page.names


def test_sync_methods_that_falcon_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    class Sync:
        def process_request(self, request: Any, response: Any) -> None: ...

    monkeypatch.setenv("FALCON_ASGI_WRAP_NON_COROUTINES", "1")
    app = falcon.asgi.App(middleware=[Sync()])
    app.add_route("/", Hello())
    seam, requests = watched(app, "/")
    assert names(seam) == ["Sync"]
    assert_all_entered(seam, requests)


def test_a_router_of_the_team_leaves_the_endpoint_open() -> None:
    class Router:
        def add_route(self, template: str, resource: Any, **options: Any) -> None: ...

        def find(self, uri: str, req: Any = None) -> Any:
            return Hello(), {"GET": Hello().on_get}, {}, uri

    app = falcon.asgi.App(middleware=[Everything()], router=Router())
    seam, (hello,) = watched(app, "/hello")
    assert hello.text == "hello you"
    assert seam.endpoint == ()


def test_no_layers() -> None:
    assert seam_of(falcon.asgi.App()) is None
    assert seam_of(falcon.asgi.App(middleware=[LifespanOnly()])) is None


def test_routes_before_the_start(tmp_path: Any) -> None:
    app = make()
    app.add_static_route("/files", str(tmp_path))

    class WriteOnly:
        async def on_post(self, request: Any, response: Any) -> None: ...

    app.add_route("/write", WriteOnly())
    routes = routes_of(app)
    assert routes.paths == ("/hello", "/broken")
    assert routes.left_out == {
        "/write": "no GET",
        "/hello/{name}/again": "path parameters",
        "/sink": "a sink",
        "/files/": "a directory of files",
    }
