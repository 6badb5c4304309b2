"""Several stored runs as one, such as the shards of a CI matrix."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ..model.measured_run import MeasuredRun
from ..model.request_keys import RequestKey, keyed
from ..model.results import Result
from ..model.runs import Run
from .surroundings import minor


class Place(NamedTuple):
    """A request with what makes its counts comparable: implementation and minor version of Python, machine, loop."""

    key: RequestKey
    interpreter: str
    machine: str
    loop: str

    @property
    def surroundings(self) -> str:
        """The interpreter, the machine and the loop."""
        return f"{self.interpreter}, {self.machine}, loop {self.loop}"


@dataclass(frozen=True, slots=True)
class Measured:
    """A result with the run that it is from."""

    result: Result
    run: Run


@dataclass(frozen=True, slots=True)
class Merged:
    """The results of several runs by place. `repeated` says which requests several of the files have."""

    requests: Mapping[Place, Measured]
    repeated: tuple[str, ...] = ()

    def like(self, place: Place) -> Measured | None:
        """Return the result of a place, else one of the same request in other surroundings, None without either."""
        exact = self.requests.get(place)
        return exact or next((request for other, request in self.requests.items() if other.key == place.key), None)


def merged(runs: Mapping[str, MeasuredRun]) -> Merged:
    """Merge runs, which have their files as keys.

    Of a request that several files have in the same surroundings, the newest file counts.
    """
    requests: dict[Place, Measured] = {}
    files: dict[Place, list[str]] = {}
    for name, stored in sorted(runs.items(), key=lambda named: datetime.fromisoformat(named[1].run.created)):
        for key, result in keyed(stored.measured):
            interpreter = f"{stored.run.implementation} {minor(stored.run.python)}"
            place = Place(key, interpreter, stored.run.machine, result.loop)
            requests[place] = Measured(result, stored.run)
            files.setdefault(place, []).append(name)
    return Merged(requests, tuple(_repeated(files)))


def _repeated(files: Mapping[Place, Sequence[str]]) -> Iterable[str]:
    """Say for each set of files how many requests all of them have, and which file counts."""
    places: dict[tuple[str, ...], list[Place]] = {}
    for place, names in files.items():
        if len(names) > 1:
            places.setdefault(tuple(names), []).append(place)
    for names, shared in places.items():
        first, more = shared[0].key, f" and {len(shared) - 1} more" if len(shared) > 1 else ""
        yield (
            f"{first.nodeid} {first.request}{more}: in {len(names)} files ({', '.join(names)}); the newest counts,"
            f" {names[-1]}"
        )
