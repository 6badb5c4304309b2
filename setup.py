"""Build the extensions that are written in C. The rest stands in pyproject.toml.

Without a C compiler the package installs all the same, and says what it cannot count and which tools it cannot suspend.
MWBUDGET_REQUIRE_EXTENSION=1 turns a failed build into an error.
"""

import os

from setuptools import Extension, setup

required = os.environ.get("MWBUDGET_REQUIRE_EXTENSION", "") not in ("", "0")
setup(
    ext_modules=[
        Extension(f"pytest_mwbudget.{name}", [f"pytest_mwbudget/{name.replace('.', '/')}.c"], optional=not required)
        for name in ("counting._core", "interpreter._tracing")
    ]
)
