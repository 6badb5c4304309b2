"""Every message with an id has a page, every page has a message, and output names the command that prints it."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import pytest_mwbudget
from pytest_mwbudget import __main__, errors
from pytest_mwbudget.messages import pages
from pytest_mwbudget.report.advice import RULES

from .apps import run_inside

pytestmark = pytest.mark.once

PACKAGE = Path(pytest_mwbudget.__file__).parent
# Functions that take the id of a message, with the position of this argument.
TAKERS = {"tagged": 1, "more_about": 0}


def texts(expression: ast.expr) -> Iterator[str]:
    """Yield the literal strings of an expression, both branches of a conditional expression."""
    if isinstance(expression, ast.IfExp):
        yield from texts(expression.body)
        yield from texts(expression.orelse)
    else:
        assert isinstance(expression, ast.Constant), f"no literal: {ast.unparse(expression)}"
        if expression.value is not None:
            yield expression.value


def used(inside: list[ast.AST]) -> Iterator[str]:
    """Yield the ids in the nodes of a module: in calls of TAKERS, in raised errors and in classes of errors."""
    for node in inside:
        if isinstance(node, ast.Call):
            place = TAKERS.get(getattr(node.func, "id", ""))
            if place is not None:
                yield from texts(node.args[place])
            yield from (
                text for keyword in node.keywords if keyword.arg == "message_id" for text in texts(keyword.value)
            )
        elif isinstance(node, ast.ClassDef):
            for statement in node.body:
                if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "message_id":
                    yield from texts(statement.value)


@cache
def nodes() -> dict[Path, list[ast.AST]]:
    """Return the nodes of each module of the package."""
    modules = PACKAGE.rglob("*.py")
    return {module: list(ast.walk(ast.parse(module.read_text(encoding="utf-8")))) for module in modules}


def all_used() -> set[str]:
    ids = set(RULES)
    for module, inside in nodes().items():
        if module.name != "errors.py":
            ids.update(used(inside))
    ids.update(value.message_id for value in vars(errors).values() if getattr(value, "message_id", None))
    return ids - {"ID"}


def test_every_id_has_a_page_and_every_page_is_used() -> None:
    assert sorted(all_used()) == pages.ids()


def test_an_error_has_an_id_by_its_class_or_where_it_is_raised() -> None:
    """Allow one exception: the error for an unknown id, which has no page."""
    without = {"MwBudgetError", "MeasurementError"}
    nameless = [
        f"{module.name}:{node.lineno}"
        for module, inside in nodes().items()
        for node in inside
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in without
        and not any(keyword.arg == "message_id" for keyword in node.keywords)
    ]
    assert [name.partition(":")[0] for name in nameless] == ["pages.py"]


@pytest.mark.parametrize("message_id", pages.ids())
def test_a_page_has_a_title_a_summary_and_three_parts(message_id: str) -> None:
    title, summary, *rest = pages.page(message_id).split("\n\n")
    assert title == f"# {message_id}"
    assert re.fullmatch(r"[A-Z][^\n]*\.", summary)
    bold = re.findall(r"^\*\*(.+?)\*\*", "\n\n".join(rest), re.MULTILINE)
    assert bold in (["What was seen.", "Why.", "What to do."], ["What was seen.", "Why it costs.", "What to do."])


@pytest.mark.parametrize("message_id", pages.ids())
def test_pages_name_ids_that_exist(message_id: str) -> None:
    targets = [link for _, link in pages.LINK.findall(pages.page(message_id)) if link.startswith("#")]
    assert {link[1:] for link in targets} <= set(pages.ids())


def test_the_command_is_installed() -> None:
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="mwbudget")
    assert script.load() is __main__.main


APP = """
import pytest
from starlette.applications import Starlette
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route

class PassOn(BaseHTTPMiddleware):
    async def dispatch(self, request, call_next):
        return await call_next(request)

async def health(request):
    return PlainTextResponse("ok")

@pytest.fixture
def mw_budget_app():
    app = Starlette(routes=[Route("/health", health)])
    app.add_middleware(PassOn)
    return app
"""


def test_what_a_failure_names_is_a_command_that_works_anywhere(
    pytester: pytest.Pytester,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytester.makeconftest(APP)
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.mw_budget(tasks=0)
        def test_health(mw_budget):
            mw_budget.get("/health")

        @pytest.mark.mw_budget(tasks=0)
        def test_missing(mw_budget):
            mw_budget.get("/missing")
        """
    )
    result = run_inside(pytester, "--mw-budget", "--mw-budget-flamegraph=never")
    result.assert_outcomes(failed=2)
    text = " ".join(result.stdout.str().split())
    named = set(re.findall(r"mwbudget explain ([a-z-]+)", text))
    assert named == {"pass-through", "over-budget", "response"}
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    capsys.readouterr()
    for message_id in named:
        assert __main__.main(["explain", message_id]) == 0
        assert capsys.readouterr().out.startswith(f"# {message_id}\n\n{pages.summary(message_id)}\n")
    command = [sys.executable, "-m", "pytest_mwbudget", "explain", "over-budget"]
    explained = subprocess.run(command, capture_output=True, text=True, check=True, encoding="utf-8")
    assert explained.stdout.startswith(f"# over-budget\n\n{pages.summary('over-budget')}\n")
