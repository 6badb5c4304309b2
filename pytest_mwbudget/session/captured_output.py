"""Keep log records, warnings and output of repeated requests away from pytest and from the test.

An app that writes an access log is called some ten thousand times. pytest would format and keep every log record. That
work would be charged to the layer that logs, and a failing test would show all the records. A test that captures output
or records would see those of all repetitions of its request.
"""

from __future__ import annotations

import io
import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# A failing test shows at most this much of the output of repeated requests: its end.
SHOWN_CHARACTERS = 1000
# The values of --capture with which nothing is printed before the test ends.
SILENT = ("fd", "sys")
# The modules whose handlers keep the records of a test.
HANDLERS = ("_pytest.logging", "unittest._log")
# A level above every other: a handler of this level takes no record.
NOTHING = sys.maxsize


@contextmanager
def set_apart(config: pytest.Config) -> Iterator[None]:
    """Ignore log records and warnings inside the block, and keep the end of the output.

    The app's own log handlers stay at work, because they are part of what its logging costs.
    """
    # Without pytest, Python ignores most warnings or shows them once.
    with _logs_ignored(), warnings.catch_warnings(action="ignore"), _shortened(config):
        yield


@contextmanager
def _logs_ignored() -> Iterator[None]:
    # The handlers stay in their loggers: a logger without a handler would print to stderr.
    levels = {handler: handler.level for handler in _handlers_of_tests()}
    try:
        for handler in levels:
            handler.setLevel(NOTHING)
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)


def _handlers_of_tests() -> Iterator[logging.Handler]:
    """Yield pytest's handlers, and those of `assertLogs`."""
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        handlers: Iterable[logging.Handler] = getattr(logger, "handlers", ())
        yield from (handler for handler in handlers if type(handler).__module__ in HANDLERS)


@contextmanager
def _shortened(config: pytest.Config) -> Iterator[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    streams = (sys.stdout, sys.stderr)
    # Output may also go to the terminal at once, to a fixture such as capsys, to the report of a subtest, or to a
    # stream that the test has set.
    whole_run = _files(getattr(capture, "_global_capturing", None))
    if config.getoption("capture", None) not in SILENT or streams != whole_run:
        fixture = getattr(getattr(capture, "_capture_fixture", None), "_capture", None)
        with _taken_back(streams[0], fixture), _taken_back(streams[1], fixture):
            yield
        return
    before = capture.read_global_capture()
    try:
        yield
    finally:
        repeated = capture.read_global_capture()
        for stream, first, more in zip(streams, before, repeated, strict=True):
            stream.write(first + _end_of(more))


@contextmanager
def _taken_back(stream: Any, fixture: Any) -> Iterator[None]:
    """Take back what is written to a stream that a test reads: a StringIO, or that of a fixture such as capsys."""
    if type(stream) is not io.StringIO and all(stream is not file for file in _files(fixture)):
        yield
        return
    stream.flush()
    end = stream.tell()
    try:
        yield
    finally:
        if not stream.closed:
            stream.flush()
            stream.seek(end)
            stream.truncate()


def _files(capturing: Any) -> tuple[Any, Any]:
    """Return the files with which a capture of pytest replaces stdout and stderr."""
    out, err = getattr(capturing, "out", None), getattr(capturing, "err", None)
    return getattr(out, "tmpfile", None), getattr(err, "tmpfile", None)


def _end_of(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    end = text[-SHOWN_CHARACTERS:]
    end = end[end.find("\n", 0, -1) + 1 :]  # whole lines, except a line longer than SHOWN_CHARACTERS
    return f"[mw-budget: {len(text) - len(end)} characters of repeated requests are left out here]\n{end}"
