"""One connection to a broker or name server: calls matched to answers by opaque, one-way sends, time-outs.

Any thread may call. Writing takes a caller longer than all else, and lets the other threads in between. So a call
writes on the caller's own thread only while few others wait for answers; where many do, and while the reader thread is
at work anyway, that one sends at once what has gathered. It also receives, runs the callbacks, and ends what is late.

Leaves out which broker to ask (`instance`) and what to say to it (`producer`, `consumer`).

Source: `NettyRemotingAbstract.java`, `NettyRemotingClient.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

from longpoll_client.credentials import Credentials
from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_client.link.calls import Answer, Callback, Write
from longpoll_client.link.exchange import CALL_TIMEOUT_S, CONNECT_TIMEOUT_S, Exchange, Output, replied
from longpoll_client.link.waits import wait_ns
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer
from longpoll_protocol.headers import Header
from longpoll_runtime import PARTS_MAX, Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing
from longpoll_spec.errors import ConfigError

log = logging.getLogger(__name__)

RECEIVE_SIZE: Final = 256 * 1024
SLEEP_S_MAX: Final = 3600.0
"""The longest sleep of a reader thread that has a deadline to keep: a poller takes no more than 24 days."""
ALONE_COUNT_MAX: Final = 4
"""While more calls than this wait for answers, a caller leaves its bytes to the reader thread."""
# Longer than any deadline's own lateness: the reader thread ends every call, this only guards against its death.
GRACE_S: Final = 5.0


class RemotingClient:
    """A connection to `host:port`, open from construction to `close`.

    `on_request` gets what the peer asks of us (such as 40 NOTIFY_CONSUMER_IDS_CHANGED) on the reader thread and returns
    whether it knew the request; callbacks run there too, so neither may wait for an answer of this connection.
    Raises UnreachableError.

    Invariant, under `_lock`, but for what is received, which is the reader thread's: once the exchange has a failure
    nothing is added to it or to `_output`. While the reader thread sleeps (`_is_awake` is false) `_output` is empty, or
    the socket is full and its room waited for (`_is_full`), or the thread is being woken; and it wakes at `_due_ns`, at
    or before the first deadline.
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
        self._is_full = False
        self._is_awake = True
        self._due_ns: int | None = None
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
        return self.ask(code, self.writer(code, header, body), timeout_s)

    def writer(self, code: int, header: Header | None, body: Buffer) -> Write:
        """What writes a request, signed if this client has credentials."""
        return lambda opaque: self._exchange.written(code, opaque, header, body, one_way=False)

    def ask(self, code: int, write: Write, timeout_s: float) -> Command:
        """The same with a request that the caller writes.

        Raises ConfigError in a callback, on the reader thread: the answer would have to come by that thread.
        """
        if self._thread.is_current():
            raise ConfigError(f"{self._exchange.name(code)}: a callback cannot wait for an answer, so do it elsewhere")
        answered = self._runtime.event()
        answers: list[Answer] = []

        def receive(answer: Answer) -> None:
            answers.append(answer)
            answered.set()

        self.begin(code, write, receive, timeout_s)
        if not answered.wait(wait_ns(timeout_s) / 1e9 + GRACE_S):
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
        self.begin(code, self.writer(code, header, body), callback, timeout_s)

    def begin(self, code: int, write: Write, callback: Callback, timeout_s: float) -> None:
        """The same with a request that the caller writes."""
        now_ns = self._runtime.monotonic_ns()
        with self._lock:
            self._exchange.ask(code, callback, now_ns, timeout_s, lambda opaque: self._write(write(opaque)))
            deadline_ns = now_ns + wait_ns(timeout_s)
            if self._due_ns is None or deadline_ns < self._due_ns:
                self._due_ns = deadline_ns
                if not self._is_awake:
                    self._poller.wake()

    @property
    def is_signed(self) -> bool:
        """Whether its requests are signed, so that they are written by `writer` alone."""
        return self._exchange.is_signed

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
                if not self._is_full:
                    self._flush()
                reason = f"the connection to {self.address} was closed by this client"
                self._exchange.failure = ConnectionLostError(reason)
                self._poller.wake()
        if not self._thread.is_current():
            self._thread.join()

    # ------------------------------------------------------------ on the caller's thread, with the lock

    def _write(self, buffers: list[Buffer]) -> None:
        """Send what the socket takes, or have the reader thread do it; raises LocalProtocolError."""
        if not self._output.add(buffers) or self._is_awake:
            # Whoever was first has seen to it, or the reader thread does before it sleeps.
            return
        if len(self._exchange.calls.pending) > ALONE_COUNT_MAX:
            self._poller.wake()
        else:
            self._send_output()

    def _send_output(self) -> None:
        """Send what the socket takes; for the rest wait until it has room."""
        self._flush()
        if bool(self._output.parts) != self._is_full:
            self._is_full = not self._is_full
            self._poller.modify(self._socket, read=True, write=self._is_full, data=None)

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
            ready = self._poller.poll(self._fall_asleep())
            self._wake_up(is_writable=any(writable for _data, _readable, writable in ready))
            for _data, readable, _writable in ready:
                if readable:
                    failure = self._receive(buffer) or failure
            self._expire()
            with self._lock:
                failure = failure or self._exchange.failure
        self._finish(failure)

    def _fall_asleep(self) -> float | None:
        """Send what others have left; how long there is nothing to do, in seconds."""
        with self._lock:
            if self._output.parts and not self._is_full:
                self._send_output()
            self._is_awake = False
            due_ns = self._due_ns
        return None if due_ns is None else min(max(0.0, (due_ns - self._runtime.monotonic_ns()) / 1e9), SLEEP_S_MAX)

    def _wake_up(self, *, is_writable: bool) -> None:
        with self._lock:
            self._is_awake = True
            if is_writable:
                self._send_output()

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
            self._handle_all()
        except ConnectionLostError as error:
            return error
        except FAULTS as error:
            log.exception("what %s sent could not be served", self.address)
            return ConnectionLostError(f"what {self.address} sent could not be served: {type(error).__name__}")
        return None

    def _handle_all(self) -> None:
        """Handle every whole command, in order; raises ConnectionLostError after those that are."""
        answers: list[Command] = []
        try:
            while (command := self._exchange.next_command()) is not None:
                if command.is_response:
                    answers.append(command)
                else:
                    self._answered(answers)
                    answers = []
                    self._requested(command)
        finally:
            self._answered(answers)

    def _answered(self, answers: Sequence[Command]) -> None:
        """Tell who asked."""
        with self._lock:
            ended = [(self._exchange.answered(answer), answer) for answer in answers]
        for call, answer in ended:
            if call is not None:
                self._exchange.tell(call, answer)

    def _requested(self, command: Command) -> None:
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
            if self._due_ns is None or now_ns < self._due_ns:
                return
            expired = self._exchange.expire(now_ns)
            self._due_ns = self._exchange.first_deadline_ns()
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
