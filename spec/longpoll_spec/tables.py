"""Has msgspec make its table of a class's fields where the class is defined, before any thread can see the class.

msgspec 0.22.0 makes that table when a class is decoded or converted for the first time, and shows it to other threads
while it is half made: two threads that come first at once end the process with a segmentation fault
(docs/upstream.md). Every Struct class that msgspec can decode carries `@with_table` or is a
`TabledStruct`; a test looks for one that is neither.

Leaves out classes with fields that msgspec cannot decode, which nobody can decode therefore.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast, dataclass_transform

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
WITH_TABLE: Final[set[type[msgspec.Struct]]] = set()
"""The classes whose table is made."""


def with_table(cls: type[S]) -> type[S]:
    """Make the table of a class; raises TypeError or NameError for one that msgspec cannot decode."""
    msgspec.json.Decoder(cls)
    WITH_TABLE.add(cls)
    return cls


class _TabledMeta(msgspec.StructMeta):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _TabledMeta:
        cls = super().__new__(mcs, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})
        return cast("_TabledMeta", with_table(cast("type[msgspec.Struct]", cls)))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class TabledStruct(msgspec.Struct, frozen=True, metaclass=_TabledMeta):
    """What families of Structs derive from: every class of theirs is frozen, made by keywords, and has its table."""
