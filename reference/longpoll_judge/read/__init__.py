"""Recorded histories as Arrow tables: every format, every fault of one told apart."""
