"""Fail or warn a test by the verdicts of its requests, and explain why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, TypeAlias

import pytest

from ..config.settings import Settings
from ..errors import BudgetWarning, more_about, tagged
from .configuration import enforced, verbosity
from .tracebacks import raise_at

if TYPE_CHECKING:
    from ..config.budgets import Budgets
    from ..model.results import Result
    from .requests.client import MwBudget
    from .requests.own import OwnRequests

    Client: TypeAlias = MwBudget | OwnRequests

FAILURE_WIDTH = 79


def require_request(item: pytest.Item, client: Client | None) -> None:
    """Fail a test that made no request: its gate would always be open.

    A marker on a class or module fails only the tests in it that take the fixture.
    """
    if (client is not None and client.tried) or not enforced(item.config):
        _require_load(item, client)
        return
    fixture = "mw_budget" in getattr(item, "fixturenames", ())
    if fixture or _marked_itself(item):
        message = (
            "this test is for mw_budget but made no request through the fixture mw_budget, so nothing was measured;"
            " call for example mw_budget.get('/health')"
            if fixture
            else "this test made no request to an ASGI app in this process while it was marked with mw_budget, so"
            " nothing was measured; make one with a client such as starlette's TestClient, httpx's ASGITransport or"
            " Django's AsyncClient, or take the fixture mw_budget and call for example mw_budget.get('/health')"
        )
        if client is not None and client.unknown_clients:
            message += f"; the clients of this version of {', '.join(client.unknown_clients)} are not known here"
        raise_at(item, pytest.fail.Exception(f"{message}\n{more_about('no-request')}", pytrace=False))


def _require_load(item: pytest.Item, client: Client | None) -> None:
    """Fail a test whose own marker has a budget under load, if it made no request under load."""
    if client is None or not client.enforce or not client.settings.loads:
        return
    if any(result.load is not None for result in client.results):
        return
    keyword_sets = [marker.kwargs for marker in item.own_markers if marker.name == "mw_budget"]
    layers = [keywords["layers"] for keywords in keyword_sets if isinstance(keywords.get("layers"), dict)]
    keyword_sets += [bounds for by_name in layers for bounds in by_name.values() if isinstance(bounds, dict)]
    own = {key for keywords in keyword_sets for key, value in keywords.items() if value is not None}
    if budgets := sorted(own & {"rps_share", "p99_ms"}):
        message = (
            f"this test has a budget of {' and '.join(budgets)} but made no request under load, so it was not judged;"
            " call for example mw_budget.load('/health', clients=100), or remove the budget"
        )
        raise_at(item, pytest.fail.Exception(f"{message}\n{more_about('no-request')}", pytrace=False))


def _marked_itself(item: pytest.Item) -> bool:
    """Whether the marker is on the test, not only on its class or module."""
    return any(marker.name == "mw_budget" for marker in item.own_markers)


def enforce(item: pytest.Item, client: Client | None, first: int = 0, *, whole: bool = False) -> None:
    """Fail the test for broken budgets, from its `first` request on, and warn of undecided ones.

    `whole` judges also what concerns all of its requests together.
    """
    if client is None or not client.enforce:
        return
    from ..report.text import printable

    results, settings = client.results[first:], client.settings
    broken = [number for number in range(first, len(client.results)) if settings.fails(client.results[number])]
    texts = [_failure_of(client.results[number], item, settings) for number in broken]
    unknown_layer, unjudged = _of_the_whole(item, client) if whole else (None, None)
    if unknown_layer is not None:
        texts.append(f"{printable(unknown_layer)}\n{more_about('layer-name')}")
    if settings.when_undecided == "fail":
        texts += [
            printable(f"{result.request}: {sentence}")
            for result in results
            for sentence in _unbound(result, client.budgets_of(result))
        ]
        texts += [printable(unjudged)] if unjudged else []
    if texts:
        verdict = pytest.fail.Exception("\n\n".join(texts), pytrace=False)
        verdict.mw_budget_in_failure = broken  # type: ignore[attr-defined]
        verdict.mw_budget_headlines = "; ".join(text.partition("\n")[0] for text in texts)  # type: ignore[attr-defined]
        raise_at(item, verdict)
    if settings.when_undecided == "warn":
        _warn_of(item, client, results, unjudged)


def _of_the_whole(item: pytest.Item, client: Client) -> tuple[str | None, str | None]:
    """Say which budget names a layer that no request has, and why the test as a whole is undecided."""
    none_judged = client.why_none_judged() if _marked_itself(item) else None
    return client.unknown_layer(), none_judged or client.doubtful_layer()


def _failure_of(result: Result, item: pytest.Item, settings: Settings) -> str:
    """What the test's report says of a request that fails it; the table is in the summary where it has only a line."""
    from ..report.terminal import failure
    from ..report.text import printable
    from ..report.view import view

    if item.config.getoption("tbstyle", "auto") == "line":
        return printable(f"{result.request}: {view(result).headline}")
    fails = settings.on_undecided(result) == "fail"
    return failure(result, FAILURE_WIDTH, undecided_fails=fails, verbose=verbosity(item.config) > 0)


def _unbound(result: Result, budgets: Budgets) -> Iterator[str]:
    """Explain budgets that apply to no layer of a request: their gate would always be open."""
    if budgets.default and all(row.layer.kind != "middleware" for row in result.layers):
        yield tagged(
            f"no budget applies ({', '.join(sorted(budgets.default))} for every middleware layer): the request went"
            " through no middleware layer; total_us is a budget for the whole request",
            "no-budget",
        )


def _warn_of(item: pytest.Item, client: Client, results: Sequence[Result], unjudged: str | None) -> None:
    """Warn of undecided budgets. If warnings are errors, the test fails."""
    from ..report.text import printable
    from ..report.view import view

    sentences = [unjudged] if unjudged else []
    for result in results:
        undecided = (finding.sentence for finding in view(result).undecided)
        text = " ".join([*undecided, *_unbound(result, client.budgets_of(result))])
        sentences += [f"{result.request}: {text}"] if text else []
    errors = []
    for sentence in sentences:
        try:
            item.warn(BudgetWarning(printable(sentence)))
        except BudgetWarning as warning:
            errors.append(str(warning))
    if errors:
        remedy = (
            "It failed because warnings are errors in this run. To keep it a warning, add"
            " 'default::pytest_mwbudget.BudgetWarning' at the end of filterwarnings or as the last -W; to ignore it,"
            f" set undecided='pass'.\n{more_about('undecided')}"
        )
        raise_at(item, pytest.fail.Exception("\n\n".join([*errors, remedy]), pytrace=False))
