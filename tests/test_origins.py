"""Whose code a layer is: the project's own, or that of an installed distribution; and how reports say it."""

from __future__ import annotations

import functools
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.gzip import GZipMiddleware

from pytest_mwbudget.asgi.origins import origin_of
from pytest_mwbudget.model.places import STANDARD_LIBRARY, is_own
from pytest_mwbudget.model.stack import Origin
from pytest_mwbudget.report.html import render as html
from pytest_mwbudget.report.markdown import render as markdown
from pytest_mwbudget.report.view import view
from pytest_mwbudget.storage import codec

from .apps import Noop, hello, outer, stack_of
from .canned import as_json, but, one_run
from .test_report_html import read
from .test_report_json import RESULT
from .test_report_schema import misfits
from .test_report_terminal import counted, failure, lines, result, row

app = FastAPI()


@app.middleware("http")
async def add_header(request: Any, call_next: Any) -> Any:
    return await call_next(request)


LINE = add_header.__code__.co_firstlineno


def origins(some_app: Any) -> dict[str, Origin | None]:
    return {layer.name: layer.origin for _, layer in stack_of(some_app, "/docs").layers}


def test_a_layer_is_the_projects_or_of_the_distribution_that_installed_it() -> None:
    by_layer = origins(Noop(app))
    assert {by_layer[name].distribution for name in by_layer if by_layer[name]} == {None, "starlette", "fastapi"}
    assert by_layer["Noop"] == Origin()
    assert by_layer["ServerErrorMiddleware"] == Origin("starlette")
    assert by_layer["FastAPI"] == Origin("fastapi")


def test_a_layer_made_of_a_function_comes_from_the_function_and_has_its_place() -> None:
    origin = origins(app)["BaseHTTPMiddleware[add_header]"]
    assert origin == Origin(None, f"{__name__}.add_header", str(Path(__file__).relative_to(Path.cwd())), LINE)
    assert origin.own
    assert origin.place.endswith(f"test_origins.py:{LINE}")


def test_a_closure_has_the_place_of_its_function_too() -> None:
    origin = origin_of(outer(hello))
    assert origin.own
    assert origin.function == "tests.apps.outer.<locals>.inner"
    assert origin_of(outer(hello).__code__).file == origin.file


def test_a_working_directory_that_is_gone_shortens_no_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert origin_of(outer(hello)).file == hello.__code__.co_filename


class Dispatch:
    async def __call__(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)

    async def method(self, request: Any, call_next: Any) -> Any:
        return await call_next(request)


class Own(BaseHTTPMiddleware):
    dispatch = Dispatch.method  # type: ignore[assignment]


def test_what_dispatches_is_followed_through_partials_methods_and_objects() -> None:
    partial = origin_of(BaseHTTPMiddleware(hello, dispatch=functools.partial(add_header)))
    assert partial.function == f"{__name__}.add_header"
    method = origin_of(BaseHTTPMiddleware(hello, dispatch=Dispatch().method))
    assert method.function == f"{__name__}.Dispatch.method"
    assert origin_of(BaseHTTPMiddleware(hello, dispatch=Dispatch())) == Origin()
    assert origin_of(Own(hello)) == Origin()


def test_classes_of_the_project_are_its_own_and_so_is_generated_code() -> None:
    assert origin_of(Noop(hello)) == Origin()
    names: dict[str, Any] = {"__name__": "generated"}
    exec("async def layer(scope, receive, send): ...\nclass Made: ...", names)
    assert origin_of(names["layer"]).distribution is None
    assert origin_of(names["Made"]()) == Origin()


# ---- installed files ----------------------------------------------------------------------------------------------


def loaded(folder: Path, name: str) -> Any:
    """Return an instance of the class Layer of a module file below `folder`."""
    path = folder / f"{name.replace('.', '/')}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("class Layer: ...\n")
    names: dict[str, Any] = {"__name__": name}
    exec(compile(path.read_text(), path, "exec"), names)
    module = type(sys)(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    return names["Layer"]()


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of installed packages inside a project."""
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.chdir(tmp_path)
    return tmp_path / ".venv" / "lib" / "python3" / "site-packages"


def install(site: Path, name: str, *paths: str) -> None:
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{path},sha256=x,1\n" for path in paths))


def test_an_environment_inside_the_project_is_not_its_own(site: Path) -> None:
    install(site, "layers-of-others", "layers/one.py")
    assert origin_of(loaded(site, "layers.one")) == Origin("layers-of-others")


def test_distributions_that_share_a_namespace_are_told_apart(site: Path) -> None:
    install(site, "shared-a", "shared/a.py")
    install(site, "shared-b", "shared/b.py")
    assert origin_of(loaded(site, "shared.a")) == Origin("shared-a")
    assert origin_of(loaded(site, "shared.b")) == Origin("shared-b")


def test_a_file_that_no_distribution_records_has_the_name_of_its_package(site: Path) -> None:
    assert origin_of(loaded(site, "nameless.one")) == Origin("nameless")
    assert origin_of(loaded(site, "single")) == Origin("single")


def test_a_package_in_editable_mode_is_the_projects_own(tmp_path: Path, site: Path) -> None:
    install(site, "editable", "__editable__.editable.pth")
    assert origin_of(loaded(tmp_path / "src", "editable.layers")) == Origin()


def test_files_of_python_and_no_files_are_not_the_projects() -> None:
    assert not is_own(f"{STANDARD_LIBRARY}/asyncio/tasks.py")
    assert not is_own(metadata.__file__)
    assert not is_own(GZipMiddleware.__call__.__code__.co_filename)
    assert [is_own(name) for name in ("", "<string>", "<frozen importlib._bootstrap>", "/srv/app/main.py")] == [
        *[False] * 3,
        True,
    ]


# ---- reports --------------------------------------------------------------------------------------------------------

OWN = Origin(None, "shop.add_header", "shop/app.py", 12)
FOUND = result(
    row(0, "CORS", 9.0, 50, origin=Origin("starlette")),
    row(1, "BaseHTTPMiddleware[add_header]", 130.0, 50, "fail", origin=OWN),
    row(2, "Auth", 4.0, 50, origin=Origin()),
    row(3, "GZip", 4.0, 50, origin=Origin("starlette")),
    verdict="fail",
)


def test_the_terminal_names_the_projects_layers_first_and_then_those_of_each_distribution() -> None:
    sentence = "own: BaseHTTPMiddleware[add_header] (shop/app.py:12), Auth; from starlette: CORS, GZip"
    assert sentence in " ".join(map(str.strip, lines(FOUND, 100)))
    assert sentence in " ".join(failure(FOUND, 79).split())


def test_a_verbose_row_says_it_itself() -> None:
    shown = "\n".join(lines(FOUND, 100, verbose=True))
    assert "shop.middleware.CORS, middleware, from starlette" in shown
    assert "shop.middleware.Auth, middleware, own" in shown


def test_a_result_that_does_not_know_says_nothing() -> None:
    measurement = result(row(0, "CORS", 9.0, 50))
    assert view(measurement).origins == {}
    assert not any(line.startswith("own") or "from" in line for line in lines(measurement))


def test_the_json_has_it_and_gives_it_back() -> None:
    data = codec.measurement("test_it", but(FOUND, ledger=counted().ledger))
    assert [layer["origin"] and layer["origin"]["distribution"] for layer in data["layers"]] == [
        "starlette",
        None,
        None,
        "starlette",
    ]
    assert data["layers"][1]["origin"]["file"] == "shop/app.py"
    first, *others = RESULT.layers
    whole = replace(RESULT, layers=(replace(first, layer=replace(first.layer, origin=OWN)), *others))
    assert misfits(as_json(one_run(whole, nodeid="test_it"))) == []
    assert [report.layer.origin for report in codec.result(data).layers] == [
        report.layer.origin for report in FOUND.layers
    ]


def test_the_pages_say_it_in_each_row() -> None:
    whole = one_run(but(FOUND, ledger=counted().ledger), nodeid="test_it")
    heads = [head.text for head in read(html(whole)).all("th")]
    assert any("CORS" in head and "from starlette" in head for head in heads)
    assert any("add_header" in head and "own, shop/app.py:12" in head for head in heads)
    assert "<code>CORS</code> from starlette |" in markdown(whole)
