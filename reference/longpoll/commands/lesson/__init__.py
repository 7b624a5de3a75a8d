"""`longpoll lesson`: shows the lessons' exercises and checks answers.

The command computes a right answer if possible: it replays a run, explores a policy, or runs a program.
"""
