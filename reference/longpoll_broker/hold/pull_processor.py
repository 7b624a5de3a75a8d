"""Serves pull requests: decodes one, checks it, reads for it, and answers or holds it.

Checks and results of a read: see `hold.pull`. Held pulls: see `hold.hold_service`. Woken and late pulls: see
`hold.pull_runner`.

Source: `PullMessageProcessor.java` 4.9.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from attrs import define

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_service import HoldService
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUSPEND,
    Decision,
    Miss,
    PullChecks,
    Refused,
    check,
)
from longpoll_broker.hold.pull_answers import KINDS
from longpoll_broker.hold.pull_events import ONE_WAY, PullEvents
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Processor
from longpoll_broker.shared.filters import Filter
from longpoll_broker.shared.offsets import Offsets
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import PullMessageRequestHeader
from longpoll_runtime import Runtime
from longpoll_spec.policy import Policy

SHORT_POLLING_MS: Final = 1000
"""`shortPollingTimeMills`: how long a pull is held when long polling is off, ms."""
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})


@define(slots=True, eq=False)
class PullProcessor:
    """The processor of pulls; callable from any thread."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    desk: PullChecks
    offsets: Offsets
    runner: PullRunner
    hold_service: HoldService
    events: PullEvents

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Code 11, and the lite pull of a 5.x broker."""
        served: dict[int, Processor] = {RequestCode.PULL_MESSAGE: self.receive}
        if self.desk.traits.serves_lite_pull:
            served[RequestCode.LITE_PULL_MESSAGE] = self.receive
        return served

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request; returns the reply, or None when the pull is held."""
        pull = self._decode(channel, command)
        wanted = self.check(pull)
        commits = bool(pull.sys_flag & FLAG_COMMIT_OFFSET) and self._takes_commits
        self.events.received(pull, channel.received_ns, wanted, max(pull.commit_offset, -1) if commits else -1)
        if isinstance(wanted, Refused):
            decision: Decision = wanted
        else:
            self.runtime.step("pull_read")
            decision = self.look(pull, wanted)
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
                if self.desk.topics.get(pull.topic) is None and self.policy.on_truncate == "wake":
                    # The topic was deleted between check and insert, perhaps before the pull was in its bucket.
                    self.hold_service.topic_deleted(pull.topic, outbox)
                return None
        self.runner.count(pull, decision, channel.received_ns)
        return self.runner.answers.encode(pull, decision, "immediate", KINDS[pull.serialize], outbox)

    def header_of(self, command: Command) -> PullMessageRequestHeader:
        """Decode the request's header; raises HeaderError."""
        return PullMessageRequestHeader.decode(command.ext_fields)

    def check(self, pull: Pull) -> Filter | Refused:
        """Run every check before the read; returns the filter to read with, or the refusal."""
        return check(pull, self.desk)

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """Read for a pull. A held pull's `read` is never used."""
        return self.runner.look(pull, wanted)

    def may_be_held(self, pull: Pull) -> bool:
        """Whether a pull that missed may wait; some brokers drop a one-way pull instead."""
        is_dropped = bool(pull.flag & ONE_WAY) and self.desk.traits.drops_one_way_pull
        return bool(pull.sys_flag & FLAG_SUSPEND) and not is_dropped

    @property
    def _takes_commits(self) -> bool:
        return not self.desk.standing.is_slave or self.desk.traits.commits_as_slave

    def _commit(self, pull: Pull) -> None:
        forward_only = self.policy.commit == "monotone_max"
        self.offsets.commit(
            pull.topic, pull.group, pull.queue_id, pull.commit_offset, forward_only=forward_only, channel=pull.channel
        )

    def _decode(self, channel: Channel, command: Command) -> Pull:
        header = self.header_of(command)
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
            # Rounded up, so that no pull is answered before its deadline.
            deadline_ms=-(-channel.received_ns // 1_000_000) + timeout_ms,
        )

    def _granted_ms(self, asked_ms: int) -> int:
        """Returns how long a pull may be held, ms; RocketMQ sets no maximum."""
        if not self.config.long_polling:
            return SHORT_POLLING_MS
        if not self.desk.traits.caps_hold:
            return asked_ms
        return min(max(asked_ms, 0), self.config.hold_timeout_ms_max)
