"""Transactions: half messages, their end, and the check-back with their producer."""
