"""Transactions: half messages, how they end, and the check-back with their producer."""
