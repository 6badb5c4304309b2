"""Sanic's middlewares: which functions are layers, and which objects a request really calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pytest_mwbudget.asgi.frameworks.seam import seam_of
from pytest_mwbudget.asgi.routes import routes_of

from .conftest import needs
from .frameworks import ENDPOINT, assert_all_entered, layer, names, watched

needs("sanic", "its middlewares are looked at", group="frameworks")

import sanic  # noqa: E402
import sanic.response  # noqa: E402
import sanic.views  # noqa: E402


@pytest.fixture(autouse=True)
def _registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sanic keeps its apps by name, and rewrites its own methods at each startup, unless it is told of tests."""
    monkeypatch.setattr(sanic.Sanic, "test_mode", True)
    yield
    sanic.Sanic._app_registry.clear()


async def both(request: Any, response: Any = None) -> None:
    if response is not None:
        response.headers["x-both"] = "1"


def sync_on_request(request: Any) -> None: ...


async def early(request: Any) -> None: ...


async def on_response(request: Any, response: Any) -> None: ...


async def of_blueprint(request: Any) -> None: ...


async def of_blueprint_response(request: Any, response: Any) -> None: ...


async def of_group(request: Any) -> None: ...


async def refuse(request: Any) -> Any:
    return sanic.response.text("refused", 403) if request.path == "/refused" else None


class Timing:
    async def before(self, request: Any) -> None: ...

    async def after(self, request: Any, response: Any) -> None: ...


class Callable:
    async def __call__(self, request: Any) -> None: ...


async def hello(request: Any, name: str = "you") -> Any:
    return sanic.response.text(f"hello {name}")


def make() -> Any:
    app = sanic.Sanic("layers")
    timing = Timing()
    app.on_request(both)
    app.on_response(both)
    app.on_request(sync_on_request)
    app.register_middleware(early, "request", priority=9)
    app.on_response(on_response)
    app.on_request(timing.before)
    app.on_response(timing.after)
    app.register_middleware(Callable(), "request")
    app.on_request(refuse)
    app.add_route(hello, "/hello")
    app.add_route(hello, "/hello/<name>", name="named")
    app.add_route(hello, "/refused", name="refused")

    @app.get("/broken")
    def broken(request: Any) -> None:
        raise ValueError("on purpose")

    blue = sanic.Blueprint("blue", url_prefix="/blue")
    blue.on_request(of_blueprint)
    blue.on_response(of_blueprint_response)
    blue.add_route(hello, "/hello")
    inner = sanic.Blueprint("inner", url_prefix="/inner")
    inner.add_route(hello, "/hello")
    group = sanic.Blueprint.group(inner, url_prefix="/group")
    group.on_request(of_group)
    app.blueprint(blue)
    app.blueprint(group)
    return app


FOR_ALL = ["both", "sync_on_request", "on_response", "Timing", "Callable", "refuse"]


def test_each_function_is_a_layer_with_the_objects_that_requests_call() -> None:
    paths = ("/hello", "/hello/me", "/blue/hello", "/group/inner/hello", "/broken", "/refused", "/missing")
    seam, requests = watched(make(), *paths)
    hello, named, blue, inner, broken, refused, missing = requests
    assert names(seam) == ["early", *FOR_ALL, "of_blueprint", "of_blueprint_response", "of_group"]
    assert [request.status for request in requests] == [200, 200, 200, 200, 500, 403, 404]
    assert_all_entered(seam, requests)
    assert [len(layer(seam, name).calls) for name in ("both", "Timing", "on_response")] == [2, 2, 1]
    assert hello.names == [
        *("early", "both", "sync_on_request", "Timing", "Callable", "refuse"),
        ENDPOINT,
        "on_response",
    ]
    assert named.names == hello.names
    assert set(blue.names) == {"early", *FOR_ALL, "of_blueprint", "of_blueprint_response", ENDPOINT}
    assert set(inner.names) == {"early", *FOR_ALL, "of_group", ENDPOINT}
    assert set(broken.names) == {"early", *FOR_ALL, ENDPOINT}
    assert set(refused.names) == set(missing.names) == {"early", *FOR_ALL}
    assert all(each_layer.adapts is None for each_layer in seam.layers)


def test_classes_of_handlers_and_files_are_endpoints(tmp_path: Any) -> None:
    class View(sanic.views.HTTPMethodView):
        async def get(self, request: Any) -> Any:
            return sanic.response.text("view")

    (tmp_path / "page.txt").write_text("page")
    app = make()
    app.add_route(View.as_view(), "/view")
    app.static("/files", str(tmp_path))
    _, (view, page) = watched(app, "/view", "/files/page.txt")
    assert (view.text, page.text) == ("view", "page")
    assert ENDPOINT in view.names
    assert ENDPOINT in page.names


def test_no_layers() -> None:
    assert seam_of(sanic.Sanic("empty")) is None


def test_routes_before_the_start() -> None:
    app = make()
    app.add_route(hello, "/write", methods=["POST"], name="write")
    routes = routes_of(app)
    assert set(routes.paths) == {"/hello", "/refused", "/broken", "/blue/hello", "/group/inner/hello"}
    assert routes.left_out == {"/hello/<name:str>": "path parameters", "/write": "no GET"}
