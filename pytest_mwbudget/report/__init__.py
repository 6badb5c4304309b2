"""Reports of a finished result: terminal, HTML, Markdown, JSON, JUnit, GitHub, pytest-benchmark, flamegraph.

`view` works out what a result says; the reports lay it out.

May import: `analysis.profile_stacks`, `model`, `errors`.
"""
