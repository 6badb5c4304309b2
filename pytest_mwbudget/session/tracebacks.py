"""Tracebacks that show the lines of the test and of the app, and none of this package.

pytest leaves out what is marked `__tracebackhide__`, but not with `--tb=native`, and unittest, subtests and other
plugins take errors before a hook could explain them. So the frames are taken out of the traceback itself, before it is
reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

import pytest

from ..errors import MwBudgetError
from ..model.results import Result

PACKAGE = Path(__file__).parents[1]
# Where a test enters this package, and where this package calls the app.
CLIENT, SERVER = str(PACKAGE / "session" / "client.py"), str(PACKAGE / "asgi" / "server.py")


class Tracebacks:
    """Takes the frames of this package out of the errors of the tests that it is `concerned` with."""

    NAME = "mw-budget-tracebacks"

    def __init__(self, concerned: Callable[[pytest.Item], bool]) -> None:
        self.concerned = concerned

    @pytest.hookimpl
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]) -> None:
        """Run after unittest's has put the error of a TestCase there, and before pytest's makes a report of it."""
        if call.excinfo is not None and self.concerned(item):
            error, traceback = call.excinfo.value, call.excinfo.tb
            BaseException.with_traceback(error, traceback)
            for one in _chain(error):
                kept = without_package(one)
                if kept is not _own(one, "__traceback__"):
                    BaseException.with_traceback(one, kept)
            kept = _own(error, "__traceback__")
            if kept is not None and kept is not traceback:
                call.excinfo = pytest.ExceptionInfo.from_exc_info((type(error), error, kept))


def raise_at(item: pytest.Item, error: BaseException) -> NoReturn:
    """Raise the error from the line where the test begins: its own frames are gone, or there were none."""
    __tracebackhide__ = True
    path, line, _ = item.reportinfo()
    if line is not None:
        code = compile("raise error", str(path), "exec").replace(co_firstlineno=line + 1, co_name=item.name)
        exec(code, {"error": error})  # noqa: S102
    raise error


def entered(error: BaseException) -> bool:
    """Whether the error went through the client, and so through a line of the test or of a fixture."""
    return any(frame.f_code.co_filename == CLIENT for frame, _, _ in _entries(error.__traceback__))


def without_package(error: BaseException) -> TracebackType | None:
    """The traceback of the error without this package, and without what lies between its client and the app.

    It stays as it is where nothing else would be left, and where the error is a fault of this package.
    """
    traceback: TracebackType | None = _own(error, "__traceback__")
    entries = list(_entries(traceback))
    files = [frame.f_code.co_filename for frame, _, _ in entries]
    ours = [Path(file).is_relative_to(PACKAGE) for file in files]
    if not any(ours) or (ours[-1] and not _deliberate(error, entries[-1][0])):
        return traceback
    if CLIENT in files:
        begin = files.index(CLIENT)
        # Event loops and contexts on the way are no more of the test's than the package is.
        end = files.index(SERVER, begin) if SERVER in files[begin:] else len(files) - 1
        ours[begin : end + 1] = [True] * (end + 1 - begin)
    found: TracebackType | None = None
    for mine, (frame, instruction, line) in reversed([*zip(ours, entries, strict=True)]):
        if not mine:
            found = TracebackType(found, frame, instruction, line)
    return found or traceback


def _deliberate(error: BaseException, raised_in: FrameType) -> bool:
    """Whether this package raised it for the user to read."""
    explains = issubclass(type(error), (MwBudgetError, pytest.fail.Exception))
    return explains or raised_in.f_code is Result.layer.__code__


def _entries(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lasti, traceback.tb_lineno
        traceback = traceback.tb_next


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error, what it comes from, and what it is a group of; each once."""
    seen: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or any(one is other for other in seen):
            continue
        seen.append(one)
        waiting += [_own(one, "__cause__"), _own(one, "__context__")]
        if issubclass(type(one), BaseExceptionGroup):
            waiting += BaseExceptionGroup.exceptions.__get__(one)
        yield one


def _own(error: BaseException, name: str) -> Any:
    """The attribute that every exception has, without the code of the class of `error`.

    A class of the user may define a property of this name or refuse attributes, and what a hook raises ends the run.
    """
    return getattr(BaseException, name).__get__(error)
