"""Build what is written in C, the core that counts and the probes that time. The rest stands in pyproject.toml.

Without a C compiler the package installs all the same: it says what it cannot count, and times with probes in Python.
MWBUDGET_REQUIRE_EXTENSION=1 turns a failed build into an error.
"""

import os

from setuptools import Extension, setup

required = os.environ.get("MWBUDGET_REQUIRE_EXTENSION", "") not in ("", "0")
names = ["_ledger", "_crossings"] if os.name == "posix" else ["_ledger"]  # the probes read POSIX clocks
setup(
    ext_modules=[
        Extension(f"pytest_mwbudget.{name}", [f"pytest_mwbudget/{name}.c"], optional=not required) for name in names
    ]
)
