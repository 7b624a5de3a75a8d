"""Simulates a whole broker with clients and faults: one seed gives one run."""
