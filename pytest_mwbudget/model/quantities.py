"""The one table of quantities: every figure that a row of a result can have, and what differs from figure to figure.

A new figure has its entry here; marker keywords, checks, columns, sentences and comparisons come from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, TypeAlias

CountedQuantity: TypeAlias = Literal[
    "objects", "allocations", "bytes", "retained", "tasks", "threads", "bytecodes", "calls", "py_calls"
]
# What a budget can limit. The table has further figures, which reports only show.
Quantity: TypeAlias = Literal["us", "busy_us", "us_per_message", "p95_us", "p99_us", "rps_share"] | CountedQuantity

# How a figure is measured: `split` and `occupation` by probes, counts (the last one is `boundary`) in requests of their
# own.
Source: TypeAlias = Literal[
    "split", "occupation", "messages", "tails", "savings", "trend", "counted", "executed", "boundary", "load"
]
# The record of a `ResultRow` that has the figures of a source, as the beginning of their paths.
RECORDS: Mapping[Source, str] = {
    "split": "",
    "occupation": "occupation.",
    "messages": "messages.",
    "tails": "tails.",
    "savings": "saves.",
    "trend": "trend.",
    **dict.fromkeys(("counted", "executed", "boundary"), "counts."),
    "load": "app.",
}
Format: TypeAlias = Literal["time", "latency", "number", "size", "share", "rate"]
# Rows that can have a budget: layers, parts of the endpoint, the whole app under load. Of the other rows only the time
# has one, by a keyword of its own.
Holder: TypeAlias = Literal["layer", "part", "app"]
# Whether a file of limits has it. `asked`: it is a time, or grows and shrinks with what is recorded, or is 0 unless a
# budget watches it; a file with all of it is hard to read.
Recorded: TypeAlias = Literal["always", "asked", "never"]

VALUES: Mapping[Format, str] = {
    "time": "MICROSECONDS",
    "latency": "MILLISECONDS",
    "number": "COUNT",
    "size": "SIZE",
    "share": "SHARE",
}
# The same layer differs by up to this share from process to process, and no interval of one process contains that
# (docs/decisions/0012).
BETWEEN_RUNS = 0.08
LAYER = "budget for every middleware layer, per request:"
BOTH: tuple[Holder, ...] = ("layer", "part")


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of a quantity beside its figures.

    - `title`, `meaning`: describe its column; `short` replaces the title of a narrow column
    - `path`: leads from a `ResultRow` to the figure, as for `paths.at`; by default to the field of its name in the
      record of its source
    - `detail`: whether it is shown only on request, or if it has a budget
    - `holders`: the kinds of rows that can have a budget; `budget`: the meaning of its marker keyword, if it has one
    - `verb`: begins the sentence on an exceeded budget; `prefix` stands before the number in a headline
    - `unit`: the unit of a count, singular and plural
    - `kinds`: the key of its types or names in the JSON, None if it has none
    - `needs`: the requirements of its measurement; every time also needs a clock
    - `compared`: whether runs are compared by it
    - `process_wide`: whether any code can change it that runs in the process
    - `between`: by how many times as much as a time two runs read it differently
    - `tail`: the share of requests that are above a percentile
    """

    name: str
    source: Source
    title: str
    meaning: str
    _: KW_ONLY
    path: str = ""
    format: Format = "time"
    short: str = ""
    detail: bool = False
    budget: str = ""
    holders: tuple[Holder, ...] = ()
    verb: str = "takes"
    prefix: str = ""
    per: str = "request"
    unit: tuple[str, str] = ("", "")
    kinds: str | None = None
    needs: str = ""
    recorded: Recorded = "never"
    compared: bool = True
    process_wide: bool = False
    between: float = 1.0
    tail: float | None = None

    def __post_init__(self) -> None:
        derived = {
            "path": f"{RECORDS[self.source]}{self.name}",
            "short": self.title,
            "budget": f"{LAYER} {self.meaning}" if self.holders else "",
            "unit": (self.name.removesuffix("s"), self.name),
        }
        for name, value in derived.items():
            if not any(getattr(self, name)):  # an empty text, or a pair of them
                object.__setattr__(self, name, value)

    @property
    def value(self) -> str:
        """The kind of value that a budget takes, a key of `config.checks.KINDS`."""
        return VALUES[self.format]

    @property
    def counted(self) -> bool:
        """Whether it is a number of something in each request. A count has a range, other figures an interval."""
        return self.source in ("counted", "executed", "boundary")

    @property
    def room(self) -> float | None:
        """By which share of its bound a figure must be above it to fail, None if any excess fails.

        Counts are the same in every run, and slow requests of a percentile are compared with fixed work.
        """
        return None if self.counted or self.tail is not None else BETWEEN_RUNS


_TIMES = (
    Traits(
        "us", "split", "µs", "microseconds per request", budget=f"{LAYER} self time", holders=BOTH, recorded="asked"
    ),
    Traits(
        "busy_us",
        "occupation",
        "busy µs",
        "the part of its time in which it holds the event loop",
        path="occupation.busy",
        budget=f"{LAYER} the part of its self time that holds the event loop",
        holders=BOTH,
        verb="holds the event loop for",
        prefix="busy ",
        recorded="asked",
    ),
    Traits("wait_us", "occupation", "wait µs", "the part of its time in which it is suspended", compared=False),
    Traits("cpu_us", "occupation", "cpu µs", "the part of the busy time in which the processor works", compared=False),
    Traits(
        "us_per_message",
        "messages",
        "µs/message",
        "microseconds per message; the larger figure of both ways",
        budget="budget for every middleware layer, per message of a stream: self time",
        holders=("layer",),
        per="message",
        recorded="asked",
        needs="10 messages one way",
    ),
    Traits(
        "first_byte_us",
        "messages",
        "1st byte µs",
        "time that it adds before the first part of the body leaves it",
        path="messages.first_byte",
        needs="10 messages sent",
    ),
    Traits(
        "p95_us",
        "tails",
        "p95 µs",
        "the 95th percentile of its time",
        detail=True,
        budget=f"{LAYER} 95th percentile of its self time",
        holders=BOTH,
        verb="takes, at the 95th percentile,",
        prefix="p95 ",
        between=3.0,
        tail=0.05,
    ),
    Traits(
        "p99_us",
        "tails",
        "p99 µs",
        "the 99th percentile of its time",
        detail=True,
        budget=f"{LAYER} 99th percentile of its self time",
        holders=BOTH,
        verb="takes, at the 99th percentile,",
        prefix="p99 ",
        between=3.0,
        tail=0.01,
    ),
    Traits(
        "saves_us",
        "savings",
        "saves µs",
        "how much less time a whole request takes without it",
        path="saves.us",
        short="saves",
    ),
    Traits(
        "us_per_1000", "trend", "growth µs", "what 1,000 more requests add to each request", detail=True, compared=False
    ),
    Traits(
        "lasting",
        "trend",
        "growth objects",
        "objects of each request that stay alive",
        path="trend.objects",
        detail=True,
        compared=False,
    ),
)
_COUNTS = (
    Traits(
        "objects",
        "counted",
        "objects",
        "Python objects created",
        format="number",
        holders=BOTH,
        verb="creates",
        kinds="types",
        recorded="always",
        process_wide=True,
        needs="the C extension, Python 3.13",
    ),
    Traits(
        "allocations",
        "counted",
        "allocations",
        "calls of Python's memory allocators",
        format="number",
        short="allocs",
        holders=BOTH,
        verb="makes",
        recorded="asked",
        process_wide=True,
        needs="the C extension",
    ),
    Traits(
        "bytes",
        "counted",
        "bytes",
        "bytes requested of the allocators",
        format="size",
        budget=f"{LAYER} bytes requested from Python's allocators, for example 16 KiB",
        holders=BOTH,
        verb="requests",
        recorded="asked",
        process_wide=True,
        needs="the C extension",
    ),
    Traits(
        "retained",
        "counted",
        "retained",
        "objects still alive afterwards",
        format="number",
        holders=BOTH,
        verb="leaves behind",
        unit=("object", "objects"),
        kinds="types",
        recorded="asked",
        process_wide=True,
        needs="the C extension, Python 3.13",
    ),
    Traits(
        "tasks",
        "counted",
        "tasks",
        "tasks spawned",
        format="number",
        holders=BOTH,
        verb="spawns",
        kinds="names",
        recorded="always",
    ),
    Traits(
        "threads",
        "counted",
        "threads",
        "calls handed to worker threads",
        format="number",
        holders=BOTH,
        verb="hands to worker threads",
        unit=("call", "calls"),
        kinds="names",
        recorded="always",
    ),
    Traits(
        "bytecodes",
        "executed",
        "bytecodes",
        "bytecode instructions executed",
        format="number",
        holders=BOTH,
        verb="executes",
        unit=("bytecode instruction", "bytecode instructions"),
        recorded="always",
        process_wide=True,
        needs="the C extension, Python 3.12",
    ),
    Traits(
        "calls",
        "executed",
        "calls",
        "calls made, of Python and C functions",
        format="number",
        detail=True,
        holders=BOTH,
        verb="makes",
        recorded="asked",
        process_wide=True,
        needs="the C extension, Python 3.12",
    ),
    Traits(
        "py_calls",
        "executed",
        "Python calls",
        "Python functions entered",
        format="number",
        short="py calls",
        detail=True,
        holders=BOTH,
        verb="enters",
        unit=("Python function", "Python functions"),
        recorded="asked",
        process_wide=True,
        needs="the C extension, Python 3.12",
    ),
    Traits(
        "received",
        "boundary",
        "receive",
        "messages received through its outer boundary",
        format="number",
        short="recv",
        detail=True,
        compared=False,
    ),
    Traits(
        "sent",
        "boundary",
        "send",
        "messages sent through its outer boundary",
        format="number",
        detail=True,
        compared=False,
    ),
    Traits(
        "suspensions",
        "boundary",
        "suspensions",
        "how often a task was suspended there",
        format="number",
        compared=False,
    ),
)
_UNDER_LOAD = (
    Traits("rps", "load", "requests/s", "requests per second under load", format="rate", between=3.0),
    Traits("p50_ms", "load", "p50 ms", "under load, the median of the latency", format="latency", between=3.0),
    Traits(
        "p99_ms",
        "load",
        "p99 ms",
        "under load, the 99th percentile of the latency",
        format="latency",
        budget="budget for the whole app under load: 99th percentile of latency",
        holders=("app",),
        between=3.0,
    ),
    Traits(
        "rps_share",
        "load",
        "share of requests/s",
        "under load, the share of the requests per second that it costs",
        path="load.share",
        format="share",
        budget="budget for every middleware layer under load: the share of the requests per second that it costs, for"
        " example 5%",
        holders=("layer",),
        between=3.0,
    ),
)
# In the order in which figures are listed.
TRAITS: Mapping[str, Traits] = {traits.name: traits for traits in (*_TIMES, *_COUNTS, *_UNDER_LOAD)}


def from_sources(*sources: Source) -> tuple[Traits, ...]:
    """Return what is measured in these ways, one way after the other."""
    return tuple(traits for source in sources for traits in TRAITS.values() if traits.source == source)


def budgeted(holder: Holder) -> tuple[Quantity, ...]:
    """Return the quantities that such a row can have a budget for."""
    return _those(lambda traits: holder in traits.holders)


def _those(chosen: Callable[[Traits], bool]) -> tuple[Any, ...]:
    return tuple(name for name, traits in TRAITS.items() if chosen(traits))


# Counts that can have a budget.
COUNTED: tuple[CountedQuantity, ...] = _those(lambda traits: traits.counted and bool(traits.holders))
# Those of them that are counted in requests of their own, and those that any code can change which runs in the process.
EXECUTED: tuple[CountedQuantity, ...] = _those(lambda traits: traits.source == "executed")
PROCESS_WIDE: tuple[CountedQuantity, ...] = _those(lambda traits: traits.process_wide)
# What a file of limits can have, and a comparison can limit.
RECORDABLE: tuple[Quantity, ...] = _those(lambda traits: traits.recorded != "never")
RECORDED: tuple[Quantity, ...] = _those(lambda traits: traits.recorded == "always")
# What runs are compared by, as far as it was measured; part of it is measured only for some readers, or under load.
# Those of them that are no counts have an interval.
COMPARED: tuple[str, ...] = _those(lambda traits: traits.compared)
ESTIMATED: tuple[str, ...] = _those(lambda traits: traits.compared and not traits.counted)
UNDER_LOAD: tuple[str, ...] = _those(lambda traits: traits.source == "load")
# The share of the requests per second that a layer costs.
RPS_SHARE: Quantity = "rps_share"
# The percentiles, each with the share of requests that are above it.
TAILS: Mapping[Any, float] = {name: traits.tail for name, traits in TRAITS.items() if traits.tail is not None}
