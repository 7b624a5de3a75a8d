"""Helpers for tests of the law: planted slips, and Hypothesis strategies over terms and runs.

Public, so that a change of the law or a new engine can be tested the same way.
"""
