"""Apps with published middlewares and instrumentation: their layers are found, measured and left as they were.

Each app runs in a process of its own, because instrumentation patches classes for good. The packages are in the group
`frameworks`; MWBUDGET_REQUIRE_FRAMEWORKS=1 requires them all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from .apps import LEAN
from .conftest import needs
from .readings import readings

pytestmark = pytest.mark.live

ROOT = Path(__file__).parent.parent

FASTAPI = """
from fastapi import FastAPI

app = FastAPI()

@app.get("/hello")
async def hello():
    return {"hello": "you"}
"""

# Makes a request before, during and after a measurement, and prints what came of it.
TEST = """
import asyncio
import json

import httpx
import pytest

from app import app
from tests.apps import unchanged_code

@pytest.fixture
def mw_budget_app():
    return app

def test_measured(mw_budget):
    plain = requested()
    with unchanged_code():
        measurement = mw_budget.get("/hello")
    found = {
        "rows": [(row.name, bool(row.layer.merged_with or (row.us and row.counts))) for row in measurement.layers],
        "outside": [measurement.books.outside.estimate, measurement.books.total.estimate],
        "answers": list(map(facts, [plain, measurement.response, requested()])),
        "notes": measurement.notes,
    }
    with open("found.json", "w") as file:
        json.dump(found, file)

def requested():
    async def main():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as client:
            return await client.get("/hello")

    return asyncio.run(main())

def facts(response):
    return [response.status_code, response.text, sorted(response.headers)]
"""
CONFTEST = """
from pytest_mwbudget.session.gate import SCHEDULE
from pytest_mwbudget.timing.schedule import Schedule
from tests.apps import FAST

def pytest_configure(config):
    config.stash[SCHEDULE] = Schedule(**FAST)
"""


@dataclass(frozen=True)
class Case:
    """An app: the package that it needs, and its layers of this package. The source is `before`, FASTAPI, `after`.

    `outside` means that some of the package stands round the app object.
    """

    package: str
    layers: tuple[str, ...]
    after: str = ""
    before: str = ""
    outside: bool = False

    @property
    def source(self) -> str:
        return self.before + FASTAPI + self.after


CASES = {
    "sentry-sdk": Case(
        "sentry_sdk",
        ("SentryAsgiMiddleware",),
        """
import sentry_sdk
from sentry_sdk.integrations.asgi import SentryAsgiMiddleware

sentry_sdk.init("http://key@localhost:1/1", traces_sample_rate=1.0, default_integrations=False)
app.add_middleware(SentryAsgiMiddleware)
""",
    ),
    # As most apps have it: the SDK patches the class of the app, and makes its middleware for each request.
    "sentry-sdk by itself": Case(
        "sentry_sdk",
        (),
        before="""
import sentry_sdk

sentry_sdk.init("http://key@localhost:1/1", traces_sample_rate=1.0)
""",
        outside=True,
    ),
    "opentelemetry-instrumentation-fastapi": Case(
        "opentelemetry.instrumentation.fastapi",
        ("OpenTelemetryMiddleware",),
        """
from opentelemetry.instrumentation.fastapi import FastAPIInstrumentor
from opentelemetry.sdk.trace import TracerProvider

FastAPIInstrumentor.instrument_app(app, tracer_provider=TracerProvider())
""",
    ),
    "opentelemetry-instrumentation-asgi": Case(
        "opentelemetry.instrumentation.asgi",
        ("OpenTelemetryMiddleware",),
        """
from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
from opentelemetry.sdk.trace import TracerProvider

app.add_middleware(OpenTelemetryMiddleware, tracer_provider=TracerProvider())
""",
    ),
    "prometheus-fastapi-instrumentator": Case(
        "prometheus_fastapi_instrumentator",
        ("PrometheusInstrumentatorMiddleware",),
        """
from prometheus_fastapi_instrumentator import Instrumentator

Instrumentator().instrument(app).expose(app)
""",
    ),
    "slowapi": Case(
        "slowapi",
        ("SlowAPIMiddleware", "SlowAPIASGIMiddleware"),
        """
from slowapi import Limiter
from slowapi.middleware import SlowAPIASGIMiddleware, SlowAPIMiddleware
from slowapi.util import get_remote_address

app.state.limiter = Limiter(key_func=get_remote_address, default_limits=["1000000/second"])
app.add_middleware(SlowAPIASGIMiddleware)
app.add_middleware(SlowAPIMiddleware)
""",
    ),
    "asgi-correlation-id": Case(
        "asgi_correlation_id",
        ("CorrelationIdMiddleware",),
        """
from asgi_correlation_id import CorrelationIdMiddleware

app.add_middleware(CorrelationIdMiddleware)
""",
    ),
    "starlette-context": Case(
        "starlette_context",
        ("RawContextMiddleware", "ContextMiddleware"),
        """
from starlette_context import plugins
from starlette_context.middleware import ContextMiddleware, RawContextMiddleware

app.add_middleware(ContextMiddleware, plugins=(plugins.RequestIdPlugin(),))
app.add_middleware(RawContextMiddleware, plugins=(plugins.CorrelationIdPlugin(),))
""",
    ),
    "starlette-compress": Case(
        "starlette_compress",
        ("CompressMiddleware",),
        """
from starlette_compress import CompressMiddleware

app.add_middleware(CompressMiddleware, minimum_size=1)
""",
    ),
    "elastic-apm": Case(
        "elasticapm",
        ("ElasticAPM",),
        """
from elasticapm.contrib.starlette import ElasticAPM, make_apm_client

options = {"SERVICE_NAME": "test", "DISABLE_SEND": True, "CLOUD_PROVIDER": "none", "CENTRAL_CONFIG": "false"}
app.add_middleware(ElasticAPM, client=make_apm_client(options))
""",
    ),
    "ddtrace": Case(
        "ddtrace",
        ("TraceMiddleware",),
        before="""
import os

os.environ["DD_INSTRUMENTATION_TELEMETRY_ENABLED"] = os.environ["DD_REMOTE_CONFIGURATION_ENABLED"] = "false"

import ddtrace

ddtrace.patch(fastapi=True)
""",
    ),
    # The agent patches the classes of the framework, and puts a layer of its own outside, made for each request.
    "newrelic": Case(
        "newrelic",
        (),
        before="""
import newrelic.agent

newrelic.agent.global_settings().developer_mode = True
newrelic.agent.global_settings().monitor_mode = False
newrelic.agent.initialize()
""",
    ),
    "python-socketio": Case(
        "socketio",
        ("ASGIApp", "FastAPI"),
        """
import socketio

app = socketio.ASGIApp(socketio.AsyncServer(async_mode="asgi"), app)
""",
    ),
}
# Frameworks whose middlewares are ASGI callables, so that they need no module of their own.
CASES |= {
    "litestar": Case(
        "litestar",
        ("CORSMiddleware", "Passing", "CompressionMiddleware"),
        """
from litestar import Litestar, get
from litestar.config.compression import CompressionConfig
from litestar.config.cors import CORSConfig
from litestar.middleware import AbstractMiddleware

class Passing(AbstractMiddleware):
    async def __call__(self, scope, receive, send):
        await self.app(scope, receive, send)

@get("/hello")
async def hello() -> dict[str, str]:
    return {"hello": "you"}

app = Litestar(
    [hello],
    middleware=[Passing],
    cors_config=CORSConfig(),
    compression_config=CompressionConfig("gzip", minimum_size=1),
)
""",
    ),
    "connexion": Case(
        "connexion",
        ("SwaggerUIMiddleware", "RoutingMiddleware", "SecurityMiddleware", "RequestValidationMiddleware"),
        """
import sys
import types

from connexion import AsyncApp

async def hello():
    return {"hello": "you"}

handlers = sys.modules["handlers"] = types.ModuleType("handlers")
handlers.hello = hello
operation = {"operationId": "handlers.hello", "responses": {"200": {"description": "hello"}}}
app = AsyncApp("app")
app.add_api({"openapi": "3.0.0", "info": {"title": "t", "version": "1"}, "paths": {"/hello": {"get": operation}}})
""",
    ),
}


@readings
@pytest.mark.parametrize("name", CASES)
def test_an_app_is_measured_and_left_as_it_was(
    name: str, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    needs(case.package, f"the app with {name} needs it", group="frameworks")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(app=case.source, test_it=TEST)
    result = pytester.runpytest_subprocess(*LEAN, "--mw-budget", "-o", "mw_budget_max_time=2", "test_it.py")
    result.assert_outcomes(passed=1)
    document = json.loads((pytester.path / "found.json").read_text())
    assert all(known for _, known in document["rows"])
    names = [row for row, _ in document["rows"]]
    assert [row for row in names if row in case.layers] == list(case.layers), names
    plain, measured, afterwards = document["answers"]
    assert plain == afterwards
    assert plain[0] == 200
    assert plain[:2] == measured[:2]
    noted = any("[outside]" in note for note in document["notes"])
    assert noted is case.outside
