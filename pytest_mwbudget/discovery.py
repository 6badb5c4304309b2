"""Find the layers of a stack by watching which ASGI callables requests go through.

No framework is imported and no attribute name is guessed. A profile function sees every Python call of two requests;
what was called with (an HTTP scope, a callable, a callable) as its last three arguments is an ASGI callable. Those
that are the same object in both requests are the stack; what differs from request to request (a response, a
responder, an exception wrapper) belongs to the layer that made it.
"""

from __future__ import annotations

import functools
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import CodeType, CoroutineType, FrameType, FunctionType, MemberDescriptorType, MethodType
from typing import Any

from . import loops
from .exchange import KIND, Function
from .model import Kind, Layer

# Put into the scope of a traced request: a request that the app itself makes to another app has a scope without it.
TRACE_KEY = "pytest_mwbudget.trace"

_MISSING = object()


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One ASGI callable of the stack, in the order in which requests first enter it.

    `function` is the Python function whose call enters it, None when it cannot be told from others that share its
    code. `leads` are the arguments before the scope: the instance for a class, the bound arguments for a partial,
    nothing for a plain function. `parent` is the index of the entry that calls it. `own_task` says that it runs in
    another task than its parent, which therefore waits for it; `same_send` that it got the `send` that its parent got.
    """

    callee: object
    function: Function | None
    leads: tuple[object, ...]
    parent: int | None
    own_task: bool
    same_send: bool
    kind: Kind


@dataclass(frozen=True, slots=True)
class Stack:
    """What the traced request went through.

    `entries` are in order of entry. `endpoint` is the index of the entry with which the endpoint begins: everything
    from there on is inside the innermost layer; None when a layer answered by itself. `outside` says that entry 0 is
    the app object, not a layer. `layers` are the rows to show, by the index of their entry, None for a layer that
    stands further in but was not entered. `tasks` says that more than one task took part, `displaced` that a profiler
    of the app ran, so that calls may not have been seen.
    """

    entries: tuple[Entry, ...]
    endpoint: int | None
    outside: bool
    layers: tuple[tuple[int | None, Layer], ...]
    tasks: bool
    displaced: bool

    @property
    def probeable(self) -> tuple[int, ...]:
        """The entries at whose boundary a probe can stand, down to the endpoint's."""
        last = len(self.entries) if self.endpoint is None else self.endpoint + 1
        return tuple(i for i in range(last) if self.entries[i].function is not None)


@dataclass(slots=True, eq=False)
class _Call:
    """An ASGI call that was seen, with its frame kept alive so that nothing it holds changes its identity."""

    frame: FrameType
    leads: tuple[object, ...]
    send: object
    parent: _Call | None
    task: object
    callee: object = None
    function: Function | None = None
    # Whether it gave its caller something else than what is awaited: then it only has the parameters of an ASGI app.
    helper: bool = False

    @property
    def lead(self) -> object:
        """The argument right before the scope, None when there is none."""
        return self.leads[-1] if self.leads else None

    @property
    def identity(self) -> tuple[int, ...]:
        """Equal for two calls of the same callable; valid while both frames are alive."""
        entered = self.frame.f_code if self.function is None else self.function
        return (id(entered), *map(id, self.leads))


_current: ContextVar[_Call | None] = ContextVar("pytest_mwbudget_call", default=None)


# ---- tracing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trace:
    """The ASGI calls of one request, in order."""

    calls: list[_Call] = field(default_factory=list)
    tasks: set[object] = field(default_factory=set)
    _names: dict[CodeType, tuple[str, ...] | None] = field(default_factory=dict)
    _of_frame: dict[FrameType, _Call] = field(default_factory=dict)
    # The frame of a coroutine that an ASGI call returned without having run it, and that call.
    _made_by: dict[FrameType, _Call] = field(default_factory=dict)
    # The frames outside the request.
    _harness: set[FrameType] = field(default_factory=set)
    # Whether something else took the place of this profile function, so that calls may be missing.
    displaced: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calls of this thread; another profiler is put back afterwards."""
        self._harness = set(_stack(sys._getframe()))
        previous = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            self.displaced = sys.getprofile() != self._profile
            sys.setprofile(previous if callable(previous) else None)
            for call in self.calls:
                call.function = _function_of(call.frame)
            self._harness.clear()

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            self._called(frame)
        elif event == "return" and frame in self._of_frame:
            self._returned(frame, arg)

    def _returned(self, frame: FrameType, answer: object) -> None:
        if type(answer) is CoroutineType and answer.cr_frame:
            # A plain function that returned a coroutine to be awaited: what happens in it is its inside.
            self._made_by[answer.cr_frame] = self._of_frame[frame]
        elif not frame.f_code.co_flags & KIND and not inspect.isawaitable(answer):
            self._of_frame[frame].helper = True

    def _called(self, frame: FrameType) -> None:
        names = self._candidate(frame.f_code)
        # A coroutine's frame is "called" again at every resumption; only its first call counts.
        if names is None or frame in self._of_frame or frame in self._harness:
            return
        values = frame.f_locals
        arguments = [values.get(name, _MISSING) for name in names]
        if frame.f_code.co_flags & inspect.CO_VARARGS:
            arguments += values.get(
                frame.f_code.co_varnames[frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount], ()
            )
        if _is_asgi_call(arguments):
            call = _Call(frame, tuple(arguments[:-3]), arguments[-1], self._calling(frame), _task())
            _current.set(call)
            self.calls.append(call)
            self.tasks.add(call.task)
            self._of_frame[frame] = call

    def _candidate(self, code: CodeType) -> tuple[str, ...] | None:
        """The positional parameters of a function that could take (scope, receive, send), else None."""
        if code not in self._names:
            count = code.co_argcount
            enough = count >= 3 or code.co_flags & inspect.CO_VARARGS
            self._names[code] = code.co_varnames[:count] if enough else None
        return self._names[code]

    def _calling(self, frame: FrameType) -> _Call | None:
        """The ASGI call inside which `frame` runs: on its own stack, or else where its task was made."""
        if frame in self._made_by:
            return self._made_by[frame]
        for outer in _stack(frame.f_back):
            found = self._of_frame.get(outer) or self._made_by.get(outer)
            if found is not None:
                return found
        inherited = _current.get()
        return inherited if inherited in self.calls else None


def _is_asgi_call(arguments: Sequence[object]) -> bool:
    if len(arguments) < 3:
        return False
    scope, receive, send = arguments[-3:]
    return isinstance(scope, dict) and TRACE_KEY in scope and callable(receive) and callable(send)


def _stack(frame: FrameType | None) -> Iterator[FrameType]:
    """The frame and those that called it."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _task() -> object:
    try:
        return loops.current().task()
    except RuntimeError:
        return None


def _function_of(frame: FrameType) -> Function | None:
    """The function whose call `frame` was: a finished frame holds it. None while it still runs."""
    held = [
        value for value in gc.get_referents(frame) if type(value) is FunctionType and value.__code__ is frame.f_code
    ]
    # It may also be among its own arguments; but then another one of the same code may be there, too.
    return held[0] if len(set(map(id, held))) == 1 else None


# ---- from calls to a stack --------------------------------------------------------------------------------------


def stack_of(first: Trace, second: Trace) -> Stack:
    """The stack that both traced requests went through."""
    before = {call.identity for call in _layer_calls(first.calls)}
    lasting: dict[tuple[int, ...], int] = {}
    index_of_call: dict[int, int] = {}
    entries: list[Entry] = []
    for call in _layer_calls(second.calls):
        if call.identity not in before:
            continue
        if call.identity in lasting:
            index_of_call[id(call)] = lasting[call.identity]
            continue
        parent = _lasting_parent(call, index_of_call)
        outer = None if parent is None else _call_at(parent, index_of_call, second.calls)
        own_task = outer is not None and call.task is not outer.task
        same_send = outer is not None and call.send is outer.send
        lasting[call.identity] = index_of_call[id(call)] = len(entries)
        # An app that is entered again inside its own layers stands between them and what it leads to.
        kind: Kind = "routing" if _is_entered_again(call.callee, entries) else _kind(call.callee)
        entries.append(Entry(call.callee, call.function, call.leads, parent, own_task, same_send, kind))
    tasks = len(second.tasks) > 1 or any(entry.own_task for entry in entries)
    return _arranged(entries, tasks=tasks, displaced=first.displaced or second.displaced)


def _layer_calls(calls: Iterable[_Call]) -> list[_Call]:
    """The calls that enter an ASGI callable, named; without what an object calls of itself, and without responses."""
    kept: list[_Call] = []
    for call in calls:
        own = _is_own_inside(call)
        method = _method_name(call.lead, call.frame.f_code)
        if own or method is not None:
            call.callee = call.lead
        else:
            call.callee = call.frame.f_code if call.function is None else call.function
        if not (call.helper or own or _is_routers_way(call, method) or _is_response(call.callee) or _is_plumbing(call)):
            kept.append(call)
    return kept


def _is_plumbing(call: _Call) -> bool:
    """Whether a library of tasks calls what it was given to run: `nursery.start_soon(app, scope, receive, send)`."""
    module = call.frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] in ("asyncio", "anyio", "trio")


def _is_own_inside(call: _Call) -> bool:
    """Whether an object calls a part of itself: `super().__call__`, `Router.app`, what a decorator or a patch wraps."""
    return call.parent is not None and call.lead is not None and call.parent.callee is call.lead


def _is_routers_way(call: _Call, method: str | None) -> bool:
    """Whether a router enters, by a method like `Route.handle`, what could be entered by a `__call__` of its own."""
    dispatched = call.parent is not None and _kind(call.parent.callee) == "routing"
    return dispatched and method not in (None, "__call__") and _has_call(call.lead)


def _has_call(callee: object) -> bool:
    return any("__call__" in vars(cls) for cls in type(callee).__mro__)


def _method_name(lead: object, code: CodeType) -> str | None:
    """The name under which `code` is a method of the object `lead`, None when it is not one."""
    if lead is None:
        return None
    for cls in type(lead).__mro__:
        for name, attribute in vars(cls).items():
            if any(function.__code__ is code for function in _functions(attribute)):
                return name
    return "__call__" if code.co_name == "__call__" else None


def _functions(attribute: object) -> Iterator[FunctionType]:
    """The functions behind a class attribute, down through static methods, bound methods and decorators that wrap."""
    for _ in range(8):
        # By type and not by isinstance: a proxy says that it is what it wraps.
        if type(attribute) is FunctionType:
            yield attribute
        bound = type(attribute) in (staticmethod, classmethod, MethodType)
        try:
            attribute = getattr(attribute, "__func__" if bound else "__wrapped__", None)
        except Exception:
            return  # it forwards to something that is not there yet
        if attribute is None:
            return


def _lasting_parent(call: _Call, index_of_call: dict[int, int]) -> int | None:
    parent = call.parent
    while parent is not None and id(parent) not in index_of_call:
        parent = parent.parent
    return None if parent is None else index_of_call[id(parent)]


def _call_at(index: int, index_of_call: dict[int, int], calls: Sequence[_Call]) -> _Call:
    return next(call for call in calls if index_of_call.get(id(call)) == index)


def _static(owner: object, name: str) -> object:
    """`owner.name` without running any of the owner's code: a layer that forwards attributes must not lie."""
    try:
        return inspect.getattr_static(owner, name)
    except AttributeError:
        return _MISSING


def _kind(callee: object) -> Kind:
    """Routing is what has routes, what calls itself a router, and a route."""
    is_route = _static(callee, "matches") is not _MISSING and _static(callee, "handle") is not _MISSING
    is_router = _static(callee, "routes") is not _MISSING or type(callee).__name__.endswith("Router")
    return "routing" if is_router or is_route else "middleware"


def _is_response(callee: object) -> bool:
    return _static(callee, "status_code") is not _MISSING and _static(callee, "raw_headers") is not _MISSING


def _arranged(entries: list[Entry], *, tasks: bool, displaced: bool) -> Stack:
    """Tell layers from the app object and from the endpoint, and name them."""
    endpoint = _endpoint(entries)
    outside = bool(entries) and endpoint != 0 and _is_app(entries)
    last = len(entries) if endpoint is None else endpoint
    rows = list(range(1 if outside else 0, last))
    missing = list(_not_entered(entries)) if endpoint is None else []
    callees = [entries[i].callee for i in rows] + missing
    names = _unique([_display_name(callee) for callee in callees])
    layers: list[tuple[int | None, Layer]] = []
    for place, (callee, name) in enumerate(zip(callees, names, strict=True)):
        index = rows[place] if place < len(rows) else None
        runs_task = index is not None and any(entry.own_task and entry.parent == index for entry in entries)
        layer = Layer(
            place, name, _qualname(callee), _kind(callee), _aliases(callee, name), index is not None, runs_task
        )
        if index is not None and entries[index].function is None:
            layer = replace(layer, merged_with=_neighbour(entries, index, rows, names), merged_because=_NO_FUNCTION)
        layers.append((index, layer))
    return Stack(tuple(entries), endpoint, outside, tuple(layers), tasks, displaced)


def _is_app(entries: Sequence[Entry]) -> bool:
    """Whether the outermost entry is the app object: what has routes, or is entered again inside its own layers."""
    return entries[0].kind == "routing" or any(_is_entered_again(entry.callee, entries[:1]) for entry in entries[1:])


def _is_entered_again(callee: object, entries: Sequence[Entry]) -> bool:
    """Whether the object is one of the entries already, by another of its methods."""
    return type(callee) not in (FunctionType, CodeType) and any(entry.callee is callee for entry in entries)


_NO_FUNCTION = "the function behind it cannot be told from others made of the same code"


def _neighbour(entries: Sequence[Entry], index: int, rows: Sequence[int], names: Sequence[str]) -> str:
    """The name of the nearest layer outside `index` that has a boundary of its own."""
    parent = entries[index].parent
    while parent is not None and parent in rows:
        if entries[parent].function is not None:
            return names[rows.index(parent)]
        parent = entries[parent].parent
    return "the outside of the stack"


def _endpoint(entries: Sequence[Entry]) -> int | None:
    """Where the endpoint begins: at the last callable entered, and the routing that leads to nothing else.

    None when that callable holds an ASGI app that it did not call: it is a layer that answered by itself.
    """
    if not entries:
        return None
    index = len(entries) - 1
    if entries[index].kind != "routing" and _held_app(entries[index].callee, entries) is not None:
        return None
    parent = entries[index].parent
    # Siblings of the endpoint were entered before it and gave up: they stay layers, and so does what chose them.
    while parent is not None and entries[parent].kind == "routing" and parent == index - 1:
        index, parent = parent, entries[parent].parent
    return index


def _not_entered(entries: Sequence[Entry]) -> Iterator[object]:
    """The layers inside the one that answered, followed from the app that each holds."""
    inner = _held_app(entries[-1].callee, entries) if entries else None
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen and _kind(inner) != "routing":
        following = _held_app(inner, entries)
        if following is None:
            return
        seen.add(id(inner))
        yield inner
        inner = following


def _held_app(callee: object, entries: Sequence[Entry]) -> object | None:
    """An ASGI callable that `callee` holds in an attribute, a cell or a bound argument and that was not entered."""
    entered = [entry.callee for entry in entries]
    for value in _held_values(callee):
        held = value.__self__ if type(value) is MethodType else value
        if _looks_asgi(value) and not any(held is known for known in entered):
            return held
    return None


def _held_values(callee: object) -> Iterator[object]:
    if isinstance(callee, functools.partial):
        yield from callee.args
        yield callee.func
    if type(callee) is FunctionType:
        for cell in callee.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        return
    yield from _static_dict(callee).values()
    for descriptor in _member_descriptors(type(callee)):
        try:
            yield descriptor.__get__(callee, type(callee))
        except AttributeError:
            continue


def _member_descriptors(kind: type) -> Iterator[MemberDescriptorType]:
    """The slots of a class and its bases."""
    for cls in kind.__mro__:
        yield from (value for value in vars(cls).values() if type(value) is MemberDescriptorType)


def _static_dict(callee: object) -> dict[str, object]:
    try:
        found = object.__getattribute__(callee, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _looks_asgi(value: object) -> bool:
    """Whether `value` takes exactly (scope, receive, send), by its parameters' names."""
    if isinstance(value, type):
        return False
    plain = type(value) in (FunctionType, MethodType)
    for function in _functions(value if plain else _static(type(value), "__call__")):
        code = function.__code__
        if code.co_varnames[: code.co_argcount][-3:] == ("scope", "receive", "send"):
            return True
    return False


# ---- names ------------------------------------------------------------------------------------------------------


def _display_name(callee: object) -> str:
    if type(callee) in (FunctionType, CodeType):
        return f"function[{_qualname(callee)}]"
    dispatch = _dispatch_name(callee)
    return f"{type(callee).__name__}[{dispatch}]" if dispatch else type(callee).__name__


def _dispatch_name(callee: object) -> str | None:
    """The function that a BaseHTTPMiddleware was made from, None when it dispatches by a method of its own."""
    dispatch = _static_dict(callee).get("dispatch_func")
    if dispatch is None or getattr(dispatch, "__self__", None) is callee:
        return None
    if isinstance(dispatch, functools.partial):
        dispatch = dispatch.func
    name = getattr(dispatch, "__name__", None)
    return name if isinstance(name, str) else type(dispatch).__name__


def _qualname(callee: object) -> str:
    """`module.Class` for an instance; for a function the module and the function that made it, or its own name."""
    # By type and not by isinstance: a proxy says that it is what it wraps.
    if type(callee) is FunctionType:
        # The code's own name: functools.wraps may have given the function the name of what it wraps.
        return f"{callee.__globals__.get('__name__', '?')}.{_maker(callee.__code__)}"
    if type(callee) is CodeType:
        return f"{callee.co_filename}.{_maker(callee)}"
    return f"{type(callee).__module__}.{type(callee).__qualname__}"


def _maker(code: CodeType) -> str:
    maker, dot, _ = code.co_qualname.rpartition(".<locals>.")
    return (maker if dot else code.co_qualname).replace(".<locals>", "")


def _aliases(callee: object, name: str) -> frozenset[str]:
    """What else a budget may call it: the class name, the name without its place."""
    bare = name.partition("#")[0]
    if type(callee) in (FunctionType, CodeType):
        return frozenset({bare})
    return frozenset({bare, bare.partition("[")[0]})


def _unique(names: Sequence[str]) -> list[str]:
    """Names that stand more than once get their place, outermost first: `Noop#1`, `Noop#2`."""
    count, place = Counter(names), Counter[str]()
    unique: list[str] = []
    for name in names:
        place[name] += 1
        unique.append(f"{name}#{place[name]}" if count[name] > 1 else name)
    return unique


async def discover(call: Callable[..., Awaitable[object]]) -> Stack:
    """Trace two requests and return their stack. `call(observer, extra)` makes one, as an `asgi.Caller` does."""
    first, second = Trace(), Trace()
    for trace in (first, second):
        await call(_watching(trace), {TRACE_KEY: True})
    return stack_of(first, second)


def _watching(trace: Trace) -> Callable[..., Awaitable[None]]:
    async def observer(app: Any, scope: Any, receive: Any, send: Any) -> None:
        with trace.watching():
            await app(scope, receive, send)

    return observer
