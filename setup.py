"""Build the extensions that are written in C, and make the project page. The rest stands in pyproject.toml.

Without a C compiler the package installs all the same, and says what it cannot count and which tools it cannot suspend.
MWBUDGET_REQUIRE_EXTENSION=1 turns a failed build into an error. MWBUDGET_PURE=1 builds no extension: the wheel is for
every interpreter and platform.
"""

import os
import re
import tomllib
from glob import glob
from pathlib import Path

from setuptools import Extension, setup


def is_set(variable: str) -> bool:
    """Return whether a variable of the environment is set, and not to 0."""
    return os.environ.get(variable, "") not in ("", "0")


def project_page() -> str:
    """Return README with absolute links: no package index has the files of the repository."""
    with open("pyproject.toml", "rb") as file:
        source = tomllib.load(file)["project"]["urls"]["Source"]
    init = Path("pytest_mwbudget/__init__.py").read_text(encoding="utf-8")
    version = re.search('^__version__ = "(.*)"', init, re.MULTILINE)[1]

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1].endswith(".svg") else "blob"
        return f"]({source}/{kind}/v{version}/{link[1]}"

    return re.sub(r"\]\((?![a-z]+:|#)([^)]+)", absolute, Path("README.md").read_text(encoding="utf-8"))


optional = not is_set("MWBUDGET_REQUIRE_EXTENSION")
core = "pytest_mwbudget/counting/c_core"
extensions = [
    Extension(
        "pytest_mwbudget.counting._core", sorted(glob(f"{core}/*.c")), depends=[f"{core}/core.h"], optional=optional
    ),
    Extension("pytest_mwbudget.interpreter._tracing", ["pytest_mwbudget/interpreter/_tracing.c"], optional=optional),
    Extension("pytest_mwbudget.timing._pipeline", ["pytest_mwbudget/timing/_pipeline.c"], optional=optional),
]
setup(
    ext_modules=[] if is_set("MWBUDGET_PURE") else extensions,
    long_description=project_page(),
    long_description_content_type="text/markdown",
)
