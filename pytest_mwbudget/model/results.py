"""The records of a finished measurement. All are frozen. Times are microseconds per request by default."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Literal, TypeAlias

from ..errors import near_miss, tagged
from .changes import Change
from .estimate import Estimate, Microseconds, Seconds
from .judged import Judged as Judged
from .judged import Verdict as Verdict
from .judged import worst as worst
from .load import LayerLoad, Load
from .messages import Messages
from .paths import at
from .quantities import COUNTED, ESTIMATED, TRAITS, Quantity
from .remedies import BudgetPlace
from .saves import Saves
from .stack import ENDPOINT, OUTSIDE, TOTAL, Kind, Layer, RowIndex
from .tails import Tails
from .trend import Trend

if TYPE_CHECKING:
    import httpx
    import httpx2

    from .endpoint import EndpointReport

LoopName: TypeAlias = Literal["asyncio", "uvloop", "trio"]

# The lowest and the highest number of most requests.
Range: TypeAlias = tuple[int, int]
# The rows that are no layers, which can have a budget of time, with their names in the table.
Frame: TypeAlias = Literal["outside", "endpoint", "total"]
FRAMES: Mapping[Frame, str] = {"outside": OUTSIDE, "endpoint": ENDPOINT, "total": TOTAL}

# Framework code takes up to 50 ns for a bytecode instruction, GZip 140, JSON and regular expressions 500 and more
# (docs/decisions/0027). Layers of less processor time than this are left alone.
NS_OF_C, LEAST_US_OF_C = 100.0, 10.0


@dataclass(frozen=True, slots=True)
class Count:
    """A number per request: the median, the minimum and the maximum of the counted requests.

    `kinds` divides `count` by type or name. Other requests may have other kinds.
    """

    count: int
    low: int
    high: int
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether every request had the same number."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of a row per request. None for a quantity that cannot be counted here.

    - `objects`: by type; `retained`: objects still alive after a garbage collection
    - `allocations` and `bytes`: requested from Python's allocators
    - `tasks`: by coroutine; `threads`: by function
    - `received` and `sent`: messages through the row's outer boundary
    - `suspensions`: of tasks in the row
    - `bytecodes`: bytecode instructions executed; `calls`: made by them; `py_calls`: Python functions entered
    - `own_types`: types of objects that no other row created
    - `why`: the reason for each quantity that could be counted in other rows, but not in this one
    - `ranges`: of each quantity that varies, the range without the lowest and the highest tenth of the requests; also
      of a quantity that is None because no number is typical of it
    """

    objects: Count | None
    allocations: Count | None
    bytes: Count | None
    tasks: Count
    threads: Count
    retained: Count | None
    received: Count
    sent: Count
    suspensions: Count
    bytecodes: Count | None = None
    calls: Count | None = None
    py_calls: Count | None = None
    own_types: tuple[str, ...] = ()
    why: Mapping[str, str] = field(default_factory=dict)
    ranges: Mapping[str, Range] = field(default_factory=dict)

    def of(self, quantity: str) -> Count | None:
        """Return the count of a quantity, None if no number is typical of it or it cannot be counted here."""
        count: Count | None = getattr(self, quantity)
        return count

    def range_of(self, quantity: str) -> Range | None:
        """Return the range by which a quantity is judged, None if it cannot be counted here."""
        count = self.of(quantity)
        return self.ranges.get(quantity) or ((count.low, count.high) if count else None)


@dataclass(frozen=True, slots=True)
class Occupation:
    """How a layer spends its time: `busy` holding the event loop, `wait_us` suspended.

    `cpu_us` is the processor time within `busy`, None if the processor clock of this platform is too coarse. `blocking`
    says that the layer holds the event loop for long while the processor is idle.
    """

    busy: Estimate
    wait_us: Microseconds
    cpu_us: Microseconds | None
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class RecordedLimit:
    """A limit of the file of limits, and the verdict on it. `row` is the name of a layer or, for example, `(total)`.

    `value` is the typical count or the time, None if it is not known. `reason` explains an undecided verdict. `new` are
    the objects, by type, beyond those of the last run that kept a broken limit; empty if these are not known.
    """

    row: str
    quantity: Quantity
    value: float | None
    limit: float
    verdict: Verdict
    reason: str | None = None
    new: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of the limits that the file of limits has for a request.

    - `section`: the section that was used, None if the file has none for these surroundings
    - `limits`: the limits of this request, with their verdicts
    - `missing`: what has no limit, None if everything has one; `required` says that this is a failure
    - `packages`: the versions of the distributions in the stack
    - `changed`: versions that differ from those of the section
    - `command`: accepts the figures of the test
    """

    section: str | None
    limits: tuple[RecordedLimit, ...] = ()
    missing: str | None = None
    required: bool = False
    packages: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    command: str = ""

    @property
    def broken(self) -> bool:
        """Whether a figure is above its limit."""
        return any(limit.verdict == "fail" for limit in self.limits)

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on the limits; a missing limit is undecided, or a failure if it is required."""
        missing: list[Verdict] = []
        if self.missing is not None:
            missing = ["fail" if self.required else "undecided"]
        return worst([*(limit.verdict for limit in self.limits), *missing])


@dataclass(frozen=True, slots=True)
class ResultRow:
    """The figures and verdicts of a row: a layer, a part of the endpoint, or one of the frames.

    `us` and `counts` are None if the row was not entered, is merged with a neighbour, or was not timed or counted.
    `judged` are the budgets with their verdicts, without those under load. Only layers and parts have the others:
    `messages` is None if few messages pass the layer, or if no budget and no report needs the cost of a message.
    `saves` is what leaving the layer out saves, None if no report needs it. `load` is None unless the request was
    measured under load. `tails` is None if `us` is, `trend` if growth was not looked for. `app` are the figures of the
    whole app under load, which only `(total)` has. `waited_us` is how much of the times may be waits for threads that
    are longer than at the machine's best, and `unsure` why the time is not judged; no report stores these two.
    """

    layer: Layer
    us: Estimate | None = None
    occupation: Occupation | None = None
    counts: Counts | None = None
    judged: Mapping[Quantity, Judged] = field(default_factory=dict)
    messages: Messages | None = None
    saves: Saves | None = None
    load: LayerLoad | None = None
    tails: Tails | None = None
    trend: Trend | None = None
    app: Load | None = None
    waited_us: Microseconds = 0.0
    unsure: str | None = None

    @classmethod
    def of_frame(cls, frame: Frame, us: Estimate | None = None, judged: Judged | None = None) -> ResultRow:
        """Return a row that is no layer, with its time and the verdict on its budget."""
        name = FRAMES[frame]
        layer = Layer(RowIndex(-1), name, name, "frame")
        return cls(layer, us, judged={"us": judged} if judged else {})

    @property
    def name(self) -> str:
        """The name: of layers unique in their stack, of parts in their endpoint."""
        return self.layer.name

    @property
    def kind(self) -> Kind:
        """The kind of the layer; `frame` if the row is none."""
        return self.layer.kind

    @property
    def is_frame(self) -> bool:
        """Whether the row is neither a layer nor a part of the endpoint."""
        return self.kind == "frame"

    @property
    def is_part(self) -> bool:
        """Whether the row is a part of the endpoint."""
        return self.kind in ("part", "dependency")

    @property
    def key(self) -> str:
        """The name, for a part after that of the endpoint: no two rows of a result have the same key."""
        return f"{ENDPOINT} {self.name}" if self.is_part else self.name

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on the budgets of the row, None without budgets."""
        of_load = self.load.judged if self.load else None
        return worst([*(judged.verdict for judged in self.judged.values()), of_load.verdict if of_load else None])

    @property
    def reason(self) -> str | None:
        """The first reason of an undecided budget, None without one."""
        return next((judged.reason for judged in self.judged.values() if judged.reason), None)

    @property
    def budget_us(self) -> Microseconds | None:
        """The budget of the row's time, None without one."""
        return self.judged["us"].bound if "us" in self.judged else None

    @property
    def estimates(self) -> dict[str, Estimate]:
        """The known times and, under load, rates, by quantity. Ends of their intervals may be infinite."""
        figures = {quantity: at(self, TRAITS[quantity].path) for quantity in ESTIMATED}
        return {quantity: figure for quantity, figure in figures.items() if figure is not None}

    def figure(self, quantity: str) -> Estimate | None:
        """Return a time, or a count with the range by which it is judged; None if it is not known.

        Where no number is typical of a count, the lowest one stands for it.
        """
        if quantity not in COUNTED:
            return self.estimates.get(quantity)
        judged_by = self.counts.range_of(quantity) if self.counts else None
        if self.counts is None or judged_by is None:
            return None
        count = self.counts.of(quantity)
        return Estimate(judged_by[0] if count is None else count.count, *judged_by)

    @property
    def counted(self) -> dict[str, Count]:
        """The known counts by quantity."""
        known = {quantity: self.counts.of(quantity) for quantity in COUNTED} if self.counts else {}
        return {quantity: count for quantity, count in known.items() if count is not None}

    def mostly_c(self, slowdown: float) -> bool | None:
        """Whether a layer works mostly in C code, which its `bytecodes` do not see; None if that is unknown.

        `slowdown` is at least 1; layers may be slowed down by up to its square. The processor time of a layer that is
        suspended contains the work of the event loop in C.
        """
        spent, counts = self.occupation, self.counts
        if spent is None or spent.cpu_us is None or counts is None or counts.bytecodes is None:
            return None
        us = spent.cpu_us / slowdown**2
        mostly = us >= LEAST_US_OF_C and us * 1000 > NS_OF_C * counts.bytecodes.count
        suspended = counts.suspensions.high > 0 or spent.wait_us > 0
        return None if mostly and suspended else mostly


# The row of a layer or a part.
LayerReport: TypeAlias = ResultRow


@dataclass(frozen=True, slots=True)
class Books:
    """The times of rows that are not layers.

    `total` is the whole app without probes. `residue_us` is the sum of all rows less `total`.
    """

    total: Estimate
    outside: Estimate
    endpoint: Estimate | None
    residue_us: Microseconds


@dataclass(frozen=True, slots=True)
class Ledger:
    """The counts of rows that are not layers, and the sum of all rows.

    `outside` is the app object with the server's receive and send, `endpoint` everything inside the innermost layer.
    `requests` is the number of counted requests. `why` has the reason for each quantity that could not be counted.
    """

    outside: Counts
    endpoint: Counts | None
    total: Counts
    requests: int
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """The effect of measurements in other processes: the reason to ignore failures, if any, and a note."""

    crowded: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Effort:
    """The size of a measurement: timed requests, rounds over all boundaries, and seconds."""

    requests: int
    rounds: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class HotFunction:
    """A function in a profile: its self time, its time with callees, whether it is the project's own."""

    function: str
    file: str
    line: int
    own_us: Microseconds
    total_us: Microseconds
    own: bool = False

    @property
    def place(self) -> str:
        """`file:line`, empty for a function that is not written in Python."""
        return f"{self.file}:{self.line}" if self.line else ""


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of the same request, repeated `requests` times.

    `request_us` is the time of a request under the profiler, which slows the request down. `flamegraph`, `pyinstrument`
    and `speedscope` are paths of files. `hottest` has, by layer index, functions of the layers over their budgets:
    the project's own first, each kind by falling self time.
    """

    requests: int
    samples: int
    request_us: Microseconds
    flamegraph: str
    pyinstrument: str
    speedscope: str
    hottest: Mapping[int, tuple[HotFunction, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice on a layer, in one line with the evidence. `page` is the command that prints the page of the rule."""

    layer: str
    rule: str
    text: str
    page: str


@dataclass(frozen=True, slots=True)
class RepeatedTest:
    """A test that failed while a survey recorded it and passed without. `cause` is the first line of the failure."""

    nodeid: str
    cause: str


@dataclass(frozen=True, slots=True)
class SurveyRun:
    """What a survey did: its seconds of measuring and their limit, the tests of the run, what it could not see.

    `repeated` are the tests that run twice because the survey disturbed them. `unknown_clients` are the modules of
    clients whose requests cannot be recorded. `unexamined` is the number of requests whose layers were not looked for,
    because several like them had entered layers that were known.
    """

    seconds: Seconds
    limit_s: Seconds
    tests: int
    repeated: tuple[RepeatedTest, ...] = ()
    unknown_clients: tuple[str, ...] = ()
    unexamined: int = 0


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The method of a request, and its path with the query."""

    method: str
    url: str

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of one request of a test.

    Without `--mw-budget` only `request` and `status` are set. If every budget is a count, nothing is timed, and
    `residue_us`, `floor_us`, `slowdown`, `reference_ns` and `effort` are None.

    - `layers` and `frames`: the rows, without those of the endpoint's parts; `rows` has all of them in order
    - `counted`: the number of counted requests, None if nothing was counted
    - `uncounted`: the reason for each quantity that could not be counted in any row
    - `residue_us`: the sum of the rows less `(total)`
    - `route`: the template of the request's route, None if unknown
    - `surveyed`: whether a survey measured it, in a test without a budget of its own
    - `place`: where a budget of this request can stand
    - `floor_us`: the detection limit
    - `slowdown`: factor by which the machine ran slower than at its best, for the slowest figure; 1 if below 1.1
    - `reference_ns`: the quickest known time of the reference workload here, which `slowdown` is relative to
      unless cold caches slow the app more
    - `endpoint`: the parts of the endpoint, None if neither they nor a budget of the endpoint were asked for
    - `recorded`: what came of the recorded limits, None if there is no file of limits or it does not judge this request
    - `verdict`: the worst verdict on budgets and recorded limits
    - `notes`: how far the figures can be trusted
    - `changes`: what the figures changed by since the run that this one was compared with
    - `disturbed`: the active tool that prevented figures of time and memory
    - `load`: the figures under load, None if there are none
    """

    request: RequestLine
    status: int
    route: str | None = None
    loop: str = "asyncio"
    layers: tuple[ResultRow, ...] = ()
    frames: Mapping[Frame, ResultRow] = field(default_factory=dict)
    counted: int | None = None
    uncounted: Mapping[str, str] = field(default_factory=dict)
    residue_us: Microseconds | None = None
    floor_us: Microseconds | None = None
    slowdown: float | None = None
    reference_ns: float | None = None
    effort: Effort | None = None
    endpoint: EndpointReport | None = None
    recorded: Recorded | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    disturbed: str | None = None
    surveyed: bool = False
    place: BudgetPlace = "marker"
    changes: tuple[Change, ...] = ()
    load: Load | None = None

    @property
    def label(self) -> str:
        """The method with the route, or with the URL; and the status unless it is 200, or 101 of a WebSocket."""
        place = f"{self.request.method} {self.route or self.request.url}"
        return place if self.status in (200, 101) else f"{place} {self.status}"

    @property
    def timed(self) -> bool:
        """Whether any row was timed."""
        return self.residue_us is not None

    @property
    def total(self) -> ResultRow:
        """The row of the whole request, which has the figures of the app under load."""
        return replace(self.frame("total"), app=self.load)

    @property
    def total_us(self) -> Estimate | None:
        """The time of the whole request, without any probe; None if nothing was timed."""
        return self.frame("total").us

    @property
    def books(self) -> Books | None:
        """The times of the frames, None if nothing was timed."""
        total, outside = (self.frame(frame).us for frame in ("total", "outside"))
        if total is None or outside is None or self.residue_us is None:
            return None
        return Books(total, outside, self.frame("endpoint").us, self.residue_us)

    @property
    def ledger(self) -> Ledger | None:
        """The counts of the frames, None if nothing was counted."""
        total, outside = (self.frame(frame).counts for frame in ("total", "outside"))
        if total is None or outside is None or self.counted is None:
            return None
        return Ledger(outside, self.frame("endpoint").counts, total, self.counted, self.uncounted)

    def frame(self, frame: Frame) -> ResultRow:
        """Return a row that is no layer, without figures if it has none."""
        return self.frames.get(frame) or ResultRow.of_frame(frame)

    def rows(self, *, parts: bool = False) -> Iterator[ResultRow]:
        """Yield the rows, outermost first and the whole request last; if asked, with the parts of the endpoint."""
        yield self.frame("outside")
        yield from self.layers
        if "endpoint" in self.frames:
            yield self.frames["endpoint"]
        if parts and self.endpoint is not None:
            yield from self.endpoint.parts
        yield self.total

    def figure(self, name: str, quantity: str) -> Estimate | None:
        """Return the figure of a row by its name; None if it is not known, or there is no such row."""
        return next((row.figure(quantity) for row in self.rows() if row.name == name), None)

    @property
    def verdicts(self) -> tuple[Verdict | None, ...]:
        """The verdicts on the budgets of each row and of the app under load, None for what has no budget."""
        return (self.load.verdict if self.load else None, *(row.verdict for row in self.rows(parts=True)))

    def with_verdict(self) -> Result:
        """Return the result with the worst verdict on budgets and recorded limits."""
        return replace(self, verdict=worst([self.recorded.verdict if self.recorded else None, *self.verdicts]))

    @property
    def over(self) -> bool:
        """Whether a figure is over its budget or its recorded limit."""
        return "fail" in self.verdicts or (self.recorded is not None and self.recorded.broken)

    def is_over(self, report: ResultRow) -> bool:
        """Whether a layer is over a budget or a recorded limit."""
        limits = self.recorded.limits if self.recorded else ()
        return report.verdict == "fail" or any(limit.row == report.name and limit.verdict == "fail" for limit in limits)

    @property
    def uncountable(self) -> tuple[Quantity, ...]:
        """The quantities that cannot be counted here and have a budget on an entered row, or a recorded limit.

        Without quantities that only some rows lack, because a thread works unseen: such a budget is undecided.
        """
        if self.disturbed is not None:
            return ()
        uncounted = {
            quantity
            for row in self.rows(parts=True)
            if row.layer.entered
            for quantity in row.judged
            if quantity in self.uncounted
        }
        if self.recorded is not None:
            uncounted.update(limit.quantity for limit in self.recorded.limits if limit.quantity in self.uncounted)
        return tuple(quantity for quantity in COUNTED if quantity in uncounted)

    def layer(self, name: str) -> ResultRow:
        """Return the report of a layer by its name in the table. Raises KeyError, which lists the names."""
        __tracebackhide__ = True
        for report in self.layers:
            if report.name == name:
                return report
        if self.counted is None:
            raise KeyError(
                tagged(
                    f"no layer {name!r}: nothing was measured; run pytest with --mw-budget, or ask for layers only"
                    " where there are some (if measurement.layers: ...)",
                    "layer-name",
                )
            )
        names = [report.name for report in self.layers]
        have = f"The layers are: {', '.join(names)}" if names else "The stack has no layers"
        raise KeyError(tagged(f"no layer {name!r}.{near_miss(name, names)} {have}", "layer-name"))


@dataclass(frozen=True, kw_only=True)
class Measurement(Result):
    """A `Result` with the response of the first request, which the test gets.

    The response is that of httpx2 where httpx2 can be imported, else that of httpx; that of a WebSocket is the answer
    to its handshake. `answers` are what the app sent over the WebSocket, as `str` or `bytes`.
    """

    response: httpx.Response | httpx2.Response
    answers: tuple[str | bytes, ...] = ()

    @classmethod
    def of(
        cls, result: Result, response: httpx.Response | httpx2.Response, answers: tuple[str | bytes, ...] = ()
    ) -> Measurement:
        """Return the result with a response."""
        own = {attribute.name: getattr(result, attribute.name) for attribute in fields(Result)}
        return cls(**own, response=response, answers=answers)
