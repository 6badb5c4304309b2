"""A profile as files: an interactive flamegraph, pyinstrument's own page, speedscope's JSON.

The pyinstrument session has a block for each layer, with the layer's own frames below: see `analysis.profile_stacks`.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator
from importlib.resources import files
from typing import Any, TypeAlias

from pyinstrument import processors
from pyinstrument.frame import Frame
from pyinstrument.renderers import HTMLRenderer, SpeedscopeRenderer
from pyinstrument.renderers.base import FrameRenderer, ProcessorList
from pyinstrument.session import Session

from ..analysis.profile_stacks import BLOCK, NO_LAYER, pruned
from ..model.places import is_own
from ..model.results import HotFunction, Result
from ..model.stack import Layer

# Function, file, line.
Key: TypeAlias = tuple[str, str, int]

US_PER_S = 1e6
# The smallest share of the session that a frame may have: thinner frames are invisible and make files large.
THINNEST = 0.0003
MOST_BYTES = 2_000_000
# A "<" that begins markup inside a script element.
ENDS_SCRIPT = re.compile("<(?=!--|/?script)", re.IGNORECASE)
PLACEHOLDER = "/*DATA*/null"
# Characters that can end a script element or a line of JavaScript.
ESCAPES = {ord(character): f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"}


class FlamegraphRenderer(FrameRenderer):  # type: ignore[misc, unused-ignore]
    """Renderer of a session of `requests` repeated requests of `result` as one self-contained page.

    `request_us` is the time of a request under the profiler.
    """

    output_file_extension = "html"

    def __init__(self, result: Result, nodeid: str, requests: int, request_us: float) -> None:
        super().__init__()
        self.result = result
        self.nodeid = nodeid
        self.requests = requests
        self.request_us = request_us

    def default_processors(self) -> ProcessorList:
        """Merge equal calls. Self time is a property of a frame, not a frame of its own."""
        return [processors.remove_importlib, processors.aggregate_repeated_calls]

    def render(self, session: Session) -> str:
        """Render the page."""
        page = files(__package__).joinpath("flamegraph.html").read_text(encoding="utf-8")
        data = json.dumps(self.data(session), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return page.replace(PLACEHOLDER, data.translate(ESCAPES))

    def data(self, session: Session) -> dict[str, Any]:
        """Collect the data of the page: the layers, and a tree of nodes with µs per request."""
        result = self.result
        root = self.preprocess(session.root_frame(trim_stem=False))
        tops = _tops(root)
        nodes = [self._node(frame, None) for frame in tops]
        for node in nodes:
            node["kind"] = "outside" if node["layer"] == NO_LAYER else "layer"
        return {
            "title": str(result.request),
            "nodeid": self.nodeid,
            "requests": self.requests,
            "samples": session.sample_count,
            "request_us": self.request_us,
            "plain_us": result.total_us and result.total_us.estimate,
            "layers": [
                {
                    "index": report.layer.index,
                    "name": report.name,
                    "us": report.us.estimate if report.us else None,
                    "budget_us": report.budget_us,
                    "suspect": result.is_over(report),
                }
                for report in result.layers
            ],
            "root": {
                "name": str(result.request),
                "file": None,
                "line": None,
                "layer": None,
                "kind": "root",
                "us": sum(node["us"] for node in nodes),
                "own_us": 0.0,
                "children": nodes,
            },
        }

    def _node(self, frame: Frame, layer: int | None) -> dict[str, Any]:
        block = frame.file_path == BLOCK
        if block:
            layer = frame.line_no
        return {
            "name": frame.function if block else function_name(frame),
            "file": None if block else short_path(frame),
            "line": None if block else frame.line_no or None,
            "layer": layer,
            "kind": "layer" if block else "function",
            "us": self._us(frame.time),
            "own_us": self._us(frame.total_self_time),
            "children": [self._node(child, layer) for child in _calls(frame)],
        }

    def _us(self, seconds: float) -> float:
        return round(seconds / self.requests * US_PER_S, 3)


def hottest(session: Session, layer: Layer, requests: int, count: int = 3) -> tuple[HotFunction, ...]:
    """Return functions of a layer, without the layers inside: `count` of the project's own, then as many others.

    Each kind is by falling self time. The project's own are the lines that a team can change.
    """
    own_us: dict[Key, float] = {}
    total_us: dict[Key, float] = {}
    own: set[Key] = set()
    for frame, outer in _own_frames(session, layer):
        key = _key(frame)
        if is_own(frame.file_path or ""):
            own.add(key)
        own_us[key] = own_us.get(key, 0.0) + frame.total_self_time / requests * US_PER_S
        if key not in outer:  # count the time of a recursive function once
            total_us[key] = total_us.get(key, 0.0) + frame.time / requests * US_PER_S
    ordered = sorted(own_us, key=lambda key: (-own_us[key], key))
    kinds = [key for key in ordered if key in own][:count], [key for key in ordered if key not in own][:count]
    return tuple(HotFunction(*key, own_us[key], total_us[key], key in own) for kind in kinds for key in kind)


def pyinstrument_page(session: Session) -> str:
    """Render pyinstrument's own page, with names that cannot end its script element."""
    original = session.to_json()
    records = [([_harmless(frame) for frame in stack], seconds) for stack, seconds in session.frame_records]
    about = {"frame_records": records, "target_description": _harmless(session.target_description)}
    return str(HTMLRenderer().render(Session.from_json(original | about)))


def speedscope(session: Session) -> str:
    """Render JSON in the format of speedscope."""
    return str(SpeedscopeRenderer().render(session))


def thinned(session: Session, share: float = THINNEST) -> Session:
    """Return the session without frames below `share` of its time; callers get the time of removed frames."""
    least = share * math.fsum(seconds for _, seconds in session.frame_records)
    thin: Session = Session.from_json(session.to_json() | {"frame_records": pruned(session.frame_records, least)})
    return thin


def bounded(render: Callable[[Session], str], session: Session) -> str:
    """Render the session; remove its thinnest frames until the text has at most `MOST_BYTES`."""
    share, text = THINNEST, render(session)
    while len(text.encode()) > MOST_BYTES and share < 1:
        share *= 2
        text = render(thinned(session, share))
    return text


def _harmless(text: str) -> str:
    return ENDS_SCRIPT.sub("\u2039", text)


def function_name(frame: Frame) -> str:
    """Return `Class.function` for a method, else `function`."""
    return f"{frame.class_name}.{frame.function}" if frame.class_name else frame.function


def short_path(frame: Frame) -> str | None:
    """Return the file relative to the working directory, else to its import directory.

    A file in a virtual environment is relative to its import directory, also below the working directory.
    """
    path = frame.file_path
    if path is None:
        return None
    here = os.getcwd() + os.sep
    environments = [prefix + os.sep for prefix in frame.context.sys_prefixes if prefix.startswith(here)]
    own = path.startswith(here) and not any(map(path.startswith, environments))
    return path.removeprefix(here) if own else frame.file_path_short


def _tops(root: Frame | None) -> list[Frame]:
    """Return the outermost blocks. pyinstrument omits a root with a single child."""
    if root is None:
        return []
    return [root] if root.file_path == BLOCK else _calls(root)


def _calls(frame: Frame) -> list[Frame]:
    """Return the frames that a frame calls, without pyinstrument's frames for self time."""
    return [child for child in frame.children if not child.is_synthetic]


def _own_frames(session: Session, layer: Layer) -> Iterator[tuple[Frame, frozenset[Key]]]:
    """Yield the frames of a layer, each with the keys of its callers."""
    root = processors.aggregate_repeated_calls(session.root_frame(trim_stem=False), options={})
    blocks = _tops(root)
    while blocks:
        block = blocks.pop()
        inside = _calls(block)
        blocks += [frame for frame in inside if frame.file_path == BLOCK]
        if block.line_no == layer.index:
            for frame in inside:
                if frame.file_path != BLOCK:
                    yield from _within(frame, frozenset())


def _within(frame: Frame, outer: frozenset[Key]) -> Iterator[tuple[Frame, frozenset[Key]]]:
    yield frame, outer
    for child in _calls(frame):
        yield from _within(child, outer | {_key(frame)})


def _key(frame: Frame) -> Key:
    return function_name(frame), short_path(frame) or "", frame.line_no or 0
