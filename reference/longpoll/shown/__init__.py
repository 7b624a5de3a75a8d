"""What commands on the law print: explorations and proofs as tables and JSON."""
