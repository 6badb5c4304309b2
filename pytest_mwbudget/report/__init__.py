"""A finished result, told: terminal, HTML, Markdown, JSON, JUnit, GitHub, flamegraph, and advice.

May import: `analysis.profile_stacks`, `model`, `errors`.
"""
