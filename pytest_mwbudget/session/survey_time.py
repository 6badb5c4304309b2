"""How long a survey measures each request: counts for all, then times for as many as possible.

Nobody knows which requests are still to come. So time is set aside for counting the expected requests, and each request
is timed in a part of the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..config.settings import Settings
from ..errors import tagged
from ..model.estimate import Seconds
from ..model.remedies import TimeOption
from ..timing.looks import Environment
from ..workload.time_budget import LEAST_S, sampled_s, warming
from .claims import Sums

# A request is timed for at most this long, which gives good intervals.
MOST_S: Seconds = 2.0
# The first request of each stack of layers is timed for this long, if there is time for any.
FIRST_S: Seconds = 0.5
# How long a request waits for its turn: as long as a few other processes take.
WAIT_S: Seconds = 10.0
# Before anything is known, this many requests are expected in this many tests, and counting one takes this long.
EXPECTED_REQUESTS, EXPECTED_TESTS = 15, 50
COUNTING_S: Seconds = 0.1
# More time is set aside for counting than is expected, because later tests may make more requests than earlier ones.
RESERVE = 1.25
# If there is too little time to count all requests: repetitions that are counted, uncounted ones before them, those of
# executed code that must agree, and calls to warm up.
FEW_COUNTED, FEW_UNCOUNTED, FEW_AGREEING, FEW_WARM_CALLS = 7, 4, 3, 40
# The share of all time that times may take, however many requests have to be counted.
TIMING_SHARE = 0.25
# A request is timed in a part of this many of the time that is free, or of fewer if fewer requests are expected.
PARTS = 40
# What gives a request without a budget more time.
IN_A_TEST = TimeOption("a marked test with max_time")
UNJUDGED = tagged("Not judged by its budgets of time: the survey had little time left.", "survey-time")


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to time a request: for `seconds`, or not at all below LEAST_S.

    If nobody has timed a request to a stack of the same layers, it is timed for `first_s` at least. `left_s` is left of
    the survey. `hurried` is whether counts have to be quick. `wait_s` is how long to wait for a turn.
    """

    seconds: Seconds
    first_s: Seconds
    left_s: Seconds
    hurried: bool = False
    wait_s: Seconds = WAIT_S

    def of_stack(self, *, new: bool) -> Plan:
        """Return the plan for a stack that is new, or is not."""
        return replace(self, seconds=max(self.seconds, self.first_s)) if new else self

    def within(self, seconds: Seconds) -> Plan:
        """Return the plan with less time."""
        return replace(self, seconds=min(self.seconds, seconds), first_s=min(self.first_s, seconds))

    @property
    def timed(self) -> bool:
        """Whether there is time for more than counts."""
        return self.seconds >= LEAST_S

    def settings(self, settings: Settings) -> Settings:
        """Return the settings for the time. A budget of time gets more, because a failure needs patience."""
        if settings.budgets.bound_time and self._patient(settings):
            return settings
        return replace(
            settings,
            budgets=settings.budgets.of_counts,
            max_time_s=sampled_s(max(self.seconds, LEAST_S)),
            timed=self.timed,
            trend=False,
            more_time=IN_A_TEST,
        )

    def unjudged(self, settings: Settings) -> str | None:
        """Say that budgets of time are not judged, None if they are or there are none."""
        if not settings.budgets.bound_time or self._patient(settings):
            return None
        return UNJUDGED

    def _patient(self, settings: Settings) -> bool:
        return self.timed and self.left_s >= settings.max_time_s

    def environment(self, environment: Environment) -> Environment:
        """Return the environment for the time, with less warming up."""
        schedule, most_s = environment.schedule, max(self.seconds, self.first_s)
        brief = replace(warming(schedule, most_s), precision_time_s=min(schedule.precision_time_s, most_s))
        if self.hurried:
            brief = replace(
                brief,
                counted_requests=min(schedule.counted_requests, FEW_COUNTED),
                uncounted_requests=min(schedule.uncounted_requests, FEW_UNCOUNTED),
                agreeing_requests=min(schedule.agreeing_requests, FEW_AGREEING),
                brief_warm_calls=min(schedule.brief_warm_calls, FEW_WARM_CALLS),
            )
        return replace(
            environment, precise=True, inside=False, saves=False, schedule=brief, progress=lambda share: None
        )


def plan_of(limit_s: Seconds, sums: Sums, tests: int) -> Plan:
    """Return the plan for the next request, before its layers are known.

    `limit_s` is the time of the survey, `sums` what it has spent, `tests` the number of all tests. A test to come is
    expected to make as many requests as the tests before, and the time to count them is set aside. The remaining time,
    or what is left of TIMING_SHARE if that is more, is for timing. A request gets a part of it, so that others get
    theirs.
    """
    left_s = limit_s - sums.seconds
    rate = (sums.requests + EXPECTED_REQUESTS) / (sums.tests + EXPECTED_TESTS)
    expected = 1 + max(0, tests - sums.tests - 1) * rate
    counting_s = (sums.seconds - sums.timing + COUNTING_S) / (sums.requests + 1)
    reserved_s = RESERVE * expected * counting_s
    free_s = min(left_s, max(left_s - reserved_s, TIMING_SHARE * limit_s - sums.timing, 0.0))
    share_s = min(MOST_S, free_s / min(PARTS, expected))
    return Plan(share_s, min(FIRST_S, free_s), left_s, hurried=reserved_s > left_s)
