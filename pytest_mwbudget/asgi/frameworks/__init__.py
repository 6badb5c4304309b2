"""Layers of frameworks whose middlewares are not ASGI callables: one module a framework, named like its package.

The function `seam` of a module says which callables the framework calls round or beside its handler, and `routes` reads
the table of routes. A module is imported only for an app whose type comes from that package. It imports no framework.
`starlette` and `fastapi`, whose middlewares are ASGI callables, name the functions that enter the parts of an endpoint.
May import: `asgi.callables`, `errors`.
"""
