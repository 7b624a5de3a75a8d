"""Quicker ways to what plain services do as well: equal to them in every byte that is stored or answered.

To know how a pull is held or a message stored one need not read this. `longpoll serve --plain` serves
without it, and a test compares both.
"""
