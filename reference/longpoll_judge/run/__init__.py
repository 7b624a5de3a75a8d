"""Cuts a history into windows, judges each window, and adds up the results, in one process or on Spark."""
