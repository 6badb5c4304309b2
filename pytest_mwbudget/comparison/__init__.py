"""What two runs or pairs of processes differ by, what growth is allowed, the history, results of several files.

Pure. May import: `analysis`, `config`, `model`, `errors`.
"""
