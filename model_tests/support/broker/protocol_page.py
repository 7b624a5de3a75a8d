"""Prints the protocol page, which has a section per request code, made from the classes that decode and encode it.

    python -m model_tests.support.broker.protocol_page

The docstring of a header or body begins with its codes ("14 QUERY_CONSUMER_OFFSET: ...", "The reply to 14, 29, 30 and
31."), and the text after each field describes the field. Frames: see `docs/wire.md`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Final

import msgspec
from attrs import define, field, frozen

from longpoll_broker import hold, io, rocketmq, send, upkeep
from longpoll_broker.rocketmq import transactions
from longpoll_broker.rocketmq.admin import client_processor
from longpoll_broker.rocketmq.name_server import name_server
from longpoll_protocol import bodies, headers
from longpoll_protocol.bodies import Body
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.headers import Header

_OWN_CODE: Final = re.compile(r"(\d+) [A-Z][A-Z0-9_]+")
_PROCESSOR: Final = re.compile(r"RequestCode\.([A-Z0-9_]+)(?:: |\] = )self\.")
_MARKED: Final = re.compile(r"@serves\(([^)]*)\)")
_REPLY: Final = re.compile(r"The reply to ([\d, and]+)")


_PASSED_ON: Final = frozenset(
    {
        "RESET_CONSUMER_CLIENT_OFFSET",
        "GET_CONSUMER_STATUS_FROM_CLIENT",
        "GET_CONSUMER_RUNNING_INFO",
        "CONSUME_MESSAGE_DIRECTLY",
        "PUSH_REPLY_MESSAGE_TO_CLIENT",
    }
)
"""Codes that `rocketmq.admin.client_calls` forwards to a client, under the same code or another one."""


@frozen
class Shape:
    """A header or body class, and the codes whose request or reply it describes."""

    kind: type[msgspec.Struct]
    text: str
    requests: frozenset[int]
    replies: frozenset[int]


@define
class Section:
    code: RequestCode
    server: list[str] = field(factory=list)
    """The components that serve the code or send it."""
    request: list[Shape] = field(factory=list)
    reply: list[Shape] = field(factory=list)


def shapes() -> Iterator[Shape]:
    """Iterate over the headers and bodies whose docstrings name a code."""
    for module in (headers, bodies):
        for _name, kind in sorted(inspect.getmembers(module, inspect.isclass)):
            if issubclass(kind, Header | Body) and kind not in {Header, Body}:
                text = inspect.getdoc(kind) or ""
                told = _REPLY.match(text)
                replies = frozenset(int(code) for code in re.findall(r"\d+", told[1])) if told else frozenset[int]()
                first = text.split(":", 1)[0] if ":" in text else ""
                requests = frozenset(int(code) for code in _OWN_CODE.findall(first)) if not told else frozenset[int]()
                if requests or replies:
                    yield Shape(kind, text, requests, replies)


def served_by(*modules: ModuleType) -> frozenset[str]:
    """Returns the code names in the processor tables and method markers of the modules."""
    sources = [inspect.getsource(module) for module in modules]
    marked = " ".join(found for source in sources for found in _MARKED.findall(source))
    return frozenset(re.findall(r"RequestCode\.(\w+)", marked)).union(*map(_PROCESSOR.findall, sources))


def services() -> Iterator[ModuleType]:
    """Iterate over the modules that may serve requests."""
    for package in (hold, io, send, upkeep, rocketmq):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def sent_by(module: ModuleType) -> frozenset[str]:
    """Returns the names of the codes that a module sends."""
    return frozenset(re.findall(r"code=RequestCode\.([A-Z0-9_]+)", inspect.getsource(module)))


def sections() -> list[Section]:
    """Returns a section for each code that is served or sent, or has a header or body."""
    tables = {
        "served by the broker": served_by(*(module for module in services() if module is not name_server)),
        "served by the name server": served_by(name_server),
        "sent to clients by the broker": sent_by(client_processor) | sent_by(transactions) | _PASSED_ON,
    }
    found = []
    every = list(shapes())
    for code in RequestCode:
        section = Section(code, [name for name, codes in tables.items() if code.name in codes])
        section.request = [shape for shape in every if code in shape.requests]
        section.reply = [shape for shape in every if code in shape.replies]
        if section.server or section.request or section.reply:
            found.append(section)
    return found


def field_texts(kind: type) -> dict[str, str]:
    """Returns the text after each field of a class and its bases, by field name."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("longpoll_protocol"):
            texts |= _own_field_texts(base)
    return texts


def _own_field_texts(kind: type) -> dict[str, str]:
    tree = ast.parse(inspect.getsource(kind))
    (definition,) = tree.body
    assert isinstance(definition, ast.ClassDef)
    texts = {}
    for statement, after in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(statement, ast.AnnAssign)
            and isinstance(statement.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
        ):
            texts[statement.target.id] = " ".join(str(after.value.value).split())
    return texts


def type_name(kind: msgspec.inspect.Type) -> str:  # noqa: PLR0911 - one return a kind
    if isinstance(kind, msgspec.inspect.UnionType):
        return " or ".join(type_name(part) for part in kind.types if not isinstance(part, msgspec.inspect.NoneType))
    if isinstance(kind, msgspec.inspect.IntType):
        return "int64" if kind.le is not None and kind.le > 2**31 else "int32"
    if isinstance(kind, msgspec.inspect.StructType):
        return f"`{kind.cls.__name__}`"
    if isinstance(kind, msgspec.inspect.EnumType):
        return " or ".join(f"`{member.value}`" for member in kind.cls)
    if isinstance(kind, msgspec.inspect.CollectionType):
        return f"list of {type_name(kind.item_type)}"
    if isinstance(kind, msgspec.inspect.DictType):
        return f"map of {type_name(kind.key_type)} to {type_name(kind.value_type)}"
    names = {msgspec.inspect.BoolType: "boolean", msgspec.inspect.StrType: "text"}
    return names.get(type(kind), "any")


def default_text(described: msgspec.inspect.Field) -> str:
    """Returns the text about the value that a missing field gets."""
    if described.required:
        return "required"
    if described.default_factory is not msgspec.NODEFAULT or described.default in ("", frozenset()):
        return "empty"
    if described.default is None or described.default is msgspec.UNSET:
        return "may be left out"
    return f"`{str(described.default).lower() if isinstance(described.default, bool) else described.default}`"


def shape_text(shape: Shape) -> str:
    """Returns the text about one class: a sentence from its docstring, and its fields."""
    described = msgspec.inspect.type_info(shape.kind)
    assert isinstance(described, msgspec.inspect.StructType)
    texts = field_texts(shape.kind)
    kind = "extension fields" if issubclass(shape.kind, Header) else "body, JSON"
    lines = [f"`{shape.kind.__name__}` ({kind}). {' '.join(shape.text.split())}", ""]
    if described.fields:
        lines += ["| field | type | when it is missing | |", "| --- | --- | --- | --- |"]
    for one in described.fields:
        long_name = f" ({one.name})" if len(one.encode_name) == 1 else ""
        name, kind_text = f"`{one.encode_name}`{long_name}", type_name(one.type)
        lines.append(f"| {name} | {kind_text} | {default_text(one)} | {texts.get(one.name, '')} |")
    return "\n".join(lines) + "\n"


def heading(code: RequestCode) -> str:
    return f"{code.value} {code.name}"


def anchor(code: RequestCode) -> str:
    """Returns the section's link target, as repository hosts derive it from the heading."""
    return heading(code).lower().replace(" ", "-")


def section_text(section: Section) -> str:
    lines = [f"## {heading(section.code)}\n"]
    lines.append(f"{(' and '.join(section.server) or 'neither served nor sent here').capitalize()}.\n")
    for title, parts in (("Request", section.request), ("Reply", section.reply)):
        lines.append(f"### {title}\n")
        lines += [shape_text(part) for part in parts] or ["No fields and no body of its own.\n"]
    return "\n".join(lines)


def contents(found: list[Section]) -> str:
    """Returns the tables at the top of the page: request codes with links to their sections, and response codes."""
    lines = ["# The protocol, code by code\n"]
    lines.append("Frames and commands are told in [wire.md](wire.md); this is what is in them.\n")
    lines += ["| code | name | |", "| --- | --- | --- |"]
    for section in found:
        server = ", ".join(section.server) or "-"
        lines.append(f"| {section.code.value} | [{section.code.name}](#{anchor(section.code)}) | {server} |")
    lines += ["", "## Response codes\n", "| code | name |", "| --- | --- |"]
    lines += [f"| {code.value} | `{code.name}` |" for code in ResponseCode]
    return "\n".join(lines) + "\n"


def page() -> str:
    found = sections()
    return "\n".join([contents(found), *map(section_text, found)])


if __name__ == "__main__":
    sys.stdout.write(page())
