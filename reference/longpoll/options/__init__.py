"""Options shared by several commands, with their value types."""
