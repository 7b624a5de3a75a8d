"""Quicker ways to bytes that plain code of this package reads and writes as well: equal to them, to the byte."""
