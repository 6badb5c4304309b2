"""The action, the template for GitLab, and the jobs in the docs, run in clones of a small project."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from .pipelines import ROOT, GitHub, Machine, blocks, included, run_gitlab, template
from .projects import Project

pytestmark = [
    pytest.mark.once,
    pytest.mark.skipif(sys.platform == "win32", reason="the programs of the jobs are scripts of a shell"),
]
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="jq filters comments as gh does")

APP = """
import asyncio

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

TASKS = {tasks}


class Audit:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        for _ in range(TASKS):
            await asyncio.ensure_future(asyncio.sleep(0))
        await self.app(scope, receive, send)


async def health(request):
    return PlainTextResponse("ok")


app = Starlette(routes=[Route("/health", health)])
app.add_middleware(Audit)
"""
TEST = """
import pytest
from shop import app
from starlette.testclient import TestClient


@pytest.mark.mw_budget({budgets})
def test_health():
    assert TestClient(app).get("/health").status_code == 200


def test_of_another_job():
    assert False
"""
# The project's code must not see the token that comments.
CONFTEST = """
import os

assert "of-the-job" not in os.environ.values()
"""
PYTEST_INI = """
[pytest]
addopts = -p pytest_mwbudget.plugin -p xdist -p pytest_cov
pythonpath = .
filterwarnings = ignore:Using .httpx.
mw_budget_max_time = 0.1
"""
MARK = "<!-- mw-budget octo/shop/.github/workflows/api.yml@refs/pull/7/merge budgets-0 -->"
MAIN = {"event_name": "push", "ref": "refs/heads/main"}
PULL_REQUEST = {"event_name": "pull_request", "ref": "refs/pull/7/merge", "event": {"number": 7}}


@pytest.fixture
def origin(tmp_path: Path) -> Project:
    """A project with a branch `main`, and a branch `change` whose layer spawns two tasks more."""
    project = Project(tmp_path / "origin")
    project.put("shop.py", APP.format(tasks=0))
    project.put("test_shop.py", TEST.format(budgets="tasks=1"))
    project.put("conftest.py", CONFTEST)
    project.put("pytest.ini", PYTEST_INI)
    project.put(".gitignore", "__pycache__/\n")
    project.commit("first")
    project.git("checkout", "--quiet", "-b", "change")
    project.put("shop.py", APP.format(tasks=2))
    project.commit("a layer that spawns tasks")
    project.git("checkout", "--quiet", "main")
    return project


def machine(origin: Project, branch: str, name: str = "machine", **variables: str) -> Machine:
    """A machine with a shallow clone of one branch, as the services make it."""
    folder = origin.root.parent / name
    origin.git("clone", "--quiet", "--depth", "1", "--branch", branch, origin.root.as_uri(), str(folder / "clone"))
    of_branch = {"GITHUB_BASE_REF": "main"} if branch != "main" else {}
    return Machine(folder / "clone", folder, **of_branch, **variables)


def merged(origin: Project) -> None:
    """Give the branch `merge` the commit that GitHub makes for a pull request, after which main went on."""
    origin.git("checkout", "--quiet", "-b", "merge", "main")
    origin.git("merge", "--quiet", "--no-ff", "--no-edit", "change")
    origin.git("checkout", "--quiet", "main")
    origin.put("later.py", "")
    origin.commit("later")


def comments(machine: Machine, *bodies: tuple[str, str]) -> None:
    """Give the pull request comments: their authors and texts."""
    listed = [
        {"id": number, "user": {"login": login}, "body": body} for number, (login, body) in enumerate(bodies, start=1)
    ]
    (machine.records / "comments.json").write_text(json.dumps(listed), encoding="utf-8")


def action(**inputs: str) -> list[Any]:
    """The steps of a job that uses the action."""
    return [{"uses": "pytest-mwbudget/pytest-mwbudget@v1.0.0", "with": inputs}]


# ---- the action -----------------------------------------------------------------------------------------------------


def test_the_action_passes_where_budgets_are_kept(origin: Project, tmp_path: Path) -> None:
    github, job = GitHub(tmp_path), machine(origin, "main")
    assert github.run(job, action(arguments="-m 'mw_budget and not other' -q"), MAIN), job.output
    assert job.calls("pip") == [f"install {ROOT}[html]"]
    assert "1 passed" in job.output
    assert {path.name for path in github.artifact("mw-budget-budgets-0").iterdir()} == {"budgets.html", "budgets.md"}
    assert job.calls("gh") == []


@pytest.mark.live
def test_the_action_keeps_the_speeds_of_earlier_jobs(origin: Project, tmp_path: Path) -> None:
    origin.put("test_shop.py", TEST.format(budgets="us=1e6"))
    # A speed is not kept if another machine seems to share the core throughout.
    origin.put(
        "conftest.py", f"{CONFTEST}\nfrom pytest_mwbudget.timing import host_speed\nhost_speed._pipeline = None\n"
    )
    origin.commit()
    github, speeds = GitHub(tmp_path), []
    for number in range(2):
        job = machine(origin, "main", f"machine-{number}")
        assert github.run(job, action(), MAIN), job.output
        stored = json.loads((job.clone / ".pytest_cache/v/mw-budget/speeds").read_text(encoding="utf-8"))
        speeds.append(next(iter(stored.values())))
    assert len(speeds[0]) == 1
    assert speeds[1][:1] == speeds[0]
    assert len(speeds[1]) == 2


@needs_jq
def test_the_action_fails_and_comments_where_a_budget_is_exceeded(origin: Project, tmp_path: Path) -> None:
    github, job = GitHub(tmp_path), machine(origin, "change")
    comments(job, ("github-actions[bot]", "coverage: 9 %"), ("a-reviewer", f"{MARK}\nmine"))
    assert not github.run(job, action(requirement="pytest-mwbudget[html]==1.0.0"), PULL_REQUEST)
    assert job.calls("pip") == ["install pytest-mwbudget[html]==1.0.0"]
    kept = github.artifact("mw-budget-budgets-0")
    assert {path.name for path in kept.glob("*.md")} == {"budgets.md", "comment.md"}
    flamegraphs = [path for path in kept.glob("*.html") if path.name != "budgets.html"]
    assert "<html" in flamegraphs[0].read_text(encoding="utf-8")
    body = (job.records / "body.md").read_text(encoding="utf-8")
    assert body == f"{MARK}\n{(kept / 'budgets.md').read_text(encoding='utf-8')}"
    assert "## mw-budget: 1 fail" in body
    assert job.calls("gh")[1:] == ["api --silent repos/shop/shop/issues/7/comments --field body=@comment.md"]


@needs_jq
def test_the_action_updates_its_comment(origin: Project, tmp_path: Path) -> None:
    github, job = GitHub(tmp_path), machine(origin, "main")
    comments(job, ("somebody", MARK), ("github-actions[bot]", f"{MARK}\nold"), ("github-actions[bot]", f"{MARK}\nold"))
    assert github.run(job, action(), PULL_REQUEST), job.output
    assert job.calls("gh")[1:] == [
        "api --silent --method PATCH repos/shop/shop/issues/comments/2 --field body=@comment.md"
    ]
    assert "## mw-budget: 1 pass" in (job.records / "body.md").read_text(encoding="utf-8")


@needs_jq
@pytest.mark.live
def test_a_comment_has_no_more_than_github_takes(origin: Project, tmp_path: Path) -> None:
    parameters = "@pytest.mark.parametrize('name', ['µ' * 60 + str(n) for n in range(80)])\n"
    many = TEST.replace("@pytest.mark.mw", f"{parameters}@pytest.mark.mw").replace("test_health()", "test_health(name)")
    origin.put("test_shop.py", many.format(budgets="tasks=1"))
    origin.commit()
    github, job = GitHub(tmp_path), machine(origin, "main")
    comments(job)
    assert github.run(job, action(arguments="-m mw_budget -q --mw-budget-max-time=0.01"), PULL_REQUEST), job.output
    body = (job.records / "body.md").read_text(encoding="utf-8")
    assert 60000 < len(body.encode()) < 65536
    assert body.endswith("\nThe rest is in the artifact of the job.\n")


@needs_jq
@pytest.mark.live
def test_a_token_that_may_not_write_is_a_warning(origin: Project, tmp_path: Path) -> None:
    job = machine(origin, "main", GH_STATUS="1")
    comments(job)
    assert GitHub(tmp_path).run(job, action(), PULL_REQUEST)
    assert "::warning::No comment: " in job.output


def test_nothing_is_commented_before_pytest_has_written_a_report(origin: Project, tmp_path: Path) -> None:
    job = machine(origin, "main")
    assert not GitHub(tmp_path).run(job, action(arguments="--no-such-option"), PULL_REQUEST)
    assert "--no-such-option" in job.output
    assert job.calls("gh") == []


def test_inputs_are_no_code(origin: Project, tmp_path: Path) -> None:
    evil = "$(touch evil) `touch evil` ; touch evil"
    for arguments, others in ((evil, {}), ("-m mw_budget", {"requirement": evil, "fail": evil, "undecided": evil})):
        job = machine(origin, "change", f"machine-{len(others)}")
        assert not GitHub(tmp_path).run(job, action(arguments=arguments, **others), PULL_REQUEST)
        assert not (job.clone / "evil").exists()
        assert not (job.temporary / "evil").exists()


@needs_jq
@pytest.mark.live
@pytest.mark.parametrize("grown", [True, False])
def test_the_action_compares_a_shallow_clone_with_its_merge_base(origin: Project, tmp_path: Path, grown: bool) -> None:
    merged(origin)
    github, job = GitHub(tmp_path), machine(origin, "merge")
    comments(job)
    # Two tasks are within the budget of neither branch, so only what the comparison allows differs.
    (job.clone / "test_shop.py").write_text(TEST.format(budgets="tasks=5"), encoding="utf-8")
    passed = github.run(job, action(fail=f"tasks:{1 if grown else 2}", undecided="fail"), PULL_REQUEST)
    assert passed is not grown, job.output
    base = origin.git("rev-parse", "main~1")
    body = (job.records / "body.md").read_text(encoding="utf-8")
    assert f"- base: {base[:10]} (merge base with origin/main)" in body
    assert "tasks 0 → 2" in body
    assert ("2 more tasks; --fail allows 1 more" in body) is grown
    assert body.index("tasks 0 → 2") < body.index("## mw-budget: 1 pass")
    assert (github.artifact("mw-budget-budgets-0") / "versus.md").exists()


# ---- the template for GitLab ----------------------------------------------------------------------------------------


MERGE_REQUEST = "merge_request_event"


@pytest.mark.parametrize("branch", ["main", "change"])
def test_the_template_enforces_budgets(origin: Project, branch: str) -> None:
    job = machine(origin, branch)
    passed = run_gitlab(job, template(requirement="x[html]")["mw-budget"], CI_PIPELINE_SOURCE=MERGE_REQUEST)
    assert passed is (branch == "main"), job.output
    assert job.calls("pip") == ["install x[html]"]
    names = {path.name for path in (job.clone / ".mw-budget").iterdir()}
    assert {"budgets.html", "budgets.md", "junit.xml"} <= names
    assert any(name.startswith("test_shop.py-test_health-") for name in names) is (branch == "change")


@pytest.mark.live
@pytest.mark.parametrize("allowed", [1, 2])
def test_the_template_compares_merge_requests(origin: Project, allowed: int) -> None:
    base = origin.git("rev-parse", "main")
    origin.git("checkout", "--quiet", "change")
    origin.put("test_shop.py", TEST.format(budgets="tasks=5"))
    origin.commit()
    job = machine(origin, "change")
    job.bash("git fetch --quiet --unshallow")  # GIT_DEPTH: 0
    one = template(requirement="x[html]", fail=f"tasks:{allowed}", undecided="fail")["mw-budget"]
    assert str(one["variables"]["GIT_DEPTH"]) == "0"
    variables = {"CI_PIPELINE_SOURCE": MERGE_REQUEST, "CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "GITHUB_BASE_REF": ""}
    assert run_gitlab(job, one, **variables) is (allowed == 2), job.output
    text = (job.clone / ".mw-budget" / "versus.md").read_text(encoding="utf-8")
    assert "tasks 0 → 2" in text
    assert "not committed" not in text
    assert (job.clone / ".mw-budget" / "budgets.md").exists()


# ---- the jobs in the docs -------------------------------------------------------------------------------------------


def test_the_docs_show_as_many_jobs_as_are_tested_below() -> None:
    assert (len([*blocks("ci.md")]), len([*blocks("ci-reports.md")])) == (8, 2)


@pytest.mark.live
@pytest.mark.parametrize("number", [0, 1], ids=["with the action", "without"])
@pytest.mark.parametrize("branch", ["main", "change"])
def test_the_jobs_for_github(origin: Project, tmp_path: Path, number: int, branch: str) -> None:
    job, steps = machine(origin, branch), [*blocks("ci.md")][number]["jobs"]["middleware-budget"]["steps"]
    assert GitHub(tmp_path).run(job, steps, MAIN) is (branch == "main"), job.output
    assert job.calls("pip")[0] == "install -r requirements-test.txt"
    assert (job.clone / ".pytest_cache").exists()


@pytest.mark.live
@pytest.mark.parametrize(("page", "number"), [("ci.md", 2), ("ci.md", 3), ("ci-reports.md", 0)])
@pytest.mark.parametrize("branch", ["main", "change"])
def test_the_jobs_for_gitlab(origin: Project, page: str, number: int, branch: str) -> None:
    job, (one,) = machine(origin, branch), included([*blocks(page)][number]).values()
    assert run_gitlab(job, one, CI_PIPELINE_SOURCE="push") is (branch == "main"), job.output
    if page == "ci.md":
        assert job.calls("pip")[0] == "install -r requirements-test.txt"
    for path in (*one["artifacts"]["paths"], one["artifacts"]["reports"]["junit"]):
        # Flamegraphs are drawn of failures.
        assert (job.clone / path).exists() or (path == ".mw-budget/" and branch == "main"), path


@pytest.mark.live
def test_the_comparison_with_results_of_the_main_branch_on_github(origin: Project, tmp_path: Path) -> None:
    origin.git("checkout", "--quiet", "change")
    origin.put("test_shop.py", TEST.format(budgets="tasks=5"))
    origin.commit()
    github, steps = GitHub(tmp_path), [*blocks("ci.md")][4]
    main, change = machine(origin, "main", "of-main"), machine(origin, "change")
    assert github.run(main, steps, MAIN), main.output
    assert main.calls("gh") == []
    assert not github.run(change, steps, PULL_REQUEST)
    assert "tasks" in (change.records / "body.md").read_text(encoding="utf-8")
    assert change.calls("gh") == ["pr comment 7 --edit-last --create-if-none --body-file comment.md"]


@pytest.mark.live
def test_the_comparison_with_results_of_the_main_branch_on_gitlab(origin: Project) -> None:
    origin.git("checkout", "--quiet", "change")
    origin.put("test_shop.py", TEST.format(budgets="tasks=5"))
    origin.commit()
    one = [*blocks("ci.md")][5]["middleware-budget"]
    main, change = machine(origin, "main", "of-main"), machine(origin, "change")
    assert run_gitlab(main, one, CI_COMMIT_BRANCH="main"), main.output
    shutil.copy(main.clone / "mw-budget.json", change.records / "of-main.json")
    address = {"CI_API_V4_URL": "http://gitlab/api/v4", "CI_PROJECT_ID": "5", "CI_JOB_TOKEN": "of-gitlab"}
    assert not run_gitlab(change, one, CI_COMMIT_BRANCH="change", **address)
    (call,) = change.calls("curl")
    assert call.startswith("--fail --location --header JOB-TOKEN: of-gitlab --output main.json http://gitlab/api/v4/")
    assert call.endswith("/projects/5/jobs/artifacts/main/raw/mw-budget.json?job=middleware-budget")
    assert "tasks" in (change.clone / "comment.md").read_text(encoding="utf-8")


@pytest.fixture
def with_limits(origin: Project) -> Project:
    origin.put("pytest.ini", f"{PYTEST_INI}mw_budget_file = mw-budgets.json\nmw_budget_record = tasks\n")
    origin.commit()
    return origin


def has_limits(path: Path) -> bool:
    return "Audit" in path.read_text(encoding="utf-8")


@pytest.mark.live
def test_limits_are_recorded_and_merged_on_github(with_limits: Project, tmp_path: Path) -> None:
    github, both = GitHub(tmp_path), [*blocks("ci.md")][6]["jobs"]
    python = "{}.{}".format(*sys.version_info)
    record, merge = machine(with_limits, "main", "record"), machine(with_limits, "main", "merge")
    assert github.run(record, both["record"]["steps"], MAIN, matrix={"python": python}), record.output
    assert has_limits(github.artifact(f"limits-{python}") / "mw-budgets.json")
    assert github.run(merge, both["merge"]["steps"], MAIN), merge.output
    assert has_limits(github.artifact("mw-budgets") / "mw-budgets.json")


@pytest.mark.live
def test_limits_are_recorded_and_merged_on_gitlab(with_limits: Project) -> None:
    both, job = [*blocks("ci.md")][7], machine(with_limits, "main")
    assert run_gitlab(job, both["record-limits"], PYTHON="3.13"), job.output
    (job.clone / "mw-budgets.json").unlink()
    assert has_limits(job.clone / "limits/3.13/mw-budgets.json")
    assert run_gitlab(job, both["merge-limits"]), job.output
    assert has_limits(job.clone / "mw-budgets.json")


@pytest.mark.live
def test_a_tracker_gets_its_file_where_a_budget_is_exceeded(origin: Project, tmp_path: Path) -> None:
    job = machine(origin, "change")
    assert not GitHub(tmp_path).run(job, [*blocks("ci-reports.md")][1], MAIN)
    assert "benchmarks" in json.loads((job.clone / "mw-budget.bench.json").read_text(encoding="utf-8"))
