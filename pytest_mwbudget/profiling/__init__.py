"""Profile the inside of layers: sampling with pyinstrument, attribution of stacks to layers.

May import: `counting`, `analysis`, `asgi`, `interpreter`, `model`, `errors`.
"""
