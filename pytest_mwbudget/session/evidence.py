"""The counts that an update writes: those of this run, and of the same tests in other processes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ..limits.sections import Surroundings
from ..limits.updating import Measured
from ..model.request_keys import RequestKey, keyed
from ..model.results import Quantity, Result
from ..report.json import measured as measured_in
from .limits import surroundings
from .recount import SEEDS, Recount, RecountError, recounted

# The seed of the process of a test alone is the one of `limits.rechecked`. The next seed is that of all tests in order.
# The other ones are of tests whose counts differ.
ALONE, IN_ORDER, *FURTHER = SEEDS[:7]
# Prints a line of progress.
Progress = Callable[[str], None]
# Returns the tests of which counts would be written.
Wanted = Callable[[Mapping[RequestKey, Measured]], Collection[str]]


@dataclass(frozen=True, slots=True)
class DiffersAlone:
    """A count that is another one if the test runs alone: what it is `alone`, and after other tests."""

    key: RequestKey
    row: str
    quantity: Quantity
    alone: float
    after_others: float


@dataclass
class Evidence:
    """What processes say of requests.

    `in_order` has a request in the run and in processes with the same order of tests, `alone` in a process of its test
    alone. `surroundings` are those of requests that were made there only. `not_alone` are tests that could not be
    counted alone, with the error.
    """

    config: pytest.Config
    quantities: Collection[Quantity]
    in_order: dict[RequestKey, list[Measured]]
    alone: dict[RequestKey, list[Measured]] = field(default_factory=dict)
    surroundings: dict[RequestKey, Surroundings] = field(default_factory=dict)
    not_alone: dict[str, str] = field(default_factory=dict)

    def collect(self, wanted: Wanted, progress: Progress) -> set[str]:
        """Count in other processes; return the tests of which counts would be written.

        Raises RecountError if the tests cannot be counted again in their order.
        """
        tests = {key.nodeid for key, (own,) in self.in_order.items() if own.counted}
        if not tests:
            return set()
        progress(f"counting {_number(tests)} again in another process")
        self._count_in_order(tests, IN_ORDER, delayed=True)
        written = tests & {*wanted({key: self.joined(key) for key in self.in_order})}
        if written:
            progress(f"counting {_number(written)} again alone, each in a process of its own")
        for test in sorted(written):
            self._count_alone(test, ALONE)
        for test in sorted({one.key.nodeid for one in self.differ_alone()}):
            # With another seed: what depends on the seed differs from this one too.
            self._count_alone(test, FURTHER[0])
        differing = written & {
            key.nodeid for found in (self.in_order, self.alone) for key, ones in found.items() if _joined(ones).differs
        }
        if differing:
            progress(f"counting {_number(differing)} again in {len(FURTHER)} more processes, because counts differ")
            for seed in FURTHER:
                self._count_in_order(differing, seed)
        return written

    def joined(self, key: RequestKey) -> Measured:
        """Return the costs of a request in all processes."""
        if key not in self.alone:
            return _joined(self.in_order[key])
        alone = _joined(self.alone[key])
        return _joined(self.in_order[key]).or_alone(alone) if key in self.in_order else alone

    @property
    def unconfirmed(self) -> list[RequestKey]:
        """The requests that no other process made."""
        return [key for key, found in self.in_order.items() if len(found) == 1 and key not in self.alone]

    def differ_alone(self) -> Iterator[DiffersAlone]:
        """Yield the counts that only differ between a test alone and the same test after others."""
        for key in [key for key in self.in_order if key in self.alone]:
            after_others = _joined(self.in_order[key])
            for row, quantity, alone in _joined(self.alone[key]).counted:
                other = after_others.costs.get(row, {}).get(quantity)
                if other is not None and not (alone.differs or other.differs) and alone.typical != other.typical:
                    yield DiffersAlone(key, row, quantity, alone.typical, other.typical)

    def _count_in_order(self, tests: Collection[str], seed: int, *, delayed: bool = False) -> None:
        for key, result in self._recounted(Recount(tuple(sorted(tests)), seed, delayed=delayed)):
            if key in self.in_order:
                self.in_order[key].append(Measured.of(result, self.quantities))

    def _count_alone(self, test: str, seed: int) -> None:
        try:
            found = self._recounted(Recount((test,), seed, alone=True, delayed=True))
        except RecountError as error:
            self.not_alone[test] = str(error)
            return
        for key, result in found:
            self.alone.setdefault(key, []).append(Measured.of(result, self.quantities))
            self.surroundings[key] = surroundings(result.loop)
        if not found:
            self.not_alone[test] = "it made no request that can be judged"

    def _recounted(self, order: Recount) -> list[tuple[RequestKey, Result]]:
        """Return the requests with limits that another process counted. Raises RecountError."""
        results = keyed(measured_in(recounted(self.config, order)))
        return [(key, result) for key, result in results if result.recorded is not None]


def _joined(processes: Sequence[Measured]) -> Measured:
    first, *others = processes
    for other in others:
        first = first.with_another(other)
    return first


def _number(tests: Collection[str]) -> str:
    return "1 test" if len(tests) == 1 else f"{len(tests)} tests"
