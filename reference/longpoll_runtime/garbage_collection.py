"""How often the interpreter looks for cycles of garbage while a broker starts and serves.

A broker's many short-lived objects hold no cycles: reference counts free them. By default the collector all the same
looks at the young ones after every 700 that stay, which a herd of held pulls or its answers is at once, and walks
everything that lives every few of those times: a third of the time of a send. Cycles do come, from exceptions, so it
is made rare and not switched off.

Leaves out who calls them: a process that does nothing but serve (`longpoll serve`), for the setting is the process's.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

YOUNG_MAX: Final = 50_000
"""Objects that may be made, and not freed, between two looks at the young ones: 5 to 20 MB at most."""
YOUNG_ROUNDS: Final = 20
"""Looks at the young ones for one at the middle-aged; at all that lives the interpreter looks when a quarter is new."""
OLD_ROUNDS: Final = 100


@contextmanager
def no_collections() -> Iterator[None]:
    """Look never until the end of the block, in which much is made that stays, as the queues of a store that is opened.

    Who had switched it off before finds it so afterwards.
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
    """Look rarely until the end of the block, and never again at what lives at its start."""
    previous = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, YOUNG_ROUNDS, OLD_ROUNDS)
    try:
        yield
    finally:
        gc.set_threshold(*previous)
        gc.unfreeze()
