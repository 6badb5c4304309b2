"""A process imports the project from one worktree, whatever is installed, and proves it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_mwbudget.errors import VersusError
from pytest_mwbudget.versus import imports
from pytest_mwbudget.versus.order import Statement
from pytest_mwbudget.versus.origin import Origin
from pytest_mwbudget.versus.repository import Repository
from pytest_mwbudget.versus.sides import Ran, Side
from pytest_mwbudget.versus.worktrees import worktrees

from .projects import shop

pytestmark = pytest.mark.once

# Runs in a process of its own: enters a worktree, imports modules, prints where they are from.
SCRIPT = f"""
import importlib, importlib.util, json, sys, types
spec = importlib.util.spec_from_file_location("imports", {imports.__file__!r})
imports = importlib.util.module_from_spec(spec)
sys.modules["imports"] = imports
spec.loader.exec_module(imports)
from pathlib import Path
root, checkout, *names = sys.argv[1:]
worktree = imports.Worktree(Path(root), Path(checkout))
worktree.enter()
for name in names:
    importlib.import_module(name)
sys.modules["strange"] = "no module"
proof = worktree.proof()
print(json.dumps([proof.own, proof.elsewhere]))
"""
# What build backends install for editable installs that are no plain path: a finder that knows where each package is.
HOOK = """
import sys
from importlib.util import spec_from_file_location
from pathlib import Path

class Editable:
    @staticmethod
    def find_spec(name, path=None, target=None):
        place = Path({checkout!r}, {inner!r}, *name.split("."))
        for file, within in ((place / "__init__.py", [str(place)]), (place.with_suffix(".py"), None)):
            if file.exists():
                return spec_from_file_location(name, file, submodule_search_locations=within)

sys.meta_path.insert({at}, Editable)
"""
# Imports what is not there.
IMPORTS_LATER = """
for name in ("later", "shop.later"):
    try:
        __import__(name)
    except ModuleNotFoundError as error:
        assert error.name == name
    else:
        raise AssertionError(name)
"""


class Trees:
    """A user's checkout and a worktree of it, with the same packages below `inner`; `installed` is on `sys.path`."""

    def __init__(self, root: Path, inner: str) -> None:
        self.checkout, self.worktree, self.installed = root / "checkout", root / "worktree", root / "installed"
        self.inner = inner
        for place in (self.checkout, self.worktree):
            package = place / inner / "shop"
            package.mkdir(parents=True)
            (package / "__init__.py").write_text("")
            (package / "core.py").write_text("from . import __name__\n")
            (place / "alone.py").write_text("")
        self.installed.mkdir()

    def imports(self, *names: str, path: str = "", place: str = "") -> tuple[list[str], dict[str, str]]:
        arguments = [str(self.worktree), str(self.checkout), *names]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(self.installed)]))}
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, *arguments],
            cwd=self.worktree / place,
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        own, elsewhere = json.loads(run.stdout.splitlines()[-1])
        return own, elsewhere


def own_modules(inner: str) -> list[str]:
    return sorted(str(Path(inner, "shop", name)) for name in ("__init__.py", "core.py"))


@pytest.mark.parametrize("inner", ["", "src"])
def test_modules_of_the_root_and_of_src_are_found(tmp_path: Path, inner: str) -> None:
    assert Trees(tmp_path, inner).imports("shop.core") == (own_modules(inner), {})


@pytest.mark.parametrize("inner", ["src", "lib/python"])
def test_a_path_to_the_checkout_leads_to_the_worktree(tmp_path: Path, inner: str) -> None:
    trees = Trees(tmp_path, inner)
    assert trees.imports("shop.core", path=str(trees.checkout / inner)) == (own_modules(inner), {})


@pytest.mark.parametrize("at", [0, 99])
@pytest.mark.parametrize("inner", ["src", "lib/python"])
def test_import_hooks_of_editable_installs_lead_to_the_worktree(tmp_path: Path, inner: str, at: int) -> None:
    trees = Trees(tmp_path, inner)
    hook = HOOK.format(checkout=str(trees.checkout), inner=inner, at=at)
    (trees.installed / "sitecustomize.py").write_text(hook)
    assert trees.imports("shop.core") == (own_modules(inner), {})


@pytest.mark.parametrize("at", [0, 99])
def test_a_module_that_only_the_clone_has_is_not_found(tmp_path: Path, at: int) -> None:
    """Such as a package that the base does not have yet."""
    trees = Trees(tmp_path, "lib")
    hook = HOOK.format(checkout=str(trees.checkout), inner="lib", at=at)
    (trees.installed / "sitecustomize.py").write_text(hook)
    (trees.checkout / "lib/later.py").write_text("")
    (trees.checkout / "lib/shop/later.py").write_text("")
    (trees.worktree / "alone.py").write_text(IMPORTS_LATER)
    assert trees.imports("shop.core", "alone") == (sorted(["alone.py", *own_modules("lib")]), {})


def test_a_namespace_package_is_that_of_the_worktree(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "src")
    for place in (trees.checkout, trees.worktree):
        (place / "src/shop/__init__.py").unlink()
    (trees.checkout / "src/shop/later.py").write_text("")
    (trees.worktree / "alone.py").write_text(IMPORTS_LATER)
    # What setuptools does: the namespace has a part in the clone.
    (trees.installed / "sitecustomize.py").write_text(
        f"import sys, types\nshop = sys.modules['shop'] = types.ModuleType('shop')\n"
        f"shop.__path__ = [{str(trees.worktree / 'src/shop')!r}, {str(trees.checkout / 'src/shop')!r}]"
    )
    assert trees.imports("shop.core", "alone") == (["alone.py", "src/shop/core.py"], {})


def test_a_project_in_a_directory_of_the_repository_is_found(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "services/api/src")
    (trees.installed / "shop").mkdir()
    (trees.installed / "shop" / "__init__.py").write_text("raise RuntimeError")
    assert trees.imports("shop.core", place="services/api") == (own_modules("services/api/src"), {})


def test_an_installed_copy_does_not_hide_the_worktree(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "src")
    (trees.installed / "shop").mkdir()
    (trees.installed / "shop" / "__init__.py").write_text("raise RuntimeError")
    assert trees.imports("shop.core") == (own_modules("src"), {})


def test_an_installed_copy_of_a_package_in_the_repository_is_named(tmp_path: Path) -> None:
    """It would be measured on both sides, as pip has built it, whatever the branch changes."""
    trees = Trees(tmp_path, "packages/shop/src")
    (trees.installed / "shop").mkdir()
    for name in ("__init__.py", "core.py"):
        (trees.installed / "shop" / name).write_text("")
    assert trees.imports("shop.core") == ([], {})  # a folder that pip cannot install may have any name
    (trees.worktree / "packages/shop/pyproject.toml").write_text("")
    own, elsewhere = trees.imports("alone", "shop.core", "json")
    assert own == ["alone.py"]
    assert sorted(elsewhere) == ["shop", "shop.core"]


def test_what_was_imported_before_is_named(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "src")
    (trees.installed / "sitecustomize.py").write_text(
        f"import sys; sys.path.insert(0, {str(trees.checkout / 'src')!r})\nimport shop"
    )
    own, elsewhere = trees.imports("alone")
    assert own == ["alone.py"]
    assert elsewhere == {"shop": str(trees.checkout / "src/shop/__init__.py")}


def test_a_copy_that_was_imported_before_is_named(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "src")
    (trees.installed / "shop").mkdir()
    (trees.installed / "shop" / "__init__.py").write_text("")
    (trees.installed / "sitecustomize.py").write_text("import shop")
    assert list(trees.imports("alone")[1]) == ["shop"]


def test_other_packages_stay_as_they_are(tmp_path: Path) -> None:
    trees = Trees(tmp_path, "src")
    (trees.installed / "library.py").write_text("")
    assert trees.imports("library", "json") == ([], {})


@pytest.fixture
def origin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    project = shop(tmp_path / "shop")
    project.put("src/shop/app.py", "changed = True\n")
    monkeypatch.chdir(project.root)
    repository = Repository(project.root)
    with worktrees(repository, repository.base(None, {})) as both:
        origin = Origin(both, ["tests/test_shop.py::test_health", "-q"])
        origin.lay_over(Statement(patterns=["test_*.py"], paths=["tests", "src"]))
        yield origin


def side(origin: Origin) -> Side:
    return Side("the base", origin.worktrees.base, origin.worktrees.base, Path.cwd(), [])


def test_a_process_that_proves_its_origin_passes(origin: Origin) -> None:
    origin.check(side(origin), Ran(Any, Statement(own=["src/shop/app.py", "tests/test_shop.py"]), ""))  # type: ignore[arg-type]


def test_modules_from_elsewhere_are_an_error_with_the_way_out(origin: Origin) -> None:
    statement = Statement(
        own=["src/shop/app.py"], elsewhere={f"shop.m{number}": f"/x/m{number}.py" for number in range(5)}
    )
    with pytest.raises(VersusError, match=r"shop\.m0 from /x/m0\.py[\s\S]*and 2 more[\s\S]*--prepare") as raised:
        origin.check(side(origin), Ran(Any, statement, ""))  # type: ignore[arg-type]
    assert raised.value.message_id == "versus-origin"


def test_tests_alone_are_the_same_on_both_sides(origin: Origin) -> None:
    with pytest.raises(VersusError, match="imported no module of this project from the checkout of the base"):
        origin.check(side(origin), Ran(Any, Statement(own=["tests/test_shop.py"]), ""))  # type: ignore[arg-type]


def test_a_pattern_of_all_modules_makes_no_test_of_the_app(origin: Origin) -> None:
    origin.lay_over(Statement(patterns=["*.py"], paths=["tests"]))
    assert "src/shop/app.py" not in origin.laid_over
    assert "tests/test_shop.py" in origin.laid_over


def test_it_is_told_when_no_imported_module_differs(origin: Origin) -> None:
    assert origin.remarks({"base": Statement(own=["src/shop/app.py"])}) == []
    (remark,) = origin.remarks({"base": Statement(own=["src/shop/__init__.py"])})
    assert remark.startswith("none of the 1 modules")
