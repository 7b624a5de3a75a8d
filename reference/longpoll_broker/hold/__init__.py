"""The hold table: pulls that wait, the notifier and dispatcher that wake them, and the answers that they get."""
