"""Saving runs and comparing with them, in pytest runs."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.model.runs import Commit
from pytest_mwbudget.session.provenance import commit_of
from pytest_mwbudget.storage import codec
from pytest_mwbudget.storage.codec import measured_run
from pytest_mwbudget.storage.saved_runs import located, saved_file

from .apps import alone, run_inside
from .readings import readings
from .test_plugin import APP, BRIEFLY, CONFTEST, no_github  # noqa: F401
from .test_report_schema import misfits

# What is compared is the same in every interpreter.
pytestmark = pytest.mark.once

COUNTED = """
import pytest


@pytest.mark.mw_budget(tasks=0)
def test_it(mw_budget):
    mw_budget.get("/health")
"""
TIMED = COUNTED.replace("tasks=0", "us=5000")
SAVED = Path(".mw-budget/saved/main.json")
# The documents of saved runs, by the source of their test.
DOCUMENTS: dict[str, str] = {}


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=APP, test_shop=COUNTED)
    pytester.makeconftest(CONFTEST)
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return run_inside(pytester, *arguments, plugins=[BRIEFLY])


def measured_and_saved(shop: pytest.Pytester) -> Any:
    """Save a run as main."""
    run(shop, "--mw-budget", "--mw-budget-save=main").assert_outcomes(passed=1)
    return json.loads(SAVED.read_text(encoding="utf-8"))


def saved(shop: pytest.Pytester, test: str = COUNTED, change: Callable[[Any], object] | None = None) -> Any:
    """Let a run of the test be saved as main, with a change to its document if there is one.

    Each test is measured once in a process: a document does not depend on the directory of its run.
    """
    shop.makepyfile(test_shop=test)
    if test not in DOCUMENTS:
        DOCUMENTS[test] = json.dumps(measured_and_saved(shop))
    document = json.loads(DOCUMENTS[test])
    if change is not None:
        change(document)
    SAVED.parent.mkdir(parents=True, exist_ok=True)
    SAVED.write_text(json.dumps(document), encoding="utf-8")
    return document


def unwrapped(result: pytest.RunResult) -> str:
    """Return the output in one line. Where it is wrapped depends on the counts of a layer that spins by the clock."""
    return " ".join(line.strip() for line in result.stdout.lines)


def spin_of(document: Any) -> Any:
    (spin,) = [layer for layer in document["measurements"][0]["layers"] if layer["name"] == "Spin"]
    return spin


def with_a_task(shop: pytest.Pytester) -> None:
    """Let the layer spawn a task from now on."""
    shop.makepyfile(
        shop=APP.replace(
            "        await self.app(scope",
            "        await asyncio.create_task(asyncio.sleep(0))\n        await self.app(scope",
        ).replace("from time import", "import asyncio\nfrom time import")
    )
    # Python tells two files of the same second apart by their length.
    shop.makepyfile(test_shop=COUNTED.replace("tasks=0", "tasks=10"))


def test_a_run_is_saved_and_an_equal_run_compares_as_the_same_and_takes_its_place(shop: pytest.Pytester) -> None:
    document = measured_and_saved(shop)
    assert misfits(document) == []
    comparing = ("--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    result = run(shop, "--mw-budget", *comparing, "--mw-budget-json=mw.json", "--mw-budget-save=main")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*= mw-budget compare =*", "compared with main, *"])
    after = json.loads(Path("mw.json").read_text(encoding="utf-8"))
    assert misfits(after) == []
    # How often a spin reads the clock in its time, and what that allocates, depends on the speed of the machine.
    steady = [
        each_change
        for each_change in after["measurements"][0]["changes"]
        if each_change["quantity"] in ("tasks", "threads")
    ]
    assert {change["word"] for change in steady} == {"same"}
    since = measured_run(after).since
    assert since is not None
    assert (since.name, since.created, since.grown) == ("main", document["created"], ())
    after = json.loads(SAVED.read_text(encoding="utf-8"))
    assert after["comparison"]["created"] == document["created"]
    assert misfits(after) == []


def test_a_result_is_read_once_whatever_is_made_of_it(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("jinja2")
    saved(shop)
    nodeids: list[str] = []

    def counted(data: Any, read: Callable[[Any], Any] = codec.measured) -> Any:
        nodeids.append(data["nodeid"])
        return read(data)

    monkeypatch.setattr(codec, "measured", counted)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    outputs = [f"--mw-budget-{name}=mw.{name}" for name in ("json", "html", "markdown", "benchmark-json", "history")]
    run(shop, "-v", "--mw-budget", "--mw-budget-compare=main", *outputs).assert_outcomes(passed=1)
    assert nodeids == ["test_shop.py::test_it"] * 2, "once of the saved run, and once of this one"


def test_a_layer_that_spawns_a_task_more_fails_the_run_and_is_named(shop: pytest.Pytester) -> None:
    saved(shop)
    with_a_task(shop)
    result = run(shop, "--mw-budget", "--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        [
            "Spin *1 (+1)*",
            "changed: Spin: *",
            "*= mw-budget compare =*",
            "test_shop.py::test_it GET /health: Spin tasks 0 → 1, +1; allowed: tasks:0*",
        ]
    )
    assert re.search(r"changed: Spin: [^:]*tasks 0 → 1 \(\+1\)", unwrapped(result))


@pytest.mark.live
@pytest.mark.parametrize(
    ("elsewhere", "status"), [({"1": 5, "2": 3, "3": 4}, pytest.ExitCode.OK), ({}, pytest.ExitCode.TESTS_FAILED)]
)
def test_a_count_that_differs_between_processes_has_not_certainly_grown(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, elsewhere: dict[str, int], status: pytest.ExitCode
) -> None:
    """By the hash seed, which is random here. In the saved run the layer spawned no task."""
    saved(shop)
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    tasks = f"{elsewhere}.get(os.environ.get('PYTHONHASHSEED'), 4)"
    shop.makepyfile(
        shop=APP.replace(
            "        await self.app(scope",
            f"        for _ in range({tasks}):\n            await asyncio.create_task(asyncio.sleep(0))\n"
            "        await self.app(scope",
        ).replace("from time import", "import asyncio, os\nfrom time import")
    )
    shop.makepyfile(test_shop=COUNTED.replace("tasks=0", "tasks=10"))
    comparing = ("--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    result = shop.run(sys.executable, "-m", "pytest", *alone(monkeypatch), "--mw-budget", *comparing)
    result.assert_outcomes(passed=1)
    assert result.ret == status


@readings
def test_a_time_that_fell_is_faster_in_the_table(shop: pytest.Pytester) -> None:
    def slower(document: Any) -> None:
        spin_of(document)["us"] = {"estimate": 3000.0, "low": 2990.0, "high": 3010.0}
        # On a machine that ran slower than it can, the change may be unclear.
        document["measurements"][0] |= {"slowdown": 1.0, "reference_ns": None}

    saved(shop, TIMED, slower)
    result = run(shop, "--mw-budget", "--mw-budget-compare=main", "--mw-budget-markdown=mw.md")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["layer *change  budget  verdict", "Spin * -* faster *5000  pass"])
    result.stdout.fnmatch_lines(["changed: Spin: us 3000 → * µs (-*"])


def test_of_another_processor_only_counts_are_compared_and_that_is_said(shop: pytest.Pytester) -> None:
    def elsewhere(document: Any) -> None:
        document["environment"]["processor"] = "Some Other Processor"
        spin_of(document)["us"] = {"estimate": 1.0, "low": 0.9, "high": 1.1}

    saved(shop, TIMED, elsewhere)
    result = run(shop, "--mw-budget", "--mw-budget-compare=main", "--mw-budget-compare-fail=us:10%,tasks:0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(
        [
            "the runs differ: processor Some Other Processor → *",
            "* of us could not be judged *: measured on Some Other*",
        ]
    )


def test_a_gate_that_judges_no_request_fails(shop: pytest.Pytester) -> None:
    saved(shop, change=lambda document: document["measurements"][0].update(nodeid="test_old.py::test_it"))
    result = run(shop, "--mw-budget", "--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["new: test_shop.py::test_it GET /health", "gone: test_old.py*", "no request is in both*"]
    )
    assert run(shop, "--mw-budget", "--mw-budget-compare=main").ret == 0


def test_a_directory_of_files_is_one_run(shop: pytest.Pytester) -> None:
    document = saved(shop)
    Path("shards/one").mkdir(parents=True)
    Path("shards/other.json").write_text("{}", encoding="utf-8")
    for number, nodeid in enumerate(("test_a.py::test_a", "test_shop.py::test_it")):
        document["measurements"][0]["nodeid"] = nodeid
        Path(f"shards/one/{number}.json").write_text(json.dumps(document), encoding="utf-8")
    result = run(shop, "--mw-budget", "--mw-budget-compare=shards", "--mw-budget-compare-fail=tasks:0")
    assert result.ret == 0
    result.stdout.fnmatch_lines(["compared with shards, *", "gone: test_a.py::test_a GET /health"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--mw-budget", "--mw-budget-save=a/b"], "--mw-budget-save='a/b' is not a name; use letters, digits"),
        (["--mw-budget-save=main"], "--mw-budget-save='main' has nothing to write without measuring; add --mw-budget"),
        (["--mw-budget-compare=main"], "--mw-budget-compare='main' has nothing to compare without measuring; add"),
        (
            ["--mw-budget", "--mw-budget-compare-fail=us:10%"],
            "--mw-budget-compare-fail='us:10%' has no run to compare with; add --mw-budget-compare=NAME|PATH",
        ),
        (["--mw-budget", "--mw-budget-compare=main"], "*main.json' is not JSON: *"),
        (["--mw-budget", "--mw-budget-compare=empty", "--mw-budget-compare-fail=us"], "has the part 'us'; write QUANT"),
    ],
)
def test_unusable_options_are_errors_before_the_tests(shop: pytest.Pytester, arguments: list[str], says: str) -> None:
    SAVED.parent.mkdir(parents=True)
    Path("empty").mkdir()
    SAVED.write_text("{", encoding="utf-8")
    result = run(shop, *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: *{says}*"])
    assert "test_shop" not in result.stdout.str()


@pytest.mark.parametrize("name", ["a/b", ".hidden"])
def test_a_name_that_is_none_of_a_file_is_an_error(name: str) -> None:
    with pytest.raises(SettingError, match=f"^--mw-budget-save='{name}' is not a name; use letters, digits"):
        saved_file(Path(".mw-budget"), name, f"--mw-budget-save={name!r}")


def test_a_name_that_was_not_saved_has_its_near_miss_and_the_names(tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    for name in ("main", "other"):
        (tmp_path / f"saved/{name}.json").touch()
    with pytest.raises(SettingError) as caught:
        located("mian", tmp_path, tmp_path, "--mw-budget-compare='mian'")
    message = str(caught.value)
    assert message.startswith(f"--mw-budget-compare='mian' is neither a run saved in {str(tmp_path / 'saved')!r} nor a")
    assert "nor a file or directory. Did you mean 'main'? The names are: main, other" in message


def test_the_commit_is_known_and_whether_files_differ(shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI_COMMIT_SHA", "GITHUB_SHA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(shop.path.parent))
    assert commit_of(shop.path) is None
    monkeypatch.setenv("GITHUB_SHA", "c" * 40)
    assert commit_of(shop.path) == Commit("c" * 40, None)
    git = ("git", "-c", "user.name=t", "-c", "user.email=t@example.org")
    for arguments in (("init", "-q"), ("add", "shop.py"), ("commit", "-q", "-m", "first")):
        assert shop.run(*git, *arguments).ret == 0
    commit = commit_of(shop.path)
    assert commit is not None
    assert (len(commit.id), commit.uncommitted) == (40, False)
    shop.path.joinpath("shop.py").write_text(f"{APP}\n", encoding="utf-8")
    assert commit_of(shop.path) == Commit(commit.id, True)


def test_a_document_names_the_commit_and_has_nothing_private(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CI_COMMIT_SHA", raising=False)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(shop.path.parent))
    monkeypatch.setenv("GITHUB_SHA", "c" * 40)
    monkeypatch.setenv("USER", "somebody-private")
    document = measured_and_saved(shop)
    assert document["commit"] == {"id": "c" * 40, "uncommitted": None}
    assert document["environment"]["processor"]
    assert document["environment"]["hash_seed"]
    text = SAVED.read_text(encoding="utf-8")
    assert "somebody-private" not in text
    assert str(shop.path) not in text


def test_a_run_that_measures_nothing_does_not_replace_a_saved_one_and_appends_nothing(shop: pytest.Pytester) -> None:
    saved(shop)
    before = SAVED.read_bytes()
    result = run(shop, "--mw-budget", "--mw-budget-save=main", "--mw-budget-history=history.jsonl", "-k", "nothing")
    result.stdout.fnmatch_lines(["nothing was measured, so '*main.json' is left as it was [[]file[]]"])
    assert SAVED.read_bytes() == before
    assert not Path("history.jsonl").exists()


def test_collecting_judges_nothing(shop: pytest.Pytester) -> None:
    saved(shop)
    options = ("--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    assert run(shop, "--mw-budget", *options, "--collect-only").ret == 0


def test_the_changes_of_a_failing_test_are_told_too(shop: pytest.Pytester) -> None:
    saved(shop)
    with_a_task(shop)
    shop.makepyfile(test_shop=COUNTED)
    result = run(shop, "--mw-budget", "--mw-budget-compare=main")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*= mw-budget compare =*"])
    pattern = r"test_shop\.py::test_it GET /health: Spin: [^:]*tasks 0 → 1 \(\+1\)"
    assert re.search(pattern, unwrapped(result))


def test_workers_of_xdist_are_compared_by_the_process_that_reports(
    shop: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("xdist")
    saved(shop)
    with_a_task(shop)
    options = ("-n", "1", "--mw-budget", "--mw-budget-compare=main", "--mw-budget-compare-fail=tasks:0")
    result = shop.runpytest_inprocess(*alone(monkeypatch, "xdist"), "-p", "no:cacheprovider", *options)
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["Spin *1 (+1)*", "test_shop.py::test_it GET /health: Spin tasks 0 → 1, +1; allowed: *"]
    )


# ---- the history --------------------------------------------------------------------------------------------------


def test_each_run_appends_a_line_and_the_page_draws_them(shop: pytest.Pytester) -> None:
    pytest.importorskip("jinja2")
    Path("history.jsonl").write_text("broken", encoding="utf-8")
    for _ in range(2):
        result = run(shop, "--mw-budget", "--mw-budget-history=history.jsonl", "--mw-budget-html=mw.html")
        assert result.ret == 0
        result.stdout.fnmatch_lines(["line 1 of '*history.jsonl' is left out: * [[]history[]]"])
    lines = Path("history.jsonl").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3
    assert json.loads(lines[-1])["requests"][0]["rows"]["Spin"]["tasks"] == [0, 0, 0]
    assert "2 runs, from " in Path("mw.html").read_text(encoding="utf-8")
