"""Makes the C library keep freed column memory for the next columns.

By default, glibc returns freed memory at the end of its heap to the system at once, and must request it again page by
page. A column of a split has 500 pages, and requesting these pages costs more than most numpy operations on them. Arrow
has its own allocator and is not affected.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import pyarrow as pa

_TRIM_THRESHOLD: Final = -1
_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 64 << 20
"""The maximum number of freed bytes to keep at the end of the heap, which is enough for the columns of one step of the
judge."""
_COLUMN_BYTES_MAX: Final = 32 << 20
"""A larger column gets memory of its own from the system, which goes back as soon as it is freed. mallopt allows no
higher limit."""


@cache
def keep_freed_memory() -> bool:
    """Keep some freed memory from now on, in the whole process; returns whether the C library supports it."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # This C library is not glibc.
    # Set both thresholds, because glibc stops adjusting both of them as soon as one is set.
    return bool(mallopt(_MMAP_THRESHOLD, _COLUMN_BYTES_MAX) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))


def give_back_memory() -> None:
    """Return the kept memory to the system.

    Call this function before columns of another kind are created. Requesting the memory again costs little compared
    with judging a window.
    """
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # This C library is not glibc.
