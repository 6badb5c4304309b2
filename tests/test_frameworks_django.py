"""Django's middlewares: which are layers, what a request really calls of the chain, and who needs its adapters."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import pytest

from pytest_mwbudget.asgi.frameworks.seam import Seam, seam_of
from pytest_mwbudget.asgi.routes import routes_of
from pytest_mwbudget.errors import AppError

from .conftest import needs
from .frameworks import ENDPOINT, Watched, assert_all_entered, layer, names, watched

needs("django", "its middlewares are looked at", group="frameworks")

import django  # noqa: E402
from asgiref.sync import AsyncToSync, SyncToAsync, iscoroutinefunction, markcoroutinefunction  # noqa: E402
from django.conf import settings  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.template.response import SimpleTemplateResponse  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import include, path, re_path  # noqa: E402
from django.utils.decorators import sync_and_async_middleware  # noqa: E402
from django.utils.deprecation import MiddlewareMixin  # noqa: E402
from django.views import View  # noqa: E402

DEFAULT = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]


@pytest.fixture(autouse=True, scope="module")
def configured() -> None:
    """Configure Django once for the process."""
    configure()


def configure() -> None:
    if not settings.configured:
        settings.configure(
            ALLOWED_HOSTS=["*"],
            DATABASES={},
            ROOT_URLCONF=__name__,
            SECRET_KEY="secret",
            SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies",
            TEMPLATES=[{"BACKEND": "django.template.backends.django.DjangoTemplates"}],
        )
        django.setup()


# ---- views ----------------------------------------------------------------------------------------------------------


async def hello(request: Any) -> Any:
    return HttpResponse("hello")


def sync_hello(request: Any) -> Any:
    return HttpResponse(f"{threading.get_ident()}")


async def broken(request: Any) -> Any:
    raise ValueError("on purpose")


async def template(request: Any) -> Any:
    class Response(SimpleTemplateResponse):
        @property
        def rendered_content(self) -> str:
            return "rendered"

    return Response("unused")


class PostOnly(View):
    def post(self, request: Any) -> Any: ...


urlpatterns = [
    path("hello", hello),
    path("sync", sync_hello),
    path("refused", hello),
    path("broken", broken),
    path("template", template),
    path("post", PostOnly.as_view()),
    path("items/<int:number>", hello),
    path("inner/", include([path("", hello), path("more", hello), re_path("^plain/$", hello), re_path("a+", hello)])),
]


# ---- middlewares ----------------------------------------------------------------------------------------------------


class MixedIn(MiddlewareMixin):
    def process_request(self, request: Any) -> Any:
        return HttpResponse("refused", status=403) if request.path == "/refused" else None

    def process_response(self, request: Any, response: Any) -> Any:
        return response


class SyncOnly:
    """As a team writes it after the documentation: without a flag it can only be sync."""

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


class OtherSyncOnly(SyncOnly):
    pass


class AsyncOnly:
    sync_capable = False
    async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        markcoroutinefunction(self)

    async def __call__(self, request: Any) -> Any:
        return await self.get_response(request)


class Both:
    sync_capable = async_capable = True

    def __init__(self, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    def __call__(self, request: Any) -> Any:
        return self.get_response(request)


class WithMethods(AsyncOnly):
    """Has each method that Django calls inside the endpoint, in both modes."""

    def process_view(self, request: Any, view: Any, arguments: Any, named: Any) -> None: ...

    async def process_template_response(self, request: Any, response: Any) -> Any:
        return response

    def process_exception(self, request: Any, error: Exception) -> Any:
        return HttpResponse("handled", status=418)


class AsyncMethods(AsyncOnly):
    async def process_view(self, request: Any, view: Any, arguments: Any, named: Any) -> None: ...

    async def process_exception(self, request: Any, error: Exception) -> None: ...


class Keeper:
    """Keeps what is inside it two objects away."""

    sync_capable = async_capable = True

    class Next:
        __slots__ = ("call",)

        def __init__(self, get_response: Any) -> None:
            self.call = lambda request: get_response(request)

    def __init__(self, get_response: Any) -> None:
        self._inside = self.Next(get_response)
        markcoroutinefunction(self)

    async def __call__(self, request: Any) -> Any:
        return await self._inside.call(request)


@sync_and_async_middleware
def factory(get_response: Any) -> Any:
    if inspect.iscoroutinefunction(get_response):

        async def asynchronous(request: Any) -> Any:
            return await get_response(request)

        return asynchronous

    def synchronous(request: Any) -> Any:
        return get_response(request)

    return synchronous


def sync_factory(get_response: Any) -> Any:
    def only_synchronous(request: Any) -> Any:
        return get_response(request)

    return only_synchronous


@sync_and_async_middleware
def switched_off(get_response: Any) -> Any:
    return get_response


def partially(get_response: Any) -> Any:
    return functools.partial(_handle, get_response)


async def _handle(get_response: Any, request: Any) -> Any:
    return await get_response(request)


partially.async_capable, partially.sync_capable = True, False  # type: ignore[attr-defined]


class InDict(AsyncOnly):
    other: Any = None

    def __init__(self, get_response: Any) -> None:
        super().__init__(self.other)
        self.inside = {"next": get_response}

    async def __call__(self, request: Any) -> Any:
        return await self.inside["next"](request)


class Hiding(AsyncOnly):
    """Keeps what is inside it where nobody looks."""

    inside: ClassVar[list[Any]] = []

    def __init__(self, get_response: Any) -> None:
        super().__init__(None)
        self.inside[:] = [get_response]

    async def __call__(self, request: Any) -> Any:
        return await self.inside[0](request)


# ---- tests ----------------------------------------------------------------------------------------------------------


@contextmanager
def handler(*middlewares: Any) -> Iterator[Any]:
    entries = [
        middleware if isinstance(middleware, str) else f"{__name__}.{middleware.__name__}" for middleware in middlewares
    ]
    with override_settings(MIDDLEWARE=entries, ROOT_URLCONF=__name__):
        yield ASGIHandler()


def requested(*middlewares: Any, paths: tuple[str, ...] = ("/hello",)) -> tuple[Seam, list[Watched]]:
    with handler(*middlewares) as app:
        return watched(app, *paths)


def adapters(seam: Seam, name: str) -> list[type]:
    return [type(call) for call in layer(seam, name).calls if type(call) in (SyncToAsync, AsyncToSync)]


def test_the_middlewares_of_a_new_project() -> None:
    seam, requests = requested(*DEFAULT, paths=("/hello", "/sync", "/missing"))
    expected = [name.rpartition(".")[2] for name in DEFAULT]
    hello, sync, missing = requests
    assert missing.names == hello.names
    assert names(seam) == expected
    assert [request.status for request in requests] == [200, 200, 404]
    assert hello.names == sync.names == [*expected, ENDPOINT]
    assert_all_entered(seam, requests)
    assert not any(hello.in_another_thread(name) for name in (*expected[:3], expected[4], ENDPOINT))
    assert hello.in_another_thread("CsrfViewMiddleware") is False  # its adapter is entered in the loop's thread
    assert adapters(seam, "CsrfViewMiddleware") == [SyncToAsync]
    assert layer(seam, "SessionMiddleware").adapts == (
        "its process_request and process_response are sync, so Django runs each of them in a thread for each request"
    )
    assert layer(seam, "CsrfViewMiddleware").adapts == (
        "its process_request, process_response and process_view are sync,"
        " so Django runs each of them in a thread for each request"
    )
    assert layer(seam, "XFrameOptionsMiddleware").adapts == (
        "its process_response is sync, so Django runs it in a thread for each request"
    )


def test_a_chain_that_is_async_throughout() -> None:
    entries = (AsyncOnly, Both, MixedIn, factory, Keeper, WithMethods)
    seam, requests = requested(*entries, paths=("/hello", "/refused", "/broken", "/template"))
    hello, refused, broken, template = requests
    expected = ["AsyncOnly", "Both", "MixedIn", "asynchronous", "Keeper", "WithMethods"]
    assert names(seam) == expected
    assert [request.status for request in requests] == [200, 403, 418, 200]
    assert template.text == "rendered"
    assert hello.names == broken.names == template.names == [*expected, ENDPOINT]
    assert refused.names == expected[:3]
    assert_all_entered(seam, requests)
    # Its link, and its three methods: the exception's is called in a thread, as it is.
    assert [type(call).__name__ for call in layer(seam, "WithMethods").calls] == [
        *("function", "SyncToAsync", "method", "method")
    ]
    assert {name: layer(seam, name).adapts for name in ("AsyncOnly", "Both", "asynchronous", "Keeper")} == (
        dict.fromkeys(("AsyncOnly", "Both", "asynchronous", "Keeper"))
    )
    assert layer(seam, "WithMethods").adapts == (
        "its process_view is sync, so Django runs it in a thread for each request"
    )


def test_async_methods_of_a_middleware() -> None:
    seam, requests = requested(AsyncMethods, paths=("/hello", "/broken"))
    assert_all_entered(seam, requests)
    assert [type(call).__name__ for call in layer(seam, "AsyncMethods").calls] == ["function", "method", "AsyncToSync"]
    assert layer(seam, "AsyncMethods").adapts is None


def test_a_sync_middleware_is_charged_the_way_to_the_thread_and_back() -> None:
    seam, (hello,) = requested(MixedIn, Both, SyncOnly, factory)
    assert names(seam) == ["MixedIn", "Both", "SyncOnly", "asynchronous"]
    assert hello.names == ["SyncOnly", "MixedIn", "Both", "asynchronous", ENDPOINT]  # its adapter comes first
    assert_all_entered(seam, [hello])
    assert adapters(seam, "SyncOnly") == [SyncToAsync, AsyncToSync]
    assert layer(seam, "SyncOnly").adapts == (
        "it is sync only, so Django hands each request to a thread before MixedIn and back to the event loop inside it"
    )
    assert [layer(seam, name).adapts for name in ("MixedIn", "Both", "asynchronous")] == [None] * 3
    assert hello.in_another_thread("MixedIn")
    assert hello.in_another_thread("Both")
    assert not hello.in_another_thread("asynchronous")
    assert not hello.in_another_thread(ENDPOINT)


def test_of_several_sync_middlewares_the_innermost_is_charged() -> None:
    seam, (hello,) = requested(SyncOnly, OtherSyncOnly, Both)
    assert hello.status == 200
    assert adapters(seam, "SyncOnly") == []
    assert adapters(seam, "OtherSyncOnly") == [SyncToAsync, AsyncToSync]
    assert layer(seam, "OtherSyncOnly").adapts == (
        "it is sync only, so Django hands each request to a thread before SyncOnly and back to the event loop inside it"
    )
    assert layer(seam, "SyncOnly").adapts is None


def test_each_run_of_sync_middlewares_has_its_own() -> None:
    seam, (hello,) = requested(SyncOnly, AsyncOnly, sync_factory)
    assert names(seam) == ["SyncOnly", "AsyncOnly", "only_synchronous"]
    assert hello.status == 200
    assert_all_entered(seam, [hello])
    assert adapters(seam, "SyncOnly") == adapters(seam, "only_synchronous") == [SyncToAsync, AsyncToSync]
    why = "it is sync only, so Django hands each request to a thread before it and back to the event loop inside it"
    assert layer(seam, "SyncOnly").adapts == layer(seam, "only_synchronous").adapts == why


def test_the_name_of_a_factory_is_that_of_its_entry() -> None:
    seam, _ = requested(Both, factory, sync_factory)
    assert layer(seam, "only_synchronous").name is None  # the usual name is that of the maker
    adapts = layer(seam, "only_synchronous").adapts
    assert adapts is not None
    assert "before Both" in adapts


def test_an_entry_that_returns_what_it_was_given_is_no_layer() -> None:
    seam, requests = requested(AsyncOnly, switched_off, Both)
    assert names(seam) == ["AsyncOnly", "Both"]
    assert_all_entered(seam, requests)


def test_a_chain_that_is_broken_off_gives_fewer_layers() -> None:
    seam, requests = requested(AsyncOnly, Hiding, Both)
    # What the second one does cannot be told from what is inside it.
    assert names(seam) == ["AsyncOnly"]
    assert seam.unread == "Hiding"
    assert requests[0].names == ["AsyncOnly", ENDPOINT]
    (call,) = seam.endpoint
    assert type(call.__wrapped__) is Hiding  # type: ignore[attr-defined]


def test_the_chain_of_another_handler_is_not_followed() -> None:
    with handler(AsyncOnly) as other:
        InDict.other = other
        try:
            seam, _ = requested(InDict, Both)
        finally:
            InDict.other = None
    assert names(seam) == ["InDict", "Both"]
    assert seam.unread is None


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_a_process_view_of_the_class(kind: Any) -> None:
    async def process_view(*arguments: Any) -> None: ...

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AsyncOnly, "process_view", kind(process_view), raising=False)
        seam, requests = requested(AsyncOnly, Both)
    assert names(seam) == ["AsyncOnly", "Both"]
    assert len(layer(seam, "AsyncOnly").calls) == 2
    assert layer(seam, "AsyncOnly").calls[1] in requests[0].calls


def test_a_link_that_is_held_by_a_partial_or_a_dict() -> None:
    seam, requests = requested(AsyncOnly, partially, InDict, Both)
    assert names(seam) == ["AsyncOnly", "_handle", "InDict", "Both"]
    assert seam.unread is None
    assert_all_entered(seam, requests)


def test_the_handler_of_static_files_has_no_layers_of_its_own() -> None:
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

    with handler(AsyncOnly) as inside, override_settings(STATIC_URL="/static/"):
        app = ASGIStaticFilesHandler(inside)
        assert seam_of(app) is None  # it has no middlewares; the handler inside it has
        seam, requests = watched(inside, "/hello")
        assert names(seam) == ["AsyncOnly"]
        assert requests[0].status == 200


def test_no_layers() -> None:
    with handler() as app:
        assert seam_of(app) is None


def test_routes_of_the_project() -> None:
    from django.contrib.staticfiles.handlers import ASGIStaticFilesHandler

    class ByProtocol:
        """As in channels."""

        def __init__(self, app: Any) -> None:
            self.application_mapping = {"websocket": None, "http": app}

    with handler(AsyncOnly) as app, override_settings(STATIC_URL="/static/"):
        routes = routes_of(app)
        assert routes_of(ByProtocol(ASGIStaticFilesHandler(app))) == routes
    assert routes.paths == (
        *("/hello", "/sync", "/refused", "/broken", "/template"),
        *("/inner/", "/inner/more", "/inner/plain/"),
    )
    assert routes.left_out == {
        "/post": "no GET",
        "/items/<int:number>": "path parameters",
        "/inner/a+": "a regular expression",
    }


def test_a_urlconf_that_cannot_be_imported() -> None:
    with (
        handler(AsyncOnly) as app,
        override_settings(ROOT_URLCONF="a.module.that.is.missing"),
        pytest.raises(AppError, match=r"URLconf of the project cannot be read: ModuleNotFoundError: .*; correct it"),
    ):
        routes_of(app)
