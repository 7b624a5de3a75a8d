"""The hold table, the notifier and dispatcher that wake held pulls, and the answers to pulls."""
