"""Spark: finding Java, starting a session, and judging on it."""
