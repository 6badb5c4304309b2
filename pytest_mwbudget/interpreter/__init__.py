"""What leans on CPython: patching code, stand-ins, tracers, `sys.monitoring`, clocks that no test can freeze.

Knows nothing of ASGI. May import: `model`, `errors`.
"""
