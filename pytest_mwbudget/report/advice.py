"""What could be done about a layer: one line where the record of a request has the evidence, and else none. Pure.

A rule is a function of a result and one of its layers. It returns a sentence that says what it saw, or None. What a
record of one request cannot show has no rule: what a layer does for other scopes, such as the lifespan, is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from ..errors import explain_command
from ..model.estimate import Microseconds
from ..model.results import Advice, Counts, LayerReport, Result

Rule: TypeAlias = Callable[[Result, LayerReport], str | None]

# Coroutines of Starlette's class begin so, whatever the class that inherits from it is called.
BASE_HTTP = "starlette.middleware.base.BaseHTTPMiddleware."
# What passing a request on takes it, with room: so many objects, allocations and microseconds for each of its tasks,
# and so many for each message. Who takes more does more than that, and would still do it as a pure ASGI class.
MOST_PER_TASK, MOST_PER_MESSAGE = 500, 100
# Less than this, or than a quarter of the layer's time, is no reason to rewrite anything.
LARGE_US, LARGE_SHARE = 50.0, 0.25
# A stream has so many messages and more; a response that was put together has a start, a body and perhaps an end.
STREAMED, TOGETHER = 10, 3
NO_BODY = (204, 304)
# With so many messages, a number of objects that is a multiple of theirs, but for an eighth, is hardly by chance one.
MANY_MESSAGES, REMAINDER_SHARE = 50, 0.125
MOST_OBJECTS_SHARE = 0.75


def advise(result: Result) -> Iterator[Advice]:
    """Advice for each layer, outermost first, one for each rule at most."""
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
    took = f", {_us(report.us.estimate)} in all" if report.us and math.isfinite(report.us.half_width) else ""
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
        f"{report.name} holds the event loop for {_us(occupation.busy.estimate)} per request, in"
        f" {_us(occupation.cpu_us)} of which the processor works; it blocks every other request meanwhile: call what it"
        " waits for in a worker thread, or use an async library for it"
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
        f"{report.name} waits for {_us(occupation.wait_us)} of its {_us(us.estimate)} per request, and the request with"
        " it: keep the answer in a cache, wait for several things at once, or do it after the response"
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
        f"{report.name} takes {_us(us.estimate)} for {messages} messages, {_us(us.estimate / messages)} each, and"
        f" {created} of its {counts.objects.count} objects come with the messages; send fewer and larger ones, or hand"
        " send on as it is where only the request matters"
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
    """The counts of what stands directly inside a layer, None where no probe stood at that boundary."""
    for row in result.layers:
        if row.layer.entered and row.layer.index > report.layer.index:
            return row.counts
    return result.ledger.endpoint if result.ledger else None


def _multiples(kinds: Mapping[str, int], messages: int) -> dict[str, int]:
    """The types of which there is a whole number for each message, and a few more."""
    few = REMAINDER_SHARE * messages
    return {kind: number for kind, number in kinds.items() if number >= messages and number % messages <= few}


def _us(value: Microseconds) -> str:
    return f"{value:.2f} µs" if value < 10 else f"{value:.1f} µs" if value < 1000 else f"{value:.0f} µs"
