"""Layers of frameworks whose middlewares are no ASGI callables: one module a framework, named like its package.

A module says which callables the framework calls round or beside its handler (`seam`), and reads its table of routes
(`routes`). It is imported only for an app whose type comes from that package, and imports no framework itself.
May import: `asgi.callables`, `errors`.
"""
