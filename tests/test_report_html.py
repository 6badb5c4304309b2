"""The HTML page: its contents, and that no text of an app becomes markup."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from html.parser import HTMLParser
from itertools import pairwise
from typing import Any

import pytest

from pytest_mwbudget.model.changes import Since
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.measured_run import MeasuredRun
from pytest_mwbudget.model.quantities import PROCESS_WIDE
from pytest_mwbudget.model.results import Books, Effort, Judged, LayerReport, RepeatedTest, Result, SurveyRun
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.report.advice import advise
from pytest_mwbudget.report.html import _template, render
from pytest_mwbudget.storage import codec

from .canned import RUN, as_json, but, canned, one_run
from .test_report_json import GZIP, GZIP_COUNTS, LEDGER, NOTHING, RESULT, RESULTS, UNTIMED

pytestmark = pytest.mark.once

PROFILE = {
    "requests": 800,
    "samples": 3100,
    "request_us": 912.3,
    "flamegraph": "profiles/one.html",
    "pyinstrument": "profiles/one.pyinstrument.html",
    "speedscope": "profiles/one.speedscope.json",
    "hottest": {
        "0": [
            {"function": "compress", "file": "shop/zip.py", "line": 17, "own_us": 12.5, "total_us": 14.26, "own": False}
        ]
    },
}
OUTER = Layer(0, "Outer", "shop.Outer", "middleware")
INNER = Layer(1, "Inner", "shop.Inner", "middleware")


def stacked(outer: float, inner: float, endpoint: float, budget: float | None = None, **more: Any) -> Result:
    """Return a result of two layers with intervals of ± 1 µs; `budget` is the inner layer's."""

    def about(us: float) -> Estimate:
        return Estimate(us, us - 1, us + 1)

    verdict = "fail" if budget is not None and inner > budget else "pass"
    judged = {} if budget is None else {"us": Judged(budget, verdict)}
    return canned(
        request=RESULT.request,
        status=200,
        layers=(
            LayerReport(OUTER, about(outer), counts=NOTHING),
            LayerReport(INNER, about(inner), counts=NOTHING, judged=judged),
        ),
        ledger=LEDGER,
        books=Books(about(outer + inner + endpoint), Estimate(0, 0, 0), about(endpoint), 0.0),
        floor_us=0.1,
        effort=Effort(100, 10, 0.1),
        verdict=verdict if judged else None,
        **more,
    )


def everything() -> dict[str, Any]:
    """Return a document with each kind of result, one with advice and a profile."""
    measured = tuple((f"test_shop.py::test[{name}]", result) for name, result in RESULTS.items())
    data = as_json(MeasuredRun(RUN, measured))
    data["measurements"][0] |= {"profile": PROFILE}
    return data


def page_with(data: dict[str, Any], *rest: Any) -> str:
    """Return the page of a document."""
    return render(codec.measured_run(data), *rest)


# ---- reading a page ----------------------------------------------------------------------------------------------

VOID = {"meta", "wbr", "br", "img", "link", "input", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parts: list[Element | str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Element]:
        """Yield this element and all elements inside, in document order."""
        yield self
        for part in self.parts:
            if isinstance(part, Element):
                yield from part

    @property
    def raw(self) -> str:
        return "".join(part if isinstance(part, str) else part.raw for part in self.parts)

    @property
    def text(self) -> str:
        return " ".join(self.raw.split())

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def all(self, tag: str, name: str | None = None) -> list[Element]:
        return [element for element in self if element.tag == tag and (name is None or name in element.classes)]

    def number(self, attribute: str) -> float:
        return float(self.attributes[attribute].removesuffix("%"))


class Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Element("document", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.open[-1].parts.append(element)
        if tag not in VOID:
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop().tag == tag

    def handle_data(self, data: str) -> None:
        self.open[-1].parts.append(data)


def read(html: str) -> Element:
    """Return the page as a tree, and check that every element is closed."""
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert len(reader.open) == 1
    return reader.open[0]


def page_of(*results: Result) -> Element:
    return read(render(one_run(*results, nodeid="test_shop.py::test_it")))


def rows(page: Element, table: str) -> dict[str, Element]:
    """Return the rows of the first table with class `table`, by the text of their name."""
    body = page.all("table", table)[0]
    return {row.all("span", "name")[0].text: row for row in body.all("tr") if row.all("span", "name")}


# ---- contents ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RESULTS)
def test_every_kind_of_result_makes_a_page_with_its_verdict_and_layers(name: str) -> None:
    result = RESULTS[name]
    page = page_of(result)
    section = next(element for element in page if element.attributes.get("id") == "m1")
    assert section.all("h2")[0].text.endswith("GET /health?q=ü")
    assert section.all("h2")[0].all("span", "badge")[0].text.endswith(str(result.verdict))
    for report in result.layers:
        assert report.name in rows(section, "counts")


def numbers_of(layer: dict[str, Any]) -> Iterator[float]:
    """Yield the values that a table must show for a row, unrounded."""
    if layer["us"]:
        yield from (layer["us"]["estimate"], layer["us"]["low"])
    yield from (layer[key] for key in ("busy_us", "wait_us", "cpu_us", "budget_us") if layer[key] is not None)
    counts = (
        "objects",
        "allocations",
        "bytes",
        "tasks",
        "threads",
        "retained",
        "bytecodes",
        "calls",
        "py_calls",
        "suspensions",
    )
    yield from (layer[key]["count"] for key in counts if layer[key])
    yield from layer["messages"].values() if layer["messages"] else ()


@pytest.mark.parametrize("name", RESULTS)
def test_every_number_of_a_layer_is_in_the_tables(name: str) -> None:
    page = page_of(RESULTS[name])
    for layer in codec.measurement("t", RESULTS[name])["layers"]:
        layer_rows = [rows(page, table)[layer["name"]] for table in ("time", "counts") if page.all("table", table)]
        values = [cell.attributes.get("data-value") for row in layer_rows for cell in row.all("td")]
        for number in numbers_of(layer):
            assert str(number) in values


def test_the_tables_show_figures_intervals_budgets_and_ranges() -> None:
    page = page_of(RESULT)
    time = [cell.text for cell in rows(page, "time")["GZipMiddleware"].all("td")]
    spent = ["20.5 ± 1.50", "7.90 of 9 ✓pass", "10.0", "6.50"]
    assert time == ["17.9", "17.5 … 18.2", "7.3%", "50", "✓ pass", *spent]
    counts = [cell.text for cell in rows(page, "counts")["GZipMiddleware"].all("td")]
    assert counts[:3] == ["~5 4 … 9", "30", "~2.0 KiB 2.0 KiB … 4.0 KiB"]
    assert counts[3:] == ["1", "1 of 0 ✗fail", "2", "6410", "529", "327", "3", "4", "~2 2 … 6"]


def test_the_total_stands_below_the_rows_that_are_sorted() -> None:
    table = page_of(RESULT).all("table", "time")[0]
    (foot,) = table.all("tfoot")
    assert [cell.text for cell in foot.all("td")][:5] == ["245.1", "244.0 … 246.3", "100.0%", "400", "✓ pass"]
    assert "(total)" not in table.all("tbody")[0].text


def test_a_layer_without_figures_says_why() -> None:
    page = page_of(RESULT)
    assert "measured with GZipMiddleware" in rows(page, "time")["Mount"].text
    assert "not entered" in rows(page, "time")["Auth#2"].text
    notes = [item.text for item in page.all("li")]
    assert "Not known: all of Mount – it is measured together with GZipMiddleware." in notes
    assert "Not known: all of Auth#2 – the request did not come to this layer." in notes


def test_what_cannot_be_counted_is_said_once_with_its_reason() -> None:
    notes = [item.text for item in page_of(RESULTS["uncountable"]).all("li")]
    (counted,) = [note for note in notes if "the extension was not built" in note]
    assert counted.startswith(f"Not known: {'; '.join(PROCESS_WIDE)}; own_types of GZipMiddleware")
    assert any(note.startswith("Not known: cpu_us of GZipMiddleware") for note in notes)


def test_a_run_of_counts_has_no_table_of_times_and_a_picture_of_counts() -> None:
    page = page_of(UNTIMED)
    assert not page.all("table", "time")
    assert page.all("figcaption")[0].text.startswith("bytes per request.")


def test_a_total_that_is_unknown_shows_no_number() -> None:
    page = page_of(RESULTS["unknown"])
    assert rows(page, "time")["(total)"].all("td")[0].text == ""
    assert page.all("figcaption")[0].text.startswith("objects per request.")


def test_what_is_over_budget_is_said_first_and_in_full() -> None:
    page = page_of(stacked(10, 90, 20, budget=40))
    findings = page.all("ul", "findings")[0]
    assert [item.text for item in findings.all("li")] == [
        "✗ fail Inner takes 90.0 µs per request, its budget is 40 µs: 50.0 µs too much (49.0 to 51.0)."
    ]


def test_each_quantity_over_its_budget_is_a_finding_then_what_is_undecided() -> None:
    over = {"busy_us": Judged(5.0, "fail"), "bytes": Judged(1024, "fail"), "retained": Judged(0, "fail")}
    result = replace(RESULT, layers=(replace(RESULT.layers[0], judged=over), RESULT.layers[1]))
    assert [item.text for item in page_of(result).all("ul", "findings")[0].all("li")] == [
        "✗ fail GZipMiddleware holds the event loop for 7.90 µs per request, its budget is 5 µs: 2.90 µs too much"
        " (2.50 to 3.20).",
        "✗ fail GZipMiddleware requests 2.0 KiB per request (2.0 KiB to 4.0 KiB), its budget is 1.0 KiB.",
        "✗ fail GZipMiddleware leaves behind 1 object per request, its budget is 0 objects.",
        "? undecided Mount is undecided: it is measured together.",
    ]


def test_a_budget_of_the_whole_request_is_a_finding_too() -> None:
    page = page_of(stacked(10, 90, 20, budgets={"total": Judged(100.0, "fail")}))
    assert page.all("ul", "findings")[0].text.startswith("✗ fail The whole request takes 120.0 µs per request")


def test_the_overview_names_each_request_with_its_worst_layer() -> None:
    over = LayerReport(GZIP, counts=GZIP_COUNTS, judged={"tasks": Judged(0, "fail"), "bytes": Judged(2000, "fail")})
    page = page_of(stacked(95, 90, 20, budget=40), stacked(95, 90, 20), replace(UNTIMED, layers=(over,)))
    assert page.all("title")[0].text == "mw-budget: 3 requests measured: 2 over budget, 1 without a budget"
    lines = page.all("table", "overview")[0].all("tbody")[0].all("tr")
    assert [line.all("td")[-1].text for line in lines] == [
        "Inner 90 µs, over budget",
        "Outer 95.0 µs",
        "GZipMiddleware 1 task, over budget",
    ]
    assert [line.all("td")[1].text for line in lines] == ["205.0", "205.0", ""]
    assert [line.all("a")[0].attributes["href"] for line in lines] == ["#m1", "#m2", "#m3"]


def test_types_tasks_threads_and_what_stays_are_listed_by_layer() -> None:
    page = page_of(RESULT)
    (made,) = [element for element in page.all("details") if element.text.startswith("GZipMiddleware")]
    assert made.all("summary")[0].text == "GZipMiddleware 5 objects of 2 types"
    assert [item.text for item in made.all("li")] == ["3 builtins.dict", "2 shop.Token only here"]
    left = [[cell.text for cell in row.all("td")] for row in page.all("table", "left")[0].all("tbody")[0].all("tr")]
    expected = [["1", "task", "shop.rest"], ["2", "call in a thread", "shop.work"]]
    assert left == [*expected, ["1", "object retained", "shop.Token"]]


def test_how_the_time_is_spent_is_said_in_words() -> None:
    texts = [item.text for item in page_of(RESULT).all("li")]
    assert any(text.startswith("GZipMiddleware blocks the event loop: busy 7.90 µs") for text in texts)
    assert "GZipMiddleware is suspended for 10.0 µs and holds the event loop for 7.90 µs." in texts
    occupation = replace(RESULT.layers[0].occupation, wait_us=0.0, blocking=False)  # type: ignore[type-var]
    calm = replace(RESULT, layers=(replace(RESULT.layers[0], occupation=occupation),))
    assert "No layer waits, and none blocks the event loop: all their time is work." in page_of(calm).text


def test_nothing_is_claimed_about_what_stays_where_it_cannot_be_counted() -> None:
    calm = stacked(10, 90, 20)
    assert "none left an object behind" in page_of(calm).text
    uncounted = replace(LEDGER, total=replace(LEDGER.total, retained=None), why={"retained": "no extension"})
    assert "none left an object behind" not in page_of(but(calm, ledger=uncounted)).text


def test_advice_profile_and_environment_are_there() -> None:
    page = read(page_with(everything()))
    (advice,) = advise(RESULT)
    assert page.all("ul", "advice")[0].text == f"{advice.text}. More: mwbudget explain blocking"
    hottest = next(table for table in page.all("table") if table.all("caption"))
    assert "GZipMiddleware" in hottest.all("caption")[0].text
    (row,) = hottest.all("tbody")[0].all("tr")
    assert [row.all("th")[0].text, *(cell.text for cell in row.all("td"))] == [
        "compress shop/zip.py:17",
        "12.5",
        "14.3",
    ]
    assert "was made 800 more times under a profiler, which took 3100 samples and slowed it to 912.3 µs" in page.text
    assert everything()["environment"]["python"] in page.text


def test_a_function_that_is_not_written_in_python_has_no_place() -> None:
    data = everything()
    built_in = {
        "function": "perf_counter",
        "file": "<built-in>",
        "line": 0,
        "own_us": 1.0,
        "total_us": 1.0,
        "own": False,
    }
    data["measurements"][0]["profile"] = PROFILE | {"hottest": {"0": [built_in]}}
    hottest = next(table for table in read(page_with(data)).all("table") if table.all("caption"))
    assert [cell.text for cell in hottest.all("tbody")[0].all("th")] == ["perf_counter"]


def test_links_to_profiles_are_as_the_caller_sees_them_and_quoted() -> None:
    data = everything()
    data["measurements"][0]["profile"] = PROFILE | {"flamegraph": "a b/#1 ?.html", "speedscope": "javascript:alert(1)"}
    page = read(page_with(data, lambda path: f"../{path}" if "b" in path else path))
    links = [link.attributes["href"] for link in page.all("p", "links")[0].all("a")]
    assert links == ["../a%20b/%231%20%3F.html", "profiles/one.pyinstrument.html", "javascript%3Aalert%281%29"]


def test_a_page_can_be_written_whatever_the_file_and_the_failure_of_a_run_contain() -> None:
    survey = SurveyRun(1.0, 60, 1, (RepeatedTest("test_it", "ValueError: \udcff"),))
    page = render(MeasuredRun(RUN, (("test_it", RESULT),), survey=survey, since=Since("\udcfe.json")))
    page.encode()
    assert "ValueError: \\udcff" in page
    assert "\\udcfe.json" in page


def test_a_run_that_is_compared_with_the_working_directory_has_its_changes() -> None:
    page = render(MeasuredRun(RUN, (("test_it", RESULT),), since=Since("")))
    assert "change" in [cell.text for cell in read(page).all("th")]


def test_a_run_that_measured_nothing_makes_a_page_that_says_so() -> None:
    page = page_of()
    assert page.all("title")[0].text == "mw-budget: No requests measured"
    assert "No request of a test was measured in this run." in page.text


def test_without_jinja2_the_caller_gets_the_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    _template.cache_clear()
    with pytest.raises(ImportError):
        render(one_run())


# ---- the picture -------------------------------------------------------------------------------------------------


def bars(page: Element) -> dict[str, Element]:
    return {row.all("span", "name")[0].text: row for row in page.all("li", "row")}


def test_a_box_is_inside_the_one_before_it_and_all_end_together() -> None:
    boxes = page_of(stacked(10, 90, 20)).all("svg", "nest")[0].all("rect")
    assert len(boxes) == 4  # (outside), two layers, (endpoint)
    lefts, tops = [box.number("x") for box in boxes], [box.number("y") for box in boxes]
    assert lefts == sorted(lefts)
    assert tops == [0, 25, 50, 75]
    for box in boxes:
        assert box.number("x") + box.number("width") == pytest.approx(lefts[0] + boxes[0].number("width"), abs=0.02)
        assert box.number("y") + box.number("height") == 100


def test_the_widths_are_the_shares_of_the_time() -> None:
    drawn_rows = bars(page_of(stacked(10, 90, 20)))
    own = {name: row.all("rect", "own")[0] for name, row in drawn_rows.items()}
    assert own["Inner"].number("width") == pytest.approx(9 * own["Outer"].number("width"), abs=0.1)
    assert own["(total)"].number("width") == pytest.approx(12 * own["Outer"].number("width"), abs=0.1)
    assert own["Inner"].number("x") == pytest.approx(own["Outer"].number("width"), abs=0.02)
    assert own["(endpoint)"].number("x") == pytest.approx(10 * own["Outer"].number("width"), abs=0.1)


def test_what_is_over_the_budget_begins_at_its_mark() -> None:
    inner = bars(page_of(stacked(10, 90, 20, budget=40)))["Inner"]
    own, over, mark = inner.all("rect", "own")[0], inner.all("rect", "over")[0], inner.all("svg", "budget")[0]
    assert over.number("x") == mark.number("x") == pytest.approx(own.number("x") + own.number("width"), abs=0.02)
    assert over.number("width") == pytest.approx(own.number("width") * 50 / 40, abs=0.02)
    assert inner.all("span", "value")[0].text == "90.0 µs 50.0 µs over, budget 40 µs"


def test_a_layer_within_its_budget_has_its_mark_and_nothing_over_it() -> None:
    inner = bars(page_of(stacked(10, 90, 20, budget=95)))["Inner"]
    own, mark = inner.all("rect", "own")[0], inner.all("svg", "budget")[0]
    assert mark.number("x") == pytest.approx(own.number("x") + own.number("width") * 95 / 90, abs=0.02)
    assert not inner.all("rect", "over")


def test_a_budget_far_above_everything_does_not_squeeze_the_picture() -> None:
    inner = bars(page_of(stacked(10, 90, 20, budget=9000)))["Inner"]
    assert inner.all("svg", "budget")[0].number("x") == 100
    assert inner.all("rect", "own")[0].number("width") > 70


def test_a_budget_a_little_above_everything_is_on_the_scale() -> None:
    inner = bars(page_of(stacked(10, 90, 20, budget=150)))["Inner"]
    own, mark = inner.all("rect", "own")[0], inner.all("svg", "budget")[0]
    assert mark.number("x") == pytest.approx(own.number("x") + own.number("width") * 150 / 90, abs=0.05)
    assert 90 < mark.number("x") < 100


def test_the_interval_stands_round_the_end_of_the_bar() -> None:
    inner = bars(page_of(stacked(10, 90, 20)))["Inner"]
    own, (span, *_) = inner.all("rect", "own")[0], inner.all("g", "interval")[0].all("line")
    microsecond, end = own.number("width") / 90, own.number("x") + own.number("width")
    assert span.number("x1") == pytest.approx(end - microsecond, abs=0.02)
    assert span.number("x2") == pytest.approx(end + microsecond, abs=0.02)


@pytest.mark.parametrize("whole", [0.4, 9.0, 120.0, 98765.0])
def test_the_scale_has_a_few_round_numbers_within_the_picture(whole: float) -> None:
    axis = page_of(stacked(whole / 12, whole * 9 / 12, whole / 6)).all("svg", "axis")[0].all("text")
    assert 2 <= len(axis) <= 8
    assert all(0 <= tick.number("x") <= 100 for tick in axis)
    (step,) = {round(float(next_tick.text) - float(tick.text), 6) for tick, next_tick in pairwise(axis)}
    assert round(step / 10 ** math.floor(math.log10(step)), 6) in (1, 2, 5)


# ---- no text of an app becomes markup ----------------------------------------------------------------------------

HOSTILE = (
    "</script><script>hacked=1</script>",
    "\"><img src=x onerror='hacked=1'>",
    "' onmouseover='hacked=1' x='",
    "</style><style>*{display:none}</style>",
    "</title></textarea>--><svg onload=hacked=1>",
    "{{ 7 * 7 }}{% include 'x' %}",
    "javascript:hacked=1",
    "&lt;b&gt;\u2028\u2029\u202e\x00<!--",
)
# The values of these keys are the package's own.
CHOSEN = {"schema", "created", "verdict", "total_verdict", "kind", "method", "budget_place"}


def spoiled(data: Any, spoil: Callable[[str], str], key: str = "") -> Any:
    """Return the document with `spoil` applied to every text that an app or a machine can choose."""
    if isinstance(data, dict):
        open_keys = key in ("types", "names", "packages")
        return {spoil(k) if open_keys else k: spoiled(value, spoil, k) for k, value in data.items()}
    if isinstance(data, list):
        return [spoiled(item, spoil, key) for item in data]
    return spoil(data) if isinstance(data, str) and key not in CHOSEN else data


def skeleton(page: Element) -> list[tuple[str, dict[str, str]]]:
    """Return the tag and attributes of every element; attributes that carry text have no value.

    Without `wbr`, which stands between the words of a name and must have no attributes.
    """
    carriers = ("title", "data-value", "href")
    return [
        (element.tag, {name: "" if name in carriers else value for name, value in element.attributes.items()})
        for element in page
        if element.tag != "wbr" or element.attributes
    ]


def page_beginning(text: str) -> Element:
    """Return the page of a document in which everything that can be chosen begins with this text."""
    return read(page_with(spoiled(everything(), lambda own: f"{text}{own}")))


@pytest.fixture(scope="module")
def tame_skeleton() -> list[tuple[str, dict[str, str]]]:
    return skeleton(page_beginning("tame"))


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_adds_no_element_and_no_attribute_and_no_link_leads_to_a_script(
    text: str, tame_skeleton: list[tuple[str, dict[str, str]]]
) -> None:
    page = page_beginning(text)
    assert skeleton(page) == tame_skeleton
    seen = " ".join(text.replace("\x00", "\ufffd").split())
    assert any(seen in " ".join(element.text.replace("\x00", "\ufffd").split()) for element in page.all("span", "name"))
    assert all(re.match(r"#|[\w%.-]+(/|$)", link.attributes["href"]) for link in page.all("a"))


# ---- a single safe and accessible file ---------------------------------------------------------------------------


def test_the_page_asks_for_nothing() -> None:
    html = page_with(everything())
    page = read(html)
    assert not any(element.attributes.keys() & {"src", "srcset", "style", "background"} for element in page)
    assert not [element.tag for element in page if element.tag in ("link", "img", "iframe", "object", "base", "form")]
    assert not re.search(r"url\(|@import|https?:", html)
    assert not any(name.startswith("on") for element in page for name in element.attributes)


def test_only_the_packages_own_style_and_script_may_run() -> None:
    html = page_with(everything())
    page = read(html)
    (policy,) = [
        meta.attributes["content"]
        for meta in page.all("meta")
        if meta.attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    for tag in ("style", "script"):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy


def test_the_style_has_both_themes_and_a_page_for_print_and_for_phones() -> None:
    (style,) = page_of(RESULT).all("style")
    assert "color-scheme: light dark" in style.text
    for theme in ("light", "dark"):
        assert f':root[data-theme="{theme}"] {{ color-scheme: {theme}; }}' in style.text
    assert "@media print" in style.text
    assert "prefers-reduced-motion" in style.text


def test_the_page_says_what_its_parts_are() -> None:
    page = read(page_with(everything()))
    assert page.all("html")[0].attributes["lang"] == "en"
    assert len(page.all("main")) == len(page.all("h1")) == 1
    levels = [int(element.tag[1]) for element in page if re.fullmatch(r"h\d", element.tag)]
    assert all(deeper <= above + 1 for above, deeper in pairwise(levels))
    ids = [element.attributes["id"] for element in page if "id" in element.attributes]
    assert len(ids) == len(set(ids))
    referred = [
        element.attributes[name] for element in page for name in ("aria-labelledby",) if name in element.attributes
    ]
    referred += [link.attributes["href"][1:] for link in page.all("a") if link.attributes["href"].startswith("#")]
    assert set(referred) <= set(ids)
    for table in page.all("table"):
        assert all(head.attributes.get("scope") in ("col", "row") for head in table.all("th"))
    for svg in page.all("svg"):
        assert "aria-hidden" in svg.attributes or "budget" in svg.classes  # The text next to the SVG says the same.
