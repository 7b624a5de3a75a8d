"""Attributes of topics (5.x): which exist, and changes to them.

They are stored and reported; a proxy enforces them. Attributes that need another kind of queue are refused.

Source: `TopicAttributes.java`, `AttributeUtil.alterCurrentAttributes`, `AttributeParser.java` 5.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from longpoll_broker.errors import BrokerError

SERVED: Final[Mapping[str, frozenset[str]]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""The supported values by attribute."""


class AttributeRefusedError(BrokerError):
    """A refused change of attributes; the text says why."""


def read_changes(text: str | None) -> dict[str, str]:
    """Parse the changes in a header, `+message.type=FIFO,-queue.type`; raises AttributeRefusedError."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = part.strip().partition("=")
        if not name:
            continue
        if name in changes or (name.startswith("+") and not equals):
            raise AttributeRefusedError(f"the attributes {(text or '')[:80]!r} are not +NAME=VALUE or -NAME, each once")
        changes[name] = value
    return changes


def changed(before: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Apply changes to attributes: `+` sets one, `-` removes one; raises AttributeRefusedError."""
    found = dict(before)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in {"+", "-"} or name not in SERVED:
            raise AttributeRefusedError(
                f"the attribute {signed[:80]!r} is not served here; write + or - before one of {', '.join(SERVED)}"
            )
        if sign == "-":
            found.pop(name, None)
        elif value in SERVED[name]:
            found[name] = value
        else:
            raise AttributeRefusedError(
                f"{name}={value[:80]} is not served here; it is one of {', '.join(sorted(SERVED[name]))}"
            )
    return found
