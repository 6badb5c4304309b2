"""Advice on a layer or a part of the endpoint, given only on evidence in the result of a request. Pure.

A rule is a function of a result and one of its rows. It returns a sentence that cites the evidence, or None. Rules
cover requests only: the result of a request does not show what a layer does in other scopes, such as the lifespan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..errors import explain_command
from ..model.endpoint import HANDLER, SERIALIZE, VALIDATE
from ..model.results import Advice, Counts, Result, ResultRow
from ..model.stack import ENDPOINT, OUTSIDE
from . import shareable
from .text import figure

Rule: TypeAlias = Callable[[Result, ResultRow], str | None]

# Prefix of the qualified names of the coroutines of Starlette's class, also in subclasses.
BASE_HTTP = "starlette.middleware.base.BaseHTTPMiddleware."
# About the most objects, allocations or microseconds that BaseHTTPMiddleware itself needs for each task and each
# message. A layer above this limit does work of its own, which a pure ASGI class would do too.
MOST_PER_TASK, MOST_PER_MESSAGE = 500, 100
# Advice on time needs at least this much: in µs per request, and as a share of the layer's time.
LARGE_US, LARGE_SHARE = 50.0, 0.25
# A part of the endpoint that takes more µs for each way to a thread does something there that may block.
MOST_HOP_US = 300.0
# A streamed response has at least STREAMED messages; a complete one has at most TOGETHER (start, body, perhaps an end).
STREAMED, TOGETHER = 10, 3
NO_BODY = (204, 304)
# From MANY_MESSAGES on, an object count is rarely a multiple of the message count by chance. REMAINDER_SHARE is the
# remainder that still counts as a multiple, as a share of the messages.
MANY_MESSAGES, REMAINDER_SHARE = 50, 0.125
MOST_OBJECTS_SHARE = 0.75


def advise(result: Result) -> Iterator[Advice]:
    """Yield the advice for each row, outermost first, then for each part: at most one sentence for each rule.

    A dependency that replaces another one in the test gets none: its cost is not a cost of the app.
    """
    observed = result.endpoint.observed if result.endpoint else None
    stand_ins = observed.stand_ins if observed else ()
    parts = [part for part in result.endpoint.parts if part.name not in stand_ins] if result.endpoint else []
    # An endpoint that has parts gets its advice on them.
    opened = result.endpoint is not None and result.endpoint.parts
    names = (OUTSIDE,) if opened else (OUTSIDE, ENDPOINT)
    frames = [row for row in result.rows() if row.name in names]
    for rows, rules in ((result.layers, RULES_OF_LAYERS), (frames, RULES_OF_FRAMES), (parts, RULES_OF_PARTS)):
        for report in rows:
            for name, rule in rules.items():
                text = rule(result, report)
                if text is not None:
                    yield Advice(report.name, name, text, explain_command(name))


# ---- rules of layers ------------------------------------------------------------------------------------------------


def pass_through(result: Result, report: ResultRow) -> str | None:
    """Find a BaseHTTPMiddleware whose cost is that of the base class."""
    counts = report.counts
    if counts is None:
        return None
    tasks = sum(number for name, number in counts.tasks.kinds.items() if name.startswith(BASE_HTTP))
    messages = counts.received.count + counts.sent.count
    most = MOST_PER_TASK * tasks + MOST_PER_MESSAGE * messages
    created = counts.objects or counts.allocations
    busy_us = report.occupation.busy.estimate if report.occupation else 0.0
    if not tasks or (created is not None and created.count > most) or busy_us > most:
        return None
    if client_per_request(result, report) is not None:  # which costs more, and remains in a pure ASGI class
        return None
    task, own = ("1 task", "the task") if tasks == 1 else (f"{tasks} tasks", "the tasks")
    what = "objects" if counts.objects else "allocations"
    seen, theirs = (
        (f"{task} and {created.count} {what}", f"{own} and most {what} come") if created else (task, "this comes")
    )
    took = f", {figure(report.us.estimate)} µs in all" if report.us and math.isfinite(report.us.half_width) else ""
    return (
        f"{report.name} needs {seen} per request{took}: {theirs} with BaseHTTPMiddleware, whatever its dispatch does;"
        " a pure ASGI class would do without"
    )


def blocking(result: Result, report: ResultRow) -> str | None:
    """Find a layer that blocks the event loop while the processor is idle."""
    occupation = report.occupation
    if occupation is None or not occupation.blocking or occupation.cpu_us is None:
        return None
    return (
        f"{report.name} holds the event loop for {figure(occupation.busy.estimate)} µs per request, in"
        f" {figure(occupation.cpu_us)} µs of which the processor works; it blocks every other request meanwhile: call"
        " what it waits for in a worker thread, or use an async library for it"
    )


def buffering(result: Result, report: ResultRow) -> str | None:
    """Find a layer that buffers a streamed response, or a request body in parts, until it is complete."""
    inner = _inside(result, report)
    if report.counts is None or inner is None:
        return None
    got, handed = report.counts.received.count, inner.received.count
    if got >= STREAMED and 0 < handed <= TOGETHER:
        return (
            f"{report.name} receives {got} messages of the request and hands on {handed}: it keeps the whole body until"
            " it is complete; look at each part when the app asks for it, unless its work needs the whole body"
        )
    if result.request.method == "HEAD" or result.status in NO_BODY:
        return None
    taken, passed = inner.sent.count, report.counts.sent.count
    if taken < STREAMED or passed > TOGETHER:
        return None
    return (
        f"{report.name} is sent {taken} messages and sends {passed}: what comes as a stream goes out as a whole, or as"
        " something else; send each message on when it comes, unless its work needs the whole body"
    )


def waiting(result: Result, report: ResultRow) -> str | None:
    """Find a layer that is suspended for much of its time."""
    us, occupation = report.us, report.occupation
    if us is None or occupation is None or report.layer.adapts is not None:
        return None
    # The wait has no interval of its own: it is the difference of `us` and `busy`.
    unsure = us.half_width + occupation.busy.half_width
    if occupation.wait_us <= max(LARGE_US, LARGE_SHARE * us.estimate, unsure):
        return None
    return (
        f"{report.name} waits for {figure(occupation.wait_us)} µs of its {figure(us.estimate)} µs per request, and the"
        " request with it: keep the answer in a cache, wait for several things at once, or do it after the response"
    )


def thread_hops(result: Result, report: ResultRow) -> str | None:
    """Find a layer for which the framework moves each request to a thread."""
    us, why = report.us, report.layer.adapts
    if us is None or us.low < LARGE_US or why is None:
        return None
    return f"{report.name} takes {figure(us.estimate)} µs per request: {why}; {_without_thread(report)}"


def per_message(result: Result, report: ResultRow) -> str | None:
    """Find a layer that creates most of its objects once or several times for each message."""
    us, counts = report.us, report.counts
    if us is None or us.low < LARGE_US or counts is None or counts.objects is None:
        return None
    messages = counts.sent.count
    if messages < MANY_MESSAGES:
        return None
    kinds = _multiples(counts.objects.kinds, messages)
    created = sum(kinds.values())
    # An async function that wraps send creates a coroutine for each message.
    if "builtins.coroutine" not in kinds or created < MOST_OBJECTS_SHARE * counts.objects.count:
        return None
    return (
        f"{report.name} takes {figure(us.estimate)} µs for {messages} messages, {figure(us.estimate / messages)} µs"
        f" each, and {created} of its {counts.objects.count} objects come with the messages; send fewer and larger"
        " ones, or hand send on as it is where only the request matters"
    )


# ---- rules of every row ---------------------------------------------------------------------------------------------


def client_per_request(result: Result, report: ResultRow) -> str | None:
    """Find a row that makes a client, an engine or a pool in each request."""
    counts, us, origin = report.counts, report.us, report.layer.origin
    made = shareable.made(counts.objects.kinds) if counts and counts.objects else {}
    if not made:
        return None
    *first, last = (f"{number} {kind}" for kind, number in made.items())
    listed = f"{', '.join(first)} and {last}" if first else last
    took = f"takes {figure(us.estimate)} µs and " if us and math.isfinite(us.half_width) else ""
    what = "it" if sum(made.values()) == 1 else "them"
    remedy = (
        f"make {what} once, for example in the lifespan, and share {what}"
        if origin is None or origin.own
        else f"it comes from {origin.distribution}, so look for a setting with which it shares {what}"
    )
    return f"{report.name} {took}makes {listed} in each request: {remedy}"


# ---- rules of parts of the endpoint -----------------------------------------------------------------------------


def serialization(result: Result, report: ResultRow) -> str | None:
    """Find an endpoint that spends much of its time on what FastAPI does with the value that the handler returns."""
    observed = result.endpoint.observed if result.endpoint else None
    share = _large_share(result, report, SERIALIZE)
    if share is None or observed is None or not observed.converts or validated_again(result, report) is not None:
        return None
    hops = report.counts.threads.count if report.counts else 0
    in_thread = ", and validates it in a thread, because the handler is not async" if hops else ""
    return (
        f"{share}: FastAPI turns what the handler returns into JSON{in_thread}; a ready Response that the handler"
        " returns does without"
    )


def validated_again(result: Result, report: ResultRow) -> str | None:
    """Find an endpoint for which FastAPI validates models that the handler has made already."""
    observed = result.endpoint.observed if result.endpoint else None
    share = _large_share(result, report, SERIALIZE)
    if share is None or observed is None:
        return None
    for model in observed.models:
        first, again = (_created(result, part, model) for part in (HANDLER, SERIALIZE))
        calls = observed.returned.get(model, 0)
        if 0 < again <= first:
            instead = "a ready Response" if model in observed.returned else "those, or a ready Response"
            return (
                f"{share}: FastAPI makes {again} {model} from what the handler returns, and the handler makes {first}"
                f" itself; return {instead}"
            )
        if calls:
            times = "once" if calls == 1 else f"{calls} times"
            return (
                f"{share}: FastAPI calls validators of {model} {times}, though the handler returns {model} already; a"
                " ready Response that the handler returns does without"
            )
    return None


def thread_hops_of_part(result: Result, report: ResultRow) -> str | None:
    """Find a sync dependency or handler that costs little but the way to a thread and back."""
    us, why, counts = report.us, report.layer.adapts, report.counts
    hops = counts.threads.count if counts else 0
    if us is None or why is None or not hops or us.low < LARGE_US or not us.high <= MOST_HOP_US * hops:
        return None
    ways = "1 thread hop" if hops == 1 else f"{hops} thread hops"
    return f"{report.name} takes {figure(us.estimate)} µs per request, with {ways}: {why}; {_without_thread(report)}"


def solved_again(result: Result, report: ResultRow) -> str | None:
    """Find a dependency that FastAPI calls several times in a request."""
    observed = result.endpoint.observed if result.endpoint else None
    calls = observed.calls.get(report.name, 1) if observed else 1
    if calls < 2 or report.us is None or not report.us.low >= LARGE_US:
        return None
    return (
        f"{report.name} takes {figure(report.us.estimate)} µs per request in {calls} calls: FastAPI does not share its"
        " result, because of use_cache=False or different scopes; call it once, unless each call has to give its own"
    )


def overrides(result: Result, report: ResultRow) -> str | None:
    """Find an endpoint that is much slower than in production, because the test overrides dependencies."""
    observed = result.endpoint.observed if result.endpoint else None
    share = _large_share(result, report, VALIDATE)
    if share is None or observed is None or not observed.rebuilt:
        return None
    entries = "1 entry" if observed.overrides == 1 else f"{observed.overrides} entries"
    times = "once" if observed.rebuilt == 1 else f"{observed.rebuilt} times"
    return (
        f"{share}: dependency_overrides has {entries}, so FastAPI rebuilds a dependency {times} in each request; both"
        " figures are those of this test, and larger than in production"
    )


RULES_OF_LAYERS: Mapping[str, Rule] = {
    "pass-through": pass_through,
    "blocking": blocking,
    "buffering": buffering,
    "waiting": waiting,
    "thread-hops": thread_hops,
    "per-message": per_message,
    "client-per-request": client_per_request,
}
# Of the rows that are neither layers nor parts.
RULES_OF_FRAMES: Mapping[str, Rule] = {"client-per-request": client_per_request}
RULES_OF_PARTS: Mapping[str, Rule] = {
    "client-per-request": client_per_request,
    "serialization": serialization,
    "validated-again": validated_again,
    "thread-hops": thread_hops_of_part,
    "solved-again": solved_again,
    "overrides": overrides,
}
RULES: Mapping[str, Rule] = {**RULES_OF_LAYERS, **RULES_OF_PARTS}


# ---- evidence ---------------------------------------------------------------------------------------------------


def _inside(result: Result, report: ResultRow) -> Counts | None:
    """Find the counts of the row directly inside a layer; None if there was no probe at that boundary."""
    for row in result.layers:
        if row.layer.entered and row.layer.index > report.layer.index:
            return row.counts
    return result.frame("endpoint").counts


def _without_thread(report: ResultRow) -> str:
    """Say what to do about a layer or a part that the framework runs in a thread."""
    origin = report.layer.origin
    if origin is None or origin.own:
        return "if it does not block, write it as async code"
    return f"it comes from {origin.distribution}, so set a budget that includes the thread, or leave it out"


def _large_share(result: Result, report: ResultRow, name: str) -> str | None:
    """Say what the part of this name takes of the endpoint; None unless that is certainly much, and a large share."""
    us, whole = report.us, result.frame("endpoint").us
    if report.name != name or us is None or whole is None or not us.low >= max(LARGE_US, LARGE_SHARE * whole.high):
        return None
    return f"{name} takes {figure(us.estimate)} of the {figure(whole.estimate)} µs of the endpoint per request"


def _created(result: Result, part: str, kind: str) -> int:
    """Return how many objects of a type a part of the endpoint creates, 0 if they were not counted."""
    counted = (row.counts for row in result.endpoint.parts if row.name == part) if result.endpoint else ()
    return sum(counts.objects.kinds.get(kind, 0) for counts in counted if counts and counts.objects)


def _multiples(kinds: Mapping[str, int], messages: int) -> dict[str, int]:
    """Keep the types whose count is a multiple of the message count, or slightly more."""
    few = REMAINDER_SHARE * messages
    return {kind: number for kind, number in kinds.items() if number >= messages and number % messages <= few}
