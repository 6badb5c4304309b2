"""What to measure when no test says it: the requests of a file or of the app's route table, on an app that runs once.

May import: `engine` and what is below it.
"""
