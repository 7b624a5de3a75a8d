"""Cuts a history into pieces, judges them, and adds up the results, in one process or on Spark."""
