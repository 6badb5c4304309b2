"""Compare two versions of a project in fresh processes: worktrees, proof of origin, processes, results of pairs.

May import: `interpreter`, `report`, `comparison`, `analysis`, `config`, `model`, `errors`.
"""
