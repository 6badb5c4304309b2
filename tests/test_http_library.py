"""Which library builds our own requests, and what becomes of objects of the other one."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pytest_mwbudget.asgi import http_library
from pytest_mwbudget.asgi import request as building
from pytest_mwbudget.asgi.http_library import LIBRARIES, httpx
from pytest_mwbudget.config.settings import Settings
from pytest_mwbudget.errors import SettingError
from pytest_mwbudget.session.requests.client import MwBudget
from pytest_mwbudget.timing.looks import Environment

from .apps import echo
from .conftest import needs

ROOT = Path(__file__).parent.parent
HERE = "library = 'this'\nclass Request: ...\n"
BROKEN = "from anyio import what_only_a_newer_anyio_has\n"


def chosen_among(folder: Path, **modules: str) -> str:
    """Return what a new process says where these modules come before installed ones."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source, encoding="utf-8")
    code = "from pytest_mwbudget.asgi.http_library import httpx; print(httpx.__name__, httpx.library)"
    path = os.pathsep.join([str(folder), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


def test_httpx2_comes_first(tmp_path: Path) -> None:
    assert chosen_among(tmp_path, httpx=HERE, httpx2=HERE) == "httpx2 this"


def test_httpx_is_taken_where_httpx2_cannot_be_imported(tmp_path: Path) -> None:
    assert chosen_among(tmp_path, httpx=HERE, httpx2=BROKEN) == "httpx this"


@pytest.mark.skipif(httpx.__name__ == "httpx2", reason="an installed httpx2 comes before a folder")
def test_httpx_is_taken_beside_a_folder_with_the_name_of_httpx2(tmp_path: Path) -> None:
    (tmp_path / "httpx2").mkdir()
    assert chosen_among(tmp_path, httpx=HERE) == "httpx this"


def test_without_any_library_the_error_names_the_dependency(tmp_path: Path) -> None:
    missing = "raise ModuleNotFoundError(f'No module named {__name__!r}')\n"
    assert chosen_among(tmp_path, httpx=missing, httpx2=missing) == "ModuleNotFoundError: No module named 'httpx'"


def test_importing_the_library_warns_of_nothing() -> None:
    code = "import pytest_mwbudget.engine, sys; print('starlette' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert done.stdout == "False\n"


# ---- objects of the other library -----------------------------------------------------------------------------------


@pytest.fixture(params=LIBRARIES)
def other(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Build requests with one library, and return the other one."""
    for name in LIBRARIES:
        needs(name, "one of the libraries that build requests", "clients")
    (built_with,) = (name for name in LIBRARIES if name != request.param)
    for module in (http_library, building):
        monkeypatch.setattr(module, "httpx", importlib.import_module(built_with))
    return importlib.import_module(request.param)


def cookies(library: Any) -> Any:
    jar = library.Cookies({"a": "1"})
    jar.set("b", "2", domain="testserver.local")
    return jar


def sent(url: Any = "/", **options: Any) -> tuple[str, list[tuple[bytes, bytes]], bytes]:
    """Return URL, headers without the library's own, and body of a request."""
    built = building.build_request("POST", url, options)
    own = {b"user-agent", b"accept-encoding"}
    return str(built.url), [pair for pair in built.headers.raw if pair[0].lower() not in own], built.read()


OBJECTS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "url": lambda library: {"url": library.URL("http://anna:secret@shop:81/a%20b?x=1&x=2")},
    "headers": lambda library: {"headers": library.Headers([(b"x-a", b"1"), (b"x-a", b"2"), (b"X-B", "ä".encode())])},
    "params": lambda library: {"params": library.QueryParams("x=1&x=2&y=")},
    "cookies": lambda library: {"cookies": cookies(library)},
    "content": lambda library: {"content": library.ByteStream(b"tea"), "headers": {"content-length": "3"}},
    "data": lambda library: {"data": library.QueryParams("x=1")},
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_both_libraries_make_the_same_request(other: ModuleType, name: str) -> None:
    make = OBJECTS[name]
    assert sent(**make(other)) == sent(**make(building.httpx))


def test_a_request_of_the_other_library_is_no_url(other: ModuleType) -> None:
    with pytest.raises(
        SettingError, match=r"the URL of the request is <Request\('GET', 'http://shop/'\)>; give a path"
    ):
        sent(other.Request("GET", "http://shop/"))


def test_an_error_names_the_library_that_builds(other: ModuleType) -> None:
    name = building.httpx.__name__
    with pytest.raises(SettingError, match=rf"^{name} cannot build POST '/' .*; each option takes what {name} takes"):
        sent(params=5)


def test_a_response_is_of_the_library_that_builds() -> None:
    client = MwBudget(app=echo, settings=Settings(lifespan=False), enforce=False, environment=Environment())
    response = client.post("/", content=b"x").response
    assert type(response) is httpx.Response
    assert type(response.request) is httpx.Request
