"""Write the notes that say how far the times of a measurement can be trusted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import tagged
from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate, Microseconds, independent_sum
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL
from .rows import row_with_time
from .verdicts import Look

# The app object outside all layers takes a few microseconds. More than this is the work of code put round it.
OUTSIDE_SHARE, OUTSIDE_US = 0.25, 50.0
# Unattributed time beyond the intervals is noted from this share of the total and this much on.
UNEXPLAINED_SHARE, UNEXPLAINED_US = 0.06, 2.0
# Above an endpoint that waits longer than this, layers cost more. A wait for a thread takes 60 µs and doubles the rows.
COLD_WAIT_US = 40.0
# A note names up to this many figures, and says the number of more.
MOST_NAMED = 3
GUESSED = "Its best is a guess: another thread, perhaps of another virtual machine, used the same core throughout."
# Waits for threads are noted from this share of the figure on.
WAITED_SHARE = 0.1


def remarks(
    look: Look, *, stopped: bool, framework: bool, outside_told: bool, mixed: bool = False, guessed: bool = False
) -> Iterator[str]:
    """Write the notes on the figures of the last look.

    `stopped` says that sampling stopped early, before the figures were precise; `framework` that the app object works
    outside its layers, as those of frameworks with middlewares of their own kind do; `outside_told` that another note
    says what `(outside)` is; `mixed` that the total is of other requests than the rows; `guessed` that the machine's
    best speed is a guess.
    """
    times = _times(look)
    slow = {name: look.estimates.slowdowns[look.keys[name]] for name in times}
    if slowest(look) > 1:
        while_read = _while_read([name for name, slowdown in slow.items() if slowdown > 1], len(slow))
        guess = f" {GUESSED}" if guessed else ""
        yield tagged(
            f"The machine ran {slowest(look):.2f} times slower than at its best{while_read}.{guess}", "slow-machine"
        )
    yield from _waiting(look, times)
    if mixed:
        del times[TOTAL]
    if stopped:
        yield tagged(
            "Sampling stopped as soon as every budget was known to be kept. For precise figures run with -v, or"
            " write a report.",
            "stopped-early",
        )
    else:
        growing = [name for name in times if look.keys[name] in look.estimates.growing]
        yield from _wide({name: us for name, us in times.items() if name not in growing})
        yield from _grow({name: times[name] for name in growing})
    if not mixed:
        yield from _unexplained(times, look.estimates.others)
    yield from _beside(look.estimates.others, look.estimates.whole)
    yield from _cold(look)
    if not outside_told and _much_outside(look):
        own = "what the app object does before and after its middlewares, and " if framework else ""
        yield tagged(
            f"(outside) is {own}code around the app object, such as Sentry or OpenTelemetry: not a layer, and in no"
            " budget but outside_us and total_us.",
            "outside",
        )


def on_parts(parts: Mapping[str, Estimate], endpoint: Estimate) -> Iterator[str]:
    """Write the notes on the parts of the endpoint, which were timed in other requests than the whole endpoint."""
    yield from _wide(parts)
    rest = independent_sum(*parts.values(), -endpoint)
    if _beyond(rest, endpoint):
        more = "more" if rest.estimate > 0 else "less"
        yield tagged(
            f"The parts add up to {abs(rest.estimate) / endpoint.estimate:.0%} {more} than (endpoint), which their"
            " intervals do not explain. Measure again when the machine is less busy.",
            "unattributed",
        )


def _beyond(residue: Estimate, total: Estimate) -> bool:
    """Return whether what rows add up to differs from the total by more than their intervals explain."""
    if not residue.bounded or residue.low <= 0 <= residue.high:
        return False
    return abs(residue.estimate) > max(UNEXPLAINED_US, UNEXPLAINED_SHARE * total.estimate)


def _waiting(look: Look, times: Mapping[str, Estimate]) -> Iterator[str]:
    """Name the figures that may contain waits for threads which a quiet machine does not have."""
    waits = {name: look.estimates.waits.get(look.keys[name], 0.0) for name in times if name != ENDPOINT}
    waited = {name: us for name, us in waits.items() if us > max(0.0, WAITED_SHARE * times[name].estimate)}
    if waited:
        yield tagged(
            f"Hops to threads took longer than at the machine's best: up to {_duration(max(waited.values()))} of"
            f" {_named(list(waited), f'{len(waited)} figures')} may be waiting for a processor.",
            "slow-machine",
        )


def slowest(look: Look) -> float:
    """Return the largest slowdown of the machine, at least 1, among the times that are shown."""
    return max(look.estimates.slowdowns[look.keys[name]] for name in _times(look))


def _times(look: Look) -> dict[str, Estimate]:
    """The times that are shown by the name of the row; the total last."""
    times = {row.name: row.us for row in look.rows if row.us is not None}
    if not look.estimates.probed:
        del times[OUTSIDE]
    return times


def _while_read(slow: Sequence[str], of: int) -> str:
    """Name the figures that were read at a slow time, if not all were: they do not add up with the others."""
    if len(slow) == of:
        return ""
    return f" while it read {_named(slow, f'{len(slow)} of {of} figures')}, and not for the rest"


def _named(names: Sequence[str], number: str) -> str:
    """Return a few names, or the number of more."""
    return ", ".join(names) if len(names) <= MOST_NAMED else number


def _wide(figures: Mapping[str, Estimate]) -> Iterator[str]:
    """Name the figures whose intervals are too wide."""
    wide = [
        name
        for name, us in figures.items()
        if us.bounded and us.half_width > max(WIDE_US, WIDE_SHARE * abs(us.estimate))
    ]
    if wide:
        named = _named(wide, f"{len(wide)} figures")
        yield tagged(
            f"The intervals of {named} are too wide to set a budget by, {WIDE_SHARE:.0%} and more to one side."
            " Measure again when the machine is less busy; if the app waits for a database or a network, with an"
            " async stand-in for it.",
            "wide-interval",
        )


def _grow(figures: Mapping[str, Estimate]) -> Iterator[str]:
    """Name the figures that grow with the requests served, with their course."""
    courses = [f"{name} from {us.low:.1f} to {us.high:.1f} µs" for name, us in figures.items() if us.bounded]
    if courses:
        named = _named(courses, f"{len(courses)} figures")
        yield tagged(
            f"Grows with the requests served: {named}. Bound what is collected, or find it without a search.", "growing"
        )


def _unexplained(figures: Mapping[str, Estimate], others: Estimate) -> Iterator[str]:
    """Note the unattributed time if it is more than the intervals, and the work of others, explain."""
    *rows, total = figures.values()
    residue = independent_sum(*rows, others, -total)
    if _beyond(residue, total):
        more = "more" if residue.estimate > 0 else "less"
        yield tagged(
            f"The rows add up to {abs(residue.estimate) / total.estimate:.0%} {more} than the total, which their"
            " intervals do not explain: some row, or the total, is wrong by up to"
            f" {abs(residue.estimate):.0f} µs. Measure again when the machine is less busy.",
            "unattributed",
        )


def _beside(others: Estimate, total: Estimate) -> Iterator[str]:
    """Note the work that was not started in the request and ran while the request waited."""
    if others.low > max(UNEXPLAINED_US, UNEXPLAINED_SHARE * total.estimate):
        yield tagged(
            f"While the request waited, the event loop worked {_duration(others.estimate)} for tasks that were there"
            " before it, such as a background task of the app's lifespan. This time is in (total) and in no row.",
            "background-work",
        )


def _cold(look: Look) -> Iterator[str]:
    """Note that the endpoint waits, which makes the rows above it larger."""
    waited_us = look.estimates.suspended.get(look.keys[ENDPOINT], 0.0) if ENDPOINT in look.keys else 0.0
    if waited_us > COLD_WAIT_US and any(row.us is not None for row in look.rows if not row.is_frame):
        yield tagged(
            f"The endpoint waits, for {_duration(waited_us)}. Caches are cold when it goes on, so the same layer"
            " costs two to four times what it costs above an endpoint that answers at once. The rows are right for"
            " this request; compare them, and set budgets, for one request only.",
            "cold-caches",
        )


def _much_outside(look: Look) -> bool:
    if any(row_with_time(row, look.rows) is None for row in look.rows):
        return False  # a layer is measured with it
    return look.estimates.outside.low > max(OUTSIDE_US, OUTSIDE_SHARE * look.estimates.whole.estimate)


def _duration(us: Microseconds) -> str:
    return f"{us / 1000:.3g} ms" if us >= 1000 else f"{us:.0f} µs"
