"""Assemble the finished record from counts and times, and judge counts. Makes no request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from .analysis.budgeted import Bounded
from .analysis.estimates import ALPHA
from .analysis.growth import STRETCHES, lasting, slope
from .analysis.remarks import on_parts
from .analysis.verdicts import NOT_ENTERED, judge_count
from .analysis.ways import Ways, new_layers, note_on, why_changing
from .asgi.naming import display_name
from .asgi.stack import Stack
from .config.budgets import Budgets
from .counting.charged_requests import RequestCharges
from .counting.counted import Counted
from .errors import tagged
from .interpreter.foreign_tools import ForeignTools
from .model.endpoint import EndpointReport
from .model.quantities import COUNTED
from .model.remedies import BudgetPlace
from .model.results import FRAMES, Counts, Frame, Judged, RequestLine, Result, ResultRow
from .model.stack import ENDPOINT, OUTERMOST, OUTSIDE, Owner, RowIndex, owner_of, parts_of
from .model.trend import Trend
from .timing.looks import Timed
from .timing.many_requests import Served

# ---- growth -----------------------------------------------------------------------------------------------------


def trends(
    stack: Stack,
    layers: Sequence[Bounded],
    requests: Served,
    charges: Sequence[RequestCharges],
    later: int,
    why_not: str | None,
    too_low: Mapping[Owner, str],
) -> dict[RowIndex, Trend]:
    """Return what grows in each layer with a row of its own, by timed `requests` and by `charges` of others.

    What these others retained was alive `later` requests afterwards. `why_not` says why retained objects cannot be
    counted at all, `too_low` by owner why it was charged too little.
    """
    rows = {
        bounded.layer.index: [*map(owner_of, parts_of(stack.entries, bounded.entry))]
        for bounded in layers
        if bounded.entry is not None and bounded.entry in stack.probeable and bounded.layer.entered
    }
    grows = {}
    for index, owners in rows.items():
        own_ns = [float(sum(used.ns[owner] for owner in owners)) for used in requests.spent]
        growth = slope(own_ns, requests.reference, ALPHA / len(rows))
        alive = [sum((request.retained.get(owner, Counter()) for owner in owners), Counter()) for request in charges]
        why_unknown = why_not or next(filter(None, map(too_low.get, owners)), None)
        if len(charges) < STRETCHES:
            why_unknown = why_unknown or "too few requests were followed to tell what stays alive"
        kinds = {} if why_unknown else lasting(alive)
        why = {"us_per_1000": "there were too few requests from quiet moments"} if growth is None else {}
        if why_unknown:
            why["objects"] = why_unknown
        grows[index] = Trend(
            len(own_ns),
            growth.ns_per_request if growth else None,  # a nanosecond per request is a microsecond per 1,000
            growth is not None and growth.grows,
            len(charges),
            later,
            None if why_unknown else sum(kinds.values()),
            kinds,
            why,
        )
    return grows


# ---- the record -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Findings:
    """The results of a request that was counted, and timed if a budget or a reader needs times."""

    stack: Stack
    layers: tuple[Bounded, ...]
    budgets: Budgets
    foreign_tools: ForeignTools
    counted: Counted
    parts: tuple[Bounded, ...] = ()
    timed: Timed | None = None
    timed_parts: Timed | None = None
    trends: Mapping[RowIndex, Trend] = field(default_factory=dict)

    def changing(self, ways: Ways | None, entered: str = "") -> Findings:
        """Return the findings on a stack that goes on changing, of which nothing is judged and no row is shown.

        It changes in the way that requests take, or they come to enter other layers: `entered`.
        """
        why = new_layers(entered) if ways is None else why_changing(ways, self._names(), self.stack.entries)
        frames: dict[Frame, Counts] = {
            frame: counts for frame, counts in self.counted.frames.items() if frame != "endpoint"
        }
        counted = replace(self.counted, layers={}, parts={}, frames=frames)
        return replace(self, stack=replace(self.stack, changing=why), counted=counted, timed=None, timed_parts=None)

    def _names(self) -> dict[Owner, str]:
        """Return the names of the rows by owner, and those of callables that only other ways enter."""
        stack = self.stack
        names = {owner_of(index): display_name(stack.entries[index].callee) for index in stack.watched}
        names |= {owner_of(entry): layer.name for entry, layer in stack.layers if entry is not None}
        if stack.outside:
            names[owner_of(OUTERMOST)] = OUTSIDE
        return names if stack.endpoint is None else names | {owner_of(stack.endpoint): ENDPOINT}

    @property
    def breaks_count(self) -> bool:
        """Whether a budget of a count is not certainly kept."""
        rows = [*map(self._layer, self.layers), *map(self._part, self.parts)]
        counts = (judged for row in rows if row.layer.entered for q, judged in row.judged.items() if q in COUNTED)
        return any(judged.verdict != "pass" for judged in counts)

    def result(self, line: RequestLine, status: int, loop: str, place: BudgetPlace) -> Result:
        """Return the finished record."""
        layers = tuple(map(self._layer, self.layers))
        timed = self.timed
        return Result(
            request=line,
            status=status,
            loop=loop,
            place=place,
            layers=layers,
            frames=self._frames(),
            counted=self.counted.requests,
            uncounted=self.counted.why_not,
            residue_us=timed.residue_us if timed else None,
            floor_us=timed.floor_us if timed else None,
            slowdown=timed.slowdown if timed else None,
            reference_ns=timed.reference_ns if timed else None,
            effort=timed.effort if timed else None,
            endpoint=self._endpoint(),
            notes=tuple(self._notes()),
            disturbed=self.foreign_tools.why_no_figures if self.foreign_tools.distorting else None,
        ).with_verdict()

    def _frames(self) -> dict[Frame, ResultRow]:
        """Return the rows that are no layers, with their counts."""
        rows, counts = self.timed.frames if self.timed else self._untimed_frames(), self.counted.frames
        return {
            frame: replace(rows.get(frame) or ResultRow.of_frame(frame), counts=counts.get(frame))
            for frame in FRAMES
            if frame in rows or frame in counts
        }

    def _endpoint(self) -> EndpointReport | None:
        """Return what is known of the endpoint's parts, None if neither they nor a budget were asked for."""
        report = EndpointReport(
            parts=tuple(map(self._part, self.parts)),
            closed=self.stack.closed,
            notes=tuple(self._notes_on_parts()),
            observed=self.stack.observed if self.parts else None,
        )
        return report if report != EndpointReport() or "endpoint" in self.budgets.frames else None

    def _notes_on_parts(self) -> Iterator[str]:
        endpoint = self.timed.frames.get("endpoint") if self.timed else None
        if self.timed_parts is not None and endpoint is not None and endpoint.us is not None:
            parts = {report.name: report.us for report in self.timed_parts.layers.values() if report.us is not None}
            yield from on_parts(parts, endpoint.us)

    def _part(self, bounded: Bounded) -> ResultRow:
        """Return a part of the endpoint with its verdicts. A part that the request did not come to costs nothing."""
        if bounded.entry is not None:
            return self._row(bounded, self.timed_parts, self.counted.parts)
        if self.stack.parts:
            return ResultRow(bounded.layer, judged={q: Judged(most, "pass") for q, most in bounded.bounds.items()})
        return _undecided(bounded, self.stack.closed or NOT_ENTERED)

    def _layer(self, bounded: Bounded) -> ResultRow:
        """Return a layer with its verdicts."""
        if not bounded.layer.entered:
            return _undecided(bounded, NOT_ENTERED)
        row = self._row(bounded, self.timed, self.counted.layers)
        return replace(row, trend=self.trends.get(bounded.layer.index))

    def _row(self, bounded: Bounded, timed: Timed | None, counts: Mapping[RowIndex, Counts]) -> ResultRow:
        """Return a row with its time, its counts, and the verdicts on both."""
        index, merged_with = bounded.layer.index, bounded.layer.merged_with
        row = timed.layers.get(index) if timed else None
        if row is None:
            row = _undecided(bounded, self._why_untimed)
        row = replace(row, counts=counts.get(index))
        neighbours = (other.layer for other in self.layers if other.layer.name == merged_with)
        neighbour = next((ResultRow(layer, counts=counts.get(layer.index)) for layer in neighbours), None)
        judged = {quantity: judged for quantity, judged in row.judged.items() if quantity not in COUNTED}
        for quantity in (quantity for quantity in COUNTED if quantity in bounded.bounds):
            if self.stack.displaced or self.stack.changing:  # a profiler of the app hides layers
                judged[quantity] = Judged(bounded.bounds[quantity], "undecided", self._why_disturbed)
            else:
                why_none = self._why_disturbed if self.foreign_tools.distorting else None
                judged[quantity] = judge_count(bounded, row, quantity, neighbour, self.counted.why_not, why_none)
        return replace(row, judged=judged)

    def _untimed_frames(self) -> dict[Frame, ResultRow]:
        return {
            frame: ResultRow.of_frame(frame, judged=Judged(bound, "undecided", self._why_untimed))
            for frame, bound in self.budgets.frames.items()
        }

    @property
    def _why_untimed(self) -> str:
        """The reason why a budget of time is undecided where nothing was timed, for example beside an active tool."""
        disturbed = self.stack.changing or self.foreign_tools.distorting
        return self._why_disturbed if disturbed else tagged("its time was not measured", "too-few-requests")

    @property
    def _why_disturbed(self) -> str:
        """The reason why a budget is undecided beside an active tool, or in a stack that changes."""
        return self.stack.changing or tagged(self.foreign_tools.why_no_figures, "active-tool")

    def _notes(self) -> Iterator[str]:
        if self.foreign_tools.suspended:
            names = ", ".join(self.foreign_tools.suspended)
            missed = "; it saw nothing of what other threads did meanwhile" if self.foreign_tools.missed else ""
            yield tagged(f"{names} was suspended during the measurement{missed}.", "suspended-tool")
        yield from self._notes_on_stack()
        disturbed = [f"{tool} was active" for tool in self.foreign_tools.active]
        if self.foreign_tools.unproven is not None:
            disturbed.append(self.foreign_tools.unproven)
        for why in disturbed:
            nothing = f"{why}: there are no figures of time and memory, and no verdicts on them."
            yield tagged(nothing, "active-tool")
        yield from self.counted.notes
        if self.stack.changing is None:
            ways = self.counted.ways + (self.timed.ways if self.timed else Ways({}))
            yield from note_on(ways, self._names(), self.stack.entries, timed=self.timed is not None)
        else:
            yield f"Nothing is judged: {self.stack.changing}"
        if self.timed is not None:
            yield from self.timed.notes

    def _notes_on_stack(self) -> Iterator[str]:
        if self.stack.displaced:
            hidden = "The app runs its own profiler, which hides the layers inside it."
            yield tagged(hidden, "missing-layers")
        if self.stack.without_asgi:
            handler = (
                "(outside) is the handler of the test's own client, which calls no ASGI app: in no budget but"
                " outside_us and total_us."
            )
            yield tagged(handler, "outside")
        if self.stack.uncut is not None:
            unread = f"The layers of {self.stack.uncut} could not be read, so they are in its endpoint."
            yield tagged(unread, "missing-layers")
        if not self.stack.entries:
            yield tagged("No layer was found: the app is not entered through a Python function.", "missing-layers")
        for layer in (bounded.layer for bounded in self.layers if bounded.layer.merged_with is not None):
            yield tagged(f"{layer.name} is measured with {layer.merged_with}: {layer.merged_because}.", "merged")
        if (handed_on := self.stack.handed_on) is not None:
            missing = "" if handed_on.complete else " Layers inside it may have no row."
            together = f"The endpoint is measured with {handed_on.to_layer}: {handed_on.because}.{missing}"
            yield tagged(together, "merged")


def _undecided(bounded: Bounded, why: str) -> ResultRow:
    """Return a row without figures, whose budgets nothing decides."""
    return ResultRow(bounded.layer, judged={q: Judged(most, "undecided", why) for q, most in bounded.bounds.items()})
