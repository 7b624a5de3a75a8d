"""A broker's periodic work: flush the store, save its tables, delete old files."""
