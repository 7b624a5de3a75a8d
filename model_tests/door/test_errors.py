"""Every exception class of every package survives pickle and copy, and prints like Python's own."""

from __future__ import annotations

import builtins
import copy
import errno
import importlib
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import longpoll
from longpoll_client import errors
from longpoll_protocol.codes import ResponseCode

ROOT: Final = Path(__file__).parents[2]
CLASS: Final = re.compile(r"^class (\w+)\(([\w\s,.]+)\)", re.MULTILINE)
TEXT: Final = "what is wrong: do this"
VALUES: Final = {"str": TEXT, "str | None": TEXT, "int": 14, "bool": False, "float | None": 5.0}
CHOICES: Final = {"prop": "HINTS", "kind": "PROMISES"}
"""Parameter -> the module's table of its values."""


def exception_classes() -> list[type[BaseException]]:
    """Those of the top levels of all modules; modules without one are not imported."""
    known = {name for name, value in vars(builtins).items() if _is_exception(value)}
    sources = {
        ".".join(path.relative_to(top).with_suffix("").parts): CLASS.findall(path.read_text(encoding="utf-8"))
        for top in (ROOT / "reference", ROOT / "spec")
        for path in top.rglob("*.py")
    }
    found: set[tuple[str, str]] = set()
    while True:
        new = {
            (module, name)
            for module, classes in sources.items()
            for name, bases in classes
            if known & {base.strip().rpartition(".")[2] for base in bases.split(",")}
        }
        if new == found:
            break
        found = new
        known |= {name for _module, name in new}
    made = [getattr(importlib.import_module(module), name) for module, name in sorted(found)]
    return [each for each in made if _is_exception(each)]


def _is_exception(value: object) -> bool:
    return inspect.isclass(value) and issubclass(value, BaseException)


def examples(kind: type[BaseException]) -> Iterator[BaseException]:
    """Errors of this class, made as its `__init__` wants it."""
    if "__init__" not in {name for each in kind.__mro__ if each.__module__ != "builtins" for name in vars(each)}:
        yield kind(TEXT)
        if issubclass(kind, OSError):
            yield kind(errno.ENOSPC, TEXT, "a file")
        return
    named: dict[str, Any] = {}
    annotations = vars(kind)["__init__"].__annotations__
    for parameter in inspect.signature(kind).parameters.values():
        annotation = annotations[parameter.name]
        table = CHOICES.get(parameter.name)
        choices = vars(importlib.import_module(kind.__module__))[table] if table else None
        named[parameter.name] = (
            next(iter(choices)) if choices else VALUES[getattr(annotation, "__name__", str(annotation))]
        )
    yield kind(**named)


def said(error: BaseException) -> tuple[object, ...]:
    """All that one can read of an error."""
    return type(error), str(error), repr(error), error.args, vars(error), getattr(error, "filename", None)


def test_every_exception_is_copied_and_pickled_whole() -> None:
    """Its type, text, arguments, fields and notes: between processes an error is what it was."""
    classes = exception_classes()

    assert len(classes) > 90
    assert {errors.RefusedError, longpoll.LongpollError} <= set(classes)
    for kind in classes:
        for error in examples(kind):
            error.add_note("seen by a test")
            for again in (
                copy.copy(error),
                copy.deepcopy(error),
                *(pickle.loads(pickle.dumps(error, protocol)) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)),  # noqa: S301 - our own bytes
            ):
                assert said(again) == said(error)
                assert again is not error


def test_an_error_of_a_user_s_own_is_whole_too() -> None:
    """Whatever its `__init__` takes."""
    error = OwnError(1, why="late")

    assert said(pickle.loads(pickle.dumps(error))) == said(error)  # noqa: S301 - our own bytes


class OwnError(errors.UnreachableError):
    """An error with extra fields."""

    def __init__(self, number: int, *, why: str) -> None:
        super().__init__(f"{number}: {why}")
        self.number = number


@pytest.mark.parametrize(
    ("kind", "base"),
    [
        (errors.UnreachableError, ConnectionError),
        (errors.ConnectionLostError, ConnectionError),
        (errors.AnswerTimeoutError, TimeoutError),
        (errors.ReplyTimeoutError, TimeoutError),
    ],
)
def test_errors_are_python_s_own_too(kind: type[errors.ClientError], base: type[OSError]) -> None:
    """`except ConnectionError` and `except TimeoutError` catch them; they have no errno."""
    error = kind(TEXT)

    assert isinstance(error, base)
    assert (str(error), error.errno, error.retriable) == (TEXT, None, True)


def test_which_errors_are_worth_another_try() -> None:
    """Those caused by the network or a busy broker."""
    codes = [code for code in ResponseCode if errors.RefusedError("PULL", code, None).retriable]

    assert codes == sorted(errors.RETRIED_CODES)
    assert ResponseCode.SYSTEM_BUSY in codes
    assert ResponseCode.MESSAGE_ILLEGAL not in codes
    assert not errors.RefusedError("PULL", 9999, None).retriable
    assert errors.NoRouteError(TEXT).retriable
    for kind in (errors.LifecycleError, errors.NotOursError, errors.ClientError, longpoll.UserError):
        assert not kind(TEXT).retriable
