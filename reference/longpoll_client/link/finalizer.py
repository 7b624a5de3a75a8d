"""A client that nobody holds any more and nobody has closed: it is told of, and ends once nothing waits for it.

Leaves out those that are held by their own threads until they are closed: consumers, and producers of transactions,
which a broker may ask.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable


def when_garbage_collected(client: object, abandon: Callable[[], None], what: str) -> Callable[[], object]:
    """Have `abandon` called when a client is dropped, and a ResourceWarning given; what to call when it is closed.

    Nothing that `abandon` or a thread holds may hold `client`.
    """
    finalizer = weakref.finalize(client, _drop, abandon, what)
    # A process that ends closes everything anyway.
    finalizer.atexit = False
    return finalizer.detach


def _drop(abandon: Callable[[], None], what: str) -> None:
    """On any thread, also in the middle of something else that holds locks."""
    abandon()
    warnings.warn(f"{what} was dropped and not closed: use `with`, or close it", ResourceWarning, stacklevel=3)
