"""Helpers for tests of the law: planted slips, and Hypothesis strategies over terms and runs.

Public, so that whoever changes the law or adds an engine can test it the same way.
"""
