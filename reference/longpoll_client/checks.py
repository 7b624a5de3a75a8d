"""Checks a caller's arguments: each function raises a ConfigError that names the valid values."""

from __future__ import annotations

import math
import ssl
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from enum import Enum
from inspect import CO_COROUTINE
from types import CodeType
from typing import Any, Final, TypeAlias, TypedDict

from longpoll_protocol.names import DEAD_PREFIX, LEGAL_NAME, NAME_SIZE_MAX, RETRY_PREFIX, name_problem
from longpoll_protocol.signature import Credentials
from longpoll_runtime import Runtime
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

GROUP_SIZE_MAX: Final = 255
CLIENT_ID_SIZE_MAX: Final = 255
DELAYS_S: Final = (1, 5, 10, 30, *range(60, 601, 60), 1200, 1800, 3600, 7200)
"""The delay of each level, from 1 (`messageDelayLevel`)."""
OF_GROUPS: Final = (RETRY_PREFIX, DEAD_PREFIX)
_LETTERS: Final = "letters, digits and _ - % |"

Addresses: TypeAlias = str | Sequence[str]
"""HOST:PORT of a name server; several addresses are a list, or separated by semicolons."""


class Sql(str):
    """An SQL92 expression over message properties, such as Sql("amount > 5"), which filters instead of tags."""

    __slots__ = ()


Topics: TypeAlias = str | Sequence[str] | Mapping[str, str]
"""One topic, several topics, or each topic with its filter expression."""


class ConnectOptions(TypedDict, total=False):
    """The options that every client accepts."""

    tls: ssl.SSLContext | None
    """The TLS settings; connections without settings are not encrypted."""
    credentials: Credentials | None
    """The account, for a broker with access control."""
    runtime: Runtime | None
    """The clock, sockets and threads of the client, which only tests replace."""


def refuse_unknown(options: Mapping[str, object], kind: Any) -> None:
    """Raise TypeError for an option that is not in the TypedDict `kind`."""
    known = kind.__annotations__.keys()
    if options.keys() - known:
        name, others = min(options.keys() - known), ", ".join(sorted(known))
        raise TypeError(f"unknown option {name}; the keyword options are {others}")


def runtime_of(runtime: Runtime | None, tls: ssl.SSLContext | None) -> Runtime:
    """Return the operating system's runtime, or the runtime of a test; raises ConfigError."""
    if tls is not None and not isinstance(tls, ssl.SSLContext):
        raise ConfigError(
            f"tls is {repr(tls)[:40]}; pass an SSLContext, such as ssl.create_default_context(cafile=...)"
        )
    if runtime is None:
        return RealRuntime(client_tls=tls)
    if not callable(getattr(runtime, "monotonic_ns", None)):
        raise ConfigError(f"{type(runtime).__name__} is not a runtime; leave runtime= out")
    if tls is not None:
        raise ConfigError("tls and runtime cannot be used together; a runtime has its own TLS")
    return runtime


def name_servers_text(name_server: Addresses) -> str:
    """Return the addresses, separated by semicolons; raises ConfigError for other types."""
    if isinstance(name_server, str):
        return name_server
    if isinstance(name_server, Sequence) and all(isinstance(each, str) for each in name_server):
        return ";".join(name_server)
    given = repr(name_server)[:60]
    raise ConfigError(f"name server {given} is not text; write HOST:PORT, such as 127.0.0.1:9876")


def wanted_of(topics: Topics) -> Mapping[str, str]:
    """Return each topic with its filter expression; raises ConfigError."""
    if isinstance(topics, str):
        return {topics: "*"}
    if isinstance(topics, Mapping):
        return topics
    if isinstance(topics, Sequence) and not isinstance(topics, bytes):
        return dict.fromkeys(topics, "*")
    raise ConfigError(f"topics is {repr(topics)[:40]}; pass a topic, a list, or a mapping of topic to expression")


def check_group(group: object) -> None:
    """Check that every broker accepts a group's name; raises ConfigError."""
    if not isinstance(group, str) or len(group) > GROUP_SIZE_MAX or not LEGAL_NAME.fullmatch(group):
        raise ConfigError(f"group {repr(group)[:40]} is not allowed: pass text of 1 to {GROUP_SIZE_MAX} {_LETTERS}")


def check_client_id(client_id: object) -> None:
    """Check the client id of a member, which may be None; raises ConfigError."""
    if client_id is None:
        return
    if not isinstance(client_id, str) or not 0 < len(client_id) <= CLIENT_ID_SIZE_MAX or not client_id.isprintable():
        given, most = repr(client_id)[:40], CLIENT_ID_SIZE_MAX
        raise ConfigError(f"client_id {given} is not allowed: pass text of 1 to {most} printable characters")


def check_topic(topic: object) -> None:
    """Check that every broker accepts a topic's name; raises ConfigError."""
    if not isinstance(topic, str) or name_problem(topic):
        raise ConfigError(f"topic {repr(topic)[:140]} is not allowed: pass text of 1 to {NAME_SIZE_MAX} {_LETTERS}")


def check_wanted(topic: object, expression: object) -> None:
    """Check a subscription: a topic, which may be a group's retry topic of any length, and an expression."""
    if not isinstance(topic, str) or not topic.startswith(OF_GROUPS):
        check_topic(topic)
    if not isinstance(expression, str):
        raise ConfigError(f"expression is {repr(expression)[:40]}; pass text, such as '*' or 'red || blue'")


def check_whole(name: str, value: object, least: int | None = None) -> None:
    """Check that a value is a whole number, and is not less than the minimum."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} is {repr(value)[:40]}: it must be a whole number")
    if least is not None and value < least:
        raise ConfigError(f"{name} is {value}: it must be at least {least}")


def delay_level(delay_s: float) -> int:
    """Return the level of a delay, rounded up to the next delay that brokers support. Raises ConfigError."""
    check_seconds("delay_s", delay_s, may_be_none=True)
    if delay_s > DELAYS_S[-1]:
        raise ConfigError(f"delay_s is {delay_s:g}; pass at most {DELAYS_S[-1]} seconds")
    return bisect_left(DELAYS_S, delay_s) + 1


def unix_ms(name: str, value: object) -> int:
    """Convert a time with a time zone to Unix milliseconds; raises ConfigError."""
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ConfigError(f"{name} is {repr(value)[:60]}; pass a datetime with a time zone, such as datetime.now(UTC)")
    return max(0, int(value.timestamp() * 1000))


def check_tag(value: object) -> None:
    """Check the tag of a message, which a subscription must be able to name."""
    if value is None:
        return
    if not isinstance(value, str):
        raise ConfigError(f"tag is {repr(value)[:40]}; pass text")
    if "||" in value or value != value.strip() or value == "*":
        raise ConfigError(
            f"tag is {repr(value)[:40]}, which no subscription matches; pass one tag without ||, outer spaces or *"
        )


def keys_text(keys: object) -> str:
    """Join keys with spaces, as they are sent; raises ConfigError."""
    if isinstance(keys, str):
        return keys
    if not isinstance(keys, Sequence) or not all(isinstance(key, str) and key for key in keys):
        raise ConfigError(f"keys is {repr(keys)[:40]}; pass text, or a list of texts")
    if any(set(key) & set(" \t\r\n") for key in keys):
        raise ConfigError(f"keys is {repr(keys)[:40]}; a key of a list cannot have spaces, which separate keys")
    return " ".join(keys)


def check_seconds(name: str, value: object, *, may_be_none: bool) -> None:
    """Check a number of seconds. Infinity is valid, and 0 is valid if `may_be_none`."""
    is_time = isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)
    if not is_time or value < 0 or (value == 0 and not may_be_none):  # type: ignore[operator] # a number, as just seen
        raise ConfigError(f"{name} is {repr(value)[:40]}; pass {'0 or more' if may_be_none else 'more than 0'} seconds")


def check_one_of(name: str, value: object, kind: type[Enum]) -> None:
    """Check that a value is a member of an enum. A string is rejected, because it does not equal any member."""
    if not isinstance(value, kind):
        choices = ", ".join(f"{kind.__name__}.{each.name}" for each in kind)
        raise ConfigError(f"{name} is {repr(value)[:40]}; pass one of {choices}")


def check_callable(name: str, value: Callable[..., Any] | None) -> None:
    """Check that a value is callable."""
    if not callable(value):
        raise ConfigError(f"{name} is {repr(value)[:40]}, which is not callable; pass a function")


def check_plain(name: str, value: Callable[..., Any] | None) -> None:
    """Check that a function is not a coroutine function, because its coroutine would never be awaited.

    The check reads only the function's code, because every send with a callback makes this check. A plain function that
    returns a coroutine passes the check.
    """
    check_callable(name, value)
    code = getattr(value, "__code__", None)
    if isinstance(code, CodeType) and code.co_flags & CO_COROUTINE:
        raise ConfigError(f"{name} is a coroutine function, which is never awaited here; pass a plain function")


def check_hooks(hooks: Iterable[object], *methods: str) -> None:
    """Check that hooks are a collection of objects with these methods, not an iterator, which ends after one use."""
    if isinstance(hooks, str | Iterator) or not isinstance(hooks, Iterable):
        raise ConfigError(f"hooks are {repr(hooks)[:40]}; pass a list")
    for hook in hooks:
        for method in methods:
            check_plain(f"{method} of a {type(hook).__name__} among hooks", getattr(hook, method, None))
