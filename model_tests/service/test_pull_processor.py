"""A pull request from its bytes to a reply, a hold or a refusal, and what it commits; with no socket and no store."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from model_tests.support.broker.raw_client import pull_fields

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import Decision, Found, Miss, PullChecks, Refused
from longpoll_broker.hold.pull_events import ONE_WAY, PullEvents
from longpoll_broker.hold.pull_processor import SHORT_POLLING_MS, PullProcessor
from longpoll_broker.io.channel import Outbox
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.subscription import Clients
from longpoll_broker.shared.topics import Groups, TopicConfig, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, TRAITS_4_9, TRAITS_5, Traits
from longpoll_broker.store.read import GetResult, GetStatus
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Serialisation
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import STRICT, Policy

PULL = RequestCode.PULL_MESSAGE
COMMIT, SUSPEND, SUBSCRIPTION = 1, 2, 4
RECEIVED_NS = 5_000_000
READ = GetResult(GetStatus.FOUND, 8, 3, 9, [], [5, 6], 0, suggest_slave=False)


class Told(PullEvents):
    """Notes what came."""

    __slots__ = ("notes",)

    def __init__(self, notes: list[Any]) -> None:
        self.notes = notes

    def received(self, pull: Pull, received_ns: int, wanted: Any, commit_offset: int) -> None:
        self.notes.append(("received", received_ns, type(wanted).__name__, commit_offset))


class World(RealRuntime):
    """A runtime, a runner that gives one decision and a hold service; each notes what it is asked, and commits too."""

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
        """Note it, and for what; the topic may be deleted just before."""
        self.notes.append(("hold", getattr(pull.filter, "expression", None)))
        if self.deletes_topic:
            del self.topics.by_name["T"]

    def topic_deleted(self, topic: str, _outbox: Outbox) -> None:
        self.notes.append(("deleted", topic))

    def processor(
        self,
        policy: Policy = STRICT,
        traits: Traits = STRICT_TRAITS,
        standing: BrokerRole | None = None,
        config: BrokerConfig | None = None,
    ) -> PullProcessor:
        desk = PullChecks(self.topics, Groups(), Clients(), traits=traits, standing=standing or BrokerRole())
        offsets, beside = Offsets(), self
        commit = offsets.commit
        noting: Any = SimpleNamespace(query=offsets.query, pulled=None)

        def committed(*place: Any, forward_only: bool, channel: Any = None) -> bool:
            assert channel is None or channel.number == 1
            beside.notes.append(("commit", *place, forward_only))
            return commit(*place, forward_only=forward_only)

        noting.commit = committed
        other: Any = self
        return PullProcessor(self, policy, config or BrokerConfig(), desk, noting, other, other, Told(self.notes))


def channel() -> Any:
    """A connection that has sent six requests."""
    return SimpleNamespace(request_count=6, received_ns=RECEIVED_NS, number=1)


def received(
    processor: PullProcessor, *, flag: int = 0, kind: Serialisation = Serialisation.JSON, **fields: Any
) -> str | None:
    """The reply to a pull of T for `*`; None where it is held."""
    asked = pull_fields("T", 5) | {name: str(value) for name, value in fields.items()}
    command = Command(PULL, 11, flag, asked, serialisation=kind)
    parts = processor.receive(channel(), command, Outbox())
    return None if parts is None else bytes(parts[0]).decode()


MISS: Any = Miss(READ, None)  # type: ignore[arg-type] # what it waits for is not looked at
MAY_WAIT: dict[str, Any] = {"sysFlag": SUSPEND | SUBSCRIPTION, "suspendTimeoutMillis": 1000}


def test_what_is_found_is_counted_since_its_receipt_and_answered_as_it_was_asked() -> None:
    world = World()
    processor = world.processor()
    assert received(processor, kind=Serialisation.ROCKETMQ, **MAY_WAIT) == "0 immediate ROCKETMQ"
    assert received(processor) == "0 immediate JSON"
    told = [("received", RECEIVED_NS, "TagFilter", -1), "pull_read", "look", ("count", "Found", RECEIVED_NS)]
    assert world.notes == [*told, *told]


def test_a_refused_pull_reads_and_commits_nothing() -> None:
    world = World()
    assert received(world.processor(), queueId=99, sysFlag=COMMIT | SUBSCRIPTION, commitOffset=3) == "1 immediate JSON"
    assert world.notes == [("received", RECEIVED_NS, "Refused", 3), ("count", "Refused", RECEIVED_NS)]

    world = World(Refused(1, "less than none"))
    assert received(world.processor(), sysFlag=COMMIT | SUBSCRIPTION) == "1 immediate JSON"
    assert [each for each in world.notes if each[0] in {"commit", "hold"}] == []


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
    """The deletion may have looked into the table before: the pull would wait for a topic that is gone."""
    world = World(MISS)
    world.deletes_topic = is_deleted
    processor = world.processor(attrs.evolve(STRICT, on_truncate=on_truncate))
    assert received(processor, **MAY_WAIT) is None
    assert world.notes[3:] == [("hold", "*"), *([("deleted", "T")] if is_told else [])]


@pytest.mark.parametrize(
    ("policy", "forward_only", "is_before"),
    [("at_read", False, True), ("monotone_max", True, True), ("after_hold", False, False)],
)
def test_an_offset_is_committed_when_the_policy_says_so(policy: Any, forward_only: bool, is_before: bool) -> None:
    commit = ("commit", "T", "G", 0, 4, forward_only)
    for decision, then in ((MISS, ("hold", "*")), (Found(READ), None)):
        world = World(decision)
        processor = world.processor(attrs.evolve(STRICT, commit=policy))
        fields: dict[str, Any] = MAY_WAIT | {"sysFlag": COMMIT | SUSPEND | SUBSCRIPTION, "commitOffset": 4}
        received(processor, kind=Serialisation.JSON, **fields)
        assert world.notes[0] == ("received", RECEIVED_NS, "TagFilter", 4)
        done = [each for each in world.notes if each[0] in {"commit", "hold"}]
        assert done == ([commit] if then is None else [commit, then] if is_before else [then, commit])


@pytest.mark.parametrize("policy", ["at_read", "after_hold"])
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
def test_who_commits(policy: Any, traits: Traits, role: Any, sys_flag: int, commits: bool) -> None:
    for offset in (4, 0, -7):
        world = World()
        processor = world.processor(attrs.evolve(STRICT, commit=policy), traits, BrokerRole(role))
        received(processor, sysFlag=sys_flag, commitOffset=offset)
        assert world.notes[0][3] == (max(offset, -1) if commits else -1)
        assert processor.offsets.query("T", "G", 0) == (offset if commits else None)


def decoded(fields: dict[str, str] | None = None, **options: Any) -> Pull:
    """The pull of a request that misses the fields which may be missing, unless they are given."""
    asked = pull_fields("T", 5, queue_id=2, subscription="a")
    for name in ("commitOffset", "suspendTimeoutMillis", "subVersion"):
        del asked[name]
    command = Command(PULL, 11, 2, asked | (fields or {}), serialisation=Serialisation.ROCKETMQ)
    return World().processor(**options)._decode(channel(), command)


def test_a_pull_is_as_it_was_asked_for() -> None:
    found = decoded()
    assert (found.opaque, found.group, found.topic, found.queue_id, found.offset) == (11, "G", "T", 2, 5)
    assert (found.count_max, found.sys_flag, found.subscription, found.expression_type) == (32, 4, "a", "TAG")
    assert (found.serialize, found.flag, found.number) == (1, 2, 7)
    assert (found.commit_offset, found.timeout_ms, found.sub_version, found.deadline_ms) == (0, 0, 0, 5)
    said = decoded({"commitOffset": "3", "suspendTimeoutMillis": "20", "subVersion": "9"})
    assert (said.commit_offset, said.timeout_ms, said.sub_version, said.deadline_ms) == (3, 20, 9, 25)


def test_requests_of_a_connection_are_counted() -> None:
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
    found = decoded({"suspendTimeoutMillis": str(asked_ms)}, traits=traits, config=config)
    assert found.timeout_ms == granted_ms


@pytest.mark.parametrize(("received_ns", "deadline_ms"), [(5_000_000, 25), (5_000_001, 26), (5_999_999, 26)])
def test_a_deadline_is_rounded_up(received_ns: int, deadline_ms: int) -> None:
    sender: Any = SimpleNamespace(request_count=0, received_ns=received_ns)
    command = Command(PULL, 11, 0, pull_fields("T", 5, timeout_ms=20))
    assert World().processor()._decode(sender, command).deadline_ms == deadline_ms


def test_which_codes_are_served() -> None:
    assert set(World().processor(traits=TRAITS_4_9).processors) == {PULL}
    processor = World().processor()
    assert set(processor.processors) == {PULL, RequestCode.LITE_PULL_MESSAGE}
    assert set(processor.processors.values()) == {processor.receive}
