"""What is stored and read again: the codec of results and its schema, the history, saved runs, the process lock.

Nothing here depends on reports. May import: `interpreter`, `comparison`, `model`, `errors`.
"""
