"""Serves bursts: adjacent sends on one connection, from a producer that does not wait for each answer.

Adjacent sends that need no special handling are stored together and answered in one buffer; other sends are served one
by one. The stored and answered bytes are the same in both cases. Bursts are not used if sends must be recorded in a
history, wait for the disk, or return a transaction id. What a send does: see `send.send_processor`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field

from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.send.message_builder import TEXT_SIZE_MAX, WISHES
from longpoll_broker.send.send_processor import RESPONSE, SendProcessor
from longpoll_broker.store.messages import MessageToStore
from longpoll_protocol.codes import CommandFlag
from longpoll_protocol.fast import SendCommand, TypedConnection, encode_send_head
from longpoll_protocol.frames import Command
from longpoll_protocol.names import NOT_FOR_SENDING, RETRY_PREFIX
from longpoll_protocol.properties import DELAY, INNER_QUEUES, PREPARED, TAGS

_ONE_WAY: Final = CommandFlag.ONE_WAY.value
BURST_MAX: Final = 256
"""Maximum sends that are stored together; storing so many takes a few milliseconds."""
AHEAD_FIRST: Final = 16
_LEADING_ELSEWHERE: Final = frozenset({DELAY, PREPARED, INNER_QUEUES, *WISHES})
"""Properties by which a message may go to another topic or to additional queues."""


@define(slots=True, eq=False)
class SendBursts:
    """Serves bursts; callable from the thread of any I/O loop. Each burst follows a send that was served alone."""

    send: SendProcessor
    serve_one: Callable[[Channel, Command, Outbox], None]
    """Serves a request that cannot be part of a burst."""
    now_ns: Callable[[], int]
    """Reads the monotonic clock."""
    _ahead: int = field(default=AHEAD_FIRST, init=False)
    """Number of sends to parse ahead, which grows with successful bursts; threads may write it without a lock."""

    def serve_following(self, channel: Channel, outbox: Outbox) -> int:
        """Serve the sends that directly follow a served send, until the time slice ends; returns their number.

        Sends without special handling are stored together. The end of the time slice is checked before each send with
        special handling, because a thousand delayed messages would take a quarter of a second. Only a few sends are
        parsed ahead until all of them can be stored together, because sends that are not served must be parsed again.
        """
        connection = channel.connection
        assert isinstance(connection, TypedConnection)
        served = 0
        while served < BURST_MAX and not channel.gives_way and self.now_ns() <= channel.turn_end_ns:
            following = connection.next_sends(1)
            if not following:
                break
            if not self._plain_ones(channel, following):
                self.serve_one(channel, following[0], outbox)
                served += 1
                continue
            following += connection.next_sends(self._ahead)
            done = self._put(channel, following, outbox)
            if not done:
                # The topic has been deleted since the check.
                self.serve_one(channel, following[0], outbox)
                done = 1
            if done < len(following):
                connection.keep(done - 1)
                self._ahead = AHEAD_FIRST
            else:
                self._ahead = min(4 * self._ahead, BURST_MAX)
            served += done
        return served

    def _plain_ones(self, channel: Channel, following: Sequence[SendCommand]) -> list[MessageToStore]:
        """Returns the messages of the first sends, up to a send that needs special handling."""
        messages: list[MessageToStore] = []
        for command in following:
            message = None if command.flag & RESPONSE else self._plain(channel, command)
            if message is None:
                break
            messages.append(message)
        return messages

    def _plain(self, channel: Channel, command: SendCommand) -> MessageToStore | None:
        """Returns the message of a valid send without special handling; None for any other send."""
        header, builder = command.header, self.send.builder
        topic, queue_id = builder.topics.get(header.topic), header.queue_id
        if topic is None or header.topic in builder.topics.unsaved:
            return None
        if header.batch or header.topic in NOT_FOR_SENDING or header.topic.startswith(RETRY_PREFIX):
            return None
        if not 0 <= queue_id < max(topic.write_queue_nums, topic.read_queue_nums) or not channel.host_bytes:
            return None
        is_long = header.properties and len(header.properties) > TEXT_SIZE_MAX
        if is_long or (header.topic, queue_id) not in builder.queues.known:
            return None
        if not header.properties and not builder.traits.stores_region:
            stored, tag = builder.added_properties, ""
        else:
            properties = builder.properties(header)
            if not _LEADING_ELSEWHERE.isdisjoint(properties):
                return None
            stored, tag = builder.stored(properties), properties.get(TAGS, "")
        return builder.message(channel, header, queue_id, command.body, stored, tag, header.flag)

    def _put(self, channel: Channel, commands: Sequence[SendCommand], outbox: Outbox) -> int:
        """Store and answer the first plain sends; returns their number.

        Stops when the connection's time slice has ended. The send at which the store stops is served alone.
        """
        host_digits = self.send.host_digits
        messages = self._plain_ones(channel, commands)
        served = 0
        while messages and not channel.gives_way:
            arrivals = self.send.appender.append_burst(messages)
            count = len(arrivals)
            channel.request_count += count
            heads = [
                encode_send_head(
                    command.opaque, RESPONSE, arrival.queue_id, host_digits,
                    arrival.physical_offset, arrival.offset_end - 1,
                )
                for command, arrival in zip(commands, arrivals, strict=False)
                if not command.flag & _ONE_WAY
            ]  # fmt: skip
            if heads:
                outbox.write(channel, (b"".join(heads),))
            if count < len(messages):
                self.serve_one(channel, commands[count], outbox)
                count += 1
            served += count
            commands, messages = commands[count:], messages[count:]
        return served
