"""Allow-list patterns: one address, several, or a range of the last parts.

| pattern | matches |
|---|---|
| `*` | all addresses |
| `10.1.2.3`, `::1` | one address |
| `10.1.2.3,10.1.2.4` | each of these |
| `10.1.2.{3,4}` | each of these |
| `10.1.2.*`, `10.1.2-9.*`, `2::ac5:78:1-200:*` | ranges; in IPv6 the parts are hexadecimal |

Source: `RemoteAddressStrategyFactory.java` of 4.9.7, where also only the last parts may be ranges.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from longpoll_spec.errors import ConfigError

Match = Callable[[str], bool]
EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_BRACES: Final = re.compile(r"(.*[.:])\{([^{}]+)\}")


def address_match(pattern: str) -> Match:
    """Returns a matcher of addresses without port for a pattern; raises ConfigError for an invalid one.

    An empty pattern matches no address.
    """
    text = pattern.strip()
    if not text:
        return lambda _address: False
    if text in EVERYBODY:
        return lambda _address: True
    braces = _BRACES.fullmatch(text)
    if braces is not None:
        return _any_of([braces[1] + part.strip() for part in braces[2].split(",")])
    if "," in text:
        return _any_of(text.split(","))
    return _ranges(text) if "*" in text or "-" in text else _one(text)


def _any_of(texts: list[str]) -> Match:
    matches = [_one(text.strip()) for text in texts]
    return lambda address: any(match(address) for match in matches)


def _one(text: str) -> Match:
    wanted = _read(text)
    if wanted is None:
        raise ConfigError(f"{text!r} is not an IP address; write one such as 10.1.2.3, 10.1.2.* or ::1")
    return lambda address: _read(address) == wanted


def _ranges(text: str) -> Match:
    version, base, part_max = (6, 16, 0xFFFF) if ":" in text else (4, 10, 255)
    ranges = [_range(text, part, base, part_max) for part in _split(text, version)]

    def match(address: str) -> bool:
        found = _read(address)
        if found is None or found.version != version:
            return False
        parts = [int(part, base) for part in _split(found.exploded, version)]
        return all(low <= part <= high for part, (low, high) in zip(parts, ranges, strict=True))

    return match


def _split(text: str, version: int) -> list[str]:
    """Returns the four or eight parts of an address or pattern; raises ConfigError."""
    if version == 4:
        parts = text.split(".")
    else:
        head, double, tail = text.partition("::")
        left, right = ([part for part in side.split(":") if part] for side in (head, tail))
        parts = left + ["0"] * (8 - len(left) - len(right) if double else 0) + right
    if len(parts) != (4 if version == 4 else 8):
        raise ConfigError(f"{text!r} is not a range of IP addresses; write one such as 10.1.2.* or 10.1.2.1-9")
    return parts


def _range(text: str, part: str, base: int, part_max: int) -> tuple[int, int]:
    if part == "*":
        return 0, part_max
    low_text, _dash, high_text = part.partition("-")
    try:
        low = int(low_text, base)
        high = int(high_text, base) if _dash else low
    except ValueError:
        low, high = 0, -1
    if not 0 <= low <= high <= part_max:
        raise ConfigError(f"{part!r} of {text!r} is not a range; write one such as 1-9, or * for all")
    return low, high


def _read(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
