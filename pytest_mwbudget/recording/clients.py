"""The clients with which tests call an ASGI app in-process, and where each of them hands its request to the app.

To add a client, add a function that patches its module, and its entry in CLIENTS. A client's module is patched only
while a recorder is in use, and only if something imports it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.util
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, TypeAlias

from .django_client import HandlerApp
from .recorder import Recorder, streaming
from .signals import noting_signals

# Replaces a method of a class by a function that takes the original method.
Patch: TypeAlias = Callable[[type, str, Callable[[Callable[..., Any]], Callable[..., Any]]], None]


# ---- one client -------------------------------------------------------------------------------------------------


def _httpx(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    def handle(original: Callable[..., Any]) -> Callable[..., Any]:
        async def handle_async_request(self: Any, request: Any) -> Any:
            return await original(Instead(self, app=recorder.around(self.app)), request)

        return handle_async_request

    patch(module.ASGITransport, "handle_async_request", handle)
    patch(module.AsyncClient, "send", _noting_streams_async)


def _starlette(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    def handle(original: Callable[..., Any]) -> Callable[..., Any]:
        def handle_request(self: Any, request: Any) -> Any:
            return original(Instead(self, app=recorder.around(self.app)), request)

        return handle_request

    patch(module._TestClientTransport, "handle_request", handle)
    patch(module.TestClient, "send", functools.partial(_noting_streams, recorder=recorder))


def _litestar(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    def handle(original: Callable[..., Any]) -> Callable[..., Any]:
        def handle_request(self: Any, request: Any) -> Any:
            client = Instead(self.client, app=recorder.around(self.client.app))
            return original(Instead(self, client=client), request)

        return handle_request

    patch(module.TestClientTransport, "handle_request", handle)


def _litestar_client(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    patch(module.TestClient, "send", functools.partial(_noting_streams, recorder=recorder))


def _quart(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    def enter(original: Callable[..., Any]) -> Callable[..., Any]:
        async def __aenter__(self: Any) -> Any:  # noqa: N807 - the method's own name
            self.app = recorder.around(self.app)  # a connection makes one request
            return await original(self)

        return __aenter__

    patch(module.TestHTTPConnection, "__aenter__", enter)


def _async_asgi_testclient(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    def opening(original: Callable[..., Any]) -> Callable[..., Any]:
        async def open(self: Any, path: str, *, stream: bool = False, **options: Any) -> Any:  # noqa: A001
            # This client returns as soon as it has the response, while its task still runs the app.
            finished = asyncio.Event()
            app = recorder.around(self.application, finished.set)
            with _streamed(stream):
                response = await original(Instead(self, application=app), path, stream=stream, **options)
            if not stream:
                await finished.wait()
            return response

        return open

    patch(module.TestClient, "open", opening)


def _django(module: ModuleType, patch: Patch, recorder: Recorder) -> None:
    apps: dict[object, HandlerApp] = {}

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        async def request(self: Any, **request: Any) -> Any:
            app = apps.setdefault(self.handler, HandlerApp(self.handler, module.FakePayload))
            return await app.asked(self, request, original, recorder)

        return request

    patch(module.AsyncClient, "request", asking)


# By the name of the module that has the classes.
CLIENTS: dict[str, Callable[[ModuleType, Patch, Recorder], None]] = {
    "httpx": _httpx,
    "httpx2": _httpx,
    "starlette.testclient": _starlette,
    "litestar.testing.transport": _litestar,
    "litestar.testing.client.sync_client": _litestar_client,
    "quart.testing.connections": _quart,
    "async_asgi_testclient.testing": _async_asgi_testclient,
    "django.test.client": _django,
}


class Instead:
    """Stands for an object, with other values of some attributes."""

    def __init__(self, stands_for: object, **values: object) -> None:
        object.__setattr__(self, "_stands_for", stands_for)
        self.__dict__.update(values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stands_for, name)

    def __setattr__(self, name: str, value: object) -> None:
        setattr(self._stands_for, name, value)


# ---- streams -------------------------------------------------------------------------------------


@contextmanager
def _streamed(stream: bool) -> Iterator[None]:
    token = streaming.set(stream)
    try:
        yield
    finally:
        streaming.reset(token)


def _noting_streams(original: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        # The client runs the app in another thread and waits there until its end.
        with _streamed(stream), noting_signals(recorder.interrupt):
            return original(self, request, stream=stream, **options)

    return send


def _noting_streams_async(original: Callable[..., Any]) -> Callable[..., Any]:
    async def send(self: Any, request: Any, *, stream: bool = False, **options: Any) -> Any:
        with _streamed(stream):
            return await original(self, request, stream=stream, **options)

    return send


# ---- all clients ------------------------------------------------------------------------------------------------


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Record the requests of all clients in the block, also of those that are imported in it."""
    with ExitStack() as undo:

        def patch(owner: type, name: str, wrapping: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
            original = getattr(owner, name)
            before = vars(owner).get(name)
            replaced = functools.wraps(original)(wrapping(original))
            setattr(owner, name, replaced)
            undo.callback(_restore, owner, name, replaced, before)

        def patch_module(module: ModuleType) -> None:
            try:
                CLIENTS[module.__name__](module, patch, recorder)
            except AttributeError:  # a version of the client that is built in another way
                recorder.unknown.append(module.__name__)

        for name in CLIENTS:
            if name in sys.modules:
                patch_module(sys.modules[name])
        finder = _WhenImported(patch_module)
        sys.meta_path.insert(0, finder)
        undo.callback(sys.meta_path.remove, finder)
        try:
            yield
        finally:
            recorder.over = True  # a test may have kept a patched method


def _restore(owner: type, name: str, replaced: object, before: object) -> None:
    if vars(owner).get(name) is not replaced:  # the test has put something else there
        return
    if before is None:
        delattr(owner, name)
    else:
        setattr(owner, name, before)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls a function with each module of CLIENTS after its import."""

    def __init__(self, imported: Callable[[ModuleType], None]) -> None:
        self.imported = imported
        self.looking: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Let the other finders find the module, and follow its loading."""
        if fullname not in CLIENTS or fullname in self.looking:
            return None
        self.looking.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.looking.discard(fullname)
        if spec is not None and spec.loader is not None:
            self._follow(spec.loader)
        return spec

    def _follow(self, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            self.imported(module)

        loader.exec_module = exec_module
