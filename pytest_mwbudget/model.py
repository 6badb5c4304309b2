"""The records that a measurement is made of. Frozen, without behaviour beyond reading themselves.

All times are microseconds per request unless a name says `_ns` or `_s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    import httpx

Microseconds: TypeAlias = float
Nanoseconds: TypeAlias = int
Seconds: TypeAlias = float

Verdict: TypeAlias = Literal["pass", "fail", "undecided"]
Kind: TypeAlias = Literal["middleware", "routing"]
Method: TypeAlias = Literal["split", "bypass"]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A median in microseconds per request, with the ends of its confidence interval."""

    estimate: Microseconds
    low: Microseconds
    high: Microseconds

    @property
    def half_width(self) -> Microseconds:
        """The larger distance from the estimate to an end of the interval."""
        return max(self.estimate - self.low, self.high - self.estimate)


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer of a discovered stack.

    `index` counts from the outermost layer, 0. `name` is unique in its stack; `qualname` is `module.QualName`;
    `aliases` are the further names by which a budget may call it. `runs_task` says that it runs what is inside it in a
    task of its own. `merged_with` names the neighbour whose figures
    include this layer's, where no probe can stand at its boundary; `merged_because` says why.
    """

    index: int
    name: str
    qualname: str
    kind: Kind
    aliases: frozenset[str] = frozenset()
    entered: bool = True
    runs_task: bool = False
    merged_with: str | None = None
    merged_because: str | None = None


@dataclass(frozen=True, slots=True)
class LayerReport:
    """What was measured of one layer, and how its budget was judged.

    `us` is None when the layer was not entered or is merged with a neighbour. `reason` explains an undecided verdict.
    """

    layer: Layer
    us: Estimate | None
    method: Method | None
    budget_us: Microseconds | None = None
    verdict: Verdict | None = None
    reason: str | None = None

    @property
    def name(self) -> str:
        """The layer's name, unique in its stack."""
        return self.layer.name


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
class Effort:
    """What a measurement took: `requests` measured, in `rounds` over all boundaries, in `seconds`."""

    requests: int
    rounds: int
    seconds: Seconds


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

    Without enforcement only `request` and `status` are set, `layers` is empty and `verdict` is None.
    `total_budget_us` and `total_verdict` belong to the budget on the whole request. `notes` are remarks on how far
    the figures can be trusted, one sentence each.
    """

    request: RequestLine
    status: int
    loop: str = "asyncio"
    layers: tuple[LayerReport, ...] = ()
    books: Books | None = None
    floor_us: Microseconds | None = None
    effort: Effort | None = None
    total_budget_us: Microseconds | None = None
    total_verdict: Verdict | None = None
    total_reason: str | None = None
    verdict: Verdict | None = None
    notes: tuple[str, ...] = ()

    def layer(self, name: str) -> LayerReport:
        """The report of the layer that the table calls `name`; KeyError with the names that exist."""
        for report in self.layers:
            if report.name == name:
                return report
        raise KeyError(f"no layer {name!r}; the stack has {', '.join(r.name for r in self.layers) or 'no layers'}")


@dataclass(frozen=True, kw_only=True)
class Measurement(Result):
    """A `Result` with the response that the test made its request for."""

    response: httpx.Response
