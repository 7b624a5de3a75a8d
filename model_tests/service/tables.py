"""Finds what a module may fill: containers of classes and modules, caches without a size, and files that it writes.

A container is found by its annotation or by what makes it, so it does not matter how a class is written.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

CONTAINERS: Final = {
    "dict", "list", "set", "bytearray", "array", "deque", "OrderedDict", "defaultdict", "Counter", "ChainMap",
    "Queue", "SimpleQueue", "LifoQueue", "PriorityQueue", "queue", "WeakKeyDictionary", "WeakValueDictionary",
    "WeakSet", "MutableMapping", "MutableSequence", "MutableSet", "UserDict", "UserList", "BytesIO", "StringIO",
}  # fmt: skip
WRAPPERS: Final = {"Final", "ClassVar", "Annotated", "Optional"}
WRITES: Final = {"write_atomic", "open_append", "make_directory", "write_text", "write_bytes", "touch", "mkdir"}
"""Methods that create files; `map` does with `create=True`."""
LITERALS: Final = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def tables_of(source: str) -> set[str]:
    """Returns the containers as CLASS.ATTRIBUTE or NAME, caches as NAME, and `files` if the module creates any."""
    tree = ast.parse(source)
    found = set(_found(tree, ""))
    if any(name in source for name in (*WRITES, "open(", "create=")):
        found |= {"files" for node in ast.walk(tree) if isinstance(node, ast.Call) and _writes(node)}
    return found


def _found(node: ast.AST, owner: str) -> Iterator[str]:
    """Yields the containers and caches in a node of the class `owner`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.ClassDef):
            if not _is_record(child):
                yield from _found(child, child.name)
            continue
        if isinstance(child, ast.FunctionDef) and any(_has_no_size(each) for each in child.decorator_list):
            yield child.name
        for name, annotation, value in _targets(child):
            own = name.removeprefix("self.")
            if isinstance(node, ast.Module):
                if _is_empty(value):
                    yield name
            elif (own != name or isinstance(node, ast.ClassDef)) and _is_container(annotation, value):
                yield f"{owner}.{own}"
        yield from _found(child, owner)


def _is_record(node: ast.ClassDef) -> bool:
    """Whether a class is a struct: its instances are messages."""
    return not _names(ast.Tuple(node.bases)).isdisjoint({"Struct", "Body", "Header"})


def _targets(node: ast.AST) -> Iterator[tuple[str, ast.expr | None, ast.expr | None]]:
    """Yields the names that a statement assigns, also of `self`, with annotation and value."""
    if isinstance(node, ast.AnnAssign):
        pairs: list[tuple[ast.expr, ast.expr | None]] = [(node.target, node.value)]
    elif isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
        if isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple):
            pairs = list(zip(node.targets[0].elts, node.value.elts, strict=False))
    else:
        return
    for target, value in pairs:
        if isinstance(target, ast.Name | ast.Attribute):
            yield ast.unparse(target), getattr(node, "annotation", None), value


def _is_container(annotation: ast.expr | None, value: ast.expr | None) -> bool:
    return bool(annotation and _outer(annotation) & CONTAINERS) or bool(value and _makes(value))


def _is_empty(value: ast.expr | None) -> bool:
    """Whether a module's name begins as an empty container; a filled one is a constant."""
    if isinstance(value, ast.Call):
        return _last(value.func) in CONTAINERS and {_last(each) for each in value.args} <= CONTAINERS
    return value is not None and ast.unparse(value) in {"{}", "[]"}


def _outer(annotation: ast.expr) -> set[str]:
    """Returns the outermost names of a type."""
    if isinstance(annotation, ast.BinOp):
        return _outer(annotation.left) | _outer(annotation.right)
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _outer(ast.parse(annotation.value, mode="eval").body)
    if not isinstance(annotation, ast.Subscript):
        return _names(annotation)
    inner = annotation.slice.elts[0] if isinstance(annotation.slice, ast.Tuple) else annotation.slice
    names = _names(annotation.value)
    return _outer(inner) if names & WRAPPERS else names


def _makes(value: ast.expr) -> bool:
    """Whether an expression makes a container that may grow: itself, or as the factory of a field."""
    if isinstance(value, ast.Call) and _last(value.func) in CONTAINERS:
        return all(keyword.arg != "maxlen" for keyword in value.keywords)
    if isinstance(value, ast.Call) and _last(value.func) in {"field", "Factory"}:
        parts = [*value.args, *(keyword.value for keyword in value.keywords)]
        return any(_last(part) in CONTAINERS or _makes(part) for part in parts)
    if isinstance(value, ast.IfExp | ast.Lambda):
        return _makes(value.body) or (isinstance(value, ast.IfExp) and _makes(value.orelse))
    return isinstance(value, LITERALS)


def _has_no_size(decorator: ast.expr) -> bool:
    is_endless = isinstance(decorator, ast.Call) and any(
        isinstance(each, ast.Constant) and each.value is None
        for each in (*decorator.args, *(keyword.value for keyword in decorator.keywords))
    )
    name = _last(decorator.func if isinstance(decorator, ast.Call) else decorator)
    return name in {"cache", "cached_property"} or (name == "lru_cache" and is_endless)


def _writes(call: ast.Call) -> bool:
    creates = any(each.arg == "create" for each in call.keywords)
    is_builtin = isinstance(call.func, ast.Name) and call.func.id == "open"
    return is_builtin or _last(call.func) in WRITES or (_last(call.func) == "map" and creates)


def _last(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names(node: ast.AST) -> set[str]:
    return {_last(each) for each in ast.walk(node) if isinstance(each, ast.Name | ast.Attribute)}
