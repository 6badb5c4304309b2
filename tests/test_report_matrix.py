"""The matrix of layers and routes: which results it holds, its order and cells, and how each report shows it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.results import Count, LayerReport, RequestLine, Result
from pytest_mwbudget.model.stack import Origin
from pytest_mwbudget.report.document import Cell, plain
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.lines import Line, laid_out
from pytest_mwbudget.report.markdown import MOST_ROUTES
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.matrix import Matrix, matrices
from pytest_mwbudget.report.overview import matrix

from .canned import RUN, but, one_run
from .test_report_html import read
from .test_report_terminal import NONE, counted, layer_row, result, row, same, us

ERRORS, CORS = row(0, "Errors", 0.5, origin=Origin("starlette")), row(1, "CORS", 9.0, origin=Origin("starlette"))
AUTH = replace(row(2, "Auth", 130.0, origin=Origin()), counts=replace(NONE, tasks=same(1, rest=1)))
GZIP = row(2, "GZip", 4.0)


def request(url: str, *rows: LayerReport, total: float = 245.0, status: int = 200, route: str | None = None) -> Result:
    measured = result(*rows)
    assert measured.books is not None
    return but(
        measured,
        request=RequestLine("GET", url),
        status=status,
        route=route,
        books=replace(measured.books, total=us(total)),
        ledger=counted().ledger,
    )


HEALTH = request("/health", ERRORS, CORS, AUTH, total=300)
SEARCH = request("/search?q=a", ERRORS, CORS, GZIP, total=100)
REFUSED = request("/admin", ERRORS, CORS, row(2, "Auth", None, entered=False), total=50, status=401)


def only(*results: Result) -> Matrix:
    (matrix,) = matrices(results)
    return matrix


def lines_of(found: Matrix, width: int) -> list[Line]:
    return [*laid_out([matrix(found, width - 1)], width - 1)]


def cells(found: Matrix, name: str) -> list[Cell]:
    (row,) = (row for row in found.table.rows if row.cells[0].text == name)
    return [*row.cells[2:]]


def titles(found: Matrix) -> list[str]:
    return [plain(column.title) for column in found.table.columns[2:]]


def names(found: Matrix) -> list[str]:
    return [plain(row.cells[0].text) for row in found.table.rows]


# ---- the view -----------------------------------------------------------------------------------------------------


def test_one_result_makes_no_matrix_and_two_of_one_stack_make_one() -> None:
    assert matrices([]) == []
    assert matrices([HEALTH]) == []
    assert titles(only(HEALTH, SEARCH)) == ["GET /health", "GET /search?q=a"]


def test_results_that_share_no_layer_are_not_of_one_app() -> None:
    other = request("/other", row(0, "Other", 3.0))
    assert matrices([HEALTH, other]) == []
    bare = request("/bare")
    assert len(only(HEALTH, other, bare, SEARCH).places) == 2


def test_results_are_together_if_a_third_one_connects_them() -> None:
    first, last = request("/a", row(0, "A", 1.0)), request("/b", row(0, "B", 1.0))
    between = request("/c", row(0, "A", 1.0), row(1, "B", 1.0))
    assert len(only(first, last, between).places) == 3
    assert [len(group.places) for group in matrices([first, last, replace(last)])] == [2]


def test_the_costliest_route_comes_first_and_knows_its_place() -> None:
    matrix = only(SEARCH, REFUSED, HEALTH)
    assert [*zip(titles(matrix), matrix.places, strict=True)] == [
        ("GET /health", 2),
        ("GET /search?q=a", 0),
        ("GET /admin 401", 1),
    ]


def test_a_route_has_its_template_and_equal_titles_have_numbers() -> None:
    one, other = (request(f"/orders/{i}", ERRORS, total=9 - i, route="/orders/{id}") for i in (1, 2))
    assert titles(only(one, other)) == ["GET /orders/{id} (1)", "GET /orders/{id} (2)"]


def test_the_lines_are_in_the_order_of_the_stacks_between_outside_and_total() -> None:
    matrix = only(HEALTH, SEARCH, REFUSED)
    assert names(matrix) == ["(outside)", "Errors", "CORS", "GZip", "Auth", "(endpoint)", "(total)"]
    assert [row.cells[1].text for row in matrix.table.rows] == ["", "starlette", "starlette", "", "own", "", ""]


def test_layers_of_one_name_and_two_modules_have_a_line_each() -> None:
    other = replace(GZIP, layer=replace(GZIP.layer, qualname="elsewhere.GZip"))
    matrix = only(SEARCH, request("/b", ERRORS, CORS, other, total=200))
    assert [row.cells[0].why for row in matrix.table.rows if row.cells[0].text == "GZip"] == [
        "shop.middleware.GZip",
        "elsewhere.GZip",
    ]


def test_a_cell_has_time_and_tasks_and_the_costliest_layer_is_marked() -> None:
    matrix = only(HEALTH, SEARCH)
    auth, without = cells(matrix, "Auth")
    assert (auth.value, auth.details, auth.tone) == (130.0, ("1 task",), "most")
    assert (without.value, without.why, without.details) == (None, "not in this stack", ())
    assert [cell.tone for cell in cells(matrix, "CORS")] == [None, "most"]
    assert [cell.tone for cell in cells(matrix, "(total)")] == [None, None]


def test_what_has_no_figure_says_why() -> None:
    merged = row(2, "Auth", None, merged_with="CORS", merged_because="no probe")
    matrix = only(
        HEALTH, REFUSED, request("/m", ERRORS, merged, total=20), request("/u", row(2, "Auth", None), total=9)
    )
    assert [cell.why for cell in cells(matrix, "Auth")] == [
        "",
        "not entered",
        "measured with another layer",
        "unknown",
    ]


def test_the_tasks_of_a_cell_may_vary_or_be_many() -> None:
    varying = replace(AUTH, counts=replace(NONE, tasks=Count(3, 2, 4, {})))
    matrix = only(HEALTH, request("/v", varying, total=9))
    assert [cell.details for cell in cells(matrix, "Auth")] == [("1 task",), ("~3 tasks",)]


def test_names_are_shortened_for_more_routes() -> None:
    rows = [row(0, "RequestResponseLoggingMiddleware", 10), row(1, "RequestResponseTracingMiddleware", 5)]
    (matrix,) = matrices([request(f"/{i}", *rows) for i in range(4)])
    wide, narrow = ([line.text for line in lines_of(matrix, width)] for width in (120, 60))
    assert "RequestResponseLoggingMiddleware" in "\n".join(wide)
    assert narrow[0].endswith("all routes")
    assert len({line.split()[0] for line in narrow if line.startswith("Req")}) == 2


def test_a_time_with_a_wide_interval_is_marked() -> None:
    wide = replace(AUTH, us=us(130.0, 60.0))
    matrix = only(HEALTH, request("/wide", wide, total=9))
    assert [cell.text for cell in cells(matrix, "Auth")] == ["130.0", "~130.0"]
    assert [cell.text for cell in cells(matrix, "Errors")] == ["0.50", ""]
    shown = [line.text for line in lines_of(matrix, 100)]
    assert any("~130.0 1t*" in line for line in shown)
    assert "~: wide interval" in " ".join(shown)


def test_where_nothing_was_timed_the_cells_have_objects() -> None:
    some, more = (counted(layer_row("Auth", counts=replace(NONE, objects=same(n)))) for n in (7, 90))
    more = replace(more, request=RequestLine("GET", "/b"))
    matrix = only(some, more)
    assert matrix.quantity.title == "objects"
    assert [cell.value for cell in cells(matrix, "Auth")] == [7, 90]


def test_the_first_routes_are_without_the_layers_of_the_others() -> None:
    matrix = only(HEALTH, SEARCH).first(1)
    assert titles(matrix) == ["GET /health"]
    assert names(matrix) == ["(outside)", "Errors", "CORS", "Auth", "(endpoint)", "(total)"]
    assert {len(row.cells) for row in matrix.table.rows} == {3}


# ---- the reports --------------------------------------------------------------------------------------------------

MANY = [request(f"/{i}", ERRORS, CORS, total=100 + i) for i in range(30)]


def test_the_terminal_shows_the_routes_by_number_and_explains_the_signs() -> None:
    shown = [line.text for line in lines_of(only(HEALTH, SEARCH, REFUSED), 80)]
    assert shown[:5] == [
        "layers and routes: µs per request, all routes",
        "   1  GET /health",
        "   2  GET /search?q=a",
        "   3  GET /admin 401",
        "layer       from              1       2      3",
    ]
    assert shown[6] == "Errors      starlette      0.50    0.50   0.50"
    assert shown[9] == "Auth        own        130.0 1t*             -"
    assert shown[12:] == [
        "*: costliest layer of its route; 1t: spawns 1 task; -: not entered; empty: not",
        "  in the stack of the route",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100])
def test_the_terminal_shows_the_costliest_routes_that_fit_and_says_how_many_there_are(width: int) -> None:
    shown = [line.text for line in lines_of(only(*MANY), width)]
    fitting = sum(bool(re.match(r" +\d+  GET", line)) for line in shown)
    assert f"the costliest {fitting} of 30 routes" in shown[0]
    assert shown[1] == "   1  GET /29"
    assert all(len(line) < max(width, 50) for line in shown[1:])
    assert fitting >= (width - 24) // 9


def test_a_narrow_terminal_shows_one_route_and_shortens_long_names() -> None:
    long = request("/" + "long" * 40, row(0, "Layer" * 20, 3.0), ERRORS)
    shown = [line.text for line in lines_of(only(long, HEALTH), 30)]
    assert shown[0].endswith("the costliest 1 of 2 routes")


def test_the_page_has_a_sortable_table_with_the_routes_across() -> None:
    measured = tuple((f"test_it.py::{i}", result) for i, result in enumerate([SEARCH, HEALTH, REFUSED]))
    page = read(html(MeasuredRun(RUN, measured)))
    (table,) = (table for table in page.all("table") if "matrix" in (table.attributes.get("class") or ""))
    assert "sortable" in (table.attributes["class"] or "")
    heads = table.all("thead")[0].all("th")
    assert [head.text for head in heads] == ["layer", "GET /health", "GET /search?q=a", "GET /admin 401"]
    assert heads[1].attributes["title"] == "test_it.py::1"
    rows = {line.all("th")[0].text: line.all("td") for line in table.all("tr")[1:]}
    assert [cell.text for cell in rows["Auth own"]] == [
        "130.0, the costliest layer of this route 1 task",
        "",
        "not entered",
    ]
    assert [cell.attributes.get("class") for cell in rows["Auth own"]] == ["most", None, None]
    assert [cell.attributes.get("data-value") for cell in rows["(total)"]] == ["300", "100", "50"]
    assert [row.all("th")[0].text for row in table.all("tfoot")[0].all("tr")] == ["(total)"]


def test_a_page_of_one_request_has_no_matrix() -> None:
    assert "Layers and routes" not in html(one_run(HEALTH, nodeid="test_it"))


def test_markdown_has_the_costliest_routes_and_marks_the_costliest_layer() -> None:
    text = markdown(one_run(HEALTH, SEARCH, nodeid="test_it"))
    assert "| layer | from | <code>GET /health</code> | <code>GET /search?q=a</code> |" in text
    assert "| <code>Auth</code> | own | **130.0, 1 task** |  |" in text
    assert "costliest" not in text
    text = markdown(one_run(*MANY, nodeid="test_it"))
    assert f"These are the costliest {MOST_ROUTES} of 30 routes." in text


def test_markdown_without_room_leaves_the_matrix_out() -> None:
    whole = one_run(*MANY, nodeid="test_it")
    short = markdown(whole, limit=900)
    assert "Layers and routes" not in short
    assert "29 of 30 requests are left out" in short
