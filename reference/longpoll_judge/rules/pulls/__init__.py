"""The rules for pulls and their answers."""
