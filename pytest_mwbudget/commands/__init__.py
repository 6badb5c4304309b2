"""The commands of `mwbudget`, one module each, and what they share. `__main__` reads their arguments.

May import every other folder.
"""
