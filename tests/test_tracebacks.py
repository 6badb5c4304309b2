"""Errors show lines of the test and of the app, and none of this package, in every style and kind of test."""

from __future__ import annotations

import itertools
import re
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.errors import chain

from .apps import ASYNCIO, run_inside
from .test_plugin import APP, CONFTEST

HEAD = "import unittest\n\nimport pytest\n\n\n"

# A test for each way in which an error can leave a test. The line that must be shown ends with `# here`.
TESTS = {
    "a function": """
        def test_it(mw_budget):
            mw_budget.get("{path}")  # here
    """,
    "an async test": """
        @pytest.mark.asyncio
        async def test_it(mw_budget):
            await mw_budget.aget("{path}")  # here
    """,
    "a TestCase": """
        class TestIt(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def client(self, mw_budget):
                self.mw_budget = mw_budget

            def test_it(self):
                self.mw_budget.get("{path}")  # here
    """,
    "a subtest": """
        def test_it(mw_budget, subtests):
            with subtests.test():
                mw_budget.get("{path}")  # here
    """,
    "a fixture": """
        @pytest.fixture
        def prepared(mw_budget):
            mw_budget.get("{path}")  # here

        def test_it(prepared):
            pass
    """,
    "a fixture afterwards": """
        @pytest.fixture
        def prepared(mw_budget):
            yield
            mw_budget.get("{path}")  # here

        def test_it(prepared, mw_budget):
            mw_budget.get("/health")
    """,
    "an expected exception with its cause": """
        def test_it(mw_budget):
            try:
                mw_budget.get("{path}")
            except Exception as error:
                raise RuntimeError("wrapped") from error  # here
    """,
}
CASES = [name for name in TESTS if name != "a subtest" or hasattr(pytest, "Subtests")]
OURS = re.compile(r"pytest_mwbudget[/\\](?!errors)|\b(gate|fixture|asgi|loops)\.py")


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    """Run tests with a budget of a count, because without any budget times would be measured."""
    counted = ["--mw-budget", "-o", "mw_budget_tasks=0", "--mw-budget-flamegraph=never"]
    return run_inside(pytester, *counted, *arguments, using=[ASYNCIO])


def failed(result: pytest.RunResult) -> list[pytest.TestReport]:
    """Return the reports of the phases that failed, in order."""
    recorder: Any = result.reprec  # type: ignore[attr-defined]
    return list(recorder.getfailures("pytest_runtest_logreport"))


def write(pytester: pytest.Pytester, source: str, name: str = "test_it") -> int:
    """Write a test and the shop, and return the number of the line that must be shown."""
    lines = [line[8:] for line in source.splitlines()]
    text = HEAD + "\n".join(lines)
    pytester.makepyfile(shop=APP, **{name: text})
    pytester.makeconftest(CONFTEST)
    return next(number for number, line in enumerate(text.strip().splitlines(), 1) if "# here" in line)


# The style "auto" shows the first and the last entry as "long" does, and those between them as "short" does.
@pytest.mark.parametrize("style", ["auto", "native", "line"])
def test_no_frame_of_the_package_is_shown(pytester: pytest.Pytester, style: str) -> None:
    cases = {f"test_{n}": case for n, case in enumerate(itertools.product(CASES, ["/missing", "/broken"]))}
    lines = {name: write(pytester, TESTS[case].replace("{path}", path), name) for name, (case, path) in cases.items()}
    result = run(pytester, f"--tb={style}")
    assert not OURS.search(result.stdout.str())
    failures: dict[str, str] = defaultdict(str)  # Texts of a subtest and of its test are joined.
    for report in failed(result):
        failures[Path(report.nodeid.partition("::")[0]).stem] += report.longreprtext
    assert failures.keys() == cases.keys()
    for name, (case, path) in cases.items():
        shown = failures[name]
        assert "wrapped" in shown or ("LookupError" if path == "/broken" else "answered 404") in shown
        assert case == "an async test" or "asyncio/runners" not in shown
        # In the style "line", pytest shows an error in a fixture without its location.
        if style == "line" and path == "/missing" and "fixture" not in case:
            result.stdout.re_match_lines_random([rf".*{name}\.py:{lines[name]}: "])
        if style == "native" and path == "/broken":
            assert re.search(rf"{name}\.py\", line {lines[name]}, in ", shown)


def test_a_verdict_and_what_is_wrong_with_a_test_stand_at_it(pytester: pytest.Pytester) -> None:
    verdict = """
        @pytest.mark.mw_budget(tasks=0, layers={"Spin": {"bytes": 0}}, undecided="fail")  # here
        def test_it(mw_budget):
            mw_budget.get("/health")
    """
    without_request = """
        @pytest.mark.mw_budget(tasks=0)  # here
        def test_it(mw_budget):
            pass
    """
    verdict_line = write(pytester, verdict, "test_verdict")
    line = write(pytester, without_request, "test_without_request")
    keyword_line = write(pytester, without_request.replace("tasks=0", "uss=1"), "test_keyword")
    result = run(pytester, "--tb=line")
    result.assert_outcomes(failed=3)
    assert not OURS.search(result.stdout.str())
    result.stdout.re_match_lines([rf".*test_verdict\.py:{verdict_line}: .*GET /health: "])
    result.stdout.re_match_lines([rf".*test_without_request\.py:{line}: "])
    result.stdout.re_match_lines([rf".*test_keyword\.py:{keyword_line}: "])


@pytest.mark.parametrize("style", ["auto", "native", "line"])
def test_another_plugins_failure_shows_no_frame_of_the_package(pytester: pytest.Pytester, style: str) -> None:
    # The failure in teardown comes last, because it leaves the teardown of its test undone.
    phases = ("setup", "call", "teardown")
    plugin = """

def pytest_runtest_{phase}(item):
    if item.name == "test_{phase}":
        raise OSError("the other plugin")
"""
    test = """
def test_{phase}(mw_budget):
    mw_budget.get("/health")
"""
    pytester.makepyfile(shop=APP, test_it="\n".join(test.format(phase=phase) for phase in phases))
    pytester.makeconftest(CONFTEST + "".join(plugin.format(phase=phase) for phase in phases))
    result = run(pytester, f"--tb={style}")
    assert [(report.nodeid, report.when) for report in failed(result)] == [
        (f"test_it.py::test_{phase}", phase) for phase in phases
    ]
    assert all("the other plugin" in report.longreprtext for report in failed(result))
    assert result.stdout.str().count("the other plugin") >= len(phases)
    assert not OURS.search(result.stdout.str())


DEBUGGER = """
import pdb


class Recorder(pdb.Pdb):
    def _cmdloop(self):
        print(f"stands at {self.curframe.f_code.co_filename}:{self.curframe.f_lineno}")
"""


def test_the_debugger_stands_at_the_line_of_the_test(pytester: pytest.Pytester) -> None:
    cases = [case for case in TESTS if case not in ("an async test", "a subtest")]
    lines = {
        f"test_{n}": write(pytester, TESTS[case].replace("{path}", "/missing"), f"test_{n}")
        for n, case in enumerate(cases)
    }
    pytester.makepyfile(recorder=DEBUGGER)
    result = run(pytester, "--pdb", "--pdbcls=recorder:Recorder", "-s")
    result.stdout.re_match_lines([rf"stands at .*{name}\.py:{line}" for name, line in lines.items()])
    assert len([line for line in result.outlines if line.startswith("stands at ")]) == len(cases)


@pytest.mark.parametrize("style", ["auto", "native", "line"])
def test_a_layer_that_is_not_there_stands_where_it_is_asked_for(pytester: pytest.Pytester, style: str) -> None:
    line = write(
        pytester,
        """
        def test_it(mw_budget):
            mw_budget.get("/health").layer("Spinn")  # here
    """,
    )
    text = run(pytester, f"--tb={style}").stdout.str()
    assert "Did you mean 'Spin'?" in text
    assert not OURS.search(text)
    assert re.search(rf'test_it\.py(:|", line ){line}\b', text)


def test_a_fault_of_the_package_keeps_its_frames(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    import pytest_mwbudget.engine

    monkeypatch.setattr(pytest_mwbudget.engine, "first_call", None)
    write(pytester, TESTS["a function"].replace("{path}", "/health"))
    result = run(pytester, "--tb=native")
    assert "engine.py" in result.stdout.str()


EXCEPTIONS = """
import dataclasses


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    key: str


class Many(Exception):
    exceptions = ["first", "second"]  # no exception group has these


class Guarded(Exception):
    def __getattribute__(self, name):
        if name in ("mw_budget_in_failure", "exceptions", "with_traceback"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Group(ExceptionGroup):
    @property
    def exceptions(self):
        raise RuntimeError("exceptions")
"""


def test_any_exception_of_a_test_is_its_failure(pytester: pytest.Pytester) -> None:
    raised = itertools.product(["Frozen('x')", "Many('x')", "Guarded('x')"], ["mw_budget", "tmp_path"])
    tests = [f"def test_{n}({fixture}):\n    raise {error}\n" for n, (error, fixture) in enumerate(raised)]
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(shop=APP, test_it="\n\n".join([EXCEPTIONS, *tests, "def test_next():\n    pass\n"]))
    result = run(pytester)
    result.assert_outcomes(passed=1, failed=len(tests))
    result.stdout.no_fnmatch_line("*INTERNALERROR*")


def test_the_frames_are_taken_out_of_a_frozen_exception_too(pytester: pytest.Pytester) -> None:
    app = APP.replace('raise LookupError("no such shelf")', 'raise Frozen("no such shelf")')
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        shop=EXCEPTIONS + app,
        test_it="def test_it(mw_budget):\n    mw_budget.get('/broken')\n",
    )
    result = run(pytester, "--tb=native")
    result.assert_outcomes(failed=1)
    assert not OURS.search(result.stdout.str())


def test_the_members_of_a_group_are_found_without_the_code_of_its_class() -> None:
    names: dict[str, type[BaseException]] = {}
    exec(EXCEPTIONS, names)
    member = ValueError()
    assert member in chain(names["Group"]("several", [member]))


def test_without_the_terminal_plugin_failures_are_failures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        shop=APP,
        test_it="""
        import pytest

        @pytest.mark.mw_budget(objects=0, tasks=0, bytes=0, undecided="fail")
        def test_it(mw_budget):
            mw_budget.get("/health")

        def test_other():
            assert False
        """,
    )
    result = run(pytester, "-p", "no:terminal", "--junitxml=junit.xml")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert 'failures="2"' in (pytester.path / "junit.xml").read_text()
