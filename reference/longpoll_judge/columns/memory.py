"""Makes the C library keep freed column memory for the next columns.

By default glibc returns freed memory at the end of its heap to the system at once and gets it back page by page. A
column of a split has 500 pages, and getting these costs more than most numpy operations on them. Arrow has its own
allocator and is not affected.

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
"""Most that is kept at the end of the heap; the columns that a step of the judge makes at a time fit."""
_COLUMN_BYTES_MAX: Final = 32 << 20
"""Larger ones are mapped by themselves, and given back when they are freed; mallopt allows no more."""


@cache
def keep_freed_memory() -> bool:
    """Keep a little of what is freed, from now on and in the whole process; says whether the C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # another C library
    # Both: to set the one ends glibc's own adjustment of the other.
    return bool(mallopt(_MMAP_THRESHOLD, _COLUMN_BYTES_MAX) and mallopt(_TRIM_THRESHOLD, _KEPT_BYTES))


def give_back_memory() -> None:
    """Return the kept memory to the system.

    Call it before columns of another kind are made. Getting the memory back costs a fraction of judging a window.
    """
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library
