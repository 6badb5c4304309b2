"""What the surroundings of two runs differ by, and which of their figures can be compared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..model.quantities import COUNTED
from ..model.runs import UNKNOWN_PROCESSOR, Run


@dataclass(frozen=True, slots=True)
class Comparable:
    """Why the times of two runs cannot be compared, and why their counts cannot; None if they can."""

    times: str | None = None
    counts: str | None = None

    def reason(self, quantity: str) -> str | None:
        """Return why a quantity cannot be compared."""
        return self.counts if quantity in COUNTED else self.times


def minor(python: str) -> str:
    """Return the first two numbers of a version of Python."""
    return ".".join(python.split(".")[:2])


def comparable(before: Run, after: Run, loop_before: str, loop_after: str) -> Comparable:
    """Say what of a request can be compared that was measured in two runs, on the given event loops."""
    counts = None
    if (before.implementation, minor(before.python)) != (after.implementation, minor(after.python)):
        counts = f"measured on {before.interpreter}, then on {after.interpreter}"
    elif before.machine != after.machine:
        counts = f"measured on {before.machine}, then on {after.machine}"
    elif loop_before != loop_after:
        counts = f"measured on the loop {loop_before}, then on {loop_after}"
    if counts is not None:
        return Comparable(counts, counts)
    processors = before.processor, after.processor
    if before.python != after.python:
        return Comparable(f"measured on {before.interpreter}, then on {after.interpreter}")
    if None in processors or UNKNOWN_PROCESSOR in processors:
        return Comparable("one of the runs does not say on which model of processor it was measured")
    if processors[0] != processors[1]:
        return Comparable(f"measured on {processors[0]}, then on {processors[1]}")
    return Comparable()


def differences(before: Run, after: Run) -> Iterator[str]:
    """Name what the surroundings of two runs differ by, as `starlette 0.45.3 → 0.46.0`."""
    facts = {
        "": (before.interpreter, after.interpreter),
        "platform ": (before.platform, after.platform),
        "processor ": (before.processor, after.processor),
        "hash seed ": (before.hash_seed, after.hash_seed),
    }
    packages = dict.fromkeys((*before.packages, *after.packages))
    facts |= {f"{name} ": (before.packages.get(name), after.packages.get(name)) for name in packages}
    for name, (old, new) in facts.items():
        if old != new:
            yield f"{name}{old or 'unknown'} → {new or 'unknown'}"
