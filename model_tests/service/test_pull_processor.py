"""A pull request without sockets: its bytes are decoded, and the pull is held, run and answered."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from model_tests.support.broker.raw_client import pull_fields
from model_tests.support.present import present
from model_tests.support.service import Box, decoded

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_service import PullEvents
from longpoll_broker.hold.hold_table import ANSWERED, HELD, Cause, Pull
from longpoll_broker.hold.pull import Decision, Found, Miss, OffsetMoved, PullChecks, Refused, check
from longpoll_broker.hold.pull_processor import SHORT_POLLING_MS, PullProcessor
from longpoll_broker.hold.pull_runner import KINDS, ONE_WAY, PullAnswers, PullRunner
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.io.processors import Refusal
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import GROUP_GET_LATENCY, GROUP_GET_NUMS, GROUP_GET_SIZE, Statistics
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.messages import ALL, GetResult, GetStatus, Matches
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, Serialisation
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import STRICT, Policy

PULL = RequestCode.PULL_MESSAGE
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
RECEIVED_NS = 5_000_000
READ = GetResult(GetStatus.FOUND, 8, 3, 9, [], [5, 6], 0, suggest_slave=False)


class Told(PullEvents):
    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def received(self, pull: Pull, received_ns: int, wanted: Any, commit_offset: int) -> None:
        self.notes.append(("received", received_ns, type(wanted).__name__, commit_offset))


class World(RealRuntime):
    def __init__(self, decision: Any = Found(READ)) -> None:  # noqa: B008 - frozen
        super().__init__()
        self.notes: list[Any] = []
        self.decision = decision
        self.deletes_topic = False
        self.topics = Topics()
        self.topics.put(TopicConfig("T", 4, 4))
        self.answers = self
        self.pulls: list[Pull] = []

    def step(self, action: str) -> None:
        self.notes.append(action)

    def look(self, pull: Pull, _wanted: Any) -> Any:
        self.pulls.append(pull)
        self.notes.append("look")
        return self.decision

    def count(self, _pull: Pull, decision: Decision, begun_ns: int) -> None:
        self.notes.append(("count", type(decision).__name__, begun_ns))

    def encode(self, _pull: Pull, decision: Decision, cause: str, kind: Serialisation, _outbox: Outbox) -> list[bytes]:
        return [f"{decision.code} {cause} {kind.name}".encode()]

    def hold(self, pull: Pull, _outbox: Outbox) -> None:
        self.notes.append(("hold", getattr(pull.filter, "expression", None)))
        if self.deletes_topic:
            del self.topics.by_name["T"]

    def topic_deleted(self, topic: str, _outbox: Outbox) -> None:
        self.notes.append(("deleted", topic))

    def processor(
        self,
        policy: Policy = STRICT,
        traits: Traits = STRICT_TRAITS,
        role: BrokerRole | None = None,
        config: BrokerConfig | None = None,
    ) -> PullProcessor:
        checks = PullChecks(self.topics, Groups(), Clients(), traits=traits, role=role or BrokerRole())
        offsets, beside = Offsets(), self
        commit = offsets.commit
        noting: Any = SimpleNamespace(query=offsets.query, pulled=None)

        def committed(*place: Any, forward_only: bool, channel: Any = None) -> bool:
            assert channel is None or channel.number == 1
            beside.notes.append(("commit", *place, forward_only))
            return commit(*place, forward_only=forward_only)

        noting.commit = committed
        other: Any = self
        return PullProcessor(self, policy, config or BrokerConfig(), checks, noting, other, other, Told(self.notes))


def channel() -> Any:
    return SimpleNamespace(request_count=6, received_ns=RECEIVED_NS, number=1)


def received(
    processor: PullProcessor, *, flag: int = 0, kind: Serialisation = Serialisation.JSON, **fields: Any
) -> str | None:
    """Returns the reply to a pull of topic T for all tags, or None if the pull is held."""
    asked = pull_fields("T", 5) | {name: str(value) for name, value in fields.items()}
    command = Command(PULL, 11, flag, asked, serialisation=kind)
    parts = processor.receive(channel(), command, Outbox())
    return None if parts is None else bytes(parts[0]).decode()


MISS: Any = Miss(READ, None)  # type: ignore[arg-type] # what it waits for is not looked at
MAY_WAIT: dict[str, Any] = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 1000}


def test_answers_and_counts_of_a_pull() -> None:
    world = World()
    processor = world.processor()
    assert received(processor, kind=Serialisation.ROCKETMQ, **MAY_WAIT) == "0 immediate ROCKETMQ"
    assert received(processor) == "0 immediate JSON"
    told = [("received", RECEIVED_NS, "TagFilter", -1), "pull_read", "look", ("count", "Found", RECEIVED_NS)]
    assert world.notes == [*told, *told]
    world = World()
    assert received(world.processor(), queueId=99, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=3) == "1 immediate JSON"
    assert world.notes == [("received", RECEIVED_NS, "Refused", 3), ("count", "Refused", RECEIVED_NS)]
    world = World(Refused(1, "less than none"))
    assert received(world.processor(), sysFlag=COMMIT | SUBSCRIPTION) == "1 immediate JSON"
    assert [each for each in world.notes if each[0] in {"commit", "hold"}] == []
    assert set(World().processor(traits=TRAITS_4_9).processors) == {PULL}
    processor = World().processor()
    assert set(processor.processors) == {PULL, RequestCode.LITE_PULL_MESSAGE}
    assert set(processor.processors.values()) == {processor.receive}


@pytest.mark.parametrize(
    ("traits", "flag", "sys_flag", "is_held"),
    [
        (STRICT_TRAITS, 0, SUSPEND | SUBSCRIPTION, True),
        (STRICT_TRAITS, 0, SUBSCRIPTION, False),
        (STRICT_TRAITS, ONE_WAY, SUSPEND | SUBSCRIPTION, False),
        (STRICT_TRAITS, ONE_WAY, SUBSCRIPTION, False),
        (TRAITS_4_9, ONE_WAY, SUSPEND | SUBSCRIPTION, True),
        (TRAITS_4_9, 0, SUBSCRIPTION, False),
    ],
)
def test_which_misses_are_held(traits: Traits, flag: int, sys_flag: int, is_held: bool) -> None:
    world = World(MISS)
    reply = received(world.processor(traits=traits), flag=flag, sysFlag=sys_flag, subscription="a")
    assert world.notes[3:] == ([("hold", "a")] if is_held else [("count", "Miss", RECEIVED_NS)])
    assert reply == (None if is_held else "19 immediate JSON")


@pytest.mark.parametrize(
    ("is_deleted", "on_truncate", "is_told"),
    [(True, "wake", True), (True, "ignore", False), (False, "wake", False), (False, "ignore", False)],
)
def test_a_topic_deleted_during_the_hold(is_deleted: bool, on_truncate: Any, is_told: bool) -> None:
    """The deletion may have searched the hold table before the pull was inserted."""
    world = World(MISS)
    world.deletes_topic = is_deleted
    processor = world.processor(attrs.evolve(STRICT, on_truncate=on_truncate))
    assert received(processor, **MAY_WAIT) is None
    assert world.notes[3:] == [("hold", "*"), *([("deleted", "T")] if is_told else [])]


@pytest.mark.parametrize(
    ("policy", "forward_only", "is_before"),
    [("before_hold", False, True), ("monotone_max", True, True), ("after_hold", False, False)],
)
def test_the_policy_decides_when_a_pull_commits(policy: Any, forward_only: bool, is_before: bool) -> None:
    commit = ("commit", "T", "G", 0, 4, forward_only)
    for decision, then in ((MISS, ("hold", "*")), (Found(READ), None)):
        world = World(decision)
        processor = world.processor(attrs.evolve(STRICT, commit=policy))
        fields: dict[str, Any] = MAY_WAIT | {"sysFlag": COMMIT | SUSPEND | SUBSCRIPTION, "commitOffset": 4}
        received(processor, kind=Serialisation.JSON, **fields)
        assert world.notes[0] == ("received", RECEIVED_NS, "TagFilter", 4)
        done = [each for each in world.notes if each[0] in {"commit", "hold"}]
        assert done == ([commit] if then is None else [commit, then] if is_before else [then, commit])


@pytest.mark.parametrize("policy", ["before_hold", "after_hold"])
@pytest.mark.parametrize(
    ("traits", "role", "sys_flag", "commits"),
    [
        (STRICT_TRAITS, "ASYNC_MASTER", COMMIT | SUBSCRIPTION, True),
        (STRICT_TRAITS, "ASYNC_MASTER", SUBSCRIPTION, False),
        (STRICT_TRAITS, "SLAVE", COMMIT | SUBSCRIPTION, False),
        (TRAITS_5, "SLAVE", COMMIT | SUBSCRIPTION, True),
        (TRAITS_5, "SLAVE", SUBSCRIPTION, False),
    ],
)
def test_the_policy_decides_which_pulls_commit(
    policy: Any, traits: Traits, role: Any, sys_flag: int, commits: bool
) -> None:
    for offset in (4, 0, -7):
        world = World()
        processor = world.processor(attrs.evolve(STRICT, commit=policy), traits, BrokerRole(role))
        received(processor, sysFlag=sys_flag, commitOffset=offset)
        assert world.notes[0][3] == (max(offset, -1) if commits else -1)
        assert processor.offsets.query("T", "G", 0) == (offset if commits else None)


def decoded_pull(fields: dict[str, str] | None = None, **options: Any) -> Pull:
    asked = pull_fields("T", 5, queue_id=2, subscription="a")
    for name in ("commitOffset", "suspendTimeoutMillis", "subVersion"):
        del asked[name]
    command = Command(PULL, 11, 2, asked | (fields or {}), serialisation=Serialisation.ROCKETMQ)
    return World().processor(**options)._decode(channel(), command)


def test_requests_and_their_fields() -> None:
    found = decoded_pull()
    assert (found.opaque, found.group, found.topic, found.queue_id, found.offset) == (11, "G", "T", 2, 5)
    assert (found.count_max, found.sys_flag, found.subscription, found.expression_type) == (32, 4, "a", "TAG")
    assert (found.serialize, found.flag, found.number) == (1, 2, 7)
    assert (found.commit_offset, found.timeout_ms, found.sub_version, found.deadline_ms) == (0, 0, 0, 5)
    said = decoded_pull({"commitOffset": "3", "suspendTimeoutMillis": "20", "subVersion": "9"})
    assert (said.commit_offset, said.timeout_ms, said.sub_version, said.deadline_ms) == (3, 20, 9, 25)
    processor, sender = World().processor(), channel()
    command = Command(PULL, 11, 0, pull_fields("T", 5))
    assert [processor._decode(sender, command).number for _ in range(3)] == [7, 8, 9]


@pytest.mark.parametrize(
    ("traits", "long_polling", "asked_ms", "granted_ms"),
    [
        (STRICT_TRAITS, True, 20, 20),
        (STRICT_TRAITS, True, 0, 0),
        (STRICT_TRAITS, True, -1, 0),
        (STRICT_TRAITS, True, 51, 50),
        (TRAITS_4_9, True, 51, 51),
        (TRAITS_4_9, True, -1, -1),
        (STRICT_TRAITS, False, 20, SHORT_POLLING_MS),
        (TRAITS_4_9, False, 20, SHORT_POLLING_MS),
    ],
)
def test_how_long_a_pull_may_be_held(traits: Traits, long_polling: bool, asked_ms: int, granted_ms: int) -> None:
    config = BrokerConfig(long_polling=long_polling, hold_timeout_ms_max=50)
    found = decoded_pull({"suspendTimeoutMillis": str(asked_ms)}, traits=traits, config=config)
    assert found.timeout_ms == granted_ms


@pytest.mark.parametrize(("received_ns", "deadline_ms"), [(5_000_000, 25), (5_000_001, 26), (5_999_999, 26)])
def test_a_deadline_is_rounded_up(received_ns: int, deadline_ms: int) -> None:
    sender: Any = SimpleNamespace(request_count=0, received_ns=received_ns)
    command = Command(PULL, 11, 0, pull_fields("T", 5, timeout_ms=20))
    assert World().processor()._decode(sender, command).deadline_ms == deadline_ms


SECOND_NS = 1_000_000_000


class RunnerEvents(PullEvents):
    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def now_ns(self) -> int:
        self.notes.append("now")
        return 7

    def record(self, event: str, pulls: Iterable[Pull], after_ns: int, visible_end: int | None = None) -> None:
        assert (event, visible_end, len(list(pulls))) == ("run", None, 1)
        self.notes.append(("ran", after_ns))

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        self.notes.append((code, cause, read))


class RunnerWorld(RealRuntime):
    def __init__(self, status: GetStatus = GetStatus.FOUND) -> None:
        super().__init__()
        self.notes: list[Any] = []
        self.status = status
        self.error: Exception | None = None
        self.monotonic_ns = lambda: 5_000 * SECOND_NS

    def step(self, action: str) -> None:
        self.notes.append(action)

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """Returns two messages of ten bytes if the status says that messages were found."""
        self.notes.append("get")
        if self.error is not None:
            raise self.error
        records, offsets = ([memoryview(b"0123456789")], [5, 6]) if self.status is GetStatus.FOUND else ([], [])
        return GetResult(self.status, 8, 3, 9, records, offsets, 10 * len(records), suggest_slave=False)

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        return 3, 9

    def runner(
        self, traits: Traits = STRICT_TRAITS, role: BrokerRole | None = None, policy: Policy = STRICT
    ) -> PullRunner:
        topics = Topics()
        topics.put(TopicConfig("T", 4, 4))
        checks = PullChecks(topics, Groups(), Clients(), traits=traits, role=role or BrokerRole())
        events, store = RunnerEvents(self.notes), self
        moved = lambda pull, offset: self.notes.append(("moved", pull.topic, offset))  # noqa: E731 - one line
        answers = PullAnswers(checks, events)
        stored: Any = store
        return PullRunner(self, policy, checks, stored, Statistics(), events, answers, moved)


def pull_of(**changes: Any) -> Pull:
    made = Pull(Channel.__new__(Channel), 11, "G", "T", 0, 5, 32, 6, subscription="*", phase=HELD)
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def looked(runner: PullRunner, pull: Pull) -> Decision:
    wanted = check(pull, runner.checks)
    assert not isinstance(wanted, Refused)
    return runner.look(pull, wanted)


@pytest.mark.parametrize("role", [BrokerRole(), BrokerRole("SLAVE", 1, slave_read=True)], ids=["master", "slave"])
def test_a_negative_message_count_is_refused(role: BrokerRole) -> None:
    decisions = [looked(RunnerWorld().runner(role=role), pull_of(count_max=count)) for count in (-1, 0, 1)]
    assert [type(each) for each in decisions] == [Refused, Found, Found]
    assert isinstance(looked(RunnerWorld().runner(TRAITS_5), pull_of(count_max=-1)), Found)
    assert isinstance(looked(RunnerWorld(GetStatus.OFFSET_OVERFLOW_ONE).runner(), pull_of(count_max=-1)), Miss)


def test_slaves_and_their_masters() -> None:
    codes = []
    for role in (BrokerRole(), BrokerRole("SLAVE", 1), BrokerRole("SLAVE", 1, offset_check_in_slave=True)):
        decision = looked(RunnerWorld(GetStatus.OFFSET_TOO_SMALL).runner(role=role), pull_of())
        assert isinstance(decision, OffsetMoved)
        codes.append(decision.code)
    assert codes == [21, 20, 21]
    for role, read, fields in (
        (BrokerRole(slave_read=True), read_of(suggest_slave=True), {"suggestWhichBrokerId": "7"}),
        (BrokerRole(slave_read=True), read_of(), {}),
        (BrokerRole("SLAVE", 1), read_of(GetStatus.OFFSET_TOO_SMALL), {"nextBeginOffset": "5"}),
    ):
        assert answered(OffsetMoved(read, 20), role=role)[0].ext_fields == FIELDS | fields


def counted(runner: PullRunner) -> list[int]:
    """Returns the messages, bytes and milliseconds that the statistics count for group G in queue 0 of topic T."""
    items = runner.statistics._items
    places = [(GROUP_GET_NUMS, "T@G"), (GROUP_GET_SIZE, "T@G"), (GROUP_GET_LATENCY, "0@T@G")]
    return [items[place].value for place in places if place in items]


def test_received_messages_are_counted_and_moved_offsets_reported() -> None:
    world = RunnerWorld()
    runner = world.runner()
    runner.count(pull_of(), looked(runner, pull_of()), 2_000 * SECOND_NS)
    assert (counted(runner), world.notes) == ([2, 10, 3_000_000], ["get"])
    for status, notes in (
        (GetStatus.OFFSET_TOO_SMALL, ["get", ("moved", "T", 8)]),
        (GetStatus.NO_MATCHED_MESSAGE, ["get"]),
        (GetStatus.OFFSET_OVERFLOW_ONE, ["get"]),
    ):
        world = RunnerWorld(status)
        runner = world.runner()
        runner.count(pull_of(), looked(runner, pull_of()), 0)
        assert (world.notes, counted(runner)) == (notes, [])
    runner.count(pull_of(), Refused(21, "not an offset"), 0)
    assert world.notes == ["get"]


def test_pulls_whose_run_succeeds_or_fails() -> None:
    """If the run of a pull fails, the pull is answered or an error is raised, depending on the policy."""
    world, outbox, pull = RunnerWorld(), Box(), pull_of()
    runner = world.runner()
    runner.run(pull, "woken", outbox)
    read = runner.store.get("T", 0, 5, 32)
    assert world.notes == ["now", "run", "get", ("ran", 7), (0, "woken", read), "get"]
    assert [(each.code, each.opaque, bytes(each.body)) for each in outbox.replies] == [(0, 11, b"0123456789")]
    assert (pull.phase, counted(runner)[:2]) == (ANSWERED, [2, 10])
    world, outbox = RunnerWorld(GetStatus.OFFSET_OVERFLOW_ONE), Box()
    decision = world.runner().run_now(pull_of(), "expired", 4, outbox)
    assert isinstance(decision, Miss)
    assert [(each.code, each.ext_fields and each.ext_fields["nextBeginOffset"]) for each in outbox.replies] == [
        (19, "8")
    ]
    world, outbox = RunnerWorld(), Box()
    decision = world.runner().run_now(pull_of(topic="gone"), "woken", 4, outbox)
    assert isinstance(decision, Refused)
    assert ("get" not in world.notes, [each.code for each in outbox.replies]) == (True, [17])
    world, outbox = RunnerWorld(), Box()
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


def test_a_pull_that_does_not_run_gets_the_reason() -> None:
    """A stopping broker answers a woken pull with the requested offset and does not read the store."""
    world, outbox = RunnerWorld(), Box()
    runner = world.runner(role=BrokerRole(slave_read=True))
    for cause in ("stopped", "busy", "thrown"):
        runner.refuse(pull_of(), cause, outbox)
    unread = GetResult(GetStatus.OFFSET_OVERFLOW_ONE, 5, 3, 9, [], [], 0, suggest_slave=False)
    assert world.notes == [(19, "stopped", unread), (2, "busy", None), (1, "thrown", None)]
    stopped = present(outbox.replies[0].ext_fields)
    assert [stopped[name] for name in ("nextBeginOffset", "minOffset", "maxOffset")] == ["5", "3", "9"]
    assert [each.code for each in outbox.replies] == [19, 2, 1]


@pytest.mark.parametrize(
    ("traits", "flag", "is_answered"),
    [(STRICT_TRAITS, 0, True), (STRICT_TRAITS, ONE_WAY, False), (TRAITS_4_9, ONE_WAY, True), (TRAITS_4_9, 0, True)],
)
def test_only_4_9_answers_a_woken_one_way_pull(traits: Traits, flag: int, is_answered: bool) -> None:
    outbox, pull = Box(), pull_of(flag=flag)
    RunnerWorld().runner(traits).refuse(pull, "busy", outbox)
    assert (len(outbox.replies), pull.phase) == (is_answered, ANSWERED)


@pytest.mark.parametrize(("traits", "kinds"), [(STRICT_TRAITS, [0, 1]), (TRAITS_4_9, [0, 0])], ids=["strict", "4.9"])
def test_only_4_9_answers_a_woken_pull_in_json(traits: Traits, kinds: list[int]) -> None:
    outbox = Box()
    runner = RunnerWorld().runner(traits)
    for serialize in (0, 1):
        runner.refuse(pull_of(serialize=serialize), "busy", outbox)
    assert [each.serialisation.value for each in outbox.replies] == kinds


RECORD = memoryview(b"0123456789")

FIELDS = {"suggestWhichBrokerId": "0", "nextBeginOffset": "8", "minOffset": "3", "maxOffset": "9"}


def read_of(status: GetStatus = GetStatus.FOUND, *, suggest_slave: bool = False) -> GetResult:
    return GetResult(status, 8, 3, 9, [RECORD], [5], len(RECORD), suggest_slave)


def answered(
    decision: Decision,
    traits: Traits = STRICT_TRAITS,
    role: BrokerRole | None = None,
    *,
    kind: int = 0,
    pull: dict[str, str] | None = None,
) -> tuple[Command, list[Any], Pull, Any]:
    topics, groups = Topics(), Groups()
    topics.put(TopicConfig("T", topic_sys_flag=5))
    groups.put(GroupConfig("G", group_sys_flag=6, which_broker_when_consume_slowly=7))
    checks = PullChecks(topics, groups, Clients(), traits=traits, role=role or BrokerRole())
    names: dict[str, Any] = {"group": "G", "topic": "T"} | (pull or {})
    told: list[Any] = []
    asked = Pull("c", 11, **names, queue_id=0, offset=5, count_max=32, sys_flag=4)
    parts = PullAnswers(checks, RunnerEvents(told)).encode(asked, decision, "woken", KINDS[kind], Outbox())
    return decoded(parts), told, asked, parts


@pytest.mark.parametrize("kind", [0, 1])
def test_an_answer_has_the_offsets_and_then_the_messages(kind: int) -> None:
    reply, told, pull, parts = answered(Found(read_of()), kind=kind)
    assert (reply.code, reply.opaque, reply.remark, bytes(reply.body)) == (0, 11, "FOUND", bytes(RECORD))
    assert (reply.ext_fields, reply.is_response, reply.serialisation) == (FIELDS, True, KINDS[kind])
    assert told == [(0, "woken", read_of())]
    assert (pull.phase, len(parts)) == (ANSWERED, 2)


def test_offsets_and_reasons_of_answers() -> None:
    read = read_of(GetStatus.OFFSET_TOO_SMALL)
    reply, told, _, parts = answered(OffsetMoved(read, 21))
    assert (reply.code, reply.remark, bytes(reply.body), len(parts)) == (21, "OFFSET_TOO_SMALL", b"", 1)
    assert (reply.ext_fields, told) == (FIELDS, [(21, "woken", read)])
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
    for other, flags in (({}, ("5", "6")), ({"topic": "U", "group": "H"}, ("0", "0"))):
        found = answered(Found(read_of()), TRAITS_5, pull=other)[0].ext_fields
        assert found == FIELDS | {"topicSysFlag": flags[0], "groupSysFlag": flags[1]}
