"""Nothing here measures: each test file brings what it needs."""

pytest_plugins = ["pytester"]
