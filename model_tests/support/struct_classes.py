"""Finds the Struct classes of the shipped packages, and names those that msgspec cannot decode."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Final

import msgspec

NEVER_DECODED: Final = {
    *("Pull", "Wake", "Miss", "HerdKey", "MessageToStore"),
    *("Command", "SendCommand", "PullCommand", "SentAnswer", "SendRequest"),
}
"""Classes that msgspec refuses to decode because of their fields. An attempt would print large parts of the hold table.
"""
PACKAGES: Final = (
    "longpoll_spec",
    "longpoll_protocol",
    "longpoll_runtime",
    "longpoll_recorder",
    "longpoll_client",
    "longpoll_observe",
    "longpoll_broker",
    "longpoll_judge",
    "longpoll",
)


def struct_classes() -> list[type[msgspec.Struct]]:
    """Import all modules of the shipped packages, and return their Struct classes."""
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    found: list[type[msgspec.Struct]] = []
    waiting = [msgspec.Struct]
    while waiting:
        waiting += (below := waiting.pop().__subclasses__())
        found += [each for each in below if each.__module__.partition(".")[0] in PACKAGES]
    return sorted(set(found), key=lambda each: f"{each.__module__}.{each.__qualname__}")


def is_decodable(kind: type[msgspec.Struct]) -> bool:
    try:
        msgspec.json.Decoder(kind)
    except TypeError:
        return False
    return True
