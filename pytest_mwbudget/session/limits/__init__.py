"""The file of limits in a run: judging tests by it, counting in other processes, and writing it."""
