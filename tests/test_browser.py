"""The HTML report in a real browser.

Each test with `page` also checks that the page makes no requests and logs no warnings or errors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.comparison.figures import figures_of
from pytest_mwbudget.comparison.history import history_run
from pytest_mwbudget.comparison.surroundings import Comparable
from pytest_mwbudget.comparison.two_runs import changes
from pytest_mwbudget.model.changes import Since
from pytest_mwbudget.model.results import RequestLine
from pytest_mwbudget.report.html import render
from pytest_mwbudget.storage import codec

from .browser import DESKTOP, PHONE, Browser
from .canned import one_run
from .test_comparison import RUN, layer, result
from .test_report_html import HOSTILE, everything, page_with, spoiled, stacked
from .test_report_survey import DATA as SURVEY

pytestmark = pytest.mark.browser

Opener = Callable[..., Browser]

PAPER = (718, 1000)  # A4 without margins

# JavaScript that returns the lowest contrast ratio of a text to its background, and the element with this text.
CONTRAST = """
const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
const luminance = ([r, g, b]) => 0.2126 * channel(r / 255) + 0.7152 * channel(g / 255) + 0.0722 * channel(b / 255);
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const behind = (element) => {
  for (let one = element; one; one = one.parentElement) {
    const color = parse(getComputedStyle(one).backgroundColor);
    if (color.length === 3 || color[3] === 1) return color;
  }
  return [255, 255, 255];
};
let worst = [99, ""];
for (const element of document.querySelectorAll("body *")) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  if (!own || !element.getClientRects().length || element.closest("script")) continue;
  const style = getComputedStyle(element);
  const color = element.closest("svg") ? style.fill : style.color;
  const [one, other] = [luminance(parse(color)), luminance(behind(element))];
  const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
  if (ratio < worst[0]) worst = [ratio, element.outerHTML.slice(0, 200)];
}
return worst;
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with each kind of result."""
    data = everything()
    data["measurements"].append(codec.measurement("test_shop.py::test_over", stacked(10, 90, 20, budget=40)))
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page_with(data), encoding="utf-8")
    return path


def layers(page: Browser, table: str = "#m1-time + .scroll") -> list[str]:
    """List the first column of a table, in the displayed order."""
    return page.texts(f"{table} tbody th span.name")


# ---- the browser itself ------------------------------------------------------------------------------------------


def test_the_browser_notices_requests_and_errors(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><img src='http://example.org/a.png'><script>x.y()</script>")
    browser.open(path)
    assert browser.requests() == ["http://example.org/a.png"]
    assert any("x is not defined" in complaint for complaint in browser.complaints())
    path.write_text("<!doctype html><p>quiet<script>var a = 1</script>")
    browser.open(path)
    assert (browser.requests(), browser.complaints()) == ([], [])


def test_the_browser_has_no_network(browser: Browser, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    path.write_text("<!doctype html><p>a page without a policy")
    browser.open(path)
    for url in ("http://127.0.0.1:1/", "http://localhost:1/", "http://example.org/"):
        went = "return fetch(arguments[0], {mode: 'no-cors'}).then(() => 'answered', () => 'failed')"
        assert browser.run(went, url) == "failed"
    assert any("ERR_PROXY_CONNECTION_FAILED" in complaint for complaint in browser.complaints())


# ---- the report --------------------------------------------------------------------------------------------------


def test_the_report_opens_from_disk(page: Opener, report: Path) -> None:
    opened = page(report)
    assert opened.driver.title == "mw-budget: 6 requests measured: 2 over budget, 4 undecided"
    assert opened.one("#m1").is_displayed()
    assert opened.run("return location.protocol") == "file:"


def test_a_request_is_reached_from_the_overview(page: Opener, report: Path) -> None:
    opened = page(report)
    opened.one('.overview a[href="#m6"]').click()
    assert opened.run("return location.hash") == "#m6"
    assert 0 <= opened.run("return document.getElementById('m6').getBoundingClientRect().top") < DESKTOP[1] / 2


def test_a_click_on_a_heading_sorts_and_the_third_one_restores_the_stack(page: Opener, report: Path) -> None:
    opened = page(report)
    stack = layers(opened)
    assert stack == ["(outside)", "GZipMiddleware", "Mount", "Auth#2", "(endpoint)"]
    heading = opened.all("#m1-time + .scroll thead th")[1]
    button = heading.find_element("css selector", "button")
    button.click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert layers(opened) == ["(endpoint)", "GZipMiddleware", "(outside)", "Mount", "Auth#2"]
    button.click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert layers(opened) == ["(outside)", "GZipMiddleware", "(endpoint)", "Mount", "Auth#2"]
    assert opened.texts("#m1-time + .scroll tfoot th") == ["(total)"]
    button.click()
    assert heading.get_attribute("aria-sort") is None
    assert layers(opened) == stack


def test_another_heading_takes_the_sorting_over(page: Opener, report: Path) -> None:
    opened = page(report)
    of_time, of_name = (opened.all("#m1-time + .scroll thead button")[number] for number in (1, 0))
    of_time.click()
    of_name.click()
    assert len(opened.all("#m1 [aria-sort]")) == 1
    assert layers(opened) == sorted(layers(opened), key=str.casefold)


def test_the_keyboard_sorts(page: Opener, report: Path) -> None:
    from selenium.webdriver import Keys

    opened = page(report)
    opened.run("document.querySelector('#m1-time + .scroll thead button').focus()")
    opened.press(Keys.TAB)
    assert opened.driver.switch_to.active_element.text.startswith("µs")
    for key, first in ((Keys.ENTER, "(endpoint)"), (Keys.SPACE, "(outside)")):
        opened.press(key)
        assert layers(opened)[0] == first


def test_the_focus_can_be_seen_and_the_first_stop_skips_to_the_content(page: Opener, report: Path) -> None:
    from selenium.webdriver import Keys

    opened = page(report)
    opened.press(Keys.TAB)
    assert opened.driver.switch_to.active_element.text == "Skip to the content"
    assert opened.one(".skip").rect["x"] >= 0
    opened.press(Keys.TAB)
    assert opened.driver.switch_to.active_element.get_attribute("id") == "theme"
    assert opened.style("#theme", "outline-style") == "solid"
    assert opened.style("#theme", "outline-width") == "2px"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_and_the_button_switches(page: Opener, report: Path, scheme: str) -> None:
    opened = page(report, scheme=scheme)
    other = "dark" if scheme == "light" else "light"

    def colours() -> list[str]:
        return [opened.style("body", "background-color"), opened.style("h1", "color")]

    before = colours()
    assert (sum(map(int, before[0][5:-1].split(",")[:3])) > 380) == (scheme == "light")
    assert opened.one("#theme").text.lower() == f"{other} theme"
    opened.one("#theme").click()
    after = colours()
    assert all(one != two for one, two in zip(before, after, strict=True))
    assert opened.one("#theme").text.lower() == f"{scheme} theme"
    opened.one("#theme").click()
    assert colours() == before
    assert page(report, scheme=other) is opened
    assert colours() == after  # a reload forgets the button and follows the system


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_every_text_stands_out_from_what_is_behind_it(
    page: Opener, report: Path, scheme: str, size: tuple[int, int]
) -> None:
    opened = page(report, scheme=scheme, size=size)
    opened.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    ratio, where = opened.run(CONTRAST)
    assert ratio >= 4.5, where


@pytest.mark.parametrize("width", [360, 700, 1000])
def test_nothing_is_wider_than_the_window(page: Opener, report: Path, width: int) -> None:
    opened = page(report, size=(width, 740))
    opened.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert opened.overflow() <= 0


def test_long_names_are_no_wider_than_a_phone(page: Opener, tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_with(spoiled(everything(), lambda own: own + "x" * 300)), encoding="utf-8")
    opened = page(path, size=PHONE)
    opened.run("document.querySelectorAll('details').forEach((one) => (one.open = true))")
    assert opened.overflow() <= 0


BOXES = """
return [...document.querySelectorAll("#m6 .nest rect")].map((one) => {
  const { left, right, top, bottom } = one.getBoundingClientRect();
  return [left, right, top, bottom];
});
"""


@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_the_picture_shows_boxes_within_boxes_and_red_above_the_budget(
    page: Opener, report: Path, size: tuple[int, int]
) -> None:
    opened = page(report, size=size)
    boxes: list[list[float]] = opened.run(BOXES)
    for (left, right, top, bottom), inner in pairwise(boxes):
        assert inner[0] >= left
        assert inner[1] <= right + 0.5
        assert top < inner[2]
        assert inner[3] <= bottom + 0.5
    own, over = (opened.one(f"#m6 .row.fail .{kind}").rect for kind in ("own", "over"))
    assert over["x"] == pytest.approx(own["x"] + own["width"], abs=1)
    assert over["width"] == pytest.approx(own["width"] * 50 / 40, abs=1)
    red, green, blue = map(int, opened.style("#m6 .row.fail .over", "fill")[4:-1].split(","))
    assert red > 2 * max(green, blue)
    row, box = opened.one("#m6 .row.fail").rect, boxes[2]
    assert row["y"] == pytest.approx(box[2] + opened.run("return scrollY"), abs=1)  # each box starts at its row


def test_types_unfold(page: Opener, report: Path) -> None:
    opened = page(report)
    types = opened.all("#m1 details")[0]
    inside = types.find_element("css selector", "li")
    assert not inside.is_displayed()
    types.find_element("css selector", "summary").click()
    assert inside.is_displayed()


def test_print_is_light_and_unfolds_everything(page: Opener, report: Path) -> None:
    opened = page(report, scheme="dark", media="print", size=PAPER)
    assert opened.style("body", "background-color") == "rgba(255, 255, 255, 1)"
    assert not opened.one("#theme").is_displayed()
    opened.run("dispatchEvent(new Event('beforeprint'))")
    assert not opened.all("details:not([open])")
    opened.run("dispatchEvent(new Event('afterprint'))")
    assert not opened.all("details[open]")
    assert opened.overflow() <= 0  # tables that scroll on screen fit on paper
    ratio, where = opened.run(CONTRAST)
    assert ratio >= 4.5, where


def test_what_has_a_role_has_a_name(page: Opener, report: Path) -> None:
    opened = page(report)
    tree = opened.cdp("Accessibility.getFullAXTree")["nodes"]
    shown = [node for node in tree if not node["ignored"]]
    named = {"button", "link", "heading", "columnheader", "rowheader", "region", "figure"}
    roles: dict[str, list[dict[str, Any]]] = {}
    for node in shown:
        roles.setdefault(node["role"]["value"], []).append(node)
    assert {"main", "banner", "table", *named} <= roles.keys()
    nameless = [node for role in named for node in roles[role] if not node.get("name", {}).get("value", "").strip()]
    assert nameless == []


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_name_runs_no_script(page: Opener, tmp_path: Path, text: str) -> None:
    path = tmp_path / "report.html"
    path.write_text(page_with(spoiled(everything(), lambda own: f"{text}{own}")), encoding="utf-8")
    opened = page(path)
    opened.all("#m1-time + .scroll thead button")[0].click()
    opened.hover(opened.all("#m1 .row .name")[1])
    assert opened.run("return typeof hacked") == "undefined"
    assert opened.one("#m1").is_displayed()
    shown = opened.run("return document.querySelector('#m1-title .name').textContent")
    assert text.replace("\x00", "").strip() in shown.replace("\ufffd", "")


def test_what_got_in_all_the_same_could_neither_run_nor_ask_for_anything(browser: Browser, tmp_path: Path) -> None:
    """Replace an escaped name with markup: the content security policy must block the markup."""
    html = render(one_run(replace(stacked(1, 2, 3), status=200), nodeid="NODE"))
    bad = "<script>hacked=1</script><img src='http://example.org/a.png' onerror='hacked=1'>"
    path = tmp_path / "report.html"
    path.write_text(html.replace("NODE", bad), encoding="utf-8")
    browser.open(path)
    assert browser.run("return typeof hacked") == "undefined"
    assert sum("Content Security Policy" in complaint for complaint in browser.complaints()) >= 2
    assert browser.run("return document.querySelector('img').naturalWidth") == 0


# ---- layers and routes -------------------------------------------------------------------------------------------


@pytest.fixture
def surveyed(tmp_path: Path) -> Path:
    """A report of a survey."""
    path = tmp_path / "survey.html"
    path.write_text(render(SURVEY), encoding="utf-8")
    return path


def test_a_route_sorts_the_layers_and_the_total_stays_below(page: Opener, surveyed: Path) -> None:
    opened = page(surveyed)
    before = layers(opened, "table.matrix")
    opened.all("table.matrix thead button")[1].click()
    assert layers(opened, "table.matrix") == sorted(before, key=["Auth", "(endpoint)", "GZip", "(outside)"].index)
    assert opened.texts("table.matrix tfoot th") == ["(total)"]
    assert opened.style("table.matrix tbody tr:first-child td:nth-child(2)", "font-weight") == "600"
    opened.all("table.classes thead button")[3].click()
    assert layers(opened, "table.classes") == ["Auth", "GZip"]


def test_on_a_phone_the_tables_of_a_survey_scroll_in_their_boxes_beside_the_names(page: Opener, surveyed: Path) -> None:
    opened = page(surveyed, size=(200, 740))
    assert opened.overflow() <= 0
    box = "document.querySelector('table.matrix').parentElement"
    assert opened.run(f"{box}.scrollLeft = 999; return {box}.scrollLeft") > 0
    at = opened.run("return document.querySelector('table.matrix tbody th').getBoundingClientRect().left")
    assert 0 <= at < 200 / 4


@pytest.mark.parametrize("size", [DESKTOP, (768, 1000), PHONE])
def test_names_break_between_their_words_and_seven_routes_fit_a_screen(
    page: Opener, tmp_path: Path, size: tuple[int, int]
) -> None:
    names = ("PrometheusInstrumentatorMiddleware", "ExceptionTelemetryMiddleware")
    route = result(*(layer(name, 5.0) for name in names))
    routes = [replace(route, request=RequestLine("GET", f"/orders/{i}")) for i in range(7)]
    path = tmp_path / "matrix.html"
    path.write_text(render(one_run(*routes, nodeid="test_it")), encoding="utf-8")
    opened = page(path, size=size)
    assert opened.overflow() <= 0
    lines = "new Set([...one.getClientRects()].map((part) => Math.round(part.top))).size"
    names_of = "[...document.querySelectorAll('table.matrix tbody th span.name')]"
    assert max(opened.run(f"return {names_of}.map((one) => {lines})")) <= 3  # no more lines than words
    if size == DESKTOP:
        box = "document.querySelector('table.matrix').parentElement"
        assert opened.run(f"return {box}.scrollWidth - {box}.clientWidth") <= 0


# ---- comparison and history --------------------------------------------------------------------------------------


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """A report of a run that was compared with another one, with a history of three runs."""
    before, after = (result(layer("Auth", us), layer("Cors", 8.0)) for us in (50.0, 90.0))
    runs = [history_run(RUN, [("test_it", measured)]) for measured in (before, before, after)]
    changed = replace(after, changes=changes(figures_of(before), figures_of(after), Comparable()))
    since = Since("main", grown=("Auth grew",), differences=("starlette 1 → 2",))
    path = tmp_path / "compared.html"
    path.write_text(render(one_run(changed, nodeid="test_it", since=since), history=runs), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE])
def test_changes_and_charts_can_be_read(page: Opener, compared: Path, scheme: str, size: tuple[int, int]) -> None:
    opened = page(compared, scheme=scheme, size=size)
    ratio, where = opened.run(CONTRAST)
    assert ratio >= 4.5, where
    assert opened.overflow() <= 0
    assert "+40.0 slower" in " ".join(opened.texts("#m1-time + .scroll td"))
    (auth,) = [text for text in opened.texts(".past li") if text.startswith("Auth µs")]
    assert "+40.0 slower" in auth
    widths = opened.run(
        "return [...document.querySelectorAll('.chart')].map((one) => one.getBoundingClientRect().width)"
    )
    assert min(widths) > 150
    assert opened.run("return document.querySelectorAll('.chart circle.worse').length") == 2  # us, busy_us
