"""One connection to a broker or name server: calls matched to answers by opaque, one-way sends, time-outs.

Any thread may call. A call writes at once on the caller's own thread; what the socket does not take is written by the
reader thread, which also receives, runs the callbacks and watches the deadlines.

Leaves out which broker to ask (`instance`) and what to say to it (`producer`, `consumer`).

Source: `NettyRemotingAbstract.java`, `NettyRemotingClient.java`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from longpoll_client.calls import OPAQUE_MAX, Answer, Callback, Calls, PendingCall
from longpoll_client.credentials import Credentials
from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_protocol.codes import VERSION, CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import LocalProtocolError, ProtocolError
from longpoll_protocol.frames.command import Command, encode_reply_head
from longpoll_protocol.frames.connection import Connection, Signal
from longpoll_protocol.frames.frame import EMPTY, Buffer, Serialisation
from longpoll_protocol.headers import Header
from longpoll_protocol.sizes import MIB
from longpoll_runtime import PARTS_MAX, Runtime
from longpoll_runtime.faults import FAULTS, KeepGoing

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
CALL_TIMEOUT_S: Final = 3.0
"""`sendMsgTimeout` and most other time-outs of Java clients."""
SILENCE_S: Final = 1.0
"""A connection on which a call ends without an answer is given up if nothing was received for so long."""
PENDING_COUNT_MAX: Final = 65_535
"""Most calls of one connection that wait for an answer (`clientAsyncSemaphoreValue`)."""
OUTPUT_BYTES_MAX: Final = 64 * MIB
"""Most bytes that may wait for a peer that does not read."""
RECEIVE_SIZE: Final = 256 * 1024
# Longer than any deadline's own lateness: the reader thread ends every call, this only guards against its death.
GRACE_S: Final = 5.0
_REQUEST_NAMES: Final = {code.value: code.name for code in RequestCode}


class RemotingClient:
    """A connection to `host:port`, open from construction to `close`.

    `on_request` gets what the peer asks of us (such as 40 NOTIFY_CONSUMER_IDS_CHANGED) on the reader thread and returns
    whether it knew the request; callbacks run there too, so neither may wait for an answer of this connection.
    Raises UnreachableError.

    Invariant: `_calls`, `_output` and `_failure` change under `_lock`; once `_failure` is set nothing is added to them.
    `_heard_ns` is when something was received last, `_silent_since_ns` since when a call that ended without an answer
    had waited in vain, unless something was received after it; both are the reader thread's alone.
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
        self._credentials = credentials
        self._lock = runtime.lock()
        self._calls = Calls()
        self._output: deque[Buffer] = deque()
        self._output_size = 0
        self._failure: ClientError | None = None
        self._heard_ns = 0
        self._silent_since_ns: int | None = None
        self._connection = Connection()
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
            return self._failure is None

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
            raise AnswerTimeoutError(f"{self._name(code)}: no answer within {timeout_s:g} s")
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
        deadline_ns = now_ns + int(timeout_s * 1e9)
        call = PendingCall(self._name(code), now_ns, deadline_ns, callback)
        with self._lock:
            self._check_open(code)
            if len(self._calls.pending) >= PENDING_COUNT_MAX:
                raise LocalProtocolError(f"{PENDING_COUNT_MAX} calls to {self.address} wait for answers already")
            is_first = deadline_ns < (self._calls.first_deadline_ns() or 2**63)
            opaque = self._calls.add(call)
            try:
                self._write(self._request(code, opaque, 0, header, body))
            except LocalProtocolError:
                del self._calls.pending[opaque]
                raise
            if is_first:
                self._poller.wake()

    def one_way(self, code: int, header: Header | None = None, body: Buffer = EMPTY) -> None:
        """Send without an answer; raises ConnectionLostError or LocalProtocolError."""
        with self._lock:
            self._check_open(code)
            opaque = self._calls.opaque_next
            self._calls.opaque_next = (opaque + 1) & OPAQUE_MAX
            self._write(self._request(code, opaque, CommandFlag.ONE_WAY, header, body))

    def reply(self, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer a request of the peer's, from any thread; not one that wants none, nor once the connection is lost.

        Raises LocalProtocolError when too much waits to be sent.
        """
        if request.is_one_way:
            return
        head = encode_reply_head(request, code, remark=remark, body_size=len(body))
        with self._lock:
            if self._failure is None:
                self._write([head, body] if len(body) else [head])

    def close(self) -> None:
        """Close the connection and end its thread; waiting calls get a ConnectionLostError.

        From a callback it ends once the callback is done.
        """
        with self._lock:
            if self._failure is None:
                self._failure = ConnectionLostError(f"the connection to {self.address} was closed by this client")
                self._poller.wake()
        if not self._thread.is_current():
            self._thread.join()

    # ------------------------------------------------------------ on the caller's thread, with the lock

    def _check_open(self, code: int) -> None:
        if self._failure is not None:
            raise ConnectionLostError(f"{self._name(code)}: {self._failure}")

    def _name(self, code: int) -> str:
        return f"{_REQUEST_NAMES.get(code, code)} to {self.address}"

    def _request(self, code: int, opaque: int, flag: int, header: Header | None, body: Buffer) -> list[Buffer]:
        fields = None if header is None else header.encode()
        if self._credentials is not None:
            fields = self._credentials.signed(fields, body)
        return self._connection.send(
            Command(code, opaque, flag, fields, body, None, "PYTHON", VERSION, Serialisation.JSON)
        )

    def _write(self, buffers: list[Buffer]) -> None:
        """Send what the socket takes and leave the rest to the reader thread."""
        size = sum(len(buffer) for buffer in buffers)
        if self._output_size + size > OUTPUT_BYTES_MAX:
            raise LocalProtocolError(f"{self.address} does not read: {self._output_size} bytes wait to be sent already")
        was_idle = not self._output
        self._output.extend(buffers)
        self._output_size += size
        if was_idle:
            self._flush()
            if self._output:
                self._poller.modify(self._socket, read=True, write=True, data=None)

    def _flush(self) -> None:
        """Send as much of the output as the socket takes; a broken socket shows when it is read."""
        output = self._output
        while output:
            parts = [output[index] for index in range(min(len(output), PARTS_MAX))]
            try:
                sent = self._socket.send_parts(parts)
            except BlockingIOError:
                return
            except OSError:
                output.clear()
                self._output_size = 0
                return
            self._output_size -= sent
            while output and sent >= len(output[0]):
                sent -= len(output.popleft())
            if sent:
                output[0] = memoryview(output[0])[sent:]

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
                failure = failure or self._failure
        self._finish(failure)

    def _wait_s(self) -> float | None:
        with self._lock:
            deadline_ns = self._calls.first_deadline_ns()
        return None if deadline_ns is None else max(0.0, (deadline_ns - self._runtime.monotonic_ns()) / 1e9)

    def _flush_rest(self) -> None:
        with self._lock:
            self._flush()
            if not self._output:
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
        self._silent_since_ns = None
        self._heard_ns = self._runtime.monotonic_ns()
        self._connection.receive_data(memoryview(buffer)[:size])
        try:
            while not isinstance(event := self._connection.next_event(), Signal):
                self._handle(event)
        except ProtocolError as error:
            return ConnectionLostError(f"{self.address} does not keep to the protocol: {error}")
        except FAULTS as error:
            log.exception("what %s sent could not be served", self.address)
            return ConnectionLostError(f"what {self.address} sent could not be served: {type(error).__name__}")
        return None

    def _handle(self, command: Command) -> None:
        if command.is_response:
            with self._lock:
                call = self._calls.pending.pop(command.opaque, None)
            if call is not None:
                _tell(call, command)
            return
        is_known = False
        with KeepGoing(log, f"a request of {self.address} could not be served"):
            is_known = self._on_request is not None and self._on_request(command)
        if not is_known and not command.is_one_way:
            remark = f" request type {command.code} not supported"
            self.reply(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)

    def _expire(self) -> None:
        """End the calls whose deadline has come, and give the connection up if it is silent.

        It is where nothing was received for `SILENCE_S` while one of these calls waited: the peer, or what lies
        between, may have forgotten it, and a new connection may work (`clientCloseSocketIfTimeout`). A connection on
        which anything was received meanwhile is kept, for then a single answer is slow.
        """
        now_ns = self._runtime.monotonic_ns()
        with self._lock:
            expired = self._calls.expired(now_ns)
            since_ns = [max(call.begun_ns, self._heard_ns) for call in expired]
            if self._silent_since_ns is not None:
                since_ns.append(self._silent_since_ns)
            self._silent_since_ns = min(since_ns, default=None)
            is_silent = self._silent_since_ns is not None and now_ns - self._silent_since_ns >= SILENCE_S * 1e9
            if expired and is_silent and self._failure is None:
                # Before anybody is told: who tries again at once is to get another connection.
                self._failure = ConnectionLostError(f"{self.address} is silent, and the connection is given up")
        for call in expired:
            _tell(call, AnswerTimeoutError(f"{call.name}: no answer in time"))

    def _finish(self, failure: ClientError) -> None:
        with self._lock:
            self._failure = failure
            waiting = list(self._calls.pending.values())
            self._calls.pending.clear()
            self._output.clear()
            self._poller.unregister(self._socket)
            self._socket.close()
            self._poller.close()
        for call in waiting:
            _tell(call, ConnectionLostError(f"{call.name}: {failure}"))


def _tell(call: PendingCall, answer: Answer) -> None:
    """Call back; what the callback raises must cost no other call its answer."""
    with KeepGoing(log, f"the callback of {call.name} failed"):
        call.callback(answer)
