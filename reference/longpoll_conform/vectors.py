"""Vectors: conversations that were recorded from real brokers, as data; `docs/conformance.md` has their format.

Leaves out playing them (`play`), and what their answers are held against (`compare`).
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
import lzma
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final

from attrs import frozen

from longpoll_conform.wire import CRC_MASK
from longpoll_spec.errors import UserError, not_known

FORMAT: Final = 1
RECORDED: Final = {"4.9.7": "rocketmq-4.9.7.jsonl.xz", "5.5.0": "rocketmq-5.5.0.jsonl.xz"}
"""Each version that was recorded, with its file."""
RECORDED_AS: Final[Mapping[str, str]] = MappingProxyType({"brokerName": "broker-a", "cluster": "DefaultCluster"})
"""What every recorded broker was called."""
STEPS: Final = ("setup", "during", "after")
_NAME: Final = re.compile(r"(?<![A-Za-z0-9])([tg])c(\d{3})")
"""Topics and groups of a vector: `tc114`, `gc114`."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class VectorError(UserError):
    """A version that nobody recorded; the text says which there are."""


@frozen
class Vector:
    """One conversation. `case` is as recorded: `setup`, `request`, `during`, `after`, and the answers among them."""

    id: str
    title: str
    profile: str
    """Which settings the broker must have: `default`, `sql`, `strict`, `nolongpoll`, `unreadable`, `store`."""
    version: str
    """Of the broker that was recorded."""
    case: Mapping[str, Any]

    @property
    def wait_ms(self) -> int:
        """How long its answers take by their own account: sleeps, holds, and silences that are waited for."""
        case = self.case
        steps = self.steps()
        whole = sum(step.get("sleep_ms", 0) + step.get("held_ms", 0) for step in steps)
        whole += max((step.get("at_ms", 0) for step in steps), default=0)
        whole += case.get("held_ms") or 0
        return int(whole + (case.get("wait_ms", 10_000) if case["response"] is None else 0))

    def steps(self) -> Sequence[Mapping[str, Any]]:
        """Every step but the request itself."""
        return [step for part in STEPS for step in self.case.get(part, [])]

    def named_for(self, run: str) -> Vector:
        """The vector with topics and groups of this run, as long as its own, so that it can be played again."""
        return Vector(self.id, self.title, self.profile, self.version, _renamed(self.case, run))


@cache
def recorded(version: str) -> tuple[Vector, ...]:
    """What one version was recorded to answer. Raises VectorError for a version that was not."""
    if version not in RECORDED:
        raise VectorError(not_known("recorded version", version, RECORDED))
    packed = (resources.files("longpoll_conform") / "vectors" / RECORDED[version]).read_bytes()
    cases = map(json.loads, lzma.decompress(packed).decode().splitlines())
    return tuple(Vector(case["id"], case["title"], case["profile"], version, case) for case in cases)


def _renamed(value: Any, run: str) -> Any:
    if isinstance(value, str):
        return _NAME.sub(lambda found: found[1] + _token(run, found[0]), value)
    if isinstance(value, Mapping):
        found = {_renamed(name, run): _body(name, each, run) for name, each in value.items()}
        if found.get("bodyCRCok") and "body" in found:
            found["bodyCRC"] = zlib.crc32(base64.b64decode(found["body"])) & CRC_MASK
        return found
    if isinstance(value, Sequence):
        return [_renamed(each, run) for each in value]
    return value


def _body(name: str, value: Any, run: str) -> Any:
    """Bodies of recorded messages are in base64, and may name the topic."""
    if name == "body" and isinstance(value, str):
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            text = base64.b64decode(value, validate=True).decode()
            if _NAME.search(text):
                return base64.b64encode(_renamed(text, run).encode()).decode()
    return _renamed(value, run)


def _token(run: str, name: str) -> str:
    number = int.from_bytes(hashlib.sha256(f"{run} {name}".encode()).digest()[:8])
    return "".join(_DIGITS[number // 36**place % 36] for place in range(len(name) - 1))
