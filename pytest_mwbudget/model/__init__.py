"""The records that all other folders use: the stack and its owners, figures with intervals, results.

May import: `errors`. Records are frozen and only compute values from their own fields.
"""
