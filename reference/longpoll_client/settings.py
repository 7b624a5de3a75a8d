"""The options of a consumer: Java's options, under names with units and with Java's defaults.

Source: `DefaultMQPushConsumer.java`, `DefaultMQPushConsumerImpl.java`.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Final, Literal, Protocol, Required, TypeAlias, Unpack

from attrs import field, fields, frozen

from longpoll_client.allocate import Allocate, allocate_averagely
from longpoll_client.checks import (
    Addresses,
    ConnectOptions,
    Topics,
    check_client_id,
    check_group,
    check_hooks,
    check_one_of,
    check_plain,
    check_seconds,
    check_whole,
    name_servers_text,
    refuse_unknown,
    runtime_of,
    unix_ms,
    wanted_of,
)
from longpoll_client.messages import ReceivedMessage, UnreadableMessage
from longpoll_protocol.bodies import MessageModel, MessageQueue
from longpoll_protocol.signature import Credentials
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Runtime
from longpoll_spec.errors import ConfigError

ATTEMPTS_MAX: Final = 17
"""The default number of deliveries before a message is a dead letter (`maxReconsumeTimes` 16)."""

THREAD_COUNT_MAX: Final = 1000
"""Maximum of `thread_count`, as in Java's `checkConfig`."""
DELIVERY_CAPACITY: Final = 2**20
"""Maximum batches that wait for the user. Flow control keeps the number lower, because a queue caches at most 1,000
messages."""
DEAD_LEVEL: Final = -1
"""The delay level that sends a message to the dead letter topic at once."""


StartAt: TypeAlias = Literal["first", "last", "stored"] | datetime
"""Where a new group starts in a queue; other groups continue at their offset.

"stored": at offset 0 if the queue still has its first message, else at the end, like Java's CONSUME_FROM_LAST_OFFSET. A
datetime: at the first message stored at or after that time."""


class Unreadable(enum.Enum):
    """The action on an unreadable message. Each unreadable message is logged, counted and passed to `on_unreadable`."""

    DEAD_LETTER = "dead letter"
    """The broker puts the message in `%DLQ%group`, and the message's queue continues. If the broker refuses it, or when
        broadcasting, the message is skipped."""
    SKIP = "skip"
    """The message is skipped."""
    STOP = "stop"
    """The message's queue waits, and the client pulls the message again every few seconds."""


class ConsumeHook(Protocol):
    """Methods that are called before and after each listener call, on the thread or in the task of that call.

    A hook may also have a method `after_receive(group, messages, begun_s, latency_s)`, which is called after each
    `poll` that returns messages. `begun_s` is the Unix time of the call.
    """

    def before_consume(self, group: str, delivery: str, messages: Sequence[ReceivedMessage]) -> object:
        """Called before the listener gets the messages. `delivery` is an id of this listener call."""
        ...

    def after_consume(
        self,
        group: str,
        delivery: str,
        messages: Sequence[ReceivedMessage],
        error: Exception | None,
        *,
        is_consumed: bool,
        latency_s: float,
    ) -> object:
        """Called after the listener returned or raised the error. `latency_s` is the duration of the listener call."""
        ...


_WHOLE: Final = {
    "batch_count_max": 1,
    "cached_count_max": 1,
    "cached_size_max": 1,
    "cached_span_max": 1,
    "thread_count": 1,
    "consume_count_max": 1,
}
"""The minimum value of each option that is a whole number."""
_SECONDS: Final = {
    "hold_s": True,
    "pull_timeout_s": False,
    "rebalance_s": False,
    "heartbeat_s": False,
    "persist_s": False,
    "consume_timeout_s": False,
    "suspend_s": True,
    "close_timeout_s": True,
}
"""Whether each option in seconds may be 0."""
_CHOICES: Final[dict[str, type[enum.Enum]]] = {"message_model": MessageModel, "unreadable": Unreadable}


@frozen
class ConsumerConfig:
    """Further options of a consumer. The defaults are those of Java's push consumer, except for the thread count."""

    message_model: MessageModel = field(default=MessageModel.CLUSTERING)
    """CLUSTERING: members share the messages; BROADCASTING: every member gets all messages."""
    allocate: Allocate = field(default=allocate_averagely)
    """Computes the share of a member. Every member of a group must have the same function."""
    client_id: str | None = field(default=None)
    """This member's unique name in its group, such as `room@host#pid`; if it is None, the client generates a name."""
    offsets_file: str | None = field(default=None)
    """The absolute path of the file in which a BROADCASTING member keeps its offsets; if it is None, the offsets are
        not stored."""
    batch_count_max: int = field(default=32)
    """`pullBatchSize`: the maximum number of messages in the answer to one pull."""
    hold_s: float = field(default=15.0)
    """`BROKER_SUSPEND_MAX_TIME_MILLIS`: how long a broker may hold a pull, in seconds."""
    pull_timeout_s: float = field(default=30.0)
    """`CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND`: the timeout of a pull, in seconds."""
    cached_count_max: int = field(default=1000)
    """`pullThresholdForQueue`: a queue with this many unconsumed messages is not pulled."""
    cached_size_max: int = field(default=100 * MIB)
    """`pullThresholdSizeForQueue`: a queue whose unconsumed bodies have this many bytes is not pulled."""
    cached_span_max: int = field(default=2000)
    """`consumeConcurrentlyMaxSpan`: a queue with this many offsets from the first unconsumed message to the next pull
    is not pulled. Orderly consumers have no such limit."""
    rebalance_s: float = field(default=20.0)
    heartbeat_s: float = field(default=30.0)
    persist_s: float = field(default=5.0)
    """`persistConsumerOffsetInterval`: the seconds between two stores of the offsets."""
    thread_count: int = field(default=4)
    """Threads of a push consumer's listener. `consumeThreadMin` is 20, but Python profits from only a few threads."""
    consume_count_max: int = field(default=1)
    """`consumeMessageBatchMaxSize`: the maximum number of messages in one listener call."""
    max_attempts: int | None = field(default=None)
    """`maxReconsumeTimes` + 1: how often a listener gets a message before it is a dead letter. None means 17, or no
    limit for an orderly consumer."""
    consume_timeout_s: float = field(default=900.0)
    """`consumeTimeout`: a listener that takes longer is logged, and its messages are sent back."""
    suspend_s: float = field(default=1.0)
    """`suspendCurrentQueueTimeMillis`: how long an orderly queue waits after a `Retry` without `delay_s`."""
    close_timeout_s: float = field(default=10.0)
    """How long `close` waits for listeners that still run (`awaitTerminationMillisWhenShutdown`)."""
    waits_for_topics: bool = field(default=True)
    """Whether the client starts although a topic is unknown, and waits for the topic. If false, the start raises
    NoRouteError."""
    unreadable: Unreadable = field(default=Unreadable.DEAD_LETTER)
    """The action on a message that is unreadable twice in a row. Java's client silently skips such a message."""
    hooks: Sequence[ConsumeHook] = field(default=())
    """Called before and after each call of a push consumer's listener; exceptions are logged."""
    on_unreadable: Callable[[UnreadableMessage], object] | None = field(default=None)
    """Called for each unreadable message, on the timer's thread, so it must return quickly."""

    def __attrs_post_init__(self) -> None:
        """Reject values that no broker accepts or that could never deliver a message."""
        for name, least in _WHOLE.items():
            check_whole(name, getattr(self, name), least)
        if self.thread_count > THREAD_COUNT_MAX:
            raise ConfigError(f"thread_count is {self.thread_count}: it must be at most {THREAD_COUNT_MAX}")
        if self.max_attempts is not None:
            check_whole("max_attempts", self.max_attempts, 1)
        for name, may_be_none in _SECONDS.items():
            check_seconds(name, getattr(self, name), may_be_none=may_be_none)
        for name, kind in _CHOICES.items():
            check_one_of(name, getattr(self, name), kind)
        check_plain("allocate", self.allocate)
        check_hooks(self.hooks, "before_consume", "after_consume")
        if self.on_unreadable is not None:
            check_plain("on_unreadable", self.on_unreadable)
        check_client_id(self.client_id)
        if self.offsets_file is not None and not str(self.offsets_file).startswith("/"):
            raise ConfigError(
                f"offsets_file {self.offsets_file!r} is not an absolute path; pass one, such as Path(...).resolve()"
            )

    @property
    def is_broadcasting(self) -> bool:
        """Whether every member gets every message."""
        return self.message_model is MessageModel.BROADCASTING


@frozen(kw_only=True)
class MemberConfig(ConsumerConfig):
    """All options of a member of a group."""

    group: str
    start_at: StartAt = field(default="stored")

    def __attrs_post_init__(self) -> None:
        """Reject values that no broker accepts; raises ConfigError."""
        super().__attrs_post_init__()
        check_group(self.group)
        if isinstance(self.start_at, datetime):
            unix_ms("start_at", self.start_at)
        elif self.start_at not in {"first", "last", "stored"}:
            given = repr(self.start_at)[:40]
            raise ConfigError(f"start_at is {given}; pass 'first', 'last', 'stored' or a datetime with a time zone")


def member_config(group: str, start_at: StartAt, config: ConsumerConfig | None) -> MemberConfig:
    """Return all options of a member of a group; raises ConfigError."""
    if config is None:
        return MemberConfig(group=group, start_at=start_at)
    if type(config) is not ConsumerConfig:
        raise ConfigError(f"config is {repr(config)[:40]}; pass a ConsumerConfig")
    rest = {each.name: getattr(config, each.name) for each in fields(ConsumerConfig)}
    return MemberConfig(group=group, start_at=start_at, **rest)


OnQueues: TypeAlias = Callable[[Sequence[MessageQueue]], object]
"""Gets the queues that a rebalance added or removed. The timer's thread or the event loop calls it, so it must return
quickly."""


class ConsumerOptions(ConnectOptions, total=False):
    """Options of every consumer."""

    group: Required[str]
    """The consumer group."""
    topics: Topics
    """One topic, several topics, or a mapping of topics to tags ("red || blue") or `Sql`."""
    start_at: StartAt
    """Where a new group starts: "first" (default), "last", "stored" (the broker decides) or a datetime."""
    config: ConsumerConfig
    """Further options."""
    on_assigned: OnQueues
    """Called after a rebalance with all queues that this member got. The function must return quickly."""
    on_revoked: OnQueues
    """Called after a rebalance, before `on_assigned`, with all queues that this member gave up."""


@frozen
class MemberOptions:
    """The checked options of one consumer."""

    name_server: str
    config: MemberConfig
    wanted: Mapping[str, str]
    """The filter expression of each topic."""
    on_assigned: OnQueues | None
    on_revoked: OnQueues | None
    credentials: Credentials | None
    runtime: Runtime


def options_of(name_server: Addresses, **options: Unpack[ConsumerOptions]) -> MemberOptions:
    """Check the options of a consumer; raises ConfigError, and TypeError for an unknown option."""
    for name in ("on_assigned", "on_revoked"):
        if options.get(name) is not None:
            check_plain(name, options[name])
    misplaced = options.keys() & {each.name for each in fields(ConsumerConfig)}
    if misplaced:
        name = min(misplaced)
        raise TypeError(f"unknown option {name}; pass it as config=ConsumerConfig({name}=...)")
    refuse_unknown(options, ConsumerOptions)
    if "group" not in options:
        raise TypeError("missing option group; pass group=NAME")
    return MemberOptions(
        name_servers_text(name_server),
        member_config(options["group"], options.get("start_at", "first"), options.get("config")),
        wanted_of(options.get("topics", ())),
        options.get("on_assigned"),
        options.get("on_revoked"),
        options.get("credentials"),
        runtime_of(options.get("runtime"), options.get("tls")),
    )
