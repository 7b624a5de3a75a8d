"""Spark: finds Java, starts a session, and judges on it."""
