"""Pulls, held or answered, and who wakes them."""
