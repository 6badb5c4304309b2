"""A request that no test makes: the item that stands for it, and the client that makes it on the app's one loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from ...asgi.app import checked_app
from ...asgi.calling import Hosting
from ...asgi.request import build_request
from ...asgi.stack import Stack
from ...config.budgets import unmatched, unmatched_parts, without, without_parts
from ...config.settings import Settings
from ...engine import measure
from ...errors import AppError, EndlessError, LifespanError, StatusError
from ...model.remedies import BudgetPlace
from ...model.results import Measurement
from ...workload.host import Host
from .client import MwBudget, with_note_of
from .measured import LeftOut

if TYPE_CHECKING:
    from ...workload.requests import Wanted


class RequestItem(pytest.Function):
    """A test that consists of one request."""

    wanted: Wanted

    @classmethod
    def of(cls, parent: pytest.Module, wanted: Wanted) -> RequestItem:
        """Return the item of a request; the keywords of the request are those of its marker."""
        item: RequestItem = cls.from_parent(parent, name=wanted.name, callobj=_test_of(wanted))
        item.wanted = wanted
        item.add_marker(pytest.mark.mw_budget(**wanted.keywords))
        return item

    def reportinfo(self) -> tuple[str, None, str]:
        """Say that the item is at no line of a file."""
        assert self.parent is not None
        return self.parent.name, None, self.name


def _test_of(wanted: Wanted) -> Any:
    def test(mw_budget: MwBudget) -> None:
        __tracebackhide__ = True
        mw_budget.request(wanted.method, wanted.url, **wanted.options)

    return test


@dataclass
class Hosts:
    """The host of the app, which lives as long as the fixture `mw_budget_app` keeps its value.

    `failed` is the name of the first request for which the app could not be had.
    """

    session: pytest.Session
    host: Host | None = None
    failed: str | None = None

    def of(self, client: HostedClient) -> Host:
        """Return the host of the client's app, started. Skips the test if the app could not be had before."""
        __tracebackhide__ = True
        if self.failed is not None:
            pytest.skip(f"there is no app: see the failure of {self.failed}")
        if self.host is None:
            try:
                self.host = Host(checked_app(client.app), client.settings)
                client.kept_alive.addfinalizer(self.close)
                self.host.start()
            except (AppError, LifespanError):
                self.failed = client.name
                raise
        return self.host

    def close(self) -> None:
        """Shut the app down. Raises LifespanError, unless the user has interrupted the run."""
        host, self.host = self.host, None
        if host is None:
            return
        try:
            host.close()
        except LifespanError:
            # No test is running that could fail, and pytest would end with a traceback.
            if self.session.exitstatus != pytest.ExitCode.INTERRUPTED:
                raise


_hosts: pytest.StashKey[Hosts] = pytest.StashKey()


def hosted(request: pytest.FixtureRequest, plain: MwBudget) -> HostedClient:
    """Return the client of a RequestItem in place of a plain one."""
    item, stash = request.node, request.config.stash
    return HostedClient(
        plain.app,
        plain.settings,
        plain.enforce,
        plain.environment,
        plain.publisher,
        plain.current,
        name=item.nodeid,
        hosts=stash.setdefault(_hosts, Hosts(request.session)),
        # The fixture's own end comes after that of the app, whatever its scope.
        kept_alive=request._get_active_fixturedef("mw_budget_app"),
        strict=tuple(item.wanted.keywords.get("layers", ())),
        strict_parts=tuple(item.wanted.keywords.get("endpoint", ())),
        place="file" if item.wanted.listed else "configuration",
    )


@dataclass
class HostedClient(MwBudget):
    """The client of an item: its app has one event loop and one lifespan for all items.

    `strict` are the layers that budgets of this request name, `strict_parts` the parts of its endpoint. A name of the
    configuration may be on other routes. `kept_alive` is the fixture that has the app. `place` is where budgets of the
    request can stand. `unmatched` are the names that match no layer of the request, None if it was not measured.
    """

    name: str = ""
    hosts: Hosts = field(kw_only=True)
    kept_alive: Any = None
    place: BudgetPlace = "configuration"
    strict: Sequence[str] = ()
    strict_parts: Sequence[str] = ()
    unmatched: Sequence[str] | None = None
    layers: Sequence[str] = ()
    left_out: list[LeftOut] = field(default_factory=list)

    def request(self, method: str, url: str, *, expect_status: int | None = None, **options: Any) -> Measurement:
        """Make and measure a request on the loop of the app; skip the test if its response cannot be measured."""
        __tracebackhide__ = True
        self._begin()
        request = build_request(method, url, options)
        host = self.hosts.of(self)
        self.made += 1
        publish = self.publisher(self.made) if self.publisher else None

        async def measured(hosting: Hosting) -> Any:
            with self.in_time() as environment:
                result = await measure(host.app, request, self.settings, environment, publish, hosting, self._choose)
            return self.noted(result, environment)

        try:
            measurement = with_note_of(self.app, host.run(measured))
        except EndlessError as error:
            self._skip(method, url, error)
        except StatusError as error:
            if self.settings.expect_status is not None:
                raise
            self._skip(method, url, error)
        self.results.append(measurement)
        return measurement

    def _begin(self) -> None:
        super()._begin()
        self.settings = replace(self.settings, place=self.place)

    def fresh_left_out(self) -> Sequence[LeftOut]:
        """Return the requests that were left out since the last call."""
        fresh, self.left_out = self.left_out, []
        return fresh

    def _skip(self, method: str, url: str, error: Exception) -> Any:
        from ...model.results import RequestLine

        reason = str(error).partition("\n")[0]
        self.left_out.append(LeftOut(RequestLine(method, url), reason))
        pytest.skip(reason)

    def _choose(self, stack: Stack, settings: Settings) -> Settings:
        """Leave out the budgets of the configuration that name layers of other routes only."""
        layers = [layer for _, layer in stack.layers]
        missing = [name for name in unmatched(settings.budgets, layers) if name not in self.strict]
        self.unmatched, self.layers = missing, [layer.name for layer in layers]
        parts = unmatched_parts(settings.budgets, [part for _, part in stack.parts])
        of_others = [name for name in parts if name not in self.strict_parts]
        return settings.narrowed(without_parts(without(settings.budgets, missing), of_others))
