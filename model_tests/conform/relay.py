"""A relay in front of a correct broker that changes the broker's answers, to inject wire faults.

The relay parses frames with `longpoll_conform.wire` and knows nothing else of the broker. The relay injects one fault
at a time and passes all other bytes unchanged.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import math
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from attrs import define, field
from model_tests.support.broker.brokers import SMALL_STORE

from longpoll_broker.broker import Broker
from longpoll_conform.connection import Address, Echo
from longpoll_conform.wire import NotReadableError, decode_command, encode_command
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.services import Closeable
from longpoll_spec.policy import Policy

Told = Sequence[tuple[float, bytes]]
"""Pairs of a delay in seconds and the bytes that the client gets after it; b"" closes the connection.

Other frames may overtake delayed frames."""
Fault = Callable[["Asked", dict[str, Any], bytes], Told | None]
"""A function of a request and of the frame that answers it (or of a push), which returns what the client gets instead.

If the function returns None, the frame stays unchanged."""
SIZE: Final = 1 << 16


@define
class Asked:
    command: Mapping[str, Any]
    relay: Relay


@define
class Early:
    """An answer that the relay sends at once.

    The relay passes the request on after `after_s` seconds, or never if `after_s` is None.
    """

    answer: bytes
    after_s: float | None


@define(eq=False)
class _Side:
    end: socket.socket
    _writing: threading.Lock = field(factory=threading.Lock)

    def send(self, content: bytes) -> None:
        with self._writing:
            if content:
                self.end.sendall(content)
            else:
                self.end.shutdown(socket.SHUT_RDWR)


@define(eq=False)
class Relay(Closeable):
    broker: Address
    fault: Fault
    spoil_request: Callable[[dict[str, Any]], bytes | Early | None] = lambda _command: None
    """A function of a request that returns the bytes to send to the broker; None passes the request unchanged."""
    delay_s: float = 0.0
    """The delay of every frame in either direction, in seconds."""
    idle_s: float | None = None
    """A connection is closed after this time without a frame, in seconds."""
    kept: dict[str, Any] = field(factory=dict)
    spoiled: int = 0
    """The number of changed frames."""
    _over: threading.Event = field(factory=threading.Event)
    _later: list[tuple[float, int, _Side, bytes]] = field(factory=list)
    _moved: threading.Condition = field(factory=threading.Condition)
    _numbers: Iterator[int] = field(factory=itertools.count)
    _listener: socket.socket = field(init=False)
    _sockets: list[socket.socket] = field(factory=list)
    _threads: list[threading.Thread] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._spawn(self._accept)
        self._spawn(self._pass_later)

    @property
    def address(self) -> Address:
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def close(self) -> None:
        self._over.set()
        with self._moved:
            self._moved.notify_all()
        for each in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5)

    def _spawn(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                near, _peer = self._listener.accept()
                far = socket.create_connection(self.broker)
            except OSError:
                return
            self._sockets += [near, far]
            sides = _Side(near), _Side(far)
            asked: dict[int, Mapping[str, Any]] = {}
            self._spawn(partial(self._up, *sides, asked))
            self._spawn(partial(self._down, *sides, asked))

    def _up(self, near: _Side, far: _Side, asked: dict[int, Mapping[str, Any]]) -> None:
        with _until_closed(far.end):
            for frame in self._frames(near, far):
                try:
                    command = decode_command(frame[4:])
                except NotReadableError:
                    self._tell(far, [(0.0, frame)])
                    continue
                instead = self.spoil_request(command)
                self.spoiled += instead is not None
                if isinstance(instead, Early):
                    self._tell(near, [(0.0, instead.answer)])
                    asked[command["opaque"]] = {"code": None}
                    if instead.after_s is not None:
                        self._tell(far, [(instead.after_s, frame)])
                    continue
                asked[command["opaque"]] = command
                self._tell(far, [(0.0, frame if instead is None else instead)])

    def _down(self, near: _Side, far: _Side, asked: Mapping[int, Mapping[str, Any]]) -> None:
        with _until_closed(near.end):
            for frame in self._frames(far, near):
                try:
                    command = decode_command(frame[4:])
                except NotReadableError:
                    self._tell(near, [(0.0, frame)])
                    continue
                request = asked.get(command["opaque"], {})
                if request == {"code": None}:
                    continue
                instead = self.fault(Asked(request, self), command, frame)
                self.spoiled += instead is not None
                if not self._tell(near, [(0.0, frame)] if instead is None else instead):
                    return
            with self._moved:
                self._moved.wait_for(lambda: self._over.is_set() or all(each[2] is not near for each in self._later))

    def _tell(self, side: _Side, told: Told) -> bool:
        for after_s, content in told:
            if after_s or self.delay_s:
                with self._moved:
                    due_s = time.monotonic() + after_s + self.delay_s
                    heapq.heappush(self._later, (due_s, next(self._numbers), side, content))
                    self._moved.notify_all()
            elif not content:
                return False
            else:
                side.send(content)
        return True

    def _pass_later(self) -> None:
        while not self._over.is_set():
            with self._moved:
                due_s = self._later[0][0] if self._later else None
                if due_s is None or due_s > time.monotonic():
                    self._moved.wait(None if due_s is None else due_s - time.monotonic())
                    continue
                _due_s, _number, side, content = self._later[0]
                with contextlib.suppress(OSError):
                    side.send(content)
                heapq.heappop(self._later)
                self._moved.notify_all()

    def _frames(self, source: _Side, sink: _Side) -> Iterator[bytes]:
        source.end.settimeout(self.idle_s)
        return _frames(source, sink)


@contextmanager
def running(policy: Policy) -> Iterator[Broker]:
    with (
        tempfile.TemporaryDirectory() as store,
        Broker.start(RealRuntime(), store, policy=policy, store_config=SMALL_STORE) as broker,
    ):
        yield broker


@contextmanager
def _until_closed(other: socket.socket) -> Iterator[None]:
    try:
        with contextlib.suppress(OSError):
            yield
    finally:
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def _frames(source: _Side, sink: _Side) -> Iterator[bytes]:
    """Yield the complete frames in the bytes. Bytes that form no frame are passed on with all bytes after them."""
    waiting = b""
    while True:
        part = source.end.recv(SIZE)
        if not part:
            if waiting:
                sink.send(waiting)
            return
        waiting += part
        while len(waiting) >= 4:
            (size,) = struct.unpack_from(">i", waiting)
            if not 4 <= size <= 16 << 20:
                sink.send(waiting)
                waiting = b""
                break
            if len(waiting) < 4 + size:
                break
            frame, waiting = waiting[: 4 + size], waiting[4 + size :]
            yield frame


@define
class Latency(Echo):
    worst: float

    def worst_ms(self, since_s: float = 0.0, until_s: float = math.inf) -> float:
        assert 0 <= since_s <= until_s
        return self.worst

    def usual_ms(self) -> float:
        return self.worst


# -- faults ----------------------------------------------------------------------------------------------------------


def again(command: Mapping[str, Any], **changed: Any) -> bytes:
    return encode_command({**command, **changed}, command["serialize"])


def answers(code: int, change: Callable[[dict[str, Any]], dict[str, Any] | None]) -> Fault:
    """Return a fault that changes the answers to requests with this code, unless `change` returns None."""

    def fault(asked: Asked, command: dict[str, Any], _frame: bytes) -> Told | None:
        if asked.command.get("code") != code or not command["flag"] & 1:
            return None
        changed = change(dict(command))
        return None if changed is None else [(0.0, again(changed))]

    return fault


def field_of(code: int, name: str, change: Callable[[str], str | None]) -> Fault:
    """Return a fault that changes an extension field of the answers to requests with this code.

    If `change` returns None, the field is removed.
    """

    def changed(command: dict[str, Any]) -> dict[str, Any] | None:
        fields = dict(command["extFields"] or {})
        if name not in fields:
            return None
        value = change(fields[name])
        fields = {each: text for each, text in fields.items() if each != name}
        return {**command, "extFields": fields if value is None else {**fields, name: value}}

    return answers(code, changed)


def plus(number: int) -> Callable[[str], str]:
    return lambda text: str(int(text) + number)


def recoded(code: int, from_code: int, to_code: int) -> Fault:
    return answers(code, lambda command: {**command, "code": to_code} if command["code"] == from_code else None)


def body_of(code: int, change: Callable[[bytearray], bytes | bytearray]) -> Fault:
    return answers(
        code,
        lambda command: {**command, "body": bytes(change(bytearray(command["body"])))} if command["body"] else None,
    )


def at(place: int, number: int, size: int = 1) -> Callable[[bytearray], bytearray]:
    def change(body: bytearray) -> bytearray:
        value = int.from_bytes(body[place : place + size]) + number
        body[place : place + size] = (value % (1 << 8 * size)).to_bytes(size)
        return body

    return change


def whole(code: int, tell: Callable[[bytes], Told], *, when: int | None = None) -> Fault:
    """Return a fault that replaces the answers to requests with this code.

    With `when` it replaces only answers with this response code.
    """

    def fault(asked: Asked, command: dict[str, Any], frame: bytes) -> Told | None:
        fits = asked.command.get("code") == code and command["flag"] & 1 and when in {None, command["code"]}
        return tell(frame) if fits else None

    return fault
