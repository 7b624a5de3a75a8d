"""Tables and decisions that several services share: topics, subscriptions, offsets, filters, quotas, versions.

No threads, clocks, sockets or files: time is an argument.
"""
