"""Authorisation: accounts with keys, signatures, permissions on topics and groups, and allow-listed addresses.

A request is accepted if its address is allow-listed, globally or for its account. Otherwise its signature must be
valid, and its account needs the right to every topic and group that the request names. Unlike 4.9.7, this includes the
topics of batches (320) and lite pulls (361), and the groups of locks (41, 42) and offset queries (14).

Patterns of allow-lists:

| pattern | matches |
|---|---|
| `*` | all addresses |
| `10.1.2.3`, `::1` | one address |
| `10.1.2.3,10.1.2.4` | each of these |
| `10.1.2.{3,4}` | each of these |
| `10.1.2.*`, `10.1.2-9.*`, `2::ac5:78:1-200:*` | ranges of the last parts; in IPv6 the parts are hexadecimal |

Reading the file: see `rocketmq.accounts.access_control`. Changing it: see `rocketmq.accounts.access_processor`.

Source: `PlainPermissionManager.java`, `PlainAccessValidator.java`, `Permission.java`,
`RemoteAddressStrategyFactory.java` of 4.9.7.
"""

from __future__ import annotations

import enum
import hmac
import re
from collections.abc import Callable, Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from attrs import define, field, frozen

from longpoll_protocol.names import DEAD_PREFIX, NOT_FOR_SENDING, RETRY_PREFIX
from longpoll_spec.errors import ConfigError

Match = Callable[[str], bool]
EVERYBODY: Final = frozenset({"*", "*.*.*.*", "*:*:*:*:*:*:*:*"})
_BRACES: Final = re.compile(r"(.*[.:])\{([^{}]+)\}")


def address_match(pattern: str) -> Match:
    """Returns a function that matches addresses without port; raises ConfigError for an invalid pattern.

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
    """Returns the four (IPv4) or eight (IPv6) parts of an address or a pattern; raises ConfigError if it is invalid."""
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


class Right(enum.IntFlag):
    """An account's right to a topic or group (`Permission.java`)."""

    DENY = 1
    PUB = 4
    SUB = 8


RIGHTS: Final = {
    "DENY": Right.DENY,
    "PUB": Right.PUB,
    "SUB": Right.SUB,
    "PUB|SUB": Right.PUB | Right.SUB,
    "SUB|PUB": Right.PUB | Right.SUB,
}
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
"""Every account may publish to this topic, because every client sends traces."""
ADMIN_CODES: Final = frozenset(
    {17, 18, 21, 25, 26, 43, 45, 50, 51, 52, 53, 54, 60, 61, 200, 207, 215, 225, 306, 309, 314, 316, 317, 328, 329}
    | {905, 907}
)
"""Request codes for administrators only.

These requests create and delete topics and groups, change settings and accounts, read whole tables, let a member
consume a message, or report living brokers. 4.9.7 accepts codes 50 to 54 (accounts), and also codes 21, 26, 43, 45 and
309, with any valid signature. With 4.9.7, any account can therefore make itself an administrator."""
NAME_SERVER_ADMIN_CODES: Final = frozenset({100, 102, 103, 104, 205, 216, 318, 322, 327})
"""Request codes that a name server with accounts accepts only from administrators, because they change its data.

The requests of clients (such as 105 and 106) need no account. The name server of 4.9.7 has no accounts at all."""


@frozen
class Account:
    """One account. As in RocketMQ, the rights to a group are stored under the name of the group's retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    is_white: Match
    is_admin: bool
    default_topic: Right
    default_group: Right
    rights: Mapping[str, Right]

    def right(self, resource: str) -> Right:
        """Returns the account's right to a topic, or to a group by the name of its retry topic.

        The broker's own topics contain messages of all topics, so the account's default right does not apply to them.
        """
        if resource in NOT_FOR_SENDING:
            return self.rights.get(resource, Right.DENY)
        default = self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic
        return self.rights.get(resource, default)


@frozen
class Rules:
    """All accounts, and the global allow-list."""

    white: tuple[Match, ...]
    accounts: Mapping[str, Account]
    """The accounts by access key."""


@define
class Wanted:
    """The topics and groups that a request uses; groups are stored by the names of their retry topics."""

    resources: dict[str, Right] = field(factory=dict)
    producer_groups: set[str] = field(factory=set)
    """Groups that the request joins as a producer, by the names of their retry topics."""

    def topic(self, name: str | None, right: Right) -> None:
        """Add a topic that the request uses, if it names one; for a dead-letter topic also add its group."""
        if name is not None:
            self.resources[name] = right
            if name.startswith(DEAD_PREFIX):
                self.group(name.removeprefix(DEAD_PREFIX))

    def group(self, name: str | None) -> None:
        """Add a group for which the request acts."""
        if name is not None:
            self.resources[name if name.startswith(RETRY_PREFIX) else RETRY_PREFIX + name] = Right.SUB

    def producers(self, name: str) -> None:
        """Add a producer group that the request joins."""
        self.producer_groups.add(RETRY_PREFIX + name)


@frozen
class Claim:
    """The identity that a request claims to have."""

    address: str
    """The peer's address without its port."""
    access_key: str | None
    signature: str | None


def problem(
    rules: Rules, claim: Claim, code: int, signed: Callable[[str], str], wanted: Callable[[], Wanted]
) -> str | None:
    """Returns why a request is refused, in RocketMQ's words, or None if it is accepted.

    `signed` returns the valid signature for a secret, and `wanted` returns the request's topics and groups; both
    functions are called only if needed.
    """
    if any(match(claim.address) for match in rules.white):
        return None
    if claim.access_key is None:
        return "No accessKey is configured"
    account = rules.accounts.get(claim.access_key)
    if account is None:
        return f"No acl config for {claim.access_key[:64]}"
    if account.is_white(claim.address):
        return None
    right = signed(account.secret_key).encode()
    if not hmac.compare_digest(right, (claim.signature or "").encode("utf-8", "surrogatepass")):
        return f"Check signature failed for accessKey={account.access_key}"
    return _missing_right(account, code, wanted())


def may_use(rules: Rules, address: str, access_key: str, wanted: Wanted) -> bool:
    """Whether a peer still has these rights, given the account that signed one of its earlier requests."""
    if any(match(address) for match in rules.white):
        return True
    account = rules.accounts.get(access_key)
    if account is None:
        return False
    return account.is_white(address) or _missing_right(account, 0, wanted) is None


def _missing_right(account: Account, code: int, wanted: Wanted) -> str | None:
    resources = wanted.resources
    if (code in ADMIN_CODES or code in NAME_SERVER_ADMIN_CODES) and not account.is_admin:
        return f"Need admin permission for request code={code}, but accessKey={account.access_key} is not"
    if account.is_admin and not account.rights:
        return None
    for resource, needed in resources.items():
        if resource == TRACE_TOPIC and needed == Right.PUB:
            # As in RocketMQ, every client may send traces. Other topics of the request are still checked.
            continue
        owned = account.right(resource)
        if owned & Right.DENY or not owned & needed:
            return f"No default permission for {_described(resource)}"
    for resource in wanted.producer_groups:
        # An account's default rights to groups apply only to consumers, so a producer needs no right to its group
        # unless the account lists the group.
        if account.rights.get(resource, Right.PUB) & Right.DENY:
            return f"No default permission for {_described(resource)}"
    return None


def _described(resource: str) -> str:
    is_group = resource.startswith(RETRY_PREFIX)
    return f"group:{resource.removeprefix(RETRY_PREFIX)[:128]}" if is_group else f"topic:{resource[:128]}"


def read_rights(topics: Iterable[str], groups: Iterable[str]) -> dict[str, Right]:
    """Parse rights written as "name=PUB|SUB"; raises ValueError with the invalid text."""
    found = {}
    for prefix, texts in (("", topics), (RETRY_PREFIX, groups)):
        for text in texts:
            name, equals, right = (part.strip() for part in text.partition("="))
            if not name or not equals or right not in RIGHTS:
                raise ValueError(f"{text!r} is not NAME=RIGHT; RIGHT is one of {', '.join(RIGHTS)}")
            found[name if name.startswith(prefix) else prefix + name] = RIGHTS[right]
    return found
