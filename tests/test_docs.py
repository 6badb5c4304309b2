"""Links have targets, reference pages are complete, README stays short."""

from __future__ import annotations

import configparser
import copy
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_mwbudget import plugin
from pytest_mwbudget.model.quantities import TAILS

from .counted import needs_allocations, needs_objects

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", "docs/*/*.md", "examples/*/*.md")
    for page in ROOT.glob(pattern)
    if page.is_file()
)
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def anchors(page: Path) -> set[str]:
    """List the anchors that GitHub makes of the headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_project_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    broken = []
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_stand_ins_are_async(page: Path) -> None:
    """FastAPI calls a stand-in that is not async in a thread in every request, which would change the rows."""
    text = page.read_text(encoding="utf-8")
    for stand_in in re.findall(r"dependency_overrides\[\w+\] = (\w+)", text):
        assert f"async def {stand_in}(" in text


# ---- reference pages --------------------------------------------------------------------------------------------


def reference(name: str) -> str:
    return (ROOT / "docs" / "reference" / name).read_text(encoding="utf-8")


def keywords() -> list[str]:
    """List the keywords of the marker, as `pytest --markers` does."""
    lines: list[str] = []
    config: Any = SimpleNamespace(
        addinivalue_line=lambda name, line: lines.append(line), option=SimpleNamespace(), getini=lambda name: None
    )
    plugin.pytest_configure(config)
    signature = lines[0].partition("): ")[0]
    return re.findall(r"(\w+)=", signature)


def script(name: str) -> ModuleType:
    """Import a script of docs as a module."""
    spec = importlib.util.spec_from_file_location(f"docs_{name}", ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_tables_are_up_to_date() -> None:
    module = script("tables")
    for page in module.PAGES:
        text = page.read_text(encoding="utf-8")
        assert text == module.renewed(text), f"{page.name} is out of date: python docs/tables.py"
    schema = module.SCHEMA.read_text(encoding="utf-8")
    assert schema == module.completed(schema), "schema.json is out of date: python docs/tables.py"
    settings = module.FOR_PYTEST.read_text(encoding="utf-8")
    assert settings == module.for_pytest(), "settings.json is out of date: python docs/tables.py"


def test_the_schema_gets_the_keys_of_figures_that_it_does_not_have() -> None:
    module = script("tables")
    published = json.loads(module.SCHEMA.read_text(encoding="utf-8"))
    schema, missing = copy.deepcopy(published), {"layer": ("saves_us", "tasks"), "counts": ("objects",), "tails": TAILS}
    for kind, names in missing.items():
        for name in names:
            del schema["$defs"][kind]["properties"][name]
    completed = json.loads(module.completed(json.dumps(schema)))
    for kind, names in missing.items():
        old, new = (document["$defs"][kind] for document in (published, completed))
        assert [*new["properties"]] == [*old["properties"]] == new["required"]
        for name in names:
            assert new["properties"][name]["$ref"] == old["properties"][name]["$ref"]
            assert new["properties"][name]["description"].endswith(".")


def test_the_reference_names_every_option_and_setting() -> None:
    recorded = script("tables")._recorded()
    assert len(recorded.options) > 5
    assert len(recorded.settings) > 10
    text = reference("options.md").replace("\\|", "|")
    assert [name for name, _ in recorded.options + recorded.settings if f"| `{name}` |" not in text] == []


def test_the_reference_names_every_keyword() -> None:
    assert "us" in keywords()
    text = reference("marker.md")
    assert [keyword for keyword in keywords() if f"| `{keyword}` |" not in text] == []


def test_every_page_is_once_in_the_navigation() -> None:
    site = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(leaves(site["project"]["nav"])) == sorted(pages)


def test_the_landing_page_lists_every_page_once() -> None:
    docs = ROOT / "docs"
    pages = [page.relative_to(docs).as_posix() for page in docs.rglob("*.md")]
    expected = [page for page in pages if page != "index.md" and not re.match(r"decisions/\d", page)]
    links = LINK.findall((docs / "index.md").read_text(encoding="utf-8"))
    assert sorted(link for link in links if link.endswith(".md")) == sorted(expected)


@pytest.mark.parametrize(
    "page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: page.relative_to(ROOT).as_posix()
)
def test_a_page_opens_with_a_sentence(page: Path) -> None:
    first = page.read_text(encoding="utf-8").partition("\n\n")[2]
    assert re.match(r"\w.*[.:]$", first.partition("\n\n")[0], re.DOTALL)


def leaves(entry: Any) -> list[str]:
    """List the pages in a part of the navigation."""
    if isinstance(entry, str):
        return [entry]
    return [page for part in (entry.values() if isinstance(entry, dict) else entry) for page in leaves(part)]


def test_the_readme_stays_short() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_the_readme_shows_what_the_example_shows() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text == script("outputs").with_excerpt(text), "README's output is out of date: python docs/outputs.py"


def test_the_picture_of_a_failure_shows_what_the_example_shows() -> None:
    charts = script("charts")
    drawn = charts.terminal(*charts.outputs.failure())
    assert drawn == charts.FAILURE.read_text(encoding="utf-8"), "the picture is out of date: python docs/charts.py"
    described = charts.outputs.failure()[2].partition(": ")[0]
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        assert described in " ".join(page.read_text(encoding="utf-8").split()), (
            f"the text of the picture in {page.name}"
        )


def test_the_gallery_shows_small_pages_that_load_nothing() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    reports = sorted((ROOT / "docs" / "gallery").iterdir())
    assert sorted(re.findall(r"\(gallery/(\S+)\)", page)) == [report.name for report in reports]
    for report in reports:
        assert report.stat().st_size <= 1_000_000
        assert not re.search(r"(src|href)=\"?(https?:)?//", report.read_text(encoding="utf-8"))


@needs_objects
@needs_allocations
def test_the_gate_of_authors_keeps_its_budgets_with_the_starlette_that_is_here(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "how-to" / "middleware-authors.md").read_text(encoding="utf-8")
    for name, text in re.findall(r"^```\w+\n# (\w+\.(?:py|ini))\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        (tmp_path / name).write_text(text, encoding="utf-8")
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(tmp_path / "tox.ini")
    (releases,) = re.findall(r"starlette\{(.*)\}", tox["tox"]["env_list"])
    assert releases.split(",") == re.findall(r"^starlette(\d+): ", tox["testenv"]["deps"], re.MULTILINE)
    command = tox["testenv"]["commands"].format(env_name="here", posargs="-p no:cacheprovider")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout
    (measured,) = json.loads((tmp_path / "here.json").read_text(encoding="utf-8"))["measurements"]
    assert measured["verdict"] == "pass"
