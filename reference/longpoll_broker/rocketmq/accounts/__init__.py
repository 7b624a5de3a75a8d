"""Accounts: who may send which request for which topic and group."""
