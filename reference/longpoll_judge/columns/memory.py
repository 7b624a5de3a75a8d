"""Has the C library keep the memory of columns that are done with for those that come next.

glibc gives freed memory at the end of its heap back to the system at once, unless told otherwise, and takes it again
page by page: a column of a split has 500 pages, and these cost more than most of what numpy does with them. Leaves out
what Arrow holds, which has an allocator of its own.

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
    """Give back to the system what is kept for columns to come; to take it again costs a fraction of judging a window.

    For when columns of another kind come next, which would lie beside what is kept.
    """
    pa.default_memory_pool().release_unused()
    try:
        ctypes.CDLL(None).malloc_trim(0)
    except (AttributeError, OSError):
        return  # another C library
