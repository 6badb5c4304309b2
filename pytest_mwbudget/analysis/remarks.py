"""Write the notes that say how far the times of a measurement can be trusted. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import tagged
from ..model.estimate import WIDE_SHARE, WIDE_US, Estimate, Microseconds, independent_sum
from ..model.stack import ENDPOINT, OUTSIDE, TOTAL, EntryIndex
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
# Waits for threads are noted from this share of the figure on.
WAITED_SHARE = 0.1


def remarks(
    look: Look,
    endpoint: EntryIndex | None,
    *,
    stopped: bool,
    framework: bool,
    outside_told: bool,
    mixed: bool = False,
) -> Iterator[str]:
    """Write the notes on the figures of the last look.

    `endpoint` is its entry, None if it has no row. `stopped` says that sampling stopped early, before the figures were
    precise; `framework` that the app object works outside its layers, as those of frameworks with middlewares of their
    own kind do; `outside_told` that another note says what `(outside)` is; `mixed` that the total is of other requests
    than the rows.
    """
    figures = _figures(look, endpoint)
    times = {name: us for name, (us, _) in figures.items()}
    if mixed:
        del times[TOTAL]
    slowdown = slowest(look, endpoint)
    if slowdown > 1:
        while_read = _while_read([name for name, (_, slowdown) in figures.items() if slowdown > 1], len(figures))
        yield tagged(f"The machine ran {slowdown:.2f} times slower than at its best{while_read}.", "slow-machine")
    yield from _waiting(look)
    if stopped:
        yield tagged(
            "Sampling stopped as soon as every budget was known to be kept. For precise figures run with -v, or"
            " write a report.",
            "stopped-early",
        )
    else:
        growing = [name for name in times if name in _growing(look, endpoint)]
        yield from _wide({name: us for name, us in times.items() if name not in growing})
        yield from _grow({name: times[name] for name in growing})
    if not mixed:
        yield from _unexplained(times, look.estimates.others)
    yield from _beside(look.estimates.others, look.estimates.whole)
    yield from _cold(look, endpoint)
    if not outside_told and _much_outside(look):
        own = "what the app object does before and after its middlewares, and " if framework else ""
        yield tagged(
            f"(outside) is {own}code around the app object, such as Sentry or OpenTelemetry: not a layer, and in no"
            " budget but outside_us and total_us.",
            "outside",
        )


def _growing(look: Look, endpoint: EntryIndex | None) -> set[str]:
    """Return the names of the rows whose time grows with the requests served."""
    frames = {OUTSIDE: "outside", TOTAL: "total", ENDPOINT: endpoint}
    rows = {row.layer.name for row in look.rows if row.grows}
    return rows | {name for name, key in frames.items() if key in look.estimates.growing}


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


def _waiting(look: Look) -> Iterator[str]:
    """Name the figures that may contain waits for threads which a quiet machine does not have."""
    figures = {row.layer.name: (row.us, row.waited_us) for row in look.rows if row.us is not None}
    figures[TOTAL] = (look.estimates.whole, look.estimates.waits.whole)
    waited = {name: us for name, (figure, us) in figures.items() if us > max(0.0, WAITED_SHARE * figure.estimate)}
    if waited:
        yield tagged(
            f"Hops to threads took longer than at the machine's best: up to {_duration(max(waited.values()))} of"
            f" {_named(list(waited), f'{len(waited)} figures')} may be waiting for a processor.",
            "slow-machine",
        )


def slowest(look: Look, endpoint: EntryIndex | None) -> float:
    """Return the largest slowdown of the machine, at least 1, among the figures that are shown."""
    return max(slowdown for _, slowdown in _figures(look, endpoint).values())


def _figures(look: Look, endpoint: EntryIndex | None) -> dict[str, tuple[Estimate, float]]:
    """The times that are shown and the slowdowns of the machine, at least 1, by the name of the row; the total last."""
    estimates, slow = look.estimates, look.estimates.slowdowns
    figures = {OUTSIDE: (estimates.outside, slow.outside)} if estimates.probed else {}
    figures |= {row.layer.name: (row.us, row.slowdown) for row in look.rows if row.us is not None}
    if endpoint is not None and endpoint in estimates.split:
        figures[ENDPOINT] = (estimates.split[endpoint], slow.split[endpoint])
    return figures | {TOTAL: (estimates.whole, slow.whole)}


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


def _cold(look: Look, endpoint: EntryIndex | None) -> Iterator[str]:
    """Note that the endpoint waits, which makes the rows above it larger."""
    waited_us = 0.0 if endpoint is None else look.estimates.suspended.get(endpoint, 0.0)
    if waited_us > COLD_WAIT_US and any(row.us is not None for row in look.rows):
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
