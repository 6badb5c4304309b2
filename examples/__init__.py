"""Small apps that show the use of pytest-mwbudget. The project's own test run includes their tests."""
