"""Reports of a finished result: terminal, HTML, Markdown, JUnit, GitHub, pytest-benchmark, flamegraph.

`view` derives rows, findings and sentences from a result. Contents make documents of them (`document`), formats lay
documents out: `lines` for terminals, `gfm` as Markdown, `html` in a page.

May import: `analysis.profile_stacks`, `comparison`, `model`, `errors`.
"""
