"""Access control: which account may send which request for which topic and group."""
