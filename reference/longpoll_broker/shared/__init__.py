"""Tables and decisions that several services share: topics, subscriptions, offsets, filters, quotas, versions.

These modules use no threads, clocks, sockets or files: time is an argument.
"""
