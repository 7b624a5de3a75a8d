"""Accounts, rights by name and by default, and the addresses of an allow-list."""

from __future__ import annotations

from typing import Final

import pytest

from longpoll_broker.rocketmq.accounts.access import (
    ADMIN_CODES,
    NAME_SERVER_ADMIN_CODES,
    RIGHTS,
    Account,
    Claim,
    Right,
    Rules,
    Wanted,
    address_match,
    problem,
    read_rights,
)
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.names import NOT_FOR_SENDING
from longpoll_spec.errors import ConfigError

KEY: Final = "somebody"
PHRASE: Final = "a secret"
SEND: Final = int(RequestCode.SEND_MESSAGE_V2)


def account(
    topics: str = "", groups: str = "", *, topic: Right = Right.DENY, group: Right = Right.DENY, admin: bool = False
) -> Account:
    return Account(
        access_key=KEY,
        secret_key=PHRASE,
        is_white=address_match(""),
        is_admin=admin,
        default_topic=topic,
        default_group=group,
        rights=read_rights(topics.split(), groups.split()),
    )


def refused(who: Account, wanted: Wanted, code: int = SEND) -> str | None:
    claim = Claim("10.0.0.1", KEY, "signed")
    return problem(Rules((), {KEY: who}), claim, code, lambda _secret: "signed", lambda: wanted)


def of_topic(name: str, right: Right) -> Wanted:
    wanted = Wanted()
    wanted.topic(name, right)
    return wanted


def of_group(name: str) -> Wanted:
    wanted = Wanted()
    wanted.group(name)
    return wanted


@pytest.mark.parametrize("needed", [Right.PUB, Right.SUB, Right.PUB | Right.SUB])
@pytest.mark.parametrize("owned", sorted(RIGHTS))
def test_a_right_by_name_and_a_default_right_are_equivalent(owned: str, needed: Right) -> None:
    """An explicit denial wins, and an account without a right by name has only its default right."""
    right = RIGHTS[owned]
    is_let_in = right != Right.DENY and bool(right & needed)
    assert (refused(account(topic=right), of_topic("T", needed)) is None) == is_let_in
    assert (refused(account(f"T={owned}"), of_topic("T", needed)) is None) == is_let_in
    # The right by name counts, whatever the default is.
    for default in RIGHTS.values():
        assert (refused(account(f"T={owned}", topic=default), of_topic("T", needed)) is None) == is_let_in


@pytest.mark.parametrize("written", ["G", "%RETRY%G"])
@pytest.mark.parametrize("asked", ["G", "%RETRY%G"])
def test_a_right_to_a_group_covers_its_retry_topics(written: str, asked: str) -> None:
    """A right to a group also covers the group's retry topics, in the file and in a request."""
    who = account("T=PUB|SUB", f"{written}=DENY", topic=Right.SUB, group=Right.SUB)
    assert refused(who, of_group(asked)) == "No default permission for group:G"
    assert refused(who, of_topic("%RETRY%G", Right.SUB)) == "No default permission for group:G"
    assert refused(who, of_group("other")) is None
    let_in = account("", f"{written}=SUB")
    assert refused(let_in, of_group(asked)) is None
    assert refused(let_in, of_group("other")) == "No default permission for group:other"


def test_administrators_and_broker_topics() -> None:
    """An administrator may do everything unless the file lists its rights, as in RocketMQ."""
    assert refused(account(admin=True), of_topic("T", Right.PUB)) is None
    assert refused(account("T=DENY", admin=True), of_topic("T", Right.PUB)) == "No default permission for topic:T"
    assert refused(account("U=PUB", admin=True), of_topic("T", Right.PUB)) == "No default permission for topic:T"
    assert refused(account("T=PUB", admin=True), of_topic("T", Right.PUB)) is None
    every = account("T=PUB|SUB", topic=Right.PUB | Right.SUB, group=Right.PUB | Right.SUB)
    for code in ADMIN_CODES | NAME_SERVER_ADMIN_CODES:
        assert refused(every, Wanted(), code) == f"Need admin permission for request code={code}, but accessKey={KEY} is not"  # noqa: E501  # fmt: skip
        assert refused(account(admin=True), Wanted(), code) is None


@pytest.mark.parametrize("topic", sorted(NOT_FOR_SENDING))
def test_no_default_counts_for_the_brokers_own_topics(topic: str) -> None:
    """Messages of every topic wait in the broker's own topics, so an account needs a right by name to read those."""
    every = account(topic=Right.PUB | Right.SUB, group=Right.PUB | Right.SUB)
    assert refused(every, of_topic(topic, Right.SUB)) == f"No default permission for topic:{topic}"
    assert refused(account(f"{topic}=SUB"), of_topic(topic, Right.SUB)) is None


def test_some_requests_need_no_right() -> None:
    none = account()
    trace = of_topic("RMQ_SYS_TRACE_TOPIC", Right.PUB)
    assert refused(none, trace) is None
    trace.topic("T", Right.PUB)
    assert refused(none, trace) == "No default permission for topic:T"
    assert refused(none, of_topic("RMQ_SYS_TRACE_TOPIC", Right.SUB)) is not None
    wanted = Wanted()
    wanted.producers("P")
    assert refused(account(), wanted) is None
    assert refused(account("", "P=SUB"), wanted) is None
    assert refused(account("", "P=DENY", group=Right.SUB), wanted) == "No default permission for group:P"
    wanted = Wanted()
    wanted.topic(None, Right.PUB)
    wanted.group(None)
    assert wanted == Wanted()
    assert refused(account(), wanted) is None
    dead = of_topic("%DLQ%G", Right.SUB)
    assert refused(account("", "G=DENY", topic=Right.SUB, group=Right.SUB), dead) == "No default permission for group:G"
    assert refused(account("", "G=SUB"), dead) == "No default permission for topic:%DLQ%G"
    assert refused(account("%DLQ%G=SUB", "G=SUB"), dead) is None


def test_a_request_without_a_valid_signature_is_refused() -> None:
    rules = Rules((address_match("10.0.0.9"),), {KEY: account(topic=Right.PUB)})

    def said(claim: Claim) -> str | None:
        return problem(rules, claim, SEND, lambda secret: f"signed with {secret}", lambda: of_topic("T", Right.PUB))

    assert said(Claim("10.0.0.1", None, None)) == "No accessKey is configured"
    assert said(Claim("10.0.0.1", "x" * 99, None)) == f"No acl config for {'x' * 64}"
    for signature in (None, "", "signed with", "signed with a secret ", "\ud800"):
        assert said(Claim("10.0.0.1", KEY, signature)) == f"Check signature failed for accessKey={KEY}"
    assert said(Claim("10.0.0.1", KEY, "signed with a secret")) is None
    assert said(Claim("10.0.0.9", None, None)) is None


@pytest.mark.parametrize("text", ["T", "=PUB", " =PUB", "T=", "T=ALL", "T=PUB=SUB", "T=pub"])
def test_an_invalid_right_is_reported(text: str) -> None:
    for topics, groups in (([text], []), ([], [text])):
        with pytest.raises(ValueError, match="is not NAME=RIGHT"):
            read_rights(topics, groups)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        ("", [], ["127.0.0.1", "::1"]),
        ("*", ["127.0.0.1", "::1"], []),
        ("*.*.*.*", ["127.0.0.1"], []),
        ("10.1.2.3", ["10.1.2.3"], ["10.1.2.4", "10.1.2.30", "::1", "nonsense"]),
        ("10.1.2.3,10.1.2.5", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.{3,5}", ["10.1.2.3", "10.1.2.5"], ["10.1.2.4"]),
        ("10.1.2.*", ["10.1.2.0", "10.1.2.255"], ["10.1.3.0", "::1"]),
        ("10.1.2-9.*", ["10.1.2.7", "10.1.9.7"], ["10.1.1.7", "10.1.10.7"]),
        ("::1", ["::1", "0:0:0:0:0:0:0:1"], ["::2", "127.0.0.1"]),
        ("1050::5:{600,300c}", ["1050::5:600", "1050::5:300C"], ["1050::5:601"]),
        ("2::ac5:78:1-200:*", ["2::ac5:78:1:7", "2::AC5:78:200:ffff"], ["2::ac5:78:201:7", "2::ac5:79:1:7"]),
    ],
)
def test_allow_listed_addresses_are_admitted(pattern: str, inside: list[str], outside: list[str]) -> None:
    match = address_match(pattern)
    assert [address for address in (*inside, *outside) if match(address)] == inside


@pytest.mark.parametrize(
    "pattern", ["10.1.2", "10.1.2.256", "10.1.*", "10.1.9-2.*", "10.1.2.-1", "here", "1.2.3.{x}", "-"]
)
def test_an_invalid_address_pattern_is_reported(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"10\.1\.2|1-9"):
        address_match(pattern)
