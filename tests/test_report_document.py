"""Documents: how each format lays out sections, lists and tables, whatever they are about."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mwbudget.report import gfm, lines
from pytest_mwbudget.report.document import (
    Bullets,
    Cell,
    Code,
    Column,
    Paragraph,
    Section,
    Strong,
    Table,
    TableRow,
    cells,
    plain,
)

SMALL = Table(
    [Column("layer"), Column("µs"), Column("%", joins=True), Column("verdict", align="left")],
    [
        TableRow(cells(Code("Auth"), "+12.5", "+50%", Cell("fail", "fail")), "fail", ["  below"]),
        TableRow(cells("(total)", "-1.0", "", ""), level=1),
    ],
)
WHOLE = Section(
    "The title",
    [
        Paragraph(("- of ", Code("a|b"), ": ", Strong("much")), "undecided"),
        Section(
            (Code("GET /"), ": 1 slower"),
            [SMALL, Bullets([Paragraph("first", below=["1 × dict", Code("x y")]), Paragraph("second")])],
        ),
        Section(Code("GET /b"), [Paragraph("nothing")], test="t.py::test_b"),
        Section("1 more", [Bullets([Paragraph(Code("GET /c"))])], folded=True),
        Paragraph("the end"),
    ],
    level=2,
)


def text(table: Table, width: int) -> list[str]:
    return [line.text for line in lines.laid_out([table], width)]


def wide(number: int, name: str = "Auth", **more: bool) -> Table:
    """Return a table with this many columns of figures, and a verdict."""
    titles = [Column(f"figure{place}") for place in range(number)]
    row = TableRow(cells(name, *map(str, range(number)), "pass"), below=["  below"])
    return Table([Column("layer"), *titles, Column("verdict", align="left")], [row], **more)


# ---- the terminal -------------------------------------------------------------------------------------------------


def test_a_terminal_has_sections_lists_and_tables_with_their_colours() -> None:
    assert [(line.style, line.text) for line in lines.render(WHOLE, 81)] == [
        ("yellow", "- of a|b: much"),
        ("", ""),
        ("bold", "GET /: 1 slower"),
        ("bold", "layer         µs     %  verdict"),
        ("red", "Auth       +12.5  +50%  fail"),
        ("", "  below"),
        ("", "  (total)   -1.0"),
        ("", "first"),
        ("", "    1 × dict"),
        ("", "    x y"),
        ("", "second"),
        ("", ""),
        ("bold", "GET /b, t.py::test_b"),
        ("", "nothing"),
        ("", ""),
        ("bold", "1 more"),
        ("", "GET /c"),
        ("", ""),
        ("", "the end"),
    ]


def test_a_paragraph_is_wrapped_unless_it_is_whole_and_a_command_stays_on_one_line() -> None:
    item = Paragraph(("run this: ", Code("mwbudget explain blocking")))
    assert [line.text for line in lines.laid_out([item], 30)] == ["run this:", "  mwbudget explain blocking"]
    (line,) = lines.laid_out([replace(item, whole=True)], 30)
    assert line.text == "run this: mwbudget explain blocking"


def test_details_of_a_column_are_left_out_before_names_are_shortened() -> None:
    assert text(SMALL, 24)[0] == "layer         µs  verdict"
    long = replace(SMALL, rows=[TableRow(cells("RequestLoggingMiddleware", "1", "+5%", "same"))])
    assert text(long, 40)[1:] == ["RequestLoggingMiddleware   1  same"]
    assert text(long, 30)[1:] == ["RequestLogging…     1  same"]


def test_names_take_all_the_room_in_a_table_that_fills_it() -> None:
    assert text(wide(2, fills=True), 60)[0] == f"{'layer':33}  figure0  figure1  verdict"
    assert text(wide(2), 60)[0] == "layer  figure0  figure1  verdict"


@pytest.mark.parametrize("width", [40, 50, 70])
def test_columns_that_do_not_fit_follow_in_blocks_with_the_verdict_in_the_first(width: int) -> None:
    shown = text(wide(9, fills=True, blocks=True), width)
    assert max(map(len, shown)) <= width
    assert [place for place in range(9) if any(f"figure{place}" in line for line in shown)] == [*range(9)]
    assert [line.count("verdict") for line in shown if "layer" in line] == [1, *[0] * shown.count("")]
    assert shown.count("  below") == 1
    assert len(text(wide(9, fills=True), width)) == 3


def test_the_columns_that_fit_beside_brief_names_are_counted() -> None:
    table = wide(9, name="N" * 30)
    columns = [replace(table.columns[0], least=10), *table.columns[1:]]
    # Names take 10 characters, four columns and the verdict 9 each.
    assert [lines.fitting(replace(table, columns=columns), width) for width in (54, 55)] == [3, 4]
    assert lines.fitting(table, 10) == 1


def test_a_column_has_its_least_and_its_most_width_and_a_short_title() -> None:
    columns = [Column("layer"), Column("a long title", short="t", least=6), Column("from", align="left", most=5)]
    table = Table(columns, [TableRow(cells("Auth", Cell("~12 objects", brief="~12"), "starlette"))])
    assert text(table, 40) == ["layer     t  from", "Auth    ~12  st…te"]


# ---- Markdown -----------------------------------------------------------------------------------------------------


def test_markdown_has_sections_lists_and_tables_with_emphasis() -> None:
    assert gfm.render(WHOLE).split("\n") == [
        "## The title",
        "",
        "&#45; of <code>a&#124;b</code>: **much**",
        "",
        "### <code>GET /</code>: 1 slower",
        "",
        "| layer | µs | verdict |",
        "|---|--:|---|",
        "| <code>Auth</code> | +12.5 +50% | **fail** |",
        "| &emsp;(total) | -1.0 |  |",
        "",
        "- first",
        "  - 1 × dict",
        "  - <code>x y</code>",
        "- second",
        "",
        "**<code>GET /b</code>** <code>t.py::test_b</code>",
        "",
        "nothing",
        "",
        "<details><summary>1 more</summary>",
        "",
        "- <code>GET /c</code>",
        "",
        "</details>",
        "",
        "the end",
        "",
    ]


def test_a_page_of_markdown_leaves_out_its_last_sections_and_says_how_many() -> None:
    sections = [Section(f"Section {number}", [Paragraph("x" * 100)]) for number in range(9)]
    document = Section("Many", [Paragraph("head"), *sections, Paragraph("foot")])

    def left_out(number: int, of: int) -> str:
        return f"{number} of {of} left out"

    whole = gfm.render(document)
    size = len(whole.encode())
    assert gfm.render(document, size, left_out) == whole
    cut = gfm.render(document, 500, left_out)
    assert len(cut.encode()) <= 500
    assert cut.startswith("### Many\n\nhead\n\n### Section 0\n")
    assert cut.endswith("\n\n6 of 9 left out\n\nfoot\n")
    assert gfm.render(document, 20, left_out) == "### Many\n\nhead\n\n9 of 9 left out\n\nfoot\n"


# ---- tables -------------------------------------------------------------------------------------------------------


def test_a_table_is_arranged_by_titles_with_details() -> None:
    columns = [Column("layer"), *map(Column, ("µs", "interval", "worst", "interval", "on"))]
    table = Table(columns, [TableRow(cells("Auth", "1.0", "0.9 … 1.1", "2.0", "1.9 … 2.1", ""))])
    arranged = table.arranged("layer", "on", ("worst", "interval"), ("µs", "on"))
    assert [plain(column.title) for column in arranged.columns] == ["layer", "on", "worst", "µs"]
    assert [(cell.text, cell.details) for cell in arranged.rows[0].cells] == [
        ("Auth", ()),
        ("", ()),
        ("2.0", ("1.9 … 2.1",)),
        ("1.0", ()),
    ]
