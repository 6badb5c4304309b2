"""A request that no test makes: the item that stands for it, and the client that makes it on the app's one loop."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest

from ...asgi.app import checked_app
from ...asgi.calling import Hosting
from ...asgi.stack import Stack
from ...config.settings import Settings
from ...errors import AppError, LifespanError, MwBudgetError
from ...model.results import Measurement, RequestLine
from ...workload.host import Host, why_left_out
from .client import MwBudget
from .names import Applying, UnmatchedNames

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
                self.failed = client.item.nodeid
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


def hosted(request: pytest.FixtureRequest, **fields: Any) -> HostedClient:
    """Return the client of a RequestItem, with the fields of any client."""
    return HostedClient(
        **fields,
        item=request.node,
        hosts=request.config.stash.setdefault(_hosts, Hosts(request.session)),
        # The fixture's own end comes after that of the app, whatever its scope.
        kept_alive=request._get_active_fixturedef("mw_budget_app"),
    )


@dataclass(kw_only=True)
class HostedClient(MwBudget):
    """The client of an item: its app has one event loop and one lifespan for all items.

    `kept_alive` is the fixture that has the app. `unmatched` are the names in budgets of the configuration that match
    nothing in the request; None if it was not measured.
    """

    item: RequestItem
    hosts: Hosts
    kept_alive: Any
    unmatched: UnmatchedNames | None = None

    def _on_a_loop(self, request: Callable[[], Coroutine[Any, Any, Measurement]]) -> Measurement:
        """Make a request on the loop of the app; skip the test if its response cannot be measured."""
        __tracebackhide__ = True
        host = self.hosts.of(self)

        async def hosted(hosting: Hosting) -> Measurement:
            __tracebackhide__ = True
            self.hosting = hosting
            try:
                return await request()
            finally:
                self.hosting = None  # a method with `a` may be called on another loop, where the app does not run

        try:
            return host.run(hosted)
        except MwBudgetError as error:
            reason = why_left_out(error, self.settings)
            # Who lists a request and wants no undecided verdict wants this one.
            if reason is None or (self.item.wanted.listed and self.settings.when_undecided == "fail"):
                raise
            self.leave_out(RequestLine(self.item.wanted.method, self.item.wanted.url), reason)
            pytest.skip(reason)

    def _expecting(self, expect_status: int | None) -> Settings:
        self.settings = super()._expecting(expect_status)
        return self.settings

    def _begin(self) -> None:
        super()._begin()
        self.settings = replace(self.settings, place="file" if self.item.wanted.listed else "configuration")

    def _choose(self, stack: Stack, settings: Settings) -> Settings:
        """Leave out the budgets of the configuration that name layers of other routes only."""
        own = self.item.wanted.keywords
        applying = Applying.to(stack, settings, own.get("layers", ()), own.get("endpoint", ()))
        self.unmatched = applying.unmatched
        return applying.settings
