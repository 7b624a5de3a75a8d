"""The commit log: one file after the other, and what becomes of old ones."""
