"""Your own invariant: statements about every state of RocketMQ 4.9.

    longpoll lesson 6.1 --check docs/lessons/invariant.py

The lesson is docs/lessons/6-prove-it.md.
"""


def statements(state):
    """Yield pairs of a name and a statement, here one for each request."""
    for request in state.requests:
        yield "deadline", request.deadline >= 0
