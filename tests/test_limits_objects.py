"""Limits of objects in runs of pytest: what is new, and what depends on the hash seed."""

from __future__ import annotations

import json
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mwbudget.limits.file import parsed
from pytest_mwbudget.session.limits.kept_objects import kept_objects, new_objects

from .test_limits_plugin import OF_LAYER, UPDATE, Project, project, run_apart

__all__ = ["project"]  # the fixture


@pytest.mark.skipif(sys.version_info < (3, 13), reason="objects are counted from Python 3.13 on")
def test_a_broken_limit_of_objects_lists_what_is_new(project: Project) -> None:
    """The types are those of the last run that kept the limit, in pytest's cache."""
    cached = ("-p", "cacheprovider", "test_app.py::test_one")
    project.run(*UPDATE, *cached)
    project.costs(21)
    for _ in range(2):  # a run that breaks the limit is not remembered
        result = project.run(*cached, "--mw-budget-json=mw.json")
        result.assert_outcomes(failed=1)
        text = " ".join(result.stdout.str().split())
        assert re.search(r"New since the limit was kept: \d+ builtins\.", text), text
        assert "Most objects are" not in text
    (measured,) = json.loads((project.pytester.path / "mw.json").read_text(encoding="utf-8"))["measurements"]
    limits = {limit["row"]: limit for limit in measured["recorded"]["limits"] if limit["quantity"] == "objects"}
    assert sum(limits["Layer"]["new"].values()) >= limits["Layer"]["value"] - limits["Layer"]["limit"] > 0
    assert limits["(outside)"]["new"] == {}
    project.run(*cached, "--cache-clear").stdout.fnmatch_lines(["Most objects are *"])


# What another program may have written into the cache.
FOREIGN = {"a": {"x": 1}, "a\nb\nc\nd": [1], "a\nb\nc\ne": {"x": "1"}}
KEPT = {"a\nb\nc\nf": {"x": 1}}


@pytest.mark.parametrize(("stored", "read"), [(None, {}), ([], {}), (FOREIGN, {}), (FOREIGN | KEPT, KEPT)])
def test_only_numbers_of_objects_by_type_are_read_from_a_cache(stored: object, read: dict[str, Any]) -> None:
    config: Any = SimpleNamespace(cache=SimpleNamespace(get=lambda key, default: stored))
    assert kept_objects(config) == read


def test_a_cache_that_another_program_wrote_is_ignored(project: Project) -> None:
    folder = project.pytester.path / ".pytest_cache" / "v" / "mw-budget"
    folder.mkdir(parents=True)
    (folder / "objects").write_text(json.dumps(FOREIGN), encoding="utf-8")
    cached = ("-p", "cacheprovider", "test_app.py::test_one")
    project.run(*UPDATE, *cached).assert_outcomes(passed=1)
    project.costs(21)
    project.run(*cached).assert_outcomes(failed=1)


def test_new_objects_are_those_of_types_with_more_of_them() -> None:
    assert new_objects({"str": 3, "list": 1, "dict": 2}, {"str": 1, "list": 1, "tuple": 4}) == {"str": 2, "dict": 2}
    assert new_objects({"str": 3}, None) == {}


BY_SEED = """
import pytest


class Key:
    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text) % 16

    def __eq__(self, other):
        return [self.text] == [other.text]


class Layer:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        {Key(text) for text in "abcdefghijkl"}
        await self.app(scope, receive, send)
"""


@pytest.mark.live
@pytest.mark.skipif(sys.version_info < (3, 13), reason="objects are counted from Python 3.13 on")
def test_a_count_that_depends_on_the_hash_seed_never_fails(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(pytester, monkeypatch)
    pytester.makeconftest(BY_SEED + OF_LAYER)
    assert run_apart(pytester, *UPDATE, seed="0").ret == 0
    limits = parsed(project.file.read_text(encoding="utf-8"), "'f'").limits
    limit, *_ = (recorded for place, recorded in limits.items() if (place.row, place.quantity) == ("Layer", "objects"))
    assert limit.low is not None
    for seed in range(100, 104):
        result = run_apart(pytester, seed=str(seed))
        assert result.ret == 0, result.stdout.str()
