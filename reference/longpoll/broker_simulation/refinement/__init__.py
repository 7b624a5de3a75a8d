"""Checks that each step of the real hold service is a step of the specification."""
