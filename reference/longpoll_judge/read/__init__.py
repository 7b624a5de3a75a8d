"""Reads recorded histories of every format as Arrow tables, and reports what cannot be read."""
