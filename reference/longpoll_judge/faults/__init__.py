"""Histories to try the judge with: simulated ones, and faults planted into any."""
