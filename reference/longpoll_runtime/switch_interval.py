"""How long a thread of a serving broker may keep the interpreter from another one that wants it.

The I/O thread gives the interpreter up at every system call. While another thread computes (the flusher, which indexes
keys), it then waits for its turn, by default 5 ms each time, in which it could have answered hundreds of requests. With
shorter turns it hardly waits: producers whose messages carry keys get a quarter more through.

Leaves out who calls it: a process that does nothing but serve (`longpoll serve`), for the setting is the process's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

TURN_S: Final = 0.0005
"""Long beside the 20 us of a hand-over, short beside what a wake may take."""


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Let no thread keep the interpreter for longer than `TURN_S` from another, until the end of the block."""
    previous = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(previous)
