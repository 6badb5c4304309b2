"""The requests that are measured: of the fixture, of the clients of tests, and those that no test makes."""
