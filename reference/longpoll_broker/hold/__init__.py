"""The hold table, the notifier and dispatcher that wake its pulls, and the answers to pulls."""
