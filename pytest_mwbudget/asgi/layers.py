"""Tell layers from the app object and from the endpoint, and name them with those that were not entered."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from types import MethodType

from ..interpreter.code_patching import Function
from ..model.stack import ENDPOINT, OUTERMOST, EntryIndex, Layer, RowIndex, outwards, parts_of
from ..model.stack import OUTSIDE as OUTSIDE_ROW
from . import loops
from .callables import held_values, is_function, kind_of, looks_asgi, maker_of, reached, without_transparent_proxies
from .naming import aliases_of, display_name, numbered, qualname_of
from .origins import origin_of
from .stack import Entry, HandedOn, Stack

OUTSIDE = "the outside of the stack"
MADE_ANEW = "it is made anew for each request, so no probe can be at its boundary"
NO_FUNCTION = "the function behind it cannot be told from others made of the same code"
ELSEWHERE = "{} runs what is inside it in another thread"
OUTLIVES = "{} answers before what is inside it has ended"
UNSEEN = "{} answered without the app inside it, or ran that app in another thread, which could not be watched"


def with_layers(
    entries: Sequence[Entry],
    *,
    tasks: bool,
    displaced: bool,
    why_unseen: str | None,
    anew: Iterable[tuple[EntryIndex | None, object]],
) -> Stack:
    """Return the stack of these entries.

    `why_unseen` says why layers may have been entered and not seen, None when there are none. `anew` are layers that
    are made anew for each request, each with the entry around it.
    """
    # The innermost app with layers of its framework.
    app = next((EntryIndex(i) for i in reversed(range(len(entries))) if entries[i].seam is not None), None)
    endpoint = _endpoint(entries, app)
    outside = bool(entries) and endpoint != 0 and _is_app(entries)
    last = len(entries) if endpoint is None else endpoint
    if app is not None:
        last = app if app == endpoint else app + 1
    asgi = range(1 if outside else 0, last)
    rows = [_Row(EntryIndex(i), entries[i].callee) for i in asgi if entries[i].hook is None]
    if app is None:
        rows += [_Row(None, inner) for inner in (_not_entered(entries) if endpoint is None else ())]
    else:
        rows += _framework_layers(entries, app, all_of_them=endpoint is None)
        why_unseen = None
    # Those inside a layer are in its row, which has a budget.
    merged = {None: OUTSIDE_ROW, endpoint: ENDPOINT} | ({OUTERMOST: OUTSIDE_ROW} if outside else {})
    rows += [_Row(None, callee, merged_with=merged[around]) for around, callee in anew if around in merged]
    names = numbered([row.name or display_name(row.callee) for row in rows])
    with loops.unwatched():
        origins = [origin_of(row.callee) for row in rows]
    name_of = {row.entry: name for row, name in zip(rows, names, strict=True) if row.entry is not None}
    handed_on = _handed_on(entries, endpoint, name_of, why_unseen)
    layers: list[tuple[EntryIndex | None, Layer]] = []
    for place, (row, name, origin) in enumerate(zip(rows, names, origins, strict=True)):
        index = row.entry
        merged_with = merged_because = None
        if row.merged_with is not None:
            merged_with, merged_because = row.merged_with, MADE_ANEW
        elif index is None and handed_on is not None:
            merged_with, merged_because = handed_on.to_layer, handed_on.because
        elif index is not None and entries[index].function is None:
            merged_with = _nearest(entries, entries[index].parent, name_of)
            merged_because = _why_no_function(entries[index]).format(merged_with)
        parts = () if index is None else parts_of(entries, index)
        layer = Layer(
            index=RowIndex(place),
            name=name,
            qualname=qualname_of(row.callee),
            kind="routing" if index is not None and entries[index].seam is not None else kind_of(row.callee),
            aliases=aliases_of(row.callee, name),
            entered=index is not None or handed_on is not None or merged_with is not None,
            runs_task=any(entry.own_task and entry.parent in parts for entry in entries),
            merged_with=merged_with,
            merged_because=merged_because,
            origin=origin,
            adapts=row.adapts,
        )
        layers.append((index, layer))
    return Stack(
        entries=tuple(entries),
        probeable=tuple(_probeable(entries, endpoint, app)),
        endpoint=None if handed_on is not None else endpoint,
        outside=outside,
        layers=tuple(layers),
        tasks=tasks,
        displaced=displaced,
        threads=any(entry.elsewhere for entry in entries) or (handed_on is not None and why_unseen != OUTLIVES),
        handed_on=handed_on,
    )


def _why_no_function(entry: Entry) -> str:
    """Return why no probe can stand at an entry, with a place for the name of the layer outside it."""
    if entry.outlives:
        return OUTLIVES
    return ELSEWHERE if entry.elsewhere else NO_FUNCTION


@dataclass(frozen=True, slots=True)
class _Row:
    """A layer to show: its first entry, None if the request did not enter it, and what names it.

    `name` is a name that its framework has for it, None for that of the callee. `merged_with` is the row that contains
    a layer which is made anew for each request.
    """

    entry: EntryIndex | None
    callee: object
    adapts: str | None = None
    name: str | None = None
    merged_with: str | None = None


def _framework_layers(entries: Sequence[Entry], app: EntryIndex, *, all_of_them: bool) -> Iterator[_Row]:
    """Yield the layers of an app's framework in their order there, those that were not entered only if asked."""
    seam = entries[app].seam
    for layer in () if seam is None else seam.layers:
        own = (i for i, entry in enumerate(entries) if entry.hook is not None and entry.hook.layer is layer)
        first = next(map(EntryIndex, own), None)
        if first is not None or all_of_them:
            yield _Row(first, layer.callee, layer.adapts, layer.name)


def _probeable(entries: Sequence[Entry], endpoint: EntryIndex | None, app: EntryIndex | None) -> Iterator[EntryIndex]:
    """Yield the entries at whose boundary a probe can stand: ASGI callables down to the endpoint, and the app's hooks.

    An app of a framework that gave up before this app was entered is a layer with its hooks.
    """
    last = len(entries) - 1 if endpoint is None else endpoint
    for index, entry in enumerate(entries):
        shown = index <= (last if app is None else app) if entry.hook is None else _is_of(entry, entries, app)
        if entry.function is not None and shown:
            yield EntryIndex(index)


def _is_of(entry: Entry, entries: Sequence[Entry], app: EntryIndex | None) -> bool:
    """Return whether an entry is a hook of an app."""
    return app is not None and entry.hook is not None and entry.hook.seam is entries[app].seam


def _endpoint(entries: Sequence[Entry], app: EntryIndex | None) -> EntryIndex | None:
    """Return where the endpoint begins: at the last callable entered, and the routing that leads to nothing else.

    None when that callable holds an ASGI app that it did not call: it is a layer that answered by itself. In an app
    with layers of its framework, the framework says where.
    """
    if app is not None:
        return _frameworks_endpoint(entries, app)
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


def _frameworks_endpoint(entries: Sequence[Entry], app: EntryIndex) -> EntryIndex | None:
    """Return where the endpoint of an app begins that has layers of its framework, None if a layer answered."""
    seam = entries[app].seam
    if seam is None or not seam.endpoint:
        return app
    own = (i for i, entry in enumerate(entries) if _is_of(entry, entries, app) and entry.hook and not entry.hook.layer)
    return next(map(EntryIndex, own), None)


def _is_app(entries: Sequence[Entry]) -> bool:
    """Return whether entry 0 is the app object: it has routes, or is entered again inside its own layers."""
    app, inner = entries[:1], entries[1:]
    return app[0].kind == "routing" or any(is_entered_again(entry.callee, entry.function, app) for entry in inner)


def is_entered_again(callee: object, function: Function | None, entries: Sequence[Entry]) -> bool:
    """Return whether the object is one of the entries already, by another of its methods.

    An object that wraps two apps in the same way is two layers.
    """
    before = [entry.function for entry in entries if entry.callee is callee]
    other = function is None or any(each is None or _own_code(each) is not _own_code(function) for each in before)
    return bool(before) and other and not is_function(callee)


def _own_code(function: Function) -> object:
    """Return the code of a function, or of the function inside its decorator."""
    return getattr(vars(function).get("__wrapped__"), "__code__", function.__code__)


# ---- layers that are measured together ------------------------------------------------------------------------------


def _nearest(entries: Sequence[Entry], index: EntryIndex | None, name_of: Mapping[EntryIndex, str]) -> str:
    """Return the name of the nearest layer from `index` outwards that has a boundary of its own."""
    named = takewhile(lambda outer: outer in name_of, outwards(entries, index))
    return next((name_of[outer] for outer in named if entries[outer].function is not None), OUTSIDE)


def _handed_on(
    entries: Sequence[Entry], endpoint: EntryIndex | None, name_of: Mapping[EntryIndex, str], why_unseen: str | None
) -> HandedOn | None:
    """Return the layer with which the endpoint is measured: it ran in another thread, or outlives the request."""
    entry = None if endpoint is None else entries[endpoint]
    if entry is not None and entry.function is None and (entry.elsewhere or entry.outlives):
        layer = _nearest(entries, entry.parent, name_of)
        return HandedOn(layer, _why_no_function(entry).format(layer), complete=True)
    if endpoint is not None or not entries or why_unseen is None:
        return None
    layer = _nearest(entries, EntryIndex(len(entries) - 1), name_of)
    return HandedOn(layer, why_unseen.format(layer), complete=False)


# ---- layers that were not entered -----------------------------------------------------------------------------------


def _not_entered(entries: Sequence[Entry]) -> Iterator[object]:
    """Yield the layers inside the layer that answered, each held by the layer before it."""
    inner = _inner_app(entries) if entries else None
    seen: set[int] = set()
    while inner is not None and id(inner) not in seen and kind_of(inner) != "routing":
        following = held_app(inner, entries)
        if following is None:
            return
        seen.add(id(inner))
        maker = maker_of(inner)
        yield maker if maker is not None else inner.func if type(inner) is functools.partial else inner
        inner = following


def _inner_app(entries: Sequence[Entry]) -> object | None:
    """Return the app that the innermost entry holds or is called with and did not enter.

    What stands outside of the innermost entry is no such app, such as a route. An object that was entered outside of it
    may enter another app where it is entered again.
    """
    innermost = entries[-1]
    bound = [value for _, value in innermost.call.others()]
    if maker_of(innermost.function) is innermost.callee:
        bound += held_values(innermost.function)

    def not_entered_in(app: object) -> Iterable[object]:
        return () if _is_entered(app, entries) else _held_apps(app)

    def entered_in(app: object) -> Iterable[object]:
        return _held_apps(app) if _is_entered(app, entries) and kind_of(app) != "routing" else ()

    def is_outside(app: object) -> bool:
        return any(_is_entered_by(inner, innermost) for inner in reached(_held_apps(app), not_entered_in))

    held = reached(_held_apps(innermost.callee, bound), entered_in)
    return next((app for app in held if not _is_entered(app, entries) and not is_outside(app)), None)


def _held_apps(callee: object, bound: Iterable[object] = ()) -> Iterator[object]:
    """Yield the ASGI callables that `callee` holds in an attribute, a cell or a bound argument."""
    function = callee.func if type(callee) is functools.partial else None
    for value in map(without_transparent_proxies, (*bound, *held_values(callee))):
        if value is not function and looks_asgi(value):
            yield value.__self__ if type(value) is MethodType else value


def held_app(callee: object, entries: Sequence[Entry]) -> object | None:
    """Return an ASGI callable that `callee` holds and that was not entered."""
    return next((app for app in _held_apps(callee) if not _is_entered(app, entries)), None)


def _is_entered(app: object, entries: Sequence[Entry]) -> bool:
    return any(_is_entered_by(app, entry) for entry in entries)


def _is_entered_by(held: object, entry: Entry) -> bool:
    """Return whether the entry is a call of `held`: for a partial, a call of its function with all bound arguments."""
    if type(held) is not functools.partial:
        return entry.callee is held
    passed = {id(value) for _, value in entry.call.others()}
    return entry.callee is held.func and all(id(value) in passed for value in (*held.args, *held.keywords.values()))
