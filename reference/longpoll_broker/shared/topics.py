"""Topics and consumer groups: names, permissions, queue counts, attributes, and creation on demand.

Threads may share a table: every change is one assignment to a dict, and two threads that create the same topic create
equal objects. Persistence: see `upkeep.config_files`. Attributes (5.x) are stored and reported; a proxy applies them.
Topics that need another kind of queue are refused.

Source: `TopicConfigManager.java`, `TopicValidator.java`, `PermName.java`, `SubscriptionGroupManager.java` 4.9;
`TopicAttributes.java`, `AttributeUtil.alterCurrentAttributes`, `AttributeParser.java` 5.5.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final, Generic, TypeVar

import msgspec
from attrs import define, field

from longpoll_broker.errors import BrokerError
from longpoll_broker.shared.quota import Quota
from longpoll_protocol.bodies import Int32, Int64
from longpoll_protocol.names import (
    DEFAULT_TOPIC,
    GROUP_SIZE_MAX,
    LMQ_PREFIX,
    PERM_INHERIT,
    PERM_READ,
    PERM_READ_WRITE,
    REPLY_SUFFIX,
    RETRY_PREFIX,
    SYSTEM_NAMES,
    SYSTEM_PREFIX,
    SYSTEM_TOPICS,
    UNIT_FLAG,
    UNIT_RETRY_FLAG,
    group_problem,
    name_problem,
    queue_name_problem,
)
from longpoll_spec.tables import with_table

SERVED: Final[Mapping[str, frozenset[str]]] = {
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "queue.type": frozenset({"SimpleCQ"}),
    "cleanup.policy": frozenset({"DELETE"}),
}
"""The supported values of each attribute."""


class AttributeRefusedError(BrokerError):
    """Raised for a refused change of attributes; the message says why it is refused."""


def read_changes(text: str | None) -> dict[str, str]:
    """Parse the changes in a header, as in `+message.type=FIFO,-queue.type`; raises AttributeRefusedError."""
    changes: dict[str, str] = {}
    for part in (text or "").split(","):
        name, equals, value = part.strip().partition("=")
        if not name:
            continue
        if name in changes or (name.startswith("+") and not equals):
            raise AttributeRefusedError(f"the attributes {(text or '')[:80]!r} are not +NAME=VALUE or -NAME, each once")
        changes[name] = value
    return changes


def changed(before: Mapping[str, str], changes: Mapping[str, str]) -> dict[str, str]:
    """Apply changes to attributes: `+` sets an attribute, `-` removes it; raises AttributeRefusedError."""
    found = dict(before)
    for signed, value in changes.items():
        sign, name = signed[:1], signed[1:]
        if sign not in {"+", "-"} or name not in SERVED:
            raise AttributeRefusedError(
                f"the attribute {signed[:80]!r} is not served here; write + or - before one of {', '.join(SERVED)}"
            )
        if sign == "-":
            found.pop(name, None)
        elif value in SERVED[name]:
            found[name] = value
        else:
            raise AttributeRefusedError(
                f"{name}={value[:80]} is not served here; it is one of {', '.join(sorted(SERVED[name]))}"
            )
    return found


TOPIC_COUNT_MAX: Final = 100_000
"""Maximum topics, and maximum groups, because clients can create them and each needs room in a file."""
QUEUE_COUNT_MAX: Final = 1024
"""Maximum queues of one topic. RocketMQ has no limit, but each queue needs files."""
LOADED_QUEUE_COUNT_MAX: Final = 16_384
"""Maximum queues of a topic in `topics.json`, because answers list each queue."""
FAQ: Final = "See http://rocketmq.apache.org/docs/faq/ for further details."
"""The end of RocketMQ's remarks about unknown names."""


def no_change() -> None:
    """Do nothing on changes."""


@with_table
class TopicConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One topic; the JSON field names are those of `topics.json`."""

    topic_name: str
    read_queue_nums: Int32 = 16
    write_queue_nums: Int32 = 16
    perm: Int32 = PERM_READ_WRITE
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: Int32 = 0
    order: bool = False
    attributes: dict[str, str] | msgspec.UnsetType | None = msgspec.UNSET
    """Attributes of 5.x (`SERVED`); the key is absent in 4.9."""

    @property
    def is_readable(self) -> bool:
        """Whether clients may pull from the topic."""
        return bool(self.perm & PERM_READ)


@with_table
class GroupConfig(msgspec.Struct, frozen=True, rename="camel"):
    """One consumer group; the JSON field names are those of `subscriptionGroup.json`."""

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    retry_queue_nums: Int32 = 1
    retry_max_times: Int32 = 16
    broker_id: Int64 = 0
    which_broker_when_consume_slowly: Int32 = 1
    notify_consumer_ids_changed_enable: bool = True
    group_sys_flag: Int32 = 0
    """A field of 5.x that is part of the answer to a pull."""


Config = TypeVar("Config")


@define(slots=True, eq=False)
class _Named(Generic[Config]):
    """A table of named entries.

    Invariant: `changed` is set after every change. A save resets `changed` before it copies the table, so that the save
    misses no change.
    """

    guard: AbstractContextManager[Any] = field(factory=nullcontext, kw_only=True)
    """Protects adding and removing entries, because several threads serve clients."""
    quota: Quota = field(init=False)
    by_name: dict[str, Config] = field(factory=dict, init=False)
    changed: bool = field(default=False, init=False)
    version: int = field(default=0, init=False)
    """Number of changes since the start. A copy of the table is outdated if its version differs."""

    @quota.default
    def _new_quota(self) -> Quota:
        return Quota(type(self).__name__.lower(), TOPIC_COUNT_MAX)

    def remove(self, name: str) -> bool:
        """Remove an entry; returns false if it does not exist."""
        with self.guard:
            if self.by_name.pop(name, None) is None:
                return False
            self.quota.release(name)
        self._has_changed()
        return True

    def _has_changed(self) -> None:
        # Without the guard, the registrar could miss one of two concurrent changes.
        with self.guard:
            self.version += 1
        self.changed = True

    def _keep(self, name: str, config: Config, channel: Hashable) -> bool:
        with self.guard:
            if name not in self.by_name and not self.quota.take(name, channel):
                return False
            self.by_name[name] = config
        self._has_changed()
        return True


@define(slots=True, eq=False)
class Topics(_Named[TopicConfig]):
    """Every topic of a broker. Invariant: every name in `by_name` passes `name_problem`."""

    auto_create: bool = True
    default_queue_count: int = 8
    light: bool = False
    """`enableLmq`: every topic with the light prefix exists and has one queue."""
    keeps_gone: bool = field(default=False, init=False)
    """Whether deleted topics are stored in `gone`; the name server sets this, because it reports deleted topics."""
    gone: dict[str, TopicConfig] = field(factory=dict, init=False)
    """The last configuration of deleted topics."""
    on_change: Callable[[], None] = field(default=no_change, init=False)
    """Called after every change, on the thread that made the change; the callback must not block."""
    on_new: Callable[[str], None] = field(default=lambda _name: None, init=False)
    """Called with each new topic's name before it exists."""
    full_registrations: int = field(default=0, init=False)
    """How often the broker has created a topic itself and registered all topics again."""
    unsaved: dict[str, TopicConfig] = field(factory=dict, init=False)
    """Topics created or replaced since the last save; `ConfigFiles` removes the topics that it has written."""
    _own: set[str] = field(factory=set, init=False)
    """The system topics that this broker created."""

    def is_system(self, name: str) -> bool:
        """Whether a topic belongs to the broker, so that clients may not change or delete it."""
        return name in SYSTEM_NAMES or name in self._own or name.startswith(SYSTEM_PREFIX)

    def system_names(self) -> list[str]:
        """Returns the names of the system topics."""
        return sorted(SYSTEM_NAMES | self._own)

    def get(self, name: str) -> TopicConfig | None:
        """Returns the topic, or None."""
        topic = self.by_name.get(name)
        if topic is None and self.light and name.startswith(LMQ_PREFIX) and queue_name_problem(name) is None:
            return TopicConfig(name, 1, 1)
        return topic

    def __iter__(self) -> Iterator[TopicConfig]:
        return iter(list(self.by_name.values()))

    def with_attributes(self, topic: TopicConfig, changes: Mapping[str, str]) -> TopicConfig:
        """Returns a topic with changes applied to its current attributes; raises AttributeRefusedError."""
        known = self.by_name.get(topic.topic_name)
        before = {} if known is None or not known.attributes else known.attributes
        return msgspec.structs.replace(topic, attributes=changed(before, changes) or msgspec.UNSET)

    def put(self, topic: TopicConfig, channel: Hashable = None) -> bool:
        """Create or replace a topic; returns false if there are too many topics."""
        name = topic.topic_name
        assert name_problem(name) is None
        if name not in self.by_name:
            self.on_new(name)
        # `unsaved` is set before the table, so that a thread that finds the topic also finds it in `unsaved`.
        self.unsaved[name] = topic
        is_kept = self._keep(name, topic, channel)
        if not is_kept:
            self.unsaved.pop(name, None)
        return is_kept

    def remove(self, name: str) -> bool:
        """Remove a topic; returns false if it does not exist."""
        topic = self.by_name.get(name)
        if topic is not None and self.keeps_gone and len(self.gone) < TOPIC_COUNT_MAX:
            self.gone[name] = topic
        self.unsaved.pop(name, None)
        return super().remove(name)

    def _has_changed(self) -> None:
        super()._has_changed()
        self.on_change()

    def add_system_topics(self, broker_name: str, cluster_name: str) -> None:
        """Create the topics that every broker has, unless they exist (the constructor of `TopicConfigManager`)."""
        if self.auto_create:
            count = self.default_queue_count
            self._add(TopicConfig(DEFAULT_TOPIC, count, count, PERM_READ_WRITE | PERM_INHERIT))
        for name in SYSTEM_TOPICS:
            count = {"SCHEDULE_TOPIC_XXXX": 18, "BenchmarkTest": 1024}.get(name, 1)
            self._add(TopicConfig(name, count, count))
        inherited = PERM_READ_WRITE | PERM_INHERIT
        for own in (
            TopicConfig(cluster_name, perm=inherited),
            TopicConfig(broker_name, 1, 1, inherited),
            TopicConfig(cluster_name + REPLY_SUFFIX, 1, 1),
        ):
            if name_problem(own.topic_name) is None:
                self._add(own)
                self._own.add(own.topic_name)

    def make_for_send(
        self,
        name: str,
        default_topic: str,
        asked_queue_count: int,
        *,
        unit: bool = False,
        channel: Hashable = None,
    ) -> TopicConfig | None:
        """Find the topic of a send, or create it from the default topic (`createTopicInSendMessageMethod`).

        Returns None if the topic does not exist and may not be created. `unit` means that the producer belongs to a
        unit.
        """
        topic = self.get(name)
        if topic is not None:
            return topic
        if name.startswith(RETRY_PREFIX):
            return self.make_retry(name, 1, UNIT_RETRY_FLAG if unit else 0, channel=channel)
        model = self.by_name.get(default_topic)
        if model is None or not model.perm & PERM_INHERIT or not self.auto_create:
            return None
        count = max(min(asked_queue_count, model.write_queue_nums), 0)
        perm = model.perm & ~PERM_INHERIT
        made = TopicConfig(name, count, count, perm, model.topic_filter_type, UNIT_FLAG if unit else 0)
        return self._made(made, channel)

    def make_retry(
        self, name: str, queue_count: int, sys_flag: int = 0, *, channel: Hashable = None
    ) -> TopicConfig | None:
        """Find or create a retry or dead-letter topic (`createTopicInSendMessageBackMethod`).

        Returns None if the topic can be neither found nor created.
        """
        topic = self.by_name.get(name)
        if topic is not None:
            return topic
        if name_problem(name) is not None or queue_count > QUEUE_COUNT_MAX:
            return None
        return self._made(TopicConfig(name, queue_count, queue_count, topic_sys_flag=sys_flag), channel)

    def _made(self, topic: TopicConfig, channel: Hashable) -> TopicConfig | None:
        if not self.put(topic, channel):
            return None
        self.full_registrations += 1
        return topic

    def _add(self, topic: TopicConfig) -> None:
        if topic.topic_name not in self.by_name:
            self.put(topic)


@define(slots=True, eq=False)
class Groups(_Named[GroupConfig]):
    """Every consumer group of a broker; `light` has the same meaning as in `Topics`."""

    auto_create: bool = True
    light: bool = False
    size_max: int = GROUP_SIZE_MAX
    """Maximum characters of a group's name."""
    validates: bool = False
    """Whether a group's name must be valid by the rules of 5.x."""

    def find(self, name: str, channel: Hashable = None) -> GroupConfig | None:
        """Find a group, or create it if creating is allowed; returns None otherwise (`findSubscriptionGroupConfig`)."""
        group = self.by_name.get(name)
        if group is not None or len(name) > self.size_max:
            return group
        if self.light and name.startswith(LMQ_PREFIX):
            return GroupConfig(name)
        if not self.may_create(name):
            return None
        made = GroupConfig(name)
        return made if self.put(made, channel) else None

    def may_create(self, name: str) -> bool:
        """Whether a client may create a group with this name by using it, if there is room."""
        return (
            self.auto_create and len(name) <= self.size_max and not (self.validates and group_problem(name) is not None)
        )

    def put(self, group: GroupConfig, channel: Hashable = None) -> bool:
        """Create or replace a group; returns false if there are too many groups."""
        return self._keep(group.group_name, group, channel)


PART_COUNT: Final = 2_000
"""Number of entries that are encoded at a time, which takes about 2 ms."""


def chunks_of(table: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Iterate over a table's rows in parts. A row that is itself a table counts as many entries as it contains.

    Without the parts, encoding a large table at once would block every other thread.
    """
    part: dict[str, Any] = {}
    count = 0
    for name, row in table.items():
        part[name] = row
        count += 1 + len(row) if isinstance(row, dict) else 1
        if count >= PART_COUNT:
            yield part
            part, count = {}, 0
    if part:
        yield part
