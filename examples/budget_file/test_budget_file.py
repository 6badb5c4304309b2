"""The story ends as the README says: version 1 keeps its limits, version 2 breaks them, and a reason accepts it."""

import sys
from pathlib import Path

import pytest

STORY = Path(__file__).with_name("limits_story.py")

pytestmark = pytest.mark.skipif(sys.version_info < (3, 13), reason="objects are counted from Python 3.13 on")


def run(pytester: pytest.Pytester, version: int, *options: str) -> pytest.RunResult:
    app = f"--mw-budget-app=examples.budget_file.app:create_app({version})"
    file = f"--mw-budget-file={pytester.path / 'mw-budgets.json'}"
    return pytester.runpytest_subprocess("--mw-budget", app, file, *options, "-p", "no:cacheprovider", STORY)


def test_the_story(pytester: pytest.Pytester) -> None:
    run(pytester, 1, "--mw-budget-update").assert_outcomes(passed=1)
    run(pytester, 1).assert_outcomes(passed=1)
    result = run(pytester, 2)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["Audit is over its recorded limit*: * objects, limit * (+2)*"])
    modes = "--mw-budget-update-mode=create,trim,fix"
    run(pytester, 2, "--mw-budget-update", modes, "--mw-budget-reason=sizes").assert_outcomes(passed=1)
    run(pytester, 2).assert_outcomes(passed=1)
    assert '"reason": "sizes"' in (pytester.path / "mw-budgets.json").read_text(encoding="utf-8")
