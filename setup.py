"""Build the extensions that are written in C. The rest stands in pyproject.toml.

Without a C compiler the package installs all the same, and says what it cannot count and which tools it cannot suspend.
MWBUDGET_REQUIRE_EXTENSION=1 turns a failed build into an error. MWBUDGET_PURE=1 builds no extension: the wheel is for
every interpreter and platform.
"""

import os
from glob import glob

from setuptools import Extension, setup


def is_set(variable: str) -> bool:
    """Return whether a variable of the environment is set, and not to 0."""
    return os.environ.get(variable, "") not in ("", "0")


optional = not is_set("MWBUDGET_REQUIRE_EXTENSION")
core = "pytest_mwbudget/counting/c_core"
extensions = [
    Extension(
        "pytest_mwbudget.counting._core", sorted(glob(f"{core}/*.c")), depends=[f"{core}/core.h"], optional=optional
    ),
    Extension("pytest_mwbudget.interpreter._tracing", ["pytest_mwbudget/interpreter/_tracing.c"], optional=optional),
]
setup(ext_modules=[] if is_set("MWBUDGET_PURE") else extensions)
