"""Faster versions of some services, with byte-identical answers and stored data.

Not needed to understand holding or storing. `longpoll serve --plain` runs without them, and a test compares both.
"""
