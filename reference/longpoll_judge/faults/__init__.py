"""Faults that are injected into a recorded history, to see that the judge finds each."""
