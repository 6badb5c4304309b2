"""Every tuning constant that decides how many requests are made."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.estimate import Seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """Numbers of requests and time limits. Tests inject a quick schedule."""

    # Warming up fills caches and specialises bytecode. A brief warm-up is enough for counts, and for times that are far
    # below their budgets.
    warm_calls: int = 1000
    warm_ns: int = 300_000_000
    brief_warm_calls: int = 100
    brief_warm_ns: int = 100_000_000

    # Counting: this many requests, after some that are not counted; fewer of a slow app.
    counted_requests: int = 21
    uncounted_requests: int = 8
    counting_ns: int = 1_000_000_000

    # Counting executed code: until this many requests in a row execute the same, at most this many. After this time,
    # two that execute the same are enough.
    agreeing_requests: int = 10
    executed_requests: int = 40
    executed_ns: int = 300_000_000

    # The first look: about this long, between the fewest and the most requests. Each later look has twice as many.
    first_look_ns: int = 500_000_000
    fewest_first: int = 64
    most_first: int = 128
    # Before the app is warm: this many looks in this share of the time limit. On a busy machine the first look may have
    # too few quiet moments.
    first_sight_looks: int = 2
    first_sight_share: float = 0.2
    # Sampling stops after this time if no verdict is undecided, even if intervals are wide.
    precision_time_s: Seconds = 2.0
    # The same for the parts of the endpoint, which are sampled in requests of their own.
    parts_time_s: Seconds = 1.0
    # A slow stretch of the machine makes every layer look too expensive. A failure counts after this time of sampling,
    # if the machine was watched for this long in all.
    failure_time_s: Seconds = 1.0
    watched_time_s: Seconds = 5.0

    # A look consists of turns of about this long, with requests between the fewest and the most.
    turn_ns: int = 250_000_000
    fewest_of_turn: int = 32
    most_of_turn: int = 512
    # The fewest requests of one leg of the split.
    fewest_of_leg: int = 32
    # Calls that do not count after code was patched, until CPython has specialised it again.
    settle_calls: int = 32
    settle_ns: int = 20_000_000
    # The calls of a block with or without a layer, and the calls before them that do not count.
    block_calls: int = 4
    block_settle_calls: int = 1
    # For this many requests, one more is made whose probes read the processor's clock.
    cpu_every: int = 4
    # For this many requests, one more is made without probes; for each request, where steps of the event loop are
    # logged and the app is not slow.
    whole_every: int = 4
    # Parts that no undecided verdict depends on are sampled in one turn of this many, so that a faster machine shows.
    unwanted_every: int = 4

    # What leaving a layer out saves: for this share of the time limit, in at most this many rounds of blocks. Without
    # time for the fewest rounds it is not measured.
    savings_share: float = 0.2
    most_savings: int = 1000
    fewest_savings: int = 16
    # The same for layers whose verdict is in doubt.
    witness_ns: int = 800_000_000
    witness_rounds: int = 64
    # Growth is looked for in this many requests at most, in legs, and for this time. The objects of some requests are
    # followed through more requests, both at most this many and for this time.
    trend_requests: int = 6000
    trend_leg: int = 250
    trend_ns: int = 4_000_000_000
    trend_counted: int = 128
    trend_followed: int = 4000
    trend_counting_ns: int = 1_500_000_000

    # To subtract its own cost, a profile needs the layers' times. If they are not in the result, they are sampled for
    # at most this time.
    profile_timing_s: Seconds = 1.0
    # A profile ends when each layer has this many samples, within these times, in chunks. The share of a function that
    # takes a fifth of a layer is then known to a tenth of itself.
    profile_samples: int = 500
    profile_least_s: Seconds = 1.0
    profile_most_s: Seconds = 3.0
    profile_chunk_s: Seconds = 0.1
    # Calls and returns are not recorded of a request with more than this, because each takes tens of microseconds.
    profile_events: int = 20_000

    @property
    def block(self) -> int:
        """The number of requests of a block."""
        return self.block_settle_calls + self.block_calls

    def first_look(self, request_ns: float) -> int:
        """Return the number of requests of the first look, where one takes `request_ns`."""
        return round(min(max(self.first_look_ns / max(request_ns, 1.0), self.fewest_first), self.most_first))

    def turn(self, request_ns: float) -> int:
        """Return the number of requests of a turn, where one takes `request_ns`."""
        return round(min(max(self.turn_ns / max(request_ns, 1.0), self.fewest_of_turn), self.most_of_turn))
