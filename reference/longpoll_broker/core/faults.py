"""What a request, a filter or a read may run into and still be answered for, one tuple for every `except`.

Leaves out AssertionError: a broken invariant of ours must end the thread loudly, not become an answer.
"""

from __future__ import annotations

from typing import Final

from longpoll_broker.errors import BrokerError

FAULTS: Final = (ArithmeticError, BrokerError, LookupError, OSError, RuntimeError, TypeError, ValueError)
