"""The counts that an update writes: those of this run, and of the same tests in other processes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from ...limits.sections import Surroundings
from ...limits.updating import Measured
from ...model.quantities import Quantity
from ...model.request_keys import RequestKey, keyed
from ...storage.codec import measured_run
from .of_tests import surroundings
from .recount import SEEDS, Recount, RecountError, recounted

# Hash seeds: of a test alone, of all tests together, of the same test alone where counts differ, and of more processes
# of a test alone where they differ still. In these no request is delayed: a count may depend on how fast they follow.
# `limits.rechecked` begins with the first seed too.
ALONE, TOGETHER, AGAIN, *FURTHER = SEEDS
# A test that waits for another one, or hangs alone, ends after this time.
ALONE_S = 120.0
# Prints a line of progress.
Progress = Callable[[str], None]
# Returns the tests of which limits would be written or removed.
Wanted = Callable[[Mapping[RequestKey, Measured]], Collection[str]]


@dataclass(frozen=True, slots=True)
class DiffersAlone:
    """A count that changes when the test runs alone: the typical count `alone`, and the one `after_others`."""

    key: RequestKey
    row: str
    quantity: Quantity
    alone: float
    after_others: float


@dataclass
class Evidence:
    """The costs of each request, by process.

    `together` has a request in the run, and in a process with all tests of the update. `alone` has it in processes of
    its test alone, `surroundings` those of requests in `alone`. `not_alone` are tests that could not be counted alone,
    with the error.
    """

    config: pytest.Config
    quantities: Collection[Quantity]
    together: dict[RequestKey, list[Measured]]
    alone: dict[RequestKey, list[Measured]] = field(default_factory=dict)
    surroundings: dict[RequestKey, Surroundings] = field(default_factory=dict)
    not_alone: dict[str, str] = field(default_factory=dict)

    def collect(self, wanted: Wanted, progress: Progress) -> set[str]:
        """Count in other processes; return the tests of which limits would be written or removed.

        Raises RecountError if the tests cannot be counted again together.
        """
        tests = {key.nodeid for key, (own,) in self.together.items() if any(own.counted)}
        if not tests:
            return set()
        progress(f"counting {number_of(tests)} again in another process")
        for key, measured in self._recounted(Recount(tuple(sorted(tests)), TOGETHER, delayed=True)):
            if key in self.together:
                self.together[key].append(measured)
        written = tests & {*wanted({key: self.joined(key) for key in self.together})}
        self._count_alone(written, (ALONE,), progress)
        self._count_alone({test for test in written if self._differs(test)}, (AGAIN,), progress)
        # What only differs between the test alone and after others needs no more processes.
        by_order = {(count.key, count.row, count.quantity) for count in self.differ_alone()}
        self._count_alone({test for test in written if self._differs(test, by_order)}, FURTHER, progress)
        return written

    def joined(self, key: RequestKey) -> Measured:
        """Return the costs of a request: the higher ones of its test alone and of each process with other tests.

        Only processes of the test alone had the same tests before it. So only their differences need room.
        """
        processes = [*self.together.get(key, ())]
        if key in self.alone:
            processes.append(_joined(self.alone[key]))
        return _joined(processes, Measured.or_higher)

    def unconfirmed(self, written: Collection[str]) -> list[RequestKey]:
        """Return the requests of these tests that no other process made."""
        return [
            key
            for key, processes in self.together.items()
            if key.nodeid in written and len(processes) == 1 and key not in self.alone
        ]

    def differ_alone(self) -> Iterator[DiffersAlone]:
        """Yield the counts that only differ between a test alone and the same test after others."""
        for key in [key for key in self.together if key in self.alone]:
            after_others = _joined(self.together[key])
            for row, quantity, alone in _joined(self.alone[key]).counted:
                other = after_others.costs.get(row, {}).get(quantity)
                if other is not None and not (alone.differs or other.differs) and alone.typical != other.typical:
                    yield DiffersAlone(key, row, quantity, alone.typical, other.typical)

    def _differs(self, test: str, but: Collection[tuple[RequestKey, str, Quantity]] = ()) -> bool:
        """Whether processes have other counts of the test's requests, typical or at most, `but` those of these rows."""
        seen: defaultdict[tuple[RequestKey, str, Quantity], set[tuple[float, float]]] = defaultdict(set)
        for by_key in (self.together, self.alone):
            for key in [key for key in by_key if key.nodeid == test]:
                for row, quantity, cost in (count for process in by_key[key] for count in process.counted):
                    seen[key, row, quantity].add((cost.typical, cost.high))
        return any(len(counts) > 1 for place, counts in seen.items() if place not in but)

    def _count_alone(self, tests: Collection[str], seeds: Sequence[int], progress: Progress) -> None:
        if tests:
            times = "" if len(seeds) == 1 else f", {len(seeds)} times, because counts differ between processes"
            progress(f"counting {number_of(tests)} alone, each in a process of its own{times}")
        for test in sorted(tests):
            for seed in seeds:
                try:
                    order = Recount((test,), seed, alone=True, delayed=seed not in FURTHER)
                    requests = self._recounted(order, ALONE_S)
                except RecountError as error:
                    self.not_alone.setdefault(test, str(error))
                    break
                for key, measured in requests:
                    self.alone.setdefault(key, []).append(measured)
        counted = {key.nodeid for key in self.alone}
        for test in tests:
            if test in counted:
                self.not_alone.pop(test, None)
            else:
                self.not_alone.setdefault(test, "it made no request that can be judged")

    def _recounted(self, order: Recount, limit_s: float | None = None) -> list[tuple[RequestKey, Measured]]:
        """Return the requests with limits that another process counted. Raises RecountError."""
        requests: list[tuple[RequestKey, Measured]] = []
        for key, result in keyed(measured_run(recounted(self.config, order, limit_s)).measured):
            if result.recorded is not None:
                requests.append((key, Measured.of(result, self.quantities)))
                self.surroundings[key] = surroundings(result.loop)
        return requests


def _joined(
    processes: Sequence[Measured], join: Callable[[Measured, Measured], Measured] = Measured.with_another
) -> Measured:
    first, *others = processes
    for other in others:
        first = join(first, other)
    return first


def number_of(tests: Collection[str]) -> str:
    """Return the number of tests in words."""
    return "1 test" if len(tests) == 1 else f"{len(tests)} tests"
