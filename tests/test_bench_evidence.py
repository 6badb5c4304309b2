"""The mechanics of bench/evidence.py, and whether docs/evidence.md is up to date."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent

# Two stand-ins for the scripts of bench/: GOOD writes its `--json` file, BAD fails.
GOOD = '''"""A script that ends well.

    python bench/fine_script.py

How it does.
"""

import sys, stored
from harness import Goal, Report, Table

def report(readings):
    goals = [Goal("all |of| it", "each (of 1); and more", True), Goal("none", "1", False, "It is there.")]
    return Report([Table("", ["of"], [[str(one["of"])] for one in readings])], goals)

if __name__ == "__main__":
    result = {"quick": "--quick" in sys.argv, "seconds": 61.0, "machine": {"python": "3"}, "readings": [{"of": "all"}]}
    open(sys.argv[sys.argv.index("--json") + 1], "w").write(stored.dumps(result))
'''
BAD = '"""A script that needs what is not here."""\n\nimport no_such_package\n'


@pytest.fixture
def evidence(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "bench")
    return importlib.import_module("evidence")


@pytest.fixture
def scripts(evidence: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with these two scripts, which also contains the temporary folders."""
    bench = tmp_path / "bench"
    for folder in (bench, tmp_path / "docs", tmp_path / "temporary"):
        folder.mkdir()
    (bench / "bad_script.py").write_text(BAD, encoding="utf-8")
    (bench / "fine_script.py").write_text(GOOD, encoding="utf-8")
    monkeypatch.syspath_prepend(bench)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "bench"))
    monkeypatch.setattr(evidence, "HERE", bench)
    monkeypatch.setattr(evidence, "SCRIPTS", ("bad_script", "fine_script"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path


def ask(evidence: ModuleType, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["evidence.py", *arguments])
    evidence.main()


def store(folder: Path, name: str, **others: Any) -> None:
    result = {"quick": False, "seconds": 1620.0, "machine": {"python": "3"}, "readings": [{"of": "all"}], **others}
    (folder / f"{name}.json").write_text(importlib.import_module("stored").dumps(result), encoding="utf-8")


@pytest.mark.bench
def test_the_page_of_the_project_is_of_its_results(evidence: ModuleType) -> None:
    pytest.importorskip("resource", reason="a bench script imports it, and only POSIX systems have it")
    pytest.importorskip("httpx", reason="bench scripts import it")
    text, hidden = evidence.page(ROOT / "bench" / "results")
    assert not hidden
    assert (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8") == text, (
        "docs/evidence.md is stale: python bench/evidence.py --stored"
    )
    for name, place in evidence.PAGES.items():
        own = evidence.own_page(name, ROOT / "bench" / "results" / f"{name}.json")
        assert (ROOT / "docs" / place).read_text(encoding="utf-8") == own, (
            f"docs/{place} is stale: python bench/evidence.py --stored"
        )


@pytest.mark.parametrize(
    "readings",
    [
        [],
        [{"kind": "pair", "with": {"us": 1.5, "cpu": None}, "quick": True}, {"kind": "failed", "why": None}],
        [{"of": {}}, {"of": {"Noop": [0.25, None]}}, {"of": {"Noop": [1, 2.0]}}, {"of": "text"}, {"of": 3}],
    ],
)
def test_readings_are_stored_whole(evidence: ModuleType, readings: list[dict[str, Any]]) -> None:
    result = {"quick": False, "readings": readings}
    assert evidence.stored.loads(evidence.stored.dumps(result)) == result


def test_readings_are_stored_with_eight_digits(evidence: ModuleType) -> None:
    read = evidence.stored.loads(evidence.stored.dumps({"readings": [{"us": 1 / 3, "all": [2e6 / 3, 123456789]}]}))
    assert read["readings"] == [{"us": 0.33333333, "all": [666666.67, 123456789]}]


def test_the_page_has_what_is_stored(evidence: ModuleType, scripts: Path) -> None:
    store(scripts, "fine_script", created="2026-11-22T23:59:59+00:00", revision="abc1234")
    text, hidden = evidence.page(scripts)
    assert not hidden
    assert "## A script that ends well\n\n```sh\npython bench/fine_script.py\n```\n\nHow it does.\n\n" in text
    assert "```text\nof\nall\n```\n\npython 3; 27 minutes; 2026-11-22, revision abc1234.\n" in text
    assert (
        "- reached: all |of| it. Found: each (of 1); and more.\n- NOT reached: none. Found: 1. It is there.\n" in text
    )
    assert "quick run" not in text


def test_the_page_opens_with_the_first_goal_of_each_part(evidence: ModuleType, scripts: Path) -> None:
    assert "|---|" not in evidence.page(scripts)[0]
    store(scripts, "fine_script")
    text, _ = evidence.page(scripts)
    assert "|---|---|---|---|\n| all \\|of\\| it | each | reached | 1 of 2 |\n\n## " in text


@pytest.mark.parametrize(
    ("others", "end"),
    [
        ({}, "27 minutes."),
        ({"created": "2026-11-22T00:00:00+00:00", "revision": ""}, "27 minutes; 2026-11-22."),
        ({"revision": "abc1234+changes"}, "27 minutes; revision abc1234+changes."),
    ],
)
def test_older_results_tell_less(evidence: ModuleType, scripts: Path, others: dict[str, str], end: str) -> None:
    store(scripts, "fine_script", **others)
    assert evidence.page(scripts)[0].endswith(f"\n\npython 3; {end}\n")


def test_results_of_a_quick_run_are_said_to_mean_nothing(evidence: ModuleType, scripts: Path) -> None:
    store(scripts, "fine_script", quick=True)
    assert "How it does.\n\n**A quick run: it shows that the script works" in evidence.page(scripts)[0]


def test_what_was_not_run_is_on_the_page_with_its_command(evidence: ModuleType, scripts: Path) -> None:
    text, hidden = evidence.page(scripts)
    assert not hidden
    for part in (
        "## A script that needs what is not here\n\n",
        "How it does.\n\n**Not run: there are no results. `python bench/evidence.py --only fine_script` runs it.**\n",
    ):
        assert part in text


@pytest.mark.parametrize("broken", ["{", '{"quick": false}'], ids=["no JSON", "no readings"])
def test_results_that_cannot_be_shown_leave_the_others(evidence: ModuleType, scripts: Path, broken: str) -> None:
    (scripts / "bad_script.json").write_text(broken, encoding="utf-8")
    store(scripts, "fine_script")
    text, hidden = evidence.page(scripts)
    assert hidden == ["bad_script"]
    assert "**Its results cannot be shown: " in text
    assert "27 minutes" in text


def test_a_script_that_fails_does_not_end_the_run(
    evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = scripts / "bench" / "results"
    earlier.mkdir()
    store(earlier, "bad_script")
    with pytest.raises(SystemExit, match=r"^failed: bad_script;"):
        ask(evidence, monkeypatch)
    text = (scripts / "docs" / "evidence.md").read_text(encoding="utf-8")
    assert "cannot be shown: ModuleNotFoundError: No module named 'no_such_package'" in text
    assert "```text\nof\nall\n```" in text


def test_only_what_is_asked_for_is_run(evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(evidence, monkeypatch, "--only", "fine_script")
    assert [path.name for path in (scripts / "bench" / "results").iterdir()] == ["fine_script.json"]
    assert (scripts / "docs" / "evidence.md").exists()


def test_a_quick_run_replaces_nothing(
    evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    ask(evidence, monkeypatch, "--quick", "--only", "fine_script")
    (folder,) = (scripts / "temporary").iterdir()
    assert str(folder) in capsys.readouterr().out
    assert (folder / "results" / "fine_script.json").exists()
    assert "A quick run" in (folder / "evidence.md").read_text(encoding="utf-8")
    assert not list((scripts / "docs").iterdir())
    assert not (scripts / "bench" / "results").exists()


def test_a_quick_run_writes_where_it_is_told_to(
    evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = ("--results", str(scripts / "given"), "--page", str(scripts / "given.md"))
    ask(evidence, monkeypatch, "--quick", "--only", "fine_script", *places)
    assert (scripts / "given" / "fine_script.json").exists()
    assert (scripts / "given.md").exists()
    assert not list((scripts / "temporary").iterdir())


def test_what_is_stored_is_written_again(evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ask(evidence, monkeypatch, "--stored")
    assert "**Not run" in (scripts / "docs" / "evidence.md").read_text(encoding="utf-8")


def test_a_script_can_have_a_page_of_its_own(
    evidence: ModuleType, scripts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = scripts / "bench" / "paged_script.py"
    script.write_text(f"{GOOD}\n\ndef page(*parts):\n    return repr(parts)\n", encoding="utf-8")
    monkeypatch.setattr(evidence, "SCRIPTS", ("paged_script",))
    monkeypatch.setattr(evidence, "PAGES", {"paged_script": "own/paged.md", "fine_script": "own/fine.md"})
    (scripts / "bench" / "results").mkdir()
    store(scripts / "bench" / "results", "paged_script")
    ask(evidence, monkeypatch, "--stored")
    assert "[a page of their own](own/paged.md)" in (scripts / "docs" / "evidence.md").read_text(encoding="utf-8")
    (own,) = (scripts / "docs" / "own").iterdir()
    readings, method, taken = ast.literal_eval(own.read_text(encoding="utf-8"))
    assert readings == [{"of": "all"}]
    assert method.endswith("How it does.")
    assert taken == "python 3; 27 minutes."


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--stored", "--only", "fine_script"), "leave out --only and --quick"),
        (("--stored", "--quick"), "leave out --only and --quick"),
        (("--page", "nowhere/evidence.md"), "there is no folder 'nowhere'"),
    ],
)
def test_arguments_that_cannot_be_meant(
    evidence: ModuleType,
    scripts: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    message: str,
) -> None:
    with pytest.raises(SystemExit, match="2"):
        ask(evidence, monkeypatch, *arguments)
    assert message in capsys.readouterr().err
