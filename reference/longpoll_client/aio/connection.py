"""One connection to a broker or name server on an event loop. Writes of one loop iteration are sent together.

After a call is cancelled, its late answer is discarded. If a peer does not read, only the callers of its connection
wait.

`instance` chooses the broker, and `link.exchange` matches answers to calls.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, runtime_checkable

from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_client.link.exchange import (
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    OUTPUT_BYTES_MAX,
    Answer,
    Callback,
    Write,
    replied,
    wait_ns,
)
from longpoll_client.remoting import ConnectionCore
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.fast import plain
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_protocol.signature import Credentials
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS

log: logging.Logger = logging.getLogger(__name__)

WAITING_BYTES_MAX: Final = 1 * MIB
"""While more bytes than this wait for the operating system, new calls wait before they are written."""
BATCH_BYTES_MAX: Final = 64 * 1024
"""A buffer of this many bytes is sent at once, instead of together with the other writes of the loop iteration."""
CLOSE_TIMEOUT_S: Final = 1.0
"""How long a close waits for a peer that does not read or does not end TLS, seconds."""


@runtime_checkable
class _WriteTransport(Protocol):
    """The methods of a transport that a connection calls. uvloop's transport is not an `asyncio.Transport`."""

    def write(self, data: bytes, /) -> None: ...
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...
    def get_write_buffer_size(self) -> int: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...


class AsyncConnection(ConnectionCore, asyncio.Protocol):
    """A connection that only one event loop uses; no other thread may call its methods.

    Invariant: `_batch` is flushed in the current loop iteration or the next; `_timer` fires at or before the first
    deadline.
    """

    def __init__(
        self,
        runtime: Runtime,
        address: str,
        on_request: Callable[[Command], bool] | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """Call `open` instead of this constructor."""
        super().__init__(address, on_request, credentials)
        self._loop = asyncio.get_running_loop()
        self._now_ns = runtime.monotonic_ns
        self._transport: _WriteTransport | None = None
        self._batch: list[Buffer] = []
        self._batch_size = 0
        self._is_flushing = False
        self._is_paused = False
        self._waiting: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._ended: asyncio.Future[None] = self._loop.create_future()

    @classmethod
    async def open(
        cls,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        on_request: Callable[[Command], bool] | None = None,
        credentials: Credentials | None = None,
    ) -> AsyncConnection:
        """Connect, over TLS if the runtime has a TLS context; raises UnreachableError.

        `on_request` has the same meaning as for `RemotingClient`.
        """
        address = f"{host}:{port}"
        made = cls(runtime, address, on_request, credentials)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await made._loop.create_connection(lambda: made, host, port, ssl=runtime.client_tls)
        except TimeoutError:
            raise UnreachableError(f"cannot connect to {address}: timed out") from None
        except OSError as error:
            # The text of asyncio's error repeats the address and does not name the reason.
            why = "Connection refused" if isinstance(error, ConnectionRefusedError) else error.strerror or error
            raise UnreachableError(f"cannot connect to {address}: {why}") from None
        return made

    @property
    def is_open(self) -> bool:
        """Whether calls can still be made."""
        return self._exchange.failure is None

    @property
    def has_room(self) -> bool:
        """Whether the peer reads, so that a call is written without waiting."""
        return not self._is_paused

    async def call(
        self, code: int, header: Header | None = None, body: Buffer = EMPTY, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Command:
        """Send a request and wait for its answer, whatever the answer's code is.

        Raises AnswerTimeoutError or ConnectionLostError, and LocalProtocolError if the request cannot be written.
        """
        return plain(await self.ask(code, self.writer(code, header, body), timeout_s))

    async def ask(self, code: int, write: Write, timeout_s: float) -> Command:
        """Send a request that the caller's `write` encodes, and wait for its answer; raises the errors of `call`."""
        if self._is_paused:
            timeout_s = await self._room(code, timeout_s)
        future: asyncio.Future[Answer] = self._loop.create_future()
        opaque = self.begin(code, write, partial(_settle, future), timeout_s)
        try:
            answer = await future
        except asyncio.CancelledError:
            if self.is_open:
                self._exchange.abandon(opaque, self._now_ns())
                self._look_at_failure()
            raise
        if isinstance(answer, ClientError):
            raise answer
        return answer

    async def one_way(self, code: int, header: Header | None = None, body: Buffer = EMPTY) -> None:
        """Send a request that gets no answer.

        Raises ConnectionLostError, LocalProtocolError, or AnswerTimeoutError if the peer does not read.
        """
        if self._is_paused:
            await self._room(code, CALL_TIMEOUT_S)
        opaque = self._exchange.one_way_opaque(code)
        self._write(self._exchange.written(code, opaque, header, body, one_way=True))

    def reply(self, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """See `ConnectionCore.reply`."""
        buffers = replied(request, code, remark, body)
        if buffers and self.is_open:
            self._write(buffers)

    async def close(self) -> None:
        """Close the connection, and return when the socket is closed. Waiting calls get a ConnectionLostError."""
        if self.is_open:
            self._flush()
            self._lose(ConnectionLostError(f"the connection to {self.address} was closed by this client"))
        if self._transport is not None:
            self._transport.close()
            try:
                await asyncio.wait([self._ended], timeout=CLOSE_TIMEOUT_S)
            finally:
                self._transport.abort()
            await asyncio.wait([self._ended])

    def cut(self) -> asyncio.Future[None]:
        """Close the connection at once and drop unsent bytes. Returns a future that ends when the socket is closed."""
        if self.is_open:
            self._give_up(ConnectionLostError(f"the connection to {self.address} was closed by this client"))
        return self._ended

    # ------------------------------------------------------------ writing

    def begin(self, code: int, write: Write, callback: Callback, timeout_s: float) -> int:
        """Send a request that the caller's `write` encodes, and return its opaque; `callback` gets the answer."""
        now_ns = self._now_ns()
        exchange = self._exchange
        opaque = exchange.ask(code, callback, now_ns, timeout_s, write, self._write)
        due_ns = exchange.calls.due_ns
        if self._timer is None or (due_ns is not None and due_ns < self._timer_ns):
            self._set_timer(now_ns)
        return opaque

    def _write(self, buffers: list[Buffer]) -> None:
        """Queue the buffers to be sent in this loop iteration; raises LocalProtocolError if too many bytes wait."""
        assert self._transport is not None, "it is not connected"
        size = sum(map(len, buffers))
        if self._is_paused:
            waiting = self._transport.get_write_buffer_size() + self._batch_size
            if waiting + size > OUTPUT_BYTES_MAX:
                raise LocalProtocolError(f"{self.address} does not read; {waiting} bytes are waiting")
        self._batch += buffers
        self._batch_size += size
        if self._batch_size > BATCH_BYTES_MAX or self._exchange.is_alone:
            # If no other request is pending, the caller waits for this answer, and no other write can join this one.
            self._flush()
        elif not self._is_flushing:
            self._is_flushing = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flushing = False
        if not self._batch or self._transport is None:
            return
        batch, self._batch, self._batch_size = self._batch, [], 0
        self._transport.write(b"".join(batch))

    async def _room(self, code: int, timeout_s: float) -> float:
        """Wait until the peer reads; return the seconds left. Raises AnswerTimeoutError and ConnectionLostError."""
        deadline_ns = self._now_ns() + wait_ns(timeout_s)
        while self._is_paused:
            self._exchange.check_open(code)
            waiting = self._loop.create_future()
            self._waiting.add(waiting)
            left_s = (deadline_ns - self._now_ns()) / 1e9
            try:
                done, _pending = await asyncio.wait([waiting], timeout=max(0.0, left_s))
            finally:
                self._waiting.discard(waiting)
            if not done:
                raise AnswerTimeoutError(f"{self._exchange.name(code)}: {self.address} does not read")
        return (deadline_ns - self._now_ns()) / 1e9

    # ------------------------------------------------------------ asyncio's own calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that the connection is open."""
        assert isinstance(transport, _WriteTransport), "a loop's transport writes bytes"
        self._transport = transport
        transport.set_write_buffer_limits(high=WAITING_BYTES_MAX)

    def pause_writing(self) -> None:
        """Note that the peer does not read, so that calls wait."""
        self._is_paused = True

    def resume_writing(self) -> None:
        """Note that the peer reads again, and wake the waiting calls."""
        self._is_paused = False
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_result(None)

    def data_received(self, data: bytes) -> None:
        """Handle every complete command of the received bytes."""
        exchange = self._exchange
        if exchange.failure is not None:
            return
        exchange.receive(data, self._now_ns())
        try:
            for sent in self._received.next_sent():
                if (call := exchange.answered(sent)) is not None:
                    exchange.tell(call, sent)
            while (command := exchange.next_command()) is not None:
                if not command.is_response:
                    self._requested(command)
                elif (call := exchange.answered(command)) is not None:
                    exchange.tell(call, command)
        except ConnectionLostError as error:
            self._give_up(error)
        except FAULTS as error:
            log.exception("what %s sent could not be served", self.address)
            self._give_up(ConnectionLostError(f"the request of {self.address} failed: {type(error).__name__}"))
        # Send the requests that the answers caused (mostly the next pulls) before a listener takes time for the
        # messages.
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the socket is closed."""
        if self.is_open:
            why = f"the connection to {self.address} broke: {exc}" if exc else f"{self.address} closed the connection"
            self._lose(ConnectionLostError(why))
        if not self._ended.done():
            self._ended.set_result(None)

    # ------------------------------------------------------------ what ends

    def _set_timer(self, now_ns: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ns = self._exchange.calls.due_ns
        if due_ns is not None:
            self._timer_ns = due_ns
            self._timer = self._loop.call_later(max(0.0, (due_ns - now_ns) / 1e9), self._expire)

    def _expire(self) -> None:
        now_ns = self._now_ns()
        self._timer = None
        expired = self._exchange.expire(now_ns)
        for call, error in expired:
            self._exchange.tell(call, error)
        if not self._look_at_failure():
            self._set_timer(now_ns)

    def _look_at_failure(self) -> bool:
        """Close the connection and return true if the exchange has found a failure, such as a silent peer."""
        if self._exchange.failure is None:
            return False
        self._give_up(self._exchange.failure)
        return True

    def _give_up(self, failure: ClientError) -> None:
        self._lose(failure)
        if self._transport is not None:
            self._transport.abort()

    def _lose(self, failure: ClientError) -> None:
        for call, error in self._exchange.lose(failure):
            self._exchange.tell(call, error)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._batch, self._batch_size = [], 0
        self.resume_writing()


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    """Give an answer to its waiting call, unless the call was cancelled in this loop iteration."""
    if not future.done():
        future.set_result(answer)
