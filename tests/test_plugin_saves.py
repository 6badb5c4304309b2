"""What leaving a layer out saves, in pytest runs: who reads it, and that nothing of it reaches the test."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_mwbudget.session.gate import SCHEDULE
from pytest_mwbudget.session.one_side import OneSide

from .apps import FAST, Scheduled, run_inside
from .readings import readings
from .test_report_schema import misfits

APP = """
import logging
import sys

log = logging.getLogger("shop")
requests = []


class Auth:
    def __init__(self, app):
        self.app = app

    async def __call__(self, scope, receive, send):
        scope["user"] = "ann"
        await self.app(scope, receive, send)


class Plain(Auth):
    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)


async def endpoint(scope, receive, send):
    if "user" not in scope:
        requests.append("without")
        log.error("nobody is logged in")
        print("no user")
        raise LookupError("no user")
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"ok"})


app = Plain(Auth(endpoint))
"""
TEST = """
import logging

import pytest
import shop


@pytest.fixture
def mw_budget_app():
    return shop.app


@pytest.mark.mw_budget(us=5000, lifespan=False)
def test_it(mw_budget, caplog):
    mw_budget.get("/")
    print("requests without:", len(shop.requests))
    assert not caplog.records
"""
# So long that all rows and savings are known on a busy machine.
SCHEDULED = Scheduled(**FAST | {"savings_share": 0.1})


@pytest.fixture
def shop(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(shop=APP, test_shop=TEST)
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return run_inside(pytester, *arguments, plugins=[SCHEDULED])


@readings
def test_with_v_and_json_a_layer_that_is_needed_has_the_reason(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget", "-v", "--mw-budget-json=mw.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["layer * saves *", "Plain *±*", "Auth * -*", "  saves: the app raises LookupError without it"]
    )
    result.stdout.no_fnmatch_line("*nobody is logged in*")
    document: Any = json.loads((shop.path / "mw.json").read_text(encoding="utf-8"))
    assert misfits(document) == []
    plain, auth = document["measurements"][0]["layers"]
    assert plain["saves_us"]["low"] <= plain["saves_us"]["estimate"] <= plain["saves_us"]["high"]
    assert auth["saves_us"] is None
    assert auth["why"]["saves_us"] == "the app raises LookupError without it"


def test_where_nobody_reads_it_no_request_is_sent_past_a_layer(shop: pytest.Pytester) -> None:
    result = run(shop, "--mw-budget", "-rP")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["requests without: 0"])
    result.stdout.no_fnmatch_line("*saves*")


def test_processes_of_versus_do_not_measure_it() -> None:
    config: Any = SimpleNamespace(stash=pytest.Stash())
    cast("Any", OneSide)(None, None).pytest_configure(config)
    assert config.stash[SCHEDULE].savings_share == 0
