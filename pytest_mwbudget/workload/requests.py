"""The requests to measure: named one by one, listed in a file, or one for each route of the app."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..asgi.app import ASGIApp
from ..asgi.http_library import httpx
from ..asgi.request import build_request
from ..asgi.routes import routes_of
from ..config.settings import MARKER_KEYS, merge
from ..errors import SettingError, near_miss
from ..model.quantities import RPS_SHARE, UNDER_LOAD

# The keys of a request in a file that say what to send. The others are keywords of the marker.
SENT = ("method", "url", "name", "headers", "body", "json")
# What holds for all requests together, because they share one event loop and one lifespan.
SHARED = ("lifespan", "loop")
# What only a request under load is judged by, or takes time for.
OF_LOAD = (*(key for key in UNDER_LOAD if key in MARKER_KEYS), "load_time")
KEYS = (*SENT, *(key for key in MARKER_KEYS if key not in (*SHARED, *OF_LOAD, "repeat")))


@dataclass(frozen=True, slots=True)
class Wanted:
    """A request to measure.

    `options` are what httpx takes to build it. `keywords` are the budgets and other keywords of the marker. `name` is
    its name in reports of pytest. `listed` is whether it stands in a file of requests.
    """

    method: str
    url: str
    options: Mapping[str, Any] = field(default_factory=dict)
    keywords: Mapping[str, Any] = field(default_factory=dict)
    given_name: str | None = None
    listed: bool = False

    @property
    def name(self) -> str:
        """The given name, else the method and the URL."""
        return self.given_name or f"{self.method} {self.url}"

    def built(self) -> httpx.Request:
        """Build the request. Raises SettingError if it cannot be sent."""
        return build_request(self.method, self.url, self.options)


@dataclass(frozen=True, slots=True)
class Workload:
    """The requests to measure, and why routes of the app are left out, by path."""

    requests: tuple[Wanted, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Say how many requests there are, and how many routes were left out for which reason."""
        count = len(self.requests)
        reasons: dict[str, int] = {}
        for why in self.left_out.values():
            reasons[why] = reasons.get(why, 0) + 1
        text = f"{count} request{'' if count == 1 else 's'}"
        if not reasons:
            return text
        return f"{text}; routes left out: {', '.join(f'{number} ({why})' for why, number in reasons.items())}"


@dataclass(frozen=True, slots=True)
class RequestFile:
    """The content of a file: headers for every request, and the requests; none if only headers are given."""

    headers: Mapping[str, str] = field(default_factory=dict)
    requests: tuple[Wanted, ...] = ()


def parsed(line: str, where: str) -> Wanted:
    """Return the request that a line such as "GET /health" names; the method may be left out."""
    method, _, url = line.strip().rpartition(" ")
    if not url.startswith(("/", "http://", "https://")):
        raise SettingError(f"{where} is {line!r}; write a method and a path, for example 'GET /health'")
    wanted = Wanted(method.strip().upper() or "GET", url)
    wanted.built()
    return wanted


def read(path: Path, where: str) -> RequestFile:
    """Read a file of requests. Raises SettingError, which begins with `where`, if a part of it is unusable."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"{where} cannot be read: {error}; give a TOML file with tables [[requests]]") from None
    _only(data, ("headers", "requests"), where)
    tables = data.get("requests", [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise SettingError(f"{where} has requests = {tables!r}; write each request as a table [[requests]]")
    headers = _headers(data.get("headers", {}), where)
    requests = [_request(table, f"{where}, request {number}") for number, table in enumerate(tables, 1)]
    return RequestFile(headers, tuple(requests))


def workload(
    lines: Sequence[Wanted], file: RequestFile, app: ASGIApp | None, headers: Mapping[str, str] | None = None
) -> Workload:
    """Return the requests of the command line; without any those of the file, and without those the routes of `app`.

    The headers of the file and `headers` are sent with each. Raises SettingError if there is none.
    """
    left_out: Mapping[str, str] = {}
    wanted: Iterable[Wanted] = lines or file.requests
    if not wanted:
        routes = routes_of(app)
        wanted, left_out = [Wanted("GET", path) for path in routes.paths], routes.left_out
    common = _joined(file.headers, headers or {})
    requests = _with_distinct_names(
        replace(request, options=_with_headers(request.options, common)) for request in wanted
    )
    if not requests:
        reasons = "".join(f"\n{path}: {why}" for path, why in left_out.items())
        raise SettingError(
            "the app has no route that GET can request as it is, or its route table is not known; name the requests,"
            f" for example 'GET /health'{reasons}"
        )
    return Workload(requests, left_out)


def _with_headers(options: Mapping[str, Any], headers: Mapping[str, str]) -> Mapping[str, Any]:
    """Add headers that the request does not have."""
    merged = _joined(headers, options.get("headers", {}))
    return {**options, "headers": merged} if merged else options


def _joined(wider: Mapping[str, str], closer: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of both; where they have the same header, the closer one."""
    names = {name.lower() for name in closer}
    return {**{name: value for name, value in wider.items() if name.lower() not in names}, **closer}


def _with_distinct_names(requests: Iterable[Wanted]) -> tuple[Wanted, ...]:
    """Leave out repetitions, and number different requests of one name."""
    distinct: list[Wanted] = []
    names: dict[str, int] = {}
    for request in requests:
        if request in distinct:
            continue
        number = names[request.name] = names.get(request.name, 0) + 1
        distinct.append(request if number == 1 else replace(request, given_name=f"{request.name} ({number})"))
    return tuple(distinct)


def _request(table: Mapping[str, Any], where: str) -> Wanted:
    _only(table, KEYS, where)
    url, method, name = table.get("url"), table.get("method", "GET"), table.get("name")
    if not isinstance(url, str) or not url:
        raise SettingError(f"{where} has the url {url!r}; give a path, for example url = '/health'")
    if name is not None and not (isinstance(name, str) and name.strip()):
        raise SettingError(f"{where} has the name {name!r}; give a text, or leave it out")
    if "body" in table and "json" in table:
        raise SettingError(f"{where} has a body and json; give one of them")
    options: dict[str, Any] = {}
    if "headers" in table:
        options["headers"] = _headers(table["headers"], where)
    if "body" in table:
        if not isinstance(table["body"], str):
            raise SettingError(f"{where} has the body {table['body']!r}; give a text, or json = ...")
        options["content"] = table["body"]
    if "json" in table:
        options["json"] = table["json"]
    keywords = {key: value for key, value in table.items() if key not in SENT}
    try:
        if merge([keywords], {}).load_budgets.quantities:
            raise SettingError(_not_under_load(RPS_SHARE))
        wanted = Wanted(
            method.upper() if isinstance(method, str) else method, url, options, keywords, name, listed=True
        )
        wanted.built()
    except SettingError as error:
        raise SettingError(f"{where}: {error}") from None
    return wanted


def _headers(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(header, str) for header in value.values()):
        raise SettingError(
            f"{where} has the headers {value!r}; give texts, for example {{ authorization = 'Bearer t' }}"
        )
    return dict(value)


def _only(table: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in table:
        if key in SHARED:
            raise SettingError(
                f"{where} has {key!r}, which one request cannot set, because all share one loop and one lifespan; set"
                f" mw_budget_{key} in the configuration"
            )
        if key in OF_LOAD:
            raise SettingError(f"{where}: {_not_under_load(key)}")
        if key not in keys:
            raise SettingError(f"{where} has {key!r}.{near_miss(key, keys)} The keys are: {', '.join(keys)}")


def _not_under_load(key: str) -> str:
    return (
        f"{key!r} is for requests under load, and those of a file are made one at a time; use `mwbudget load`, or call"
        " mw_budget.load(...) in a test"
    )
