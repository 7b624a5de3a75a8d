"""Second implementations, written apart and plainly, to compare the real ones with."""
