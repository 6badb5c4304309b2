"""Find the layers of a stack by watching which ASGI callables requests go through.

No framework is imported and no attribute name is guessed. A profile function sees every Python call of two requests;
what was called with (an HTTP scope, a callable, a callable) among its arguments is an ASGI callable. Those that are the
same object in both requests are the stack; what differs from request to request (a response, a responder, an exception
wrapper) belongs to the layer that made it. What returns a value of its own and sends nothing is a helper, no layer.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from types import (
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
)
from typing import Any

from ..errors import MeasurementError
from ..interpreter import internals
from ..interpreter.code_patching import KIND, Function, Parameters, is_plain
from ..interpreter.tracers import profiled
from ..model.stack import Boundary, EntryIndex, Kind, Layer, RowIndex
from . import loops
from .calls import Call, Key, Reader, Spot, call_in

# Put into the scope of a traced request: a request that the app itself makes to another app has a scope without it.
TRACE_KEY = "pytest_mwbudget.trace"

_MISSING = object()
_START_OF_THREAD = threading.Thread.start.__code__


@dataclass(frozen=True, slots=True, eq=False)
class Entry(Boundary):
    """One ASGI callable of the stack, in the order in which requests first enter it.

    `function` is the Python function whose call enters it, None when it cannot be told from others that share its
    code. `call` is one of its calls; of the arguments besides ASGI's, those at the spots in `telling` are the same in
    every request and tell it from other layers of the same function: the instance for a class, what is bound for a
    partial. `elsewhere` says that it was entered in another thread, where no probe can stand: then `function` is None.
    """

    callee: object
    function: Function | None
    call: Call
    telling: frozenset[Spot]
    kind: Kind
    elsewhere: bool = False

    @property
    def key(self) -> Key:
        """What tells it from other layers that share its function."""
        return self.call.key_of(self.telling)

    @property
    def ordinary(self) -> bool:
        """Whether its function takes ASGI's arguments last, as most do."""
        return self.function is not None and Reader.of(self.function, self.telling).ordinary

    @property
    def enterable(self) -> bool:
        """Whether its call can be made again with another request's three: all other arguments are the same."""
        return self.function is not None and {spot for spot, _ in self.call.others()} <= self.telling


@dataclass(frozen=True, slots=True)
class HandedOn:
    """What is inside the layer named `to_layer`, the endpoint too, is measured with that layer; `because` says why.

    `complete` says that all layers inside it were seen.
    """

    to_layer: str
    because: str
    complete: bool


@dataclass(frozen=True, slots=True)
class Stack:
    """What the traced request went through.

    `entries` are in order of entry. `endpoint` is the index of the entry with which the endpoint begins: everything
    from there on is inside the innermost layer; None when a layer answered by itself or the endpoint is in `handed_on`.
    `outside` says that entry 0 is the app object, not a layer. `layers` are the rows to show, by the index of their
    entry, None for a layer that stands further in but was not entered. `tasks` says that more than one task took part,
    `displaced` that a profiler of the app ran, so that calls may not have been seen. `handed_on` says with which layer
    the endpoint is measured, because it ran in another thread, None when it did not. `threads` says that any entry did.
    """

    entries: tuple[Entry, ...]
    endpoint: EntryIndex | None
    outside: bool
    layers: tuple[tuple[EntryIndex | None, Layer], ...]
    tasks: bool
    displaced: bool
    threads: bool
    handed_on: HandedOn | None = None

    @property
    def probeable(self) -> tuple[EntryIndex, ...]:
        """The entries at whose boundary a probe can stand, down to the endpoint's."""
        last = len(self.entries) if self.endpoint is None else self.endpoint + 1
        return tuple(i for i in map(EntryIndex, range(last)) if self.entries[i].function is not None)


@dataclass(slots=True, eq=False)
class _Call:
    """An ASGI call that was seen, with its frame kept alive so that nothing it holds changes its identity."""

    frame: FrameType
    call: Call
    parent: _Call | None
    task: object
    # Whether it was made in another thread than the request.
    elsewhere: bool = False
    callee: object = None
    function: Function | None = None
    # What it returned, or what it returned to be awaited did.
    answer: object = None
    # Whether it gave its caller something else than what is awaited: then it only has the parameters of an ASGI app.
    unawaited: bool = False
    # Whether its `send` was called, so that the response went through it.
    sent: bool = False
    # Whether it has returned or raised: what runs later in its context is not inside it.
    over: bool = False

    @property
    def lead(self) -> object:
        """The argument right before the scope, None when there is none."""
        return self.call.leads[-1] if self.call.leads else None

    @property
    def entered(self) -> int:
        """Equal for two calls of the same function; valid while both frames are alive."""
        return id(self.frame.f_code if self.function is None else self.function)


_current: ContextVar[_Call | None] = ContextVar("pytest_mwbudget_call", default=None)


# ---- tracing ----------------------------------------------------------------------------------------------------


# What a scope holds that is of one request, where it is no string: two scopes that share it are of the same request.
_OF_ONE_REQUEST = ("headers", "state", "client", "server", "asgi", "extensions")


@dataclass(slots=True)
class Trace:
    """The ASGI calls of one request, in order, those in other threads among them."""

    calls: list[_Call] = field(default_factory=list)
    tasks: set[object] = field(default_factory=set)
    _parameters: dict[CodeType, Parameters | None] = field(default_factory=dict)
    _of_frame: dict[FrameType, _Call] = field(default_factory=dict)
    # The frame of a coroutine that ASGI calls returned without having run it, and these calls, innermost first.
    _made_by: dict[FrameType, list[_Call]] = field(default_factory=dict)
    # The frames outside the request.
    _harness: set[FrameType] = field(default_factory=set)
    # By identity what belongs to this request: its receives and sends, and what its scopes hold. Kept alive.
    _own: dict[int, object] = field(default_factory=dict)
    # The calls by the code of their `send`.
    _senders: dict[CodeType, list[_Call]] = field(default_factory=dict)
    # Whether something else took the place of this profile function, so that calls may be missing.
    displaced: bool = False
    # Whether there are threads that could not be watched.
    unwatched: bool = False
    _thread: int = 0
    # Whether the request began a thread.
    _began_thread: bool = False

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the calls of all threads, as far as they can be watched; another profiler is put back afterwards."""
        for why in (internals.why_no_steps(), internals.why_no_functions()):
            if why is not None:
                raise MeasurementError(why, message_id="interpreter")
        self._harness = set(_stack(sys._getframe()))
        self._thread = threading.get_ident()
        others = len(sys._current_frames()) > 1
        try:
            with profiled(self._profile) as every:
                try:
                    yield
                finally:
                    self.displaced = sys.getprofile() != self._profile
                    self.unwatched = not every and (others or self._began_thread)
        finally:
            for call in self.calls:
                call.function = internals.function_of(call.frame)
            self._harness.clear()

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            self._called(frame)
        elif event == "return" and (frame in self._of_frame or frame in self._made_by):
            self._returned(frame, arg)

    def _returned(self, frame: FrameType, answer: object) -> None:
        ended = internals.step_ended(frame)
        if ended == "suspended":
            return
        call = self._of_frame.get(frame)
        for finished in (*self._made_by.get(frame, ()), *([call] if call else [])):
            finished.over = True
        if ended == "returned":
            self._answered(frame, answer)

    def _answered(self, frame: FrameType, answer: object) -> None:
        for made in self._made_by.get(frame, ()):
            made.answer = answer
        call = self._of_frame.get(frame)
        if call is None:
            return
        if type(answer) is CoroutineType and answer.cr_frame:
            # A plain function that returned a coroutine to be awaited: what happens in it is its inside.
            self._made_by.setdefault(answer.cr_frame, []).append(call)
            call.over = False
        elif frame.f_code.co_flags & KIND:
            call.answer = answer
        else:
            call.unawaited = not inspect.isawaitable(answer)

    def _called(self, frame: FrameType) -> None:
        if frame in self._made_by and internals.begins(frame):
            for made in self._made_by[frame]:
                made.task = _task()
        self._note_sent(frame)
        self._began_thread = self._began_thread or frame.f_code is _START_OF_THREAD
        parameters = self._candidate(frame.f_code)
        # A coroutine's frame is "called" again at every resumption; only its first call counts.
        if parameters is None or frame in self._of_frame or frame in self._harness or not internals.begins(frame):
            return
        values = frame.f_locals
        positional = tuple(values.get(name, _MISSING) for name in parameters.positional)
        named = {name: values[name] for name in parameters.keywords if name in values}
        if parameters.starred:
            positional += values.get(parameters.starred, ())
        if parameters.double_starred:
            named |= values.get(parameters.double_starred, {})
        found = call_in(parameters, positional, named, self._is_of_this_request)
        if found is not None and not _is_plumbing(frame):
            elsewhere = threading.get_ident() != self._thread
            call = _Call(frame, found, self._calling(frame), _task(), elsewhere)
            _current.set(call)
            self.calls.append(call)
            if not elsewhere:
                self.tasks.add(call.task)
            self._of_frame[frame] = call
            self._keep(found)
            code = _code_of(found.send)
            if code is not None:
                self._senders.setdefault(code, []).append(call)

    def _candidate(self, code: CodeType) -> Parameters | None:
        """The parameters of a function that could take (scope, receive, send), else None."""
        if code not in self._parameters:
            enough = code.co_argcount + code.co_kwonlyargcount >= 3
            starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
            self._parameters[code] = Parameters.of(code) if enough or starred else None
        return self._parameters[code]

    # ---- the same request ---------------------------------------------------------------------------------------

    def _is_of_this_request(self, scope: dict[Any, Any], receive: object, send: object) -> bool:
        """Whether it was passed on, also as a new scope that holds some of an earlier one.

        A request that the app itself makes to another app shares none of it.
        """
        if TRACE_KEY in scope:
            return True
        if scope.get("type") != "http":
            return False
        return any(id(one) in self._own for one in (receive, send, *_held_by_scope(scope)))

    def _keep(self, call: Call) -> None:
        for one in (call.receive, call.send, *_held_by_scope(call.scope)):
            self._own[id(one)] = one

    # ---- what a call does ---------------------------------------------------------------------------------------

    def _note_sent(self, frame: FrameType) -> None:
        """Note whose `send` is called here, by whom: the calls on the stack that have such a `send`."""
        senders = self._senders.get(frame.f_code)
        call = self._calling(frame) if senders and internals.begins(frame) else None
        while senders and call is not None:
            call.sent = call.sent or call in senders
            call = call.parent

    def _calling(self, frame: FrameType) -> _Call | None:
        """The ASGI call inside which `frame` runs: on its own stack, or else where its task was made."""
        if frame in self._made_by:
            return self._made_by[frame][0]
        for outer in _stack(frame.f_back):
            found = self._of_frame.get(outer)
            if found is not None:
                return found
            if outer in self._made_by:
                return self._made_by[outer][0]
        inherited = _current.get()
        while inherited is not None and inherited.over:
            inherited = inherited.parent
        if inherited is None and threading.get_ident() != self._thread:
            # It was handed over without its context: by what was entered last and waits.
            inherited = next((call for call in reversed(self.calls) if not call.over), None)
        return inherited if inherited in self.calls else None


def _held_by_scope(scope: dict[Any, Any]) -> Iterator[object]:
    """What a scope holds that no scope of another request holds, by identity."""
    for key in _OF_ONE_REQUEST:
        value = scope.get(key)
        if isinstance(value, (list, dict)) or (isinstance(value, tuple) and len(value) > 0):
            yield value
    headers = scope.get("headers")
    if isinstance(headers, (list, tuple)):
        yield from (pair for pair in headers if isinstance(pair, tuple))


def _code_of(called: object) -> CodeType | None:
    """The code of the function that a call of this runs, None where it is not written in Python."""
    if type(called) is functools.partial:
        called = called.func
    found = next(
        _functions(called if type(called) in (FunctionType, MethodType) else _static(type(called), "__call__")), None
    )
    return None if found is None else found.__code__


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


# ---- from calls to a stack --------------------------------------------------------------------------------------


def stack_of(first: Trace, second: Trace) -> Stack:
    """The stack that both traced requests went through."""
    before, after = _layer_calls(first), _layer_calls(second)
    telling = _telling_spots(before, after)
    lasting = {_identity(call, telling) for call in before}
    layer_calls = set(map(id, after))
    index_of: dict[tuple[int, Key], EntryIndex] = {}
    index_of_call: dict[int, EntryIndex] = {}
    entries: list[Entry] = []
    for call in second.calls:
        identity = _identity(call, telling)
        if identity in index_of:
            # Entered once more; also where an object calls itself, because its probe stands there, too.
            index = index_of_call[id(call)] = index_of[identity]
            parents = (*entries[index].parents, _lasting_parent(call, index_of_call))
            entries[index] = replace(entries[index], parents=parents)
            continue
        if identity not in lasting or id(call) not in layer_calls:
            continue
        parent = _lasting_parent(call, index_of_call)
        outer = None if parent is None else _call_at(parent, index_of_call, second.calls)
        own_task = outer is not None and call.task is not outer.task and not call.elsewhere
        same_send = outer is not None and call.call.send is outer.call.send
        index_of[identity] = index_of_call[id(call)] = EntryIndex(len(entries))
        # An app that is entered again inside its own layers stands between them and what it leads to.
        kind: Kind = "routing" if _is_entered_again(call.callee, entries) else _kind(call.callee)
        function = None if call.elsewhere else call.function
        entries.append(
            Entry(
                parent=parent,
                parents=(parent,),
                own_task=own_task,
                same_send=same_send,
                plain=function is not None and is_plain(function),
                callee=call.callee,
                function=function,
                call=call.call,
                telling=telling[call.entered],
                kind=kind,
                elsewhere=call.elsewhere,
            )
        )
    tasks = len(second.tasks) > 1 or any(entry.own_task for entry in entries)
    last = [call for call in second.calls if index_of_call.get(id(call)) == len(entries) - 1]
    why = None if any(call.sent for call in last) else _ELSEWHERE
    if why is None and (first.unwatched or second.unwatched):
        why = _UNSEEN
    return _arranged(entries, tasks=tasks, displaced=first.displaced or second.displaced, why_unseen=why)


def _identity(call: _Call, telling: Mapping[int, frozenset[Spot]]) -> tuple[int, Key]:
    return call.entered, call.call.key_of(telling.get(call.entered, frozenset()))


def _telling_spots(first: Sequence[_Call], second: Sequence[_Call]) -> dict[int, frozenset[Spot]]:
    """By function, which of the arguments besides ASGI's tell its layers apart.

    For an object, the object. For a function all but those that are made anew for each call; what stands before the
    scope is never left out, because what is made for one request belongs to its maker.
    """
    calls: dict[int, tuple[list[_Call], list[_Call]]] = {}
    for number, trace in enumerate((first, second)):
        for call in trace:
            calls.setdefault(call.entered, ([], []))[number].append(call)
    return {entered: _telling_spots_of(*both) for entered, both in calls.items()}


def _telling_spots_of(first: Sequence[_Call], second: Sequence[_Call]) -> frozenset[Spot]:
    every = [*first, *second]
    place = every[0].call.place
    leads = frozenset(range(len(every[0].call.leads)))
    if place.within is None and any(call.callee is call.lead for call in every if call.lead is not None):
        return leads
    spots = {spot for call in every for spot, _ in call.call.others()}
    same = {spot for spot in spots if _values_at(spot, first).keys() == _values_at(spot, second).keys()}
    if place.within is None:
        same |= leads
    elif not any(value is not None for spot in same for value in _values_at(spot, every).values()):
        return frozenset(spots)  # nothing of it lasts
    # What tells two calls apart of which one is inside the other is no matter of the moment.
    return frozenset(spots if same != spots and (_nested(first, same) or _nested(second, same)) else same)


def _values_at(spot: Spot, calls: Iterable[_Call]) -> dict[int, object]:
    """What stands at a spot in these calls, by identity."""
    return {id(value): value for call in calls for where, value in call.call.others() if where == spot}


def _nested(calls: Sequence[_Call], spots: set[Spot]) -> bool:
    """Whether a call of a function is inside another one that these spots do not tell from it."""
    keys = {id(call): call.call.key_of(frozenset(spots)) for call in calls}
    for call in calls:
        outer = call.parent
        while outer is not None:
            if keys.get(id(outer)) == keys[id(call)]:
                return True
            outer = outer.parent
    return False


def _layer_calls(trace: Trace) -> list[_Call]:
    """The calls that enter an ASGI callable, named; without what an object calls of itself, helpers and responses."""
    calls = trace.calls
    passed_on = _passed_on(calls)
    kept: list[_Call] = []
    for call in calls:
        own = _is_own_inside(call)
        method = _method_name(call.lead, call.frame.f_code)
        if own or method is not None or (call.call.place.within is not None and call.lead is not None):
            call.callee = call.lead
        else:
            call.callee = call.frame.f_code if call.function is None else call.function
        own = own or _is_wrapped_by_its_parent(call)
        # What is inside it may have sent the response in a thread that could not be watched.
        unknown = trace.unwatched and _held_app(call.callee, ()) is not None
        helper = call.unawaited or (not unknown and _is_helper(call, calls, passed_on))
        if not (helper or own or _is_routers_way(call, method) or _is_response(call.callee)):
            kept.append(call)
    return kept


def _passed_on(calls: Iterable[_Call]) -> set[int]:
    """The calls that sent something of the response, or in which one did, by identity."""
    found: set[int] = set()
    for call in calls:
        outer: _Call | None = call if call.sent else None
        while outer is not None:
            found.add(id(outer))
            outer = outer.parent
    return found


def _is_helper(call: _Call, calls: Iterable[_Call], passed_on: set[int]) -> bool:
    """Whether it is asked for a value, `if not await allowed(scope, receive, send)`: it returns one, and sends nothing.

    A layer may return what is inside it returned, and what sends the response may return whatever it likes.
    """
    if call.answer is None or id(call) in passed_on:
        return False
    return not any(inner.answer is call.answer and _is_inside(inner, call) for inner in calls)


def _is_inside(call: _Call, outer: _Call) -> bool:
    parent = call.parent
    while parent is not None:
        if parent is outer:
            return True
        parent = parent.parent
    return False


def _is_plumbing(frame: FrameType) -> bool:
    """Whether a library of tasks calls what it was given to run: `nursery.start_soon(app, scope, receive, send)`."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] in ("asyncio", "anyio", "trio")


def _is_own_inside(call: _Call) -> bool:
    """Whether an object calls a part of itself: `super().__call__`, `Router.app`, what a decorator or a patch wraps."""
    return call.parent is not None and call.lead is not None and call.parent.callee is call.lead


def _is_wrapped_by_its_parent(call: _Call) -> bool:
    """Whether a decorator such as wrapt's, which was given the arguments in a tuple, calls what it decorates."""
    parent = call.parent
    return parent is not None and parent.call.place.within is not None and call.callee is parent.callee


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


def _lasting_parent(call: _Call, index_of_call: dict[int, EntryIndex]) -> EntryIndex | None:
    parent = call.parent
    while parent is not None and id(parent) not in index_of_call:
        parent = parent.parent
    return None if parent is None else index_of_call[id(parent)]


def _call_at(index: EntryIndex, index_of_call: dict[int, EntryIndex], calls: Sequence[_Call]) -> _Call:
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


def _arranged(entries: list[Entry], *, tasks: bool, displaced: bool, why_unseen: str | None) -> Stack:
    """Tell layers from the app object and from the endpoint, and name them.

    `why_unseen` says why there may be layers that were entered and not seen, None when there are none.
    """
    endpoint = _endpoint(entries)
    outside = bool(entries) and endpoint != 0 and _is_app(entries)
    last = len(entries) if endpoint is None else endpoint
    rows = list(map(EntryIndex, range(1 if outside else 0, last)))
    missing = list(_not_entered(entries)) if endpoint is None else []
    callees = [entries[i].callee for i in rows] + missing
    names = _unique([_display_name(callee) for callee in callees])
    name_of = dict(zip(rows, names, strict=False))
    handed_on = _handed_on(entries, endpoint, name_of, why_unseen)
    layers: list[tuple[EntryIndex | None, Layer]] = []
    for place, (callee, name) in enumerate(zip(callees, names, strict=True)):
        index = rows[place] if place < len(rows) else None
        runs_task = index is not None and any(entry.own_task and entry.parent == index for entry in entries)
        entered = index is not None or handed_on is not None
        layer = Layer(
            RowIndex(place), name, _qualname(callee), _kind(callee), _aliases(callee, name), entered, runs_task
        )
        if index is None and handed_on is not None:
            layer = replace(layer, merged_with=handed_on.to_layer, merged_because=handed_on.because)
        elif index is not None and entries[index].function is None:
            neighbour = _nearest(entries, entries[index].parent, name_of)
            because = _ELSEWHERE.format(neighbour) if entries[index].elsewhere else _NO_FUNCTION
            layer = replace(layer, merged_with=neighbour, merged_because=because)
        layers.append((index, layer))
    threads = handed_on is not None or any(entry.elsewhere for entry in entries)
    probed = None if handed_on is not None else endpoint
    return Stack(tuple(entries), probed, outside, tuple(layers), tasks, displaced, threads, handed_on)


def _handed_on(
    entries: Sequence[Entry], endpoint: EntryIndex | None, name_of: Mapping[EntryIndex, str], why_unseen: str | None
) -> HandedOn | None:
    """The layer that the endpoint is measured with, where the endpoint ran in another thread."""
    if endpoint is not None and entries[endpoint].elsewhere:
        layer = _nearest(entries, entries[endpoint].parent, name_of)
        return HandedOn(layer, _ELSEWHERE.format(layer), complete=True)
    if endpoint is not None or not entries or why_unseen is None:
        return None
    layer = _nearest(entries, EntryIndex(len(entries) - 1), name_of)
    return HandedOn(layer, why_unseen.format(layer), complete=False)


def _is_app(entries: Sequence[Entry]) -> bool:
    """Whether the outermost entry is the app object: what has routes, or is entered again inside its own layers."""
    return entries[0].kind == "routing" or any(_is_entered_again(entry.callee, entries[:1]) for entry in entries[1:])


def _is_entered_again(callee: object, entries: Sequence[Entry]) -> bool:
    """Whether the object is one of the entries already, by another of its methods."""
    return type(callee) not in (FunctionType, CodeType) and any(entry.callee is callee for entry in entries)


_OUTSIDE = "the outside of the stack"
_NO_FUNCTION = "the function behind it cannot be told from others made of the same code"
_ELSEWHERE = "{} runs what is inside it in another thread"
_UNSEEN = "{} answered by itself or ran what is inside it in another thread, which could not be watched"


def _nearest(entries: Sequence[Entry], index: EntryIndex | None, name_of: Mapping[EntryIndex, str]) -> str:
    """The name of the nearest layer from `index` outwards that has a boundary of its own."""
    while index is not None and index in name_of:
        if entries[index].function is not None:
            return name_of[index]
        index = entries[index].parent
    return _OUTSIDE


def _endpoint(entries: Sequence[Entry]) -> EntryIndex | None:
    """Where the endpoint begins: at the last callable entered, and the routing that leads to nothing else.

    None when that callable holds an ASGI app that it did not call: it is a layer that answered by itself.
    """
    if not entries:
        return None
    index = EntryIndex(len(entries) - 1)
    if entries[index].kind != "routing" and _inner_app(entries) is not None:
        return None
    parent = entries[index].parent
    # Siblings of the endpoint were entered before it and gave up: they stay layers, and so does what chose them.
    while parent is not None and entries[parent].kind == "routing" and parent == index - 1:
        index, parent = parent, entries[parent].parent
    return index


def _not_entered(entries: Sequence[Entry]) -> Iterator[object]:
    """The layers inside the one that answered, followed from the app that each holds."""
    inner = _inner_app(entries) if entries else None
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen and _kind(inner) != "routing":
        following = _held_app(inner, entries)
        if following is None:
            return
        seen.add(id(inner))
        yield inner.func if type(inner) is functools.partial else inner
        inner = following


def _inner_app(entries: Sequence[Entry]) -> object | None:
    """What the innermost entry holds or is called with and did not enter."""
    bound = [value for spot, value in entries[-1].call.others() if spot in entries[-1].telling]
    return _held_app(entries[-1].callee, entries, bound)


def _held_app(callee: object, entries: Sequence[Entry], bound: Iterable[object] = ()) -> object | None:
    """An ASGI callable that `callee` holds in an attribute, a cell or a bound argument and that was not entered."""
    for value in (*bound, *_held_values(callee)):
        value = _wrapped_in_c(value)
        held = value.__self__ if type(value) is MethodType else value
        if _looks_asgi(value) and not any(_is_entered_by(held, entry) for entry in entries):
            return held
    return None


def _is_entered_by(held: object, entry: Entry) -> bool:
    """Whether the entry is a call of `held`: where that is a partial, of its function with all that it binds."""
    if type(held) is not functools.partial:
        return entry.callee is held
    passed = {id(value) for _, value in entry.call.others()}
    return entry.callee is held.func and all(id(value) in passed for value in (*held.args, *held.keywords.values()))


def _wrapped_in_c(value: object) -> object:
    """What a transparent proxy in C, which has no code of its own to enter, passes calls on to; else `value` itself."""
    while (inner := _c_wrapped(value)) is not _MISSING and not any(_functions(_static(type(value), "__call__"))):
        value = inner
    return value


def _c_wrapped(value: object) -> object:
    """What a proxy keeps in C, without running any code of its own; `_MISSING` where it is no such proxy."""
    descriptor = _static(type(value), "__wrapped__")
    if type(descriptor) is not GetSetDescriptorType:
        return _MISSING
    try:
        return descriptor.__get__(value, type(value))
    except ValueError:  # it was never initialised
        return _MISSING


def _held_values(callee: object) -> Iterator[object]:
    if isinstance(callee, functools.partial):
        yield from (*callee.args, *callee.keywords.values(), callee.func)
    if type(callee) is FunctionType:
        for cell in callee.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
        return
    wrapped = _c_wrapped(callee)
    if wrapped is not _MISSING:
        yield wrapped
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
    if _c_wrapped(callee) is not _MISSING:
        return {}  # it would be that of what the proxy wraps
    try:
        found = object.__getattribute__(callee, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _looks_asgi(value: object) -> bool:
    """Whether `value` takes exactly (scope, receive, send), by its parameters' names."""
    if type(value) is functools.partial:
        return _partial_looks_asgi(value)
    if isinstance(value, type):
        return False
    plain = type(value) in (FunctionType, MethodType)
    for function in _functions(value if plain else _static(type(value), "__call__")):
        code = function.__code__
        if code.co_varnames[: code.co_argcount][-3:] == ("scope", "receive", "send"):
            return True
    return False


def _partial_looks_asgi(value: functools.partial[object]) -> bool:
    """Whether what is not bound yet begins with (scope, receive, send)."""
    if type(value.func) is not FunctionType:
        return False
    positional = Parameters.of(value.func.__code__).positional
    left = [name for name in positional[len(value.args) :] if name not in value.keywords]
    return left[:3] == ["scope", "receive", "send"]


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
