"""Quart's functions round the view: which are layers, and what a request really calls."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from pytest_mwbudget.asgi.frameworks.seam import seam_of
from pytest_mwbudget.asgi.routes import routes_of

from .conftest import needs
from .frameworks import ENDPOINT, assert_all_entered, layer, names, watched

needs("quart", "its functions round the view are looked at", group="frameworks")

import quart  # noqa: E402


class Extension:
    """As an extension does it: methods of one object."""

    def __init__(self, app: Any) -> None:
        app.before_request(self.begin)
        app.after_request(self.end)

    async def begin(self) -> None: ...

    async def end(self, response: Any) -> Any:
        return response


def make() -> Any:
    app = with_functions()
    add_views(app)
    add_blueprints(app)
    return app


def with_functions() -> Any:
    class App(quart.Quart):
        async def own(self) -> None: ...

    app = App(__name__)
    Extension(app)
    app.before_request(app.own)

    async def both(response: Any = None) -> Any:
        return response

    app.before_request(both)
    app.after_request(both)

    @app.before_request
    async def before() -> Any:
        return ("refused", 403) if quart.request.path == "/refused" else None

    @app.before_request
    def sync_before() -> None: ...

    @app.after_request
    def sync_after(response: Any) -> Any:
        return response

    @app.teardown_request
    async def teardown(error: Any) -> None: ...

    @app.teardown_appcontext
    async def teardown_app(error: Any) -> None: ...

    @app.url_value_preprocessor
    def preprocess(endpoint: Any, values: Any) -> None: ...

    return app


def add_views(app: Any) -> None:
    @app.get("/hello")
    async def hello() -> str:
        return "hello"

    @app.get("/sync")
    def sync() -> str:
        return f"{threading.get_ident()}"

    @app.get("/refused")
    async def refused() -> str:
        raise AssertionError("before_request answers")

    @app.get("/broken")
    async def broken() -> None:
        raise ValueError("on purpose")


def add_blueprints(app: Any) -> None:
    outer, inner = quart.Blueprint("outer", __name__), quart.Blueprint("inner", __name__)

    @inner.before_request
    async def of_inner() -> None: ...

    @outer.before_request
    async def of_outer() -> None: ...

    @outer.teardown_request
    async def of_outer_teardown(error: Any) -> None: ...

    @outer.after_app_request
    async def for_all(response: Any) -> Any:
        return response

    @inner.get("/inner")
    async def of_blueprint() -> str:
        return "inner"

    outer.register_blueprint(inner)
    app.register_blueprint(outer, url_prefix="/outer")


ALWAYS = [
    *("preprocess", "Extension", "own", "both", "before", "sync_before"),
    *("sync_after", "for_all", "teardown", "teardown_app"),
]


def test_each_function_is_a_layer() -> None:
    paths = ("/hello", "/sync", "/outer/inner", "/refused", "/broken", "/missing")
    seam, requests = watched(make(), *paths)
    hello, sync, inner, refused, broken, missing = requests
    assert names(seam) == [*ALWAYS, "of_outer", "of_outer_teardown", "of_inner"]
    assert [request.status for request in requests] == [200, 200, 200, 403, 500, 404]
    assert_all_entered(seam, requests)
    assert [len(layer(seam, name).calls) for name in ("Extension", "both", "before")] == [2, 1, 1]
    assert set(hello.names) == set(sync.names) == set(broken.names) == {*ALWAYS, ENDPOINT}
    assert set(inner.names) == {*ALWAYS, ENDPOINT, "of_outer", "of_outer_teardown", "of_inner"}
    assert inner.names.index("sync_before") < inner.names.index("of_outer") < inner.names.index("of_inner")
    assert set(refused.names) == {*ALWAYS} - {"sync_before"}
    assert set(missing.names) == {*ALWAYS}


def test_a_function_that_a_factory_made_has_its_own_name() -> None:
    seam, _ = watched(make(), "/hello")
    assert layer(seam, "before").name == f"function[{__name__}.with_functions.before]"
    assert layer(seam, "Extension").name is None


def test_sync_functions_run_in_threads_and_say_so() -> None:
    seam, (hello, sync) = watched(make(), "/hello", "/sync")
    hop = "it is sync, so Quart runs it in a thread for each request"
    hop += "; the way there and back comes on top, as Quart's time"
    assert {name: layer(seam, name).adapts for name in ALWAYS} == {
        **dict.fromkeys(ALWAYS),
        **dict.fromkeys(("sync_before", "sync_after"), hop),
    }
    for name in ("sync_before", "sync_after"):
        assert hello.in_another_thread(name)
    for name in ("before", "preprocess", ENDPOINT):
        assert not hello.in_another_thread(name)
    assert sync.in_another_thread(ENDPOINT)
    assert int(sync.text) in sync.threads[ENDPOINT]


def test_an_app_that_runs_sync_functions_in_the_loop() -> None:
    class App(quart.Quart):
        def ensure_async(self, function: Any) -> Any:
            async def run(*arguments: Any, **named: Any) -> Any:
                return function(*arguments, **named)

            return function if inspect.iscoroutinefunction(function) else run

    app = App(__name__)

    @app.before_request
    def sync_before() -> None: ...

    @app.get("/hello")
    def hello() -> str:
        return "hello"

    seam, (request,) = watched(app, "/hello")
    assert layer(seam, "sync_before").adapts is None
    assert not request.in_another_thread("sync_before")


def test_no_layers_and_the_app_is_not_changed() -> None:
    app = quart.Quart(__name__)
    assert seam_of(app) is None
    assert not app.before_request_funcs  # a defaultdict, in which reading must not create anything


def test_routes_before_the_start() -> None:
    routes = routes_of(make())
    assert routes.paths == ("/hello", "/sync", "/refused", "/broken", "/outer/inner")
    assert routes.left_out == {"/static/<path:filename>": "path parameters"}
