"""Serves adjacent pulls on one connection with fewer checks for each, and answers from a frame template.

If a pull repeats the last one's topic, group and subscription, their checks are skipped. If its queue ends at its
offset, there is nothing to read. All other pulls take the normal path. Semantics of a pull: see `hold.pull_processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define, field, frozen

from longpoll_broker.hold.hold_service import PullEvents
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUBSCRIPTION,
    FLAG_SUSPEND,
    Decision,
    Miss,
    PullChecks,
    Refused,
)
from longpoll_broker.hold.pull_processor import JSON, RESPONSE, PullAnswers, PullProcessor
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.transport import QUEUED_SIZE_MAX
from longpoll_broker.shared.filters import Filter, TagFilter, tag_filter
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_broker.store.messages import ALL, GetResult, GetStatus
from longpoll_broker.store.selection import nothing
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.fast import PullCommand, TypedConnection, encode_pull_head
from longpoll_protocol.frames import Command, Serialisation
from longpoll_protocol.headers import PullMessageRequestHeader


def tells_offsets_only(checks: PullChecks) -> bool:
    """Whether answers have no fields except the offsets: on a lone master before 5.x."""
    return checks.role.is_plain and not checks.traits.explains_refusals


@define(slots=True, eq=False)
class PatchedPullAnswers(PullAnswers):
    """`PullAnswers` for brokers with `tells_offsets_only`."""

    def head(self, pull: Pull, code: int, read: GetResult, kind: Serialisation, body_size: int) -> bytes:
        """Returns the frame up to the records."""
        if kind is not JSON:
            return super().head(pull, code, read, kind, body_size)
        return encode_pull_head(
            code, pull.opaque, RESPONSE, read.status,
            read.offset_next, read.offset_min, read.offset_max, body_size,
        )  # fmt: skip


BURST_MAX: Final = 64
"""Maximum pulls between two time checks: a third of a millisecond of work if they are held."""
READ_FIRST: Final = 8
"""Number of pulls parsed at first; it doubles each time, because unserved ones are parsed again."""


class HoldsFollowing(Protocol):
    """Holds several pulls at once."""

    def hold_following(self, channel: Channel, commands: Sequence[PullCommand], outbox: Outbox) -> int:
        """Hold the first of these pulls that only wait at their queue's end; returns their number."""
        ...


@define(slots=True, eq=False)
class PullBursts:
    """Serves the pulls that follow one on the same connection; callable from any loop's thread."""

    serve_one: Callable[[Channel, Command, Outbox], None]
    """The normal path of a request."""
    now_ns: Callable[[], int]
    """The monotonic clock."""
    holder: HoldsFollowing | None = None
    """None serves each pull separately."""

    def serve_following(self, channel: Channel, outbox: Outbox) -> int:
        """Serve the pulls that arrived directly after a served one, until the turn ends; returns their number."""
        connection = channel.connection
        assert isinstance(connection, TypedConnection)
        served = 0
        # After a pull that got messages, the next ones usually do too: parse only as many as fit this pass.
        given_size = channel.queued_size
        count = READ_FIRST if not given_size else max(1, QUEUED_SIZE_MAX // given_size)
        while served < BURST_MAX and self._goes_on(channel):
            following = connection.next_pulls(min(count, BURST_MAX - served))
            if not following:
                break
            done = self._serve(channel, following, outbox)
            if done < len(following):
                connection.keep(done)
            served += done
            count *= 2
        return served

    def _goes_on(self, channel: Channel) -> bool:
        return not channel.gives_way and channel.queued_size <= QUEUED_SIZE_MAX and self.now_ns() <= channel.turn_end_ns

    def _serve(self, channel: Channel, following: Sequence[PullCommand], outbox: Outbox) -> int:
        """Serve the first of these, until the turn ends; returns their number."""
        served = 0
        # A client that got messages is behind its queue's end, and so usually are its next pulls.
        is_behind = channel.queued_size > 0
        while served < len(following) and self._goes_on(channel):
            held = 0
            if self.holder is not None and not is_behind:
                held = self.holder.hold_following(channel, following[served:], outbox)
            served += held
            if not held:
                queued_size = channel.queued_size
                self.serve_one(channel, following[served], outbox)
                is_behind = channel.queued_size > queued_size
                served += 1
        return served


@frozen(eq=False)
class _Passed:
    """The last accepted pull: topic, group and filter are replaced, never changed."""

    topic: TopicConfig
    group: GroupConfig
    subscription: str | None
    expression_type: str | None
    filter: Filter
    takes_all: bool
    """Whether the filter matches every message."""


@define(slots=True, eq=False)
class QuickPullProcessor(PullProcessor):
    """`PullProcessor` for connections with parsed pulls (`TypedConnection`); it serves others too."""

    _passed: _Passed | None = field(default=None, init=False)
    """Assigned in one step, so threads see either the old or the new value."""
    _gives_at_once: bool = field(init=False)
    """Whether a pull that finds messages needs only the read and its answer."""

    def __attrs_post_init__(self) -> None:
        self._gives_at_once = type(self.events) is PullEvents and type(self.runner.answers) is PatchedPullAnswers

    def header_of(self, command: Command) -> PullMessageRequestHeader:
        """Returns the request's header; raises as that of `PullProcessor` does."""
        return command.header if type(command) is PullCommand else super().header_of(command)

    def check(self, pull: Pull) -> Filter | Refused:
        """Reuse the last result for the same topic, group and subscription."""
        passed, checks = self._passed, self.checks
        if (
            passed is not None
            and pull.sys_flag & FLAG_SUBSCRIPTION
            and passed.topic is checks.topics.get(pull.topic)
            and passed.group is checks.groups.find(pull.group, pull.channel)
            and 0 <= pull.queue_id < passed.topic.read_queue_nums
            and passed.subscription == pull.subscription
            and passed.expression_type == pull.expression_type
        ):
            return passed.filter
        topic, group = checks.topics.get(pull.topic), checks.groups.find(pull.group, pull.channel)
        wanted = super().check(pull)
        if not isinstance(wanted, Refused) and pull.sys_flag & FLAG_SUBSCRIPTION and topic and group:
            takes_all = isinstance(wanted, TagFilter) and wanted.all_tags
            self._passed = _Passed(topic, group, pull.subscription, pull.expression_type, wanted, takes_all)
        return wanted

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request; returns the reply, or None when the pull is held."""
        parts = self._found(channel, command) if type(command) is PullCommand and self._gives_at_once else None
        return super().receive(channel, command, outbox) if parts is None else parts

    def _found(self, channel: Channel, command: PullCommand) -> Parts | None:
        """Answer a pull like the last one that gets every message from its offset on; None for any other.

        Creates no `Pull` and skips checks, because the answer depends only on the read.
        """
        passed, checks, header = self._passed, self.checks, command.header
        if passed is None or not self._is_like(command, passed) or not passed.takes_all:
            return None
        topic, queue_id = header.topic, header.queue_id
        if (
            self.runner.store.visible_end(topic, queue_id) <= header.queue_offset
            or checks.topics.get(topic) is not passed.topic
            or checks.groups.find(header.consumer_group) is not passed.group
            or not checks.role.is_plain
        ):
            return None
        self.runtime.step("pull_read")
        read = self.runner.store.get(topic, queue_id, header.queue_offset, header.max_msg_nums, ALL)
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

    def _is_like(self, command: PullCommand, passed: _Passed) -> bool:
        """Whether a pull repeats the last one's request, commits nothing, and wants the usual answer."""
        header = command.header
        return (
            header.topic == passed.topic.topic_name
            and header.consumer_group == passed.group.group_name
            and header.sys_flag & _BRINGS == FLAG_SUBSCRIPTION
            and not command.flag
            and 0 <= header.queue_id < passed.topic.read_queue_nums
            and header.max_msg_nums >= 0
            and header.subscription == passed.subscription
            and header.expression_type == passed.expression_type
        )

    def hold_following(self, channel: Channel, commands: Sequence[PullCommand], outbox: Outbox) -> int:
        """Hold the first of these pulls that repeat the last one and wait at their queue's end; returns their number.

        Holds none if holding needs more than the table (`HoldService.holds_together`).
        """
        passed, checks = self._passed, self.checks
        if passed is None or not self.hold_service.holds_together or not checks.role.is_plain:
            return 0
        topic, group = passed.topic.topic_name, passed.group.group_name
        if checks.topics.get(topic) is not passed.topic or checks.groups.find(group) is not passed.group:
            return 0
        pulls: list[Pull] = []
        for command in commands:
            header = command.header
            if not (header.sys_flag & FLAG_SUSPEND and self._is_like(command, passed)):
                break
            self.runtime.step("pull_read")
            if self.runner.store.visible_end(topic, header.queue_id) != header.queue_offset:
                break
            pulls.append(self._decode(channel, command))
            pulls[-1].filter = passed.filter
        if pulls:
            self.hold_service.hold_together(pulls, outbox)
            if checks.topics.get(topic) is None and self.policy.on_truncate == "wake":
                # As in `receive`: deleted between check and insert.
                self.hold_service.topic_deleted(topic, outbox)
        return len(pulls)

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """Returns a miss without a read, if the queue ends at the pull's offset and the pull will be held."""
        runner = self.runner
        if (
            runner.store.visible_end(pull.topic, pull.queue_id) == pull.offset
            and pull.count_max >= 0
            and self.checks.role.is_plain
            and self.may_be_held(pull)
        ):
            return _MISS
        return super().look(pull, wanted)


_BRINGS: Final = FLAG_COMMIT_OFFSET | FLAG_SUBSCRIPTION
"""Only the second flag is set in a pull that brings its subscription and commits nothing."""
_MISS: Final = Miss(nothing(GetStatus.OFFSET_OVERFLOW_ONE, 0, 0, 0), tag_filter(None, None))
"""Placeholder in a miss that is held: the pull has its filter, and another read gives its answer."""
