"""Tracebacks that show the lines of the test and of the app, but none of this package.

pytest hides frames marked `__tracebackhide__`, but not with `--tb=native`. unittest, subtests and other plugins take
errors before a hook can change them. So this module removes the frames from the traceback itself, before the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import NoReturn

import pytest

from ..errors import MwBudgetError, attribute_of, chain
from ..model.results import Result

PACKAGE = Path(__file__).parents[1]
# The files in which a test enters this package, and in which this package calls the app.
CLIENT, SERVER = str(PACKAGE / "session" / "requests" / "client.py"), str(PACKAGE / "asgi" / "server.py")


class Tracebacks:
    """Removes the frames of this package from errors, in tests for which `concerned` is true."""

    NAME = "mw-budget-tracebacks"

    def __init__(self, concerned: Callable[[pytest.Item], bool]) -> None:
        self.concerned = concerned

    @pytest.hookimpl
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Run after unittest's hook has stored the error of a TestCase, and before pytest's hook makes the report."""
        if call.excinfo is not None and self.concerned(item):
            error, traceback = call.excinfo.value, call.excinfo.tb
            BaseException.with_traceback(error, traceback)
            for exception in chain(error):
                kept = without_package(exception)
                if kept is not attribute_of(exception, "__traceback__"):
                    BaseException.with_traceback(exception, kept)
            kept = attribute_of(error, "__traceback__")
            if kept is not None and kept is not traceback:
                call.excinfo = pytest.ExceptionInfo.from_exc_info((type(error), error, kept))


def raise_at(item: pytest.Item, error: BaseException) -> NoReturn:
    """Raise the error from the first line of the test, because the error has no frame to show."""
    __tracebackhide__ = True
    path, line, _ = item.reportinfo()
    if line is not None:
        code = compile("raise error", str(path), "exec").replace(co_firstlineno=line + 1, co_name=item.name)
        exec(code, {"error": error})  # noqa: S102
    raise error


def entered(error: BaseException) -> bool:
    """Whether the error came through the client, and so through a line of the test or of a fixture."""
    return any(frame.f_code.co_filename == CLIENT for frame, _, _ in _entries(error.__traceback__))


def without_package(error: BaseException) -> TracebackType | None:
    """Return the error's traceback without this package and without the frames between its client and the app.

    The traceback is unchanged if no frame would be left, or if the error is a fault of this package.
    """
    traceback: TracebackType | None = attribute_of(error, "__traceback__")
    entries = list(_entries(traceback))
    files = [frame.f_code.co_filename for frame, _, _ in entries]
    ours = [Path(file).is_relative_to(PACKAGE) for file in files]
    if not any(ours) or (ours[-1] and not _deliberate(error, entries[-1][0])):
        return traceback
    if CLIENT in files:
        begin = files.index(CLIENT)
        # Frames of event loops and contexts in between do not belong to the test either.
        end = files.index(SERVER, begin) if SERVER in files[begin:] else len(files) - 1
        ours[begin : end + 1] = [True] * (end + 1 - begin)
    kept: TracebackType | None = None
    for mine, (frame, instruction, line) in reversed([*zip(ours, entries, strict=True)]):
        if not mine:
            kept = TracebackType(kept, frame, instruction, line)
    return kept or traceback


def _deliberate(error: BaseException, raised_in: FrameType) -> bool:
    """Whether this package raised the error on purpose, for the user to read."""
    explains = issubclass(type(error), (MwBudgetError, pytest.fail.Exception))
    return explains or raised_in.f_code is Result.layer.__code__


def _entries(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno
        traceback = traceback.tb_next
