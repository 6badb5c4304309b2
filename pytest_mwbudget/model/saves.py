"""What leaving a layer out of the stack saves."""

from __future__ import annotations

from dataclasses import dataclass

from .estimate import Estimate

# Why it is not known what a layer of a timed request saves, if nobody needs it.
UNREAD = "it is measured only for -v, JSON, HTML and Markdown, in a test outside of a survey"


@dataclass(frozen=True, slots=True)
class Saves:
    """How much less time a whole request takes without the layer.

    `us` is None if that is not known; `why` then has the reason.
    """

    us: Estimate | None
    why: str | None = None
