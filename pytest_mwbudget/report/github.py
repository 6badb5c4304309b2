"""A result as an annotation of GitHub Actions: a line that its runner reads from what a job prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ..model.results import Result, Verdict
from .advice import advise
from .terminal import headline, printable, reasons, shortened

Level: TypeAlias = Literal["error", "warning"]

# What GitHub takes of a step's summary, in bytes, and of an annotation's title, in characters.
MAX_SUMMARY = 1024 * 1024
MAX_TITLE = 255

# `%` comes first: the others' codes have it.
DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = {**DATA, ":": "%3A", ",": "%2C"}


def level(verdict: Verdict | None, undecided: str) -> Level | None:
    """How grave a verdict is, None for one that needs no annotation.

    `undecided` says what the test's settings do about an undecided one: `warn`, `fail` or `pass`.
    """
    if verdict == "fail" or (verdict == "undecided" and undecided == "fail"):
        return "error"
    return "warning" if verdict == "undecided" and undecided == "warn" else None


def annotation(result: Result, severity: Level, file: str, line: int | None) -> str:
    """The line: `::error file=…,line=…,title=…::…`. `line` counts from 1, `file` from the root of the repository."""
    where = {"file": file} if line is None else {"file": file, "line": str(line)}
    title = shortened(f"{result.request}: {headline(result)}", MAX_TITLE)
    properties = ",".join(f"{key}={_escaped(text, PROPERTY)}" for key, text in {**where, "title": title}.items())
    message = "\n".join([*reasons(result), *(printable(advice.text) for advice in advise(result))])
    return f"::{severity} {properties}::{_escaped(message, DATA)}"


def _escaped(text: str, codes: Mapping[str, str]) -> str:
    for character, code in codes.items():
        text = text.replace(character, code)
    return text
