"""What a broker does of itself, again and again: flush, delete, deliver what was delayed."""
