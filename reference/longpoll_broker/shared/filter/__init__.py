"""Filters of subscriptions: tags by their hash, SQL92 on properties."""
