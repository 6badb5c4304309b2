"""Two versions of a project in fresh processes by turns: worktrees, proof of origin, processes, what the pairs show.

May import: `interpreter`, `report`, `comparison`, `analysis`, `config`, `model`, `errors`.
"""
