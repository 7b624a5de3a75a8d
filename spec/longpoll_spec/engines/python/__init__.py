"""The plain engine: terms as Python functions, a state as a tuple."""
