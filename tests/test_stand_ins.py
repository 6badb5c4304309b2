"""Stand-ins delegate everything, and cannot be distinguished from their originals."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import functools
import gc
import inspect
import itertools
import types
import weakref
from collections.abc import Callable, Generator
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget.analysis.samples import BlankLayers
from pytest_mwbudget.counting.attribution import Charging, owner_count
from pytest_mwbudget.counting.backend import PythonCore, counting_backend
from pytest_mwbudget.interpreter import stand_ins
from pytest_mwbudget.interpreter.stand_ins import stand_in_for_awaitable, stand_in_for_callable
from pytest_mwbudget.profiling.attribution import OwnerMarkers
from pytest_mwbudget.timing.probes import Probes

from . import apps
from .apps import App, Endpoint, InATask, Noop, caller, discovered, hello, outer, respond, unchanged_code


def everywhere(app: App) -> list[str]:
    """Check that a measurement's requests all get the plain response body; return the names of the entered layers."""
    bodies: list[tuple[str, bytes]] = []

    async def main() -> list[str]:
        call = await caller(app)
        bodies.append(("plain", b"".join((await call()).body)))
        stack = await discovered(call)
        probes = Probes(stack)

        async def note(what: str, observer: Any) -> None:
            bodies.append((what, b"".join((await call(observer)).body)))

        with probes.installed(probes.probed):
            for index, count, wrapping in itertools.product(probes.probed, (1, 4), (False, True)):
                if wrapping and index not in probes.wrappable:
                    continue
                with probes.doubled(index, BlankLayers(count, wrapping)):
                    await note(f"null at {index}, {count} {wrapping}", probes.watch)
        for core in (counting_backend().core, PythonCore(), OwnerMarkers(owner_count(stack))):
            charging = Charging(stack, core, "asyncio")  # type: ignore[arg-type]
            if not isinstance(core, OwnerMarkers):
                core.start(owner_count(stack))
            try:
                with charging.placed():
                    await charging.request(lambda observer: note("charged", observer))
            finally:
                if not isinstance(core, OwnerMarkers):
                    core.stop()
        return [layer.name for _, layer in stack.layers if layer.entered]

    with unchanged_code():
        names = asyncio.run(main())
    assert {body for _, body in bodies} == {bodies[0][1]}, bodies
    return names


# ---- return values ----------------------------------------------------------------------------------------------


async def allowed(scope: Any, receive: Any, send: Any) -> bool:
    return scope["type"] == "http"


class Context:
    """An object with the signature of an ASGI app that returns a dict."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"path": scope["path"]}


class Guard(Noop):
    """A layer that calls two helpers with the signature of an ASGI app."""

    context = Context()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not await allowed(scope, receive, send):
            return
        assert await self.context(scope, receive, send) == {"path": "/"}
        await self.app(scope, receive, send)


class Returns(Noop):
    """A layer that returns the return value of the app inside it."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await self.app(scope, receive, send)


async def returns_something(scope: Any, receive: Any, send: Any) -> str:
    await respond(send)
    return "sent"


def test_what_is_asked_for_a_value_is_no_layer() -> None:
    assert everywhere(Noop(Guard(Noop(hello)))) == ["Noop#1", "Guard", "Noop#2"]


def test_a_layer_may_return_what_is_inside_it() -> None:
    class Checks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert await self.app(scope, receive, send) == "sent"

    assert everywhere(Checks(Returns(Returns(returns_something)))) == ["Checks", "Returns#1", "Returns#2"]
    assert everywhere(Checks(InATaskReturning(Returns(returns_something)))) == ["Checks", "InATaskReturning", "Returns"]


class InATaskReturning(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
        return await asyncio.create_task(self.app(scope, receive, send))


def test_a_layer_round_a_helper_is_one() -> None:
    class Asks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert await self.check(scope, receive, send) is True
            await self.app(scope, receive, send)

        check = Returns(allowed)

    assert everywhere(Asks(hello)) == ["Asks", "Returns"]


def test_what_sends_the_response_is_a_layer_whatever_it_returns() -> None:
    class Done(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> str:
            await self.app(scope, receive, send)
            return "done"

    assert everywhere(Noop(Done(InATask(Noop(returns_something))))) == ["Noop#1", "Done", "InATask", "Noop#2"]


def test_a_plain_function_that_returns_a_helpers_coroutine_is_a_helper() -> None:
    def ask(scope: Any, receive: Any, send: Any) -> Any:
        async def answer() -> int:
            await asyncio.sleep(0)
            return 3

        return answer()

    class Asks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert await ask(scope, receive, send) == 3
            await self.app(scope, receive, send)

    assert everywhere(Asks(hello)) == ["Asks"]


# ---- receive and send -------------------------------------------------------------------------------------------


class Sender:
    """A callable object with attributes that layers read and set."""

    def __init__(self, send: Any) -> None:
        self.send, self.started, self.marked = send, False, False

    async def __call__(self, message: Any) -> None:
        self.started = True
        await self.send(message)


class Giver(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        sender = Sender(send)

        async def receiving() -> Any:
            return await receive()

        receiving.note = "kept"  # type: ignore[attr-defined]
        await self.app(scope, receiving, sender)
        assert sender.marked
        assert receiving.answer == 42  # type: ignore[attr-defined]


class Taker(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert receive.note == "kept"
        receive.answer = 42
        assert isinstance(send, Sender)
        assert not send.started
        assert not hasattr(send, "nothing")
        await self.app(scope, receive, send)
        assert send.started
        send.marked = True


def test_attributes_of_receive_and_send_are_read_and_set() -> None:
    assert everywhere(Giver(Noop(Taker(hello)))) == ["Giver", "Noop", "Taker"]


def test_bound_methods_and_partials_show_what_they_are_made_of() -> None:
    class Holder(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            class Sending:
                async def send(self, message: Any) -> None:
                    await send(message)

            await self.app(scope, functools.partial(receive), Sending().send)

    class Looks(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            assert type(send.__self__).__name__ == "Sending"
            assert isinstance(receive, functools.partial)
            assert callable(receive.func)
            assert inspect.iscoroutinefunction(receive)
            assert inspect.iscoroutinefunction(send)
            await self.app(scope, receive, send)

    everywhere(Holder(Looks(hello)))


def test_more_arguments_and_other_names_come_through() -> None:
    class Extended(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            async def sending(event: Any, *, flush: bool = False) -> str:
                assert flush
                await send(event)
                return "flushed"

            async def receiving(timeout_s: float = 0.0) -> Any:
                assert timeout_s == 1.0
                return await receive()

            await self.app(scope, receiving, sending)

    async def endpoint(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive(timeout_s=1.0))["type"] == "http.request"
        assert await send(event={"type": "http.response.start", "status": 200}, flush=True) == "flushed"
        assert await send({"type": "http.response.body", "body": b"ok"}, flush=True) == "flushed"

    everywhere(Noop(Extended(Noop(endpoint))))


# ---- awaitables -------------------------------------------------------------------------------------------------


class Ticket:
    """An awaitable with an attribute that a layer reads."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.number = inner, 7

    def __await__(self) -> Any:
        return self.inner.__await__()


def returning(make: Callable[[Any], Any]) -> type[Noop]:
    class Plain(Noop):
        def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            return make(self.app(scope, receive, send))

    return Plain


class Waits(Noop):
    """A layer that calls `asyncio.wait`, which takes futures but no coroutines."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        done, _ = await asyncio.wait([self.app(scope, receive, send)])
        assert [future.exception() for future in done] == [None]


class ReadsTicket(Noop):
    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        ticket = self.app(scope, receive, send)
        assert (ticket.number, isinstance(ticket, Ticket)) == (7, True)
        await ticket


@types.coroutine
def by_generator(app: App, scope: Any, receive: Any, send: Any) -> Generator[Any, Any, Any]:
    return (yield from app(scope, receive, send))


def test_futures_and_awaitable_objects_are_what_they_were() -> None:
    app = Waits(returning(asyncio.ensure_future)(Noop(hello)))
    assert everywhere(app) == ["Waits", "Plain", "Noop"]
    assert everywhere(ReadsTicket(returning(Ticket)(Noop(hello)))) == ["ReadsTicket", "Plain", "Noop"]
    everywhere(Noop(functools.partial(by_generator, Noop(hello))))


def test_a_plain_function_runs_when_it_is_called() -> None:
    order: list[str] = []

    class Eager(Noop):
        def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            order.append("called")
            return self.app(scope, receive, send)

    class Calls(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            order.clear()
            coroutine = self.app(scope, receive, send)
            assert order == ["called"]
            await coroutine

    class RaisesAtOnce(Noop):
        def __call__(self, scope: Any, receive: Any, send: Any) -> Any:
            if scope["path"] == "/":
                raise LookupError
            return self.app(scope, receive, send)

    class Catches(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                coroutine = self.app(scope, receive, send)
            except LookupError:
                await respond(send, b"caught")
            else:
                await coroutine

    assert everywhere(Calls(Eager(Noop(Endpoint())))) == ["Calls", "Eager", "Noop"]
    everywhere(Catches(RaisesAtOnce(hello)))


def test_exceptions_and_cancellation_come_through() -> None:
    class Translates(Noop):
        async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
            try:
                async with asyncio.timeout(0.001):
                    await self.app(scope, receive, send)
            except TimeoutError:
                await respond(send, b"late")

    async def hangs(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.Event().wait()

    everywhere(Translates(Noop(outer(hangs))))


async def with_leading_wrapped(wrapped: App, scope: Any, receive: Any, send: Any) -> None:
    await wrapped(scope, receive, send)


def test_a_parameter_may_have_any_name() -> None:
    everywhere(Noop(functools.partial(with_leading_wrapped, Noop(hello))))


# ---- the stand-ins ----------------------------------------------------------------------------------------------


async def probe(*arguments: Any, **named: Any) -> Any:
    return arguments, named


def stand_in_for(original: Any, probe: Any) -> Any:
    return stand_in_for_callable(original, probe)[1]


def test_a_function_shares_its_attributes_with_its_stand_in() -> None:
    def original() -> None: ...

    first = stand_in_for(original, types.FunctionType(probe.__code__, {}))
    first.mark = 1  # type: ignore[attr-defined]
    assert vars(original) == {"mark": 1}


def test_a_bound_method_and_its_stand_in_are_bound_to_the_same() -> None:
    sender = Sender(None)
    stand_in = stand_in_for(sender.__call__, probe)
    assert inspect.ismethod(stand_in)
    assert stand_in.__self__ is sender
    assert asyncio.run(stand_in(1)) == ((sender, 1), {})
    assert stand_in_for_callable(sender.__call__, probe)[0] is Sender.__call__


def test_a_partial_and_its_stand_in_tell_the_same() -> None:
    original = functools.partial(probe, 1, two=2)
    first = stand_in_for(original, probe)
    for stand_in in (first, stand_in_for(first, probe)):
        assert isinstance(stand_in, functools.partial)
        assert (stand_in.func, stand_in.args, stand_in.keywords) == (probe, (1,), {"two": 2})
        assert stand_in == original
        assert hash(stand_in) == hash(original)
        assert repr(stand_in) == repr(original)
        assert asyncio.run(copy.copy(stand_in)(3)) == ((1, 3), {"two": 2})
        assert asyncio.run(stand_in(3, four=4)) == ((3,), {"four": 4})
        assert functools.partial(stand_in, 2).func is stand_in
    first.mark = 1
    assert vars(original) == vars(first) == {"mark": 1}
    assert functools.update_wrapper(lambda: None, first).mark == 1  # type: ignore[attr-defined]
    assert first.__doc__ == original.__doc__


@pytest.mark.parametrize("kind", [probe, functools.partial(probe), Sender(None), Sender(None).__call__], ids=type)
def test_a_stand_in_is_a_coroutine_function_if_its_original_is(kind: Any) -> None:
    stand_in = stand_in_for(kind, types.FunctionType(probe.__code__, {}))
    assert inspect.iscoroutinefunction(stand_in) is inspect.iscoroutinefunction(kind)
    assert inspect.iscoroutinefunction(stand_in.__call__) is inspect.iscoroutinefunction(kind.__call__)


def test_an_objects_call_is_bound_to_it() -> None:
    sender = Sender(None)
    stand_in = stand_in_for(sender, probe)
    assert inspect.ismethod(stand_in.__call__)
    assert stand_in.__call__.__self__ is sender
    assert asyncio.run(stand_in(1)) == ((sender, 1), {})
    assert stand_in.__doc__ == sender.__doc__


class Told:
    """An object whose class has a partial, which has no `__code__`, as its `__call__`."""

    __call__ = functools.partial(probe, 1)


def test_an_object_is_called_through_whatever_its_class_has() -> None:
    original = Told()
    called, stand_in = stand_in_for_callable(original, probe)
    assert called is original
    assert asyncio.run(stand_in(2)) == ((2,), {})


def test_a_copy_of_a_stand_in_is_one_of_its_object() -> None:
    sender = Sender([1])
    stand_in = stand_in_for(sender, probe)
    assert weakref.ref(stand_in)() is stand_in
    assert type(copy.copy(stand_in)) is Sender
    assert copy.copy(stand_in).send is sender.send
    assert copy.deepcopy(stand_in).send == [1]
    assert copy.deepcopy(stand_in).send is not sender.send


def test_an_object_and_its_stand_in_are_equal() -> None:
    sender = Sender(None)
    first, second = stand_in_for(sender, probe), stand_in_for(sender, probe)
    assert first == sender
    assert first == second
    assert hash(first) == hash(sender)
    assert repr(first) == repr(sender)
    del first.marked  # type: ignore[attr-defined]
    assert not hasattr(sender, "marked")
    assert asyncio.run(first(1, two=2)) == ((sender, 1), {"two": 2})


@pytest.mark.parametrize("answer", [None, True, {}])
def test_what_cannot_be_awaited_stays(answer: object) -> None:
    assert stand_in_for_awaitable(answer, lambda awaitable: pytest.fail("not reached")) is answer


def test_a_whole_measurement_of_an_app_with_helpers() -> None:
    measurement = apps.measured(Noop(Guard(Noop(hello))), schedule=apps.FAST_SCHEDULE)
    assert [layer.name for layer in measurement.layers] == ["Noop#1", "Guard", "Noop#2"]
    assert all(layer.us is not None for layer in measurement.layers)


def test_a_whole_measurement_of_a_fastapi_app_with_helpers() -> None:
    app = FastAPI(middleware=[Middleware(Noop), Middleware(Guard), Middleware(GZipMiddleware)])

    @app.get("/")
    async def index() -> dict[str, str]:
        return {"status": "ok"}

    measurement = apps.measured(app, schedule=apps.FAST_SCHEDULE)
    assert measurement.response.json() == {"status": "ok"}
    names = [layer.name for layer in measurement.layers]
    assert [name for name in names if name in ("Noop", "Guard", "GZipMiddleware")] == [
        "Noop",
        "Guard",
        "GZipMiddleware",
    ]
    assert not any("allowed" in name or "Context" in name for name in names)
    assert all(layer.us is not None and layer.us.high > 0 for layer in measurement.layers)


class Sized:
    """A callable with special methods, some of which are not plain functions."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.left: list[object] = []

    async def __call__(self, message: Any) -> None: ...

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, place: int) -> int:
        return range(self.size)[place]

    def __contains__(self, one: object) -> bool:
        return one == "there"

    def __lt__(self, other: Sized) -> bool:
        return self.size < other.size

    def __str__(self) -> str:
        return f"{self.size} long"

    def __enter__(self) -> int:
        return self.size

    def __exit__(self, *error: object) -> None:
        self.left.append(error)

    async def __aenter__(self) -> int:
        return self.size

    async def __aexit__(self, *error: object) -> None:
        self.left.append(error)

    __int__ = functools.partialmethod(__len__)
    __index__ = staticmethod(lambda: 7)
    __reversed__ = None


class Metered(type):
    def __len__(cls) -> int:
        return 1


class Unsized(metaclass=Metered):
    async def __call__(self, message: Any) -> None: ...


def test_a_stand_in_has_the_special_methods_of_its_object() -> None:
    sized = Sized(3)
    stand_in: Any = stand_in_for(sized, probe)

    async def entered() -> int:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(stand_in)
            number: int = await stack.enter_async_context(stand_in)
            return number

    assert len(stand_in) == 3
    assert list(stand_in) == [0, 1, 2]
    assert stand_in[-1] == 2
    assert "there" in stand_in
    assert 1 not in stand_in
    assert not stand_in_for(Sized(0), probe)
    assert str(stand_in) == f"{stand_in}" == "3 long"
    assert stand_in < Sized(4)
    assert stand_in < stand_in_for(Sized(4), probe)  # type: ignore[operator]
    assert (int(stand_in), range(9)[stand_in]) == (3, 7)
    assert asyncio.run(entered()) == 3
    assert len(sized.left) == 2
    with pytest.raises(TypeError, match="'Sized' object is not reversible"):
        reversed(stand_in)


def test_a_stand_in_has_no_special_method_that_its_object_has_not() -> None:
    for stand_in in (stand_in_for(Unsized(), probe), stand_in_for(functools.partial(probe), probe)):
        assert stand_in
        with pytest.raises(TypeError, match="has no len"):
            len(stand_in)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="not iterable"):
            iter(stand_in)  # type: ignore[call-overload]


def test_an_awaitable_and_its_stand_in_are_called_and_measured_alike() -> None:
    class Answer:
        def __await__(self) -> Generator[Any, Any, str]:
            yield from asyncio.sleep(0).__await__()
            return "answer"

        def __len__(self) -> int:
            return 6

    async def step(awaitable: Any) -> str:
        return f"stepped {await awaitable}"

    async def main() -> str:
        stand_in = stand_in_for_awaitable(Answer(), step)
        assert len(stand_in) == 6
        assert not callable(stand_in)
        answer: str = await stand_in
        return answer

    assert asyncio.run(main()) == "stepped answer"


def test_a_type_that_is_gone_leaves_no_stand_in_behind() -> None:
    class Passing(Sized): ...

    stand_in_for(Passing(1), probe)
    gone = weakref.ref(Passing)
    del Passing
    gc.collect()
    assert gone() is None
    assert not any(kind.__name__ == "Passing" for kind in stand_ins._types.values())
