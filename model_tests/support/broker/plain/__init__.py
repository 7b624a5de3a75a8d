"""Independent, simple implementations to compare the real ones with."""
