"""Makes the C library keep freed column memory for the next columns.

By default glibc returns freed memory at the end of its heap to the system at once and gets it back page by page, and
Arrow's own allocator does so where one window follows another. A column of a split has 500 pages, and getting these
costs more than most numpy operations on them. So Arrow's columns come from glibc too, and all threads share one heap.

Source: mallopt(3).
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Final

import pyarrow as pa

_OPTIONS: Final = {-1: (1 << 31) - 1, -3: 32 << 20, -8: 1}
"""M_TRIM_THRESHOLD and M_MMAP_THRESHOLD at the highest that mallopt allows, and M_ARENA_MAX."""


@cache
def keep_freed_memory() -> bool:
    """Keep what is freed, from now on and in the whole process; says whether the C library can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False  # another C library
    can = all(mallopt(option, value) for option, value in _OPTIONS.items())
    if can:
        pa.set_memory_pool(pa.system_memory_pool())
    return can
