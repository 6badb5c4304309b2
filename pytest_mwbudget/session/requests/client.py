"""The fixture `mw_budget`: an HTTP client of the app under test whose every request is measured."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from functools import wraps
from typing import Any, Concatenate, ParamSpec

from ...asgi import loops
from ...asgi.app import ASGIApp, NamedApp, checked_app
from ...asgi.calling import Hosting, Opening, http_of
from ...asgi.request import build_request
from ...asgi.stack import Stack
from ...asgi.websocket import build_connection
from ...config.checks import check, status_code
from ...config.checks import clients as number_of_clients
from ...config.settings import CLIENTS, Settings, Under
from ...engine import Publish, measure, send_once
from ...errors import MeasurementError, tagged
from ...model.quantities import RPS_SHARE
from ...model.results import Measurement
from .examples import MOST_REQUESTS
from .measured import MeasuredRequests

P = ParamSpec("P")


def _alone(
    method: Callable[Concatenate[MwBudget, P], Coroutine[Any, Any, Measurement]],
) -> Callable[Concatenate[MwBudget, P], Measurement]:
    """Return the method of the client that does the same on an event loop of its own."""
    name, signature = method.__name__.removeprefix("a"), inspect.signature(method)

    @wraps(method)
    def alone(client: MwBudget, /, *arguments: P.args, **options: P.kwargs) -> Measurement:
        __tracebackhide__ = True
        try:
            signature.bind(client, *arguments, **options)
        except TypeError as error:  # with the line of the call, not those of a loop that makes it
            raise TypeError(f"mw_budget.{name}(...): {error}") from None
        client._begin()
        if loops.running():
            raise MeasurementError(
                f"mw_budget.{name}(...) was called while an event loop runs in this thread; in an async test"
                f" write await mw_budget.a{name}(...)",
                message_id="wrong-loop",
            )
        return client._on_a_loop(lambda: method(client, *arguments, **options))

    alone.__name__, alone.__qualname__ = name, f"MwBudget.{name}"
    alone.__doc__ = f"Do what `a{name}` does, on an event loop of its own."
    return alone


@dataclass(kw_only=True)
class MwBudget(MeasuredRequests):
    """Makes requests to the app under test, and measures them when enforcement is on.

    `request` and its shorthands take what `httpx` takes to build a request: `params`, `headers`, `cookies`, `json`,
    `data`, `files`, `content`; and `expect_status` for this request. They return a `Measurement` with the response.
    The methods that begin with `a` do the same on the running event loop. A budget that is not kept fails the test
    when the test function ends, so that everything after a request still runs.

    `publisher` gives the function that keeps the profile of a request, by the number of the request. `current` gives
    the test's settings at the time of a request. `tried` is whether the test has called a method, `made` is the number
    of requests sent. `hosting` is how to call an app that runs already. In an example of Hypothesis a request that is
    made again is sent once, and gets the figures of the first one.
    """

    app: object
    publisher: Callable[[int], Publish] | None = None
    current: Callable[[], Settings] | None = None
    results: list[Measurement] = field(default_factory=list)
    tried: bool = False
    made: int = 0
    hosting: Hosting | None = None

    def __post_init__(self) -> None:
        self._first: dict[object, Measurement] = {}

    async def arequest(
        self, /, method: str, url: str, *, expect_status: int | None = None, **options: Any
    ) -> Measurement:
        """Make and measure a request on the running event loop."""
        __tracebackhide__ = True
        self._begin()
        self._require_loop()
        app, settings = checked_app(self.app), self._expecting(expect_status)
        return await self._sent(app, build_request(method, url, options), settings)

    def _expecting(self, expect_status: int | None) -> Settings:
        """Return the settings, with the expected status of one request if it has its own."""
        if expect_status is None:
            return self.settings
        return replace(self.settings, expect_status=status_code(expect_status, "expect_status"))

    async def _sent(self, app: ASGIApp, request: Opening, settings: Settings) -> Measurement:
        """Send a request with these settings, and measure it if enforcement is on."""
        __tracebackhide__ = True
        self.made += 1
        key = _identity(request, settings)
        if not self.enforce or (self.examples and (key in self._first or len(self._first) >= MOST_REQUESTS)):
            measurement = await send_once(app, request, settings)
            first = self._first.get(key)
            if first is not None and first.status == measurement.status:
                return Measurement.of(first, measurement.response, measurement.answers)
        else:
            measurement = self._first[key] = await self._measured(app, request, settings)
        self.results.append(measurement)
        return measurement

    async def _measured(self, app: ASGIApp, request: Opening, settings: Settings) -> Measurement:
        """Measure a request, with notes on what was left out for a time limit and on how the app was made."""
        __tracebackhide__ = True
        publish = self.publisher(self.made) if self.publisher else None
        with self.in_time() as environment:
            measurement = await measure(app, request, settings, environment, publish, self.hosting, self._choose)
        measurement = self.noted(measurement, environment)
        if not isinstance(self.app, NamedApp) or self.app.note is None:
            return measurement
        return replace(measurement, notes=(*measurement.notes, tagged(self.app.note, "app")))

    def _choose(self, stack: Stack, settings: Settings) -> Settings:
        """Return the settings for a request of this stack."""
        return settings

    async def awebsocket(
        self,
        /,
        url: str,
        *,
        exchange: object,
        subprotocols: Sequence[str] = (),
        expect_status: int | None = None,
        **options: Any,
    ) -> Measurement:
        """Open and measure a WebSocket connection on the running event loop.

        `exchange` is a list of what the client sends: each item is a message, which awaits one answer, or a pair of a
        message and the number of answers. A `str` is sent as text, `bytes` as bytes, a `dict` or `list` as JSON, and
        None sends nothing. `options` are `params`, `headers` and `cookies`.
        """
        __tracebackhide__ = True
        self._begin()
        self._require_loop()
        settings = self._expecting(expect_status)
        connection = build_connection(url, exchange, subprotocols, options)
        return await self._sent(checked_app(self.app), connection, settings)

    async def aload(
        self,
        /,
        url: str,
        *,
        clients: int = CLIENTS,
        method: str = "GET",
        rps_share: float | str | None = None,
        p99_ms: float | None = None,
        expect_status: int | None = None,
        **options: Any,
    ) -> Measurement:
        """Measure a request alone, then under load, on the running event loop.

        A server in this process answers `clients`, which send the request at the same time. `rps_share` is a budget of
        every middleware layer: the share of the requests per second that it costs, for example "5%". `p99_ms` is a
        budget of the latency of the whole app. Both take the place of those of the marker. Other options are those of
        `request`. The figures under load are in `load` of the measurement and of its layers. Needs the extra `load`.
        """
        __tracebackhide__ = True
        self._begin()
        self._require_loop()
        app, under = checked_app(self.app), Under(number_of_clients(clients, "clients"))
        settings = replace(self._expecting(expect_status), load=under if self.settings.loads else None)
        if rps_share is not None:
            default = {RPS_SHARE: check(RPS_SHARE, rps_share, RPS_SHARE)}
            settings = replace(settings, load_budgets=replace(settings.load_budgets, default=default))
        if p99_ms is not None:
            settings = replace(settings, p99_ms=check("p99_ms", p99_ms, "p99_ms"))
        if self.enforce and settings.load is not None:
            from ...load.bursts import require_loop
            from ...load.server import require_server

            require_server()
            require_loop(loops.current().name)
        return await self._sent(app, build_request(method, url, options), settings)

    def _on_a_loop(self, request: Callable[[], Coroutine[Any, Any, Measurement]]) -> Measurement:
        """Make a request on an event loop of its own."""
        __tracebackhide__ = True
        return loops.run(self.settings.loop, request)

    def _begin(self) -> None:
        """Note that a request is tried, and take the settings as they are now."""
        self.tried = True
        if self.current is not None:
            self.settings = self.current()
        if self.settings.limits is not None:
            self.settings = replace(self.settings, limits=self.settings.limits.following(self.results))

    def _require_loop(self) -> None:
        try:
            running = loops.current().name
        except RuntimeError:
            raise MeasurementError(
                "no event loop that can be measured is running; the choices are asyncio, uvloop and trio",
                message_id="wrong-loop",
            ) from None
        wanted = self.settings.loop
        if wanted is not None and wanted != running:
            raise MeasurementError(
                f"loop={wanted!r} was requested, but this test runs on {running}; run it on {wanted} (for anyio, by the"
                f" fixture anyio_backend), use the methods without `a` in a sync test, or omit loop",
                message_id="wrong-loop",
            )

    async def aget(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("GET", …)`."""
        __tracebackhide__ = True
        return await self.arequest("GET", url, **options)

    async def aoptions(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("OPTIONS", …)`."""
        __tracebackhide__ = True
        return await self.arequest("OPTIONS", url, **options)

    async def ahead(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("HEAD", …)`."""
        __tracebackhide__ = True
        return await self.arequest("HEAD", url, **options)

    async def apost(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("POST", …)`."""
        __tracebackhide__ = True
        return await self.arequest("POST", url, **options)

    async def aput(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("PUT", …)`."""
        __tracebackhide__ = True
        return await self.arequest("PUT", url, **options)

    async def apatch(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("PATCH", …)`."""
        __tracebackhide__ = True
        return await self.arequest("PATCH", url, **options)

    async def adelete(self, /, url: str, **options: Any) -> Measurement:
        """Shorthand for `await arequest("DELETE", …)`."""
        __tracebackhide__ = True
        return await self.arequest("DELETE", url, **options)

    request = _alone(arequest)
    websocket = _alone(awebsocket)
    load = _alone(aload)
    get = _alone(aget)
    options = _alone(aoptions)
    head = _alone(ahead)
    post = _alone(apost)
    put = _alone(aput)
    patch = _alone(apatch)
    delete = _alone(adelete)


def _identity(request: Opening, settings: Settings) -> object:
    """Return what tells the requests of a test apart: the query and the body do not."""
    http = http_of(request)
    return http.method, http.url.path, type(request), settings.load
