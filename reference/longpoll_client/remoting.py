"""One connection to a broker or name server, which matches answers to calls and ends late calls.

Any thread may call. A write costs a caller more than everything else in a call, and lets other threads run. Therefore a
caller's own thread writes only while few calls wait for answers. While many calls wait, or while the reader thread is
awake anyway, the reader thread sends all gathered requests at once. The reader thread also receives answers, runs
callbacks, and ends late calls.

`instance` chooses the broker; `producer` and `consumer` make the requests.

Source: `NettyRemotingAbstract.java`, `NettyRemotingClient.java`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from attrs import define

from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_client.link.exchange import (
    CALL_TIMEOUT_S,
    CONNECT_TIMEOUT_S,
    Answer,
    Callback,
    Exchange,
    Output,
    PendingCall,
    Write,
    replied,
    wait_ns,
)
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.fast import SentAnswer, SentConnection, header_of, plain, with_fields
from longpoll_protocol.frames import EMPTY, Buffer, Command
from longpoll_protocol.headers import Header
from longpoll_protocol.signature import Credentials
from longpoll_runtime import PARTS_MAX, Event, Runtime
from longpoll_runtime.recoverable import ANYTHING, FAULTS, KeepGoing, KeepThread
from longpoll_spec.errors import ConfigError

log: logging.Logger = logging.getLogger(__name__)

RECEIVE_SIZE: Final = 256 * 1024
ALONE_COUNT_MAX: Final = 4
"""While more calls than this wait for answers, the reader thread sends a caller's bytes."""
# Longer than any delay of a deadline. The reader thread ends every call; this limit only guards against the thread's
# death.
GRACE_S: Final = 5.0
GATHER_S: Final = 0.000_03
"""How long the reader thread sleeps after answers to sends while many calls wait; the system adds about 50 µs."""
LOCK_WAIT_S: Final = 0.5
"""How long to wait for the lock, seconds. Other threads hold the lock only for microseconds."""
SLEEP_S_MAX: Final = 3600.0
"""The longest sleep until a deadline, seconds, because a poller accepts at most 24 days."""

Received: TypeAlias = tuple[list[Command], ClientError | None]
"""The received frames, and the reason why reading ended, if it did."""


@define(slots=True, eq=False)
class _Waiting:
    """A caller that waits for its answer. `answered` exists once the caller waits for another thread to set it."""

    answer: Answer | None = None
    answered: Event | None = None

    def receive(self, answer: Answer) -> None:
        self.answer = answer
        # The waiter creates the event before it looks for the answer, so either the waiter sees the answer or this
        # thread sees the event.
        if self.answered is not None:
            self.answered.set()


class ConnectionCore(ABC):
    """The parts that connections on threads and on an event loop share.

    `on_request` gets the peer's requests (such as 40 NOTIFY_CONSUMER_IDS_CHANGED), and returns whether it knew the
    request. `on_request` and callbacks must not wait for an answer of this connection.
    """

    _keeps: type[KeepGoing] = KeepGoing

    def __init__(
        self, address: str, on_request: Callable[[Command], bool] | None, credentials: Credentials | None
    ) -> None:
        self.address: str = address
        self._on_request = on_request
        self._received = SentConnection()
        self._exchange = Exchange(address, credentials, self._received)

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed, in which case only `writer` can encode them."""
        return self._exchange.is_signed

    def writer(self, code: int, header: Header | None, body: Buffer) -> Write:
        """Return the function that encodes a request, and signs it if this client has credentials."""
        return lambda opaque: self._exchange.written(code, opaque, header, body, one_way=False)

    def call_async(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = EMPTY,
        *,
        callback: Callback,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> None:
        """Send a request; `callback` gets the answer or the error, once.

        The callback runs on the reader thread, or in a later loop iteration. Raises ConnectionLostError or
        LocalProtocolError if nothing was sent; then the callback is not called.
        """
        self.begin(code, self.writer(code, header, body), with_fields(callback), timeout_s)

    @abstractmethod
    def begin(self, code: int, write: Write, callback: Callback, timeout_s: float) -> object:
        """Send a request that the caller's `write` encodes; `callback` gets the answer or the error once."""

    @abstractmethod
    def reply(self, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer a request of the peer, unless the request is one-way or the connection is lost.

        Raises LocalProtocolError if too many bytes wait to be sent.
        """

    def _requested(self, command: Command) -> None:
        is_known = False
        with self._keeps(log, f"a request of {self.address} could not be served"):
            is_known = self._on_request is not None and self._on_request(command)
        if not is_known:
            remark = f" request type {command.code} not supported"
            self.reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)


class RemotingClient(ConnectionCore):
    """A connection to `host:port`, open from construction to `close`.

    The reader thread runs `on_request` and callbacks. The constructor raises UnreachableError.

    Invariant, under `_lock` (only the reader thread uses received bytes): once the exchange has a failure, nothing is
    added to it or to `_output`. While the reader thread sleeps (`_is_awake` is false), `_output` is empty, or the
    poller waits for room in the socket (`_is_full`), or the thread is being woken. The thread wakes at `_due_ns`, at or
    before the first deadline.
    """

    _keeps = KeepThread
    sent_header = staticmethod(header_of)
    """Returns the fields of an answer to a send that this connection received; raises HeaderError."""

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
        super().__init__(f"{host}:{port}", on_request, credentials)
        self._runtime = runtime
        self._now_ns = runtime.monotonic_ns
        self._process_id = runtime.process_id()
        self._lock = runtime.lock()
        self._output = Output(self.address)
        self._is_full = False
        self._is_awake = True
        self._is_abandoned = False
        self._is_running = self._is_given_up = False
        self._due_ns: int | None = None
        self._buffer = bytearray(RECEIVE_SIZE)
        self._whole = memoryview(self._buffer)
        self._is_waited_for = False
        """Whether who made the last call waits for its answer."""
        try:
            self._socket = runtime.connect(host, port, connect_timeout_s)
        except OSError as error:
            raise UnreachableError(f"cannot connect to {self.address}: {error.strerror or error}") from None
        try:
            self._poller = runtime.poller()
        except OSError as error:
            self._socket.close()
            raise self._unservable(error) from None
        try:
            self._poller.register(self._socket, read=True, write=False, data=None)
            self._thread = runtime.spawn(f"client-{self.address}", self._run)
        except (OSError, RuntimeError) as error:
            self._give_up_start()
            raise self._unservable(error) from None
        except ANYTHING:
            self._give_up_start()
            raise

    def _give_up_start(self) -> None:
        """Close the connection after a failed start, or make the reader thread close it if that thread already runs."""
        with self._lock:
            self._is_given_up = True
            if not self._is_running:
                self._socket.close()
                self._poller.close()
                return
            self._exchange.failure = ConnectionLostError(f"connecting to {self.address} was interrupted")
        self._poller.wake()

    def _unservable(self, error: Exception) -> UnreachableError:
        """Return the error of a connection for which no descriptor or thread is left."""
        return UnreachableError(f"a connection to {self.address} cannot be served: {error}")

    @property
    def is_open(self) -> bool:
        """Whether this process can make calls.

        A forked child needs its own connection, because it has no reader thread, and on the shared socket it would take
        answers to its parent's calls.
        """
        return self._exchange.failure is None and self._process_id == self._runtime.process_id()

    def call(
        self, code: int, header: Header | None = None, body: Buffer = EMPTY, *, timeout_s: float = CALL_TIMEOUT_S
    ) -> Command:
        """Send a request and wait for its answer, whatever the answer's code is.

        Raises AnswerTimeoutError or ConnectionLostError, and LocalProtocolError if the request cannot be written.
        """
        return plain(self.ask(code, self.writer(code, header, body), timeout_s))

    def ask(self, code: int, write: Write, timeout_s: float) -> Command:
        """Send a request that the caller's `write` encodes, and wait for its answer.

        Raises the errors of `call`, and ConfigError in a callback, because the reader thread would wait for itself.
        """
        if self._thread.is_current():
            raise ConfigError(
                f"{self._exchange.name(code)}: a callback cannot wait for an answer; do it in another thread"
            )
        waiting = _Waiting()
        self.begin(code, write, waiting.receive, timeout_s, is_waited_for=True)
        if waiting.answer is None:
            waiting.answered = self._runtime.event()
            if waiting.answer is None and not waiting.answered.wait(wait_ns(timeout_s) / 1e9 + GRACE_S):
                raise AnswerTimeoutError(f"{self._exchange.name(code)}: no answer within {timeout_s:g} s")
        told = waiting.answer
        assert told is not None, "who has set the event has set the answer before"
        if isinstance(told, ClientError):
            raise told
        return told

    def begin(
        self, code: int, write: Write, callback: Callback, timeout_s: float, *, is_waited_for: bool = False
    ) -> None:
        """Send a request that the caller's `write` encodes. If `is_waited_for`, the caller waits for the answer."""
        if self._process_id != self._runtime.process_id():
            raise ConnectionLostError(
                f"{self._exchange.name(code)}: the connection belongs to the parent process of a fork"
            )
        try:
            with self._lock:
                self._begin_now(code, write, callback, timeout_s, is_waited_for)
        except FAULTS:
            raise
        except ANYTHING:
            # After an interruption (Ctrl-C), half of a request may have been sent, so the connection ends.
            with self._lock:
                if self._exchange.failure is None:
                    self._exchange.failure = ConnectionLostError(f"a call to {self.address} was interrupted")
                    self._poller.wake()
            raise

    def _begin_now(self, code: int, write: Write, callback: Callback, timeout_s: float, is_waited_for: bool) -> None:
        self._exchange.ask(code, callback, self._now_ns(), timeout_s, write, self._write)
        due_ns = self._exchange.calls.due_ns
        if self._due_ns is None or (due_ns is not None and due_ns < self._due_ns):
            self._due_ns = due_ns
            if not self._is_awake:
                self._poller.wake()
        self._is_waited_for = is_waited_for

    def one_way(self, code: int, header: Header | None = None, body: Buffer = EMPTY) -> None:
        """Send a request that gets no answer; raises ConnectionLostError or LocalProtocolError."""
        with self._lock:
            opaque = self._exchange.one_way_opaque(code)
            self._write(self._exchange.written(code, opaque, header, body, one_way=True))

    def reply(self, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """See `ConnectionCore.reply`. Any thread may call this method."""
        buffers = replied(request, code, remark, body)
        with self._lock:
            if self._exchange.failure is None and buffers:
                self._write(buffers)

    def close(self) -> None:
        """Close the connection and end its thread; waiting calls get a ConnectionLostError.

        If a callback calls this method, the thread ends after the callback. A forked process closes only its own
        descriptor of the socket.
        """
        if self._process_id != self._runtime.process_id():
            # After a fork, the parent process sends the waiting bytes, and the lock may be held by a thread that does
            # not exist here.
            self._socket.close()
            return
        with self._lock:
            if self._exchange.failure is None:
                if not self._is_full:
                    self._flush()
                reason = f"the connection to {self.address} was closed by this client"
                self._exchange.failure = ConnectionLostError(reason)
                self._poller.wake()
        if not self._thread.is_current():
            self._thread.join()

    def abandon(self) -> None:
        """Close the connection as soon as no call waits. Any thread may call this method, even if it holds the lock.

        If the calling thread holds the lock, the reader thread checks again when that thread's call is answered.
        """
        self._is_abandoned = True
        if self._lock.acquire(timeout=LOCK_WAIT_S):
            try:
                if self._exchange.failure is None:
                    self._poller.wake()
            finally:
                self._lock.release()

    # ------------------------------------------------------------ on the caller's thread, with the lock

    def _write(self, buffers: list[Buffer]) -> None:
        """Send as many bytes as the socket takes, or leave all to the reader thread; raises LocalProtocolError."""
        if self._is_awake or self._output.parts or len(self._exchange.calls.pending) > ALONE_COUNT_MAX:
            # The caller that added the first bytes woke the reader thread, which sends everything before it sleeps.
            if self._output.add(buffers) and not self._is_awake:
                self._poller.wake()
            return
        size = self._output.size_with(buffers)
        try:
            sent = self._socket.send_parts(buffers)
        except BlockingIOError:
            sent = 0
        except OSError:
            # The next read reports a broken socket.
            return
        if sent < size:
            self._output.add(buffers)
            self._output.sent(sent)
            self._send_output()

    def _send_output(self) -> None:
        """Send as much of the output as the socket takes, and wait for room for the rest."""
        self._flush()
        if bool(self._output.parts) != self._is_full:
            self._is_full = not self._is_full
            self._poller.modify(self._socket, read=True, write=self._is_full, data=None)

    def _flush(self) -> None:
        """Send as much of the output as the socket takes. The next read reports a broken socket."""
        while self._output.parts:
            try:
                self._output.sent(self._socket.send_parts(self._output.first(PARTS_MAX)))
            except BlockingIOError:
                return
            except OSError:
                self._output.clear()

    # ------------------------------------------------------------ on the reader thread

    def _run(self) -> None:
        with self._lock:
            if self._is_given_up:
                return
            self._is_running = True
        failure: ClientError | None = None
        while failure is None:
            ready = self._poller.poll(self._fall_asleep())
            self._wake_up(is_writable=any(writable for _data, _readable, writable in ready))
            for _data, readable, _writable in ready:
                if readable and failure is None:
                    commands, failure = self._receive()
                    failure = self._handle(commands) or failure
                    self._let_gather(commands)
            self._expire()
            with self._lock:
                failure = failure or self._exchange.failure or self._no_use()
        self._finish(failure)

    def _let_gather(self, commands: Sequence[Command]) -> None:
        """Sleep briefly after answers to some of many sends, while other threads make their next sends.

        After the sleep, the next sends go out together. Without the sleep, this thread would wait for the socket at the
        first of these sends, be woken, and take the interpreter lock from the thread that makes the others. The sleep
        does not make callers wait longer.
        """
        is_told = not self._is_waited_for and bool(commands) and isinstance(commands[-1], SentAnswer)
        if is_told and len(self._exchange.calls.pending) > ALONE_COUNT_MAX:
            self._runtime.sleep(GATHER_S)

    def _no_use(self) -> ClientError | None:
        """Return the reason to close a connection that is no longer used, or None. The caller holds the lock."""
        if not self._is_abandoned or self._exchange.calls.pending or self._output.parts:
            return None
        return ConnectionLostError(f"the client of the connection to {self.address} was dropped")

    def _fall_asleep(self) -> float | None:
        """Send the bytes that other threads left, and return how long to sleep, seconds."""
        with self._lock:
            if self._output.parts and not self._is_full:
                self._send_output()
            self._is_awake = False
            left_s = None if self._due_ns is None else max(0.0, (self._due_ns - self._now_ns()) / 1e9)
            return None if left_s is None else min(left_s, SLEEP_S_MAX)

    def _wake_up(self, *, is_writable: bool) -> None:
        """Mark the reader thread as awake, and send waiting bytes if the socket has room again."""
        with self._lock:
            self._is_awake = True
            if is_writable:
                self._send_output()

    def _receive(self) -> Received:
        """Receive once. Returns every complete command, and the reason if the connection ended."""
        commands: list[Command] = []
        try:
            size = self._socket.recv_into(self._buffer)
        except BlockingIOError:
            return commands, None
        except OSError as error:
            return commands, ConnectionLostError(f"the connection to {self.address} broke: {error.strerror or error}")
        if size == 0:
            return commands, ConnectionLostError(f"{self.address} closed the connection")
        with self._lock:
            self._exchange.receive(self._whole[:size], self._now_ns())
        try:
            commands += self._received.next_sent()
            while (command := self._exchange.next_command()) is not None:
                commands.append(command)
        except ConnectionLostError as error:
            return commands, error
        except FAULTS as error:
            return commands, self._unserved(error)
        return commands, None

    def _unserved(self, error: Exception) -> ConnectionLostError:
        log.error("what %s sent could not be served", self.address, exc_info=error)
        return ConnectionLostError(f"the request of {self.address} failed: {type(error).__name__}")

    def _handle(self, commands: Sequence[Command]) -> ClientError | None:
        """Handle commands in order. Returns the reason to end the connection if a command cannot be handled."""
        answers: list[Command] = []
        try:
            for command in commands:
                if command.is_response:
                    answers.append(command)
                else:
                    self._answered(answers)
                    answers = []
                    self._requested(command)
        except FAULTS as error:
            return self._unserved(error)
        finally:
            self._answered(answers)
        return None

    def _answered(self, answers: Sequence[Command]) -> None:
        with self._lock:
            ended = [(self._exchange.answered(answer), answer) for answer in answers]
        for call, answer in ended:
            if call is not None:
                self._tell(call, answer)

    def _tell(self, call: PendingCall, answer: Answer) -> None:
        """Call the callback. A callback that raises SystemExit ends neither this thread nor the process."""
        try:
            call.callback(answer)
        except ANYTHING:
            log.exception("the callback of %s failed", self._exchange.name(call.code))

    def _expire(self) -> None:
        now_ns = self._now_ns()
        with self._lock:
            if self._due_ns is None or now_ns < self._due_ns:
                return
            expired = self._exchange.expire(now_ns)
            self._due_ns = self._exchange.calls.due_ns
        for call, error in expired:
            self._tell(call, error)

    def _finish(self, failure: ClientError) -> None:
        with self._lock:
            lost = self._exchange.lose(failure)
            self._output.clear()
            self._socket.close()
            self._poller.close()
        for call, error in lost:
            self._tell(call, error)
