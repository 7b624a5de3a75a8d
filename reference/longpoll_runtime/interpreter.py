"""Tunes the interpreter for a process that only serves (`longpoll serve`). The settings are global.

Garbage collection: the many short-lived objects of a broker have no cycles, so reference counts free them. By default,
the collector still checks the young objects whenever 700 more objects exist, such as held pulls. The collector also
checks all objects often, which takes a third of the time of a send. Exceptions do create cycles, so collections are
made rare instead of disabled.

Thread switches: the I/O thread releases the interpreter at every system call. While another thread computes, such as
the flusher when it indexes keys, the I/O thread by default waits 5 ms for the interpreter, and could have answered
hundreds of requests in this time. With a shorter switch interval the I/O thread hardly waits, which raises the
throughput of producers whose messages have keys by a quarter.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_MAX: Final = 50_000
"""The number of new objects after which a young collection runs. This many objects take 5 to 20 MB."""
YOUNG_ROUNDS: Final = 4
"""The number of young collections after which a middle-aged collection runs. A middle-aged collection stops all threads
for about 25 ms if all its objects are in use."""
OLD_ROUNDS: Final = 500
"""The number of middle-aged collections after which a full collection runs, if a quarter of all objects is new."""


@contextmanager
def no_collections() -> Iterator[None]:
    """Disable collections in a block that creates many lasting objects, such as opening a store.

    Collections that were disabled before the block stay disabled.
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
    """Make collections rare in a `with` block, and exclude objects that exist when the block begins."""
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
"""The switch interval of threads, in seconds. The interval is long compared with the 20 us of a thread switch, and
short compared with the time in which a pull must be woken."""


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Set the switch interval of threads to `TURN_S` in a `with` block."""
    previous = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(previous)
