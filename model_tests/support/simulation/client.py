"""A client in a simulated run: performs its actions in order over one connection and records the answers.

The connection may be simulated or real (`model_tests.nightly.soak`). This client lacks a real client's own behaviour;
`longpoll_client` runs in the same simulation.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, Protocol

from attrs import define, field
from model_tests.support.simulation.checker import Asked, BrokenError, Checker, Deletion, Sent
from model_tests.support.simulation.plan import TOPIC, Act, Leave, Pause, Pull, Send, Wait

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command, Connection, encode
from longpoll_protocol.log_record import Record, decode
from longpoll_runtime import Buffer, Runtime

_PHYSICAL_OFFSET: Final = struct.Struct(">q")


def send_fields(topic: str, queue_id: int = 0, properties: str = "") -> dict[str, str]:
    """Returns the header fields of a SEND_MESSAGE_V2 (310) request."""
    values = ("PG", topic, "TBW102", "4", str(queue_id), "0", "1700000000000", "0", properties, "0", "false")
    return dict(zip("abcdefghijk", values, strict=True))


def pull_fields(
    topic: str,
    offset: int,
    *,
    queue_id: int = 0,
    timeout_ms: int = 0,
    subscription: str = "*",
    group: str = "G",
) -> dict[str, str]:
    """Returns the header fields of a PULL_MESSAGE (11) with a subscription, which may be held if it has a timeout."""
    return {
        "consumerGroup": group,
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(offset),
        "maxMsgNums": "32",
        "sysFlag": "6" if timeout_ms else "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": str(timeout_ms),
        "subVersion": "0",
        "subscription": subscription,
        "expressionType": "TAG",
    }


def records_of(reply: Command) -> list[Record]:
    """Returns the messages in a pull's answer; raises AssertionError if a record is damaged."""
    body = memoryview(reply.body)
    records = []
    start = 0
    while start < len(body):
        (physical_offset,) = _PHYSICAL_OFFSET.unpack_from(body, start + 28)
        record = decode(body, start, len(body), physical_offset)
        assert isinstance(record, Record), record
        records.append(record)
        start += record.size
    return records


RECEIVE_SIZE: Final = 1 << 16
TRIES_MAX: Final = 200
"""How often a client tries to connect, every `RETRY_S`. If the broker does not return in this time, the run fails."""
RETRY_S: Final = 0.02
PATIENCE_MS: Final = 10_000.0
"""How many ms beyond its hold a client waits for an answer if the broker may be down."""


class ClientConnection(Protocol):
    """A connection to the broker, simulated or real."""

    def wait_readable(self, timeout_s: float) -> bool:
        """Wait until data or the end of the stream arrives; returns false after `timeout_s`."""
        ...

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        """Receive bytes into the buffer; returns 0 at the end of the stream."""
        ...

    def send(self, content: Buffer, /) -> int: ...

    def close(self) -> None: ...


@define(eq=False)
class SimulatedClient:
    """One client. Invariant: `_waiting` has exactly the unanswered requests of the current connection."""

    name: str
    runtime: Runtime
    connect: Callable[[], ClientConnection]
    """Opens a connection; raises OSError."""
    account: Checker
    topic: str = TOPIC
    tries_max: int = TRIES_MAX
    _socket: ClientConnection | None = None
    _connection: Connection = field(factory=Connection)
    _life: int = 0
    """The number of broker restarts before the client connected."""
    _opaque: int = 0
    _waiting: dict[int, Sent | Asked | Deletion] = field(factory=dict)
    _next: dict[int, int] = field(factory=dict)
    _buffer: bytearray = field(factory=lambda: bytearray(RECEIVE_SIZE))

    @property
    def now_ms(self) -> float:
        return self.runtime.monotonic_ns() / 1e6

    def live(self, acts: tuple[Act, ...]) -> Callable[[], None]:
        def run() -> None:
            for act in acts:
                self._do(act)
            self._leave()

        return run

    def read_whole(self, queues: Iterable[int]) -> None:
        """Read every queue from its beginning to its end, and check that all known messages are there."""
        for queue in queues:
            self._next[queue] = offset = 0
            while True:
                self._pull(Pull(queue, 0))
                self._wait(lambda: bool(self._waiting))
                if self._next[queue] == offset:
                    break
                offset = self._next[queue]
            self.account.read_whole(queue, offset)
        self._leave()

    def delete_topic(self) -> None:
        """Delete the topic, and wait for the answer."""
        self._connect()
        self.account.is_deleting = True
        self._write(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": self.topic}, b"", Deletion(self.now_ms))
        self._do(Wait())
        self._leave()

    def _do(self, act: Act) -> None:
        if isinstance(act, Pause):
            self._pause(self.now_ms + act.ms)
        elif isinstance(act, Leave):
            self._leave()
        elif isinstance(act, Pull):
            self._pull(act)
        elif isinstance(act, Send):
            self._send(act)
        else:
            self._wait(lambda: bool(self._waiting))

    def _pause(self, until_ms: float) -> None:
        """Let time pass until `until_ms`, and record answers that arrive meanwhile."""
        while (left_s := (until_ms - self.now_ms) / 1000) > 0:
            if self._socket is None:
                self.runtime.sleep(left_s)
            elif self._socket.wait_readable(left_s):
                self._read()

    # -- requests ----------------------------------------------------------------------------------------------------

    def _pull(self, act: Pull) -> None:
        self._connect()
        offset = self.account.end_of(act.queue) if act.from_end else self._next.get(act.queue, 0)
        fields = pull_fields(self.topic, offset, queue_id=act.queue, timeout_ms=act.hold_ms)
        asked = Asked(self.name, act.queue, offset, act.hold_ms, self.now_ms, self.account.life)
        self._write(RequestCode.PULL_MESSAGE, fields, b"", asked)

    def _send(self, act: Send) -> None:
        self._connect()
        mine = []
        for _ in range(act.count):
            body = f"{self.name}-{len(self.account.sent)}".encode()
            sent = Sent(act.queue, body, self.now_ms)
            self.account.sent.append(sent)
            mine.append(sent)
            self._write(RequestCode.SEND_MESSAGE_V2, send_fields(self.topic, act.queue), body, sent)
        self._wait(lambda: any(one in self._waiting.values() for one in mine))

    def _write(self, code: int, fields: dict[str, str], body: bytes, what: Sent | Asked | Deletion) -> None:
        if self._socket is None:
            return
        self._opaque += 1
        self._waiting[self._opaque] = what
        rest = b"".join(encode(Command(code, self._opaque, ext_fields=fields, body=body)))
        try:
            while rest:
                rest = rest[self._socket.send(rest) :]
        except OSError:
            self._lost()

    # -- answers -----------------------------------------------------------------------------------------------------

    def _wait(self, needed: Callable[[], bool]) -> None:
        """Read answers while `needed` is true. If the connection is lost, all its requests are lost."""
        while self._socket is not None and needed():
            # The wait is one millisecond longer each time, because the simulation's own time moves the deadline.
            if self._socket.wait_readable((max(self._until_ms() - self.now_ms, 0) + 1) / 1000):
                self._read()
            elif self.now_ms >= self._until_ms():
                self._missed()

    def _until_ms(self) -> float:
        """Returns the time in ms by which the first expected answer must arrive."""
        slack_ms = self.account.slack_ms + self.account.lag_ms + self.account.late_ms + 1
        holds = [one.sent_ms + (one.hold_ms if isinstance(one, Asked) else 0) for one in self._waiting.values()]
        patience_ms = slack_ms if self.now_ms < self.account.quiet_from_ms else PATIENCE_MS
        return max(min(holds), self.account.healed_ms) + patience_ms

    def _missed(self) -> None:
        now_ms = self.now_ms
        for one in self._waiting.values():
            if isinstance(one, Asked):
                self.account.unanswered(one, now_ms)
            elif isinstance(one, Sent) and now_ms > max(one.sent_ms, self.account.healed_ms) + self.account.slack_ms:
                raise BrokenError("unacknowledged", f"{self.name}: no answer to a send to queue {one.queue}")
        raise BrokenError("unanswered", f"{self.name}: {len(self._waiting)} requests have no answer")

    def _read(self) -> None:
        assert self._socket is not None
        try:
            size = self._socket.recv_into(self._buffer)
        except OSError:
            size = 0
        if not size:
            self._lost()
            return
        self._connection.receive_data(bytes(self._buffer[:size]))
        while isinstance(answer := self._connection.next_event(), Command):
            self._answered(answer)

    def _answered(self, answer: Command) -> None:
        what = self._waiting.pop(answer.opaque, None)
        if what is None:
            raise BrokenError("answered twice", f"{self.name}: request {answer.opaque} was not waiting")
        fields = answer.ext_fields or {}
        if isinstance(what, Deletion):
            self.account.deleted(answer.code, self.now_ms)
            return
        if isinstance(what, Sent):
            offset = fields.get("queueOffset")
            self.account.acknowledged(what, answer.code, None if offset is None else int(offset), self.now_ms)
            return
        records = records_of(answer) if answer.code == ResponseCode.SUCCESS else []
        offset_next = int(fields.get("nextBeginOffset", what.offset))
        self._next[what.queue] = self.account.pulled(what, answer.code, records, offset_next, self.now_ms)

    # -- the connection ----------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        for _ in range(self.tries_max):
            if self._socket is not None:
                return
            with suppress(OSError):
                self._socket = self.connect()
                self._connection, self._life = Connection(), self.account.life
                return
            self.runtime.sleep(RETRY_S)
        raise BrokenError("gone", f"{self.name} cannot connect to the broker any more")

    def _lost(self) -> None:
        """Close a lost connection and check that its open requests need no answer."""
        account = self.account
        if self._life == account.life and self.now_ms < account.quiet_from_ms and not account.may_cut:
            raise BrokenError("closed", f"{self.name}: the broker closed the connection")
        for one in self._waiting.values():
            if isinstance(one, Asked):
                account.left_alone(one, self._life)
        self._leave()

    def _leave(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._waiting.clear()
