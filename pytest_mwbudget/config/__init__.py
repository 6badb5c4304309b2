"""What users may set, checked: settings of a test, and the budgets that apply to each layer.

May import: `model`, `errors`.
"""
