"""What a layer costs for each message of a stream, of a large request body, or of a WebSocket."""

from __future__ import annotations

from dataclasses import dataclass

from .estimate import Estimate

# A request with fewer messages one way has no figure per message.
FEWEST_MESSAGES = 10


@dataclass(frozen=True, slots=True)
class PerMessage:
    """The messages of a request one way, `count` of them, and microseconds of self time for each."""

    count: int
    us: Estimate


@dataclass(frozen=True, slots=True)
class Messages:
    """The cost of a layer by message.

    `sent` are messages towards the client, `received` those from it; None with fewer than FEWEST_MESSAGES.
    `first_byte` is the time that the layer adds before the first part of the body leaves it: its self time until then,
    and what it holds the first part back. None if the layer passes no body on, or few messages are sent.
    """

    sent: PerMessage | None = None
    received: PerMessage | None = None
    first_byte: Estimate | None = None

    @property
    def us_per_message(self) -> Estimate | None:
        """The figure that a budget judges: of both ways the larger one. One without ends counts as larger."""
        both = [way.us for way in (self.sent, self.received) if way is not None]
        return max(both, key=lambda us: (not us.bounded, us.estimate), default=None)

    @property
    def bounded(self) -> Messages | None:
        """The figures with an interval, None if there is none."""
        sent, received = (way if way and way.us.bounded else None for way in (self.sent, self.received))
        return Messages(sent, received, self.first_byte) if sent or received else None
