"""What commands print: explorations and proofs as tables and JSON, and what is told while a history is followed."""
