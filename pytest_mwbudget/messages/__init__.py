"""The page of each message that has an id: what was seen, why, what to do; and how a terminal shows it.

May import: `errors`. docs/tables.py makes docs/advice.md and docs/reference/messages.md from these files.
"""
