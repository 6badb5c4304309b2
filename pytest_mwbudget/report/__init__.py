"""Reports of a finished result: terminal, HTML, Markdown, JUnit, GitHub, pytest-benchmark, flamegraph.

`view` derives rows, findings and sentences from a result; each report only formats them.

May import: `analysis.profile_stacks`, `model`, `errors`.
"""
