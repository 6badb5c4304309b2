"""Load: a server in this process, a load generator in another, alternating bursts with layers bypassed and not.

May import: `timing`, `asgi`, `processes`, `interpreter`, `analysis`, `config`, `model`, `errors`. `generator` is a
program of its own and imports nothing of the package.
"""
