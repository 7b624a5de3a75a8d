"""What a broker's history tells of sends, and of every message that is appended.

`SendEvents` is that of a broker which records nothing: its methods do nothing, so that who stores and answers tells
everything and never asks whether anybody listens. `RecordedSendEvents` writes the events.

Leaves out pulls (`service.pull.pull_events`) and how a history is written (`longpoll_recorder`).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import msgspec
from attrs import define

from longpoll_broker.service.io.channel import Channel, Outbox
from longpoll_broker.store.messages import MessageToStore, PutResult
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_recorder.recorder import HistoryRecorder

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
            self.recorder.put("request_received", asked.channel.received_ns, **_place(asked), code=asked.command.code)

    def refused(self, asked: Asked, code: int, outbox: Outbox) -> None:
        """`answer_sent`, once the answer has been handed to the socket."""
        if not asked.command.is_one_way:
            self._when_answered(asked, outbox, ("answer_sent", _place(asked) | {"code": code, "cause": "error"}))

    def acknowledged(self, asked: Asked, stored: Iterable[Stored], outbox: Outbox) -> None:
        """A `message_acknowledged` each, once the answer has been handed to the socket."""
        if not asked.command.is_one_way:
            events = [
                (
                    "message_acknowledged",
                    _place(asked)
                    | {
                        "topic": message.topic,
                        "queue": message.queue_id,
                        "queue_offset": result.queue_offset,
                        "tag": tag,
                    },
                )
                for message, tag, result in stored
            ]
            self._when_answered(asked, outbox, *events)

    def appended(self, stored: Iterable[Stored], after_ns: int) -> None:
        """An `append` each."""
        for message, tag, result in stored:
            self.recorder.put(
                "append",
                after_ns,
                topic=message.topic,
                queue=message.queue_id,
                queue_offset=result.queue_offset,
                tag=tag,
            )

    def _when_answered(self, asked: Asked, outbox: Outbox, *events: tuple[str, dict[str, Any]]) -> None:
        after_ns = self.recorder.now_ns()

        def tell() -> None:
            for event, fields in events:
                self.recorder.put(event, after_ns, **fields)

        outbox.after_answer(asked.channel, tell)


def _place(asked: Asked) -> dict[str, Any]:
    number = str(asked.channel.number)
    return {
        "topic": asked.header.topic,
        "queue": asked.header.queue_id,
        "request": f"{number}-{asked.number}",
        "connection": number,
    }
