"""Who may do what: keys, white addresses, and changing both."""
