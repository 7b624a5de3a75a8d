"""The specification as an interactive page: data, an interpreter in JavaScript, and controls."""
