"""What a broker's history tells of sends, and of every message that is appended.

`SendEvents` is that of a broker which records nothing: its methods do nothing, so that who stores and answers tells
everything and never asks whether anybody listens. `RecordedSendEvents` writes the events.

Leaves out pulls (`hold.pull_events`) and how a history is written (`longpoll_recorder`).
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
"""A message with its tag, and where it is in the log."""


class Asked(msgspec.Struct, frozen=True, gc=False):
    """One request to send: who asks, and what for."""

    channel: Channel
    command: Command
    header: SendMessageRequestHeader
    number: int
    """Which of its connection's requests it is, from 1 on."""


class SendEvents:
    """Nobody is told. `after_ns` is everywhere a moment of `now_ns` before what is told of began."""

    __slots__ = ()

    def now_ns(self) -> int:
        """The clock of the events; 0 where nothing is recorded."""
        return 0

    def received(self, asked: Asked) -> None:
        """A send came."""

    def refused(self, asked: Asked, code: int, outbox: Outbox) -> None:
        """It is about to be answered with a code that is no success."""

    def acknowledged(self, asked: Asked, stored: Iterable[Stored], outbox: Outbox) -> None:
        """It is about to be answered that its messages are stored."""

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """These messages are in the log."""


@define(slots=True, eq=False)
class RecordedSendEvents(SendEvents):
    """All of it goes to the recorder; nobody answers a one-way send, so of these only the append is told."""

    recorder: HistoryRecorder

    def now_ns(self) -> int:
        """The recorder's clock."""
        return self.recorder.now_ns()

    def received(self, asked: Asked) -> None:
        """`request_received`."""
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
        """`answer_sent`, once the answer has been handed to the socket."""
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
        """A `message_acknowledged` each, once the answer has been handed to the socket.

        A message that no queue lists has no place to be acknowledged at: that its send succeeded is told alone.
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
        """An `append` each, of those that a queue lists: the others count in none."""
        for each in stored:
            if is_listed(each[0].sys_flag):
                self.recorder.put("append", after_ns, **_fields_of(each))


def _fields_of(stored: Stored) -> dict[str, Any]:
    """What an event tells of a stored message."""
    message, tag, result = stored
    return {"topic": message.topic, "queue": message.queue_id, "queue_offset": result.queue_offset, "tag": tag}
