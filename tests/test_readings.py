"""Live tests are repeated: the machine may disturb a reading, and must not hide a wrong figure."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from . import readings as subject
from .readings import MOST_READINGS, BusyError, NeverError, never, readings


def made(monkeypatch: pytest.MonkeyPatch, outcomes: list[Exception | None], busy: list[str]) -> Callable[[], None]:
    """Make a test that has an outcome in each reading. `busy` has the state of the machine after each failure."""
    monkeypatch.setattr(subject, "repeated", [])
    monkeypatch.setattr(subject, "busy_now", lambda: busy.pop(0))

    @readings
    def test() -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    return test


def test_one_reading_that_succeeds_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    made(monkeypatch, [AssertionError("a"), None], [""])()
    assert [line.partition(": ")[2] for line in subject.repeated] == ["a"]


def test_a_figure_that_is_wrong_in_each_quiet_reading_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = ["", "noise", "", "noise", ""]
    wrong: list[Exception | None] = [AssertionError(str(number)) for number in range(len(busy))]
    with pytest.raises(AssertionError, match="4"):
        made(monkeypatch, wrong, busy)()
    assert not busy


@pytest.mark.parametrize("failure", [AssertionError("a"), BusyError("too few requests")])
def test_on_a_machine_that_stays_busy_a_test_is_skipped(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    test = made(monkeypatch, [failure] * MOST_READINGS, ["noise"] * MOST_READINGS)
    with pytest.raises(pytest.skip.Exception, match=r"the machine is too busy: (noise|too few requests)"):
        test()


def test_what_must_never_happen_fails_in_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeverError, match="a wrong verdict"):
        made(monkeypatch, [NeverError("a wrong verdict")], [])()
    with pytest.raises(NeverError, match="a wrong verdict"):
        never(True, "a wrong verdict")
