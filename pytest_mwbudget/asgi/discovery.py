"""Find the layers of a stack by tracing which ASGI callables requests go through: two, and more where these differ.

No framework is imported and no attribute name is guessed. A call with an HTTP scope and two callables among its
arguments enters an ASGI callable. An ASGI callable that is the same object in both requests is part of the stack. An
object that is made for each request, such as a response or an exception wrapper, belongs to the layer that made it. A
function that returns a value of its own and sends nothing is a helper, not a layer. Decision 0003 has the details.

Where requests take different ways, the stack is that of the way which most of the traced requests took.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import TypeAlias

from ..interpreter.clocks import perf_counter_ns
from ..interpreter.code_patching import is_plain
from ..model.stack import EntryIndex, Kind, outwards
from . import loops
from .app import Observer
from .callables import is_function, is_response, kind_of, maker_of, method_name
from .calls import Key, Spot
from .layers import ELSEWHERE, OUTLIVES, UNSEEN, held_app, is_entered_again, with_layers
from .parts import with_parts
from .stack import Entry, Stack
from .tracing import Trace, TracedCall

# A function, and the arguments that tell its layers apart. Equal for all calls of one ASGI callable.
Identity: TypeAlias = tuple[int, Key]


# Where two requests do not show the stack, up to this many are traced within this time.
MOST_TRACED, TRACING_NS = 16, 300_000_000


async def discover(call: Callable[[Observer], Awaitable[object]], *, thorough: bool = False) -> Stack:
    """Trace two requests and return their stack. `call` makes a request under an observer.

    More requests are traced if `thorough`, if the two took different ways, if a layer answered in place of the app
    inside it, which it may do now and then, or if layers were made anew.
    """
    traces = [await _traced(call), await _traced(call)]
    stack = stack_of(*traces)
    if not thorough and stack.settled and _way(traces[0]) == _way(traces[1]):
        return stack
    begin = perf_counter_ns()
    while len(traces) < MOST_TRACED and perf_counter_ns() - begin < TRACING_NS:
        traces.append(await _traced(call))
    return _stack_of_most(traces)


async def _traced(call: Callable[[Observer], Awaitable[object]]) -> Trace:
    trace = Trace()
    await call(trace.observe)
    return trace


def _way(trace: Trace) -> frozenset[object]:
    """Return which code a request entered from which, and how often. Equal for objects that are made anew."""
    entered = Counter((call.frame.f_code, call.parent and call.parent.frame.f_code) for call in _layer_calls(trace))
    return frozenset(entered.items())


def _stack_of_most(traces: Sequence[Trace]) -> Stack:
    """Return the stack of the way that most requests took; of equally common ways, the way that enters most.

    What only other ways enter becomes its strays. Layers that are made anew now and then are those of two requests
    between which they were not: then it shows that later requests enter others.
    """
    by_way: dict[frozenset[object], list[Trace]] = {}
    for trace in traces:
        by_way.setdefault(_way(trace), []).append(trace)
    ways = sorted(by_way.values(), key=lambda same: (len(same), len(same[-1].calls)), reverse=True)
    latest = reversed([*pairwise(ways[0] if len(ways[0]) > 1 else traces)])
    stacks = [stack_of(*next(latest))]
    while stacks[-1].anew and (pair := next(latest, None)):
        stacks.append(stack_of(*pair))
    stack = stacks[0] if stacks[-1].anew else stacks[-1]
    entries = list(stack.entries)
    known = {entry.identity: EntryIndex(index) for index, entry in enumerate(entries)}
    for same in ways[1:]:
        other = stack_of(*(same if len(same) > 1 else same * 2)[-2:])
        for index in other.probeable:
            entry = other.entries[index]
            if entry.identity not in known:
                around = outwards(other.entries, entry.parent)
                parent = next((known[key] for outer in around if (key := other.entries[outer].identity) in known), None)
                known[entry.identity] = EntryIndex(len(entries))
                # The traced way does not enter it.
                stray = replace(entry, parent=parent, parents=(), own_task=False, part_of=None)
                entries.append(replace(stray, same_send=False, same_receive=False))
    strays = range(len(stack.entries), len(entries))
    return replace(stack, entries=tuple(entries), strays=tuple(map(EntryIndex, strays)))


def stack_of(first: Trace, second: Trace) -> Stack:
    """Return the stack that both traced requests went through."""
    before, after = _layer_calls(first), _layer_calls(second)
    telling = _telling_spots(before, after)
    lasting, layer_calls = {_identity(call, telling) for call in before}, set(after)
    # The calls of each entry, the first call before those that enter it once more.
    entered: dict[Identity, list[TracedCall]] = {}
    index_of: dict[TracedCall, EntryIndex] = {}
    for call in second.calls:
        identity = _identity(call, telling)
        # An object that calls itself enters its boundary again, where its probe stands.
        if identity in entered or (identity in lasting and call in layer_calls):
            entered.setdefault(identity, []).append(call)
            index_of[call] = index_of.get(entered[identity][0], EntryIndex(len(entered) - 1))
    displaced = first.displaced or second.displaced
    # A profiler of the app hides the end of calls.
    lasting_calls = [] if displaced else [call for call in (*before, *after) if not call.over]
    outliving = {_identity(call, telling) for call in lasting_calls}
    entries: list[Entry] = []
    for identity, calls in entered.items():
        entries.append(_entry(calls, index_of, telling, entries, outlives=identity in outliving))
    # Layers of a framework send nothing themselves. A layer that raises leaves the response to those outside.
    asgi_calls = [call for calls in entered.values() if calls[0].hook is None for call in calls]
    why_unseen = None
    if any(entry.outlives for entry in entries):
        why_unseen = OUTLIVES
    elif asgi_calls and not any(call.sent for call in asgi_calls):
        why_unseen = ELSEWHERE
    elif first.unwatched or second.unwatched:
        why_unseen = UNSEEN
    tasks = {call.task for call in second.calls if not call.elsewhere}
    anew = _made_anew(second, layer_calls, index_of)
    stack = with_layers(entries, tasks=len(tasks) > 1, displaced=displaced, why_unseen=why_unseen, anew=anew)
    stack = replace(stack, uncut=second.uncut, anew=bool(anew))
    with loops.unwatched():
        return with_parts(stack, first, second, list(entered.values()))


def _made_anew(
    trace: Trace, layer_calls: Collection[TracedCall], index_of: Mapping[TracedCall, EntryIndex]
) -> list[tuple[EntryIndex | None, object]]:
    """Return the layers that were made for this request, each with the entry that it is in.

    These are objects that enter other callables. A function that is made for a request, such as an exception wrapper,
    cannot be told from a part of its maker.
    """
    outer = {outer_call for call in layer_calls for outer_call in call.outer()}
    made: dict[int, tuple[EntryIndex | None, object]] = {}
    for call in trace.calls:
        new = call in layer_calls and call in outer and call not in index_of and call.hook is None
        if new and not is_function(call.callee) and kind_of(call.callee) != "routing":
            around = next((index_of[outer_call] for outer_call in call.outer() if outer_call in index_of), None)
            made.setdefault(id(call.callee), (around, call.callee))
    return list(made.values())


def _entry(
    calls: Sequence[TracedCall],
    index_of: Mapping[TracedCall, EntryIndex],
    telling: Mapping[int, frozenset[Spot]],
    outer_entries: Sequence[Entry],
    *,
    outlives: bool,
) -> Entry:
    call = calls[0]
    outer_calls = [next((outer for outer in each_call.outer() if outer in index_of), None) for each_call in calls]
    parents = tuple(None if outer is None else index_of[outer] for outer in outer_calls)
    outer = outer_calls[0]
    function = None if (call.elsewhere or outlives) and call.hook is None else call.function
    return Entry(
        parent=parents[0],
        parents=parents,
        own_task=outer is not None and call.task is not outer.task and not call.elsewhere,
        same_send=outer is not None and call.call.send is outer.call.send,
        same_receive=outer is not None and call.call.receive is outer.call.receive,
        plain=function is not None and is_plain(function),
        part_of=_first_part(call, outer_entries),
        callee=call.callee,
        function=function,
        call=call.call,
        telling=telling.get(call.entered, frozenset()),
        kind=_kind(call, outer_entries),
        elsewhere=call.elsewhere,
        hook=call.hook,
        seam=call.seam,
        outlives=outlives,
    )


def _first_part(call: TracedCall, outer_entries: Sequence[Entry]) -> EntryIndex | None:
    """Return the first entry of the framework's layer or endpoint that a call enters, None if it is this call's."""
    hook = call.hook
    for index, entry in enumerate(outer_entries):
        if hook and entry.hook and entry.hook.seam is hook.seam and entry.hook.layer is hook.layer:
            return EntryIndex(index)
    return None


def _kind(call: TracedCall, outer_entries: Sequence[Entry]) -> Kind:
    """Return "routing" for an app: with layers of its framework, or entered again inside its own layers."""
    if call.hook is not None:
        return "middleware"
    again = call.seam is not None or is_entered_again(call.callee, call.function, outer_entries)
    return "routing" if again else kind_of(call.callee)


# ---- which arguments tell layers apart ------------------------------------------------------------------------------


def _identity(call: TracedCall, telling: Mapping[int, frozenset[Spot]]) -> Identity:
    return call.entered, call.call.key_of(telling.get(call.entered, frozenset()))


def _telling_spots(first: Sequence[TracedCall], second: Sequence[TracedCall]) -> dict[int, frozenset[Spot]]:
    """Return for each function the spots of the arguments that tell its layers apart.

    For an object, the object. For a function, all arguments but those made for each call. Arguments before the scope
    always count: a callable that is made for one request belongs to its maker.
    """
    calls: dict[int, tuple[list[TracedCall], list[TracedCall]]] = {}
    for number, trace in enumerate((first, second)):
        for call in (each_call for each_call in trace if each_call.hook is None):
            calls.setdefault(call.entered, ([], []))[number].append(call)
    return {entered: _telling_spots_of(*both) for entered, both in calls.items()}


def _telling_spots_of(first: Sequence[TracedCall], second: Sequence[TracedCall]) -> frozenset[Spot]:
    every = [*first, *second]
    some = every[0].call
    held = some.within is not None
    leads = frozenset(range(some.lead_count)) if not held else frozenset()
    if not held and any(call.callee is call.call.lead for call in every if call.call.lead is not None):
        return leads
    spots = {spot for call in every for spot, _ in call.call.others()}
    same = {spot for spot in spots if _values_at(spot, first).keys() == _values_at(spot, second).keys()}
    same |= leads
    if held and not any(value is not None for spot in same for value in _values_at(spot, every).values()):
        return frozenset(spots)  # no argument lasts
    # Calls inside one another are different layers, even if only an argument made for the call tells them apart.
    return frozenset(spots if same != spots and (_nested(first, same) or _nested(second, same)) else same)


def _values_at(spot: Spot, calls: Iterable[TracedCall]) -> dict[int, object]:
    """Return the arguments at a spot of these calls, by identity."""
    return {id(value): value for call in calls for where, value in call.call.others() if where == spot}


def _nested(calls: Sequence[TracedCall], spots: set[Spot]) -> bool:
    """Return whether a call of a function is inside another call that has the same arguments at these spots."""
    keys = {call: call.call.key_of(frozenset(spots)) for call in calls}
    return any(keys.get(outer) == key for call, key in keys.items() for outer in call.outer())


# ---- which calls enter a layer --------------------------------------------------------------------------------------


def _layer_calls(trace: Trace) -> list[TracedCall]:
    """Name the callees of a trace, and return the calls that can enter a layer.

    The others are what an object calls of itself, helpers and responses.
    """
    kept: list[TracedCall] = []
    for call in trace.calls:
        if call.hook is not None:
            call.callee = call.hook.function if call.hook.layer is None else call.hook.layer.callee
            kept.append(call)
            continue
        lead, parent, code = call.call.lead, call.parent, call.frame.f_code
        # A middleware of Litestar is an object that makes a function, which calls a method of the object.
        if parent is not None and lead is not None and maker_of(parent.function) is lead:
            parent.callee = lead
        method = method_name(lead, code)
        # `super().__call__`, `Router.app`, a decorated or patched method.
        of_lead = parent is not None and lead is not None and parent.callee is lead
        own = of_lead and (method is not None or not _enters(lead, call, trace))
        if own or method is not None or (call.call.within is not None and lead is not None):
            call.callee = lead
        else:
            call.callee = code if call.function is None else call.function
            call.seam = None  # of an app that the function passes the request to
        if not (
            own
            or _is_helper(call, trace)
            or _comes_after_the_answer(call, trace)
            or _is_decorated(call)
            or _is_routers_way(call, method)
            or is_response(call.callee)
        ):
            kept.append(call)
    return kept


def _enters(app: object, call: TracedCall, trace: Trace) -> bool:
    """Return whether a call enters an app, as a function does that got the app as its argument."""
    inner = (each_call for each_call in trace.calls if each_call.parent is call and each_call.call.lead is app)
    return any(method_name(app, each_call.frame.f_code) == "__call__" for each_call in inner)


def _is_helper(call: TracedCall, trace: Trace) -> bool:
    """Return whether the call asks for a value: `if not await allowed(scope, receive, send)`.

    A helper sends nothing, and returns a value that no call inside it returned.
    """
    if call.unawaited:
        return True
    # An app that it holds may have sent the response in a thread that could not be watched.
    unknown = trace.unwatched and held_app(call.callee, ()) is not None
    if unknown or call.answer is None or call.sent:
        return False
    return not any(inner.answer is call.answer and call in inner.outer() for inner in trace.calls)


def _comes_after_the_answer(call: TracedCall, trace: Trace) -> bool:
    """Return whether another app has answered, and this one is called besides: to mirror or to audit the request.

    Once the calling layer has sent a whole response, nothing that this app sends reaches the client.
    """
    if (call.sent and not call.late) or trace.unwatched:
        return False
    before = takewhile(lambda other: other is not call, trace.calls)
    around = {*call.outer()}
    # A layer that sends a response and then calls the app has answered itself.
    return any(other.sent and other not in around and not is_response(other.callee) for other in before)


def _is_decorated(call: TracedCall) -> bool:
    """Return whether a decorator like wrapt's, which got the arguments in a tuple, calls the decorated function."""
    parent = call.parent
    return parent is not None and parent.call.within is not None and call.callee is parent.callee


def _is_routers_way(call: TracedCall, method: str | None) -> bool:
    """Return whether a router uses a method like `Route.handle` to enter an object that has a `__call__`."""
    dispatched = call.parent is not None and kind_of(call.parent.callee) == "routing"
    return dispatched and method not in (None, "__call__") and callable(call.call.lead)
