"""What two runs of the same requests differ by: what a comparison allows, the changes, results of several files.

Pure. May import: `analysis`, `config`, `model`, `errors`.
"""
