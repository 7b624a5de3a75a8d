"""Authorisation: accounts with keys, signatures, permissions on topics and groups, and allow-listed addresses.

A request is accepted if its address is allow-listed, globally or for its account. Otherwise its signature must be
right, and its account needs rights to every topic and group that it names. Unlike 4.9.7, this includes the topics of
batches (320) and lite pulls (361), and the groups of locks (41, 42) and offset queries (14).

Reading the file: see `rocketmq.accounts.access_control`. Changing it: see `rocketmq.accounts.access_processor`.

Source: `PlainPermissionManager.java`, `PlainAccessValidator.java`, `Permission.java` of 4.9.7.
"""

from __future__ import annotations

import enum
import hmac
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.rocketmq.accounts.address_patterns import Match
from longpoll_protocol.names import DEAD_PREFIX, NOT_FOR_SENDING, RETRY_PREFIX


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
"""Publishing to this topic needs no right, because every client sends traces."""
ADMIN_CODES: Final = frozenset(
    {17, 18, 21, 25, 26, 43, 45, 50, 51, 52, 53, 54, 60, 61, 200, 207, 215, 225, 306, 309, 314, 316, 317, 328, 329}
    | {905, 907}
)
"""Requests for administrators only.

They create and delete topics and groups, change settings and accounts, read whole tables, have a member consume a
message, or report living brokers. 4.9.7 allows 50 to 54 with any valid signature, so any account can become
administrator; also 21, 26, 43, 45 and 309.
"""
NAME_SERVER_ADMIN_CODES: Final = frozenset({100, 102, 103, 104, 205, 216, 318, 322, 327})
"""Requests to a name server with accounts that only administrators may make: those that change its data.

Clients' requests (such as 105 and 106) are open to all. 4.9.7's name server has no accounts.
"""


@frozen
class Account:
    """One account. As in RocketMQ, a group's rights are stored under the name of its retry topic."""

    access_key: str
    secret_key: str = field(repr=False)
    is_white: Match
    is_admin: bool
    default_topic: Right
    default_group: Right
    rights: Mapping[str, Right]

    def right(self, resource: str) -> Right:
        """Returns the right to a topic, or to a group's retry topic.

        The broker's own topics contain messages of all topics, so defaults do not apply to them.
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
    """By access key."""


@define
class Wanted:
    """The topics and groups of a request; groups by the names of their retry topics."""

    resources: dict[str, Right] = field(factory=dict)
    producer_groups: set[str] = field(factory=set)
    """Groups joined as a producer, by the same names."""

    def topic(self, name: str | None, right: Right) -> None:
        """The request uses a topic, if any. A dead-letter topic also needs the right to its group."""
        if name is not None:
            self.resources[name] = right
            if name.startswith(DEAD_PREFIX):
                self.group(name.removeprefix(DEAD_PREFIX))

    def group(self, name: str | None) -> None:
        """The request acts for a group."""
        if name is not None:
            self.resources[name if name.startswith(RETRY_PREFIX) else RETRY_PREFIX + name] = Right.SUB

    def producers(self, name: str) -> None:
        """The request joins a group of producers."""
        self.producer_groups.add(RETRY_PREFIX + name)


@frozen
class Claim:
    """The identity that a request claims."""

    address: str
    """The peer's address without its port."""
    access_key: str | None
    signature: str | None


def problem(
    rules: Rules, claim: Claim, code: int, signed: Callable[[str], str], wanted: Callable[[], Wanted]
) -> str | None:
    """Returns why a request is refused, in RocketMQ's words; None if it is accepted.

    `signed` returns the right signature for a secret; `wanted` returns the request's topics and groups. Both are called
    only when needed.
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
    """Whether a peer at an address, which signed as this account before, still has these rights."""
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
            # As in RocketMQ, all clients may send traces; other topics of the request are still checked.
            continue
        owned = account.right(resource)
        if owned & Right.DENY or not owned & needed:
            return f"No default permission for {_told(resource)}"
    for resource in wanted.producer_groups:
        # By default an account concerns consumers: a producer needs no right to its group, unless it is listed.
        if account.rights.get(resource, Right.PUB) & Right.DENY:
            return f"No default permission for {_told(resource)}"
    return None


def _told(resource: str) -> str:
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
