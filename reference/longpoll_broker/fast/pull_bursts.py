"""Serves pulls that lie side by side on one connection, and asks for each no more than what can differ.

Every pull is served by itself, through the common processor; spared is the way there and, for those that will be held,
what need not be made: who asks for one topic, group and subscription was checked before, and a queue whose end is where
the pull begins has nothing to read. Leaves out what a pull means (`hold.pull_processor`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol

from attrs import define, field, frozen

from longpoll_broker.fast.pull_heads import PatchedPullAnswers
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUBSCRIPTION,
    FLAG_SUSPEND,
    Decision,
    Miss,
    Refused,
)
from longpoll_broker.hold.pull_answers import RESPONSE
from longpoll_broker.hold.pull_events import PullEvents
from longpoll_broker.hold.pull_processor import PullProcessor
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.transport import QUEUED_SIZE_MAX
from longpoll_broker.shared.filter.filters import Filter, TagFilter, tag_filter
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_broker.store.read import ALL, GetStatus
from longpoll_broker.store.selection import nothing
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.fast.pull_answer import encode_pull_head
from longpoll_protocol.fast.pull_request import PullCommand
from longpoll_protocol.fast.typed_connection import TypedConnection
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import PullMessageRequestHeader

BURST_MAX: Final = 64
"""Pulls served before the loop looks at the clock: a third of a millisecond's work where they are held."""
READ_FIRST: Final = 8
"""Pulls read at first; then twice as many each time, for what is read and not served is read again."""


class HoldsFollowing(Protocol):
    """Who may hold several pulls at once."""

    def hold_following(self, channel: Channel, commands: Sequence[PullCommand], outbox: Outbox) -> int:
        """Hold the first of these pulls, up to one that is more than a wait at its queue's end; how many."""
        ...


@define(slots=True, eq=False)
class PullBursts:
    """Serves pulls behind one that was served by itself; callable from any loop's thread."""

    serve_one: Callable[[Channel, Command, Outbox], None]
    """The common way of a request."""
    now_ns: Callable[[], int]
    """The monotonic clock."""
    holder: HoldsFollowing | None = None
    """None where each pull is looked at by itself."""

    def serve_following(self, channel: Channel, outbox: Outbox) -> int:
        """Serve the pulls that came right behind one that was served, up to where others have their turn; how many."""
        connection = channel.connection
        assert isinstance(connection, TypedConnection)
        served = 0
        # Those behind one that was given messages mostly are as well: no more of them than are answered at once.
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
        """Serve the first of these, up to where others have their turn; how many."""
        served = 0
        # Who was given messages is behind its queue's end, and so, mostly, are its next pulls.
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
    """What passed the checks: topic, group and filter are replaced, never changed."""

    topic: TopicConfig
    group: GroupConfig
    subscription: str | None
    expression_type: str | None
    filter: Filter
    takes_all: bool
    """Whether the filter lets every message through."""


@define(slots=True, eq=False)
class QuickPullProcessor(PullProcessor):
    """`PullProcessor` for connections that read pulls (`TypedConnection`); it serves any other as well."""

    _passed: _Passed | None = field(default=None, init=False)
    """One assignment, so threads see the old one or the new one."""
    _gives_at_once: bool = field(init=False)
    """Whether nothing but the read and its answer belongs to a pull that finds messages."""

    def __attrs_post_init__(self) -> None:
        self._gives_at_once = type(self.events) is PullEvents and type(self.runner.answers) is PatchedPullAnswers

    def header_of(self, command: Command) -> PullMessageRequestHeader:
        """The request's header; raises as that of `PullProcessor` does."""
        return command.header if type(command) is PullCommand else super().header_of(command)

    def check(self, pull: Pull) -> Filter | Refused:
        """The same of a pull as of the last one with its topic, group and subscription."""
        passed, desk = self._passed, self.desk
        if (
            passed is not None
            and pull.sys_flag & FLAG_SUBSCRIPTION
            and passed.topic is desk.topics.get(pull.topic)
            and passed.group is desk.groups.find(pull.group, pull.channel)
            and 0 <= pull.queue_id < passed.topic.read_queue_nums
            and passed.subscription == pull.subscription
            and passed.expression_type == pull.expression_type
        ):
            return passed.filter
        topic, group = desk.topics.get(pull.topic), desk.groups.find(pull.group, pull.channel)
        wanted = super().check(pull)
        if not isinstance(wanted, Refused) and pull.sys_flag & FLAG_SUBSCRIPTION and topic and group:
            takes_all = isinstance(wanted, TagFilter) and wanted.all_tags
            self._passed = _Passed(topic, group, pull.subscription, pull.expression_type, wanted, takes_all)
        return wanted

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request: the reply, or None when it is held."""
        parts = self._found(channel, command) if type(command) is PullCommand and self._gives_at_once else None
        return super().receive(channel, command, outbox) if parts is None else parts

    def _found(self, channel: Channel, command: PullCommand) -> Parts | None:
        """The answer to a pull like the last one that gets every message from its offset on; None for any other.

        Spared is what is made for each pull and asked of it, where its answer only tells what was read.
        """
        passed, desk, header = self._passed, self.desk, command.header
        if passed is None or not self._is_like(command, passed) or not passed.takes_all:
            return None
        topic, queue_id = header.topic, header.queue_id
        if (
            self.runner.store.visible_end(topic, queue_id) <= header.queue_offset
            or desk.topics.get(topic) is not passed.topic
            or desk.groups.find(header.consumer_group) is not passed.group
            or not desk.standing.is_plain
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
        """Whether a pull asks as the last one did, commits nothing, and wants its answer as it mostly is."""
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
        """Hold the first of these pulls that are like the last one and wait at their queue's end; how many.

        None where more than the table belongs to a pull that is held (`HoldService.holds_together`).
        """
        passed, desk = self._passed, self.desk
        if passed is None or not self.hold_service.holds_together or not desk.standing.is_plain:
            return 0
        topic, group = passed.topic.topic_name, passed.group.group_name
        if desk.topics.get(topic) is not passed.topic or desk.groups.find(group) is not passed.group:
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
            if desk.topics.get(topic) is None and self.policy.on_truncate == "wake":
                # As in `receive`: deleted between the check and the insert.
                self.hold_service.topic_deleted(topic, outbox)
        return len(pulls)

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """A miss without a read, where the queue ends at the pull's offset and the pull will be held."""
        runner = self.runner
        if (
            runner.store.visible_end(pull.topic, pull.queue_id) == pull.offset
            and pull.count_max >= 0
            and self.desk.standing.is_plain
            and self.may_be_held(pull)
        ):
            return _MISS
        return super().look(pull, wanted)


_BRINGS: Final = FLAG_COMMIT_OFFSET | FLAG_SUBSCRIPTION
"""Of these flags a pull has the second alone that brings what it wants and commits nothing."""
_MISS: Final = Miss(nothing(GetStatus.OFFSET_OVERFLOW_ONE, 0, 0, 0), tag_filter(None, None))
"""What nobody looks at in a miss that is held: the pull has its filter, and its answer comes of a read of its own."""
