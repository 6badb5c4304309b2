"""Every output of canned results is the stored one. `python -m tests.golden` stores a change that is wanted."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

import pytest

from pytest_mwbudget.model.results import FRAMES
from pytest_mwbudget.storage import codec

from . import golden

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    return {**dict(golden.renderings()), golden.RESULTS.name: golden.rewritten()}


def test_the_outputs_are_those_that_are_stored(texts: dict[str, str]) -> None:
    assert sorted(texts) == sorted(file.name for file in golden.FOLDER.iterdir())
    differ = []
    for name, text in texts.items():
        before = (golden.FOLDER / name).read_text(encoding="utf-8")
        if text != before:
            lines = unified_diff(before.splitlines(), text.splitlines(), f"stored {name}", "now", lineterm="", n=1)
            differ += [line[:300] for line in islice(lines, 40)]
    assert not differ, "if this is wanted, run python -m tests.golden:\n" + "\n".join(differ)


def test_results_that_were_stored_before_a_figure_can_be_read() -> None:
    _, result = next(pair for pair in golden.stored() if pair[1].endpoint and pair[1].endpoint.parts)
    data = codec.measurement("t", result)
    for row in (*data["layers"], *data["endpoint"]["parts"]):
        del row["saves_us"], row["allocations"]
    for frame in filter(None, map(data["ledger"].get, FRAMES)):
        del frame["allocations"]
    _, read = codec.measured(golden.completed(data))
    assert [row.name for row in read.rows(parts=True)] == [row.name for row in result.rows(parts=True)]
    assert not any({"saves_us", "allocations"} & {*row.estimates, *row.counted} for row in read.rows(parts=True))


def test_a_quiet_run_prints_the_same() -> None:
    measured = golden.stored()
    assert golden.terminal(measured, 80, -1) == golden.terminal(measured, 80, 0)
