"""What a broker does periodically: flush the store, save its tables, delete old files."""
