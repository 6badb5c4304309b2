"""What a user writes to learn what each layer costs, one file a way; `peers.py` runs them and counts their lines."""
