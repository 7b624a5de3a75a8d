"""Vectors as other programs read them: what is to be done and what is expected, step by step, with nothing left out."""
