"""Garbage collection under load: what is timed, and what is as it was afterwards."""

from __future__ import annotations

import gc
import itertools
import threading

from pytest_mwbudget.load.collecting import FULL, Collecting, collecting


def test_collections_are_timed_in_the_thread_that_serves() -> None:
    garbage = Collecting(itertools.count(0, 10).__next__)

    def collect(generation: int) -> None:
        for phase in ("start", "stop"):
            garbage(phase, {"generation": generation})

    collect(0)
    collect(FULL)
    other = threading.Thread(target=collect, args=(FULL,))
    other.start()
    other.join()
    assert (garbage.ns, garbage.full_ns, garbage.collections) == (20, 10, 2)


def test_garbage_is_collected_in_the_block() -> None:
    callbacks, enabled = list(gc.callbacks), gc.isenabled()
    gc.disable()
    try:
        with collecting(itertools.count().__next__) as garbage:
            assert gc.isenabled()
            gc.collect()
        assert not gc.isenabled()
    finally:
        if enabled:
            gc.enable()
    assert garbage.full_ns > 0
    assert gc.callbacks == callbacks
