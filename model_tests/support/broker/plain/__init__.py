"""Simple, independent implementations with which tests compare the real code."""
