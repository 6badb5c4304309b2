"""The clients with which tests call an ASGI app in-process, and where each of them hands its request to the app.

To add a client, add a function that yields the methods to replace, and its entry in CLIENTS. A client's module is
patched only while a recorder is in use, and only if something imports it.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.abc
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from importlib.machinery import ModuleSpec
from types import FunctionType, ModuleType
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from .django_client import HandlerApp
from .recorder import Recorder, during, streaming
from .signals import noting_signals

# What takes the place of a method, made from the method.
Wrapping: TypeAlias = Callable[[Callable[..., Any]], Callable[..., Any]]
# What httpx calls of a transport. If one calls the other, it does so on its own object, which is not recorded again.
TRANSPORT_METHODS = ("handle_request", "handle_async_request")
# The methods to replace: their classes, their names, and what takes their places.
Patches: TypeAlias = Iterator[tuple[type, str, Wrapping]]


# ---- one client -------------------------------------------------------------------------------------------------


def _httpx(module: ModuleType, recorder: Recorder) -> Patches:
    yield module.ASGITransport, "handle_async_request", _recording("app", module, recorder)
    yield module.AsyncClient, "send", _within(_streaming)


def _starlette(module: ModuleType, recorder: Recorder) -> Patches:
    yield from _transports("app", module, recorder)
    yield module.TestClient, "send", _within(functools.partial(_streaming_from_a_thread, recorder))


def _litestar(module: ModuleType, recorder: Recorder) -> Patches:
    yield from _transports("client.app", module, recorder)  # of both clients


def _litestar_sessions(module: ModuleType, recorder: Recorder) -> Patches:
    # The session of Litestar 2 has the client of its transport, whose app is recorded.
    if hasattr(module, "AsyncWebSocketTestSession"):
        yield module.AsyncWebSocketTestSession, "_run", _recording("app", module, recorder)


def _litestar_sync(module: ModuleType, recorder: Recorder) -> Patches:
    yield module.TestClient, "send", _within(functools.partial(_streaming_from_a_thread, recorder))


def _quart(module: ModuleType, recorder: Recorder) -> Patches:
    @contextmanager
    def entered(connection: Any) -> Iterator[Any]:
        app = connection.app
        connection.app = recorder.around(app)  # a connection makes one request, and returns itself
        try:
            yield connection
        finally:
            connection.app = app

    yield module.TestHTTPConnection, "__aenter__", _within(entered)
    yield module.TestWebsocketConnection, "__aenter__", _within(entered)


def _async_asgi_testclient(module: ModuleType, recorder: Recorder) -> Patches:
    def opening(original: Callable[..., Any]) -> Callable[..., Any]:
        async def open(self: Any, path: str, *, stream: bool = False, **options: Any) -> Any:  # noqa: A001
            # This client returns as soon as it has the response, while its task still runs the app.
            finished = asyncio.Event()
            app = recorder.around(self.application, finished.set)
            with _streaming(Instead(self, application=app), stream) as client:
                response = await original(client, path, stream=stream, **options)
            if not stream:
                await finished.wait()
            return response

        return open

    yield module.TestClient, "open", opening
    yield module.WebSocketSession, "connect", _recording("testclient.application", module, recorder)


def _django(module: ModuleType, recorder: Recorder) -> Patches:
    apps: dict[object, HandlerApp] = {}

    def asking(original: Callable[..., Any]) -> Callable[..., Any]:
        async def request(self: Any, **request: Any) -> Any:
            app = apps.setdefault(self.handler, HandlerApp(self.handler, module.FakePayload))
            return await app.asked(self, request, original, recorder)

        return request

    yield module.AsyncClient, "request", asking


# By the name of the module that has the classes.
CLIENTS: dict[str, Callable[[ModuleType, Recorder], Patches]] = {
    "httpx": _httpx,
    "httpx2": _httpx,
    "starlette.testclient": _starlette,
    "litestar.testing.transport": _litestar,
    "litestar.testing.websocket_test_session": _litestar_sessions,
    "litestar.testing.client.sync_client": _litestar_sync,
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


# ---- how methods are wrapped ------------------------------------------------------------------------------------


def _within(enter: Callable[..., AbstractContextManager[Any]]) -> Wrapping:
    """Run a method within `enter(self, **options)`, on the object that this yields.

    An async method stays async, because a test may look: `mock.patch` chooses its kind of mock by it.
    """

    def wrapping(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *arguments: Any, **options: Any) -> Any:
            with enter(self, **options) as instead:
                return original(instead, *arguments, **options)

        async def async_method(self: Any, *arguments: Any, **options: Any) -> Any:
            with enter(self, **options) as instead:
                return await original(instead, *arguments, **options)

        return async_method if inspect.iscoroutinefunction(original) else method

    return wrapping


def _recording(path: str, module: ModuleType, recorder: Recorder) -> Wrapping:
    """Run a method on an object whose app, an attribute of this dotted path, is recorded."""

    def recorded_in(holder: Any, name: str, *names: str) -> Instead:
        inner = getattr(holder, name)
        return Instead(holder, **{name: recorded_in(inner, *names) if names else recorder.around(inner)})

    def entered(holder: Any, **options: Any) -> AbstractContextManager[Any]:
        try:
            return nullcontext(recorded_in(holder, *path.split(".")))
        except AttributeError:  # a version of the client that has its app elsewhere
            recorder.note_unknown(module.__name__)
            return nullcontext(holder)

    return _within(entered)


def _transports(path: str, module: ModuleType, recorder: Recorder) -> Patches:
    """Record what the transports of a module hand to their apps. They have names of their own, and httpx's methods."""
    classes = [kind for kind in vars(module).values() if isinstance(kind, type) and kind.__module__ == module.__name__]
    methods = [(kind, name) for kind in classes for name in TRANSPORT_METHODS if name in vars(kind)]
    if not methods:
        raise AttributeError
    yield from ((owner, name, _recording(path, module, recorder)) for owner, name in methods)


@contextmanager
def _streaming(client: Any, stream: bool = False, **options: Any) -> Iterator[Any]:
    """Note whether the client streams the response."""
    with during(streaming, stream):
        yield client


@contextmanager
def _streaming_from_a_thread(recorder: Recorder, client: Any, **options: Any) -> Iterator[Any]:
    """Do the same for a client that runs the app in another thread and waits there until its end."""
    with _streaming(client, **options), noting_signals(recorder.interrupt):
        yield client


# ---- all clients ------------------------------------------------------------------------------------------------


@contextmanager
def recorded(recorder: Recorder) -> Iterator[None]:
    """Record the requests of all clients in the block, also of those that are imported in it."""
    with ExitStack() as undo:
        recording: list[object] = []

        def patch(owner: type, name: str, wrapping: Wrapping) -> None:
            current = vars(owner).get(name)
            if any(current is method for method in recording):  # httpx2.alias_httpx gives a module a second name
                return
            before = _before(current)
            if before is not current:
                _put(owner, name, before)
            original = getattr(owner, name)
            if not isinstance(original, FunctionType):  # a stub of the test's, which is called without an object
                return
            replaced: Any = functools.wraps(original)(wrapping(original))
            setattr(owner, name, replaced)
            recording.append(replaced)
            undo.callback(_restore, owner, name, replaced, before)

        def patch_module(name: str, module: ModuleType) -> None:
            try:
                for owner, method, wrapping in CLIENTS[name](module, recorder):
                    patch(owner, method, wrapping)
            except AttributeError:  # a version of the client that is built in another way
                recorder.note_unknown(name)

        for name in CLIENTS:
            if isinstance(module := sys.modules.get(name), ModuleType):  # a test may have put something else there
                patch_module(name, module)
        finder = _WhenImported(patch_module)
        sys.meta_path.insert(0, finder)
        undo.callback(sys.meta_path.remove, finder)
        try:
            yield
        finally:
            recorder.over = True  # a test may have kept a patched method


# Methods of ended recorders, with what they replaced: a test may put them back, another recorder stand on them.
_ended: WeakKeyDictionary[FunctionType, object] = WeakKeyDictionary()


def _restore(owner: type, name: str, replaced: FunctionType, before: object) -> None:
    _ended[replaced] = before
    if vars(owner).get(name) is replaced:  # else the test has put something else there
        _put(owner, name, _before(replaced))


def _before(method: object) -> object:
    """Return what was there before the recorders that have ended."""
    while type(method) is FunctionType and method in _ended:
        method = _ended[method]
    return method


def _put(owner: type, name: str, method: object) -> None:
    if method is None:
        delattr(owner, name)
    else:
        setattr(owner, name, method)


class _WhenImported(importlib.abc.MetaPathFinder):
    """Calls a function with the name and the module after each import of a module in CLIENTS."""

    def __init__(self, imported: Callable[[str, ModuleType], None]) -> None:
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
            self._follow(fullname, spec.loader)
        return spec

    def _follow(self, name: str, loader: Any) -> None:
        load = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            load(module)
            self.imported(name, module)

        loader.exec_module = exec_module
