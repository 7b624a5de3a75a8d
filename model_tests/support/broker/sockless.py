"""Connections to a broker without sockets: the broker serves each request on the caller's thread."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import define, field

from longpoll_broker.broker import Broker
from longpoll_broker.io.channel import Channel, Limits, Outbox
from longpoll_protocol.frames import Command
from longpoll_protocol.log_record import host_bytes
from longpoll_runtime import Buffer

LIMITS = Limits(1 << 24, 1 << 26, 10, 1 << 40)


class ThreadlessBroker(Broker):
    """A broker that starts no threads and serves requests on the caller's thread."""

    def _start_threads(self) -> None:
        self.pulling.dispatch_service.record_visible()


@define(slots=True)
class Wire:
    """The socket of a peer that accepts all bytes at once."""

    taken: bytearray = field(factory=bytearray)

    def send(self, content: Buffer) -> int:
        self.taken += content
        return len(content)

    def send_parts(self, parts: Sequence[Buffer]) -> int:
        return sum(map(self.send, parts))

    def recv_into(self, buffer: Buffer) -> int:
        raise AssertionError(f"{len(buffer)} bytes were asked for")

    def fileno(self) -> int:
        return -1

    def close(self) -> None:
        """Do nothing, because no socket is open."""


class Peer:
    """A connection to a broker without a socket."""

    def __init__(self, broker: Broker, number: int = 7, host: str = "127.0.0.1") -> None:
        self.broker = broker
        self.wire = Wire()
        self.channel = Channel(
            broker.loops[0], self.wire, (host, 5555), number, broker.handler, LIMITS, broker.runtime.lock()
        )
        broker.handler.opened(self.channel)
        # From now on each send saves its new topic itself, so no other thread answers the send later.
        broker.sending.commits.stop()

    def tell(self, content: bytes) -> bytes:
        """Let the broker read these bytes in one piece; returns the bytes of its answers."""
        outbox = Outbox()
        connection = self.channel.connection
        connection.receive_data(content)
        while isinstance(command := connection.next_event(), Command):
            self.broker.handler.received(self.channel, command, outbox)
            # No other connection waits, so the broker must not stop between two requests.
            self.channel.gives_way = False
        self.broker.pulling.dispatch_service.appended(outbox)
        outbox.flush()
        return self.heard()

    def heard(self) -> bytes:
        """Returns the bytes that the broker has sent since the last call, with its address replaced."""
        answered = bytes(self.wire.taken)
        self.wire.taken.clear()
        host = host_bytes(*self.broker.address)
        return answered.replace(host.hex().upper().encode(), b"HOST").replace(host, b"HOST")

    def told(self, content: bytes) -> tuple[object, ...]:
        """Let the broker read these bytes; returns its answers, the log's new bytes, visible ends and request count."""
        store = self.broker.store
        start = store.log_end
        answered = self.tell(content)
        host = host_bytes(*self.broker.address)
        log = b"".join(
            bytes(segment.view[max(start - segment.start, 0) : max(store.log_end - segment.start, 0)])
            for segment in store._log.segments.segments
        )
        ends = [(place, store.visible_end(*place)) for place in store.queues()]
        return answered, log.replace(host, b"HOST"), ends, self.channel.request_count
