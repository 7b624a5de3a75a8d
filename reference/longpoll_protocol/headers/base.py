"""What every header can do: read the text fields of a command, and write them.

A field that is missing or not what it must be raises `HeaderError`, which names it. Numbers are read as Java's
`parseInt` and `parseLong` read them, booleans as `parseBoolean`; kinder than Java, "1.0" and "1e3" are taken for whole
numbers and "1" for true.

Leaves out which fields there are, and whether a value makes sense, such as a queue id out of range.

Source: `RemotingCommand.decodeCommandCustomHeader`. Which fields are required in the other modules is what 4.9.7 and
5.5.0 were seen to require, which is less than their annotations say.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Self

import msgspec
from msgspec import Meta, inspect
from msgspec.structs import astuple

from longpoll_protocol.errors import HeaderError
from longpoll_spec.tables import TabledStruct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]

# Twenty digits are more than any int64 has: a longer text is out of range and must not cost a conversion.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_PLACE: Final = re.compile(r"required field `([^`]+)`|\$\.(\w+)")


class Header(TabledStruct, rename="camel", gc=False):
    """A header with named, typed fields; each subclass is one of RocketMQ's."""

    @classmethod
    def decode(cls, fields: Mapping[str, str] | None) -> Self:
        """Read the extension fields of a command; unknown ones are ignored. Raises HeaderError."""
        given = {} if fields is None else fields
        try:
            # Lax: the numbers come as text.
            header = msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError:
            header = cls._decode_as_java(given)
        header.check()
        return header

    def check(self) -> None:
        """Check what no single field shows; raises HeaderError. Most headers have nothing to check."""

    def encode(self) -> dict[str, str]:
        """The fields as text; a field that is None is left out, as in Java."""
        fields = {}
        for name, value in zip(self.__struct_encode_fields__, astuple(self), strict=True):
            if value.__class__ is int:
                fields[name] = str(value)
            elif value is not None:
                fields[name] = value if value.__class__ is str else _text(value)
        return fields

    @classmethod
    def _decode_as_java(cls, fields: Mapping[str, str]) -> Self:
        """Read again what the fast way refused: find the field to blame, or take "+1", "007" and odd booleans."""
        values: dict[str, Any] = dict(fields)
        numbers, booleans = _kinds(cls)
        for name in numbers & fields.keys():
            if not _NUMBER.fullmatch(fields[name]):
                raise HeaderError(cls.__name__, name, f"is not a whole number: {fields[name][:40]!r}")
            values[name] = int(fields[name])
        for name in booleans & fields.keys():
            values[name] = fields[name].lower() == "true"
        try:
            return msgspec.convert(values, cls)
        except msgspec.ValidationError as error:
            name = _name_at_fault(error)
            problem = f"is out of range: {fields[name][:40]!r}" if name in fields else "is missing"
            raise HeaderError(cls.__name__, name, problem) from None


class EmptyHeader(Header):
    """A reply whose header class has no fields set: `{}` on the wire, which is not the same as none."""


@cache
def _kinds(header: type[Header]) -> tuple[frozenset[str], frozenset[str]]:
    """Names on the wire of the whole numbers, and of the booleans."""
    described = inspect.type_info(header)
    assert isinstance(described, inspect.StructType), described
    numbers, booleans = set(), set()
    for field in described.fields:
        types = field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,)
        if any(isinstance(kind, inspect.IntType) for kind in types):
            numbers.add(field.encode_name)
        if any(isinstance(kind, inspect.BoolType) for kind in types):
            booleans.add(field.encode_name)
    return frozenset(numbers), frozenset(booleans)


def _name_at_fault(error: msgspec.ValidationError) -> str:
    """The field's name on the wire, which msgspec gives only within its text."""
    place = _PLACE.search(str(error))
    assert place is not None, error
    return place[1] or place[2]


def _text(value: object) -> str:
    if value.__class__ is bool:
        return "true" if value else "false"
    return str(value)
