"""The index: messages by their keys."""
