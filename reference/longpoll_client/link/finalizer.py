"""Ends a client that was garbage-collected without `close`, and warns about it.

Consumers and transaction producers are never collected before their close, because their threads hold them.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable


def when_garbage_collected(client: object, abandon: Callable[[], None], what: str) -> Callable[[], object]:
    """Call `abandon` and give a ResourceWarning when a client is garbage-collected; the function to call at its close.

    Neither `abandon` nor a thread may hold `client`.
    """
    finalizer = weakref.finalize(client, _drop, abandon, what)
    # A process that ends closes everything anyway.
    finalizer.atexit = False
    return finalizer.detach


def _drop(abandon: Callable[[], None], what: str) -> None:
    """Runs on any thread, even inside code that holds locks."""
    abandon()
    warnings.warn(f"{what} was dropped and not closed: use `with`, or close it", ResourceWarning, stacklevel=3)
