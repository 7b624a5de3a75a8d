"""What a broker knows by name: topics, groups, offsets, subscriptions, producers, accounts, locks."""
