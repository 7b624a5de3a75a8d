"""Decides how to answer a pull: runs the checks in RocketMQ's order, reads once, and maps the result to a decision.

`decide` only reads the store; it neither holds nor answers the pull. When a held pull is woken or expires, all checks
run again, and then a `Miss` is answered instead of held.

Committed offsets, holding and answering: see `hold.pull_processor`.

Source: `PullMessageProcessor.java` 4.9 and 5.x, `DefaultPullMessageResultHandler.java` 5.x; codes and texts as seen on
4.9.7 and 5.5.0. The response codes are defined by the protocol.
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

import msgspec
from attrs import field, frozen

from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.shared.broker_role import BrokerRole
from longpoll_broker.shared.filters import (
    ExpressionError,
    Filter,
    SqlFilter,
    filter_of,
    is_tag_type,
    not_supported,
)
from longpoll_broker.shared.subscription import BROADCASTING, Clients
from longpoll_broker.shared.topics import FAQ, Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_broker.store.messages import ALL, GetResult, GetStatus, Matches
from longpoll_spec.tables import with_table

SUCCESS: Final = 0
SYSTEM_ERROR: Final = 1
NO_PERMISSION: Final = 16
TOPIC_NOT_EXIST: Final = 17
PULL_NOT_FOUND: Final = 19
PULL_RETRY_IMMEDIATELY: Final = 20
PULL_OFFSET_MOVED: Final = 21
SUBSCRIPTION_PARSE_FAILED: Final = 23
SUBSCRIPTION_NOT_EXIST: Final = 24
SUBSCRIPTION_NOT_LATEST: Final = 25
SUBSCRIPTION_GROUP_NOT_EXIST: Final = 26
FILTER_DATA_NOT_EXIST: Final = 27
FILTER_DATA_NOT_LATEST: Final = 28

FORBIDDEN_BROKER: Final = 1
FORBIDDEN_GROUP: Final = 2
FORBIDDEN_TOPIC: Final = 3
FORBIDDEN_BROADCAST: Final = 4
"""The value in `ForbiddenType.java` 5.x that says which permission refuses the pull."""

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4

EXPRESSION_SIZE_MAX: Final = 64 * 1024
"""Maximum length of a subscription expression, characters. RocketMQ has no limit except the frame size."""


class Store(Protocol):
    """The read operation that `decide` needs from the store."""

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """Read up to `count_max` matching messages from `offset` on."""
        ...


@with_table
class Refused(msgspec.Struct, frozen=True, gc=False):
    """A check failed: the answer has a code and a remark, but no offsets."""

    code: int
    remark: str
    forbidden_type: int | None = None
    """For an answer with code 16 (NO_PERMISSION), a `FORBIDDEN_` constant that says why."""


@with_table
class Found(msgspec.Struct, frozen=True):
    """The read found messages: answer with them."""

    read: GetResult
    code: int = SUCCESS


class Miss(msgspec.Struct, frozen=True):
    """The read found no new message: hold the pull, or answer with code 19 (PULL_NOT_FOUND)."""

    read: GetResult
    filter: Filter
    """The messages that the pull waits for."""
    code: int = PULL_NOT_FOUND


@with_table
class OffsetMoved(msgspec.Struct, frozen=True):
    """The client must continue at another offset: answer at once with code 20, or 21 for an illegal offset."""

    read: GetResult
    code: int


Decision: TypeAlias = Found | Miss | OffsetMoved | Refused


@frozen
class PullChecks:
    """The tables and settings that the checks of a pull read."""

    topics: Topics
    groups: Groups
    clients: Clients
    is_readable: bool = True
    """Whether `brokerPermission` has the read bit."""
    property_filter: bool = False
    """`enablePropertyFilter`: whether a subscription may have a type other than TAG."""
    broker_ip: str = "127.0.0.1"
    traits: Traits = STRICT_TRAITS
    role: BrokerRole = field(factory=BrokerRole)
    """The broker's role, which changes answers on a slave."""


def decide(pull: Pull, checks: PullChecks, store: Store) -> Decision:
    """Decide how to answer one pull. Errors of the store are raised; the caller answers them with code 1."""
    wanted = check(pull, checks)
    if isinstance(wanted, Refused):
        return wanted
    decision = look(pull, wanted, store)
    return of_negative_count(pull, decision, checks) if pull.count_max < 0 else decision


def look(pull: Pull, wanted: Filter, store: Store) -> Found | Miss | OffsetMoved:
    """Read the store for a pull that has passed the checks."""
    read = _read(pull, wanted, store, pull.offset, pull.count_max)
    code = code_of(read.status, pull.offset)
    if code == SUCCESS:
        return Found(read)
    if code == PULL_NOT_FOUND:
        return Miss(read, wanted)
    return OffsetMoved(read, code)


_SCANNED: Final = frozenset({GetStatus.FOUND, GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING})


def of_negative_count(pull: Pull, decision: Found | Miss | OffsetMoved, checks: PullChecks) -> Decision:
    """Returns the decision for a pull with a negative message count: where 4.9 throws an exception, a refusal."""
    if checks.traits.refuses_negative_count and decision.read.status in _SCANNED:
        return Refused(SYSTEM_ERROR, f"Illegal Capacity: {pull.count_max}")
    return decision


def as_placed(decision: Found | Miss | OffsetMoved, checks: PullChecks) -> Found | Miss | OffsetMoved:
    """Adapt a decision to the broker's role. The decision of a master without slaves stays unchanged."""
    read = decision.read
    code = checks.role.code(decision.code, read.status, checks.traits, suggests_slave=read.suggest_slave)
    return decision if code == decision.code else OffsetMoved(read, code)


def _read(pull: Pull, wanted: Filter, store: Store, offset: int, count_max: int) -> GetResult:
    if isinstance(wanted, SqlFilter):
        return store.get(pull.topic, pull.queue_id, offset, count_max, (None, wanted))
    return store.get(pull.topic, pull.queue_id, offset, count_max, ALL if wanted.all_tags else (wanted.matches, None))


def wants_visible(pull: Pull, store: Store, visible_end: int) -> bool:
    """Whether a visible message at or after the pull's offset matches its filter; reads the store.

    The pull records how far this check went, so that each message is checked once. The result is also true if the
    offset has become invalid, because the pull must run to report the invalid offset.
    """
    wanted = pull.filter
    if visible_end <= pull.offset or wanted is None:
        return visible_end > pull.offset
    offset = max(pull.offset, pull.unmatched_end)
    while offset < visible_end:
        read = _read(pull, wanted, store, offset, 1)
        if read.status is not GetStatus.NO_MATCHED_MESSAGE or read.offset_next <= offset:
            return True
        offset = read.offset_next
    pull.unmatched_end = offset
    return False


_CODES: Final = {
    GetStatus.FOUND: SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: PULL_OFFSET_MOVED,
}


def code_of(status: GetStatus, offset: int) -> int:
    """Map a read's status to a response code. In an empty queue, any offset except 0 is illegal."""
    code = _CODES.get(status)
    if code is not None:
        return code
    assert status in {GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE}
    return PULL_NOT_FOUND if offset == 0 else PULL_OFFSET_MOVED


def check(pull: Pull, checks: PullChecks) -> Filter | Refused:  # noqa: PLR0911 - one return a check, in order
    """Run the checks that precede the read, in order; returns the filter for the read, or the refusal."""
    if not checks.is_readable:
        return Refused(NO_PERMISSION, f"the broker[{checks.broker_ip}] pulling message is forbidden", FORBIDDEN_BROKER)
    group = checks.groups.find(pull.group, pull.channel)
    if group is None:
        return Refused(SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group [{pull.group}] does not exist, {FAQ}")
    if not group.consume_enable:
        return Refused(NO_PERMISSION, f"subscription group no permission, {pull.group}", FORBIDDEN_GROUP)
    topic = checks.topics.get(pull.topic)
    if topic is None:
        return Refused(TOPIC_NOT_EXIST, f"topic[{pull.topic[:128]}] not exist, apply first please! {FAQ}")
    if not topic.is_readable:
        return Refused(NO_PERMISSION, f"the topic[{pull.topic}] pulling message is forbidden", FORBIDDEN_TOPIC)
    if not 0 <= pull.queue_id < topic.read_queue_nums:
        return Refused(
            checks.traits.bad_parameter_code,
            f"queueId[{pull.queue_id}] is illegal, topic:[{pull.topic}] "
            f"topicConfig.readQueueNums:[{topic.read_queue_nums}] consumer:[{pull.channel}]",
        )
    if pull.filter is not None and pull.sys_flag & FLAG_SUBSCRIPTION:
        # The pull was held, so its subscription was already checked and compiled. Skipping a second check saves time
        # when a hundred thousand pulls expire together.
        return pull.filter
    wanted = _wanted(pull, checks, broadcast_enabled=group.consume_broadcast_enable)
    if isinstance(wanted, Refused):
        return wanted
    if not checks.property_filter and not is_tag_type(wanted.expression_type):
        return Refused(SYSTEM_ERROR, not_supported(wanted.expression_type))
    return wanted


def _brought(pull: Pull, checks: PullChecks) -> Filter | Refused:
    if len(pull.subscription or "") > EXPRESSION_SIZE_MAX:
        return Refused(SUBSCRIPTION_PARSE_FAILED, f"the subscription is over {EXPRESSION_SIZE_MAX} characters")
    if pull.subscription and pull.expression_type and not (checks.property_filter or is_tag_type(pull.expression_type)):
        # The type is refused in any case, so the expression need not be compiled.
        return Refused(SYSTEM_ERROR, not_supported(pull.expression_type))
    try:
        brought = filter_of(pull.subscription, pull.expression_type, with_parts=checks.traits.filters_with_parts)
    except ExpressionError:
        return Refused(SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed")
    if checks.property_filter and isinstance(brought, SqlFilter) and brought.over_limit:
        return Refused(SUBSCRIPTION_PARSE_FAILED, brought.problem)
    return brought


def _wanted(  # noqa: PLR0911 - one return a check, in order
    pull: Pull, checks: PullChecks, *, broadcast_enabled: bool
) -> Filter | Refused:
    """Returns the filter, from the request's own subscription or from the group's heartbeats."""
    if pull.sys_flag & FLAG_SUBSCRIPTION:
        return _brought(pull, checks)
    group = checks.clients.group(pull.group)
    if group is None:
        return Refused(SUBSCRIPTION_NOT_EXIST, f"the consumer's group info not exist {FAQ}")
    if not broadcast_enabled and group.message_model == BROADCASTING:
        return Refused(
            NO_PERMISSION, f"the consumer group[{pull.group}] can not consume by broadcast way", FORBIDDEN_BROADCAST
        )
    subscription = group.subscriptions.get(pull.topic)
    if subscription is None:
        return Refused(SUBSCRIPTION_NOT_EXIST, f"the consumer's subscription not exist {FAQ}")
    if subscription.sub_version < pull.sub_version:
        return Refused(SUBSCRIPTION_NOT_LATEST, "the consumer's subscription not latest")
    if subscription.is_by_tag:
        return subscription.tags
    known = checks.clients.filters.get(pull.topic, pull.group)
    if known is None:
        return Refused(
            FILTER_DATA_NOT_EXIST, "The broker's consumer filter data is not exist!Your expression may be wrong!"
        )
    if known.version < pull.sub_version:
        return Refused(FILTER_DATA_NOT_LATEST, "the consumer's consumer filter data not latest")
    return subscription.tags if subscription.class_filter else known.filter
