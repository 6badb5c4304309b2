"""Requests of a test's own clients: recorded where they enter the app, to be repeated there.

May import: `asgi`, `interpreter`, `model` and `errors`. What becomes of a recorded request is up to `session`.
"""
