"""Mutants of the specification's source text, for tests that no proof in any configuration accepts a mutant.

Each mutant changes one expression of an action or of the state: a condition on features always takes one branch, a
branch extends beyond its parentheses, or a term is about the first queue instead of the request's queue. Properties are
not mutated, nor is code that no model is built from.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Final

from attrs import frozen

from longpoll_spec import actions, state
from longpoll_spec.model import Family

MODULES: Final = (
    state.__name__,
    *(
        f"{actions.__name__}.{each.stem}"
        for each in sorted(Path(actions.__path__[0]).glob("[a-z]*.py"))
        if each.stem != "family"
    ),
)
OF_FEATURES: Final = ("filters", "bounds", "shows_flushed_only", "swept", "_finds_first", "is TRUE", "empty_shortcut")
"""Names in conditions that a feature decides."""


@frozen
class TextMutant:
    name: str
    function: FunctionType
    compiled: Callable[[], CodeType]

    @property
    def code(self) -> CodeType:
        """The mutated code of the function; every reference to the function sees it."""
        return self.compiled()


def drawn() -> Iterator[TextMutant]:
    made: Counter[str] = Counter()
    for name in MODULES:
        module = import_module(name)
        tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
        for path, text in _functions(tree.body):
            bounded = _about_bounds(text)
            for number, node in enumerate(ast.walk(text)):
                if node in bounded:
                    continue
                for what, change in _changes(node, text):
                    called = f"{'.'.join(path)}: {what}"
                    made[called] += 1
                    again = f" ({made[called]})" if made[called] > 1 else ""
                    code = partial(_compiled, tree, path, number, change)
                    yield TextMutant(called + again, _function(module, path), code)


def _functions(body: list[ast.stmt], above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], ast.FunctionDef]]:
    for each in body:
        if isinstance(each, ast.ClassDef):
            yield from _functions(each.body, (*above, each.name))
        elif isinstance(each, ast.FunctionDef):
            yield (*above, each.name), each


def _about_bounds(text: ast.FunctionDef) -> set[ast.AST]:
    """The parts about the number of explored messages, in which no proof, for any number, can detect a mutant."""
    conditions = (node for node in ast.walk(text) if isinstance(node, ast.IfExp))
    return {inner for node in conditions if "bounds.messages" in ast.unparse(node.test) for inner in ast.walk(node)}


Change = Callable[[ast.AST], ast.expr]


def _changes(node: ast.AST, text: ast.FunctionDef) -> Iterator[tuple[str, Change]]:
    shown = ast.unparse(node) if isinstance(node, ast.expr) else ""
    arguments = {each.arg for each in text.args.args}
    owner = next((each for each in ("self", "state") if each in arguments), None)

    def instead(source: str) -> tuple[str, Change]:
        return f"`{source}` for `{shown}`", lambda _: ast.parse(source, mode="eval").body

    match node:
        case ast.IfExp(test=test) if any(word in ast.unparse(test) for word in OF_FEATURES):
            yield f"always `{ast.unparse(node.body)}`", lambda each: each.body  # type: ignore[attr-defined]
            yield f"never `{ast.unparse(node.body)}`", lambda each: each.orelse  # type: ignore[attr-defined]
        case ast.BinOp(right=ast.IfExp()):
            yield f"without parentheses `{shown}`", _without_parentheses
        case ast.Attribute(value=ast.Name(id="queue"), ctx=ast.Load(), attr=name) if owner and name.endswith(
            ("_end", "_start")
        ):
            yield instead(f"{owner}.queues[0].{name}")
        case ast.Call(func=ast.Attribute(attr="has_more"), args=[ast.Name(id=request)]) if owner:
            yield instead(f"({request}.offset < {owner}.visible_end)")
        case _:
            return


def _without_parentheses(node: ast.AST) -> ast.expr:
    assert isinstance(node, ast.BinOp)
    assert isinstance(node.right, ast.IfExp)
    inner = node.right
    return ast.IfExp(inner.test, ast.BinOp(node.left, node.op, inner.body), inner.orelse)


def _compiled(tree: ast.Module, path: tuple[str, ...], number: int, change: Change) -> CodeType:
    whole = copy.deepcopy(tree)
    text = dict(_functions(whole.body))[path]
    target = list(ast.walk(text))[number]

    class Replaced(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return change(node) if node is target else self.generic_visit(node)

    Replaced().visit(text)
    code = compile(ast.fix_missing_locations(whole), "<mutant>", "exec")
    for name in path:
        code = next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)
    return code


def _function(module: ModuleType, path: tuple[str, ...]) -> FunctionType:
    found: object = module
    for name in path:
        found = vars(found)[name]
    found = found.text if isinstance(found, Family) else found.fget if isinstance(found, property) else found
    assert isinstance(found, FunctionType), path
    return found
