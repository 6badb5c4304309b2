"""Keep what repeated requests log, warn of and print away from pytest, which would keep all of it.

An app that writes an access log is called some ten thousand times. pytest formats and keeps every record that reaches
its handlers, in the time and the objects of the layer that logs, and a failing test would show them all.
"""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Of what repeated requests print so much is shown, from its end: what they printed last.
SHOWN_CHARACTERS = 1000
# The ways to capture that show nothing before the end.
SILENT = ("fd", "sys")
# A level above every other: a handler of this level takes no record.
NOTHING = sys.maxsize


@contextmanager
def set_apart(config: pytest.Config) -> Iterator[None]:
    """Inside, pytest's handlers take no record, and warnings are ignored; of what is printed the end is kept.

    The handlers of the app are left alone: they are what its logging costs.
    """
    # As without pytest, which shows all that Python by itself ignores or shows once.
    with _logs_ignored(), warnings.catch_warnings(action="ignore"), _shortened(config):
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
def _shortened(config: pytest.Config) -> Iterator[None]:
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    streams = (sys.stdout, sys.stderr)
    # What is printed may also go to the terminal at once, to a fixture like capsys, to a subtest's part of the report,
    # or to where the test sends it.
    if config.getoption("capture", None) not in SILENT or streams != _files(capture):
        yield
        return
    before = capture.read_global_capture()
    try:
        yield
    finally:
        repeated = capture.read_global_capture()
        for stream, first, more in zip(streams, before, repeated, strict=True):
            stream.write(first + _end_of(more))


def _files(capture: Any) -> tuple[Any, Any]:
    """What pytest has put in the place of stdout and stderr for the whole run."""
    both = getattr(capture, "_global_capturing", None)
    out, err = getattr(both, "out", None), getattr(both, "err", None)
    return getattr(out, "tmpfile", None), getattr(err, "tmpfile", None)


def _end_of(text: str) -> str:
    if len(text) <= SHOWN_CHARACTERS:
        return text
    end = text[-SHOWN_CHARACTERS:]
    end = end[end.find("\n", 0, -1) + 1 :]  # whole lines, but for one that is longer than all of this
    return f"[mw-budget: {len(text) - len(end)} characters of repeated requests are left out here]\n{end}"
