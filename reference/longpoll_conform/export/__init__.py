"""Vectors for other programs: complete steps and expected answers."""
