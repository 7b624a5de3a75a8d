"""Pulls that left the hold table: what each is answered, and what is counted and told of it, without sockets."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from model_tests.support.service import Box, decoded

from longpoll_broker.hold.hold_table import ANSWERED, HELD, Cause, Pull
from longpoll_broker.hold.pull import Decision, Found, Miss, OffsetMoved, PullChecks, Refused, check
from longpoll_broker.hold.pull_answers import KINDS, PullAnswers
from longpoll_broker.hold.pull_events import ONE_WAY, PullEvents
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.io.processors import Refusal
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.statistics import GROUP_GET_LATENCY, GROUP_GET_NUMS, GROUP_GET_SIZE, Statistics
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.read import ALL, GetResult, GetStatus, Matches
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import STRICT, Policy

SECOND_NS = 1_000_000_000


class Told(PullEvents):
    """Notes what is told, with the moment it is told to have come after."""

    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def now_ns(self) -> int:
        self.notes.append("now")
        return 7

    def ran(self, pull: Pull, after_ns: int) -> None:
        self.notes.append(("ran", after_ns))

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        self.notes.append((code, cause, read))


class World(RealRuntime):
    """A runtime whose clock stands at 5000 s, and a store of one answer; both note what they do."""

    def __init__(self, status: GetStatus = GetStatus.FOUND) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.status = status
        self.error: Exception | None = None
        self.monotonic_ns = lambda: 5_000 * SECOND_NS

    def step(self, action: str) -> None:
        self.notes.append(action)

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """Two messages of ten bytes, where something is found."""
        self.notes.append("get")
        if self.error is not None:
            raise self.error
        records, offsets = ([memoryview(b"0123456789")], [5, 6]) if self.status is GetStatus.FOUND else ([], [])
        return GetResult(self.status, 8, 3, 9, records, offsets, 10 * len(records), suggest_slave=False)

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 3, 9

    def runner(
        self, traits: Traits = STRICT_TRAITS, standing: BrokerRole | None = None, policy: Policy = STRICT
    ) -> PullRunner:
        """A runner of a broker that has the topic T."""
        topics = Topics()
        topics.put(TopicConfig("T", 4, 4))
        desk = PullChecks(topics, Groups(), Clients(), traits=traits, standing=standing or BrokerRole())
        events, store = Told(self.notes), self
        moved = lambda pull, offset: self.notes.append(("moved", pull.topic, offset))  # noqa: E731 - one line
        answers = PullAnswers(desk, events)
        stored: Any = store
        return PullRunner(self, policy, desk, stored, Statistics(), events, answers, moved)


def pull_of(**changes: Any) -> Pull:
    """A held pull that passes every check, from a connection that nothing is sent to."""
    made = Pull(Channel.__new__(Channel), 11, "G", "T", 0, 5, 32, 6, subscription="*", phase=HELD)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def looked(runner: PullRunner, pull: Pull) -> Decision:
    wanted = check(pull, runner.desk)
    assert not isinstance(wanted, Refused)
    return runner.look(pull, wanted)


@pytest.mark.parametrize("standing", [BrokerRole(), BrokerRole("SLAVE", 1, slave_read=True)], ids=["master", "slave"])
def test_a_pull_for_less_than_no_message_is_refused_and_one_for_none_is_not(standing: BrokerRole) -> None:
    decisions = [looked(World().runner(standing=standing), pull_of(count_max=count)) for count in (-1, 0, 1)]
    assert [type(each) for each in decisions] == [Refused, Found, Found]
    assert isinstance(looked(World().runner(TRAITS_5), pull_of(count_max=-1)), Found)
    assert isinstance(looked(World(GetStatus.OFFSET_OVERFLOW_ONE).runner(), pull_of(count_max=-1)), Miss)


def test_a_slave_asks_for_patience_where_a_master_moves_the_offset() -> None:
    codes = []
    for standing in (BrokerRole(), BrokerRole("SLAVE", 1), BrokerRole("SLAVE", 1, offset_check_in_slave=True)):
        decision = looked(World(GetStatus.OFFSET_TOO_SMALL).runner(standing=standing), pull_of())
        assert isinstance(decision, OffsetMoved)
        codes.append(decision.code)
    assert codes == [21, 20, 21]


def counted(runner: PullRunner) -> list[int]:
    """Messages, bytes and milliseconds that group G got of queue 0 of topic T."""
    items = runner.statistics._items
    places: list[Any] = [(GROUP_GET_NUMS, ("T", "G")), (GROUP_GET_SIZE, ("T", "G")), (GROUP_GET_LATENCY, (0, "T", "G"))]
    return [items[place].value for place in places if place in items]


def test_what_a_group_gets_is_counted_and_a_moved_offset_is_told() -> None:
    world = World()
    runner = world.runner()
    runner.count(pull_of(), looked(runner, pull_of()), 2_000 * SECOND_NS)
    assert counted(runner) == [2, 10, 3_000_000]
    assert world.notes == ["get"]

    for status, notes in (
        (GetStatus.OFFSET_TOO_SMALL, ["get", ("moved", "T", 8)]),
        (GetStatus.NO_MATCHED_MESSAGE, ["get"]),
        (GetStatus.OFFSET_OVERFLOW_ONE, ["get"]),
    ):
        world = World(status)
        runner = world.runner()
        runner.count(pull_of(), looked(runner, pull_of()), 0)
        assert (world.notes, counted(runner)) == (notes, [])
    runner.count(pull_of(), Refused(21, "not an offset"), 0)
    assert world.notes == ["get"]


def test_a_pull_is_run_from_its_first_check_on() -> None:
    world, outbox, pull = World(), Box(), pull_of()
    runner = world.runner()
    runner.run(pull, "woken", outbox)
    read = runner.store.get("T", 0, 5, 32)
    assert world.notes == ["now", "run", "get", ("ran", 7), (0, "woken", read), "get"]
    assert [(each.code, each.opaque, bytes(each.body)) for each in outbox.replies] == [(0, 11, b"0123456789")]
    assert (pull.phase, counted(runner)[:2]) == (ANSWERED, [2, 10])

    world, outbox = World(GetStatus.OFFSET_OVERFLOW_ONE), Box()
    decision = world.runner().run_now(pull_of(), "expired", 4, outbox)
    assert isinstance(decision, Miss)
    assert [(each.code, each.ext_fields and each.ext_fields["nextBeginOffset"]) for each in outbox.replies] == [
        (19, "8")
    ]

    world, outbox = World(), Box()
    decision = world.runner().run_now(pull_of(topic="gone"), "woken", 4, outbox)
    assert isinstance(decision, Refused)
    assert ("get" not in world.notes, [each.code for each in outbox.replies]) == (True, [17])


def test_a_run_that_fails_is_answered_or_raises_as_the_policy_says() -> None:
    world, outbox = World(), Box()
    world.error = OSError("no disk")
    decision = world.runner().run_now(pull_of(), "woken", 4, outbox)
    assert decision == Refused(1, "OSError: no disk")
    assert world.notes == ["get", ("ran", 4), (1, "thrown", None)]
    assert [(each.code, each.remark) for each in outbox.replies] == [(1, "OSError: no disk")]

    outbox = Box()
    runner = world.runner(policy=attrs.evolve(STRICT, on_throw="drop_rest"))
    with pytest.raises(OSError, match="no disk"):
        runner.run_now(pull_of(), "woken", 4, outbox)
    assert not outbox.replies


def test_a_pull_that_is_not_run_is_answered_why() -> None:
    """A stopping broker: nothing new, from the offset that was asked for, and the queue's ends, without a read."""
    world, outbox = World(), Box()
    runner = world.runner(standing=BrokerRole(slave_read=True))
    for cause in ("stopped", "busy", "thrown"):
        runner.refuse(pull_of(), cause, outbox)
    unread = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 5, 3, 9, [], [], 0, suggest_slave=False)
    assert world.notes == [(19, "stopped", unread), (2, "busy", None), (1, "thrown", None)]
    stopped = outbox.replies[0].ext_fields
    assert stopped is not None
    assert [stopped[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")] == ["5", "3", "9"]
    assert [each.code for each in outbox.replies] == [19, 2, 1]


@pytest.mark.parametrize(
    ("traits", "flag", "is_answered"),
    [(STRICT_TRAITS, 0, True), (STRICT_TRAITS, ONE_WAY, False), (TRAITS_4_9, ONE_WAY, True), (TRAITS_4_9, 0, True)],
)
def test_who_wants_no_answer_gets_none_but_from_4_9(traits: Traits, flag: int, is_answered: bool) -> None:
    outbox, pull = Box(), pull_of(flag=flag)
    World().runner(traits).refuse(pull, "busy", outbox)
    assert (len(outbox.replies), pull.phase) == (is_answered, ANSWERED)


@pytest.mark.parametrize(("traits", "kinds"), [(STRICT_TRAITS, [0, 1]), (TRAITS_4_9, [0, 0])], ids=["strict", "4.9"])
def test_a_woken_pull_is_answered_as_it_was_written_but_by_4_9(traits: Traits, kinds: list[int]) -> None:
    outbox = Box()
    runner = World().runner(traits)
    for serialize in (0, 1):
        runner.refuse(pull_of(serialize=serialize), "busy", outbox)
    assert [each.serialisation.value for each in outbox.replies] == kinds


RECORD = memoryview(b"0123456789")

FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "8", "minOffset": "3", "maxOffset": "9"}


def read_of(status: GetStatus = GetStatus.FOUND, *, suggest_slave: bool = False) -> GetResult:
    """A read that found one record, whatever its status says."""
    return GetResult(status, 8, 3, 9, [RECORD], [5], len(RECORD), suggest_slave)


def answered(
    decision: Decision,
    traits: Traits = STRICT_TRAITS,
    standing: BrokerRole | None = None,
    *,
    kind: int = 0,
    pull: dict[str, str] | None = None,
) -> tuple[Command, list[Any], Pull, Any]:
    """The answer, what was told of it, the pull, and the buffers."""
    topics, groups = Topics(), Groups()
    topics.put(TopicConfig("T", topic_sys_flag=5))
    groups.put(GroupConfig("G", group_sys_flag=6, which_broker_when_consume_slowly=7))
    desk = PullChecks(topics, groups, Clients(), traits=traits, standing=standing or BrokerRole())
    names: dict[str, Any] = {"group": "G", "topic": "T"} | (pull or {})
    told: list[Any] = []
    asked = Pull("c", 11, **names, queue_id=0, offset=5, count_max=32, sys_flag=4)
    parts = PullAnswers(desk, Told(told)).encode(asked, decision, "woken", KINDS[kind], Outbox())
    return decoded(parts), told, asked, parts


@pytest.mark.parametrize("kind", [0, 1])
def test_what_was_found_follows_the_offsets(kind: int) -> None:
    reply, told, pull, parts = answered(Found(read_of()), kind=kind)
    assert (reply.code, reply.opaque, reply.remark, bytes(reply.body)) == (0, 11, "FOUND", bytes(RECORD))
    assert (reply.ext_fields, reply.is_response, reply.serialisation) == (FIELDS, True, KINDS[kind])
    assert told == [(0, "woken", read_of())]
    assert (pull.phase, len(parts)) == (ANSWERED, 2)


def test_what_is_no_find_carries_offsets_alone() -> None:
    read = read_of(GetStatus.OFFSET_TOO_SMALL)
    reply, told, _, parts = answered(OffsetMoved(read, 21))
    assert (reply.code, reply.remark, bytes(reply.body), len(parts)) == (21, "OFFSET_TOO_SMALL", b"", 1)
    assert (reply.ext_fields, told) == (FIELDS, [(21, "woken", read)])


def test_a_refusal_carries_its_reason_and_no_offsets() -> None:
    for traits, forbidden, fields in (
        (STRICT_TRAITS, 3, {}),
        (TRAITS_5, 3, {"forbiddenType": "3"}),
        (TRAITS_5, None, {}),
    ):
        reply, told, pull, parts = answered(Refused(16, "no", forbidden), traits)
        assert (reply.code, reply.remark, reply.ext_fields or {}, reply.is_response) == (16, "no", fields, True)
        assert (told, pull.phase) == ([(16, "woken", None)], ANSWERED)
        assert isinstance(parts, Refusal)
        assert (parts.code, parts.remark) == (16, "no")


def test_5_tells_of_the_topic_and_the_group() -> None:
    for pull, flags in (({}, ("5", "6")), ({"topic": "U", "group": "H"}, ("0", "0"))):
        fields = answered(Found(read_of()), TRAITS_5, pull=pull)[0].ext_fields
        assert fields == FIELDS | {"topicSysFlag": flags[0], "groupSysFlag": flags[1]}


def test_a_broker_whose_readers_may_go_to_a_slave_says_to_which() -> None:
    for standing, read, fields in (
        (BrokerRole(slave_read=True), read_of(suggest_slave=True), {"suggestWhichBrokerId": "7"}),
        (BrokerRole(slave_read=True), read_of(), {}),
        (BrokerRole("SLAVE", 1), read_of(GetStatus.OFFSET_TOO_SMALL), {"nextBeginOffset": "5"}),
    ):
        assert answered(OffsetMoved(read, 20), standing=standing)[0].ext_fields == FIELDS | fields
