"""`longpoll lesson`: shows the lessons' exercises and checks answers.

If possible, the command computes the right answer by replaying a run, exploring a policy, or running a program.
"""
