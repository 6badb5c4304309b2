"""How long a measurement takes over what: every tuning constant that decides how many requests are made."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.estimate import Seconds


@dataclass(frozen=True, slots=True)
class Schedule:
    """Numbers of requests and limits of time. Tests inject one that is quick; users get this one."""

    # Warming up, until caches are filled and the bytecode is specialised. Counts and budgets of time that are kept with
    # room depend less on it, and get by with the brief one.
    warm_calls: int = 1000
    warm_ns: int = 300_000_000
    brief_warm_calls: int = 100
    brief_warm_ns: int = 100_000_000

    # Counting: this many requests, after some that are not counted; of a slow app as many as there is time for.
    counted_requests: int = 21
    uncounted_requests: int = 8
    counting_ns: int = 1_000_000_000

    # The first look: about this long, between the fewest and the most requests. Each later look has twice as many.
    first_look_ns: int = 500_000_000
    fewest_first: int = 64
    most_first: int = 128
    first_look_pairs: int = 16
    # Before the app is warm: this many looks in this share of the time limit. On a busy machine the first one may have
    # too few quick moments.
    first_sight_looks: int = 2
    first_sight_share: float = 0.2
    # Narrow intervals alone are worth no more than this time; an open verdict is worth all the time there is.
    precision_time_s: Seconds = 2.0
    # A machine that starts in a slow stretch makes every layer look too expensive. A failure is believed after this
    # time, and when the machine was watched for this long.
    failure_time_s: Seconds = 1.0
    watched_time_s: Seconds = 5.0

    # A look is taken in turns of about this long, of requests between the fewest and the most.
    turn_ns: int = 250_000_000
    fewest_of_turn: int = 32
    most_of_turn: int = 512
    # At least this many requests for the entries of one leg of the split.
    fewest_of_leg: int = 32
    # Calls that are thrown away after the code of the app was patched, until CPython has specialised it again.
    settle_calls: int = 32
    settle_ns: int = 20_000_000
    # A block of a bypass's pair, and the calls before it that are thrown away.
    block_calls: int = 4
    block_settle_calls: int = 1
    # A task layer is bypassed only where there is time for this many calls. Above a slow endpoint it is not.
    bypass_calls: int = 1000
    # One request in this many runs without steppers, to learn what they cost.
    stepless_every: int = 4
    # For this many requests one more is made whose probes read the processor's time instead.
    cpu_every: int = 4
    # For this many requests one more is made of the app as it is.
    whole_every: int = 4
    # What no undecided verdict hangs on is measured in one turn of this many: a faster machine must be noticed.
    unwanted_every: int = 4

    # A profile: until each layer has this many samples, between the least and the most time, in chunks of this long. A
    # function that takes a fifth of a layer has a hundred samples then, and its share is known to a tenth of itself.
    profile_samples: int = 500
    profile_least_s: Seconds = 1.0
    profile_most_s: Seconds = 3.0
    profile_chunk_s: Seconds = 0.1
    # Of a request with more calls and returns than this none are noted, because each takes tens of microseconds.
    profile_events: int = 20_000

    def first_look(self, request_ns: float) -> int:
        """Return the number of requests of the first look, where one takes `request_ns`."""
        return round(min(max(self.first_look_ns / max(request_ns, 1.0), self.fewest_first), self.most_first))

    def turn(self, request_ns: float) -> int:
        """Return the number of requests of a turn, where one takes `request_ns`."""
        return round(min(max(self.turn_ns / max(request_ns, 1.0), self.fewest_of_turn), self.most_of_turn))
