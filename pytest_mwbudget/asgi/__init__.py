"""The server's end of an ASGI app: its loading, requests, lifespan and event loops, and the discovery of its layers.

May import: `interpreter`, `analysis`, `config`, `model`, `errors`.
"""
