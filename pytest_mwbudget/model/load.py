"""The figures of an app under load: many clients at a time, behind a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from .estimate import Estimate, Microseconds, Seconds
from .judged import Judged, Verdict

ShareMethod: TypeAlias = Literal["bypass", "split"]
# What a share is of: the time between two responses, or the processor time of the event loop's thread per request.
LoadClock: TypeAlias = Literal["wall", "processor"]
WALL: LoadClock = "wall"
PROCESSOR: LoadClock = "processor"
CLOCK_NAMES: Mapping[LoadClock | None, str] = {WALL: "wall-clock time", PROCESSOR: "processor time"}


@dataclass(frozen=True, slots=True)
class Wait:
    """How long a request is inside a row and not further in, with 1 client and with all clients.

    `serialises` says that requests queue in the row: its time grows with the clients, and neither the work of the
    server nor the turns of its event loop explain the growth.
    """

    one_us: Microseconds
    all_us: Microseconds
    serialises: bool = False


@dataclass(frozen=True, slots=True)
class LayerLoad:
    """The effect of one layer under load.

    - `share`: the share of the requests per second that the layer costs, 0 to 1; None if unknown
    - `method`: `bypass` if requests were sent past the layer, `split` if `share` is the layer's own time divided by the
      time of a request under load
    - `why`: why the layer was not bypassed, or why the bypass says nothing
    - `clock`: what the share is of; None if it is unknown
    - `added_us`: what the layer adds to the time of a request under load by this clock, if it was bypassed
    - `collecting_us`: the part of `added_us` that garbage collection takes
    - `collects`: whether this part is certainly more than the layer's own time, in which garbage collection is off
    - `wait`: how long requests are in the layer
    - `judged`: the budget of the share and its verdict
    """

    share: Estimate | None = None
    method: ShareMethod | None = None
    why: str | None = None
    clock: LoadClock | None = None
    added_us: Estimate | None = None
    collecting_us: Estimate | None = None
    collects: bool = False
    wait: Wait | None = None
    judged: Judged | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """The figures of the whole app under load.

    `rps` are requests per second. `p50_ms` and `p99_ms` are percentiles of the latency that clients see. `busy` is the
    share of the time in which the thread of the event loop worked, None if unknown. `rounds` is the number of rounds of
    bursts, one past each layer and one past none, and `quiet` how many had only quiet moments. `requests` and `seconds`
    are the size of it all. `endpoint` says how long requests are in the endpoint. `judged` is the budget of `p99_ms`.
    `slowdown` is how many times slower than at its best the machine ran meanwhile, 1 if below 1.1.
    """

    clients: int
    rps: Estimate
    p50_ms: Estimate
    p99_ms: Estimate
    busy: float | None
    rounds: int
    quiet: int
    requests: int
    seconds: Seconds
    server: str = ""
    endpoint: Wait | None = None
    judged: Judged | None = None
    notes: tuple[str, ...] = ()
    slowdown: float = 1.0

    @property
    def request_us(self) -> Microseconds:
        """The time between two responses."""
        return 1e6 / self.rps.estimate

    @property
    def verdict(self) -> Verdict | None:
        """The verdict on the latency."""
        return self.judged.verdict if self.judged else None
