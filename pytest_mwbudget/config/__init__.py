"""The settings that users can set, with their checks, and the budgets that apply to each layer.

May import: `model`, `errors`.
"""
