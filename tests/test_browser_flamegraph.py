"""The flamegraph in a real browser: drawing, navigation, and names that look like scripts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from .browser import PHONE, Browser

pytestmark = pytest.mark.browser

Node: TypeAlias = dict[str, Any]
Open: TypeAlias = Callable[..., Browser]

TEMPLATE = files("pytest_mwbudget.report").joinpath("flamegraph.html").read_text(encoding="utf-8")
PLACEHOLDER = "/*DATA*/null"
ENTER, ESCAPE, TAB, SHIFT = "\ue007", "\ue00c", "\ue004", "\ue008"
LEFT, UP, RIGHT, DOWN = "\ue012", "\ue013", "\ue014", "\ue015"


# ---- profiles ---------------------------------------------------------------------------------------------------


def node(name: str, us: float, *children: Node, kind: str = "function", layer: int | None = None) -> Node:
    """Make a frame that takes `us` with its children, which get its layer unless they are blocks."""
    for child in children:
        if child["kind"] == "function":
            _put_into(child, layer)
    own = us - sum(child["us"] for child in children)
    function = kind == "function"
    return {
        "name": name,
        "file": f"shop/{name}.py" if function else None,
        "line": 7 if function else None,
        "layer": layer,
        "kind": kind,
        "us": us,
        "own_us": own,
        "children": list(children),
    }


def _put_into(function: Node, layer: int | None) -> None:
    function["layer"] = layer
    for child in function["children"]:
        _put_into(child, layer)


def block(name: str, layer: int, us: float, *children: Node) -> Node:
    return node(name, us, *children, kind="layer", layer=layer)


def profile(endpoint_us: float = 50.0, suspects: tuple[int, ...] = (1,), **rest: Any) -> dict[str, Any]:
    """Build a profile of three layers: Outer, Auth with a hot recursive function, and Inner above the endpoint."""
    work = node("answer", endpoint_us, node("serialise", endpoint_us * 0.6))
    inner = block("Inner", 2, endpoint_us + 10, node("inner_work", 10), block("(endpoint)", -1, endpoint_us, work))
    hot = node("hot", 100, node("hot", 30, node("helper", 20)), node("check_key", 10))
    auth = block("Auth", 1, inner["us"] + 120, hot, inner, node("cold", 20))
    outer = block("Outer", 0, auth["us"] + 10, node("outer_work", 10), auth)
    outside = node("(outside)", 10, kind="outside", layer=-1)
    layers = [
        {
            "index": index,
            "name": name,
            "us": us,
            "budget_us": 50.0 if index == 1 else None,
            "suspect": index in suspects,
        }
        for index, (name, us) in enumerate([("Outer", 9.5), ("Auth", 110.0), ("Inner", None)])
    ]
    return {
        "title": "GET /items/1",
        "nodeid": "tests/test_shop.py::test_items",
        "requests": 312,
        "samples": 5123,
        "request_us": 205.0,
        "plain_us": 180.1,
        "layers": layers,
        "root": node("GET /items/1", outer["us"] + 10, outside, outer, kind="root"),
        **rest,
    }


def written(tmp_path: Path, data: dict[str, Any]) -> Path:
    text = json.dumps(data)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    path = tmp_path / "flamegraph.html"
    path.write_text(TEMPLATE.replace(PLACEHOLDER, text), encoding="utf-8")
    return path


@pytest.fixture
def opened(page: Open, tmp_path: Path) -> Callable[..., Browser]:
    """A function that opens the page of a profile, which may make no requests and log no warnings or errors."""

    def open_(data: dict[str, Any] | None = None, **how: Any) -> Browser:
        return page(written(tmp_path, data or profile()), **how)

    return open_


def names(browser: Browser, selector: str = ".frame") -> list[str]:
    return [str(frame.get_attribute("data-name")) for frame in browser.all(selector)]


def width(browser: Browser, name: str) -> float:
    """Return the width of the first frame of this name, as a share of the graph's width."""
    share = browser.run(
        "const graph = document.getElementById('graph');"
        "const frame = [...graph.children].find((one) => one.dataset.name === arguments[0]);"
        "return frame.getBoundingClientRect().width / graph.getBoundingClientRect().width",
        name,
    )
    return float(share)


def click(browser: Browser, name: str, part: str = "") -> None:
    """Click the only frame of this name, or a part of it."""
    frame = browser.one(f'.frame[data-name="{name}"] {part}'.strip())
    browser.run("arguments[0].scrollIntoView({ block: 'center' })", frame)
    frame.click()


def search(browser: Browser, text: str) -> str:
    browser.one("#search").clear()
    browser.one("#search").send_keys(text)
    return found(browser)


def found(browser: Browser) -> str:
    return browser.texts("#found")[0]


def focused(browser: Browser) -> str:
    return str(browser.run("return document.activeElement.dataset.name ?? ''"))


# ---- the file ---------------------------------------------------------------------------------------------------


def test_the_template_has_one_place_for_data_and_no_address() -> None:
    assert TEMPLATE.count(PLACEHOLDER) == 1
    assert f'<script type="application/json" id="data">{PLACEHOLDER}</script>' in TEMPLATE
    assert re.findall(r"https?:|//[a-z]+\.", TEMPLATE) == []
    assert "innerHTML" not in TEMPLATE


def test_the_policy_allows_the_script_that_is_there() -> None:
    scripts = re.findall(r"<script>(.*?)</script>", TEMPLATE, re.DOTALL)
    assert len(scripts) == 1
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in TEMPLATE


# ---- what is drawn ----------------------------------------------------------------------------------------------


def test_it_opens_on_the_layer_over_budget_with_what_is_inside_folded(opened: Open) -> None:
    browser = opened()
    assert browser.driver.title == "GET /items/1 – flamegraph"
    assert browser.texts("h1") == ["GET /items/1"]
    assert browser.texts("#over p") == ["Auth is over budget: 110.0 µs, budget 50 µs"]
    assert "5,123 samples in 312 requests" in browser.texts("#facts")[0]
    drawn = ["GET /items/1", "Outer", "Auth", "hot", "hot", "helper", "check_key", "cold", "Inner"]
    assert names(browser) == drawn
    assert names(browser, ".suspect.frame") == drawn[2:-1]
    assert names(browser, ".folded") == ["Inner"]
    assert browser.one(".folded").text.startswith("▸Inner and 1 inside")
    assert [round(width(browser, name), 2) for name in drawn[:3]] == [1, 1, 1]


def test_a_folded_block_is_cut_where_it_would_squeeze_the_rest(opened: Open) -> None:
    browser = opened(profile(endpoint_us=5000))
    assert names(browser, ".cut") == ["Inner"]
    assert width(browser, "hot") == pytest.approx(100 / 144, abs=0.01)
    assert width(browser, "Inner") == pytest.approx(24 / 144, abs=0.01)
    assert "folded, not to scale" in str(browser.one(".cut").get_attribute("aria-label"))


def test_a_folded_block_that_is_short_is_to_scale(opened: Open) -> None:
    browser = opened(profile(endpoint_us=5))
    assert names(browser, ".cut") == []
    assert width(browser, "Inner") == pytest.approx(15 / 135, abs=0.01)


def test_where_nothing_is_over_budget_all_is_open_and_width_is_time(opened: Open) -> None:
    browser = opened(profile(suspects=()))
    assert not browser.one("#over").is_displayed()
    assert browser.all(".folded, .suspect") == []
    for name, us in [("Outer", 190), ("Auth", 180), ("hot", 100), ("cold", 20), ("(endpoint)", 50), ("serialise", 30)]:
        assert width(browser, name) == pytest.approx(us / 200, abs=0.003)


def test_two_layers_over_budget_are_both_open_and_differ(opened: Open) -> None:
    browser = opened(profile(suspects=(1, 2)))
    assert names(browser, ".folded") == ["(endpoint)"]
    colours = {frame.value_of_css_property("background-color") for frame in browser.all(".frame.suspect.block")}
    assert len(colours) == 2


def test_frames_say_what_they_are(opened: Open) -> None:
    hot = opened().all('[data-name="hot"]')[0]
    assert [hot.get_attribute(f"data-{key}") for key in ("us", "own", "layer", "kind")] == [
        "100",
        "60",
        "1",
        "function",
    ]
    assert hot.get_attribute("aria-level") == "4"
    assert hot.get_attribute("aria-label") == (
        "hot, shop/hot.py:7, 100.0 µs with callees, 60.0 µs itself, 50.0 % of the request, 83.3 % of Auth, over budget"
    )


def test_what_is_narrower_than_a_pixel_is_not_drawn_until_it_is_zoomed_into(opened: Open) -> None:
    many = [node(f"parent_{i}", 0.5, *[node(f"leaf_{i}_{j}", 0.05) for j in range(10)]) for i in range(450)]
    root = node("GET /", 225, block("Wide", 0, 225, *many), kind="root")
    layers = [{"index": 0, "name": "Wide", "us": 200.0, "budget_us": None, "suspect": False}]
    browser = opened(profile(root=root, layers=layers))
    assert len(browser.all(".frame")) == 452
    browser.all('[data-name="parent_449"]')[0].click()
    assert len(browser.all(".frame")) == 13


def test_a_profile_without_a_sample_opens(opened: Open) -> None:
    browser = opened(profile(root=node("GET /", 0, kind="root"), samples=0, plain_us=None))
    assert names(browser) == ["GET /"]
    assert browser.all("tbody tr") == []
    assert all(button.get_property("disabled") for button in browser.all("#legend button"))


# ---- navigation -------------------------------------------------------------------------------------------------


def test_a_click_zooms_and_escape_shows_the_whole_request(opened: Open) -> None:
    browser = opened()
    click(browser, "cold")
    assert width(browser, "cold") == pytest.approx(1, abs=0.01)
    assert names(browser) == ["GET /items/1", "Outer", "Auth", "cold"]
    click(browser, "Auth")
    assert "hot" in names(browser)
    browser.press(ESCAPE)
    assert width(browser, "Auth") < 0.95
    assert "(outside)" in names(browser)
    assert browser.one("#reset").get_attribute("aria-disabled") == "true"


def test_the_button_shows_the_whole_request_too(opened: Open) -> None:
    browser = opened()
    assert browser.one("#reset").get_attribute("aria-disabled") == "false"
    browser.one("#reset").click()
    assert "(outside)" in names(browser)
    assert browser.run("return document.activeElement.id") == "reset"


def test_a_folded_block_opens_and_folds(opened: Open) -> None:
    browser = opened()
    click(browser, "Inner")
    assert {"inner_work", "(endpoint)"} <= set(names(browser))
    assert width(browser, "Inner") == pytest.approx(36 / 156, abs=0.01)  # the endpoint is still folded, and cut
    click(browser, "(endpoint)")
    assert width(browser, "serialise") == pytest.approx(30 / 180, abs=0.01)
    click(browser, "Inner", ".marker")
    assert names(browser, ".folded") == ["Inner"]


def test_all_blocks_open_and_fold_at_once(opened: Open) -> None:
    browser = opened()
    browser.one("#open").click()
    assert browser.all(".folded") == []
    assert "serialise" in names(browser)
    click(browser, "serialise")
    browser.one("#fold").click()
    assert names(browser, ".folded") == ["Inner"]
    assert "serialise" not in names(browser)


def test_hovering_tells_what_a_frame_takes(opened: Open) -> None:
    browser = opened()
    browser.hover(browser.one('[data-name="check_key"]'))
    assert browser.texts("#about .what") == ["check_key"]
    assert browser.texts("#about .quiet")[0] == "shop/check_key.py:7"
    figures = dict(zip(browser.texts("#about dt"), browser.texts("#about dd"), strict=True))
    assert figures == {
        "with callees": "10.0 µs",
        "itself": "10.0 µs",
        "of the request": "5.0 %",
        "of Auth": "8.3 %",
    }
    browser.hover(browser.one(".frame.block.suspect"))
    figures = dict(zip(browser.texts("#about dt"), browser.texts("#about dd"), strict=True))
    assert figures == {"with callees": "180.0 µs", "without the layers inside": "120.0 µs", "of the request": "90.0 %"}


def test_the_legend_tells_the_layers_and_zooms_to_them(opened: Open) -> None:
    browser = opened()
    assert browser.texts("#legend li") == [
        "Outer9.50 µs",
        "Auth110.0 µsbudget 50over",
        "Inner",
        "(outside)",
        "(endpoint)",
    ]
    browser.all("#legend button")[2].click()
    assert width(browser, "Inner") == pytest.approx(1, abs=0.01)
    assert "inner_work" in names(browser)


def test_the_keyboard_is_enough(opened: Open) -> None:
    browser = opened()
    assert len(browser.all('.frame[tabindex="0"]')) == 1
    browser.one("#reset").click()
    browser.press(TAB)
    assert focused(browser) == "GET /items/1"
    walk = [(DOWN, "Outer"), (DOWN, "outer_work"), (RIGHT, "Auth"), (DOWN, "hot"), (RIGHT, "cold"), (RIGHT, "Inner")]
    walk += [(RIGHT, "Inner"), (LEFT, "cold"), (UP, "Auth"), (UP, "Outer"), (RIGHT, "(outside)")]
    for key, name in walk:
        browser.press(key)
        assert focused(browser) == name
        assert len(browser.all('.frame[tabindex="0"]')) == 1
    assert browser.texts("#about .what") == ["(outside)"]
    assert browser.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"


def test_enter_zooms_and_opens_space_folds_and_the_focus_stays(opened: Open) -> None:
    browser = opened()
    browser.one("#reset").click()
    browser.press(TAB, DOWN, DOWN, RIGHT, ENTER)
    assert focused(browser) == "Auth"
    assert width(browser, "Auth") == pytest.approx(1, abs=0.01)
    browser.press(DOWN, RIGHT, RIGHT, ENTER)
    assert focused(browser) == "Inner"
    assert "inner_work" in names(browser)
    assert browser.run("return document.activeElement.getAttribute('aria-expanded')") == "true"
    browser.press(" ")
    assert focused(browser) == "Inner"
    assert browser.run("return document.activeElement.getAttribute('aria-expanded')") == "false"
    assert "inner_work" not in names(browser)
    browser.press(" ")
    assert "inner_work" in names(browser)


# ---- search -----------------------------------------------------------------------------------------------------


def test_search_finds_frames_and_adds_them_up_without_counting_one_inside_another(opened: Open) -> None:
    browser = opened()
    assert search(browser, "HOT") == "2 frames, 100.0 µs per request, 50.0 %"
    assert names(browser, ".match") == ["hot", "hot"]
    assert search(browser, "shop/c") == "2 frames, 30.0 µs per request, 15.0 %"
    assert search(browser, "check_key.py:7") == "1 frame, 10.0 µs per request, 5.0 %"
    assert search(browser, "no such thing") == "no frame"
    assert browser.one("#next").get_property("disabled")
    browser.press(ESCAPE)
    assert found(browser) == ""
    assert browser.all(".match, .searching") == []


def test_enter_goes_from_match_to_match_also_into_what_is_folded(opened: Open) -> None:
    browser = opened()
    assert search(browser, "er") == "7 frames, 190.0 µs per request, 95.0 %"  # Outer and everything inside
    assert names(browser, ".holds") == ["Inner"]
    for at, name in enumerate(["Outer", "Inner", "answer", "serialise", "helper", "outer_work", "inner_work"], 1):
        browser.press(ENTER)
        assert names(browser, ".current") == [name], at
        assert browser.texts("#about .what") == [name]
    assert found(browser).startswith("7 of 7 frames")
    browser.press(ENTER)
    assert names(browser, ".current") == ["Outer"]
    browser.one("#previous").click()
    assert names(browser, ".current") == ["inner_work"]


def test_a_match_that_is_too_narrow_to_be_seen_is_zoomed_to(opened: Open) -> None:
    tiny = node("needle", 0.01)
    root = node("GET /", 5000, block("Wide", 0, 5000, node("hay", 4000, tiny)), kind="root")
    layers = [{"index": 0, "name": "Wide", "us": 200.0, "budget_us": None, "suspect": False}]
    browser = opened(profile(root=root, layers=layers))
    assert search(browser, "needle") == "1 frame, 0.01 µs per request, 0.0 %"
    assert "needle" not in names(browser)
    browser.press(ENTER)
    assert names(browser, ".current") == ["needle"]


def test_a_slash_begins_a_search(opened: Open) -> None:
    browser = opened()
    browser.one("#reset").click()
    browser.press("/")
    browser.press("cold")
    assert found(browser) == "1 frame, 20.0 µs per request, 10.0 %"


# ---- the table --------------------------------------------------------------------------------------------------


def choose(browser: Browser, value: str) -> None:
    browser.one(f'#which option[value="{value}"]').click()


def column(browser: Browser, number: int) -> list[str]:
    return browser.texts(f"tbody td:nth-child({number})")


def test_the_table_has_the_hottest_functions_and_sorts(opened: Open) -> None:
    browser = opened()
    # With recursion, self times add up and the time with callees counts once.
    assert column(browser, 3) == ["70.0 µs", "20.0 µs", "20.0 µs", "10.0 µs"]
    assert column(browser, 1)[0] == "hotshop/hot.py:7"
    assert column(browser, 5)[0] == "100.0 µs"
    browser.all("th button")[0].click()
    assert [text.partition("shop")[0] for text in column(browser, 1)] == ["check_key", "cold", "helper", "hot"]
    assert [cell.get_attribute("aria-sort") for cell in browser.all("th")] == ["ascending", None, None, None, None]
    browser.press(ENTER)
    assert [text.partition("shop")[0] for text in column(browser, 1)] == ["hot", "helper", "cold", "check_key"]


def test_the_table_shows_one_layer_or_all(opened: Open) -> None:
    browser = opened()
    assert set(column(browser, 2)) == {"Auth"}
    choose(browser, "=(endpoint)")
    assert column(browser, 3) == ["30.0 µs", "20.0 µs"]
    choose(browser, "*")
    assert len(column(browser, 1)) == 8


def test_the_table_has_twenty_functions_at_most(opened: Open) -> None:
    many = [node(f"f{i}", i + 1) for i in range(30)]
    total = sum(frame["us"] for frame in many)
    root = node("GET /", total, block("Wide", 0, total, *many), kind="root")
    layers = [{"index": 0, "name": "Wide", "us": 200.0, "budget_us": None, "suspect": False}]
    browser = opened(profile(root=root, layers=layers))
    assert column(browser, 3) == [f"{us:.1f} µs" if us >= 10 else f"{us:.2f} µs" for us in range(30, 10, -1)]


def test_a_function_of_the_table_is_shown_in_the_graph(opened: Open) -> None:
    browser = opened()
    choose(browser, "=(endpoint)")
    browser.all("tbody button")[0].click()
    assert focused(browser) == "serialise"


# ---- themes, phones, print --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("system", "other"), [("light", "dark"), ("dark", "light")])
def test_the_theme_is_the_systems_until_it_is_switched(opened: Open, system: str, other: str) -> None:
    paper = {"light": "rgba(255, 255, 255, 1)", "dark": "rgba(20, 22, 26, 1)"}
    browser = opened(scheme=system)
    assert browser.style("body", "background-color") == paper[system]
    browser.one("#theme").click()
    assert browser.style("body", "background-color") == paper[other]


CONTRASTS = """
const pixel = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
function rgb(colour) {
  pixel.clearRect(0, 0, 1, 1);
  pixel.fillStyle = colour;
  pixel.fillRect(0, 0, 1, 1);
  return [...pixel.getImageData(0, 0, 1, 1).data].slice(0, 3);
}
const mixed = (a, b, share) => a.map((value, i) => value * share + b[i] * (1 - share));
function luminance(colour) {
  const [r, g, b] = colour.map((v) => v / 255).map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const paper = rgb(getComputedStyle(document.body).backgroundColor);
return [...document.querySelectorAll('.frame span')].map((span) => {
  const style = getComputedStyle(span.parentElement);
  const back = rgb(style.backgroundColor);
  const text = mixed(rgb(style.color), back, Number(getComputedStyle(span).opacity));
  const seen = [back, text].map((colour) => luminance(mixed(colour, paper, Number(style.opacity))));
  seen.sort((a, b) => b - a);
  return [(seen[0] + 0.05) / (seen[1] + 0.05), span.textContent];
});
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("suspects", [(), (1,), (1, 2)])
def test_text_on_frames_can_be_read(opened: Open, scheme: str, suspects: tuple[int, ...]) -> None:
    browser = opened(profile(suspects=suspects), scheme=scheme)
    browser.one("#open").click()
    contrasts = browser.run(CONTRASTS)
    assert len(contrasts) > 20
    assert min(contrasts)[0] >= 4.5, min(contrasts)


def test_a_phone_shows_all_of_it_in_its_width(opened: Open) -> None:
    browser = opened(profile(title="GET /" + "long" * 60, nodeid="tests/" + "long" * 60), size=PHONE)
    assert browser.overflow() <= 0
    assert browser.run("return document.querySelector('table').scrollWidth") <= PHONE[0]
    click(browser, "cold")
    assert width(browser, "cold") == pytest.approx(1, abs=0.01)
    assert browser.overflow() <= 0


def test_on_paper_it_is_light_and_without_controls(opened: Open) -> None:
    browser = opened(scheme="dark", media="print")
    assert browser.style("body", "background-color") == "rgba(255, 255, 255, 1)"
    assert not browser.one("#search").is_displayed()
    assert not browser.one("#about").is_displayed()
    assert browser.one("#graph").is_displayed()


# ---- hostile names ----------------------------------------------------------------------------------------------

HOSTILE = (
    "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 1'>\u2028&amp;\"'`${window.hurt = 1}"
)


def test_a_name_is_text_wherever_it_stands(opened: Open) -> None:
    root = node(HOSTILE, 100, block(HOSTILE, 0, 100, node(HOSTILE, 60)), kind="root")
    root["children"][0]["children"][0]["file"] = HOSTILE
    layers = [{"index": 0, "name": HOSTILE, "us": 90.0, "budget_us": 50.0, "suspect": True}]
    browser = opened(profile(title=HOSTILE, nodeid=HOSTILE, layers=layers, root=root))
    spoken = " ".join(HOSTILE.split())
    assert browser.texts("h1") == [spoken]
    assert names(browser) == [HOSTILE] * 3
    assert browser.texts("tbody button") == [spoken]
    assert search(browser, "onerror") == "2 frames, 100.0 µs per request, 100.0 %"
    browser.all(".frame")[2].click()
    assert browser.all("img") == []
    assert browser.run("return window.hurt ?? null") is None


def test_a_script_that_got_into_the_page_would_not_run(browser: Browser, tmp_path: Path) -> None:
    browser.open(written(tmp_path, profile()))
    browser.run(
        "const script = document.createElement('script');"
        "script.textContent = 'window.hurt = 1';"
        "document.body.append(script);"
    )
    assert browser.run("return window.hurt ?? null") is None
    assert any("Content Security Policy" in complaint for complaint in browser.complaints())
