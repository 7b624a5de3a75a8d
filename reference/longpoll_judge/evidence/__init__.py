"""What a history shows about its own completeness: where its sources begin and end, and its gaps."""
