"""Records what a broker does as a history, if recording is on.

Callers report every event to `PullEvents` and `SendEvents` and need not check whether the broker records. The classes
in this module write the events. For the format of a history see `longpoll_recorder`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_service import PullEvents
from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_broker.hold.pull import FLAG_SUSPEND, Refused
from longpoll_broker.hold.pull_runner import ONE_WAY
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.io.processors import Processor
from longpoll_broker.rocketmq.admin.offset_processor import recorded
from longpoll_broker.send.append import SendEvents, SendRequest, Stored
from longpoll_broker.shared.filters import Filter, is_as_said
from longpoll_broker.store.messages import Arrival, GetResult
from longpoll_protocol.codes import ResponseCode
from longpoll_recorder.recorder import HistoryRecorder, kept
from longpoll_runtime import Runtime
from longpoll_spec.policy import Policy


@define(slots=True, eq=False)
class RecordedPullEvents(PullEvents):
    """Writes every event to the recorder."""

    recorder: HistoryRecorder

    def now_ns(self) -> int:
        """Returns the time of the recorder's clock."""
        return self.recorder.now_ns()

    def received(self, pull: Pull, received_ns: int, wanted: Filter | Refused, commit_offset: int) -> None:
        """Write `request_received`, except for a one-way pull, which needs no answer."""
        if pull.flag & ONE_WAY:
            return
        known = None if isinstance(wanted, Refused) or not is_as_said(wanted) else wanted
        self.recorder.put(
            "request_received",
            received_ns,
            **_place(pull),
            code=11,
            group=pull.group,
            offset=kept(pull.offset),
            count_max=pull.count_max,
            may_hold=bool(pull.sys_flag & FLAG_SUSPEND),
            timeout_ms=kept(pull.timeout_ms),
            expression_type=known.expression_type if known else "",
            expression=known.expression if known else "",
            commit_offset=kept(commit_offset),
        )

    def record(self, event: str, pulls: Iterable[Pull], after_ns: int, visible_end: int | None = None) -> None:
        """Write one event for each pull."""
        end = {} if visible_end is None else {"visible_end": kept(visible_end)}
        for pull in pulls:
            self.recorder.put(event, after_ns, **_place(pull), **end)

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        """Write `answer_sent` when the answer has been handed to the socket."""
        if pull.flag & ONE_WAY:
            return
        fields = _place(pull) | {"code": code, "cause": cause}
        if read is not None:
            fields |= {
                "offset_next": kept(read.offset_next),
                "offset_min": read.offset_min,
                "offset_max": read.offset_max,
                "offsets": list(read.offsets),
            }
        after_ns = self.recorder.now_ns()
        outbox.after_answer(_channel(pull), lambda: self.recorder.put("answer_sent", after_ns, **fields))

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        """Write one `make_visible` per message, all with the same `before_ns`."""
        before_ns = self.recorder.now_ns()
        for arrival in arrivals:
            self.recorder.put(
                "make_visible",
                after_ns,
                before_ns=before_ns,
                topic=arrival.topic,
                queue=arrival.queue_id,
                visible_end=arrival.offset_end,
            )

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """Write one `make_visible` per queue."""
        after_ns = self.recorder.now_ns()
        for topic, queue_id, visible_end in ends:
            self.recorder.put("make_visible", after_ns, topic=topic, queue=queue_id, visible_end=visible_end)


def _channel(pull: Pull) -> Channel:
    channel = pull.channel
    assert isinstance(channel, Channel)
    return channel


def _place(pull: Pull) -> dict[str, Any]:
    number = str(_channel(pull).number)
    return {
        "topic": pull.topic,
        "queue": pull.queue_id,
        "request": f"{number}-{pull.number}",
        "connection": number,
    }


SUCCESS: Final = ResponseCode.SUCCESS.value


@define(slots=True, eq=False)
class RecordedSendEvents(SendEvents):
    """Writes every event to the recorder. For a one-way send, writes only the append."""

    recorder: HistoryRecorder

    def now_ns(self) -> int:
        """Returns the time of the recorder's clock."""
        return self.recorder.now_ns()

    def received(self, asked: SendRequest) -> None:
        """Write `request_received`."""
        if not asked.command.is_one_way:
            connection = str(asked.channel.number)
            self.recorder.put(
                "request_received",
                asked.channel.received_ns,
                topic=asked.header.topic,
                queue=asked.header.queue_id,
                request=f"{connection}-{asked.number}",
                connection=connection,
                code=asked.command.code,
            )

    def refused(self, asked: SendRequest, code: int, outbox: Outbox) -> None:
        """Write `answer_sent` when the answer has been handed to the socket."""
        if asked.command.is_one_way:
            return
        after_ns, connection, header = self.recorder.now_ns(), str(asked.channel.number), asked.header

        def tell() -> None:
            self.recorder.put(
                "answer_sent",
                after_ns,
                topic=header.topic,
                queue=header.queue_id,
                request=f"{connection}-{asked.number}",
                connection=connection,
                code=code,
                cause="error",
            )

        outbox.after_answer(asked.channel, tell)

    def acknowledged(self, asked: SendRequest, stored: Iterable[Stored], outbox: Outbox) -> None:
        """Write one `message_acknowledged` per message when the answer has been handed to the socket.

        A message that is in no queue has no offset, so only the success of its send is recorded.
        """
        if asked.command.is_one_way:
            return
        after_ns, connection = self.recorder.now_ns(), str(asked.channel.number)
        request = f"{connection}-{asked.number}"

        def tell() -> None:
            place: dict[str, Any] = {"request": request, "connection": connection}
            for each in stored:
                if each[0].in_queue:
                    self.recorder.put("message_acknowledged", after_ns, **place, **_fields_of(each))
                else:
                    place |= {"topic": asked.header.topic, "queue": asked.header.queue_id}
                    self.recorder.put("answer_sent", after_ns, **place, code=SUCCESS)

        outbox.after_answer(asked.channel, tell)

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """Write one `append` per message that is in a queue."""
        for each in stored:
            if each[0].in_queue:
                self.recorder.put("append", after_ns, **_fields_of(each))


def _fields_of(stored: Stored) -> dict[str, Any]:
    message, tag, result = stored
    return {"topic": message.topic, "queue": message.queue_id, "queue_offset": result.queue_offset, "tag": tag}


@frozen
class BrokerHistory:
    """The recorder of a broker's events; without a recorder it writes nothing."""

    recorder: HistoryRecorder | None = None
    pulls: PullEvents = field(factory=PullEvents)
    sends: SendEvents = field(factory=SendEvents)

    @classmethod
    def start(cls, runtime: Runtime, directory: str, policy: Policy, config: BrokerConfig) -> BrokerHistory:
        """Begin a history in a directory, or add a source to an existing one; raises RecordError."""
        recorder = HistoryRecorder(
            runtime,
            directory,
            broker=config.broker_name,
            policy=policy.name,
            hold_limit=-1 if policy.hold_limit == "none" else config.held_count_max,
        )
        return cls(recorder, RecordedPullEvents(recorder), RecordedSendEvents(recorder))

    def of_offsets(self, processors: Mapping[int, Processor]) -> Mapping[int, Processor]:
        """Wrap the processors of committed offsets to record their requests and answers."""
        return processors if self.recorder is None else recorded(processors, self.recorder)

    def connection(self, event: str, channel: Channel) -> None:
        """Write `connection_opened` or `connection_closed`."""
        if self.recorder is not None:
            self.recorder.put(event, self.recorder.now_ns(), connection=str(channel.number))

    def stop(self) -> str:
        """Write the remaining events; returns a sentence about missing events for the user, or an empty text."""
        return "" if self.recorder is None else self.recorder.stop()
