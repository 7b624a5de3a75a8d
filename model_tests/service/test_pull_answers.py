"""The bytes of answers to pulls: which fields they carry, by version and by where the broker stands."""

from __future__ import annotations

from typing import Any

import pytest

from longpoll_broker.core.hold import ANSWERED, Cause, Pull
from longpoll_broker.core.pull import Decision, Desk, Found, OffsetMoved, Refused
from longpoll_broker.core.read import GetResult, GetStatus
from longpoll_broker.core.standing import Standing
from longpoll_broker.core.tables.subscription import Clients
from longpoll_broker.core.tables.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.core.traits import STRICT_TRAITS, TRAITS_5, Traits
from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.io.processors import Refusal
from longpoll_broker.service.pull.pull_answers import KINDS, PullAnswers
from longpoll_broker.service.pull.pull_events import PullEvents
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.connection import Connection

RECORD = memoryview(b"0123456789")
FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "8", "minOffset": "3", "maxOffset": "9"}


class Told(PullEvents):
    """Notes the answers."""

    __slots__ = ("notes",)

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        self.notes.append((code, read, cause))


def read_of(status: GetStatus = GetStatus.FOUND, *, suggest_slave: bool = False) -> GetResult:
    """A read that found one record, whatever its status says."""
    return GetResult(status, 8, 3, 9, [RECORD], [5], len(RECORD), suggest_slave)


def answered(
    decision: Decision,
    traits: Traits = STRICT_TRAITS,
    standing: Standing | None = None,
    *,
    kind: int = 0,
    pull: dict[str, str] | None = None,
) -> tuple[Command, Told, Pull, Any]:
    """The answer, what was told of it, the pull, and the buffers."""
    topics, groups = Topics(), Groups()
    topics.put(TopicConfig("T", topic_sys_flag=5))
    groups.put(GroupConfig("G", group_sys_flag=6, which_broker_when_consume_slowly=7))
    desk = Desk(topics, groups, Clients(), traits=traits, standing=standing or Standing())
    names: dict[str, Any] = {"group": "G", "topic": "T"} | (pull or {})
    told, asked = Told(), Pull("c", 11, **names, queue_id=0, offset=5, count_max=32, sys_flag=4)
    parts = PullAnswers(desk, told).encode(asked, decision, "woken", KINDS[kind], Outbox())
    connection = Connection()
    connection.receive_data(b"".join(map(bytes, parts)))
    reply = connection.next_event()
    assert isinstance(reply, Command)
    return reply, told, asked, parts


@pytest.mark.parametrize("kind", [0, 1])
def test_what_was_found_follows_the_offsets(kind: int) -> None:
    reply, told, pull, parts = answered(Found(read_of()), kind=kind)
    assert (reply.code, reply.opaque, reply.remark, bytes(reply.body)) == (0, 11, "FOUND", bytes(RECORD))
    assert (reply.ext_fields, reply.is_response, reply.serialisation) == (FIELDS, True, KINDS[kind])
    assert told.notes == [(0, read_of(), "woken")]
    assert (pull.phase, len(parts)) == (ANSWERED, 2)


def test_what_is_no_find_carries_offsets_alone() -> None:
    read = read_of(GetStatus.OFFSET_TOO_SMALL)
    reply, told, _, parts = answered(OffsetMoved(read, 21))
    assert (reply.code, reply.remark, bytes(reply.body), len(parts)) == (21, "OFFSET_TOO_SMALL", b"", 1)
    assert (reply.ext_fields, told.notes) == (FIELDS, [(21, read, "woken")])


def test_a_refusal_carries_its_reason_and_no_offsets() -> None:
    for traits, forbidden, fields in (
        (STRICT_TRAITS, 3, {}),
        (TRAITS_5, 3, {"forbiddenType": "3"}),
        (TRAITS_5, None, {}),
    ):
        reply, told, pull, parts = answered(Refused(16, "no", forbidden), traits)
        assert (reply.code, reply.remark, reply.ext_fields or {}, reply.is_response) == (16, "no", fields, True)
        assert (told.notes, pull.phase) == ([(16, None, "woken")], ANSWERED)
        assert isinstance(parts, Refusal)
        assert (parts.code, parts.remark) == (16, "no")


def test_5_tells_of_the_topic_and_the_group() -> None:
    for pull, flags in (({}, ("5", "6")), ({"topic": "U", "group": "H"}, ("0", "0"))):
        fields = answered(Found(read_of()), TRAITS_5, pull=pull)[0].ext_fields
        assert fields == FIELDS | {"topicSysFlag": flags[0], "groupSysFlag": flags[1]}


def test_a_broker_whose_readers_may_go_to_a_slave_says_to_which() -> None:
    for standing, read, fields in (
        (Standing(slave_read=True), read_of(suggest_slave=True), {"suggestWhichBrokerId": "7"}),
        (Standing(slave_read=True), read_of(), {}),
        (Standing("SLAVE", 1), read_of(GetStatus.OFFSET_TOO_SMALL), {"nextBeginOffset": "5"}),
    ):
        assert answered(OffsetMoved(read, 20), standing=standing)[0].ext_fields == FIELDS | fields
