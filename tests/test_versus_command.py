"""`mwbudget versus` from end to end, with processes of pytest in real checkouts, and its report."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.comparison.allowed import parsed
from pytest_mwbudget.comparison.outcome import Comparison, RequestChanges
from pytest_mwbudget.model.changes import Change, ChangeWord, word_for
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.request_keys import RequestKey
from pytest_mwbudget.processes import ENDINGS
from pytest_mwbudget.report import gfm, lines
from pytest_mwbudget.report.versus import Versus, document, in_words
from pytest_mwbudget.versus import comparing
from pytest_mwbudget.versus.repository import GITLAB_COMMITS

from .projects import PYTEST_INI, TEST, Project, app, heeds_interrupts, shop
from .readings import never, readings
from .test_pairs import KEY

pytestmark = pytest.mark.once

# The plugins of this environment only make each process start more slowly.
LEAN = ["--", "-p", "pytest_mwbudget.plugin"]
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    for name in ("GITHUB_BASE_REF", *GITLAB_COMMITS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(comparing, "PAIRS_OF_COUNTS", 1)
    project = shop(tmp_path / "shop")
    monkeypatch.chdir(project.root)
    return project


@pytest.fixture
def versus(capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*arguments: str) -> tuple[int, str, str]:
        status = main(["versus", *arguments])
        return (status, *capsys.readouterr())

    return run


def nothing_left(project: Project) -> bool:
    return len(project.git("worktree", "list").splitlines()) == 1


def test_a_layer_that_grows_fails_and_nothing_is_left(project: Project, versus: Run) -> None:
    project.put("src/shop/app.py", app(tasks=2))
    status, out, err = versus("--fail", "tasks:1", "--markdown", "out/comment.md", *LEAN, str(project.root / "tests"))
    assert status == 1, err
    comment = (project.root / "out" / "comment.md").read_text(encoding="utf-8")
    assert "tasks 0 → 2" in comment
    lines = out.splitlines()
    assert lines[0].endswith("(merge base with main)")
    assert lines[1].endswith("and 1 file not committed")
    assert "tasks 0 → 2" in out
    assert "fail: Work in GET /health: 2 more tasks; --fail allows 1 more" in lines
    assert nothing_left(project)


def test_a_layer_that_grows_as_allowed_passes(project: Project, versus: Run) -> None:
    project.put("src/shop/app.py", app(tasks=2))
    project.put("src/shop/new.py", "")
    project.put("tests/test_new.py", "import shop.new\n")
    project.put("tests/test_again.py", TEST.replace("(mw_budget):", "(mw_budget):\n    import shop.new"))
    project.put("pytest.ini", f"{PYTEST_INI}addopts = -x\n")
    project.put("requirements.txt", "starlette\n")
    project.commit()
    status, out, err = versus("--fail", "tasks:2", *LEAN)
    assert status == 0, err
    assert "fail" not in out.replace("failed with base", "")
    # The base has no such module, so it cannot collect this test.
    new = "ModuleNotFoundError: No module named 'shop.new'"
    assert (
        f"note: failed with base, so not compared in full: tests/test_new.py, tests/test_again.py::test_health ({new})"
        in out
    )
    assert "note: both sides run with the packages that are installed here, and requirements.txt changed" in out


def test_two_apps_of_a_checkout_are_compared(project: Project, versus: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.root / "src")
    a, b = "shop.app:create_app()", "shop.app:create_app(tasks=1)"
    status, out, err = versus("/", "--app-a", a, "--app-b", b, "--fail", "tasks:0", *LEAN)
    assert status == 1, err
    assert out.splitlines()[:2] == [f"A: {a}", f"B: {b}"]
    assert "fail: Work in GET /: 1 more tasks; --fail allows 0 more" in out


def test_a_failing_test_of_head_is_an_error_with_its_output(project: Project, versus: Run) -> None:
    project.put("tests/test_shop.py", "def test_it():\n    assert 1 == 2\n")
    status, out, err = versus("--fail", "tasks:0", *LEAN, "-m", "")
    assert (status, out) == (2, "")
    assert "tests fail with HEAD" in err
    assert "assert 1 == 2" in err
    assert "mwbudget explain versus-side" in err


def test_a_conftest_that_the_base_cannot_load_is_explained(project: Project, versus: Run) -> None:
    project.put("src/shop/new.py", "")
    project.put("tests/conftest.py", "import shop.new\n")
    status, _, err = versus("--fail", "tasks:0", *LEAN)
    assert status == 2
    assert "exit status 4 for base (both sides run the tests and conftest files of HEAD); correct this" in err
    assert "No module named 'shop.new'" in err


def test_modules_from_elsewhere_are_an_error(project: Project, versus: Run) -> None:
    # What a test does that makes the checkouts useless: it names the user's clone.
    source = str(project.root / "src")
    project.put("tests/conftest.py", f"import sys\nsys.meta_path.pop(0)\nsys.path.insert(0, {source!r})\n")
    status, _, err = versus("--fail", "tasks:0", *LEAN)
    assert status == 2
    assert f"shop.app from {source}" in err
    assert "--prepare" in err
    assert nothing_left(project)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fail", ""], "--fail='' has the part ''; write QUANTITY:GROWTH"),
        (["--fail", "us"], "--fail='us' has the part 'us'; write QUANTITY:GROWTH"),
        (["--max-time", "soon"], "--max-time is 'soon'"),
        (["--app-a", "a:b"], "--app-a is compared with nothing; give --app-b too"),
        (["--app-a", "a:b", "--app-b", "a:c", "--base", "x"], "--base='x' is for comparing commits"),
        (["--markdown", "."], "--markdown='.' cannot be written"),
        (["/health"], "REQUEST '/health' is for --app-a and --app-b"),
    ],
)
def test_unusable_arguments_are_errors(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["versus", *arguments]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="Windows sends no such signals to one process")
@pytest.mark.parametrize("number", [signal.SIGINT, ENDINGS[0]])
def test_an_interrupt_leaves_nothing(project: Project, tmp_path: Path, number: int) -> None:
    project.put("src/shop/new.py", "")
    started = tmp_path / "started"
    project.put("tests/conftest.py", f"import time\nopen({str(started)!r}, 'w')\ntime.sleep(60)\n")
    (tmp_path / "temporary").mkdir()
    command = [sys.executable, "-m", "pytest_mwbudget", "versus", *LEAN]
    environment = {**os.environ, "TMPDIR": str(tmp_path / "temporary")}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeds_interrupts,
    )
    end = time.monotonic() + 60
    while not started.exists() and process.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert nothing_left(project)
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.live
@readings
def test_a_layer_that_takes_longer_fails(project: Project, versus: Run) -> None:
    project.put("src/shop/app.py", app(spin_us=500))
    status, out, err = versus("--fail", "us:50us", "--max-time", "600", *LEAN)
    assert status == 1, err
    assert "fail: Work in GET /health: slower by" in out


@pytest.mark.live
@readings
def test_a_layer_that_stays_as_it_is_passes(project: Project, versus: Run) -> None:
    project.put("src/shop/app.py", app() + "\n# a comment\n")
    status, out, err = versus("--fail", "us:500us", "--undecided", "fail", "--max-time", "600", *LEAN)
    never("fail: " in out, out)
    assert status == 0, out + err


@pytest.mark.live
def test_workers_of_xdist_measure_their_own_side(project: Project, versus: Run) -> None:
    pytest.importorskip("xdist")
    project.put("src/shop/app.py", app(tasks=2))
    status, out, err = versus("--fail", "tasks:1", *LEAN, "-p", "xdist", "-n", "2")
    assert status == 1, err
    assert "tasks 0 → 2" in out


# ---- the report ------------------------------------------------------------------------------------------------------


def terminal(comparison: Versus, width: int) -> list[lines.Line]:
    return [*lines.render(document(comparison), width)]


def markdown(comparison: Versus) -> str:
    return gfm.render(document(comparison))


def exactly(value: float) -> Estimate:
    return Estimate(value, value, value)


def change(low: float, high: float, before: float = 100.0, after: float = 105.0, **more: Any) -> Change:
    """Return a change; up to 5.0 it is the same if it is one of a time."""
    quantity = more.pop("quantity", "us")
    by = Estimate((low + high) / 2, low, high)
    word = word_for(quantity, by, 5.0 if quantity == "us" else 0.0)
    return Change(more.pop("row", "Work"), quantity, word, exactly(before), exactly(after), by, **more)


def one_sided(word: ChangeWord, value: float, quantity: str = "us", row: str = "Work") -> Change:
    before, after = (exactly(value) if word == side else None for side in ("gone", "new"))
    return Change(row, quantity, word, before, after)


def compared(*changes: Change, **more: Any) -> Comparison:
    """Return the comparison of one request."""
    return Comparison([RequestChanges(KEY, changes)], **more)


NOT_COUNTED = Change("Work", "bytecodes", "not measured", reason="it varies", verdict="undecided")


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (change(4, 6), "slower by 5.00 µs (4.00 to 6.00, 5.0 %)"),
        (change(-6, -4), "faster by 5.00 µs (4.00 to 6.00, 5.0 %)"),
        (change(-1, 2), "same within 2.00 µs"),
        (change(-10, 20), "unclear: between 10.0 µs faster and 20.0 µs slower"),
        (change(-math.inf, math.inf), "unclear: too few pairs of processes"),
        (one_sided("new", 105), "new: 105.0 µs"),
        (one_sided("gone", 100), "gone: 100.0 µs"),
        (change(2, 2, quantity="tasks"), "2 more tasks"),
        (change(1, 2, quantity="objects"), "1 to 2 more objects"),
        (change(-3, -1, quantity="objects"), "1 to 3 fewer objects"),
        (change(-1, 1, quantity="objects"), "unclear: between 1 fewer objects and 1 more objects"),
        (change(0, 0, quantity="objects"), "same"),
        (change(1024, 2048, quantity="bytes"), "1.0 KiB to 2.0 KiB more"),
        (one_sided("new", 105, "retained"), "new: 105"),
    ],
)
def test_changes_in_words(one: Change, text: str) -> None:
    assert in_words(one) == text


def test_with_many_requests_only_changes_are_shown() -> None:
    keys = [RequestKey("t", f"GET /{number}") for number in range(9)]
    times = [change(-1, 1)] * 9
    times[3] = change(19, 21, most=5.0, verdict="fail")
    comparison = Comparison([RequestChanges(key, [time]) for key, time in zip(keys, times, strict=True)])
    shown = [line.text for line in terminal(Versus(["heading"], comparison, ["a remark"]), 80)]
    assert shown[0] == "heading"
    assert [line for line in shown if line.startswith("GET /")] == ["GET /3, t"]
    assert "fail: Work in GET /3: slower by 20.0 µs (19.0 to 21.0, 20.0 %); --fail allows 5.00 µs more" in shown
    assert "of 9 times, 1 slower, 8 same" in shown
    assert shown[-1] == "note: a remark"


def test_counts_have_a_line_for_each_row() -> None:
    exact, ranged = (
        change(2, 2, 1, 3, quantity="tasks"),
        change(1, 2, 10, 12, quantity="objects", verdict="fail", most=0),
    )
    new, nothing = one_sided("new", 7, "objects", "New"), one_sided("new", 0, "tasks", "New")
    lines = {line.text: line.style for line in terminal(Versus([], compared(exact, ranged, new, nothing)), 99)}
    assert lines["Work: tasks 1 → 3, objects 10 → 12 (1 to 2 more objects)"] == "red"
    assert "New: objects 7 (new)" in lines
    # Alike in each of three pairs, which may be by chance; and one that varies round zero.
    likely = Change("Work", "tasks", "unclear", exactly(0), exactly(2), Estimate(2, 0, 2), most=2, verdict="pass")
    varies = Change("Other", "objects", "unclear", exactly(9), exactly(10), Estimate(1, -3, 5))
    lines = {line.text: line.style for line in terminal(Versus([], compared(likely, varies)), 99)}
    assert [line for line in lines if line.startswith(("Work", "Other"))] == [
        "Work: tasks 0 → 2 (unclear: between 0 fewer tasks and 2 more tasks)"
    ]
    assert "of 2 counts, 1 changed" in lines


def test_times_beside_the_self_time_are_named() -> None:
    busy = change(19, 21, quantity="busy_us", most=5.0, verdict="fail")
    shown = [line.text for line in terminal(Versus([], compared(change(-1, 1), busy)), 80)]
    assert [line.partition("  ")[0] for line in shown if line.startswith("Work")] == ["Work", "Work busy_us"]
    assert any(line.startswith("fail: Work busy_us in GET /health: slower by 20.0 µs") for line in shown)
    assert "| <code>Work busy_us</code> |" in markdown(Versus([], compared(busy)))


def test_many_undecided_limits_are_counted() -> None:
    times = [change(-10, 20, most=5.0, verdict="undecided") for _ in range(8)]
    shown = [line.text for line in terminal(Versus([], compared(*times)), 80)]
    assert sum(line.startswith("undecided: Work") for line in shown) == 5
    assert "undecided: 3 more limits" in shown
    assert shown[-1].startswith("undecided: 8 limits are neither kept nor exceeded for certain; a longer --max-time ")


def test_the_last_line_says_how_much_is_unclear_or_undecided() -> None:
    times = [change(-10, 20), change(-10, 20), change(-1, 1)]
    last = "unclear: 2 of 3 times; a longer --max-time tells more"
    assert [line.text for line in terminal(Versus([], compared(*times), ["a remark"]), 80)][-1] == last
    assert markdown(Versus([], compared(*times), ["a remark"])).endswith(f"- **{last}**\n")
    assert Versus([], compared(*times, allowed=parsed("us:5%", "--fail"))).ending() is None
    unknown = Versus([], compared(NOT_COUNTED, allowed=parsed("bytecodes:0", "--fail")))
    sentence = "undecided: 1 limit is neither kept nor exceeded for certain; see the reasons above"
    assert unknown.ending() == f"{sentence}; --undecided fail fails the run"


def test_requests_of_one_side_and_limits_of_nothing_are_told() -> None:
    only = [RequestKey("t", f"GET /{number}") for number in range(7)]
    comparison = compared(change(-1, 1), gone=only[:1], new=only, allowed=parsed("us:5%", "--fail"))
    notes = [line.text for line in terminal(Versus([], comparison), 80) if line.text.startswith("note:")]
    assert notes[0] == "note: measured with base only: GET /0 (t)"
    assert notes[1].endswith("GET /4 (t) and 2 more")
    assert notes[2].startswith("note: no limit of --fail applies to a measured figure")


def test_a_comment_has_the_rows_and_no_markup_of_names() -> None:
    odd = change(19, 21, after=120.0, row="a|b`c", most=5.0, verdict="fail")
    text = markdown(Versus(["base: main *x*"], compared(odd, one_sided("new", 12.0, row="New")), ["<b>"]))
    assert "| row | base µs | HEAD µs | change |" in text
    assert "| <code>a&#124;b&#96;c</code> | 100.0 | 120.0 | **slower by 20.0 µs (19.0 to 21.0, 20.0 %)** |" in text
    assert "| <code>New</code> | - | 12.0 | new: 12.0 µs |" in text
    assert "- base: main &#42;x&#42;" in text
    assert "- note: &#60;b&#62;" in text


def test_a_limit_of_what_is_not_counted_is_undecided() -> None:
    versus = Versus([], compared(*[NOT_COUNTED] * 7, allowed=parsed("bytecodes:0", "--fail")))
    sentences = [sentence for _, sentence in versus.sentences()]
    assert sentences[0].startswith("undecided: ")
    assert "bytecodes not counted, so --fail cannot limit them: it varies" in sentences[0]
    assert "undecided: 2 more limits on figures that are not known" in sentences
    assert sentences[-1] == "of 0 counts, none changed"
    assert not versus.certain
    assert Versus([], Comparison()).certain


def test_a_limit_of_what_no_process_measured_is_undecided() -> None:
    versus = Versus(
        [], compared(change(-1, 1, most=5.0, verdict="pass"), allowed=parsed("us:5us,us_per_message:5%", "--fail"))
    )
    assert ("undecided", "undecided: us_per_message: no figure was measured that --fail could limit") in [
        *versus.sentences()
    ]
    assert not versus.certain
    assert versus.ending() is not None
