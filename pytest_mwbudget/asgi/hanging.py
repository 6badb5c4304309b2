"""Say where a request hangs: the ASGI callables it is inside of, and the line at which it waits."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import AsyncGeneratorType, CoroutineType, FrameType, GeneratorType

from ..interpreter.code_patching import PROBE_FILE, Parameters
from ..interpreter.coroutine_proxy import unproxied
from ..interpreter.identity import MISSING, from_c
from ..model.stack import ENDPOINT
from .app import Scope
from .callables import held_values, method_name
from .calls import call_in
from .frameworks.seam import Hook, seam_of
from .naming import display_name, name_of_code
from .tracing import held_by_scope

# Frames of these packages say only that something waits.
WAITING = ("asyncio", "anyio", "asgiref", "trio", __name__.partition(".")[0])
# The attributes of a coroutine, generator or async generator that hold its frame, and what it awaits.
FRAMES, AWAITED = ("cr_frame", "gi_frame", "ag_frame"), ("cr_await", "gi_yieldfrom", "ag_await")
STEPPED = (CoroutineType, GeneratorType, AsyncGeneratorType)
# No task awaits a longer chain.
MOST_AWAITED = 10_000


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A task of a request: the names of the ASGI callables it is inside of, and the line at which it waits.

    `outermost` is the object that it entered first, None for a function. `held` are the identities of the objects that
    the callables hold.
    """

    names: Sequence[str]
    place: str
    outermost: object
    held: frozenset[int]

    def leads_to(self, other: _Waiting) -> bool:
        """Return whether this task can have started the other: a callable of it holds the other's outermost object."""
        return other is not self and other.outermost is not None and id(other.outermost) in self.held


def where(scope: Scope, coroutines: Iterable[object]) -> str | None:
    """Say where a request waits, None if none of the tasks belongs to it.

    `scope` is the scope of the request; `coroutines` are the coroutines of all tasks.
    """
    own = {id(held) for held in held_by_scope(dict(scope))}
    tasks = [
        each_task for coroutine in coroutines if (each_task := _waiting(list(_frames(coroutine)), own)) is not None
    ]
    if not tasks:
        return None
    # From the outermost task inwards: each is entered by an object that the task before it holds.
    task = next((candidate for candidate in tasks if not any(other.leads_to(candidate) for other in tasks)), tasks[0])
    names = [*task.names]
    while inner := next(filter(task.leads_to, tasks), None):
        tasks.remove(task)
        task = inner
        names += task.names
    path = " > ".join(name for name, _ in groupby(names))
    return f"it waited at {task.place}, inside {path}"


def _waiting(frames: Sequence[FrameType], own: set[int]) -> _Waiting | None:
    """Return what a task with these frames waits for, None if it is not the request's."""
    names: list[str] = []
    held: set[int] = set()
    first: list[object] = []
    hooks: list[Hook] = []
    for frame in frames:
        names += (_name_of(hook) for hook in hooks if hook.is_entered_by(frame))
        callee = _callee(frame, own)
        if callee is not None:
            names.append(callee[0])
            first.append(callee[1])
            hooks += _hooks(callee[1])
            held |= {id(inner) for inner in held_values(callee[1])}
            held |= {id(local) for local in frame.f_locals.values()}
    if not names:
        return None
    innermost = next((each_frame for each_frame in reversed(frames) if not _only_waits(each_frame)), frames[-1])
    code = innermost.f_code
    place = f"{code.co_qualname} ({Path(code.co_filename).name}:{innermost.f_lineno})"
    return _Waiting(names, place, first[0], frozenset(held))


def _callee(frame: FrameType, own: set[int]) -> tuple[str, object] | None:
    """Return name and object of the ASGI callable of a frame, None if the frame is not of the request."""
    if _only_waits(frame):
        return None
    parameters, values = Parameters.of(frame.f_code), frame.f_locals
    flat = [*parameters.positional, *parameters.keywords]
    if not all(name in values for name in flat):
        return None
    positional = tuple(values[name] for name in parameters.positional)
    if parameters.starred:
        positional += tuple(values.get(parameters.starred, ()))
    call = call_in(parameters, positional, {name: values[name] for name in parameters.keywords})
    if call is None or not any(id(held) in own for held in held_by_scope(call.scope)):
        return None
    if call.lead is not None and method_name(call.lead, frame.f_code) is not None:
        return display_name(call.lead), call.lead
    return name_of_code(frame.f_code), None


def _hooks(app: object) -> list[Hook]:
    """Return the hooks of an app's framework; none where it cannot be read: where a request hangs is told without."""
    try:
        seam = None if app is None else seam_of(app)
    except Exception:
        return []
    return [] if seam is None else list(seam.hooks())


def _name_of(hook: Hook) -> str:
    """Return the name of the layer that a hook enters."""
    layer = hook.layer
    return ENDPOINT if layer is None else layer.name or display_name(layer.callee)


def _only_waits(frame: FrameType) -> bool:
    ours = frame.f_code.co_filename == PROBE_FILE
    return ours or str(frame.f_globals.get("__name__")).partition(".")[0] in WAITING


def _frames(coroutine: object) -> Iterator[FrameType]:
    """Yield the frames of a suspended coroutine and of what it awaits, outermost first."""
    awaitable: object = coroutine
    for _ in range(MOST_AWAITED):
        awaitable = unproxied(awaitable)
        if awaitable is None:
            return
        frame = _first(awaitable, FRAMES)
        if type(frame) is FrameType:
            yield frame
        awaitable = _awaited(awaitable)


def _awaited(awaitable: object) -> object:
    """Return what a coroutine or the like awaits; for other awaitables the coroutine that they hold."""
    awaited = _first(awaitable, AWAITED)
    if awaited is not None:
        return awaited
    return next((held for held in gc.get_referents(awaitable) if type(held) in STEPPED), None)


def _first(awaitable: object, names: Iterable[str]) -> object:
    return next(
        (value for name in names if (value := from_c(awaitable, name)) is not None and value is not MISSING), None
    )
