"""Compare two versions of a project in fresh processes: worktrees, proof of origin, processes, results of pairs.

May import: `processes`, `interpreter`, `report`, `storage`, `comparison`, `analysis`, `model`, `errors`.
"""
