"""One connection to a broker or name server: calls matched to answers by opaque, one-way sends, time-outs.

Any thread may call. A call writes at once on the caller's own thread; what the socket does not take is written by the
reader thread, which also receives, runs the callbacks and watches the deadlines.

Leaves out which broker to ask (`instance`) and what to say to it (`producer`, `consumer`).

Source: `NettyRemotingAbstract.java`, `NettyRemotingClient.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from longpoll_client.credentials import Credentials
from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_client.link.calls import Answer, Callback
from longpoll_client.link.exchange import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Exchange, Output, replied
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer
from longpoll_protocol.headers import Header
from longpoll_runtime import PARTS_MAX, Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing

log = logging.getLogger(__name__)

RECEIVE_SIZE: Final = 256 * 1024
# Longer than any deadline's own lateness: the reader thread ends every call, this only guards against its death.
GRACE_S: Final = 5.0


class RemotingClient:
    """A connection to `host:port`, open from construction to `close`.

    `on_request` gets what the peer asks of us (such as 40 NOTIFY_CONSUMER_IDS_CHANGED) on the reader thread and returns
    whether it knew the request; callbacks run there too, so neither may wait for an answer of this connection.
    Raises UnreachableError.

    Invariant: `_exchange` and `_output` change under `_lock`, but for what is received, which is the reader thread's;
    once the exchange has a failure nothing is added to them.
    """

    def __init__(
        self,
        runtime: Runtime,
        host: str,
        port: int,
        *,
        on_request: Callable[[Command], bool] | None = None,
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
        credentials: Credentials | None = None,
    ) -> None:
        self.address = f"{host}:{port}"
        self._runtime = runtime
        self._on_request = on_request
        self._lock = runtime.lock()
        self._exchange = Exchange(self.address, credentials)
        self._output = Output(self.address)
        try:
            self._socket = runtime.connect(host, port, connect_timeout_s)
        except OSError as error:
            raise UnreachableError(f"cannot connect to {self.address}: {error.strerror or error}") from None
        self._poller = runtime.poller()
        self._poller.register(self._socket, read=True, write=False, data=None)
        self._thread = runtime.spawn(f"client-{self.address}", self._run)

    @property
    def is_open(self) -> bool:
        """Whether calls can still be made."""
        with self._lock:
            return self._exchange.failure is None

    def call(
        self, code: int, header: Header | None = None, body: Buffer = EMPTY, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Command:
        """Ask and wait for the answer, whatever its code.

        Raises AnswerTimeoutError or ConnectionLostError; LocalProtocolError when the request cannot be written.
        """
        answered = self._runtime.event()
        answers: list[Answer] = []

        def receive(answer: Answer) -> None:
            answers.append(answer)
            answered.set()

        self.call_async(code, header, body, callback=receive, timeout_s=timeout_s)
        if not answered.wait(timeout_s + GRACE_S):
            raise AnswerTimeoutError(f"{self._exchange.name(code)}: no answer within {timeout_s:g} s")
        answer = answers[0]
        if isinstance(answer, ClientError):
            raise answer
        return answer

    def call_async(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = EMPTY,
        *,
        callback: Callback,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Ask; the callback gets the answer or the error, exactly once, on the reader thread.

        Raises ConnectionLostError or LocalProtocolError when nothing was sent; then the callback is not called.
        """
        now_ns = self._runtime.monotonic_ns()
        with self._lock:
            is_first = now_ns + int(timeout_s * 1e9) < (self._exchange.first_deadline_ns() or 2**63)
            opaque = self._exchange.begin(code, callback, now_ns, timeout_s)
            try:
                self._write(self._exchange.written(code, opaque, header, body, one_way=False))
            except LocalProtocolError:
                self._exchange.cancel(opaque)
                raise
            if is_first:
                self._poller.wake()

    def one_way(self, code: int, header: Header | None = None, body: Buffer = EMPTY) -> None:
        """Send without an answer; raises ConnectionLostError or LocalProtocolError."""
        with self._lock:
            opaque = self._exchange.one_way_opaque(code)
            self._write(self._exchange.written(code, opaque, header, body, one_way=True))

    def reply(self, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer a request of the peer's, from any thread; not one that wants none, nor once the connection is lost.

        Raises LocalProtocolError when too much waits to be sent.
        """
        buffers = replied(request, code, remark, body)
        with self._lock:
            if self._exchange.failure is None and buffers:
                self._write(buffers)

    def close(self) -> None:
        """Close the connection and end its thread; waiting calls get a ConnectionLostError.

        From a callback it ends once the callback is done.
        """
        with self._lock:
            if self._exchange.failure is None:
                reason = f"the connection to {self.address} was closed by this client"
                self._exchange.failure = ConnectionLostError(reason)
                self._poller.wake()
        if not self._thread.is_current():
            self._thread.join()

    # ------------------------------------------------------------ on the caller's thread, with the lock

    def _write(self, buffers: list[Buffer]) -> None:
        """Send what the socket takes and leave the rest to the reader thread; raises LocalProtocolError."""
        if self._output.add(buffers):
            self._flush()
            if self._output.parts:
                self._poller.modify(self._socket, read=True, write=True, data=None)

    def _flush(self) -> None:
        """Send as much of the output as the socket takes; a broken socket shows when it is read."""
        while self._output.parts:
            try:
                self._output.sent(self._socket.send_parts(self._output.first(PARTS_MAX)))
            except BlockingIOError:
                return
            except OSError:
                self._output.clear()

    # ------------------------------------------------------------ on the reader thread

    def _run(self) -> None:
        buffer = bytearray(RECEIVE_SIZE)
        failure: ClientError | None = None
        while failure is None:
            for _data, readable, writable in self._poller.poll(self._wait_s()):
                if writable:
                    self._flush_rest()
                if readable:
                    failure = self._receive(buffer) or failure
            self._expire()
            with self._lock:
                failure = failure or self._exchange.failure
        self._finish(failure)

    def _wait_s(self) -> float | None:
        with self._lock:
            deadline_ns = self._exchange.first_deadline_ns()
        return None if deadline_ns is None else max(0.0, (deadline_ns - self._runtime.monotonic_ns()) / 1e9)

    def _flush_rest(self) -> None:
        with self._lock:
            self._flush()
            if not self._output.parts:
                self._poller.modify(self._socket, read=True, write=False, data=None)

    def _receive(self, buffer: bytearray) -> ClientError | None:
        """Receive once and handle every whole command; why the connection ended, if it did."""
        try:
            size = self._socket.recv_into(buffer)
        except BlockingIOError:
            return None
        except OSError as error:
            return ConnectionLostError(f"the connection to {self.address} broke: {error.strerror or error}")
        if size == 0:
            return ConnectionLostError(f"{self.address} closed the connection")
        self._exchange.receive(memoryview(buffer)[:size], self._runtime.monotonic_ns())
        try:
            while (command := self._exchange.next_command()) is not None:
                self._handle(command)
        except ConnectionLostError as error:
            return error
        except FAULTS as error:
            log.exception("what %s sent could not be served", self.address)
            return ConnectionLostError(f"what {self.address} sent could not be served: {type(error).__name__}")
        return None

    def _handle(self, command: Command) -> None:
        if command.is_response:
            with self._lock:
                call = self._exchange.answered(command)
            if call is not None:
                self._exchange.tell(call, command)
            return
        is_known = False
        with KeepGoing(log, f"a request of {self.address} could not be served"):
            is_known = self._on_request is not None and self._on_request(command)
        if not is_known and not command.is_one_way:
            remark = f" request type {command.code} not supported"
            self.reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _expire(self) -> None:
        """End the calls whose deadline has come, and give the connection up if it is silent."""
        now_ns = self._runtime.monotonic_ns()
        with self._lock:
            expired = self._exchange.expire(now_ns)
        for call, error in expired:
            self._exchange.tell(call, error)

    def _finish(self, failure: ClientError) -> None:
        with self._lock:
            lost = self._exchange.lose(failure)
            self._output.clear()
            self._poller.unregister(self._socket)
            self._socket.close()
            self._poller.close()
        for call, error in lost:
            self._exchange.tell(call, error)
