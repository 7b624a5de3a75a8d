"""The specification and its runs in the languages of other checkers: Promela, TLA+ and ITF."""
