"""`longpoll lesson`: what the lessons ask, and whether an answer is right.

No answer is compared with a stored one where it can be found out: the law replays a run, explores a policy, or a
program is run.
"""
