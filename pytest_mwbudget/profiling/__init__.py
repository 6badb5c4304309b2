"""Where the time goes inside a layer: sampling with pyinstrument, stacks attributed to layers.

May import: `counting`, `analysis`, `asgi`, `interpreter`, `model`, `errors`.
"""
