"""The records that everything else is made of: the stack and its owners, figures with intervals, results.

May import: `errors`. Frozen, without behaviour beyond reading themselves.
"""
