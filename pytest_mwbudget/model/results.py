"""The records that a measurement is made of. Frozen, without behaviour beyond reading themselves.

All times are microseconds per request unless a name says `_ns` or `_s`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from ..errors import near_miss, tagged
from .estimate import Estimate, Microseconds, Seconds
from .stack import Layer

if TYPE_CHECKING:
    import httpx

Verdict: TypeAlias = Literal["pass", "fail", "undecided"]
LoopName: TypeAlias = Literal["asyncio", "uvloop", "trio"]
Method: TypeAlias = Literal["split", "bypass"]

# What a layer can have a budget for. The first two are microseconds and need a clock; the others are counted.
Quantity: TypeAlias = Literal["us", "busy_us", "objects", "allocations", "bytes", "tasks", "threads", "retained"]
CountedQuantity: TypeAlias = Literal["objects", "allocations", "bytes", "tasks", "threads", "retained"]
QUANTITIES: tuple[Quantity, ...] = get_args(Quantity)
COUNTED: tuple[CountedQuantity, ...] = get_args(CountedQuantity)


@dataclass(frozen=True, slots=True)
class Count:
    """A number per request: the typical one (the median), the least and the most that a counted request had.

    `kinds` shares the typical number out by type or name; a request that differs from the typical one may have others.
    """

    count: int
    low: int
    high: int
    kinds: Mapping[str, int] = field(default_factory=dict)

    @property
    def exact(self) -> bool:
        """Whether every request had the same."""
        return self.low == self.high


@dataclass(frozen=True, slots=True)
class Counts:
    """What was charged to one row per request. None for what cannot be counted here.

    `objects` and `retained` are by type; `tasks` by coroutine and `threads` by function. `retained` are objects that
    were still alive after a garbage collection. `allocations` and `bytes` are what was requested of Python's
    allocators. `received` and `sent` are messages through the row's outer boundary. `suspensions` says how often a
    task stood still there. `own_types` are types that no other row created.
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
    own_types: tuple[str, ...] = ()

    def of(self, quantity: CountedQuantity) -> Count | None:
        """The count of a quantity, None when it cannot be counted here."""
        found: Count | None = getattr(self, quantity)
        return found


@dataclass(frozen=True, slots=True)
class Occupation:
    """How a layer spends its time, in microseconds per request.

    `busy` is the time in which it held the event loop, `wait_us` the time in which it was suspended; together they are
    the layer's time. `cpu_us` is the part of `busy` in which the processor worked for it, None when the clock of this
    platform cannot tell. `blocking` says that it holds the event loop for long without working.
    """

    busy: Estimate
    wait_us: Microseconds
    cpu_us: Microseconds | None
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Judged:
    """A budget and what came of it. `reason` explains an undecided verdict."""

    bound: float
    verdict: Verdict
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What was found out about one layer, and how its budgets were judged.

    `us` is None when the layer was not entered, is merged with a neighbour, or was not timed; `counts` likewise.
    """

    layer: Layer
    us: Estimate | None = None
    method: Method | None = None
    occupation: Occupation | None = None
    counts: Counts | None = None
    judged: Mapping[Quantity, Judged] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The layer's name, unique in its stack."""
        return self.layer.name

    @property
    def verdict(self) -> Verdict | None:
        """The worst verdict on its budgets, None when it has none."""
        return worst(judged.verdict for judged in self.judged.values())

    @property
    def budget_us(self) -> Microseconds | None:
        """Its budget of time, None when it has none."""
        return self.judged["us"].bound if "us" in self.judged else None


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Any fail, else any undecided, else pass; None when there is none."""
    found = set(verdicts)
    ranked: tuple[Verdict, ...] = ("fail", "undecided", "pass")
    return next((verdict for verdict in ranked if verdict in found), None)


@dataclass(frozen=True, slots=True)
class Books:
    """The rows of a stack beside the whole app, in microseconds per request.

    `total` is the whole app called with no probe at all. `residue` is the sum of the rows minus `total`: what the
    measurement could not account for.
    """

    total: Estimate
    outside: Estimate
    endpoint: Estimate | None
    residue_us: Microseconds


@dataclass(frozen=True, slots=True)
class Ledger:
    """The counts that are no layer's, and the sum of all rows.

    `outside` is the app object with the server's receive and send, `endpoint` what is inside the innermost layer.
    `requests` were counted. `why` says what could not be counted, by quantity.
    """

    outside: Counts
    endpoint: Counts | None
    total: Counts
    requests: int
    why: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Turn:
    """How a measurement stands to those of other processes.

    `crowded` is why a failure is not to be believed, None where nobody else measures; `note` is what to know of it.
    """

    crowded: str | None = None
    note: str | None = None


@dataclass(frozen=True, slots=True)
class Effort:
    """What a measurement took: `requests` measured, in `rounds` over all boundaries, in `seconds`."""

    requests: int
    rounds: int
    seconds: Seconds


@dataclass(frozen=True, slots=True)
class HotFunction:
    """A function in a profile, in microseconds per request: in it alone, and with everything that it calls."""

    function: str
    file: str
    line: int
    own_us: Microseconds
    total_us: Microseconds

    @property
    def place(self) -> str:
        """`file:line`, empty for what is not written in Python."""
        return f"{self.file}:{self.line}" if self.line else ""


@dataclass(frozen=True, slots=True)
class Profile:
    """What a profiler saw in `requests` further calls of the same request, in so many `samples`.

    `request_us` is the time of a request under the profiler, which slows it down. `flamegraph`, `pyinstrument` and
    `speedscope` are the paths of the files that were written. `hottest` are functions of the layers over their budgets,
    the hottest first, by the index of the layer.
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
    """What could be done about a layer, in one line that says what was seen.

    `rule` is the name of the rule, `page` the command that prints its page.
    """

    layer: str
    rule: str
    text: str
    page: str


@dataclass(frozen=True, slots=True)
class RequestLine:
    """The method and the path with its query of a measured request."""

    method: str
    url: str

    def __str__(self) -> str:
        return f"{self.method} {self.url}"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What is known of one request of a test: its status and, when `--mw-budget` is on, what each layer costs.

    Without enforcement only `request` and `status` are set, `layers` is empty and `verdict` is None. When every budget
    is a count, nothing is timed: `books`, `floor_us`, `slowdown` and `effort` are None. `slowdown` says how many times
    slower than at its best the machine ran, at the slowest figure; 1 where that is less than a tenth.
    `total_budget_us` and `total_verdict` belong to the budget on the whole request. `notes` are remarks on how far the
    figures can be trusted, one sentence each. `profile` is there where the request was called again under a profiler.
    `disturbed` says which tool was at work, so that there are no figures of time and memory.
    """

    request: RequestLine
    status: int
    loop: str = "asyncio"
    layers: tuple[LayerReport, ...] = ()
    ledger: Ledger | None = None
    books: Books | None = None
    floor_us: Microseconds | None = None
    slowdown: float | None = None
    effort: Effort | None = None
    total_budget_us: Microseconds | None = None
    total_verdict: Verdict | None = None
    total_reason: str | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()
    profile: Profile | None = None
    disturbed: str | None = None

    @property
    def uncountable(self) -> tuple[Quantity, ...]:
        """The quantities with a budget on a layer that the request entered which cannot be counted here."""
        why = self.ledger.why if self.ledger is not None and self.disturbed is None else {}
        judged = {quantity for report in self.layers if report.layer.entered for quantity in report.judged}
        return tuple(quantity for quantity in COUNTED if quantity in why and quantity in judged)

    def layer(self, name: str) -> LayerReport:
        """The report of the layer that the table calls `name`; KeyError with the names that exist."""
        __tracebackhide__ = True
        for report in self.layers:
            if report.name == name:
                return report
        if self.ledger is None:
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
    """A `Result` with the response that the test made its request for."""

    response: httpx.Response
