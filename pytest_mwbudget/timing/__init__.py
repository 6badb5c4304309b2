"""What each layer's time is: probes, the sampler that makes requests with and without them, the speed of the host.

May import: `analysis`, `asgi`, `interpreter`, `config`, `model`, `errors`.
"""
