"""Imports go in one direction only, and an unmarked run imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_mwbudget

PACKAGE = Path(pytest_mwbudget.__file__).parent
# Each module may import those that stand before it; the two exceptions are below.
ORDER = (
    "errors",
    "model",
    "clocks",
    "stats",
    "advice",
    "frames",
    "budgets",
    "settings",
    "tracers",
    "monitoring",
    "instruments",
    "exchange",
    "calls",
    "passing",
    "counters",
    "loops",
    "asgi",
    "discovery",
    "boundaries",
    "timeline",
    "spawning",
    "charging",
    "retention",
    "ledger",
    "counts",
    "samples",
    "nulls",
    "machine",
    "estimates",
    "bisect",
    "timing",
    "marks",
    "profiling",
    "measure",
    "fixture",
    "report",
    "publishing",
    "outputs",
    "recall",
    "turns",
    "capturing",
    "markers",
    "tracebacks",
    "gate",
    "summary",
    "plugin",
    "__main__",
)
# What writes nothing itself reads nothing but finished records; what knows no app stands alone.
ONLY: dict[str, set[str]] = {
    "errors": set(),
    "model": {"errors"},
    "clocks": {"model"},
    "stats": {"model"},
    "advice": {"model"},
    "frames": set(),
    "exchange": set(),
    "tracers": set(),
    "monitoring": set(),
    "calls": {"exchange"},
    "passing": set(),
    "counters": set(),
    "report": set(),
    "report.*": {"model", "advice"},
    "report.benchmark": {"model", "report.json", "report.terminal"},
    "report.flamegraph": {"model", "frames"},
    "report.html": {"model", "report.terminal"},
    "report.github": {"model", "advice", "report.terminal"},
    "report.junit": {"model", "report.terminal"},
    "report.markdown": {"model", "advice", "report.json", "report.terminal"},
    "publishing": {"errors", "measure", "model", "profiling", "report.flamegraph"},
    "machine": set(),
    "recall": {"machine"},
    "turns": {"clocks", "model"},
    "outputs": {"errors", "report.benchmark", "report.html", "report.json", "report.markdown"},
    "gate": {*ORDER, "report.terminal", "report.json", "report.junit"}
    - {"report", "outputs", "gate", "summary", "plugin", "__main__"},
    "summary": {
        "errors",
        "gate",
        "outputs",
        *(f"report.{name}" for name in ("github", "json", "markdown", "terminal")),
    },
    "plugin": {"asgi", "fixture", "gate", "summary"},
    "__main__": {"errors", "outputs", "report.json", "report.terminal"},
}
EXTENSIONS = ("_ledger", "_tracing")  # in C: they import nothing
HEAVY = ("httpx", "anyio", "asgi_lifespan", "starlette", "fastapi", "pyinstrument", "hypothesis", "filelock")


def modules() -> dict[str, Path]:
    """Every module but the package root, by its name below it."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name:
            found[name] = path
    return found


def imported(name: str, path: Path) -> set[str]:
    """The modules of this package that a module imports anywhere in it; "" is the package root."""
    known, found = modules(), set()
    depth = name.count(".") + (path.name == "__init__.py")
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        targets: list[str] = []
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names if alias.name.split(".")[0] == "pytest_mwbudget"]
        elif isinstance(node, ast.ImportFrom) and node.level:
            above = ["pytest_mwbudget", *name.split(".")][: depth + 2 - node.level]
            base = ".".join([*above, *([node.module] if node.module else [])])
            targets = [f"{base}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "pytest_mwbudget":
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
        for target in targets:
            below = target.removeprefix("pytest_mwbudget").lstrip(".")
            if below in EXTENSIONS:
                continue
            while below and below not in known:
                below = below.rpartition(".")[0]
            found.add(below)
    return found


def allowed(name: str) -> set[str]:
    key = "report.*" if name.startswith("report.") and name not in ONLY else name
    return ONLY[key] if key in ONLY else set(ORDER[: ORDER.index(key)])


@pytest.mark.parametrize("name", modules())
def test_a_module_imports_only_what_stands_before_it(name: str) -> None:
    assert imported(name, modules()[name]) <= allowed(name)


@pytest.mark.parametrize("name", modules())
def test_no_module_imports_the_package_root(name: str) -> None:
    assert "" not in imported(name, modules()[name])


def test_the_table_names_every_module_and_no_other() -> None:
    assert {name for name in modules() if not name.startswith("report.")} == set(ORDER)


def test_the_reader_of_imports_sees_every_form(tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(
        "from . import asgi, budgets\n"
        "from .stats import spend\n"
        "import pytest_mwbudget.errors\n"
        "from pytest_mwbudget.model import Layer\n"
        "def late():\n    from .report.json import to_json\n    import pytest_mwbudget\n",
        encoding="utf-8",
    )
    assert imported("measure", source) == {"asgi", "budgets", "stats", "errors", "model", "report.json", ""}
    source.write_text("from ..model import Layer\nfrom .. import Measurement\nfrom .json import to_json\n")
    assert imported("report.terminal", source) == {"model", "", "report.json"}


def in_a_fresh_interpreter(code: str) -> str:
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent
    ).stdout


def loaded_after(statement: str) -> set[str]:
    return set(in_a_fresh_interpreter(f"{statement}\nimport sys\nprint('\\n'.join(sys.modules))").split())


def test_the_plugin_imports_nothing_heavy_and_nothing_of_the_package() -> None:
    loaded = loaded_after("import pytest_mwbudget.plugin")
    assert loaded.isdisjoint(HEAVY)
    assert {name for name in loaded if name.startswith("pytest_mwbudget")} == {
        "pytest_mwbudget",
        "pytest_mwbudget.plugin",
    }


@pytest.mark.parametrize(
    "name",
    [
        "errors",
        "model",
        "stats",
        "budgets",
        "settings",
        "outputs",
        "__main__",
        *(f"report.{name}" for name in ("benchmark", "github", "json", "junit", "markdown", "terminal")),
    ],
)
def test_what_needs_no_app_imports_nothing_heavy(name: str) -> None:
    assert loaded_after(f"import pytest_mwbudget.{name}").isdisjoint({*HEAVY, "pytest", "asyncio"})


def test_every_public_name_can_be_imported_from_the_package_root() -> None:
    for name in pytest_mwbudget.__all__:
        assert getattr(pytest_mwbudget, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Layerr'"):
        pytest_mwbudget.Layerr  # noqa: B018
