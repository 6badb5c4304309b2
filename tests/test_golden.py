"""Every output of canned results is the stored one. `python -m tests.golden` stores a change that is wanted."""

from __future__ import annotations

from difflib import unified_diff
from itertools import islice

import pytest

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


def test_a_quiet_run_prints_the_same() -> None:
    measured = golden.stored()
    assert golden.terminal(measured, 80, -1) == golden.terminal(measured, 80, 0)
