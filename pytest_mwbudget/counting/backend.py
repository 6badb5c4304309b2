"""The counting backend: the core in C, or else the core in Python, and why a quantity cannot be counted."""

from __future__ import annotations

import sys
import sysconfig
from collections.abc import Mapping
from dataclasses import dataclass

from ..errors import MeasurementError
from ..interpreter.internals import self_check
from ..model.quantities import EXECUTED, PROCESS_WIDE
from ..model.stack import Owner
from .events import c_core, why_no_executed
from .python_core import PythonCore

NOT_BUILT = "the C extension was not built"


@dataclass(frozen=True, slots=True)
class Backend:
    """A core, and by quantity why the core cannot count it. The core in C has the interface of the core in Python."""

    core: PythonCore
    why_not: Mapping[str, str]


def counting_backend() -> Backend:
    """Return the best backend that this interpreter allows."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return _without("a free-threaded interpreter is not supported")
    try:
        core = c_core()
    except ImportError as error:
        missing = getattr(error, "name", None) == f"{__package__}._core" or "cannot import name" in str(error)
        return _without(f"{NOT_BUILT}: install with a C compiler" if missing else str(error))
    if (why := why_no_counting()) is not None:
        return _without(why)
    why_not: dict[str, str] = {}
    if not core.COUNTS_OBJECTS:
        version = f"this is {sys.version_info[0]}.{sys.version_info[1]}"
        why_not |= dict.fromkeys(("objects", "retained"), f"creations can be seen from Python 3.13 on, {version}")
    if (unseen := why_no_executed()) is not None:
        why_not |= dict.fromkeys(EXECUTED, unseen)
    return Backend(core, why_not)


def start(core: PythonCore, owners: int, *skipped: tuple[str, ...]) -> bool:
    """Start the core, as `PythonCore.start` does. Raises MeasurementError if it counts already."""
    try:
        return core.start(owners, *skipped)
    except RuntimeError as error:
        raise MeasurementError(
            f"nothing can be counted: {error}; measure one request at a time", message_id="one-at-a-time"
        ) from error


@self_check("the core in C does not count the objects that are made before it", "it is not used")
def why_no_counting() -> bool:
    """Check the core in C on objects that are made for it: each is one object and one allocation of its owner."""

    class Sample:
        __slots__ = ()

    core, own, samples = c_core(), Owner(0), 5
    try:
        core.start(1)
    except RuntimeError:  # it counts already, and was checked before
        return True
    try:
        core.take()
        core.run(own, lambda: None)
        before, _ = core.take()
        made = core.run(own, lambda: [Sample(), Sample(), Sample(), Sample(), Sample()])
        after, kinds = core.take()
    finally:
        core.stop()
    _, allocations, size, _ = (more - less for more, less in zip(after[own], before[own], strict=True))
    objects = sum(number for owner, kind, number in kinds if (owner, kind) == (own, Sample))
    return (
        len(made) == samples
        and allocations >= samples
        and size >= samples * Sample.__basicsize__
        and (objects == samples or not core.COUNTS_OBJECTS)
    )


def _without(reason: str) -> Backend:
    return Backend(PythonCore(), dict.fromkeys(PROCESS_WIDE, reason))
