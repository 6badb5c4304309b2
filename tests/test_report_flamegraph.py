"""A profile as files: the flamegraph's data and page, the hottest functions, pyinstrument's and speedscope's forms."""

from __future__ import annotations

import json
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from pyinstrument.session import Session

from pytest_mwbudget.analysis.profile_stacks import BLOCK, MOST_DEPTH, NO_LAYER, frame_info
from pytest_mwbudget.model.results import Judged, LayerReport, RequestLine, Result
from pytest_mwbudget.model.stack import Layer
from pytest_mwbudget.report import flamegraph
from pytest_mwbudget.report.flamegraph import FlamegraphRenderer, bounded, hottest, pyinstrument_page, speedscope

REQUESTS = 10
OUTER, INNER = frame_info("Outer", BLOCK, 0), frame_info("Inner", BLOCK, 1)
ENDPOINT, OUTSIDE = frame_info("(endpoint)", BLOCK, NO_LAYER), frame_info("(outside)", BLOCK, NO_LAYER)
HERE = str(Path.cwd() / "app" / "layers.py")


def code(name: str, line: int = 7, cls: str = "") -> str:
    return frame_info(name, HERE, line) + (f"\x01c{cls}" if cls else "")


def session(*records: tuple[list[str], float]) -> Session:
    """Return a session of `REQUESTS` requests from stacks and their microseconds per request."""
    return Session.from_json(
        {
            "frame_records": [(stack, us * REQUESTS / 1e6) for stack, us in sorted(records)],
            "start_time": 0.0,
            "duration": 1.0,
            "sample_count": 123,
            "start_call_stack": [""],
            "target_description": "GET /",
            "cpu_time": 0.0,
        }
    )


SESSION = session(
    ([OUTSIDE, code("app")], 4.0),
    ([OUTER, code("__call__", 3, "Outer")], 10.0),
    ([OUTER, code("__call__", 3, "Outer"), code("check")], 30.0),
    ([OUTER, code("__call__", 3, "Outer"), code("check"), code("check")], 5.0),
    ([OUTER, INNER, code("__call__", 9, "Inner")], 20.0),
    ([OUTER, INNER, ENDPOINT, code("home")], 40.0),
)
RESULT = Result(
    request=RequestLine("GET", "/"),
    status=200,
    layers=(
        LayerReport(Layer(0, "Outer", "app.Outer", "middleware"), judged={"tasks": Judged(0, "fail")}),
        LayerReport(Layer(1, "Inner", "app.Inner", "middleware")),
    ),
    verdict="fail",
)


def renderer(result: Result = RESULT) -> FlamegraphRenderer:
    return FlamegraphRenderer(result, "test_app.py::test", REQUESTS, 130.0)


def child(node: dict[str, Any], name: str) -> dict[str, Any]:
    (named,) = (child for child in node["children"] if child["name"] == name)
    return dict(named)


def test_the_data_has_a_tree_of_blocks_and_functions_in_microseconds_per_request() -> None:
    data = renderer().data(SESSION)
    assert (data["title"], data["nodeid"], data["requests"], data["samples"]) == ("GET /", "test_app.py::test", 10, 123)
    assert (data["request_us"], data["plain_us"]) == (130.0, None)
    root = data["root"]
    assert (root["kind"], root["us"]) == ("root", pytest.approx(109))
    outside, outer = child(root, "(outside)"), child(root, "Outer")
    assert (outside["kind"], outside["layer"], outside["us"]) == ("outside", -1, pytest.approx(4))
    assert (outer["kind"], outer["layer"], outer["us"], outer["own_us"]) == ("layer", 0, pytest.approx(105), 0)
    call = child(outer, "Outer.__call__")
    assert (call["kind"], call["layer"], call["file"], call["line"]) == ("function", 0, "app/layers.py", 3)
    assert (call["us"], call["own_us"]) == (pytest.approx(45), pytest.approx(10))
    endpoint = child(child(outer, "Inner"), "(endpoint)")
    assert (endpoint["kind"], endpoint["layer"]) == ("layer", -1)
    assert child(endpoint, "home")["us"] == pytest.approx(40)


def test_a_single_block_is_a_root_as_well() -> None:
    data = renderer().data(session(([OUTER, code("f")], 3.0)))
    assert [node["name"] for node in data["root"]["children"]] == ["Outer"]
    assert renderer().data(session())["root"]["children"] == []


def test_layers_over_their_budgets_are_suspects() -> None:
    layers = renderer().data(SESSION)["layers"]
    assert [(layer["name"], layer["suspect"]) for layer in layers] == [("Outer", True), ("Inner", False)]


def test_the_hottest_functions_are_the_layers_own_and_what_calls_itself_counts_once() -> None:
    first, second = hottest(SESSION, RESULT.layers[0].layer, REQUESTS)
    assert (first.function, first.file, first.line) == ("check", "app/layers.py", 7)
    assert (first.own_us, first.total_us) == (pytest.approx(35), pytest.approx(35))
    assert (second.function, second.own_us, second.total_us) == ("Outer.__call__", pytest.approx(10), pytest.approx(45))
    assert [hot.function for hot in hottest(SESSION, RESULT.layers[0].layer, REQUESTS, count=1)] == ["check"]


def test_the_projects_own_functions_come_first_however_hot_the_others_are() -> None:
    installed = [frame_info(f"hot{i}", f"/env/lib/python3/site-packages/anyio/{i}.py", 5) for i in range(9)]
    own = [code(f"own{i}", i) for i in range(4)]
    records = [([OUTER, frame], 10.0 + i) for i, frame in enumerate(installed)]
    records += [([OUTER, frame], 1.0 + i) for i, frame in enumerate(own)]
    functions = hottest(session(*records), RESULT.layers[0].layer, REQUESTS)
    assert [hot.function for hot in functions] == ["own3", "own2", "own1", "hot8", "hot7", "hot6"]
    assert [hot.own for hot in functions] == [True] * 3 + [False] * 3


class Scripts(HTMLParser):
    """The content of the script elements."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.within, self.found = False, list[tuple[dict[str, str | None], str]]()
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.within = tag == "script"
        if self.within:
            self.found.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.within:
            attributes, text = self.found[-1]
            self.found[-1] = attributes, text + data

    def handle_endtag(self, tag: str) -> None:
        self.within = False


def test_the_page_holds_the_data_whatever_it_says() -> None:
    hostile = "</script><script>alert(1)</script>\u2028&<!--"
    result = replace(RESULT, request=RequestLine("GET", hostile))
    page = renderer(result).render(SESSION)
    scripts = Scripts(page).found
    (data,) = (text for attributes, text in scripts if attributes.get("id") == "data")
    assert json.loads(data) == renderer(result).data(SESSION)
    assert len(scripts) == len(Scripts(renderer().render(SESSION)).found)
    assert "\u2028" not in data
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page


def test_files_have_a_largest_size(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = session(*(([OUTER, *(code(f"f{n}_{depth}") for depth in range(30))], 1.0) for n in range(60)))
    whole = renderer().render(deep)
    monkeypatch.setattr(flamegraph, "MOST_BYTES", len(whole.encode()) // 2)
    small = bounded(renderer().render, deep)
    assert len(small.encode()) <= len(whole.encode()) // 2
    # Only the deepest frames are left out.
    assert '"us":60.0' in small.replace(" ", "")


def test_speedscope_gets_frames_and_times() -> None:
    data = json.loads(speedscope(SESSION))
    assert data["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    names = [frame["name"] for frame in data["shared"]["frames"]]
    assert {"Outer", "Inner", "(endpoint)", "home"} <= set(names)
    (profile,) = data["profiles"]
    last = max(event["at"] for event in profile["events"])
    assert last == pytest.approx(109 * REQUESTS / 1e6)


def test_pyinstruments_own_page_has_the_layers() -> None:
    page = pyinstrument_page(SESSION)
    assert "Outer" in page
    assert "(endpoint)" in page


@pytest.mark.parametrize("name", ["</script><script>alert(1)", "<!--<script>", "</SCRIPT >"])
def test_no_name_ends_or_begins_a_script_in_pyinstruments_page(name: str) -> None:
    named = session(([frame_info(name, BLOCK, 0), code(name)], 1.0))
    plain = session(([frame_info("Outer", BLOCK, 0), code("f")], 1.0))
    assert len(Scripts(pyinstrument_page(named)).found) == len(Scripts(pyinstrument_page(plain)).found)
    assert name not in pyinstrument_page(named)


def test_deep_stacks_can_be_drawn() -> None:
    deep = session(([OUTER, *(code(f"f{number}") for number in range(MOST_DEPTH))], 3.0))
    for render in (renderer().render, pyinstrument_page, speedscope):
        assert f"f{MOST_DEPTH - 1}" in render(deep)
