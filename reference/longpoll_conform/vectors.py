"""Vectors: conversations recorded from real brokers, as data. `docs/conformance.md` describes their format.

`play` plays vectors, and `compare` compares the answers.
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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal

from attrs import frozen

from longpoll_conform.wire import CRC_MASK
from longpoll_spec.errors import OutputError, UserError, not_known

FORMAT: Final = 1
RECORDED: Final = {"4.9.7": "rocketmq-4.9.7.jsonl.xz", "5.5.0": "rocketmq-5.5.0.jsonl.xz"}
"""Maps each recorded version to its file."""
RECORDED_AS: Final[Mapping[str, str]] = MappingProxyType({"brokerName": "broker-a", "cluster": "DefaultCluster"})
"""The broker name and cluster of every recorded broker."""
SIZE_MAX: Final = 64 << 20
"""The maximum size of an unpacked file of recordings, in bytes; the files in the package have one MiB."""
STEPS: Final = ("setup", "during", "after")
_NAME: Final = re.compile(r"(?<![A-Za-z0-9])([tg])c(\d{3})")
"""Matches the topic and group names of a vector, such as `tc114` and `gc114`."""
_DIGITS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"


class VectorError(UserError):
    """The version was not recorded, or the file has no recordings. The message lists the recorded versions."""


@frozen
class Vector:
    """One conversation. `case` is the recorded data: `setup`, `request`, `during` and `after`, with the answers."""

    id: str
    title: str
    profile: str
    """The broker settings that the vector requires: `default`, `sql`, `strict`, `nolongpoll`, `unreadable` or `store`.
    """
    version: str
    """The version of the recorded broker."""
    case: Mapping[str, Any]

    @property
    def wait_ms(self) -> int:
        """The expected duration in ms: the sum of sleeps, holds, and waits for answers that must not arrive."""
        case = self.case
        steps = self.steps()
        whole = sum(step.get("sleep_ms", 0) + step.get("held_ms", 0) for step in steps)
        whole += max((step.get("at_ms", 0) for step in steps), default=0)
        whole += case.get("held_ms") or 0
        return int(whole + (case.get("wait_ms", 10_000) if case["response"] is None else 0))

    @property
    def needs(self) -> frozenset[Literal["name-server"]]:
        """Returns the requirements in addition to the profile: a name server, if a step sends a request to one."""
        steps = (*self.steps(), self.case["request"])
        asks = any(step.get("conn", "").startswith("ns") for step in steps)
        return frozenset({"name-server"}) if asks else frozenset()

    def steps(self) -> Sequence[Mapping[str, Any]]:
        """Returns every step except the request itself."""
        return [step for part in STEPS for step in self.case.get(part, [])]

    def named_for(self, run: str, life: int | None = None) -> Vector:
        """Return the vector with topic and group names for this run, which have the same length as the original names.

        If a run plays the vector several times, pass another `life` each time; the default is the vector's own number.
        """
        named = _renamed(self.case, lambda text: _NAME.sub(lambda found: found[1] + _token(run, found[0], life), text))
        return Vector(self.id, self.title, self.profile, self.version, named)

    def with_answers(self, played: Mapping[str, Any], run: str, version: str) -> Vector:
        """Return the vector with the answers of a played case, under the original topic and group names."""
        names = {found[1] + _token(run, found[0]): found[0] for found in _NAME.finditer(json.dumps(self.case))}
        tokens = re.compile("|".join(map(re.escape, names)) or "(?!)")
        case = _renamed(played, lambda text: tokens.sub(lambda found: names[found[0]], text))
        return Vector(self.id, self.title, self.profile, version, {**case, "recorded": version})


@cache
def recorded(version: str) -> tuple[Vector, ...]:
    """Returns the vectors of a version. Raises VectorError if the version was not recorded."""
    if version not in RECORDED:
        raise VectorError(not_known("recorded version", version, RECORDED))
    packed = (resources.files("longpoll_conform") / "vectors" / RECORDED[version]).read_bytes()
    cases = map(json.loads, lzma.decompress(packed).decode().splitlines())
    return tuple(Vector(case["id"], case["title"], case["profile"], version, case) for case in cases)


def read_vectors(path: Path) -> tuple[Vector, ...]:
    """Read a file of recordings, which is compressed if its name ends in `.xz`. Raises VectorError."""
    try:
        text = _content(path).decode()
        vectors = tuple(_read(json.loads(line)) for line in text.splitlines())
    except OSError as error:
        raise VectorError(f"{path} cannot be read: {error.strerror or error}") from error
    except (lzma.LZMAError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise VectorError(
            f"{path} is not a file of recordings ({why}); `longpoll conform --record` writes one"
        ) from error
    if not vectors or len({vector.id for vector in vectors}) < len(vectors):
        why = "has an id twice" if vectors else "is empty"
        raise VectorError(f"{path} {why}; `longpoll conform --record` writes a file of recordings")
    return vectors


def _content(path: Path) -> bytes:
    """Returns the unpacked content of a file. Raises VectorError if the content is too large."""
    packed = path.suffix == ".xz"
    with path.open("rb") as file:
        content = file.read(SIZE_MAX + 1)
    if packed:
        content = lzma.LZMADecompressor().decompress(content, SIZE_MAX + 1)
    if len(content) > SIZE_MAX:
        raise VectorError(f"{path} is larger than {SIZE_MAX >> 20} MiB, too large for a file of recordings")
    return content


def write_vectors(path: Path, vectors: Sequence[Vector]) -> None:
    """Write a file of recordings. Raises OutputError."""
    text = "".join(json.dumps(vector.case, ensure_ascii=False) + "\n" for vector in vectors)
    content = text.encode()
    try:
        path.write_bytes(lzma.compress(content, preset=9) if path.suffix == ".xz" else content)
    except OSError as error:
        raise OutputError(f"cannot write {path}: {error.strerror or error}") from error


def _read(case: dict[str, Any]) -> Vector:
    steps = [case["request"], *(step for part in STEPS for step in case.get(part, []))]
    if not all(isinstance(step, dict) for step in steps):
        raise TypeError("a step is not an object")
    whole = {"response": None, **case}
    return Vector(str(case["id"]), str(case["title"]), str(case["profile"]), str(case.get("recorded", "")), whole)


def _renamed(value: Any, rename: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return rename(value)
    if isinstance(value, Mapping):
        found = {_renamed(name, rename): _body(name, each, rename) for name, each in value.items()}
        if found.get("bodyCRCok") and "body" in found:
            found["bodyCRC"] = zlib.crc32(base64.b64decode(found["body"])) & CRC_MASK
        return found
    if isinstance(value, Sequence):
        return [_renamed(each, rename) for each in value]
    return value


def _body(name: str, value: Any, rename: Callable[[str], str]) -> Any:
    """Rename topics inside message bodies too, which are base64 text."""
    if name == "body" and isinstance(value, str):
        with contextlib.suppress(binascii.Error, UnicodeDecodeError):
            text = base64.b64decode(value, validate=True).decode()
            if rename(text) != text:
                return base64.b64encode(rename(text).encode()).decode()
    return _renamed(value, rename)


def _token(run: str, name: str, life: int | None = None) -> str:
    """Return the part of a topic's or group's name after its first letter.

    Each playing in a run uses the next number, so all names of a run differ. Two runs on one broker share names only if
    their start numbers differ by less than the number of playings in a run; four characters allow 1,679,616 start
    numbers.
    """
    begin = int.from_bytes(hashlib.sha256(run.encode()).digest()[:8])
    number = begin + (int(name[2:]) if life is None else life)
    return "".join(_DIGITS[number // 36**place % 36] for place in range(len(name) - 1))
