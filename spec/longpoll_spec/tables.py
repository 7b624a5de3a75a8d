"""Build msgspec's table of a class's fields when the class is defined, before any thread can use the class.

msgspec 0.22.0 builds the table when a class is first decoded or converted, and exposes it to other threads half built:
two threads that start at once crash the process with a segmentation fault (docs/upstream.md). Every Struct class that
msgspec can decode has `@with_table` or is a `TabledStruct`; a test checks this. Classes with fields that msgspec cannot
decode need no table.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar, cast, dataclass_transform

import msgspec

S = TypeVar("S", bound=msgspec.Struct)
WITH_TABLE: Final[set[type[msgspec.Struct]]] = set()
"""The classes whose table is built."""


def with_table(cls: type[S]) -> type[S]:
    """Build the table of a class; raises TypeError or NameError for one that msgspec cannot decode."""
    msgspec.json.Decoder(cls)
    WITH_TABLE.add(cls)
    return cls


class _TabledMeta(msgspec.StructMeta):
    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], **options: Any) -> _TabledMeta:
        cls = super().__new__(mcs, name, bases, namespace, **{"frozen": True, "kw_only": True, **options})
        return cast("_TabledMeta", with_table(cast("type[msgspec.Struct]", cls)))


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class TabledStruct(msgspec.Struct, frozen=True, metaclass=_TabledMeta):
    """Base class of families of Structs: each is frozen, has keyword arguments only, and has its table."""
