"""Open the endpoint of a stack: its parts as entries and rows, or the reason why it stays closed."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType, MethodType
from typing import TypeAlias

from ..errors import tagged
from ..interpreter.code_patching import is_plain
from ..interpreter.identity import is_class
from ..model.endpoint import FRAMEWORK, HANDLER, PARTS, RESPOND, ROUTING, VALIDATE, Observed
from ..model.stack import EntryIndex, Layer, RowIndex
from .callables import MOST_WRAPPERS, functions_called, is_function, is_response, module_and_name, static_dict
from .calls import FrameworkCall
from .frameworks import reading
from .frameworks.gates import hook
from .frameworks.seam import FrameworkLayer, Hook
from .naming import numbered, type_name
from .opening import UNREADABLE, Opening, Step
from .origins import origin_of, origin_of_class
from .stack import Entry, Stack
from .tracing import Trace, TracedCall

# What tells the entries of parts apart: the function, its first argument, and the part.
Key: TypeAlias = tuple[int, int, object]

NO_ROUTE = "the request came to no route of Django, FastAPI, Litestar or Starlette"
NO_HANDLER = "its handler is not entered through a Python function"
SYNC = "it is not async, so the framework calls it in a thread"
# The frameworks that call every callable in a thread that is not async.
HAND_ON_SYNC = ("fastapi", "starlette")
ASYNC = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
TOGETHER = "it is measured together with {}: {}"


@dataclass(slots=True)
class _Site:
    """A function that enters a part, with the steps that are its calls."""

    hook: Hook
    steps: list[Step] = field(default_factory=list)

    @property
    def part(self) -> object:
        """Equal for the functions of one part: its name, or the dependency."""
        layer = self.hook.layer
        assert layer is not None
        return layer.name or id(layer.callee)


def with_parts(stack: Stack, first: Trace, second: Trace, calls_of: Sequence[Sequence[TracedCall]]) -> Stack:
    """Return the stack with the parts of its endpoint, or with the reason why the endpoint stays closed.

    `calls_of` has the traced calls of each entry, which the second request made.
    """
    endpoint = stack.endpoint
    if endpoint is None:
        why = TOGETHER.format(stack.handed_on.to_layer, stack.handed_on.because) if stack.handed_on else None
        return replace(stack, closed=None if why is None else tagged(why, "endpoint-closed"))
    try:
        return _opened(stack, endpoint, first, second, calls_of)
    except Exception as error:  # an app or a release that is built in another way must break no test
        why = UNREADABLE.format(type(error).__name__, error)
        return replace(stack, closed=tagged(why, "endpoint-closed"))


def _opened(
    stack: Stack, endpoint: EntryIndex, first: Trace, second: Trace, calls_of: Sequence[Sequence[TracedCall]]
) -> Stack:
    opening = second.opening
    sites = list(_sites(stack, endpoint, second))
    lasting = {_key(site) for site in _sites(stack, endpoint, first)}
    sites = [site for site in sites if site.hook.layer and (site.hook.layer.name or _key(site) in lasting)]
    why = opening.error or _why_closed(opening, sites, stack.entries[endpoint])
    if why is not None:
        return replace(stack, closed=tagged(why, "endpoint-closed"))
    around = {opening.step_of[call.frame]: endpoint for call in calls_of[endpoint] if call.frame in opening.step_of}
    own = _own_part(stack.entries[endpoint], sites, opening)
    entries = [*stack.entries, *_entries(sites, len(stack.entries), around, {own: endpoint}, opening)]
    rows = tuple(_rows(entries, endpoint, own, opening))
    repeated = dict(_repeated(rows, sites, len(stack.entries), opening))
    observed = Observed(
        converts=opening.converts(),
        calls=repeated,
        overrides=len(opening.stand_ins),
        rebuilt=opening.rebuilt,
        stand_ins=tuple(
            layer.name
            for index, layer in rows
            if layer.kind == "dependency" and any(entries[index].callee is own for own in opening.stand_ins)
        ),
        models=tuple(dict.fromkeys(map(type_name, opening.models))),
        returned={type_name(model): calls for model, calls in opening.validated_again().items()},
    )
    return replace(stack, entries=tuple(entries), parts=rows, observed=observed)


def _repeated(
    rows: Iterable[tuple[EntryIndex, Layer]], sites: Sequence[_Site], number_of_first: int, opening: Opening
) -> Iterator[tuple[str, int]]:
    """Yield the dependencies that FastAPI called more than once, with the number of calls."""
    for index, layer in rows:
        if layer.kind == "dependency":
            site = sites[index - number_of_first]
            assert site.hook.layer is not None
            if (calls := opening.calls_of(site.hook.layer.callee, site.steps)) > 1:
                yield layer.name, calls


def _why_closed(opening: Opening, sites: Sequence[_Site], endpoint: Entry) -> str | None:
    if endpoint.function is None or opening.route is None:
        return NO_ROUTE
    entered = {site.part for site in sites}
    if (moved := opening.why_moved(entered)) is not None:
        return moved
    if opening.route == "starlette":
        missing = HANDLER not in entered and not (opening.handled or (opening.raised and opening.handler))
    else:
        missing = opening.route != "fastapi" and opening.endpoint is not None and not opening.handler
    return NO_HANDLER if missing else None


# ---- which functions enter parts ------------------------------------------------------------------------------------


def _sites(stack: Stack, endpoint: EntryIndex, trace: Trace) -> Iterator[_Site]:
    """Yield the functions that enter parts inside the endpoint, in the order of their first calls."""
    opening = trace.opening
    calls = {call.frame: call for call in trace.calls}
    own = stack.entries[endpoint]
    sites: dict[Key, _Site] = {}
    innermost = _innermost(stack, endpoint)
    for step in opening.steps:
        outer = (calls[outer_step.frame] for outer_step in step.outer() if outer_step.frame in calls)
        # Some methods of Django's middlewares are called inside the endpoint. What they call belongs to them.
        around = next((call for call in outer if _enters(call, own) or (call.hook and call.hook.layer)), None)
        if around is None or not _enters(around, own):
            continue
        entered = _hook_of(step, calls, opening, innermost)
        if entered is not None:
            site = _Site(entered)
            sites.setdefault(_key(site), site).steps.append(step)
    by_step = {step: site for site in sites.values() for step in site.steps}
    for site in sites.values():
        # A part inside itself, through another function, needs no boundary of its own.
        if not all(_inside_its_own(site, step, by_step) for step in site.steps):
            yield site


def _enters(call: TracedCall, entry: Entry) -> bool:
    return call.callee is entry.callee and call.function is entry.function


def _inside_its_own(site: _Site, step: Step, by_step: Mapping[Step, _Site]) -> bool:
    outer = next((by_step[outer_step] for outer_step in step.outer() if outer_step in by_step), None)
    return outer is not None and outer is not site and outer.part == site.part


def _hook_of(step: Step, calls: Mapping[FrameType, TracedCall], opening: Opening, innermost: object) -> Hook | None:
    """Return the hook of the part that a step enters, None for a step that enters none."""
    if step.hook is not None:
        stale = step.part == HANDLER and opening.route != "fastapi"
        return None if stale and step.hook not in opening.handler else step.hook
    call = calls.get(step.frame)
    if call is None or call.function is None:
        return None
    if is_response(call.callee):
        return hook(call.function, None, FrameworkLayer(None, name=RESPOND))
    if call.callee is innermost:
        return hook(call.function, None, FrameworkLayer(None, name=FRAMEWORK))
    return None


def _innermost(stack: Stack, endpoint: EntryIndex) -> object:
    """Return the function that a framework makes of the handler: the innermost ASGI callable, None if it is no such."""
    last = stack.entries[-1]
    inside = len(stack.entries) - 1 > endpoint and last.hook is None
    return last.callee if inside and type(last.callee) is FunctionType else None


def _key(site: _Site) -> Key:
    return id(site.hook.function), id(site.hook.instance), site.part


# ---- entries --------------------------------------------------------------------------------------------------------


def _own_part(endpoint: Entry, sites: Sequence[_Site], opening: Opening) -> str:
    """Return the part to which belongs what is in no other part."""
    if opening.handled and not any(site.part == HANDLER for site in sites):
        return HANDLER  # the handler is a layer round the endpoint: an object that hands the request to another object
    # A route with a layer of its own has no router inside that layer.
    return ROUTING if endpoint.kind == "routing" or any(site.part == FRAMEWORK for site in sites) else FRAMEWORK


def _entries(
    sites: Sequence[_Site],
    number_of_first: int,
    around: Mapping[Step, EntryIndex],
    known: Mapping[object, EntryIndex],
    opening: Opening,
) -> Iterator[Entry]:
    """Yield the entries of the parts.

    `around` has the steps that enter the endpoint, and `known` the part whose first entry is the endpoint's.
    """
    steps = dict(around)
    first = dict(known)
    for number, site in enumerate(sites, number_of_first):
        steps |= dict.fromkeys(site.steps, EntryIndex(number))
    for number, site in enumerate(sites, number_of_first):
        enclosing = [next(outer_step for outer_step in step.outer() if outer_step in steps) for step in site.steps]
        function = site.hook.function
        hands_on = site.part in (FRAMEWORK, RESPOND)
        yield Entry(
            parent=steps[enclosing[0]],
            parents=tuple(steps[outer_step] for outer_step in enclosing),
            own_task=all(
                step.task is not outer.task and not step.elsewhere
                for step, outer in zip(site.steps, enclosing, strict=True)
            ),
            same_send=hands_on,
            same_receive=hands_on,
            plain=is_plain(function),
            part_of=first.get(site.part),
            callee=_callee(site, opening),
            function=function,
            call=FrameworkCall(site.hook.instance),
            telling=frozenset(),
            kind="part",
            elsewhere=site.steps[0].elsewhere,
            hook=site.hook,
            seam=None,
        )
        first.setdefault(site.part, EntryIndex(number))


def _callee(site: _Site, opening: Opening) -> object:
    if site.part == HANDLER:
        return opening.handler[0].layer.callee if opening.handler and opening.handler[0].layer else opening.endpoint
    assert site.hook.layer is not None
    return site.hook.function if site.hook.layer.callee is None else site.hook.layer.callee


# ---- rows -----------------------------------------------------------------------------------------------------------


def _rows(
    entries: Sequence[Entry], endpoint: EntryIndex, own: str, opening: Opening
) -> Iterator[tuple[EntryIndex, Layer]]:
    """Yield the rows of the parts: those with names of their own in the order of PARTS, dependencies as called."""
    reserved = {own: endpoint}
    dependencies: list[EntryIndex] = []
    for number, entry in enumerate(entries):
        layer = entry.hook.layer if entry.is_part and entry.hook else None
        if layer is None or entry.part_of is not None:
            continue
        if layer.name is None:
            dependencies.append(EntryIndex(number))
        else:
            reserved[layer.name] = EntryIndex(number)
    names = numbered([name_of(entries[index].callee) for index in dependencies])
    rows: list[tuple[EntryIndex, str]] = []
    for name in PARTS:
        rows += [(reserved[name], name)] if name in reserved else []
        rows += zip(dependencies, names, strict=True) if name == VALIDATE else []
    for place, (index, name) in enumerate(rows):
        yield index, _row(RowIndex(place), name, entries[index], opening, named=name not in PARTS)


def _row(place: RowIndex, name: str, entry: Entry, opening: Opening, *, named: bool) -> Layer:
    shown = named or name == HANDLER
    qualname, made_of = name_of(entry.callee), _made_of(entry.callee)
    origin = origin_of_class(made_of) if is_class(made_of) else origin_of(made_of)
    return Layer(
        index=place,
        name=name,
        qualname=qualname.replace(":", ".") if shown else name,
        kind="dependency" if named else "part",
        # A dependency may be named like a part: `validate` names the part.
        aliases=frozenset({name.partition("#")[0], qualname.rpartition(":")[2]} - PARTS.keys() if named else ()),
        origin=origin if shown else None,
        adapts=_adapts(entry, opening) if shown else None,
    )


def _adapts(entry: Entry, opening: Opening) -> str | None:
    """Return why the framework calls a handler or a dependency in a thread, None if it does not."""
    if opening.route in HAND_ON_SYNC:
        return SYNC if _is_sync(entry.callee) else None
    return entry.hook.layer.adapts if entry.hook and entry.hook.layer else None


def _is_sync(callee: object) -> bool:
    """Return whether a handler or a dependency is certainly sync. A decorator may have made it of an async function."""
    callee = reading.entered(callee)
    if is_class(callee):
        return True
    functions = [*functions_called(callee)] or [*functions_called(_made_of(callee))]
    return bool(functions) and not any(function.__code__.co_flags & ASYNC for function in functions)


def _made_of(callee: object) -> object:
    """Return the function, class or object of which partials, methods and decorators that are objects were made."""
    for _ in range(MOST_WRAPPERS):
        callee = reading.entered(callee)
        if type(callee) is MethodType:
            callee = callee.__func__
        elif not is_function(callee) and not is_class(callee) and "__wrapped__" in static_dict(callee):
            callee = static_dict(callee)["__wrapped__"]  # as functools.lru_cache sets it
        else:
            break
    return callee


def name_of(callee: object) -> str:
    """Return `module:QualName` of a function or class, and of the class of an object."""
    module, qualname = module_and_name(_made_of(callee))
    return f"{module}:{qualname.replace('.<locals>', '')}"
