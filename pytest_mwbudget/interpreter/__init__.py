"""Everything that depends on CPython: code patching, stand-ins, foreign tools, real clocks, real files.

`internals` holds each assumption about the interpreter with its self-check.

Knows nothing of ASGI. May import: `model`, `errors`.
"""
