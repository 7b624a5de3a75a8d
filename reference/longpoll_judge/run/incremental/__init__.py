"""Judging what is new in a history that is written."""
