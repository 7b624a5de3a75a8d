"""The specification and its runs in the languages of other checkers: Promela and TLA+, and as JSON."""
