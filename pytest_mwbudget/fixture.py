"""The fixture `mw_budget`: an HTTP client of the app under test whose every request is measured."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any

from . import asgi
from .errors import MeasurementError
from .measure import Bench, measure, send_once
from .model import Measurement
from .settings import Settings, status_code


@dataclass
class MwBudget:
    """Makes requests to the app under test, and measures them when enforcement is on.

    `request` and its shorthands take what `httpx` takes to build a request: `params`, `headers`, `cookies`, `json`,
    `data`, `files`, `content`; and `expect_status` for this request. They return a `Measurement` with the response.
    The methods that begin with `a` do the same on the running event loop. A budget that is not kept fails the test
    when the test function ends, so that everything after a request still runs. `reported` counts the results that a
    report has taken along.
    """

    app: object
    settings: Settings
    enforce: bool
    bench: Bench
    results: list[Measurement] = field(default_factory=list)
    reported: int = 0

    async def arequest(self, method: str, url: str, *, expect_status: int | None = None, **options: Any) -> Measurement:
        """Make and measure a request on the running event loop, which must be asyncio's (or uvloop's)."""
        __tracebackhide__ = True
        _require_asyncio()
        app = asgi.checked_app(self.app)
        settings = self.settings
        if expect_status is not None:
            settings = replace(settings, expect_status=status_code(expect_status, "expect_status"))
        request = asgi.build_request(method, url, options)
        if self.enforce:
            measurement = await measure(app, request, settings, self.bench)
        else:
            measurement = await send_once(app, request, settings)
        self.results.append(measurement)
        return measurement

    def request(self, method: str, url: str, *, expect_status: int | None = None, **options: Any) -> Measurement:
        """Make and measure a request on an event loop of its own."""
        __tracebackhide__ = True
        _require_no_loop(method)
        return _run(self.arequest(method, url, expect_status=expect_status, **options))

    def get(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("GET", …)`."""
        __tracebackhide__ = True
        return self.request("GET", url, **options)

    def options(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("OPTIONS", …)`."""
        __tracebackhide__ = True
        return self.request("OPTIONS", url, **options)

    def head(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("HEAD", …)`."""
        __tracebackhide__ = True
        return self.request("HEAD", url, **options)

    def post(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("POST", …)`."""
        __tracebackhide__ = True
        return self.request("POST", url, **options)

    def put(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("PUT", …)`."""
        __tracebackhide__ = True
        return self.request("PUT", url, **options)

    def patch(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("PATCH", …)`."""
        __tracebackhide__ = True
        return self.request("PATCH", url, **options)

    def delete(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `request("DELETE", …)`."""
        __tracebackhide__ = True
        return self.request("DELETE", url, **options)

    async def aget(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("GET", …)`."""
        __tracebackhide__ = True
        return await self.arequest("GET", url, **options)

    async def aoptions(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("OPTIONS", …)`."""
        __tracebackhide__ = True
        return await self.arequest("OPTIONS", url, **options)

    async def ahead(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("HEAD", …)`."""
        __tracebackhide__ = True
        return await self.arequest("HEAD", url, **options)

    async def apost(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("POST", …)`."""
        __tracebackhide__ = True
        return await self.arequest("POST", url, **options)

    async def aput(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("PUT", …)`."""
        __tracebackhide__ = True
        return await self.arequest("PUT", url, **options)

    async def apatch(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("PATCH", …)`."""
        __tracebackhide__ = True
        return await self.arequest("PATCH", url, **options)

    async def adelete(self, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("DELETE", …)`."""
        __tracebackhide__ = True
        return await self.arequest("DELETE", url, **options)


def _require_no_loop(method: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise MeasurementError(
        f"mw_budget.{method.lower()}(...) was called while an event loop runs in this thread; in an async test write"
        f" await mw_budget.a{method.lower()}(...)"
    )


def _require_asyncio() -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        raise MeasurementError(
            "the running event loop is not asyncio's; run this test on asyncio (for anyio: the fixture anyio_backend"
            " returning 'asyncio')"
        ) from None


def _run(coroutine: Coroutine[Any, Any, Measurement]) -> Measurement:
    __tracebackhide__ = True
    # A factory of its own keeps the runner from replacing the thread's current loop, which other plugins may own.
    with asyncio.Runner(debug=False, loop_factory=asyncio.new_event_loop) as runner:
        return runner.run(coroutine)
