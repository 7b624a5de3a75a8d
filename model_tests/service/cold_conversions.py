"""A separate process in which several threads decode every Struct class for the first time at once.

Argument: `planted` leaves the classes' tables to the first decoding, as msgspec does.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import threading
from typing import Final

import msgspec

THREADS: Final = 6
SWITCH_S: Final = 1e-6
NEVER_DECODED: Final = {
    *("Pull", "Wake", "Miss", "HerdKey", "MessageToStore"),
    *("Command", "SendCommand", "PullCommand", "SentAnswer", "SendRequest"),
}
"""Classes with fields that msgspec refuses to decode: each attempt makes, shows and drops half a table."""
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
    """Every Struct class of the shipped packages, all of which are imported."""
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
    """Whether msgspec can decode the class at all."""
    try:
        msgspec.json.Decoder(kind)
    except TypeError:
        return False
    return True


def race(kind: type[msgspec.Struct]) -> None:
    """Convert to the class on several threads that begin together; whether they can is not looked at."""
    barrier = threading.Barrier(THREADS)
    given = dict.fromkeys(kind.__struct_encode_fields__, "1")

    def convert() -> None:
        barrier.wait()
        try:
            msgspec.convert(given, kind, strict=False)
        except (msgspec.ValidationError, TypeError):
            return

    threads = [threading.Thread(target=convert) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main(planted: bool) -> None:
    if planted:
        tables = importlib.import_module("longpoll_spec.tables")
        tables.with_table = lambda kind: kind  # type: ignore[attr-defined] # planted
    classes = struct_classes()
    sys.setswitchinterval(SWITCH_S)
    raced = [kind for kind in classes if kind.__name__ not in NEVER_DECODED]
    for kind in raced:
        race(kind)
    sys.stdout.write(f"{len(raced)}\n")


if __name__ == "__main__":
    main("planted" in sys.argv)
