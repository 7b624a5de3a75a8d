"""Serves pull requests: decodes and checks a pull, reads the store, then answers or holds the pull.

Checks and results of a read: see `hold.pull`. Held pulls: see `hold.hold_service`. Pulls that left the table: see
`hold.pull_runner`.

Source: `PullMessageProcessor.java` 4.9 and 5.x.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define, field, frozen

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.herd import RESPONSE
from longpoll_broker.hold.hold_service import HoldService, PullEvents
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUBSCRIPTION,
    FLAG_SUSPEND,
    Decision,
    Miss,
    PullChecks,
    Refused,
    check,
)
from longpoll_broker.hold.pull_runner import KINDS, ONE_WAY, PullRunner
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor
from longpoll_broker.shared.filters import Filter, TagFilter
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_broker.store.messages import ALL, GetStatus
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.fast import PullCommand, encode_pull_head
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import PullMessageRequestHeader
from longpoll_runtime import Runtime
from longpoll_spec.policy import Policy

SHORT_POLLING_MS: Final = 1000
"""`shortPollingTimeMills`: how long a pull is held when long polling is off, ms."""
_BRINGS: Final = FLAG_COMMIT_OFFSET | FLAG_SUBSCRIPTION
"""Masks two flags. If only `FLAG_SUBSCRIPTION` is set, the pull brings its own subscription and commits no offset."""
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})


@frozen(eq=False)
class _Passed:
    """The last accepted pull, with the topic, group and filter that its checks found.

    A topic, group or filter is replaced instead of changed, so comparing identities detects every change.
    """

    topic: TopicConfig
    group: GroupConfig
    subscription: str | None
    expression_type: str | None
    filter: Filter
    takes_all: bool
    """Whether the filter matches every message."""


@define(slots=True, eq=False)
class PullProcessor:
    """The processor of pulls; callable from any thread."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    checks: PullChecks
    offsets: Offsets
    runner: PullRunner
    hold_service: HoldService
    events: PullEvents
    _passed: _Passed | None = field(default=None, init=False)
    """The last accepted pull. The assignment is atomic, so a thread sees either the old or the new value."""
    _gives_at_once: bool = field(init=False)
    """Whether the fast path may answer a pull: no history is recorded, and answers have no fields except offsets."""

    def __attrs_post_init__(self) -> None:
        self._gives_at_once = type(self.events) is PullEvents and self.runner.answers.has_offsets_only

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Returns the handlers by request code: PULL_MESSAGE (11), and on a 5.x broker also LITE_PULL_MESSAGE (361)."""
        served: dict[int, Processor] = {RequestCode.PULL_MESSAGE: self.receive}
        if self.checks.traits.serves_lite_pull:
            served[RequestCode.LITE_PULL_MESSAGE] = self.receive
        return served

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request; returns the reply, or None if the pull is held."""
        if type(command) is PullCommand and self._gives_at_once:
            parts = self._found(channel, command)
            if parts is not None:
                return parts
        pull = self._decode(channel, command)
        wanted = self._check(pull)
        commits = bool(pull.sys_flag & FLAG_COMMIT_OFFSET) and self._takes_commits
        self.events.received(pull, channel.received_ns, wanted, max(pull.commit_offset, -1) if commits else -1)
        if isinstance(wanted, Refused):
            decision: Decision = wanted
        else:
            self.runtime.step("pull_read")
            decision = self.runner.look(pull, wanted)
            commits = commits and not isinstance(decision, Refused)
            if self.offsets.pulled is not None:
                self.offsets.pulled.commit(pull.topic, pull.group, pull.queue_id, pull.offset, channel=channel)
            if commits and self.policy.commit != "after_hold":
                self._commit(pull)
            is_held = isinstance(decision, Miss) and self.may_be_held(pull)
            if is_held:
                pull.filter = wanted
                self.hold_service.hold(pull, outbox)
            if commits and self.policy.commit == "after_hold":
                self._commit(pull)
            if is_held:
                if self.checks.topics.get(pull.topic) is None and self.policy.on_truncate == "wake":
                    # The topic was deleted after the check. The pull was perhaps not yet in its bucket, so the deletion
                    # did not find it.
                    self.hold_service.topic_deleted(pull.topic, outbox)
                return None
        self.runner.count(pull, decision, channel.received_ns)
        return self.runner.answers.encode(pull, decision, "immediate", KINDS[pull.serialize], outbox)

    def _found(self, channel: Channel, command: PullCommand) -> Parts | None:
        """Answer a pull with the topic, group and filter of the last accepted pull; returns None for other pulls.

        The filter matches every message, so the answer depends only on the read. No `Pull` and no checks are needed.
        """
        passed, checks, header, store = self._passed, self.checks, command.header, self.runner.store
        topic, queue_id = header.topic, header.queue_id
        if (
            store.visible_end(topic, queue_id) <= header.queue_offset
            or passed is None
            or not passed.takes_all
            or topic != passed.topic.topic_name
            or header.consumer_group != passed.group.group_name
            or header.sys_flag & _BRINGS != FLAG_SUBSCRIPTION
            or command.flag
            or not 0 <= queue_id < passed.topic.read_queue_nums
            or header.max_msg_nums < 0
            or header.subscription != passed.subscription
            or header.expression_type != passed.expression_type
            or checks.topics.get(topic) is not passed.topic
            or checks.groups.find(header.consumer_group) is not passed.group
        ):
            return None
        self.runtime.step("pull_read")
        read = store.get(topic, queue_id, header.queue_offset, header.max_msg_nums, ALL)
        if read.status is not GetStatus.FOUND:
            return None
        channel.request_count += 1
        self.runner.statistics.count_get(
            topic, header.consumer_group, queue_id,
            messages=len(read.offsets), size=read.size_bytes,
            latency_ms=(self.runtime.monotonic_ns() - channel.received_ns) // 1_000_000, channel=channel,
        )  # fmt: skip
        head = encode_pull_head(
            ResponseCode.SUCCESS.value, command.opaque, RESPONSE, read.status,
            read.offset_next, read.offset_min, read.offset_max, read.size_bytes,
        )  # fmt: skip
        return [head, *read.records]

    def _check(self, pull: Pull) -> Filter | Refused:
        """Run the checks that precede the read; returns the filter for the read, or the refusal.

        The last result is reused for the same topic, group and subscription.
        """
        passed, checks = self._passed, self.checks
        topic, group = checks.topics.get(pull.topic), checks.groups.find(pull.group, pull.channel)
        brings = bool(pull.sys_flag & FLAG_SUBSCRIPTION)
        if (
            passed is not None
            and brings
            and passed.topic is topic
            and passed.group is group
            and 0 <= pull.queue_id < passed.topic.read_queue_nums
            and passed.subscription == pull.subscription
            and passed.expression_type == pull.expression_type
        ):
            return passed.filter
        wanted = check(pull, checks)
        if not isinstance(wanted, Refused) and brings and topic and group:
            takes_all = isinstance(wanted, TagFilter) and wanted.all_tags
            self._passed = _Passed(topic, group, pull.subscription, pull.expression_type, wanted, takes_all)
        return wanted

    def may_be_held(self, pull: Pull) -> bool:
        """Whether a pull that found no message may wait; some policies drop a one-way pull instead."""
        is_dropped = bool(pull.flag & ONE_WAY) and self.checks.traits.drops_one_way_pull
        return bool(pull.sys_flag & FLAG_SUSPEND) and not is_dropped

    @property
    def _takes_commits(self) -> bool:
        return not self.checks.role.is_slave or self.checks.traits.commits_as_slave

    def _commit(self, pull: Pull) -> None:
        forward_only = self.policy.commit == "monotone_max"
        self.offsets.commit(
            pull.topic, pull.group, pull.queue_id, pull.commit_offset, forward_only=forward_only, channel=pull.channel
        )

    def _decode(self, channel: Channel, command: Command) -> Pull:
        header = command.header if type(command) is PullCommand else PullMessageRequestHeader.decode(command.ext_fields)
        channel.request_count += 1
        timeout_ms = self._granted_ms(header.suspend_timeout_millis or 0)
        return Pull(
            channel=channel,
            opaque=command.opaque,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            count_max=header.max_msg_nums,
            sys_flag=header.sys_flag,
            commit_offset=header.commit_offset or 0,
            timeout_ms=timeout_ms,
            subscription=header.subscription,
            expression_type=header.expression_type,
            sub_version=header.sub_version or 0,
            serialize=command.serialisation,
            flag=command.flag,
            number=channel.request_count,
            # The time is rounded up to a whole millisecond, so that no pull is answered before its deadline.
            deadline_ms=-(-channel.received_ns // 1_000_000) + timeout_ms,
        )

    def _granted_ms(self, asked_ms: int) -> int:
        """Returns how long a pull may be held, ms. RocketMQ has no maximum."""
        if not self.config.long_polling:
            return SHORT_POLLING_MS
        if not self.checks.traits.caps_hold:
            return asked_ms
        return min(max(asked_ms, 0), self.config.hold_timeout_ms_max)
