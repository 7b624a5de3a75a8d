"""History events about sends and appended messages.

`SendEvents` records nothing; callers report every event without checking whether the broker records.
`RecordedSendEvents` writes the events.

Pulls: see `hold.pull_events`. Format of a history: see `longpoll_recorder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.log_record import is_listed
from longpoll_recorder.recorder import HistoryRecorder

SUCCESS: Final = ResponseCode.SUCCESS.value

Stored: TypeAlias = tuple[MessageToStore, str, PutResult]
"""A message, its tag, and its place in the log."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """One send request."""

    channel: Channel
    command: Command
    header: SendMessageRequestHeader
    number: int
    """Its number among its connection's requests, from 1 on."""


class SendEvents:
    """Records nothing. `after_ns` is always a time of `now_ns` before the event began."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Returns the clock's time; 0 when nothing is recorded."""
        return 0

    def received(self, asked: Asked) -> None:
        """A send arrived."""

    def refused(self, asked: Asked, code: int, outbox: Outbox) -> None:
        """The send is about to be answered with an error code."""

    def acknowledged(self, asked: Asked, stored: Iterable[Stored], outbox: Outbox) -> None:
        """The send is about to be answered with success."""

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """These messages are in the log."""


@define(slots=True, eq=False)
class RecordedSendEvents(SendEvents):
    """Writes every event to the recorder; of a one-way send only the append."""

    recorder: HistoryRecorder

    def now_ns(self) -> int:
        """Returns the time of the recorder's clock."""
        return self.recorder.now_ns()

    def received(self, asked: Asked) -> None:
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

    def refused(self, asked: Asked, code: int, outbox: Outbox) -> None:
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

    def acknowledged(self, asked: Asked, stored: Iterable[Stored], outbox: Outbox) -> None:
        """Write one `message_acknowledged` per message when the answer has been handed to the socket.

        A message that no queue lists has no offset, so only the success of its send is recorded.
        """
        if asked.command.is_one_way:
            return
        after_ns, connection = self.recorder.now_ns(), str(asked.channel.number)
        request = f"{connection}-{asked.number}"

        def tell() -> None:
            place: dict[str, Any] = {"request": request, "connection": connection}
            for each in stored:
                if is_listed(each[0].sys_flag):
                    self.recorder.put("message_acknowledged", after_ns, **place, **_fields_of(each))
                else:
                    place |= {"topic": asked.header.topic, "queue": asked.header.queue_id}
                    self.recorder.put("answer_sent", after_ns, **place, code=SUCCESS)

        outbox.after_answer(asked.channel, tell)

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """Write one `append` per message that a queue lists."""
        for each in stored:
            if is_listed(each[0].sys_flag):
                self.recorder.put("append", after_ns, **_fields_of(each))


def _fields_of(stored: Stored) -> dict[str, Any]:
    message, tag, result = stored
    return {"topic": message.topic, "queue": message.queue_id, "queue_offset": result.queue_offset, "tag": tag}
