"""Live tests are repeated: the machine may disturb a reading, and must not hide a wrong figure."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from pytest_mwbudget.analysis.slowdown import Interruptions
from pytest_mwbudget.timing import host_speed

from . import readings as subject
from .readings import MOST_READINGS, MOST_TOO_BUSY, WAITED_SHARE, BusyError, NeverError, never, readings


def made(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[BaseException | None], busy: list[str], waited: float = 0.0
) -> Callable[[], None]:
    """Make a test that has an outcome in each reading, and waits for a core for the share `waited` of each.

    `busy` has the state of the machine after each failure.
    """
    moment = SimpleNamespace(until=lambda later: Interruptions(share=waited))
    monkeypatch.setattr(subject, "Interrupted", SimpleNamespace(now=lambda: moment))
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
    wrong: list[BaseException | None] = [AssertionError(str(number)) for number in range(len(busy))]
    with pytest.raises(AssertionError, match="4"):
        made(monkeypatch, wrong, busy)()
    assert not busy


@pytest.mark.parametrize(
    ("failure", "most"), [(AssertionError("a"), MOST_READINGS), (BusyError("too few requests"), MOST_TOO_BUSY)]
)
def test_on_a_machine_that_stays_busy_a_test_is_skipped(
    monkeypatch: pytest.MonkeyPatch, failure: Exception, most: int
) -> None:
    test = made(monkeypatch, [failure] * most, ["noise"] * most)
    with pytest.raises(pytest.skip.Exception, match=r"the machine is too busy: (noise|too few requests)"):
        test()
    assert len(subject.repeated) == most


@pytest.mark.parametrize(
    ("waited", "ended"), [(WAITED_SHARE, AssertionError), (WAITED_SHARE + 0.01, pytest.skip.Exception)]
)
def test_a_machine_was_busy_if_the_test_waited_for_a_core(
    monkeypatch: pytest.MonkeyPatch, waited: float, ended: type[BaseException]
) -> None:
    with pytest.raises(ended, match="a"):
        made(monkeypatch, [AssertionError("a")] * MOST_READINGS, [""] * MOST_READINGS, waited)()


def test_where_the_system_tells_no_waits_a_test_has_waited_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "Interrupted", SimpleNamespace(now=lambda: None))
    assert subject.waited_since(None) == ""


def test_another_thread_on_the_core_is_seen_though_measurements_do_not_see_it(monkeypatch: pytest.MonkeyPatch) -> None:
    widths = itertools.cycle([1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(subject, "PIPELINE", SimpleNamespace(issue_width=lambda: next(widths)))
    monkeypatch.setattr(subject, "WATCHED_S", 0.1)
    assert "used the same core" in subject.busy_now()
    assert host_speed._pipeline is None


def test_what_sees_another_thread_on_the_core_was_kept_before_it_was_hidden() -> None:
    assert subject.PIPELINE is pytest.importorskip("pytest_mwbudget.timing._pipeline")


@pytest.mark.parametrize("failure", [TypeError("no figure"), TimeoutError(), pytest.fail.Exception("failed")])
def test_whatever_a_test_fails_with_is_repeated(monkeypatch: pytest.MonkeyPatch, failure: BaseException) -> None:
    made(monkeypatch, [failure, None], [""])()
    assert [line.partition(": ")[2] for line in subject.repeated] == [str(failure) or "TimeoutError"]


def test_a_test_that_skips_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pytest.skip.Exception, match="not here"):
        made(monkeypatch, [pytest.skip.Exception("not here")], [])()


def test_what_must_never_happen_fails_in_the_first_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NeverError, match="a wrong verdict"):
        made(monkeypatch, [NeverError("a wrong verdict")], [])()
    with pytest.raises(NeverError, match="a wrong verdict"):
        never(True, "a wrong verdict")
