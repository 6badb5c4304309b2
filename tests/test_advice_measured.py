"""Advice on real apps: clients made for each request, and what FastAPI does again. Each rule has counter-examples."""

# Without `from __future__ import annotations`: FastAPI would have to evaluate the annotations.

import json
import math
import re
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from pydantic import BaseModel, model_validator

from pytest_mwbudget.asgi.http_library import httpx
from pytest_mwbudget.model.endpoint import Observed
from pytest_mwbudget.report import advice
from pytest_mwbudget.report.advice import advise

from .apps import FAST, Noop, Scheduled, hello, measured, needs, respond, run_inside, stack_of
from .readings import BusyError, never, readings
from .test_report_schema import misfits

# ---- a client, an engine or a pool made for each request ---------------------------------------------------------

# Made once, because certificates take milliseconds to load.
CONTEXT = ssl.create_default_context()
CLIENT = httpx.AsyncClient(verify=CONTEXT)
kept: list[httpx.Client] = []


class ApiClient(httpx.AsyncClient): ...


async def with_yield() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(verify=CONTEXT) as client:
        yield client


def in_thread() -> Iterator[httpx.Client]:
    with httpx.Client(verify=CONTEXT) as client:
        yield client


@lru_cache
def once() -> httpx.Client:
    return httpx.Client(verify=CONTEXT)


def application() -> FastAPI:
    app = FastAPI()

    @app.get("/yield")
    async def of_yield(client: Annotated[object, Depends(with_yield)]) -> None: ...

    @app.get("/thread")
    async def of_thread(client: Annotated[object, Depends(in_thread)]) -> None: ...

    @app.get("/context")
    def context() -> None:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

    @app.get("/kept")
    async def keeping() -> None:
        kept.append(httpx.Client(verify=CONTEXT))

    @app.get("/several")
    async def several() -> None:
        ApiClient(verify=CONTEXT)
        httpx.Client(verify=CONTEXT)
        httpx.Client(verify=CONTEXT)

    @app.get("/once")
    async def lazy() -> None:
        once()

    @app.get("/shared")
    async def shared() -> None:
        CLIENT.build_request("GET", "https://example.org")

    @app.get("/connections")
    async def connections() -> None:
        httpx.AsyncClient(transport=CLIENT._transport)

    return app


def advice_on(app: Any, url: str = "/", *, inside: bool = True) -> dict[str, str]:
    """Return the lines on clients by row, from a request that is only counted."""
    measurement = measured(app, inside=inside, url=url, settings={"timed": False})
    return {
        advice.layer.rpartition(":")[2]: advice.text.partition(" ")[2]
        for advice in advise(measurement)
        if advice.rule == "client-per-request"
    }


HTTPX = httpx.__name__
SHARE = "make it once, for example in the lifespan, and share it"


@needs("objects")
@pytest.mark.parametrize(
    ("url", "row", "text"),
    [
        ("/yield", "with_yield", f"makes 1 {HTTPX}.AsyncClient in each request: {SHARE}"),
        ("/thread", "in_thread", f"makes 1 {HTTPX}.Client in each request: {SHARE}"),
        ("/context", "handler", f"makes 1 ssl.SSLContext in each request: {SHARE}"),
        ("/kept", "handler", f"makes 1 {HTTPX}.Client in each request: {SHARE}"),
        (
            "/several",
            "handler",
            f"makes 1 {HTTPX}.AsyncHTTPTransport and 2 {HTTPX}.Client in each request: make them once, for example in"
            " the lifespan, and share them",
        ),
    ],
)
def test_a_client_that_each_request_makes(url: str, row: str, text: str) -> None:
    assert advice_on(application(), url) == {row: text}
    kept.clear()


@needs("objects")
@pytest.mark.parametrize("url", ["/once", "/shared", "/connections"])
def test_no_advice_on_a_client_or_on_connections_that_are_shared(url: str) -> None:
    assert advice_on(application(), url) == {}


@needs("objects")
def test_the_app_on_the_page_shares_its_client() -> None:
    page = (Path(__file__).parent.parent / "docs" / "advice.md").read_text(encoding="utf-8")
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def lifespan" in code)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/advice.md, lifespan", "exec", dont_inherit=True), names)
    app, used = names["app"], []

    @app.get("/")
    async def home(client: Annotated[Any, Depends(names["get_client"])]) -> None:
        used.append(client)

    assert advice_on(app) == {}
    assert len(set(map(id, used))) == 1 < len(used)


class Verifies(Noop):
    """A layer that makes a client for each request."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            async with httpx.AsyncClient(verify=CONTEXT):
                await self.app(scope, receive, send)
        else:
            await self.app(scope, receive, send)


async def closed(scope: Any, receive: Any, send: Any) -> None:
    """An endpoint of no framework, which makes a client for each request."""
    httpx.Client(verify=CONTEXT)
    await respond(send)


class Outside(FastAPI):
    """An app that makes a client before its layers are entered."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        httpx.Client(verify=CONTEXT)
        await super().__call__(scope, receive, send)


@needs("objects")
def test_the_layer_that_makes_a_client_is_named() -> None:
    assert advice_on(Noop(Verifies(Noop(hello))), inside=False) == {
        "Verifies": f"makes 1 {HTTPX}.AsyncClient in each request: {SHARE}"
    }


@needs("objects")
def test_the_endpoint_is_named_where_it_has_no_parts() -> None:
    assert [*advice_on(Noop(closed))] == ["(endpoint)"]
    assert [*advice_on(application(), "/yield", inside=False)] == ["(endpoint)"]


@needs("objects")
def test_what_makes_a_client_outside_all_layers_is_named() -> None:
    app = Outside()
    app.get("/")(lambda: None)
    assert [*advice_on(app)] == ["(outside)"]


@needs("objects")
def test_a_client_of_the_test_itself_is_no_reason_for_advice() -> None:
    async def needed() -> object: ...

    app = FastAPI()

    @app.get("/")
    async def home(client: Annotated[object, Depends(needed)]) -> None: ...

    app.dependency_overrides[needed] = with_yield
    assert advice_on(app) == {}


# ---- what is validated already ----------------------------------------------------------------------------------


class Tea(BaseModel):
    name: str


class Checked(Tea):
    @model_validator(mode="after")
    def check(self) -> "Checked":
        return self


class Wrapped(Tea):
    @model_validator(mode="wrap")
    @classmethod
    def check(cls, value: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(value)


class Before(Tea):
    @model_validator(mode="before")
    @classmethod
    def check(cls, value: Any) -> Any:
        return value


TEA = {"name": "assam"}
NAME = f"{__name__}."


def observed(content: Any, annotation: Any, *, sync: bool = False) -> Observed:
    """Return what a request shows whose handler returns this for this response type."""
    app = FastAPI()
    if sync:
        app.get("/", response_model=annotation)(lambda: content)
    else:

        @app.get("/", response_model=annotation)
        async def home() -> Any:
            return content

    shown = stack_of(app).observed
    assert shown is not None
    return shown


@pytest.mark.parametrize(
    ("content", "annotation", "returned"),
    [
        (Tea(**TEA), Tea, {"Tea": 0}),
        (Checked(**TEA), Checked, {"Checked": 1}),
        (Checked(**TEA), Tea, {"Tea": 0}),  # Pydantic asks only whether it is a Tea
        (Wrapped(**TEA), Wrapped, {"Wrapped": 1}),
        (Before(**TEA), Before, {"Before": 0}),  # Pydantic calls these for data only
        ([Checked(**TEA)] * 3, list[Checked], {"Checked": 3}),
        ({"a": Checked(**TEA)}, dict[str, Checked] | None, {"Checked": 1}),
        (TEA, Checked, {}),
        ([TEA, Checked(**TEA)], list[Checked], {}),
        ([], list[Checked], {}),
    ],
)
def test_validators_that_run_for_a_returned_model(content: Any, annotation: Any, returned: dict[str, int]) -> None:
    assert observed(content, annotation).returned == {NAME + name: number for name, number in returned.items()}


def test_validators_that_run_in_a_thread() -> None:
    assert observed(Checked(**TEA), Checked, sync=True).returned == {NAME + "Checked": 1}


@pytest.mark.parametrize(
    ("annotation", "models"),
    [(Tea, ["Tea"]), (list[Tea] | Checked, ["Checked", "Tea"]), (dict[str, str], []), (None, [])],
)
def test_models_in_the_type_of_the_response(annotation: Any, models: list[str]) -> None:
    assert sorted(observed(TEA, annotation).models) == [NAME + name for name in models]


# ---- in whole pytest runs ---------------------------------------------------------------------------------------

SHOP = """
from ssl import PROTOCOL_TLS_CLIENT, SSLContext
from time import perf_counter_ns
from typing import Annotated

from fastapi import Depends, FastAPI
from pydantic import BaseModel, ConfigDict, field_serializer, model_validator

SPIN_US = 0


def spin():
    end = perf_counter_ns() + SPIN_US * 1000
    while perf_counter_ns() < end:
        pass


class Tea(BaseModel):
    name: str

    @field_serializer("name")
    def slowly(self, name):
        spin()
        return name


class Checked(Tea):
    @model_validator(mode="after")
    def check(self):
        return self


class Anew(Tea):
    model_config = ConfigDict(revalidate_instances="always")


async def user():
    spin()


async def owner(user: Annotated[object, Depends(user)]): ...


async def search(name: str = "", page: int = 1): ...


async def context():
    return SSLContext(PROTOCOL_TLS_CLIENT)


app = FastAPI()


@app.get("/context")
async def tls(context: Annotated[object, Depends(context)]): ...


@app.get("/twice")
async def twice(user: Annotated[object, Depends(user)], other: Annotated[object, Depends(user, use_cache=False)]): ...


@app.get("/shared")
async def shared(user: Annotated[object, Depends(user)], other: Annotated[object, Depends(owner)]): ...


@app.get("/search")
async def find(search: Annotated[object, Depends(search)]): ...


@app.get("/dumped")
async def dumped() -> Tea:
    return dict(Tea(name="assam"))


@app.get("/model")
async def model() -> Tea:
    return Tea(name="assam")


@app.get("/checked")
async def checked() -> Checked:
    return Checked(name="assam")


@app.get("/anew")
async def anew() -> Anew:
    return Anew(name="assam")
"""
TESTS = """
import pytest
import shop


@pytest.fixture
def mw_budget_app():
    return shop.app


@pytest.mark.mw_budget(us=100_000)
@pytest.mark.parametrize("url", ["/context", "/twice", "/shared", "/search", "/dumped", "/model", "/checked", "/anew"])
def test_plain(mw_budget, url):
    mw_budget.get(url)


@pytest.mark.mw_budget(us=100_000)
def test_overridden(mw_budget, monkeypatch):
    monkeypatch.setitem(shop.app.dependency_overrides, shop.user, dict)
    mw_budget.get("/search")
"""
OBJECTS = not needs("objects").args[0]
FOUND = {
    **({"test_plain[/context]": "client-per-request"} if OBJECTS else {}),
    "test_plain[/twice]": "solved-again",
    "test_plain[/dumped]": "validated-again" if OBJECTS else "serialization",
    "test_plain[/model]": "serialization",
    "test_plain[/checked]": "validated-again",
    "test_plain[/anew]": "validated-again" if OBJECTS else "serialization",
    "test_overridden": "overrides",
}
TEXTS = {
    "test_plain[/twice]": " µs per request in 2 calls: ",
    "test_plain[/dumped]": "makes 1 shop.Tea from what the handler" if OBJECTS else "ready Response",
    "test_plain[/checked]": "calls validators of shop.Checked once, though",
    "test_plain[/anew]": "itself; return a ready Response" if OBJECTS else "ready Response",
    "test_overridden": "has 1 entry, so FastAPI rebuilds a dependency once in",
}


def advised(pytester: pytest.Pytester, spin_us: int = 0, **schedule: float) -> dict[str, dict[str, str]]:
    """Return the texts of the advice by rule, for each test of an inner run."""
    pytester.makepyfile(shop=SHOP.replace("SPIN_US = 0", f"SPIN_US = {spin_us}"), test_shop=TESTS)
    # Every row has an interval sooner if more of the requests are those without probes and by the processor's clock.
    changes: dict[str, Any] = FAST | {"savings_share": 0.0, "parts_time_s": 0.01, "precision_time_s": 0.01}
    changes |= {"whole_every": 2, "cpu_every": 2} | schedule
    result = run_inside(pytester, "--mw-budget", "-v", "--mw-budget-json=mw.json", plugins=[Scheduled(**changes)])
    result.assert_outcomes(passed=9)
    document: Any = json.loads((pytester.path / "mw.json").read_text(encoding="utf-8"))
    assert misfits(document) == []
    output = " ".join(result.stdout.str().split())
    every = [advice for measurement in document["measurements"] for advice in measurement["advice"]]
    firsts = {(advice["layer"], advice["rule"]): advice["text"] for advice in reversed(every)}
    assert all(f"advice: {text} (" in output for text in firsts.values())
    return {
        measurement["nodeid"].partition("::")[2]: {advice["rule"]: advice["text"] for advice in measurement["advice"]}
        for measurement in document["measurements"]
    }


def test_advice_on_what_fastapi_does_again(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    # However little a part takes: only what it does decides.
    monkeypatch.setattr(advice, "LARGE_US", -math.inf)
    monkeypatch.setattr(advice, "LARGE_SHARE", -math.inf)
    given = advised(pytester)
    of_result = {"serialization"}
    assert {nodeid: {*lines} - of_result for nodeid, lines in given.items()} == {
        nodeid: {FOUND.get(nodeid)} - of_result - {None} for nodeid in given
    }
    for nodeid, text in TEXTS.items():
        assert text in given[nodeid][FOUND[nodeid]]


@pytest.mark.live
@pytest.mark.once
@readings
def test_advice_on_what_fastapi_does_again_and_what_it_costs(pytester: pytest.Pytester) -> None:
    given = advised(pytester, spin_us=1000, parts_time_s=1.0, precision_time_s=1.0)
    rules = {nodeid: [*lines] for nodeid, lines in given.items()}
    expected = {nodeid: [FOUND[nodeid]] if nodeid in FOUND else [] for nodeid in given}
    for nodeid in rules:
        never(not {*rules[nodeid]} <= {*expected[nodeid]}, f"{nodeid} is given the advice {rules[nodeid]}")
    if rules != expected and unsure(pytester):
        raise BusyError("the interval of an endpoint is wide, and no advice rests on such a figure")
    assert rules == expected


def unsure(pytester: pytest.Pytester) -> bool:
    """Return whether the interval of an endpoint in the report of `advised` goes beyond a fifth of its estimate."""
    document: Any = json.loads((pytester.path / "mw.json").read_text(encoding="utf-8"))
    endpoints = [measurement["endpoint_us"] for measurement in document["measurements"]]
    return any(None in us.values() or us["high"] - us["low"] > 0.4 * us["estimate"] for us in endpoints)
