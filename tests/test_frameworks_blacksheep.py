"""BlackSheep's middlewares: which are layers, and what a request really calls of the chain of its route."""

from __future__ import annotations

from typing import Any

from pytest_mwbudget.asgi.frameworks.seam import seam_of
from pytest_mwbudget.asgi.routes import routes_of

from .conftest import needs
from .frameworks import ENDPOINT, assert_all_entered, layer, names, watched

needs("blacksheep", "its middlewares are looked at", group="frameworks")

import blacksheep  # noqa: E402


async def function_middleware(request: Any, handler: Any) -> Any:
    return await handler(request)


class ObjectMiddleware:
    async def __call__(self, request: Any, handler: Any) -> Any:
        response = await handler(request)
        response.headers.add(b"x-object", b"1")
        return response


class Setting:
    value = "injected"


async def injected_middleware(request: Any, handler: Any, setting: Setting) -> Any:
    response = await handler(request)
    response.headers.add(b"x-setting", setting.value.encode())
    return response


async def check_only(setting: Setting) -> None:
    """Cannot continue the chain: BlackSheep does."""


async def refusing_middleware(request: Any, handler: Any) -> Any:
    return blacksheep.text("refused", 403) if request.url.path == b"/refused" else await handler(request)


class Methods:
    async def first(self, request: Any, handler: Any) -> Any:
        return await handler(request)

    async def second(self, request: Any, handler: Any) -> Any:
        return await handler(request)


def make() -> Any:
    app = blacksheep.Application(router=blacksheep.Router())
    app.services.add_instance(Setting())
    methods = Methods()
    app.use_cors(allow_methods="*", allow_origins="*")
    for middleware in (
        function_middleware,
        ObjectMiddleware(),
        injected_middleware,
        check_only,
        methods.first,
        methods.second,
        refusing_middleware,
    ):
        app.middlewares.append(middleware)

    @app.router.get("/hello")
    async def hello(request: Any) -> Any:
        return blacksheep.text("hello")

    @app.router.get("/bound/{name}")
    def bound(name: str) -> str:
        return f"hello {name}"

    @app.router.get("/broken")
    async def broken() -> None:
        raise ValueError("on purpose")

    return app


LAYERS = [
    "cors_middleware",
    "function_middleware",
    "ObjectMiddleware",
    "injected_middleware",
    "check_only",
    "Methods",
    "refusing_middleware",
]


def test_each_entry_is_a_layer_with_the_wrappers_of_all_routes() -> None:
    app = make()
    paths = ("/hello", "/bound/me", "/broken", "/refused", "/missing", "OPTIONS /hello")
    seam, requests = watched(app, *paths)
    hello, bound, broken, refused, missing, options = requests
    assert names(seam) == LAYERS
    assert [answer.status for answer in requests] == [200, 200, 500, 403, 404, 404]
    assert (hello.text, bound.text) == ("hello", "hello me")
    for request in (hello, bound, broken, missing, options):
        assert request.names == [*LAYERS, ENDPOINT]
    assert refused.names == LAYERS  # it matches no route, and a layer answers
    assert_all_entered(seam, requests)
    # One wrapper for each route: ours, that of CORS, and that of requests that match none.
    routes = 5
    assert [len(layer(seam, name).calls) for name in LAYERS] == [*[routes] * 5, 2 * routes, routes]
    assert [call for request in requests for call in request.calls if call in seam.endpoint]


def test_the_wrappers_are_nested() -> None:
    seam, _ = watched(make(), "/hello")
    outer, inner = seam.layers[0].calls, seam.layers[1].calls
    held = [cell.cell_contents for call in outer for cell in call.__closure__]  # type: ignore[attr-defined]
    assert all(any(call is content for content in held) for call in inner)


def test_each_mounted_app_has_its_own_layers() -> None:
    inner = make()
    outer = blacksheep.Application(router=blacksheep.Router())
    outer.middlewares.append(function_middleware)
    outer.mount_registry.auto_events = True
    outer.mount("/inner", inner)
    seam, (request,) = watched(inner, "/hello")
    assert names(seam) == LAYERS
    assert request.text == "hello"


def test_no_layers() -> None:
    assert seam_of(blacksheep.Application(router=blacksheep.Router())) is None


def test_routes_before_and_after_the_start() -> None:
    def paths(app: Any) -> list[tuple[str, ...]]:
        routes = routes_of(app)
        return [routes.paths, tuple(sorted(routes.left_out.items()))]

    app = make()

    @app.router.post("/write")
    async def write() -> None: ...

    @app.router.get("/colon/:name")
    async def colon(name: str) -> None: ...

    before = paths(app)
    watched(app, "/hello")
    assert before == [
        ("/hello", "/broken"),
        (*((path, "path parameters") for path in ("/*", "/bound/{name}", "/colon/:name")), ("/write", "no GET")),
    ]
    asked, left_out = paths(app)
    assert (set(asked), left_out) == (set(before[0]), before[1])
