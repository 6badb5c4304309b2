"""pytest's side: the client that tests use, the gate, the summary, and what outlives a run.

May import: everything but `plugin`, `__main__` and `commands`. Nothing below it imports pytest.
"""
