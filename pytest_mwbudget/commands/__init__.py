"""The commands of `mwbudget`, one module each. `__main__` reads their arguments.

May import every other folder.
"""
