"""Find the layers of a stack by watching which ASGI callables requests go through.

No framework is imported and no attribute name is guessed. A profile function sees every Python call of two requests;
what was called with (an HTTP scope, a callable, a callable) as its last three arguments is an ASGI callable. Those
that are the same object in both requests are the stack; what differs from request to request (a response, a
responder, an exception wrapper) belongs to the layer that made it.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any

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
    another task than its parent, which therefore waits for it.
    """

    callee: object
    function: FunctionType | None
    leads: tuple[object, ...]
    parent: int | None
    own_task: bool
    kind: Kind


@dataclass(frozen=True, slots=True)
class Stack:
    """What the traced request went through.

    `entries` are in order of entry. `endpoint` is the index of the entry with which the endpoint begins: everything
    from there on is inside the innermost layer; None when a layer answered by itself. `outside` says that entry 0 is
    the app object, not a layer. `layers` are the rows to show, by the index of their entry, None for a layer that
    stands further in but was not entered. `tasks` says that more than one task took part.
    """

    entries: tuple[Entry, ...]
    endpoint: int | None
    outside: bool
    layers: tuple[tuple[int | None, Layer], ...]
    tasks: bool


@dataclass(slots=True)
class _Call:
    """An ASGI call that was seen, with its frame kept alive so that nothing it holds changes its identity."""

    frame: FrameType
    leads: tuple[object, ...]
    parent: _Call | None
    task: object
    callee: object = None
    function: FunctionType | None = None

    @property
    def lead(self) -> object:
        """The argument right before the scope, None when there is none."""
        return self.leads[-1] if self.leads else None

    @property
    def identity(self) -> tuple[int, ...]:
        """Equal for two calls of the same callable; valid while both frames are alive."""
        free = tuple(id(value) for value in _free_values(self.frame))
        return (id(self.frame.f_code), id(self.function), *map(id, self.leads), *(() if self.function else free))


_current: ContextVar[_Call | None] = ContextVar("pytest_mwbudget_call", default=None)


# ---- tracing ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Trace:
    """The ASGI calls of one request, in order."""

    calls: list[_Call] = field(default_factory=list)
    tasks: set[int] = field(default_factory=set)
    _names: dict[CodeType, tuple[str, ...] | None] = field(default_factory=dict)
    _seen: set[int] = field(default_factory=set)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calls of this thread; another profiler is put back afterwards."""
        previous = sys.getprofile()
        sys.setprofile(self._profile)
        try:
            yield
        finally:
            sys.setprofile(previous if callable(previous) else None)
            self._resolve()

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        # A coroutine's frame is "called" again at every resumption; only its first call counts.
        if event != "call" or id(frame) in self._seen:
            return
        names = self._candidate(frame.f_code)
        if names is None:
            return
        values = frame.f_locals
        arguments = [values.get(name, _MISSING) for name in names]
        if frame.f_code.co_flags & inspect.CO_VARARGS:
            arguments += values.get(
                frame.f_code.co_varnames[frame.f_code.co_argcount + frame.f_code.co_kwonlyargcount], ()
            )
        if _is_asgi_call(arguments):
            call = _Call(frame, tuple(arguments[:-3]), _calling(frame, self.calls), _task())
            _current.set(call)
            self.calls.append(call)
            self.tasks.add(id(call.task))
            self._seen.add(id(frame))

    def _candidate(self, code: CodeType) -> tuple[str, ...] | None:
        """The positional parameters of a function that could take (scope, receive, send), else None."""
        if code not in self._names:
            count = code.co_argcount
            enough = count >= 3 or code.co_flags & inspect.CO_VARARGS
            self._names[code] = code.co_varnames[:count] if enough else None
        return self._names[code]

    def _resolve(self) -> None:
        """Name the callable of every call, and find the function object behind its frame."""
        if not self.calls:
            return
        by_code: dict[int, list[FunctionType]] = {}
        for referrer in gc.get_referrers(*{call.frame.f_code for call in self.calls}):
            if isinstance(referrer, FunctionType):
                by_code.setdefault(id(referrer.__code__), []).append(referrer)
        for call in self.calls:
            matches = [f for f in by_code.get(id(call.frame.f_code), ()) if _same_cells(f, call.frame)]
            call.function = matches[0] if len(matches) == 1 else None


def _is_asgi_call(arguments: Sequence[object]) -> bool:
    if len(arguments) < 3:
        return False
    scope, receive, send = arguments[-3:]
    return isinstance(scope, dict) and TRACE_KEY in scope and callable(receive) and callable(send)


def _task() -> object:
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _calling(frame: FrameType, calls: Sequence[_Call]) -> _Call | None:
    """The ASGI call inside which `frame` runs: on its own stack, or else where its task was made."""
    open_calls = {id(call.frame): call for call in calls}
    outer = frame.f_back
    while outer is not None:
        if id(outer) in open_calls:
            return open_calls[id(outer)]
        outer = outer.f_back
    inherited = _current.get()
    return inherited if inherited in calls else None


def _free_values(frame: FrameType) -> list[object]:
    values = frame.f_locals
    return [values.get(name, _MISSING) for name in frame.f_code.co_freevars]


def _same_cells(function: FunctionType, frame: FrameType) -> bool:
    """Whether `frame` is a call of `function` and not of another function made from the same code."""
    cells = function.__closure__ or ()
    if function.__globals__ is not frame.f_globals:
        return False
    for cell, value in zip(cells, _free_values(frame), strict=True):
        try:
            if cell.cell_contents is not value:
                return False
        except ValueError:
            if value is not _MISSING:
                return False
    return True


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
        own_task = parent is not None and call.task is not _call_at(parent, index_of_call, second.calls).task
        lasting[call.identity] = index_of_call[id(call)] = len(entries)
        entries.append(Entry(call.callee, call.function, call.leads, parent, own_task, _kind(call.callee)))
    return _arranged(entries, tasks=len(second.tasks) > 1 or any(e.own_task for e in entries))


def _layer_calls(calls: Iterable[_Call]) -> list[_Call]:
    """The calls that enter an ASGI callable, named; without a method's calls of its own object and responses."""
    kept: list[_Call] = []
    for call in calls:
        method = _method_name(call.lead, call.frame.f_code)
        if method is None:
            call.callee = call.function if call.function is not None else call.frame.f_code
        elif method != "__call__" and _static(type(call.lead), "__call__") is not _MISSING:
            continue  # a method of an ASGI object that calls its own object's inside: Router.app, Mount.handle
        elif _within(call, call.lead):
            continue  # super().__call__, or the function below a decorator of __call__
        else:
            call.callee = call.lead
        if not _is_response(call.callee):
            kept.append(call)
    return kept


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
    """The functions behind a class attribute, down through static methods, partials and decorators that wrap."""
    for _ in range(8):
        if isinstance(attribute, FunctionType):
            yield attribute
        if not callable(attribute) and not isinstance(attribute, (staticmethod, classmethod)):
            return
        attribute = getattr(attribute, "__func__", None) or getattr(attribute, "__wrapped__", None)


def _within(call: _Call, lead: object) -> bool:
    """Whether `call` runs directly inside another call of the object `lead`."""
    parent = call.parent
    return parent is not None and parent.lead is lead


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
    return "routing" if _static(callee, "routes") is not _MISSING else "middleware"


def _is_response(callee: object) -> bool:
    return _static(callee, "status_code") is not _MISSING and _static(callee, "raw_headers") is not _MISSING


def _arranged(entries: list[Entry], *, tasks: bool) -> Stack:
    """Tell layers from the app object and from the endpoint, and name them."""
    endpoint = _endpoint(entries)
    outside = bool(entries) and entries[0].kind == "routing" and endpoint != 0
    last = len(entries) if endpoint is None else endpoint
    rows = list(range(1 if outside else 0, last))
    missing = list(_not_entered(entries)) if endpoint is None else []
    callees = [entries[i].callee for i in rows] + missing
    names = _unique([_display_name(callee) for callee in callees])
    layers: list[tuple[int | None, Layer]] = []
    for place, (callee, name) in enumerate(zip(callees, names, strict=True)):
        index = rows[place] if place < len(rows) else None
        layer = Layer(place, name, _qualname(callee), _kind(callee), _aliases(callee, name), index is not None)
        if index is not None and entries[index].function is None:
            layer = replace(layer, merged_with=_neighbour(entries, index, rows, names), merged_because=_NO_FUNCTION)
        layers.append((index, layer))
    return Stack(tuple(entries), endpoint, outside, tuple(layers), tasks)


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
    parents = {entry.parent for entry in entries}
    index = max(i for i in range(len(entries)) if i not in parents)
    if entries[index].kind != "routing" and _held_app(entries[index].callee) is not None:
        return None
    parent = entries[index].parent
    # Siblings of the endpoint were entered before it and gave up: they stay layers, and so does what chose them.
    while parent is not None and entries[parent].kind == "routing" and parent == index - 1:
        index, parent = parent, entries[parent].parent
    return index


def _not_entered(entries: Sequence[Entry]) -> Iterator[object]:
    """The layers inside the one that answered, followed from the app that each holds."""
    inner = _held_app(entries[-1].callee) if entries else None
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen and _kind(inner) != "routing":
        following = _held_app(inner)
        if following is None:
            return
        seen.add(id(inner))
        yield inner
        inner = following


def _held_app(callee: object) -> object | None:
    """An ASGI callable that `callee` holds in an attribute, a cell or a bound argument, else None."""
    return next((value for value in _held_values(callee) if _looks_asgi(value)), None)


def _held_values(callee: object) -> Iterator[object]:
    if isinstance(callee, functools.partial):
        yield from callee.args
        yield callee.func
    for cell in (callee.__closure__ or ()) if isinstance(callee, FunctionType) else ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue
    if isinstance(callee, FunctionType):
        return
    yield from _static_dict(callee).values()
    for cls in type(callee).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            descriptor = vars(cls).get(name)
            if inspect.ismemberdescriptor(descriptor):
                try:
                    yield descriptor.__get__(callee, cls)
                except AttributeError:
                    continue


def _static_dict(callee: object) -> dict[str, object]:
    try:
        found = object.__getattribute__(callee, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _looks_asgi(value: object) -> bool:
    """Whether `value` takes exactly (scope, receive, send), by its parameters' names."""
    call: object = value
    if isinstance(value, MethodType):
        call = value.__func__
    elif not isinstance(value, FunctionType):
        if isinstance(value, type):
            return False
        call = _static(type(value), "__call__")
    for function in _functions(call):
        code = function.__code__
        if code.co_varnames[: code.co_argcount][-3:] == ("scope", "receive", "send"):
            return True
    return False


# ---- names ------------------------------------------------------------------------------------------------------


def _display_name(callee: object) -> str:
    if isinstance(callee, (FunctionType, CodeType)):
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
    if isinstance(callee, (FunctionType, CodeType)):
        # The code's own name: functools.wraps may have given the function the name of what it wraps.
        code = callee if isinstance(callee, CodeType) else callee.__code__
        maker, dot, _ = code.co_qualname.rpartition(".<locals>.")
        name = (maker if dot else code.co_qualname).replace(".<locals>", "")
        module = callee.__globals__.get("__name__", "?") if isinstance(callee, FunctionType) else code.co_filename
        return f"{module}.{name}"
    return f"{type(callee).__module__}.{type(callee).__qualname__}"


def _aliases(callee: object, name: str) -> frozenset[str]:
    """What else a budget may call it: the class name, the name without its place."""
    bare = name.partition("#")[0]
    return (
        frozenset({bare, bare.partition("[")[0]})
        if not isinstance(callee, (FunctionType, CodeType))
        else frozenset({bare})
    )


def _unique(names: Sequence[str]) -> list[str]:
    """Names that stand more than once get their place, outermost first: `Noop#1`, `Noop#2`."""
    count, place = Counter(names), Counter[str]()
    unique: list[str] = []
    for name in names:
        place[name] += 1
        unique.append(f"{name}#{place[name]}" if count[name] > 1 else name)
    return unique


async def discover(call: Callable[[Trace], Any]) -> Stack:
    """Trace two requests and return their stack. `call` makes one request under the trace it is given."""
    first, second = Trace(), Trace()
    await call(first)
    await call(second)
    return stack_of(first, second)
