"""The commit log: its files, copies, deletions and retention."""
