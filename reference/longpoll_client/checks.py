"""Whether what a caller gives is what it is to be: each says in a ConfigError what to give instead.

Leaves out what only brokers know, and what the types of a checked program rule out and nothing would go silently wrong
without.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any, Final

from longpoll_protocol.names import DEAD_PREFIX, NAME_SIZE_MAX, RETRY_PREFIX, name_problem
from longpoll_spec.errors import ConfigError

GROUP_SIZE_MAX: Final = 255
CLIENT_ID_SIZE_MAX: Final = 255
DELAY_LEVEL_MAX: Final = 18
"""Of "1s 5s 10s 30s 1m ... 2h"."""
OF_GROUPS: Final = (RETRY_PREFIX, DEAD_PREFIX)


def check_runtime(runtime: object, form: str) -> None:
    """What a client is made of first is a runtime, and no other client; `form` is how the client is to be written."""
    if not callable(getattr(runtime, "monotonic_ns", None)):
        raise ConfigError(f"{type(runtime).__name__} is not a runtime; write {form}")


def check_group(group: object) -> None:
    """A group has a name that every broker takes."""
    if not isinstance(group, str) or not 0 < len(group) <= GROUP_SIZE_MAX or group.isspace() or not _is_text(group):
        raise ConfigError(f"group {str(group)[:40]!r} is not allowed: 1 to {GROUP_SIZE_MAX} characters")


def check_client_id(client_id: object) -> None:
    """A member's name, or None."""
    if client_id is None:
        return
    if not isinstance(client_id, str) or not 0 < len(client_id) <= CLIENT_ID_SIZE_MAX or not _is_text(client_id):
        given = str(client_id)[:40]
        raise ConfigError(f"client_id {given!r} is not allowed: 1 to {CLIENT_ID_SIZE_MAX} characters")


def _is_text(name: str) -> bool:
    """Whether it can be written at all: half of a pair of surrogates is no character."""
    return name.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in name)


def check_topic(topic: object) -> None:
    """A topic has one too."""
    if not isinstance(topic, str) or name_problem(topic):
        raise ConfigError(
            f"topic {str(topic)[:140]!r} is not allowed: 1 to {NAME_SIZE_MAX} letters, digits and _ - % | only"
        )


def check_wanted(topic: object, expression: object, expression_type: object) -> None:
    """A topic that may be subscribed to, of a group of any length too, and texts that say what is wanted of it."""
    if not isinstance(topic, str) or not topic.startswith(OF_GROUPS):
        check_topic(topic)
    for name, value in (("expression", expression), ("expression_type", expression_type)):
        if not isinstance(value, str):
            raise ConfigError(f"{name} is {repr(value)[:40]}; pass text, such as '*', 'red || blue' or 'TAG'")


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """A whole number, and no less than the least."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {repr(value)[:40]}: it must be a whole number")
    if least is not None and value < least:
        raise ConfigError(f"{name} is {value}: it must be at least {least}")


def check_delay_level(value: object, least: int | None = 0) -> None:
    """A level that a broker has; it would store a higher one as its highest, which is two hours."""
    check_whole("delay_level", value, least)
    if value > DELAY_LEVEL_MAX:  # type: ignore[operator] # a number, as just seen
        raise ConfigError(f"delay_level is {value}; pass 1 to {DELAY_LEVEL_MAX}, or 0 for no delay")


def check_tags(value: object) -> None:
    """The one tag of a message, as a subscription can name it."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"tags is {repr(value)[:40]}; pass text")
    if "||" in value or value != value.strip() or value == "*":
        raise ConfigError(
            f"tags is {repr(value)[:40]}, which no subscription matches; pass one tag without ||, outer spaces or *"
        )


def check_seconds(name: str, value: object, *, may_be_none: bool) -> None:
    """Seconds, which may be without end; `may_be_none` says whether 0 will do."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not is_time or value < 0 or (value == 0 and not may_be_none):  # type: ignore[operator] # a number, as just seen
        raise ConfigError(f"{name} is {repr(value)[:40]}; pass {'0 or more' if may_be_none else 'more than 0'} seconds")


def check_one_of(name: str, value: object, kind: type[Enum]) -> None:
    """A member of an enum; its text would be compared with the members and found to be none."""
    if not isinstance(value, kind):
        choices = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise ConfigError(f"{name} is {repr(value)[:40]}; pass one of {choices}")


def check_callable(name: str, value: Callable[..., Any] | None) -> None:
    """Something to be called."""
    if not callable(value):
        raise ConfigError(f"{name} is {repr(value)[:40]}, which is not callable; pass a function")


def check_plain(name: str, value: Callable[..., Any] | None) -> None:
    """Something to be called by who awaits nothing: a coroutine function would do nothing at all, untold.

    One look at its code, for this is done for every send that is told of: what hides a coroutine is not found.
    """
    check_callable(name, value)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType) and code.co_flags & CO_COROUTINE:
        raise ConfigError(f"{name} is a coroutine function, which is never awaited here; pass a plain function")


def check_hooks(hooks: Iterable[object], *methods: str) -> None:
    """Several, or none, each with what it is told by. An iterator would be used up by this very look."""
    if isinstance(hooks, str | Iterator) or not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks are {repr(hooks)[:40]}; pass a list")
    for hook in hooks:
        for method in methods:
            check_plain(f"{method} of a {type(hook).__name__} among hooks", getattr(hook, method, None))
