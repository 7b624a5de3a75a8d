"""The engine of proofs: terms as z3 expressions."""
