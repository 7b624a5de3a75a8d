"""Who may do what: accounts with keys, signatures, permissions on topics and groups, and addresses let in without.

A request is let in when its address is white for everybody or for its account, or else when its signature is right and
its account may use every topic and group that the request names. More than 4.9.7 checks: the topics of batches (320)
and lite pulls (361), and the groups of locks (41, 42) and of queries of offsets (14), which 4.9.7 lets pass.

Leaves out reading the file (`rocketmq.accounts.access_control`) and changing it (`rocketmq.accounts.access_processor`).

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
    """What an account may do with a topic or group (`Permission.java`)."""

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
"""A request that publishes to it is not checked further: it tells of messages, and every client may."""
ADMIN_CODES: Final = frozenset(
    {17, 18, 21, 25, 26, 43, 45, 50, 51, 52, 53, 54, 60, 61, 200, 207, 215, 225, 306, 309, 314, 316, 317, 328, 329}
    | {905, 907}
)
"""Requests of administrators only: making and removing topics and groups, the broker's settings, its tables as a whole,
its accounts, having a group's member consume any message, and saying which brokers are alive.

4.9.7 lets every right signature have 50 to 54, and so make itself an administrator; and 21, 26, 43, 45 and 309.
"""
NAME_SERVER_ADMIN_CODES: Final = frozenset({100, 102, 103, 104, 205, 216, 318, 322, 327})
"""Requests to a name server that only administrators may make where it has accounts: those that change what it tells of
brokers and topics, or say that a broker is alive. What clients ask (105, 106 and the like) is told to everybody.

4.9.7's name server has no accounts.
"""


@frozen
class Account:
    """One account. A group's rights stand under the name of its retry topic, as in RocketMQ."""

    access_key: str
    secret_key: str = field(repr=False)
    is_white: Match
    is_admin: bool
    default_topic: Right
    default_group: Right
    rights: Mapping[str, Right]

    def right(self, resource: str) -> Right:
        """What the account may do with a topic, or with a group's retry topic.

        What waits in the broker's own topics is of every topic there is, so no default counts for these.
        """
        if resource in NOT_FOR_SENDING:
            return self.rights.get(resource, Right.DENY)
        default = self.default_group if resource.startswith(RETRY_PREFIX) else self.default_topic
        return self.rights.get(resource, default)


@frozen
class Rules:
    """All accounts, and the addresses that need none."""

    white: tuple[Match, ...]
    accounts: Mapping[str, Account]
    """By their access key."""


@define
class Wanted:
    """What a request asks for, by the names of topics and of groups' retry topics."""

    resources: dict[str, Right] = field(factory=dict)
    producer_groups: set[str] = field(factory=set)
    """The same names of groups that are joined as a producer."""

    def topic(self, name: str | None, right: Right) -> None:
        """The request uses a topic; none is nothing to check. A group's dead letters are the group's as well."""
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
    """Who a request says that it is from."""

    address: str
    """The peer's, without its port."""
    access_key: str | None
    signature: str | None


def problem(
    rules: Rules, claim: Claim, code: int, signed: Callable[[str], str], wanted: Callable[[], Wanted]
) -> str | None:
    """Why a request is refused, in RocketMQ's words; None when it is let in.

    `signed` gives the right signature under a secret, `wanted` what the request asks for; each is asked only when it
    matters.
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
    """Whether a peer at an address, which has signed as this account before, may use all this now."""
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
            # Everybody may tell traces, as in RocketMQ; whatever else the request uses is looked at all the same.
            continue
        owned = account.right(resource)
        if owned & Right.DENY or not owned & needed:
            return f"No default permission for {_told(resource)}"
    for resource in wanted.producer_groups:
        # By its default an account is told about consumers: a producer needs no right to its group, unless it is named.
        if account.rights.get(resource, Right.PUB) & Right.DENY:
            return f"No default permission for {_told(resource)}"
    return None


def _told(resource: str) -> str:
    is_group = resource.startswith(RETRY_PREFIX)
    return f"group:{resource.removeprefix(RETRY_PREFIX)[:128]}" if is_group else f"topic:{resource[:128]}"


def read_rights(topics: Iterable[str], groups: Iterable[str]) -> dict[str, Right]:
    """The rights written as "name=PUB|SUB"; raises ValueError, which names the text that is none."""
    found = {}
    for prefix, texts in (("", topics), (RETRY_PREFIX, groups)):
        for text in texts:
            name, equals, right = (part.strip() for part in text.partition("="))
            if not name or not equals or right not in RIGHTS:
                raise ValueError(f"{text!r} is not NAME=RIGHT; RIGHT is one of {', '.join(RIGHTS)}")
            found[name if name.startswith(prefix) else prefix + name] = RIGHTS[right]
    return found
