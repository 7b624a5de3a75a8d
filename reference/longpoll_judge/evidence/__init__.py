"""The completeness of a history: where its sources begin and end, and its gaps."""
