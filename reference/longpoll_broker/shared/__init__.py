"""Decisions and tables that several rooms share: topics, subscriptions, offsets, filters, quotas, version differences.

No thread, clock, socket or file: time comes in by argument.
"""
