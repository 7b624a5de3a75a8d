"""Tunes the interpreter for a process that does nothing but serve (`longpoll serve`), because the settings are global.

Garbage collection: a broker's many short-lived objects have no cycles, so reference counts free them. By default the
collector still checks the young objects after every 700 that stay, as in a herd of held pulls, and often all objects: a
third of a send's time. Exceptions do create cycles, so collections are made rare, not disabled.

Thread switches: the I/O thread releases the interpreter at every system call. While another thread computes (the
flusher, which indexes keys), it waits by default 5 ms each time, in which it could have answered hundreds of requests.
With shorter turns it hardly waits: throughput of producers with keys rises by a quarter.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_MAX: Final = 50_000
"""Maximum unfreed new objects between two young collections: 5 to 20 MB."""
YOUNG_ROUNDS: Final = 4
"""Young collections per middle-aged one, which stops all threads for some 25 ms if all its objects stay."""
OLD_ROUNDS: Final = 500
"""Middle-aged collections per full one, which also waits until a quarter of all objects is new."""


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable collections in a block that creates many lasting objects, such as opening a store.

    Keeps them disabled afterwards if they were before.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def rare_collections() -> Iterator[None]:
    """Make collections rare in a block, and exclude objects that exist at its start."""
    previous = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, OLD_ROUNDS)
    try:
        yield
    finally:
        gc.set_threshold(*previous)
        gc.unfreeze()


TURN_S: Final = 0.0005
"""Long compared with the 20 us of a hand-over, short compared with a wake's allowed time."""


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Limit each thread's turn to `TURN_S` while others want the interpreter, until the end of the block."""
    previous = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(previous)
