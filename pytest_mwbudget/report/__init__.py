"""A finished result to text: for the terminal, for a failing test, for machines. Writes nothing itself."""
