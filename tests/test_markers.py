"""The order of the markers of a test, closest first, for every place where a marker can be."""

from __future__ import annotations

import pytest

from .apps import run_inside

CONFTEST = """
import pytest
from pytest_mwbudget.session.markers import closest_first


async def app(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def mw_budget_app():
    return app


@pytest.fixture
def order(request):
    return lambda: [marker.kwargs["us"] for marker in closest_first(request.node)]


@pytest.fixture
def late(request):
    request.node.add_marker(pytest.mark.mw_budget(us=2))
"""

HEAD = """
import pytest

us = lambda number: pytest.mark.mw_budget(us=number)
"""

# The tests of each place, by the name of their file.
CASES = {
    "test_decorators_of_a_function": """
        @us(20)
        @us(10)
        def test_it(order):
            assert order() == [10, 20]
    """,
    "test_a_parameter_set_before_the_function": """
        @us(1000)
        @pytest.mark.parametrize("_", [pytest.param(1, marks=us(9))])
        def test_it(order, _):
            assert order() == [9, 1000]
    """,
    "test_a_parameter_set_with_a_list": """
        @pytest.mark.parametrize("_", [pytest.param(1, marks=[us(8), us(9)])])
        @us(1000)
        def test_it(order, _):
            assert order() == [8, 9, 1000]
    """,
    "test_a_parameter_set_of_the_class": """
        @pytest.mark.parametrize("_", [pytest.param(1, marks=us(9))])
        @us(50)
        class TestIt:
            @us(40)
            def test_it(self, order, _):
                assert order() == [9, 40, 50]
    """,
    "test_classes_along_the_mro": """
        @us(80)
        class Root:
            pass

        @us(70)
        class Mixin:
            pass

        @us(65)
        @us(60)
        class Base(Root):
            def test_it(self, order):
                assert order() == self.expected

        class TestBase(Base):
            expected = [60, 65, 80]

        @us(50)
        class TestDerived(Mixin, Base):
            expected = [50, 70, 60, 65, 80]

        class TestListed(Base):
            pytestmark = [us(30), us(40)]
            expected = [30, 40, 60, 65, 80]

        class TestOne(Base):
            pytestmark = us(30)
            expected = [30, 60, 65, 80]
    """,
    "test_nested_classes_and_a_module_list": """
        pytestmark = [us(90), us(91)]

        @us(50)
        class TestOuter:
            @us(40)
            class TestInner:
                @us(10)
                def test_it(self, order):
                    assert order() == [10, 40, 50, 90, 91]
    """,
    "test_added_while_the_test_runs": """
        @us(1000)
        @pytest.mark.parametrize("_", [pytest.param(1, marks=us(9))])
        def test_it(order, late, request, _, mw_budget):
            assert order() == [2, 9, 1000]
            assert mw_budget.settings.budgets.default == {"us": 2}
            request.node.add_marker(us(1))
            assert order() == [1, 2, 9, 1000]
            mw_budget.get("/")
            assert mw_budget.settings.budgets.default == {"us": 1}
    """,
    "test_a_parameter_set_of_a_fixture": """
        @pytest.fixture(params=[pytest.param(1, marks=us(9))])
        def one(request):
            pass

        @us(1000)
        def test_it(order, one):
            assert order() == [9, 1000]
    """,
    "test_others_are_none": """
        @pytest.mark.filterwarnings("ignore")
        @us(20)
        def test_it(order):
            assert order() == [20]
    """,
}


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return run_inside(pytester, *arguments)


def test_the_closest_marker_comes_first(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    for name, tests in CASES.items():
        pytester.makepyfile(**{name: HEAD + "\n".join(line[8:] for line in tests.splitlines())})
    # Four classes along the MRO have the same test, and each other file has one.
    assert run(pytester).parseoutcomes() == {"passed": len(CASES) - 1 + 4}


def test_what_a_hook_adds_while_tests_are_collected_is_as_close_as_pytest_puts_it(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        CONFTEST
        + """

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(pytest.mark.mw_budget(us=5), append=False)
        item.add_marker(pytest.mark.mw_budget(us=30))
        item.parent.add_marker(pytest.mark.mw_budget(us=60))
"""
    )
    pytester.makepyfile(
        HEAD + "\n\n@us(50)\nclass TestIt:\n    @us(20)\n    def test_it(self, order):\n"
        "        assert order() == [5, 20, 30, 50, 60]\n"
    )
    run(pytester).assert_outcomes(passed=1)


def test_a_test_that_is_run_again_keeps_what_its_first_run_added(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        HEAD
        + """

@pytest.mark.flaky(reruns=1)
@us(20)
def test_it(order, request, mw_budget):
    if order() == [20]:
        request.node.add_marker(us(1))
        assert False
    assert order() == [1, 20]
"""
    )
    assert run(pytester).parseoutcomes() == {"passed": 1, "rerun": 1}
