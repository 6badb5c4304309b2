"""Profile the inside of layers: sampling with pyinstrument, attribution of stacks to layers.

May import: `counting`, `timing`, `asgi`, `interpreter`, `analysis`, `config`, `model`, `errors`.
"""
