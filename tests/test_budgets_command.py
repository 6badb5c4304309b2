"""The command `mwbudget budgets merge`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mwbudget.__main__ import main
from pytest_mwbudget.limits.file import Limit, LimitsFile, Place, parsed, text_of

PLACE = Place("CPython 3.13.2, asyncio, Linux x86_64", "t.py::test", "GET /", "(total)", "objects")
OTHER = PLACE._replace(section="CPython 3.12.1, asyncio, Linux x86_64")


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def written(name: str, limits: dict[Place, float]) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text_of(LimitsFile({place: Limit(most) for place, most in limits.items()})), encoding="utf-8")
    return name


def limits_of(text: str) -> dict[Place, float]:
    return {place: limit.most for place, limit in parsed(text, "'f'").limits.items()}


def test_files_are_merged_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    files = [written("a.json", {PLACE: 5}), written("b.json", {PLACE: 7, OTHER: 1})]
    assert main(["budgets", "merge", *files]) == 0
    assert limits_of(capsys.readouterr().out) == {PLACE: 7, OTHER: 1}


def test_the_output_is_the_base_of_a_matrix_of_jobs() -> None:
    output = written("limits.json", {PLACE: 10, OTHER: 10})
    files = [written("one/limits.json", {PLACE: 5, OTHER: 10}), written("two/limits.json", {PLACE: 10, OTHER: 11})]
    assert main(["budgets", "merge", *files, "-o", output]) == 0
    assert limits_of(Path(output).read_text(encoding="utf-8")) == {PLACE: 5, OTHER: 11}


def test_it_can_be_gits_merge_driver() -> None:
    """Git hands over three files, the base empty if there is none, and takes the result from the second one."""
    ours, theirs = written("ours", {PLACE: 5}), written("theirs", {OTHER: 6})
    Path("base").write_text("")
    assert main(["budgets", "merge", ours, theirs, "--base", "base", "-o", ours]) == 0
    assert limits_of(Path(ours).read_text(encoding="utf-8")) == {PLACE: 5, OTHER: 6}
    base = written("base", {PLACE: 5, OTHER: 6})
    theirs = written("theirs", {PLACE: 4, OTHER: 6})
    assert main(["budgets", "merge", ours, theirs, "--base", base, "-o", ours]) == 0
    assert limits_of(Path(ours).read_text(encoding="utf-8")) == {PLACE: 4, OTHER: 6}


def test_a_file_that_cannot_be_used_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    good = written("good.json", {PLACE: 5})
    Path("bad.json").write_text("<<<<<<< HEAD\n")
    for bad, said in (("bad.json", "'bad.json' has a merge conflict in line 1"), ("none", "'none' cannot be read: ")):
        assert main(["budgets", "merge", good, bad, "-o", "out.json"]) == 2
        error = capsys.readouterr().err
        assert error.startswith(f"error: {said}")
        assert error.endswith("More: mwbudget explain limits-file\n")
    assert not Path("out.json").exists()
    with pytest.raises(SystemExit):
        main(["budgets", "merge"])
