"""Your own invariant: statements that are to be true of every state of RocketMQ 4.9.

    longpoll lesson 6.1 --check docs/lessons/invariant.py

The lesson is docs/lessons/6-prove-it.md.
"""


def statements(state):
    """A name and a statement of each request."""
    for request in state.requests:
        yield "deadline", request.deadline >= 0
