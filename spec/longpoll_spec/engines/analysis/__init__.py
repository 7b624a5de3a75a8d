"""Analyses of the specification: symmetry, ranges of terms, simpler equal terms."""
