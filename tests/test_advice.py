"""Advice: each rule on matching records, on near misses, and on the records of real measurements."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from examples.count_gate import orders
from pytest_mwbudget.asgi.request import build_request, template_of
from pytest_mwbudget.config.budgets import Budgets
from pytest_mwbudget.model.endpoint import EndpointReport, Observed
from pytest_mwbudget.model.estimate import Estimate
from pytest_mwbudget.model.results import Books, Count, Counts, LayerReport, Ledger, Occupation, RequestLine, Result
from pytest_mwbudget.model.stack import Layer, Origin
from pytest_mwbudget.report.advice import MANY_MESSAGES, RULES, STREAMED, advise
from pytest_mwbudget.report.shareable import SHAREABLE
from pytest_mwbudget.storage import codec

from .apps import measured
from .canned import but, canned

pytestmark = pytest.mark.once

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "advice.md").read_text(encoding="utf-8")
COROUTINE = "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.coro"
RECEIVING = (
    "starlette.middleware.base.BaseHTTPMiddleware.__call__.<locals>.call_next.<locals>.receive_or_disconnect"
    ".<locals>.wrap"
)


# ---- records ----------------------------------------------------------------------------------------------------


def us(estimate: float, margin: float = 0.5) -> Estimate:
    return Estimate(estimate, estimate - margin, estimate + margin)


def same(number: int, kinds: Mapping[str, int] | None = None) -> Count:
    return Count(number, number, number, kinds or {})


def counts(
    *, sent: int = 2, received: int = 0, tasks: Mapping[str, int] | None = None, **known: Count | None
) -> Counts:
    """Build the counts of a row; objects, allocations and bytes are unknown unless given."""
    spawned = tasks or {}
    return Counts(
        objects=known.get("objects"),
        allocations=known.get("allocations"),
        bytes=None,
        tasks=same(sum(spawned.values()), spawned),
        threads=same(0),
        retained=None,
        received=same(received),
        sent=same(sent),
        suspensions=same(0),
    )


def row(index: int = 0, name: str = "Layer", *, entered: bool = True, **found: Any) -> LayerReport:
    return LayerReport(Layer(index, name, f"shop.{name}", "middleware", entered=entered), **found)


def result(*rows: LayerReport, endpoint: Counts | None = None, method: str = "GET", status: int = 200) -> Result:
    return canned(
        request=RequestLine(method, "/"),
        status=status,
        layers=rows,
        ledger=Ledger(counts(), endpoint or counts(), counts(), 21),
        books=Books(us(300), us(10), us(40), 1.0),
        floor_us=0.3,
    )


def advised(found: Result) -> dict[str, str]:
    """Return the texts of the advice by rule."""
    return {advice.rule: advice.text for advice in advise(found)}


# ---- pass-through -----------------------------------------------------------------------------------------------


def base_http(
    *, estimate: float | None = 173.5, busy: float | None = None, name: str = COROUTINE, **found: Any
) -> Result:
    taken = {} if estimate is None else {"us": us(estimate), "occupation": Occupation(us(busy or estimate), 0.0, None)}
    return result(row(name="Auth", counts=counts(**{"sent": 3, "tasks": {name: 1}, **found}), **taken))


def test_a_base_http_middleware_that_passes_requests_on() -> None:
    text = advised(base_http(objects=same(512), allocations=same(375)))["pass-through"]
    assert text == (
        "Auth needs 1 task and 512 objects per request, 173.5 µs in all: the task and most objects come with"
        " BaseHTTPMiddleware, whatever its dispatch does; a pure ASGI class would do without"
    )


def test_where_objects_are_not_counted_allocations_are_told_and_else_nothing() -> None:
    assert "1 task and 375 allocations per request, 173.5" in advised(base_http(allocations=same(375)))["pass-through"]
    assert "1 task per request, 173.5 µs in all: this comes with" in advised(base_http())["pass-through"]


def test_a_record_without_times_is_enough() -> None:
    assert (
        "1 task and 512 objects per request: the task"
        in advised(base_http(estimate=None, objects=same(512)))["pass-through"]
    )


def test_a_time_that_is_not_known_is_not_told() -> None:
    unknown = LayerReport(
        row(name="Auth").layer,
        us=Estimate(170, float("-inf"), float("inf")),
        counts=counts(tasks={COROUTINE: 1}, objects=same(512)),
    )
    assert "Auth needs 1 task and 512 objects per request: the task" in advised(result(unknown))["pass-through"]


def test_tasks_for_receiving_and_many_messages_are_passing_on_too() -> None:
    row_counts = counts(sent=102, received=2, tasks={RECEIVING: 2, COROUTINE: 1}, objects=same(9745))
    text = advised(result(row(name="Auth", us=us(2649), counts=row_counts)))["pass-through"]
    assert text.startswith("Auth needs 3 tasks and 9745 objects per request, 2649 µs in all: the tasks and most")


@pytest.mark.parametrize(
    "found",
    [
        base_http(objects=same(900)),  # creates many other objects
        base_http(allocations=same(900)),
        base_http(objects=same(512), estimate=2100),  # computes a lot besides
        base_http(objects=same(512), name="shop.middleware.in_a_task"),  # a task that BaseHTTPMiddleware did not spawn
        base_http(objects=same(512), tasks={}),  # answered by itself
        result(row(name="Auth")),  # not entered, or merged
    ],
)
def test_no_advice_to_rewrite_what_does_more_or_is_something_else(found: Result) -> None:
    assert "pass-through" not in advised(found)


def test_a_base_http_middleware_that_waits_long_still_passes_on() -> None:
    assert "pass-through" in advised(base_http(objects=same(512), estimate=5000, busy=180))


# ---- blocking ---------------------------------------------------------------------------------------------------


def occupied(busy: float, *, cpu: float | None = None, wait: float = 0.0, blocking: bool = False) -> Result:
    return result(row(name="Audit", us=us(busy + wait), occupation=Occupation(us(busy), wait, cpu, blocking)))


def test_a_layer_that_blocks() -> None:
    assert advised(occupied(602.2, cpu=46.4, blocking=True)) == {
        "blocking": "Audit holds the event loop for 602.2 µs per request, in 46.4 µs of which the processor works; it"
        " blocks every other request meanwhile: call what it waits for in a worker thread, or use an async library"
        " for it"
    }


def test_a_layer_that_works_does_not_block() -> None:
    assert advised(occupied(602.2, cpu=590.0)) == {}
    assert advised(occupied(602.2, cpu=None)) == {}


# ---- waiting ----------------------------------------------------------------------------------------------------


def test_a_layer_that_waits() -> None:
    text = advised(occupied(74.7, wait=1060.7))["waiting"]
    assert text.startswith("Audit waits for 1061 µs of its 1135 µs per request, and the request with it:")


@pytest.mark.parametrize(
    "found",
    [
        occupied(100, wait=49),  # a short wait
        occupied(900, wait=200),  # a small share of the time
        occupied(100),
        result(row(us=us(1100, 600), occupation=Occupation(us(100, 450), 1000.0, None))),  # within the uncertainty
        result(row(us=us(1100))),
        result(row()),
    ],
)
def test_no_advice_on_a_short_or_uncertain_wait(found: Result) -> None:
    assert "waiting" not in advised(found)


# ---- thread-hops ------------------------------------------------------------------------------------------------


def in_a_thread(us: Estimate | None, why: str | None = "its process_request is sync, so Django …") -> Result:
    layer = Layer(0, "Session", "django.Session", "middleware", adapts=why)
    waits = None if us is None else Occupation(us / 4, us.estimate * 3 / 4, None)
    return result(LayerReport(layer, us=us, occupation=waits))


def test_a_layer_that_the_framework_runs_in_a_thread() -> None:
    # It waits for the thread as well, for which there is no other advice.
    assert advised(in_a_thread(us(351.0))) == {
        "thread-hops": (
            "Session takes 351.0 µs per request: its process_request is sync, so Django …; if it does not block, write"
            " it as async code"
        )
    }


def test_a_layer_of_a_package_that_the_framework_runs_in_a_thread() -> None:
    record = in_a_thread(us(351.0))
    (report,) = record.layers
    packaged = replace(report, layer=replace(report.layer, origin=Origin("Django")))
    assert advised(result(packaged))["thread-hops"].endswith(
        "Django …; it comes from Django, so set a budget that includes the thread, or leave it out"
    )


@pytest.mark.parametrize("found", [in_a_thread(us(351.0), None), in_a_thread(us(50.0)), in_a_thread(None)])
def test_no_advice_on_a_layer_without_a_thread_or_time(found: Result) -> None:
    assert "thread-hops" not in advised(found)


# ---- buffering --------------------------------------------------------------------------------------------------

STREAM = counts(sent=102)


def test_a_layer_that_holds_a_stream_back() -> None:
    text = advised(result(row(name="Envelope", counts=counts(sent=2)), endpoint=STREAM))["buffering"]
    assert text.startswith("Envelope is sent 102 messages and sends 2: what comes as a stream goes out as a whole")


def test_only_the_layer_at_which_the_stream_ends_is_named() -> None:
    outer, holds, inner = row(0, counts=counts()), row(1, "Envelope", counts=counts()), row(2, counts=STREAM)
    advice = [(piece.layer, piece.rule) for piece in advise(result(outer, holds, inner, endpoint=STREAM))]
    assert advice == [("Envelope", "buffering")]


def test_a_layer_that_was_not_entered_is_not_inside() -> None:
    holds, beside = row(0, "Envelope", counts=counts()), row(1, entered=False)
    assert "buffering" in advised(result(holds, beside, endpoint=STREAM))


@pytest.mark.parametrize(
    "found",
    [
        result(row(counts=STREAM), endpoint=STREAM),  # passes the stream on
        result(row(counts=counts(sent=4)), endpoint=STREAM),  # passes the stream on in larger parts
        result(row(counts=counts(sent=2)), endpoint=counts(sent=STREAMED - 1)),  # too few messages for a stream
        result(row(counts=counts(sent=2)), endpoint=STREAM, method="HEAD"),  # a response without a body
        result(row(counts=counts(sent=2)), endpoint=STREAM, status=304),
        result(row(0, counts=counts(sent=2)), row(1), row(2, counts=STREAM)),  # a layer without counts in between
    ],
)
def test_no_advice_where_nothing_was_held_back(found: Result) -> None:
    assert "buffering" not in advised(found)


def test_without_a_count_of_what_is_inside_nothing_is_said() -> None:
    record = Result(request=RequestLine("GET", "/"), status=200, layers=(row(counts=counts()),))
    assert list(advise(record)) == []


# ---- per-message ------------------------------------------------------------------------------------------------


def gzip(*, estimate: float = 594.6, sent: int = 102, kinds: Mapping[str, int] | None = None) -> Result:
    """Build the record of a GZipMiddleware with 102 messages."""
    kinds = kinds or {"builtins.bytes": 314, "builtins.list": 214, "builtins.coroutine": 205, "builtins.tuple": 98}
    row_counts = counts(sent=sent, objects=same(sum(kinds.values()), kinds))
    return result(row(name="GZip", us=us(estimate), counts=row_counts), endpoint=counts(sent=sent))


def test_a_layer_whose_objects_come_with_the_messages() -> None:
    assert advised(gzip()) == {
        "per-message": "GZip takes 594.6 µs for 102 messages, 5.83 µs each, and 733 of its 831 objects come with the"
        " messages; send fewer and larger ones, or hand send on as it is where only the request matters"
    }


@pytest.mark.parametrize(
    "found",
    [
        gzip(estimate=50.2),  # costs little
        gzip(sent=MANY_MESSAGES - 1),
        gzip(kinds={"builtins.bytes": 314, "builtins.coroutine": 103, "builtins.tuple": 250}),  # few objects a message
        gzip(kinds={"builtins.coroutine": 103, "builtins.tuple": 1060}),  # not a multiple of the messages
        gzip(kinds={"builtins.bytes": 314, "builtins.list": 214}),  # no coroutines
        result(row(us=us(594.6), counts=counts(sent=102, allocations=same(794)))),  # no objects by type
        result(row(counts=counts(sent=102))),
    ],
)
def test_no_advice_where_the_messages_may_not_be_the_reason(found: Result) -> None:
    assert "per-message" not in advised(found)


# ---- serialization ----------------------------------------------------------------------------------------------


def opened(part: LayerReport, observed: Observed | None, whole: Estimate | None = None) -> Result:
    """Build the record of a request whose endpoint has one part that matters."""
    books = Books(us(800), us(10), whole or us(745.9, 20), 1.0)
    return but(result(), books=books, endpoint=EndpointReport((as_part(part),), observed=observed))


def as_part(report: LayerReport) -> LayerReport:
    return replace(report, layer=replace(report.layer, kind="part"))


CONVERTS = Observed(converts=True)


def serialize(estimate: Estimate | None, name: str = "serialize") -> LayerReport:
    return row(name=name, us=estimate)


def test_an_endpoint_that_mostly_serializes() -> None:
    assert advised(opened(serialize(us(640.2)), CONVERTS)) == {
        "serialization": "serialize takes 640.2 of the 745.9 µs of the endpoint per request: FastAPI turns what the"
        " handler returns into JSON; a ready Response that the handler returns does without"
    }
    hop = replace(serialize(us(640.2)), counts=replace(counts(), threads=same(1)))
    assert (
        "into JSON, and validates it in a thread, because the handler is not async; a ready"
        in (advised(opened(hop, CONVERTS))["serialization"])
    )


@pytest.mark.parametrize(
    "found",
    [
        opened(serialize(us(640.2)), Observed()),  # the handler returns a response, which makes the JSON
        opened(serialize(us(640.2)), None),
        opened(serialize(us(640.2), "handler"), CONVERTS),
        opened(serialize(us(50.2)), CONVERTS, us(60)),  # may be below the limit
        opened(serialize(us(190)), CONVERTS),  # may be below a quarter
        opened(serialize(Estimate(640, float("-inf"), float("inf"))), CONVERTS),
        opened(serialize(us(640.2)), CONVERTS, Estimate(740, float("-inf"), float("inf"))),
        opened(serialize(None), CONVERTS),
        but(opened(serialize(us(640.2)), CONVERTS), books=None),
    ],
)
def test_no_advice_where_serializing_is_cheap_or_uncertain(found: Result) -> None:
    assert advised(found) == {}


# ---- thread-hops of parts ---------------------------------------------------------------------------------------


def sync_part(estimate: Estimate | None, hops: int = 1, why: str | None = "it is not async, so …") -> Result:
    layer = Layer(3, "shop.db:session", "shop.db.session", "dependency", adapts=why)
    return opened(LayerReport(layer, us=estimate, counts=replace(counts(), threads=same(hops))), Observed())


def test_a_sync_dependency_that_only_costs_the_thread() -> None:
    assert advised(sync_part(us(96.1))) == {
        "thread-hops": "shop.db:session takes 96.1 µs per request, with 1 thread hop: it is not async, so …; if it does"
        " not block, write it as async code"
    }
    assert "with 2 thread hops" in advised(sync_part(us(590), 2))["thread-hops"]


def test_a_sync_dependency_of_a_package() -> None:
    record = sync_part(us(96.1))
    assert record.endpoint is not None
    (report,) = record.endpoint.parts
    packaged = replace(report, layer=replace(report.layer, origin=Origin("fastapi-pagination")))
    assert advised(opened(packaged, Observed()))["thread-hops"].endswith(
        "it comes from fastapi-pagination, so set a budget that includes the thread, or leave it out"
    )


@pytest.mark.parametrize(
    "found",
    [
        sync_part(us(50)),  # may be below the limit
        sync_part(us(300)),  # may be above that of two ways
        sync_part(us(590)),  # takes longer than the way: it may block
        sync_part(Estimate(96, 90, float("inf"))),
        sync_part(None),
        sync_part(us(96.1), hops=0),
        sync_part(us(96.1), why=None),  # async, and goes to a thread by itself
    ],
)
def test_no_advice_on_a_part_that_may_need_its_thread(found: Result) -> None:
    assert advised(found) == {}


# ---- client-per-request -----------------------------------------------------------------------------------------

CLIENT = {"httpx.AsyncClient": 1, "httpx.AsyncHTTPTransport": 1, "ssl.SSLContext": 1, "builtins.dict": 90}


def making(kinds: Mapping[str, int], estimate: Estimate | None = None, origin: Origin | None = None) -> LayerReport:
    """Build the record of a layer or part that creates these objects."""
    row_counts = counts(objects=same(sum(kinds.values()), kinds))
    return LayerReport(Layer(0, "Verify", "shop.Verify", "middleware", origin=origin), us=estimate, counts=row_counts)


def test_a_layer_that_makes_a_client_in_each_request() -> None:
    assert advised(result(making(CLIENT, us(8412)))) == {
        "client-per-request": "Verify takes 8412 µs and makes 1 httpx.AsyncClient and 1 ssl.SSLContext in each request:"
        " make them once, for example in the lifespan, and share them"
    }


def test_what_a_base_http_middleware_costs_is_not_its_base_class_if_it_makes_a_client() -> None:
    assert [*advised(base_http(objects=same(512, CLIENT)))] == ["client-per-request"]


def test_what_comes_with_a_client_of_another_class_is_named_instead() -> None:
    kinds = {"shop.ApiClient": 2, "httpx.AsyncHTTPTransport": 2, "sqlalchemy.engine.base.Engine": 1}
    text = advised(result(making(kinds | {"ssl.SSLContext": 2})))["client-per-request"]
    assert text.startswith(
        "Verify makes 2 httpx.AsyncHTTPTransport, 1 sqlalchemy.engine.base.Engine and 2 ssl.SSLContext in each request:"
    )


def test_no_time_is_told_that_is_not_known() -> None:
    unknown = Estimate(8412, float("-inf"), float("inf"))
    assert advised(result(making(CLIENT, unknown)))["client-per-request"].startswith("Verify makes 1 httpx.AsyncClient")


def test_the_author_of_a_package_has_to_share_its_client() -> None:
    text = advised(result(making({"ssl.SSLContext": 1}, us(900), Origin("auth-kit"))))["client-per-request"]
    assert text.endswith("in each request: it comes from auth-kit, so look for a setting with which it shares it")


def test_parts_and_the_rows_without_parts_get_it_too() -> None:
    part = making({"ssl.SSLContext": 1})
    assert "client-per-request" in advised(opened(part, Observed()))
    assert part.counts is not None
    closed = replace(result(endpoint=part.counts), endpoint=EndpointReport(closed="it has another framework"))
    (advice,) = advise(closed)
    assert (advice.layer, advice.rule) == ("(endpoint)", "client-per-request")
    assert advice.text.startswith("(endpoint) takes 40.0 µs and makes 1 ssl.SSLContext in each request")
    outside = but(closed, ledger=Ledger(part.counts, counts(), counts(), 21))
    assert [piece.layer for piece in advise(outside)] == ["(outside)"]


@pytest.mark.parametrize(
    "found",
    [
        result(making({"httpx.AsyncClient": 1, "httpx.ASGITransport": 1})),  # has connections of its own no more
        result(making({"sqlalchemy.orm.session.Session": 1, "redis.asyncio.client.Pipeline": 1})),
        result(row(us=us(8412), counts=counts())),  # objects are not counted
        result(row(us=us(8412))),
        opened(making({"ssl.SSLContext": 1}), Observed(stand_ins=("Verify",))),
    ],
)
def test_no_advice_where_nothing_is_made_that_could_be_shared(found: Result) -> None:
    assert advised(found) == {}


def test_the_page_says_for_each_type_where_its_library_says_so() -> None:
    listed = re.findall(r"^\| .*? \| (`.*?`) \| <https://\S+> \|$", PAGE, re.MULTILINE)
    assert [*re.findall(r"`(.*?)`", " ".join(listed))] == [*SHAREABLE]


# ---- stand-ins --------------------------------------------------------------------------------------------------


def test_no_advice_on_a_dependency_that_the_test_put_in_place_of_another_one() -> None:
    record = sync_part(us(96.1))
    assert record.endpoint is not None
    stand_ins = Observed(stand_ins=(record.endpoint.parts[0].name,))
    assert advised(replace(record, endpoint=replace(record.endpoint, observed=stand_ins))) == {}


# ---- validated-again --------------------------------------------------------------------------------------------

ITEM = "shop.Item"


def revalidated(made: int, again: int, returned: Mapping[str, int], estimate: Estimate | None = None) -> Result:
    """Build the record of an endpoint whose handler and whose serialisation create this many models."""
    handler, serialize = (
        row(name=name, us=us(640.2), counts=counts(objects=same(number, {ITEM: number} if number else {})))
        for name, number in (("handler", made), ("serialize", again))
    )
    seen = Observed(converts=True, models=("shop.Page", ITEM), returned=returned)
    books = Books(us(1500), us(10), estimate or us(1400, 20), 1.0)
    return but(result(), books=books, endpoint=EndpointReport((as_part(handler), as_part(serialize)), observed=seen))


def test_models_that_the_handler_makes_and_fastapi_makes_again() -> None:
    assert advised(revalidated(100, 100, {})) == {
        "validated-again": "serialize takes 640.2 of the 1400 µs of the endpoint per request: FastAPI makes 100"
        " shop.Item from what the handler returns, and the handler makes 100 itself; return those, or a ready Response"
    }
    # The model is set to validate its instances again.
    assert advised(revalidated(100, 100, {ITEM: 0}))["validated-again"].endswith("itself; return a ready Response")


def test_models_whose_validators_run_again() -> None:
    assert advised(revalidated(100, 0, {ITEM: 100})) == {
        "validated-again": "serialize takes 640.2 of the 1400 µs of the endpoint per request: FastAPI calls validators"
        " of shop.Item 100 times, though the handler returns shop.Item already; a ready Response that the handler"
        " returns does without"
    }
    assert "of shop.Item once, though" in advised(revalidated(0, 0, {ITEM: 1}))["validated-again"]


@pytest.mark.parametrize(
    "found",
    [
        revalidated(0, 100, {}),  # the handler has no models
        revalidated(1, 100, {}),  # the handler's model is another one
        revalidated(100, 0, {ITEM: 0}),  # returned as they are
    ],
)
def test_what_is_validated_once_only_takes_long_to_serialize(found: Result) -> None:
    assert [*advised(found)] == ["serialization"]


def test_no_advice_on_validation_that_costs_little() -> None:
    assert advised(revalidated(100, 100, {ITEM: 100}, us(9000))) == {}


# ---- solved-again -----------------------------------------------------------------------------------------------

TWICE = Observed(calls={"shop.auth:user": 2})


def test_a_dependency_that_is_called_twice() -> None:
    assert advised(opened(row(name="shop.auth:user", us=us(412)), TWICE)) == {
        "solved-again": "shop.auth:user takes 412.0 µs per request in 2 calls: FastAPI does not share its result, "
        "because of use_cache=False or different scopes; call it once, unless each call has to give its own"
    }


@pytest.mark.parametrize(
    "found",
    [
        opened(row(name="shop.auth:user", us=us(50)), TWICE),  # may be below the limit
        opened(row(name="shop.auth:user", us=None), TWICE),
        opened(row(name="shop.auth:token", us=us(412)), TWICE),
        opened(row(name="shop.auth:user", us=us(412)), None),
    ],
)
def test_no_advice_on_a_dependency_that_is_cheap_or_called_once(found: Result) -> None:
    assert advised(found) == {}


# ---- overrides --------------------------------------------------------------------------------------------------

OVERRIDDEN = Observed(overrides=1, rebuilt=4)


def test_an_endpoint_whose_dependencies_are_rebuilt() -> None:
    assert advised(opened(row(name="validate", us=us(310.4)), OVERRIDDEN)) == {
        "overrides": "validate takes 310.4 of the 745.9 µs of the endpoint per request: dependency_overrides has 1"
        " entry, so FastAPI rebuilds a dependency 4 times in each request; both figures are those of this test, and"
        " larger than in production"
    }
    several = opened(row(name="validate", us=us(310.4)), Observed(overrides=3, rebuilt=1))
    assert "has 3 entries, so FastAPI rebuilds a dependency once in" in advised(several)["overrides"]


@pytest.mark.parametrize(
    "found",
    [
        opened(row(name="validate", us=us(310.4)), Observed(overrides=1)),  # the route has no dependencies
        opened(row(name="validate", us=us(310.4)), Observed()),
        opened(row(name="validate", us=us(190)), OVERRIDDEN),  # may be below a quarter
        opened(row(name="validate", us=None), OVERRIDDEN),
        opened(row(name="handler", us=us(310.4)), OVERRIDDEN),
    ],
)
def test_no_advice_where_overrides_cost_little(found: Result) -> None:
    assert advised(found) == {}


# ---- several rules ----------------------------------------------------------------------------------------------


def test_a_layer_has_one_advice_for_each_rule_at_most_outermost_first() -> None:
    slow = {"us": us(5000), "occupation": Occupation(us(180), 4800.0, None)}
    task = counts(sent=3, tasks={COROUTINE: 1}, objects=same(512))
    record = result(row(0, "A", counts=task, **slow), row(1, "B", counts=task))
    advice = [(piece.layer, piece.rule) for piece in advise(record)]
    assert advice == [("A", "pass-through"), ("A", "waiting"), ("B", "pass-through")]


def test_the_record_that_was_written_gives_the_same_advice() -> None:
    for record in (
        base_http(objects=same(512)),
        occupied(74.7, wait=1060.7),
        gzip(),
        opened(serialize(us(640.2)), CONVERTS),
        opened(row(name="shop.auth:user", us=us(412)), TWICE),
        opened(row(name="validate", us=us(310.4)), OVERRIDDEN),
        result(making(CLIENT, us(8412))),
        revalidated(100, 0, {ITEM: 100}),
    ):
        assert list(advise(codec.result(codec.measurement("test_x", record)))) == list(advise(record)) != []


def test_nothing_measured_nothing_advised() -> None:
    assert list(advise(Result(request=RequestLine("GET", "/"), status=200))) == []


def anchors(text: str) -> set[str]:
    return {heading.lower().replace(" ", "-") for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)}


def test_every_rule_has_its_section() -> None:
    assert set(RULES) == anchors(PAGE)
    assert next(advise(base_http())).page == "mwbudget explain pass-through"


# ---- real measurements ------------------------------------------------------------------------------------------

COUNTED = {"budgets": Budgets(default={"tasks": 0})}


class Envelope:
    """A layer that holds the response back."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        held: list[Any] = []

        async def hold(message: Any) -> None:
            held.append(message)

        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        await self.app(scope, receive, hold)
        await send(held[0])
        await send({"type": "http.response.body", "body": b"".join(message["body"] for message in held[1:])})


async def numbers(scope: Any, receive: Any, send: Any) -> None:
    """Send a stream of twelve messages."""
    await send({"type": "http.response.start", "status": 200, "headers": []})
    for number in range(10):
        await send({"type": "http.response.body", "body": b"%d" % number, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def test_only_the_version_before_is_advised_in_the_example() -> None:
    before = measured(orders.create_app("before"), url="/orders/1", settings=COUNTED)
    assert [(advice.layer, advice.rule) for advice in advise(before)] == [("RequestIdBefore", "pass-through")]
    assert list(advise(measured(orders.create_app("after"), url="/orders/1", settings=COUNTED))) == []


def test_a_layer_that_holds_a_stream_back_is_seen_and_one_that_does_not_is_not() -> None:
    held = measured(Envelope(numbers), settings=COUNTED)
    assert held.response.content == b"0123456789"
    assert [(advice.layer, advice.rule) for advice in advise(held)] == [("Envelope", "buffering")]
    sizes: list[int] = []
    passed = measured(block("BodySize")(numbers, sizes.append), settings=COUNTED)
    assert list(advise(passed)) == []
    assert set(sizes) == {10}


# ---- code blocks of the page ------------------------------------------------------------------------------------


def block(name: str) -> Any:
    """Run the page's code block that defines this class, and return the class."""
    for code in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        if f"class {name}" in code:
            namespace: dict[str, Any] = {}
            exec(compile(code, f"docs/advice.md, {name}", "exec", dont_inherit=True), namespace)
            return namespace[name]
    raise AssertionError(f"the page has no class {name}")


def shop(layer: str) -> Starlette:
    async def tell(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.state.shop)

    async def lost(request: Request) -> PlainTextResponse:
        raise LookupError("no such tea")

    async def broken(request: Request) -> PlainTextResponse:
        raise ValueError("not the layer's business")

    routes = [Route("/tell", tell), Route("/lost", lost), Route("/broken", broken)]
    return Starlette(routes=routes, middleware=[Middleware(block(layer), key="k")])


async def messages_of(app: Any, url: str, key: str) -> tuple[list[Any], str]:
    """Return the messages of one response, and the exception that ended the request."""
    template = await template_of(build_request("GET", url, {"headers": {"x-key": key}}))
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(dict(message))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    try:
        await app(template.scope(None), receive, send)
    except (LookupError, ValueError) as error:
        return sent, repr(error)
    return sent, ""


def answer(layer: str, url: str, key: str) -> tuple[Any, ...]:
    """Return status, headers, body and exception."""
    sent, error = asyncio.run(messages_of(shop(layer), url, key))
    body = b"".join(message.get("body", b"") for message in sent)
    return sent[0]["status"], sorted(sent[0]["headers"]), body, error


@pytest.mark.parametrize(
    ("url", "key", "status", "body"),
    [
        ("/tell", "k", 200, b"tea"),
        ("/tell", "other", 401, b"no key"),
        ("/lost", "k", 404, b"not here"),
        ("/broken", "k", 500, b"Internal Server Error"),
    ],
)
def test_both_versions_of_the_page_answer_alike(url: str, key: str, status: int, body: bytes) -> None:
    before = answer("ShopBefore", url, key)
    assert before[0] == status
    assert before[2] == body
    assert ((b"x-shop", b"tea") in before[1]) == (status in (200, 404))
    assert answer("ShopAfter", url, key) == before


def test_the_rewrite_passes_on_what_is_not_http() -> None:
    entered: list[Any] = []

    async def inside(*arguments: Any) -> None:
        entered.append(arguments)

    for kind in ("lifespan", "websocket"):
        given = ({"type": kind, "headers": []}, object(), object())
        asyncio.run(block("ShopAfter")(inside, key="k")(*given))
        assert entered.pop() == given


def test_the_rewrite_does_not_answer_twice() -> None:
    async def breaks_off(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise LookupError("too late")

    sent, error = asyncio.run(messages_of(block("ShopAfter")(breaks_off, key="k"), "/", "k"))
    assert error == "LookupError('too late')"
    assert [message["type"] for message in sent] == ["http.response.start"]


def test_the_rewrite_needs_no_task() -> None:
    after = measured(shop("ShopAfter"), url="/tell", headers={"x-key": "k"}, settings=COUNTED)
    assert list(advise(after)) == []
    before = measured(shop("ShopBefore"), url="/tell", headers={"x-key": "k"}, settings=COUNTED)
    assert [advice.rule for advice in advise(before)] == ["pass-through"]


def test_what_blocks_is_called_in_a_worker_thread() -> None:
    written: list[str] = []
    measurement = measured(block("AuditLog")(numbers, written.append), url="/x", settings=COUNTED)
    threads = measurement.layer("AuditLog").counts
    assert threads is not None
    assert threads.threads.count == 1
    assert set(written) == {"/x"}
