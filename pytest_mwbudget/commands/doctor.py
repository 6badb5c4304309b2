"""The command `mwbudget doctor`: what can be measured in this environment, and what to do about the rest."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ..analysis.core_sharing import is_shared
from ..analysis.samples import Series
from ..counting.backend import NOT_BUILT, counting_backend, why_no_counting
from ..counting.events import why_no_events
from ..interpreter.clocks import perf_counter_ns
from ..interpreter.internals import SELF_CHECKS, thread_tools, why_no_code_patching
from ..load.processor import siblings
from ..load.server import INSTALL
from ..model.quantities import COUNTED, EXECUTED
from ..report.text import wrapped
from ..session.provenance import version_of
from ..timing.host_speed import Interrupted, issue_width, processor, reference_ns
from .app import FAILED, PASSED

# Nothing to do; figures are missing or less precise; nothing can be measured.
State: TypeAlias = Literal["fine", "limited", "lost"]

SUPPORTED = ((3, 11), (3, 14))
# A wheel without extensions may be installed, which is preferred to building.
BUILD = "build it, with a C compiler: pip install --force-reinstall --no-binary pytest-mwbudget pytest-mwbudget"
# The first version in which executed code can be seen.
EXECUTED_FROM = (3, 12)
LOOPS = ("uvloop", "trio")
CLIENTS = ("httpx", "httpx2", "starlette", "litestar", "quart", "async-asgi-testclient", "django")
FRAMEWORKS = ("fastapi", "starlette", "django", "litestar", "falcon", "quart", "sanic", "blacksheep")
SERVER = ("uvicorn", "httptools", "h11")
# Plugins that run tests elsewhere, in another order, with limits of time or under tools that slow code down.
PLUGINS = (
    *("pytest", "anyio", "pytest-asyncio", "pytest-xdist", "pytest-cov", "pytest-timeout", "pytest-randomly"),
    *("pytest-rerunfailures", "pytest-run-parallel", "pytest-benchmark", "pytest-codspeed", "pyinstrument"),
)
# From this version on coverage uses sys.monitoring by default.
COVERAGE_MONITORS = (3, 14)
# Version 2 has both numbers in a file, version 1 has a file for each.
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CGROUP_1_FOLDER, CGROUP_1_FILES = Path("/sys/fs/cgroup/cpu"), ("cpu.cfs_quota_us", "cpu.cfs_period_us")
# A clock with longer steps cannot tell cheap layers apart.
LONGEST_STEP_NS = 1000
NOISE_S = 2.0
# A reading is slow if it takes SLOW times as long as the quickest. While slow readings take at most FEW_SLOW of the
# time, times are fine; above MANY_SLOW most verdicts on times would be undecided.
SLOW, FEW_SLOW, MANY_SLOW = 1.25, 0.15, 0.5
MOST_COLUMNS = 100


@dataclass(frozen=True, slots=True)
class Finding:
    """What holds for a subject, and what to do about it: nothing, if `remedy` is empty."""

    subject: str
    state: State
    text: str
    remedy: str = ""


def main(command_line: Mapping[str, Any]) -> int:
    """Print the findings, as JSON if asked. Returns the exit status: 1 if nothing can be measured here."""
    findings = list(examined(NOISE_S, perf_counter_ns))
    if command_line["json"]:
        versions = {"mwbudget": version_of("pytest-mwbudget"), "python": platform.python_version()}
        print(json.dumps({**versions, "findings": [asdict(finding) for finding in findings]}, indent=2))
    else:
        for line in laid_out(findings, min(shutil.get_terminal_size().columns - 1, MOST_COLUMNS)):
            print(line)
    return FAILED if any(finding.state == "lost" for finding in findings) else PASSED


def examined(noise_s: float, clock: Callable[[], int]) -> Iterator[Finding]:
    """Yield the findings. The machine's noise is read for `noise_s` seconds of the clock, in nanoseconds."""
    yield python()
    yield from counted()
    yield Finding("event loops", "fine", ", ".join(["asyncio", *installed(LOOPS)]))
    yield Finding("clients of tests", "fine", ", ".join(installed(CLIENTS)))
    yield Finding("frameworks", "fine", ", ".join(installed(FRAMEWORKS)) or "none; any ASGI app can be measured")
    yield Finding("pytest", "fine", ", ".join(installed(PLUGINS)))
    yield under_load()
    yield tracers()
    yield cores()
    yield clock_steps(clock)
    yield noise(noise_s, clock)


def laid_out(findings: list[Finding], width: int) -> Iterator[str]:
    """Yield a line for each finding, wrapped, and below it its remedy."""
    indent = max(len(finding.subject) for finding in findings) + len("limited") + 4
    for finding in findings:
        head = f"{finding.state:<7}  {finding.subject}"
        remedy = wrapped(f"-> {finding.remedy}", width - indent) if finding.remedy else []
        for number, text in enumerate([*wrapped(finding.text, width - indent), *remedy]):
            yield f"{head if not number else '':<{indent}}{text}"


# ---- the interpreter ---------------------------------------------------------------------------------------------


def python() -> Finding:
    """Say whether this interpreter is supported and works as the measurement needs."""
    text = f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}"
    oldest, newest = (f"{major}.{minor}" for major, minor in SUPPORTED)
    between = f"use CPython {oldest} to {newest}"
    if platform.python_implementation() != "CPython":
        return Finding("Python", "lost", f"{text}: only CPython is supported", between)
    if (why := why_no_code_patching()) is not None:
        return Finding("Python", "lost", why, between)
    # Those of the core in C are among the reasons why something is not counted.
    checks = [check for check in SELF_CHECKS if check not in (why_no_counting, why_no_events)]
    if wrong := [why for check in checks if (why := check()) is not None]:
        return Finding("Python", "limited", "; ".join(wrong), between)
    if not SUPPORTED[0] <= sys.version_info[:2] <= SUPPORTED[1]:
        return Finding("Python", "limited", f"{text}: this version is not tested", between)
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return Finding("Python", "limited", f"{text}, free-threaded", "for counts of memory use a build with the GIL")
    return Finding("Python", "fine", text)


def counted() -> Iterator[Finding]:
    """Say which quantities are counted here, and why not the others."""
    why_not = counting_backend().why_not
    yield Finding("counted", "fine", ", ".join(name for name in COUNTED if name not in why_not))
    for why in dict.fromkeys(why_not.values()):
        names = [name for name, reason in why_not.items() if reason == why]
        yield Finding("not counted", "limited", f"{', '.join(names)}: {why}", remedy_of(names, why))


def remedy_of(quantities: list[str], why: str) -> str:
    """Return what to do so that quantities are counted which are not."""
    if NOT_BUILT in why:
        return BUILD
    if set(quantities) <= {"objects", "retained"}:
        return "use Python 3.13 or newer"
    if set(quantities) <= set(EXECUTED) and sys.version_info[:2] < EXECUTED_FROM:
        return "use Python 3.12 or newer"
    return "use CPython with the GIL, in a version that is tested"


# ---- packages ----------------------------------------------------------------------------------------------------


def installed(names: tuple[str, ...]) -> list[str]:
    """Return those packages that are installed, with their versions."""
    return [f"{name} {version}" for name in names if (version := version_of(name)) is not None]


def under_load() -> Finding:
    """Say whether the server of measurements under load is there."""
    if version_of("uvicorn") is None:
        return Finding("under load", "limited", "uvicorn, which would serve the app, is not installed", INSTALL)
    return Finding("under load", "fine", ", ".join(installed(SERVER)))


def tracers() -> Finding:
    """Say whether tools that trace code are suspended while the clock runs, and how coverage traces."""
    version = version_of("coverage")
    default = "sysmon" if sys.version_info[:2] >= COVERAGE_MONITORS else "ctrace"
    core = os.environ.get("COVERAGE_CORE") or default
    seen = "" if version is None else f"; coverage {version}, core {core}"
    if thread_tools() is None:
        text = f"suspended in the thread that measures, not in others: {NOT_BUILT}{seen}"
        return Finding("tracers", "limited", text, BUILD)
    return Finding("tracers", "fine", f"suspended in all threads while the clock runs{seen}")


# ---- the machine -------------------------------------------------------------------------------------------------


def cores() -> Finding:
    """Say which cores this process may use."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    text = f"{len(allowed)} of {processor()}"
    if shared := sum(len(siblings(core)) > 1 for core in allowed):
        text += f", {shared} of them share a physical core with another"
    quota = cpu_quota()
    if quota is not None and quota < len(allowed):
        text += f"; a limit of the container allows {quota:g} of them at a time"
        return Finding(
            "cores", "limited", text, "raise the limit, or gate on counts: a stopped process reads slow times"
        )
    if len(allowed) == 1:
        text += "; under load the clients need a core beside the app's"
        return Finding("cores", "limited", text, "for figures under load use two cores")
    return Finding("cores", "fine", text)


def cpu_quota() -> float | None:
    """Return how many cores a control group allows at a time, None without a limit."""
    with suppress(OSError, ValueError):
        allowed, period = CGROUP_QUOTA.read_text(encoding="ascii").split()
        return int(allowed) / int(period)
    with suppress(OSError, ValueError):
        allowed, period = ((CGROUP_1_FOLDER / name).read_text(encoding="ascii") for name in CGROUP_1_FILES)
        return int(allowed) / int(period) if int(allowed) > 0 else None
    return None


def clock_steps(clock: Callable[[], int]) -> Finding:
    """Say in what steps the clock goes on."""
    steps = []
    for _ in range(200):
        before = now = clock()
        while now == before:
            now = clock()
        steps.append(now - before)
    step_ns = min(steps)
    text = f"steps of at most {step_ns} ns"
    if step_ns > LONGEST_STEP_NS:
        return Finding("clock", "limited", text, "on a virtual machine choose another clock source, or gate on counts")
    return Finding("clock", "fine", text)


def noise(seconds: float, clock: Callable[[], int]) -> Finding:
    """Say how noisy the machine is now: by how much a fixed piece of work varies."""
    begin_ns, before, readings, widths = clock(), Interrupted.now(), [], Series()
    while clock() - begin_ns < seconds * 1e9:
        readings.append(reference_ns(clock))
        if (width := issue_width()) is not None:
            widths.add(width, readings[-1])
    limit_ns = SLOW * min(readings)
    # By time: a process that takes the core makes one reading long, not many.
    slow = sum(ns for ns in readings if ns > limit_ns) / sum(readings)
    text = f"{slow:.0%} of {seconds:g} s were at least a quarter slower than the quickest moment"
    if before is not None and (after := Interrupted.now()) is not None:
        text += f", and other processes took the core {after.times - before.times} times"
    if is_shared(widths.values, widths.reference):
        text += "; even in that moment another thread, perhaps of another virtual machine, used the same core"
        slow = 1.0
    if slow <= FEW_SLOW:
        return Finding("the machine now", "fine", f"{text}: times are fine")
    if slow <= MANY_SLOW:
        return Finding(
            "the machine now",
            "limited",
            f"{text}: verdicts on times take longer",
            "if they take too long, gate on counts",
        )
    undecided = f"{text}: verdicts on times would often be undecided"
    return Finding("the machine now", "limited", undecided, "gate on counts, which noise does not change")
