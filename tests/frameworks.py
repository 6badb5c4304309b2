"""Run an app of a framework in-process, and watch which calls of its seam a request enters."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

import pytest

from pytest_mwbudget.asgi.callables import functions_called
from pytest_mwbudget.asgi.frameworks.seam import FrameworkLayer, Seam, seam_of
from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.asgi.lifespan import lifespan
from pytest_mwbudget.interpreter.tracers import profiled

ENDPOINT = "(endpoint)"


@dataclass
class Watched:
    """What a request answered, and what it entered: names of layers in order of entry, and the calls themselves."""

    status: int
    text: str
    names: list[str]
    calls: list[object]
    threads: dict[str, set[int]]

    def in_another_thread(self, name: str) -> bool:
        """Return whether a layer was entered in a thread that is not the event loop's."""
        return self.threads[name] != {threading.get_ident()}


@dataclass
class Watcher:
    """A profile function that notes the calls of a seam by code, and by first argument or cells."""

    seam: Seam
    found: list[tuple[str, object, int]] = field(default_factory=list)
    _calls: dict[CodeType, list[tuple[str, object]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        layers = [(name_of(layer.callee), call) for layer in self.seam.layers for call in layer.calls]
        for name, call in [*layers, *((ENDPOINT, call) for call in self.seam.endpoint)]:
            function = next(functions_called(call))
            self._calls.setdefault(function.__code__, []).append((name, call))

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            for name, call in self._calls.get(frame.f_code, ()):
                if is_call_of(frame, call):
                    self.found.append((name, call, threading.get_ident()))


def is_call_of(frame: FrameType, call: object) -> bool:
    code, values = frame.f_code, frame.f_locals
    if type(call) is FunctionType:
        cells = zip(code.co_freevars, call.__closure__ or (), strict=True)
        return all(values[name] is cell.cell_contents for name, cell in cells)
    instance = call.__self__ if type(call) is MethodType else call
    first = values.get(code.co_varnames[0])
    return (first if code.co_argcount else first[0]) is instance


def name_of(callee: object) -> str:
    """Return the name of a function, or of the class of any other object."""
    return callee.__code__.co_name if type(callee) is FunctionType else type(callee).__name__


def names(seam: Seam) -> list[str]:
    return [name_of(layer.callee) for layer in seam.layers]


def layer(seam: Seam, name: str) -> FrameworkLayer:
    (named,) = (layer for layer in seam.layers if name_of(layer.callee) == name)
    return named


async def started(app: Any, use: Callable[[httpx.AsyncClient], Awaitable[None]]) -> None:
    """Start an app, let `use` make requests, and shut the app down."""
    async with lifespan(app, timeout_s=10.0):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await use(client)


def watched(app: Any, *requests: str) -> tuple[Seam, list[Watched]]:
    """Return the seam of an app that has started, and what each request enters."""
    watched_requests: list[Watched] = []
    seams: list[Seam | None] = []

    async def use(client: httpx.AsyncClient) -> None:
        await client.get(requests[0])
        seam = seam_of(app)
        seams.append(seam)
        if seam is not None:
            watched_requests.extend([await watch(client, request, seam) for request in requests])

    asyncio.run(started(app, use))
    assert seams[0] is not None, "no seam was found"
    return seams[0], watched_requests


async def watch(client: httpx.AsyncClient, request: str, seam: Seam) -> Watched:
    """Make a request, `/path` or `METHOD /path`, and note what it enters in any thread."""
    watcher = Watcher(seam)
    method, _, path = request.rpartition(" ")
    with profiled(watcher) as every:
        if not every:
            pytest.skip("without the C extension, threads cannot be watched")
        response = await client.request(method or "GET", path)
    threads: dict[str, set[int]] = {}
    for name, _, thread in watcher.found:
        threads.setdefault(name, set()).add(thread)
    called = list({id(call): call for _, call, _ in watcher.found}.values())
    return Watched(response.status_code, response.text, list(threads), called, threads)


def assert_all_entered(seam: Seam, requests: list[Watched]) -> None:
    """Check that each call of each layer was entered by one of these requests."""
    entered = {id(call) for request in requests for call in request.calls}
    missing = [
        (name_of(layer.callee), call) for layer in seam.layers for call in layer.calls if id(call) not in entered
    ]
    assert missing == []
