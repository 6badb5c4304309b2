"""Build the extensions that are written in C. The rest stands in pyproject.toml.

Without a C compiler the package installs all the same, and says what it cannot count and which tools it cannot suspend.
MWBUDGET_REQUIRE_EXTENSION=1 turns a failed build into an error.
"""

import os
from glob import glob

from setuptools import Extension, setup

optional = os.environ.get("MWBUDGET_REQUIRE_EXTENSION", "") in ("", "0")
core = "pytest_mwbudget/counting/c_core"
setup(
    ext_modules=[
        Extension(
            "pytest_mwbudget.counting._core",
            sorted(glob(f"{core}/*.c")),
            depends=[f"{core}/core.h"],
            optional=optional,
        ),
        Extension(
            "pytest_mwbudget.interpreter._tracing", ["pytest_mwbudget/interpreter/_tracing.c"], optional=optional
        ),
    ]
)
