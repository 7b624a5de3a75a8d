"""Serves pulls: decodes one, decides it, and answers or holds it; runs it again when it was woken or is late.

Leaves out the decision itself (`core.pull`), the hold table (`service.pull.hold_service`) and threads.

Source: `PullMessageProcessor.java`, `PullRequestHoldService.java` 4.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any, Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig
from longpoll_broker.core.filter.filters import Filter, TagFilter
from longpoll_broker.core.hold import ANSWERED, Pull
from longpoll_broker.core.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUBSCRIPTION,
    FLAG_SUSPEND,
    PULL_OFFSET_MOVED,
    SYSTEM_ERROR,
    Decision,
    Desk,
    Found,
    Miss,
    OffsetMoved,
    Refused,
    as_placed,
    check,
    code_of,
    look,
    of_negative_count,
)
from longpoll_broker.core.tables.offsets import Offsets
from longpoll_broker.core.tables.statistics import Statistics
from longpoll_broker.core.traits import Traits
from longpoll_broker.service.io.channel import Channel, Outbox, Parts
from longpoll_broker.service.io.exchange import Refusal
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_broker.service.pull.woken_row import CHANNEL, TERMS, RowAnswer, RowKey
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import CommandFlag, ResponseCode
from longpoll_protocol.frames.command import Command, encode_head
from longpoll_protocol.frames.frame import Buffer, Serialisation
from longpoll_protocol.frames.pull_answer import encode_pull_head
from longpoll_protocol.headers import PullMessageRequestHeader
from longpoll_recorder.recorder import HistoryRecorder
from longpoll_runtime import Runtime
from longpoll_runtime.faults import FAULTS
from longpoll_spec.policy import Policy

log = logging.getLogger(__name__)

SHORT_POLLING_MS: Final = 1000
"""`shortPollingTimeMills`: how long a pull is held when long polling is off."""
RESPONSE: Final = CommandFlag.RESPONSE.value
ONE_WAY: Final = CommandFlag.ONE_WAY.value
JSON: Final = Serialisation.JSON
_KINDS: Final = (Serialisation.JSON, Serialisation.ROCKETMQ)
"""By their numbers: looking a member up in its enum costs more."""


@define(slots=True, eq=False)
class PullService:
    """The processor of code 11; `hold_service` is set once both are made."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    desk: Desk
    offsets: Offsets
    store: MessageStore
    recorder: HistoryRecorder | None
    statistics: Statistics = field(factory=Statistics)
    offset_moved: Callable[[Pull, int], None] | None = None
    """Told of every pull answered 21, and where it is to go on; None where nobody is told."""
    hold_service: HoldService | None = None
    traits: Traits = field(init=False)
    _is_plain: bool = field(init=False)
    """Whether this is a lone master, which a broker stays as long as it runs."""
    _tells_offsets_only: bool = field(init=False)
    """Whether an answer that tells of a read has no field but the offsets."""
    _last: RowAnswer | None = field(default=None, init=False)
    """What the last woken pull got. One assignment, so threads see the old one or the new one."""

    def __attrs_post_init__(self) -> None:
        self.traits = self.desk.traits
        self._is_plain = self.desk.standing.is_plain
        self._tells_offsets_only = self._is_plain and not self.traits.explains_refusals

    # -- the first pass ----------------------------------------------------------------------------------------------

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request: the reply, or None when it is held."""
        pull = self._decode(channel, command)
        wanted = check(pull, self.desk)
        one_way = bool(pull.flag & ONE_WAY)
        if self.recorder is not None and not one_way:
            self._record_request(pull, channel, wanted)
        if isinstance(wanted, Refused):
            decision: Decision = wanted
        else:
            self.runtime.step("pull_read")
            decision = self._look(pull, wanted)
            commits = bool(pull.sys_flag & FLAG_COMMIT_OFFSET) and self._commits and not isinstance(decision, Refused)
            if commits and self.policy.commit != "after_hold":
                self._commit(pull)
            if (
                isinstance(decision, Miss)
                and pull.sys_flag & FLAG_SUSPEND
                and not (one_way and self.traits.drops_one_way_pull)
            ):
                pull.filter = wanted
                assert self.hold_service is not None
                self.hold_service.hold(pull, outbox)
                if commits and self.policy.commit == "after_hold":
                    self._commit(pull)
                if self.desk.topics.get(pull.topic) is None and self.policy.on_truncate == "wake":
                    # Deleted between the check and the insert: whoever deleted it may have looked before.
                    self.hold_service.topic_deleted(pull.topic, outbox)
                return None
            if commits and self.policy.commit == "after_hold":
                self._commit(pull)
        self._count(pull, decision, channel.received_ns)
        return self._encode(pull, decision, "immediate", _KINDS[pull.serialize], outbox)

    def _count(self, pull: Pull, decision: Decision, begun_ns: int) -> None:
        """Count what a group gets, and tell of an offset that was moved."""
        if isinstance(decision, Found):
            read = decision.read
            latency_ms = (self.runtime.monotonic_ns() - begun_ns) // 1_000_000
            self.statistics.count_get(
                pull.topic, pull.group, pull.queue_id,
                messages=len(read.offsets), size=read.size_bytes, latency_ms=latency_ms,
            )  # fmt: skip
        elif isinstance(decision, OffsetMoved) and self.offset_moved and decision.code == PULL_OFFSET_MOVED:
            self.offset_moved(pull, decision.read.offset_next)

    @property
    def _commits(self) -> bool:
        """Whether this broker stores the offsets that pulls carry along."""
        return not self.desk.standing.is_slave or self.traits.commits_as_slave

    def _commit(self, pull: Pull) -> None:
        forward_only = self.policy.commit == "monotone_max"
        self.offsets.commit(pull.topic, pull.group, pull.queue_id, pull.commit_offset, forward_only=forward_only)

    def _look(self, pull: Pull, wanted: Filter) -> Decision:
        """Read for a pull."""
        found = look(pull, wanted, self.store)
        decision = found if pull.count_max >= 0 else of_negative_count(pull, found, self.desk)
        if self._is_plain or isinstance(decision, Refused):
            return decision
        return as_placed(decision, self.desk)

    def _row_key(self, pull: Pull) -> RowKey | None:
        """What a woken pull has in common with those that get the same answer; None when that is not known so easily.

        One message wakes a row of pulls with equal keys. What lies between a queue's two ends does not change as long
        as they and the log's start do not; a group, a topic and a filter are replaced, never changed.
        """
        if self.recorder is not None or not self._tells_offsets_only:
            return None
        if not pull.sys_flag & FLAG_SUBSCRIPTION or pull.flag & ONE_WAY or pull.serialize:
            return None
        desk, store = self.desk, self.store
        return RowKey(
            desk.topics.get(pull.topic), pull.queue_id, pull.offset, desk.groups.find(pull.group),
            pull.count_max, pull.filter, pull.flag, store.ends(pull.topic, pull.queue_id), store.log_start,
        )  # fmt: skip

    def run_alike(self, pulls: Sequence[Pull], outbox: Outbox) -> None:
        """Run the pulls at the beginning of a row that get what the last woken pull got; the rest stays as it is."""
        row = self._last
        if row is None or TERMS(pulls[0]) != row.terms:
            return
        _terms, alike = next(groupby(pulls, TERMS))
        ran = list(alike)
        for _pull in ran:
            self.runtime.step("run")
        # Only now, for they read what is there when they run.
        if self._row_key(ran[0]) != row.key:
            return
        for _channel, of_channel in groupby(ran, CHANNEL):
            self._answer_in_row(list(of_channel), row, outbox)

    def _answer_in_row(self, pulls: Sequence[Pull], row: RowAnswer, outbox: Outbox) -> None:
        """Answer pulls of one channel as the last one was."""
        first = pulls[0]
        channel = first.channel
        assert isinstance(channel, Channel)
        for pull in pulls:
            pull.phase = ANSWERED
        outbox.write_in_row(channel, row.parts([pull.opaque for pull in pulls]), len(pulls))
        read = row.found.read
        self.statistics.count_get(
            first.topic, first.group, first.queue_id,
            messages=len(read.offsets), size=read.size_bytes, latency_ms=0, times=len(pulls),
        )  # fmt: skip

    def forget_last(self) -> None:
        """Let go of the last answer's slices of the log; before the store closes."""
        self._last = None

    def _decode(self, channel: Channel, command: Command) -> Pull:
        header = PullMessageRequestHeader.decode(command.ext_fields)
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
        """How long a pull may be held: what it asks, which RocketMQ leaves without a cap."""
        if not self.config.long_polling:
            return SHORT_POLLING_MS
        if not self.traits.caps_hold:
            return asked_ms
        return min(max(asked_ms, 0), self.config.hold_timeout_ms_max)

    # -- after the hold ----------------------------------------------------------------------------------------------

    def run(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        """Decide a pull once more, from its first check on, and answer it whatever comes out."""
        after_ns = self.recorder.now_ns() if self.recorder is not None else 0
        self.runtime.step("run")
        key = self._row_key(pull) if cause == "woken" else None
        row = self._last
        if key is not None and row is not None and row.key == key:
            self._answer_in_row((pull,), row, outbox)
            return
        begun_ns = self.runtime.monotonic_ns()
        try:
            wanted = check(pull, self.desk)
            if isinstance(wanted, Refused):
                decision: Decision = wanted
            else:
                decision = self._look(pull, wanted)
        except FAULTS as error:
            if self.policy.on_throw != "answer_and_go_on":
                raise
            log.exception("running a pull of %s again failed", pull.topic)
            decision = Refused(SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            cause = "thrown"
        if self.recorder is not None:
            self.recorder.put("run", after_ns, **self._place(pull))
        self._count(pull, decision, begun_ns)
        self._answer(pull, decision, cause, outbox)
        if key is not None and isinstance(decision, Found):
            self._last = RowAnswer(key, TERMS(pull), pull.flag | RESPONSE, decision)

    def refuse(self, pull: Pull, cause: str, outbox: Outbox) -> None:
        """Answer a pull without running it: `busy`, `thrown`, or, for what it did not do, the offset it came with."""
        if cause == "stopped":
            self._answer(pull, Miss(_Unread(pull, self.store), _NO_FILTER), cause, outbox)
        elif cause == "busy":
            self._answer(pull, Refused(ResponseCode.SYSTEM_BUSY, "too many pulls, try again later"), cause, outbox)
        else:
            self._answer(pull, Refused(SYSTEM_ERROR, "the filter of this pull failed"), cause, outbox)

    def _answer(self, pull: Pull, decision: Decision, cause: str, outbox: Outbox) -> None:
        channel = pull.channel
        assert isinstance(channel, Channel)
        if pull.flag & ONE_WAY and not self.traits.answers_woken_one_way:
            pull.phase = ANSWERED
            return
        # Java answers a woken pull in its default, JSON, whatever the request was written in.
        kind = JSON if self.traits.woken_in_json else _KINDS[pull.serialize]
        parts = self._encode(pull, decision, cause, kind, outbox)
        outbox.write_in_row(channel, parts)

    # -- answers -----------------------------------------------------------------------------------------------------

    def _encode(self, pull: Pull, decision: Decision, cause: str, kind: Serialisation, outbox: Outbox) -> Parts:
        """The buffers of an answer; 20, 21, 19 and 0 carry offsets, a refusal none."""
        pull.phase = ANSWERED
        flag = pull.flag | RESPONSE
        if isinstance(decision, Refused):
            refusal = self._refusal_fields(decision)
            head = encode_head(
                Command(decision.code, pull.opaque, flag, refusal, remark=decision.remark, serialisation=kind), 0
            )
            if self.recorder is not None:
                self._record_answer(pull, decision.code, None, cause, outbox)
            return Refusal((head,), decision.code, decision.remark)
        read = decision.read
        found = isinstance(decision, Found)
        body_size = read.size_bytes if found else 0
        if kind is JSON and self._tells_offsets_only:
            head = encode_pull_head(
                decision.code, pull.opaque, flag, read.status.name,
                read.offset_next, read.offset_min, read.offset_max, body_size,
            )  # fmt: skip
        else:
            fields = self._fields(pull, read)
            command = Command(decision.code, pull.opaque, flag, fields, remark=read.status.name, serialisation=kind)
            head = encode_head(command, body_size)
        if self.recorder is not None:
            self._record_answer(pull, decision.code, read, cause, outbox)
        parts: list[Buffer] = [head]
        if found:
            parts.extend(read.records)
        return parts

    def _fields(self, pull: Pull, read: Any) -> dict[str, str]:
        """The fields of an answer that tells of a read."""
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(read.offset_next),
            "minOffset": str(read.offset_min),
            "maxOffset": str(read.offset_max),
        }
        if self.traits.explains_refusals:
            fields |= self._flag_fields(pull)
        if not self._is_plain:
            fields |= self._standing_fields(pull, read)
        return fields

    def _refusal_fields(self, decision: Refused) -> dict[str, str] | None:
        if decision.forbidden_type is None or not self.traits.explains_refusals:
            return None
        return {"forbiddenType": str(decision.forbidden_type)}

    def _flag_fields(self, pull: Pull) -> dict[str, str]:
        """What 5.x tells of the topic and the group."""
        topic, group = self.desk.topics.get(pull.topic), self.desk.groups.by_name.get(pull.group)
        return {
            "topicSysFlag": str(topic.topic_sys_flag if topic is not None else 0),
            "groupSysFlag": str(group.group_sys_flag if group is not None else 0),
        }

    def _standing_fields(self, pull: Pull, read: Any) -> dict[str, str]:
        """What a slave, or a master that may send its readers to one, says otherwise."""
        standing, status = self.desk.standing, read.status.name
        group = self.desk.groups.by_name.get(pull.group)
        suggested = standing.suggested_broker(
            group, code_of(status, pull.offset), self.traits, suggests_slave=read.suggest_slave
        )
        offset_next = standing.offset_next(pull.offset, read.offset_next, status)
        return {"suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(offset_next)}

    # -- the history -------------------------------------------------------------------------------------------------

    def _place(self, pull: Pull) -> dict[str, Any]:
        channel = pull.channel
        assert isinstance(channel, Channel)
        number = str(channel.number)
        return {
            "topic": pull.topic,
            "queue": pull.queue_id,
            "request": f"{number}-{pull.number}",
            "connection": number,
        }

    def _record_request(self, pull: Pull, channel: Channel, wanted: Filter | Refused) -> None:
        assert self.recorder is not None
        known = None if isinstance(wanted, Refused) else wanted
        self.recorder.put(
            "request_received",
            channel.received_ns,
            **self._place(pull),
            code=11,
            group=pull.group,
            offset=pull.offset,
            count_max=pull.count_max,
            may_hold=bool(pull.sys_flag & FLAG_SUSPEND),
            timeout_ms=pull.timeout_ms,
            expression_type=known.expression_type if known else "",
            expression=known.expression if known else "",
            commit_offset=max(pull.commit_offset, -1) if pull.sys_flag & FLAG_COMMIT_OFFSET and self._commits else -1,
        )

    def _record_answer(self, pull: Pull, code: int, read: Any, cause: str, outbox: Outbox) -> None:
        recorder = self.recorder
        assert recorder is not None
        if pull.flag & ONE_WAY:
            return
        fields = self._place(pull) | {"code": code, "cause": cause}
        if read is not None:
            fields |= {
                "offset_next": read.offset_next,
                "offset_min": read.offset_min,
                "offset_max": read.offset_max,
                "offsets": list(read.offsets),
            }
        after_ns = recorder.now_ns()
        channel = pull.channel
        assert isinstance(channel, Channel)
        outbox.after_answer(channel, lambda: recorder.put("answer_sent", after_ns, **fields))


_NO_FILTER: Final = TagFilter("*", "TAG", frozenset(), all_tags=True)


class _Status:
    name: Final = "OFFSET_OVERFLOW_ONE"


class _Unread:
    """What a stopping broker says without reading: nothing new, ask again from the same offset."""

    status: Final = _Status()
    records: tuple[memoryview, ...] = ()
    offsets: tuple[int, ...] = ()
    size_bytes: Final = 0
    suggest_slave: Final = False

    def __init__(self, pull: Pull, store: MessageStore) -> None:
        self.offset_next = pull.offset
        self.offset_min = store.visible_start(pull.topic, pull.queue_id)
        self.offset_max = store.visible_end(pull.topic, pull.queue_id)
