"""The file of limits: what it holds, how a result is judged by it, and how it is updated and merged. Pure.

May import: `analysis`, `model`, `errors`.
"""
