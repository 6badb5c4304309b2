"""The order of bursts: rounds until the time is over. The bursts themselves and the clock are injected."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from ..analysis.load import Arm, Burst, Round
from ..model.estimate import Nanoseconds, Seconds
from ..model.stack import RowIndex

NS_PER_S = 1_000_000_000
# A burst takes about this long: shorter ones cost more pauses, and in longer ones the machine changes its speed.
BURST_S: Seconds = 0.08
# A burst has at least this many requests for each client, and this many in all.
FEWEST_EACH, FEWEST = 2, 40


class BypassError(Exception):
    """Without the layer, a request was not answered as it is with it."""


@dataclass(slots=True)
class Rounds:
    """Makes rounds until `end_ns`: in each a burst for every arm, in random order.

    `burst` makes one. A layer whose burst raises BypassError is left out of all rounds, with the reason in `refused`.
    """

    burst: Callable[[Arm], Awaitable[Burst]]
    layers: Sequence[RowIndex]
    clock: Callable[[], Nanoseconds]
    rng: random.Random
    end_ns: Nanoseconds
    progress: Callable[[], None] = lambda: None
    refused: dict[RowIndex, str] = field(default_factory=dict)

    async def made(self, burst_ns: Nanoseconds) -> list[Round]:
        """Make rounds and return them. A burst is expected to take `burst_ns`; the first may exceed the time."""
        rounds: list[Round] = []
        round_ns = burst_ns * (len(self.layers) + 1)
        alone = False
        while not alone:
            begin = self.clock()
            if rounds and begin + round_ns > self.end_ns:
                break
            # In too little time for a whole round, the app alone.
            alone = begin + round_ns > self.end_ns
            rounds.append(await self._round(alone=alone))
            round_ns = self.clock() - begin
            self.progress()
        return [{arm: burst for arm, burst in bursts.items() if arm not in self.refused} for bursts in rounds]

    async def _round(self, *, alone: bool) -> Round:
        arms: list[Arm] = [None]
        if not alone:
            arms += [layer for layer in self.layers if layer not in self.refused]
        bursts: dict[Arm, Burst] = {}
        for arm in self.rng.sample(arms, len(arms)):
            try:
                bursts[arm] = await self.burst(arm)
            except BypassError as error:
                assert arm is not None
                self.refused[arm] = str(error)
        return bursts


def requests_of(request_ns: float, clients: int, left_ns: float) -> int:
    """Return the number of requests of a burst, where one request takes `request_ns` of the server's time.

    At least FEWEST_EACH for each client, unless that would take more than a tenth of the time that is left.
    """
    most = max(1, round(left_ns / 10 / max(request_ns, 1.0)))
    wanted = max(FEWEST_EACH * clients, FEWEST, round(BURST_S * NS_PER_S / max(request_ns, 1.0)))
    return min(wanted, max(most, clients))
