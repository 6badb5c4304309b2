"""Layers of frameworks whose middlewares are not ASGI callables: one module a framework, named like its package.

The function `seam` of a module says which callables the framework calls round or beside its handler, and `routes` reads
the table of routes. `starlette`, `fastapi`, `litestar` and `django` name the functions that enter the parts of an
endpoint. The middlewares of the first three are ASGI callables. No module imports a framework.
May import: `asgi.callables`, `interpreter`, `model`, `errors`.
"""
