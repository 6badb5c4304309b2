"""Advice on a layer, where the result of a request has the evidence. Pure.

A rule is a function of a result and one of its layers. It returns a sentence with what it saw, or None. No rule is
about other scopes, such as the lifespan: the result of one request does not show what a layer does for them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..errors import explain_command
from ..model.results import Advice, Counts, LayerReport, Result
from .text import figure

Rule: TypeAlias = Callable[[Result, LayerReport], str | None]

# The qualified names of the coroutines of Starlette's class begin so, also in subclasses.
BASE_HTTP = "starlette.middleware.base.BaseHTTPMiddleware."
# BaseHTTPMiddleware needs at most about this many objects, allocations and microseconds for each of its tasks and each
# message. A layer that takes more does work of its own, and would still do this work as a pure ASGI class.
MOST_PER_TASK, MOST_PER_MESSAGE = 500, 100
# Below these, in time or as a share of the layer's time, rewriting a layer does not pay.
LARGE_US, LARGE_SHARE = 50.0, 0.25
# A stream has at least STREAMED messages; a complete response has a start, a body and perhaps an end.
STREAMED, TOGETHER = 10, 3
NO_BODY = (204, 304)
# With this many messages, a number of objects is hardly a multiple of theirs, but for REMAINDER_SHARE, by chance.
MANY_MESSAGES, REMAINDER_SHARE = 50, 0.125
MOST_OBJECTS_SHARE = 0.75


def advise(result: Result) -> Iterator[Advice]:
    """Yield the advice for each layer, outermost first; each rule gives at most one."""
    for report in result.layers:
        for name, rule in RULES.items():
            text = rule(result, report)
            if text is not None:
                yield Advice(report.name, name, text, explain_command(name))


# ---- rules ------------------------------------------------------------------------------------------------------


def pass_through(result: Result, report: LayerReport) -> str | None:
    """A BaseHTTPMiddleware that does little besides being one."""
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


def blocking(result: Result, report: LayerReport) -> str | None:
    """A layer that holds the event loop without working."""
    occupation = report.occupation
    if occupation is None or not occupation.blocking or occupation.cpu_us is None:
        return None
    return (
        f"{report.name} holds the event loop for {figure(occupation.busy.estimate)} µs per request, in"
        f" {figure(occupation.cpu_us)} µs of which the processor works; it blocks every other request meanwhile: call"
        " what it waits for in a worker thread, or use an async library for it"
    )


def buffering(result: Result, report: LayerReport) -> str | None:
    """A layer that holds a streamed response back until it is complete."""
    inner = _inside(result, report)
    if report.counts is None or inner is None or result.request.method == "HEAD" or result.status in NO_BODY:
        return None
    taken, passed = inner.sent.count, report.counts.sent.count
    if taken < STREAMED or passed > TOGETHER:
        return None
    return (
        f"{report.name} is sent {taken} messages and sends {passed}: what comes as a stream goes out as a whole, or as"
        " something else; send each message on when it comes, unless its work needs the whole body"
    )


def waiting(result: Result, report: LayerReport) -> str | None:
    """A layer that is suspended for much of its time."""
    us, occupation = report.us, report.occupation
    if us is None or occupation is None:
        return None
    # The wait has no interval of its own: it is the difference of two numbers that have.
    unsure = us.half_width + occupation.busy.half_width
    if occupation.wait_us <= max(LARGE_US, LARGE_SHARE * us.estimate, unsure):
        return None
    return (
        f"{report.name} waits for {figure(occupation.wait_us)} µs of its {figure(us.estimate)} µs per request, and the"
        " request with it: keep the answer in a cache, wait for several things at once, or do it after the response"
    )


def per_message(result: Result, report: LayerReport) -> str | None:
    """A layer most of whose objects are made once, or several times, for each message."""
    us, counts = report.us, report.counts
    if us is None or us.low < LARGE_US or counts is None or counts.objects is None:
        return None
    messages = counts.sent.count
    if messages < MANY_MESSAGES:
        return None
    kinds = _multiples(counts.objects.kinds, messages)
    created = sum(kinds.values())
    # A function round send that awaits is one coroutine for each message.
    if "builtins.coroutine" not in kinds or created < MOST_OBJECTS_SHARE * counts.objects.count:
        return None
    return (
        f"{report.name} takes {figure(us.estimate)} µs for {messages} messages, {figure(us.estimate / messages)} µs"
        f" each, and {created} of its {counts.objects.count} objects come with the messages; send fewer and larger"
        " ones, or hand send on as it is where only the request matters"
    )


RULES: Mapping[str, Rule] = {
    "pass-through": pass_through,
    "blocking": blocking,
    "buffering": buffering,
    "waiting": waiting,
    "per-message": per_message,
}


# ---- what they look at ------------------------------------------------------------------------------------------


def _inside(result: Result, report: LayerReport) -> Counts | None:
    """Find the counts of what is directly inside a layer; None where no probe stood at that boundary."""
    for row in result.layers:
        if row.layer.entered and row.layer.index > report.layer.index:
            return row.counts
    return result.ledger.endpoint if result.ledger else None


def _multiples(kinds: Mapping[str, int], messages: int) -> dict[str, int]:
    """Keep the types whose number is a multiple of the messages, or slightly more."""
    few = REMAINDER_SHARE * messages
    return {kind: number for kind, number in kinds.items() if number >= messages and number % messages <= few}
