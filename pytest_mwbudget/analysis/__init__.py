"""Turn samples into estimates, rows and verdicts.

Pure: no clock, no app, no event loop, no pytest. May import: `config`, `model`, `errors`.
"""
