"""What each layer allocates and spawns: the counting backends in C (`c_core/`) and Python, and who is charged.

May import: `asgi`, `interpreter`, `analysis`, `model`, `errors`.
"""
