"""The server's end of an ASGI app: requests, lifespan, event loops, and the discovery of the stack.

May import: `interpreter`, `model`, `errors`.
"""
