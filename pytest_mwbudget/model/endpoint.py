"""What the endpoint of a request consists of: its parts, or why it could not be opened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..errors import near_miss, tagged
from .results import ResultRow

ROUTING, FRAMEWORK, READ, VALIDATE = "routing", "framework", "read", "validate"
HANDLER, SERIALIZE, RESPOND, BACKGROUND = "handler", "serialize", "respond", "background"
# The parts that have a name of their own, in the order of the table. Dependencies stand after `validate`.
PARTS: Mapping[str, str] = {
    ROUTING: "finding the route",
    FRAMEWORK: "what the framework does around the other parts: the request object, exit stacks, exception handling",
    READ: "reading and parsing the body of the request",
    VALIDATE: "taking parameters and body apart, validating them, and calling dependencies",
    HANDLER: "the function or method of the route",
    SERIALIZE: "validating and serialising what the handler returned, and making response objects",
    RESPOND: "sending the response",
    BACKGROUND: "background tasks",
}


@dataclass(frozen=True, slots=True)
class Observed:
    """What one request showed of the endpoint beside figures.

    - `converts`: FastAPI turned what the handler returned into JSON; that was no response, and no str or bytes
    - `calls`: the dependencies that FastAPI called more than once, with the number of calls
    - `overrides`: the entries of `dependency_overrides`
    - `rebuilt`: how often FastAPI rebuilt a dependency in the request, because there are such entries
    - `stand_ins`: the rows of dependencies that such entries put in place of others
    - `models`: the models of Pydantic in the type of the response
    - `returned`: those of them that the handler returned instances of, each with the number of calls of their model
      validators by FastAPI
    """

    converts: bool = False
    calls: Mapping[str, int] = field(default_factory=dict)
    overrides: int = 0
    rebuilt: int = 0
    stand_ins: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    returned: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """The parts of the endpoint, each with the figures of a layer.

    `parts` are empty if the endpoint was not opened; `closed` says why. Both are empty if parts were not asked for.
    `notes` say how far the figures of the parts can be trusted. `observed` is None if the endpoint was not opened.
    """

    parts: tuple[ResultRow, ...] = ()
    closed: str | None = None
    notes: tuple[str, ...] = ()
    observed: Observed | None = None

    def part(self, name: str) -> ResultRow:
        """Return the report of a part by its name in the table. Raises KeyError, which lists the names."""
        __tracebackhide__ = True
        for part in self.parts:
            if part.name == name:
                return part
        names = [part.name for part in self.parts]
        have = f"The parts are: {', '.join(names)}" if names else f"The endpoint has no parts: {self.closed}"
        raise KeyError(tagged(f"no part {name!r}.{near_miss(name, names)} {have}", "layer-name"))
