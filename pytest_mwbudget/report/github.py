"""A result as an annotation of GitHub Actions: a line in the output of a job that the runner parses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from ..model.results import Result, Verdict
from .text import printable, shortened
from .view import view

Level: TypeAlias = Literal["error", "warning"]

# GitHub's limits: a step's summary in bytes, an annotation's title in characters.
MAX_SUMMARY = 1024 * 1024
MAX_TITLE = 255

# `%` comes first: the other codes contain it.
DATA = {"%": "%25", "\r": "%0D", "\n": "%0A"}
PROPERTY = {**DATA, ":": "%3A", ",": "%2C"}


def level(verdict: Verdict | None, undecided: str) -> Level | None:
    """Return the level of a verdict, None if it needs no annotation.

    `undecided` is the test's setting for undecided verdicts: `warn`, `fail` or `pass`.
    """
    if verdict == "fail" or (verdict == "undecided" and undecided == "fail"):
        return "error"
    return "warning" if verdict == "undecided" and undecided == "warn" else None


def annotation(result: Result, severity: Level, file: str, line: int | None) -> str:
    """Return the line `::error file=…,line=…,title=…::…`.

    `file` is relative to the root of the repository, `line` counts from 1.
    """
    shown = view(result)
    where = {"file": file} if line is None else {"file": file, "line": str(line)}
    title = shortened(f"{shown.request}: {shown.headline}", MAX_TITLE)
    properties = ",".join(f"{key}={_escaped(text, PROPERTY)}" for key, text in {**where, "title": title}.items())
    message = [line for finding in shown.findings for line in (finding.sentence, *(f"    {i}" for i in finding.items))]
    message += [advice.text for advice in shown.advice]
    return f"::{severity} {properties}::{_escaped(chr(10).join(map(printable, message)), DATA)}"


def _escaped(text: str, codes: Mapping[str, str]) -> str:
    for character, code in codes.items():
        text = text.replace(character, code)
    return text
