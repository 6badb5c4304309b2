"""Small apps that show what pytest-mwbudget is for; they are part of the project's own test run."""
