"""Watch one request with a profile function, and note every call of an ASGI callable in it."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from types import CodeType, CoroutineType, FrameType, MethodType
from typing import Any

from ..errors import MeasurementError, described
from ..interpreter import internals
from ..interpreter.code_patching import KIND, Function, Parameters
from ..interpreter.identity import class_name, is_a, is_awaitable
from ..interpreter.tracers import profiled
from . import loops
from .callables import functions_called
from .calls import Call, FrameworkCall, call_in
from .frameworks.seam import Hook, Seam, keys_of, seam_of
from .opening import Opening, Step

# Put into the scope of the traced request. A request that the app makes to another app has a scope without it.
TRACE_KEY = "pytest_mwbudget.trace"
# Keys of a scope whose values belong to one request: two scopes that share such an object are of the same request.
# All transports of httpx share the tuple of the client, and a server may have one tuple for all requests.
REQUEST_KEYS = ("headers", "state", "asgi", "extensions")

_numbers = count(1)
_START_OF_THREAD = threading.Thread.start.__code__


@dataclass(slots=True, eq=False, kw_only=True)
class TracedCall(Step):
    """A call of an ASGI callable, or of a layer of a framework, which a `hook` enters.

    A call that is not over when the request is goes on after it.
    """

    call: Call | FrameworkCall
    callee: object = None
    function: Function | None = None
    # The value that it returned, or that the awaitable it returned led to.
    answer: object = None
    # It returned no awaitable: it only has the parameters of an ASGI app.
    unawaited: bool = False
    # Its `send`, or that of a call inside it, was called.
    sent: bool = False
    # The last message of a response went through its `send`; or it began after a call around it was complete.
    complete: bool = False
    late: bool = False
    # That of an app whose framework is known.
    seam: Seam | None = None

    @property
    def entered(self) -> int:
        """Equal for two calls of the same function while both frames are alive."""
        return id(self.frame.f_code if self.function is None else self.function)


_current: ContextVar[TracedCall | None] = ContextVar("pytest_mwbudget_call", default=None)


@dataclass(slots=True)
class Trace:
    """The ASGI calls of one request, in order, with those in other threads."""

    calls: list[TracedCall] = field(default_factory=list)
    # Another profiler took the place of this one, or threads could not be watched: calls may be missing.
    displaced: bool = False
    unwatched: bool = False
    # The app whose layers could not be read, with the error or the outermost of them.
    uncut: str | None = None
    # The steps inside the endpoint.
    opening: Opening = field(default_factory=Opening)
    # The parameters of functions that can take (scope, receive, send), None for others.
    _parameters: dict[CodeType, Parameters | None] = field(default_factory=dict)
    # The call of each frame; None for the frames outside the request.
    _call_of: dict[FrameType, TracedCall | None] = field(default_factory=dict)
    # The plain functions that returned a coroutine, by the coroutine's frame, innermost first.
    _makers_of: dict[FrameType, list[TracedCall]] = field(default_factory=dict)
    # The objects of this request by identity: its receives and sends, and the values in its scopes.
    _own: dict[int, object] = field(default_factory=dict)
    # The calls by the code of their `send`.
    _senders: dict[CodeType, list[TracedCall]] = field(default_factory=dict)
    # The seam of each app by identity: an app whose layers stand round one of its methods is entered several times.
    _seams: dict[int, Seam | None] = field(default_factory=dict)
    # The functions that enter layers of a framework, by their code and key, and by the function and its first argument.
    _hooks: dict[CodeType, dict[tuple[object, ...], Hook]] = field(default_factory=dict)
    _hook_of: dict[tuple[int, int], Hook] = field(default_factory=dict)
    # Plain data, because an app may copy the scope deeply, or send it to another process.
    _name: str = field(default_factory=lambda: f"request {next(_numbers)}")
    _thread: int = 0
    # The coroutines of the tasks that were there before the request, by identity.
    _before: dict[int, object] = field(default_factory=dict)
    _began_thread: bool = False

    async def observe(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        """Call the app in place of the server, and watch the call."""
        with self._watching():
            scope[TRACE_KEY] = self._name
            await app(scope, receive, send)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        """Watch the calls of all threads that can be watched, and put another profiler back afterwards."""
        for why in (internals.why_no_steps(), internals.why_no_functions()):
            if why is not None:
                raise MeasurementError(why, message_id="interpreter")
        self._call_of = dict.fromkeys(internals.with_callers(sys._getframe()))
        self.opening.begin()
        self._thread = threading.get_ident()
        self._before = loops.coroutines_by_id(loops.current())
        others = len(sys._current_frames()) > 1
        try:
            with profiled(self._profile) as every:
                try:
                    yield
                finally:
                    self.displaced = sys.getprofile() != self._profile
                    self.unwatched = not every and (others or self._began_thread)
        finally:
            functions = internals.functions_of([call.frame for call in self.calls])
            for call, function in zip(self.calls, functions, strict=True):
                self._note_function(call, function)
            self.opening.end()
            self._call_of.clear()
            self._before.clear()

    def _note_function(self, call: TracedCall, function: Function | None) -> None:
        """Note the function that a call entered, and its hook: now it can be told from others with equal cells."""
        if call.hook is not None:
            call.hook = self._hook_of.get((id(function), id(call.hook.instance)), call.hook)
            function = call.hook.function
        call.function = function

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        if event == "call":
            self._called(frame)
        elif event == "return" and (
            frame in self._call_of or frame in self._makers_of or frame in self.opening.step_of
        ):
            self._returned(frame, arg)

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _called(self, frame: FrameType) -> None:
        code = frame.f_code
        self._began_thread = self._began_thread or code is _START_OF_THREAD
        if code in self.opening.hooks and internals.begins(frame):
            self.opening.entered(frame, loops.running_task(), elsewhere=threading.get_ident() != self._thread)
        makers, senders, parameters = self._makers_of.get(frame), self._senders.get(code), self._asgi_parameters(code)
        hooks = self._hooks.get(code, {})
        if not (makers or senders or parameters or hooks) or not internals.begins(frame):
            return
        for maker in makers or ():
            maker.task = loops.running_task()
        if senders:
            self._note_sent(frame, senders)
        # An exception that is thrown into a suspended frame looks like a call that begins: the call may be known, or
        # its function may have deleted an argument.
        if frame in self._call_of:
            return
        hook = self._hook_entered(frame, hooks) if hooks else None
        if hook is not None:
            call = TracedCall(frame, *self._surroundings(frame), hook, call=FrameworkCall(hook.instance))
            self._note(call)
            self.opening.entered_layer(frame, call.task, elsewhere=call.elsewhere)
        if hook is not None or parameters is None:
            return
        optional = [name for name in (parameters.starred, parameters.double_starred) if name]
        names, values = [*parameters.positional, *parameters.keywords, *optional], frame.f_locals
        if not all(name in values for name in names):
            return
        positional, named, _ = parameters.gathered([values[name] for name in names])
        asgi_call = call_in(parameters, positional, named, self._is_of_this_request)
        if asgi_call is not None and not _is_task_library(frame):
            self._note_call(frame, asgi_call)

    def _hook_entered(self, frame: FrameType, hooks: Mapping[tuple[object, ...], Hook]) -> Hook | None:
        """Return the hook that a frame enters, None if it is none of these hooks of its code."""
        entered = next((hooks[key] for key in keys_of(frame) if key in hooks), None)
        if entered is None and any(hook.instance is None for hook in hooks.values()):
            # A cell may have got another value since the app was entered.
            every = (hook for hook in self._hook_of.values() if hook.instance is None)
            entered = next((hook for hook in every if hook.is_entered_by(frame)), None)
        return entered

    def _asgi_parameters(self, code: CodeType) -> Parameters | None:
        """Return the parameters of a function that can take (scope, receive, send), else None."""
        if code not in self._parameters:
            enough = code.co_argcount + code.co_kwonlyargcount >= 3
            starred = code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS)
            generates = code.co_flags & (inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR)
            awaitable = not generates or code.co_flags & inspect.CO_ITERABLE_COROUTINE
            self._parameters[code] = Parameters.of(code) if (enough or starred) and awaitable else None
        return self._parameters[code]

    def _surroundings(self, frame: FrameType) -> tuple[TracedCall | None, object, bool]:
        """Return the call inside which a frame runs, its task, and whether it runs in another thread."""
        return self._calling(frame), loops.running_task(), threading.get_ident() != self._thread

    def _note(self, call: TracedCall) -> None:
        _current.set(call)
        self.calls.append(call)
        self._call_of[call.frame] = call

    def _note_call(self, frame: FrameType, asgi_call: Call) -> None:
        call = TracedCall(frame, *self._surroundings(frame), call=asgi_call, seam=self._seam(asgi_call.lead))
        call.late = call.parent is not None and (call.parent.complete or call.parent.late)
        self._note(call)
        self.opening.entered_asgi(frame, asgi_call, call.task, elsewhere=call.elsewhere)
        self._own |= {id(own): own for own in (asgi_call.receive, asgi_call.send, *held_by_scope(asgi_call.scope))}
        send = next(functions_called(asgi_call.send), None)
        if send is not None:
            self._senders.setdefault(send.__code__, []).append(call)

    def _seam(self, app: object) -> Seam | None:
        """Return where an app can be cut, and watch the functions there from now on."""
        if app is None:
            return None
        if id(app) not in self._seams:
            self._seams[id(app)] = self._read_seam(app)
        return self._seams[id(app)]

    def _read_seam(self, app: object) -> Seam | None:
        try:
            seam = seam_of(app)
        except Exception as error:  # a release of the framework that is built in another way must break no test
            self.uncut = f"{class_name(type(app))[1]} ({described(error)})"
            return None
        if seam is not None and seam.unread is not None:
            self.uncut = f"{class_name(type(app))[1]} from {seam.unread} inwards"
        for hook in () if seam is None else seam.hooks():
            self._hooks.setdefault(hook.function.__code__, {}).setdefault(hook.key, hook)
            self._hook_of.setdefault((id(hook.function), id(hook.instance)), hook)
        return seam

    def _note_sent(self, frame: FrameType, senders: Sequence[TracedCall]) -> None:
        """Note who sends in a call of a `send`: the calls around it that have this `send`, and those around them."""
        caller, sent = self._calling(frame), False
        if caller is None:
            return
        ends = _ends(frame)
        for call in (caller, *caller.outer()):
            sent = sent or call in senders
            call.sent = call.sent or sent
            # A `send` of another object, such as a second buffer, may have the same code.
            call.complete = call.complete or (ends and call in senders and _is_call_of(frame, call.call.send))

    def _calling(self, frame: FrameType) -> TracedCall | None:
        """Return the ASGI call inside which a frame runs: on its own stack, or else where its task was made."""
        if frame in self._makers_of:
            return self._makers_of[frame][0]
        for outer in internals.with_callers(frame.f_back):
            outer_call = self._call_of.get(outer)
            if outer_call is not None:
                return outer_call
            if outer in self._makers_of:
                return self._makers_of[outer][0]
        inherited = _current.get()
        if inherited is not None:
            inherited = inherited.innermost_open()
        if inherited is None and (threading.get_ident() != self._thread or self._is_new(loops.running_task())):
            # A thread or a task without the context of the request: the call that was entered last and waits handed it
            # over.
            inherited = next((call for call in reversed(self.calls) if not call.over), None)
        return inherited if inherited in self.calls else None

    def _is_new(self, task: Any) -> bool:
        """Return whether a task was not there before the request."""
        coroutine = getattr(task, "coro", None) or (None if task is None else task.get_coro())
        return coroutine is not None and id(coroutine) not in self._before

    def _is_of_this_request(self, scope: dict[Any, Any], receive: object, send: object) -> bool:
        """Return whether a call passes the request on, perhaps in a new scope that shares objects with an earlier one.

        A request that the app makes to another app shares no object.
        """
        name = dict.get(scope, TRACE_KEY)
        if type(name) is str:  # what an earlier request has left to do is not of this request
            return name == self._name
        kind = dict.get(scope, "type")
        if type(kind) is not str or kind not in ("http", "websocket"):
            return False
        return any(id(passed) in self._own for passed in (receive, send, *held_by_scope(scope)))

    # ---- returns ----------------------------------------------------------------------------------------------------

    def _returned(self, frame: FrameType, answer: object) -> None:
        ended = internals.step_ended(frame)
        if ended == "suspended":
            return
        if frame in self.opening.step_of:
            self.opening.returned(frame, answer, raised=ended == "raised")
        call, makers = self._call_of.get(frame), self._makers_of.get(frame, [])
        for finished in (*makers, call):
            if finished is not None:
                finished.over = True
        if ended == "raised":
            return
        for maker in makers:
            maker.answer = answer
        if call is None:
            return
        if type(answer) is CoroutineType and answer.cr_frame:
            # A plain function returned a coroutine to be awaited: everything that happens in it is inside the call.
            self._makers_of.setdefault(answer.cr_frame, []).append(call)
            call.over = False
        elif frame.f_code.co_flags & KIND:
            call.answer = answer
        else:
            call.unawaited = not is_awaitable(answer)


def held_by_scope(scope: dict[Any, Any]) -> Iterator[object]:
    """Yield the objects of a scope that no scope of another request holds."""
    for key in REQUEST_KEYS:
        value: Any = dict.get(scope, key)
        if is_a(value, list, dict) or (is_a(value, tuple) and tuple.__len__(value) > 0):
            yield value
    headers: Any = dict.get(scope, "headers")
    if is_a(headers, list, tuple):
        yield from (pair for pair in headers if type(pair) is tuple)


def _is_call_of(frame: FrameType, callee: object) -> bool:
    """Return whether a frame is of a call of this function, method or object: it has its cells, and its instance."""
    function, values = next(functions_called(callee), None), frame.f_locals
    if function is None or function.__code__ is not frame.f_code:
        return False
    cells = zip(frame.f_code.co_freevars, function.__closure__ or (), strict=True)
    held = [(values.get(name), cell.cell_contents) for name, cell in cells if name in values]
    if function is not callee and frame.f_code.co_argcount:
        instance = callee.__self__ if type(callee) is MethodType else callee
        held.append((values.get(frame.f_code.co_varnames[0]), instance))
    return all(value is own for value, own in held)


def _ends(frame: FrameType) -> bool:
    """Return whether a call of a `send` has the last message of a response."""
    messages = (value for value in frame.f_locals.values() if type(value) is dict)
    return any(value.get("type") == "http.response.body" and not value.get("more_body", False) for value in messages)


def _is_task_library(frame: FrameType) -> bool:
    """Return whether a library of tasks makes the call: `nursery.start_soon(app, scope, receive, send)`."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] in ("asyncio", "anyio", "trio")
