"""Time each layer: probes, null layers, the sampler that makes the requests, looks, the speed of the host.

May import: `analysis`, `asgi`, `interpreter`, `config`, `model`, `errors`.
"""
