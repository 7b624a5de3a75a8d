"""The output of commands: explorations, proofs, conformance, and findings while a history is followed."""
