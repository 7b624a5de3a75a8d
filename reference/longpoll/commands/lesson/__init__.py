"""`longpoll lesson`: shows the lessons' exercises and checks answers.

It computes the right answers whenever it can: it replays a run, explores a policy, or runs a program.
"""
