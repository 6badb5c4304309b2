"""Build a request from the arguments that httpx takes, and the scope and body that an ASGI app gets for it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import Context
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from ..config.checks import METHOD
from ..errors import SettingError, near_miss
from ..model.results import RequestLine
from .app import Scope
from .http_library import httpx, translated

BASE_URL = "http://testserver"
# Options that take objects of the HTTP library, and all options.
TYPED_OPTIONS = ("params", "headers", "cookies")
REQUEST_OPTIONS = (*TYPED_OPTIONS, "json", "data", "files", "content", "extensions")
BODY_CHUNK_BYTES = 65536


def build_request(method: str, url: object, options: Mapping[str, Any]) -> httpx.Request:
    """Let httpx2 or httpx build a request from REQUEST_OPTIONS, whose values may be objects of either library.

    Raises SettingError for another option, and for values from which no request can be built.
    """
    for name in options:
        if name not in REQUEST_OPTIONS:
            raise SettingError(
                f"a request has no option {name!r}.{near_miss(name, REQUEST_OPTIONS)} The options are:"
                f" {', '.join(REQUEST_OPTIONS)}, expect_status; a redirect is measured as it is, not followed"
            )
    if not isinstance(method, str) or not METHOD.fullmatch(method):
        raise SettingError(f"the method of the request is {method!r}; give the name of one, for example 'GET'")
    url = translated(url)
    if not isinstance(url, (str, httpx.URL)):
        raise SettingError(f"the URL of the request is {url!r}; give a path, for example '/health', or a whole URL")
    try:
        # A client that never sends needs no certificates, and no proxies from the environment.
        with httpx.Client(base_url=BASE_URL, transport=httpx.BaseTransport(), trust_env=False) as client:
            named = {name: translated(value) if name in TYPED_OPTIONS else value for name, value in options.items()}
            client.cookies = named.pop("cookies", None)
            return client.build_request(method, url, **named)
    except Exception as error:  # httpx checks few values, and fails in many ways on a value of the wrong kind
        raise SettingError(
            f"{httpx.__name__} cannot build {method} {url!r} from {dict(options)!r}: {error}; each option takes what"
            f" {httpx.__name__} takes"
        ) from error


@dataclass(frozen=True, slots=True)
class Step:
    """A message of a connection's client, None to only wait, and the number of answers awaited before the next step."""

    message: str | bytes | None
    answers: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestTemplate(ABC):
    """A request that can be sent, or a WebSocket connection that can be opened, any number of times."""

    line: RequestLine
    # The body in pieces, at least one.
    body: tuple[bytes, ...] = (b"",)
    # Each call runs in a copy of this context, or of the current context if this is None.
    context: Context | None = None
    # The names of the extensions that the scope offers and that add messages to a response.
    offered: frozenset[str] = frozenset()
    # What the client of a connection sends and awaits.
    steps: tuple[Step, ...] = ()

    def takes(self, kind: str) -> bool:
        """Return whether a message of this type is taken where ASGI does not expect it: none is, as by uvicorn."""
        return False

    @abstractmethod
    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a new scope. `state` is the lifespan's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltRequest(RequestTemplate):
    """A request that httpx built, with its ASGI headers."""

    request: httpx.Request
    headers: tuple[tuple[bytes, bytes], ...]

    def scope(self, state: Mapping[str, Any] | None) -> Scope:
        """Return a new scope. Calls share only the values that the app put into the lifespan's `state`."""
        url = self.request.url
        raw_path = url.raw_path.partition(b"?")[0]
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": "1.1",
            "server": (url.host, url.port or (443 if url.scheme == "https" else 80)),
            "client": ("127.0.0.1", 50000),
            "scheme": url.scheme,
            "method": self.request.method,
            "root_path": "",
            "path": unquote(raw_path.decode("ascii")),
            "raw_path": raw_path,
            "query_string": url.query,
            "headers": list(self.headers),
            # A shallow copy, as in uvicorn: keys that a request adds do not reach other requests.
            "state": dict(state or {}),
        }


async def template_of(request: httpx.Request) -> BuiltRequest:
    """Read the body of `request` once, so that it can be sent any number of times.

    Raises SettingError when `files` or `content` hold something else than httpx takes.
    """
    try:
        if isinstance(request.stream, httpx.SyncByteStream):
            pieces = list(request.stream)
        else:
            pieces = [piece async for piece in request.stream]
    except (AttributeError, TypeError) as error:  # httpx looks into `files` and `content` only now
        raise SettingError(
            f"the body of {request.method} {request.url} cannot be read: {error}; give bytes, a str or a file for each"
            " of `files`, and for `content` bytes, a str or what yields bytes"
        ) from error
    for piece in pieces:
        if not isinstance(piece, bytes):
            raise SettingError(
                f"the content of {request.method} {request.url} has a piece {piece!r}; give bytes, a str, or what"
                " yields bytes"
            )
    chunks = [
        piece[start : start + BODY_CHUNK_BYTES] for piece in pieces for start in range(0, len(piece), BODY_CHUNK_BYTES)
    ]
    return BuiltRequest(
        line=RequestLine(request.method, url_of(request)),
        body=tuple(chunks) or (b"",),
        request=request,
        headers=tuple((name.lower(), value) for name, value in request.headers.raw),
    )


def url_of(request: httpx.Request) -> str:
    """Return the path with the query."""
    return request.url.raw_path.decode("ascii", "replace")
