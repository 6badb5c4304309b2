"""Keep what repeated requests log, warn of and print away from pytest, which would keep all of it.

An app that writes an access log is called some ten thousand times. pytest formats and keeps every record that reaches
its handlers, in the time and the objects of the layer that logs, and a failing test would show them all.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import pytest

# Of what repeated requests print so much is shown, from its end: what they printed last.
SHOWN_CHARACTERS = 1000
# A level above every other: a handler of this level takes no record.
NOTHING = sys.maxsize
# What a test takes that reads for itself what is printed; and the ways to capture that show nothing before the end.
OF_TESTS = {"capsys", "capsysbinary", "capteesys", "capfd", "capfdbinary"}
SILENT = ("fd", "sys")


@contextmanager
def set_apart(request: pytest.FixtureRequest) -> Iterator[None]:
    """Inside, pytest's handlers take no record, and warnings are ignored; of what is printed the end is kept.

    The handlers of the app are left alone: they are what its logging costs. So is what a test reads for itself.
    """
    config = request.config
    shortened = config.getoption("capture", None) in SILENT and not OF_TESTS.intersection(request.fixturenames)
    capture = _shortened(config.pluginmanager.getplugin("capturemanager")) if shortened else nullcontext()
    # As without pytest, which shows all that Python by itself ignores or shows once.
    with _logs_ignored(), warnings.catch_warnings(action="ignore"), capture:
        yield


@contextmanager
def _logs_ignored() -> Iterator[None]:
    # They stay in their loggers: a logger without any handler would print to stderr.
    levels = {handler: handler.level for handler in _handlers_of_pytest()}
    try:
        for handler in levels:
            handler.setLevel(NOTHING)
        yield
    finally:
        for handler, level in levels.items():
            handler.setLevel(level)


def _handlers_of_pytest() -> Iterator[logging.Handler]:
    loggers = [logging.root, *logging.root.manager.loggerDict.values()]
    for logger in loggers:
        handlers: Iterable[logging.Handler] = getattr(logger, "handlers", ())
        yield from (one for one in handlers if type(one).__module__ == "_pytest.logging")


@contextmanager
def _shortened(capture: Any) -> Iterator[None]:
    before = capture.read_global_capture()
    try:
        yield
    finally:
        repeated = capture.read_global_capture()
        for stream, first, more in zip((sys.stdout, sys.stderr), before, repeated, strict=True):
            stream.write(first + _end_of(more))


def _end_of(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    end = text[-SHOWN_CHARACTERS:]
    end = end[end.find("\n") + 1 :]
    return f"[mw-budget: {len(text) - len(end)} characters of repeated requests are left out here]\n{end}"
