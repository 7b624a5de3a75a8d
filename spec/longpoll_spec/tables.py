"""Has msgspec make its table of a class's fields where the class is defined, before any thread can see the class.

msgspec 0.22.0 makes that table when a class is decoded or converted for the first time, and shows it to other threads
while it is half made: two threads that come first at once end the process with a segmentation fault
(docs/upstream/msgspec-first-use.md). Every Struct class that msgspec can decode carries `@with_table`; a test looks
for one that does not.

Leaves out classes with fields that msgspec cannot decode, which nobody can decode therefore.
"""

from __future__ import annotations

from typing import Final, TypeVar

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
WITH_TABLE: Final[set[type[msgspec.Struct]]] = set()
"""The classes whose table is made."""


def with_table(cls: type[S]) -> type[S]:
    """Make the table of a class; raises TypeError or NameError for one that msgspec cannot decode."""
    msgspec.json.Decoder(cls)
    WITH_TABLE.add(cls)
    return cls
