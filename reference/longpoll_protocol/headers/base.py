"""Base class of headers: decodes a command's text fields, and encodes them.

A missing or invalid field raises `HeaderError` with its name. Numbers follow Java's `parseInt` and `parseLong`,
booleans `parseBoolean`. More lenient than Java, "1.0" and "1e3" are accepted as integers and "1" as true. Values such
as a queue id out of range are not checked.

Source: `RemotingCommand.decodeCommandCustomHeader`. Required fields are those that 4.9.7 and 5.5.0 were seen to
require, fewer than their annotations say.
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

# Twenty digits exceed any int64: longer texts are out of range and must not cost a conversion.
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)
_PLACE: Final = re.compile(r"required field `([^`]+)`|\$\.(\w+)")


class Header(TabledStruct, rename="camel", gc=False):
    """A header with named, typed fields; each subclass is one of RocketMQ's."""

    @classmethod
    def decode(cls, fields: Mapping[str, str] | None) -> Self:
        """Decode the extension fields of a command; unknown ones are ignored. Raises HeaderError."""
        given = {} if fields is None else fields
        try:
            # Lax, because numbers arrive as text.
            header = msgspec.convert(given, cls, strict=False)
        except msgspec.ValidationError:
            header = cls._decode_as_java(given)
        header.check()
        return header

    def check(self) -> None:
        """Check conditions across fields; raises HeaderError. Most headers have none."""

    def encode(self) -> dict[str, str]:
        """Encode the fields as text; None is omitted, as in Java."""
        fields = {}
        for name, value in zip(self.__struct_encode_fields__, astuple(self), strict=True):
            if value.__class__ is int:
                fields[name] = str(value)
            elif value is not None:
                fields[name] = value if value.__class__ is str else _text(value)
        return fields

    @classmethod
    def _decode_as_java(cls, fields: Mapping[str, str]) -> Self:
        """Decode fields that the fast path refused: find the faulty one, or accept "+1", "007" and odd booleans."""
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
    """A reply whose header class has no fields set: `{}` on the wire, unlike a reply without a header."""


@cache
def _kinds(header: type[Header]) -> tuple[frozenset[str], frozenset[str]]:
    """Returns the wire names of integers and of booleans."""
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
    """Returns the field's wire name from the text of a msgspec error."""
    place = _PLACE.search(str(error))
    assert place is not None, error
    return place[1] or place[2]


def _text(value: object) -> str:
    if value.__class__ is bool:
        return "true" if value else "false"
    return str(value)
