"""The state of one client connection without I/O: matches answers to calls, and detects late calls and dead peers.

This module has no lock, clock or socket. The owner of an `Exchange` moves the bytes, passes the time (`now_ns`, by any
monotonic clock), invokes callbacks, and decides how callers wait. `remoting` owns connections on threads, and
`aio.connection` those on an event loop.

Source: `NettyRemotingAbstract.java`, `NettyRemotingClient.java`.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from itertools import islice
from operator import attrgetter
from typing import Final, TypeAlias

import msgspec
from attrs import define, field

from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError
from longpoll_protocol.codes import VERSION, CommandFlag, RequestCode
from longpoll_protocol.errors import LocalProtocolError, ProtocolError
from longpoll_protocol.frames import Buffer, Command, Connection, Serialisation, encode, encode_reply_head
from longpoll_protocol.headers import Header
from longpoll_protocol.signature import Credentials
from longpoll_protocol.sizes import MIB
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table

WAIT_S_MAX: Final = 365 * 86_400.0
"""The longest wait, seconds: a year stands for infinity, because operating system timers accept little more."""


def check_count(count_max: int | None) -> None:
    """Raise ConfigError for a count under 1; None means no limit."""
    if count_max is not None and count_max < 1:
        raise ConfigError(f"count_max is {count_max}: it must be at least 1, or None for no limit")


def wait_ns(timeout_s: float) -> int:
    """Convert seconds to nanoseconds, at least 0 and at most a year; raises ConfigError for other types."""
    try:
        if 0.0 <= timeout_s <= WAIT_S_MAX:
            return int(timeout_s * 1e9)
        return int(min(max(timeout_s, 0.0), WAIT_S_MAX) * 1e9)
    except (TypeError, ValueError):
        raise ConfigError(f"a time-out of {timeout_s!r} is not valid; pass seconds, such as 3.0") from None


OPAQUE_MAX: Final = 2**31 - 1
LOOK_NS: Final = 1_000
"""Maximum delay between the deadline of a call and the check that finds it expired, in ns for each waiting call.

Checking one call took 51 to 71 ns when measured (decision 6), so the checks take about a twentieth of the time even
when tens of thousands of calls end one after the other without an answer."""

Answer: TypeAlias = Command | ClientError
Callback: TypeAlias = Callable[[Answer], None]
Write: TypeAlias = Callable[[int], list[Buffer]]
"""Returns the bytes of a request with this opaque; may raise LocalProtocolError."""
_deadline_ns: Final = attrgetter("deadline_ns")


@with_table
class PendingCall(msgspec.Struct, frozen=True, eq=False):
    """A call that waits for its answer."""

    code: int
    begun_ns: int
    deadline_ns: int
    callback: Callback


@define(slots=True, eq=False)
class Calls:
    """The waiting calls, in the order in which they were made.

    The deadlines of calls are not sorted, because nearly every answer arrives long before its deadline. When the
    earliest known deadline has passed, all calls are checked.

    Invariant: no call of `pending` has a deadline before `due_ns`, except as `LOOK_NS` allows. `pending` and `due_ns`
    change under the owner's lock.
    """

    pending: dict[int, PendingCall] = field(factory=dict)
    due_ns: int | None = None
    """When to call `expired` next; None means not before another call is added."""
    rests_until_ns: int = 0
    """No check runs before this time, even if calls with earlier deadlines are added meanwhile."""
    opaque_next: int = 0

    def add(self, call: PendingCall) -> int:
        """Register a call and return its opaque."""
        opaque = self.opaque_next
        while opaque in self.pending:
            opaque = (opaque + 1) & OPAQUE_MAX
        self.opaque_next = (opaque + 1) & OPAQUE_MAX
        self.pending[opaque] = call
        if self.due_ns is None or call.deadline_ns < self.due_ns:
            self.due_ns = max(call.deadline_ns, self.rests_until_ns)
        return opaque

    def expired(self, now_ns: int) -> list[PendingCall]:
        """Remove and return every call whose deadline has passed, in the order of their deadlines."""
        if self.due_ns is None or now_ns < self.due_ns:
            return []
        late = [opaque for opaque, call in self.pending.items() if call.deadline_ns <= now_ns]
        found = sorted([self.pending.pop(opaque) for opaque in late], key=_deadline_ns)
        first_ns = min(map(_deadline_ns, self.pending.values()), default=None)
        self.rests_until_ns = now_ns + LOOK_NS * len(self.pending)
        self.due_ns = None if first_ns is None else max(first_ns, self.rests_until_ns)
        return found


log: logging.Logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S: Final = 3.0
CALL_TIMEOUT_S: Final = 3.0
"""The default timeout of a call, in seconds, like `sendMsgTimeout` and most other timeouts of Java clients."""
SILENCE_S: Final = 1.0
"""If no bytes came for this many seconds when a call ends without an answer, the connection is closed."""
FRAME_S: Final = 30.0
"""The time limit of an incoming frame that no waiting call can have requested, seconds.

By default no call waits longer than this, so every other call of the connection would time out behind such a frame."""
PENDING_COUNT_MAX: Final = 65_535
"""Maximum calls of one connection that wait for an answer (`clientAsyncSemaphoreValue`)."""
OUTPUT_BYTES_MAX: Final = 64 * MIB
"""Maximum bytes that wait for a peer that does not read."""
Lost: TypeAlias = tuple[PendingCall, ClientError]
"""A call that ended without an answer, and the error."""
Send: TypeAlias = Callable[[list[Buffer]], None]
"""Sends a request's bytes; may raise LocalProtocolError."""
_REQUEST_NAMES: Final = {code.value: code.name for code in RequestCode}


class Exchange:
    """The calls of one connection and the state of its peer.

    One thread may call `next_command` while others call the other methods with the owner's lock held.
    `written` and `replied` touch no state and need no lock.

    Invariant: once `failure` is set, no call is added. `_heard_ns` is the time of the last received bytes.
    `_silent_since_ns` is the start of the silence in which a call ended without an answer; received bytes reset it.
    `_frame_since_ns` is the time when the current incomplete frame began, None between two frames.
    """

    __slots__ = (
        "_connection", "_credentials", "_frame_since_ns", "_heard_ns", "_heard_size", "_silent_since_ns", "address",
        "calls", "failure",
    )  # fmt: skip

    def __init__(
        self, address: str, credentials: Credentials | None = None, connection: Connection | None = None
    ) -> None:
        """`address` is the peer's HOST:PORT, for error texts. `connection` may be a faster decoder of answers."""
        self.address: str = address
        self.calls: Calls = Calls()
        self.failure: ClientError | None = None
        """The error that made the connection unusable; None while the connection is usable."""
        self._credentials = credentials
        self._connection = Connection() if connection is None else connection
        self._heard_ns = self._heard_size = 0
        self._silent_since_ns: int | None = None
        self._frame_since_ns: int | None = None

    # ------------------------------------------------------------ requests

    def begin(self, code: int, callback: Callback, now_ns: int, timeout_s: float) -> int:
        """Add a call and return its opaque. If the call cannot be written, pass the opaque to `cancel`.

        Raises ConnectionLostError, and LocalProtocolError if too many calls wait.
        """
        if self.failure is not None:
            self.check_open(code)
        if len(self.calls.pending) >= PENDING_COUNT_MAX:
            raise LocalProtocolError(f"{PENDING_COUNT_MAX} calls to {self.address} are already waiting for answers")
        return self.calls.add(PendingCall(code, now_ns, now_ns + wait_ns(timeout_s), callback))

    def ask(self, code: int, callback: Callback, now_ns: int, timeout_s: float, write: Write, send: Send) -> int:  # noqa: PLR0917 - positional, for it is called once a send
        """Begin, write and send a call; returns its opaque. If writing or sending fails, the call is cancelled."""
        opaque = self.begin(code, callback, now_ns, timeout_s)
        try:
            send(write(opaque))
        except LocalProtocolError:
            self.cancel(opaque)
            raise
        return opaque

    def cancel(self, opaque: int) -> None:
        """Forget a call: its callback is not called, and a later answer is discarded."""
        self.calls.pending.pop(opaque, None)

    def abandon(self, opaque: int, now_ns: int) -> None:
        """Forget a call that its caller gave up. Sets `failure` if the connection is silent, as `expire` does.

        An abandoned call counts as unanswered, like a call whose deadline has passed.
        """
        call = self.calls.pending.pop(opaque, None)
        if call is not None:
            self._ended_unanswered([call], now_ns)

    def one_way_opaque(self, code: int) -> int:
        """Returns the opaque of a one-way request; raises ConnectionLostError."""
        self.check_open(code)
        opaque = self.calls.opaque_next
        self.calls.opaque_next = (opaque + 1) & OPAQUE_MAX
        return opaque

    def check_open(self, code: int) -> None:
        """Raise ConnectionLostError if the connection is unusable."""
        if self.failure is not None:
            raise ConnectionLostError(f"{self.name(code)}: {self.failure}")

    def written(self, code: int, opaque: int, header: Header | None, body: Buffer, *, one_way: bool) -> list[Buffer]:
        """Returns the bytes of a request, signed if this client has credentials; raises LocalProtocolError."""
        fields = None if header is None else header.encode()
        if self._credentials is not None:
            fields = self._credentials.signed(fields, body)
        flag = int(CommandFlag.ONE_WAY) if one_way else 0
        return encode(Command(code, opaque, flag, fields, body, None, "PYTHON", VERSION, Serialisation.JSON))

    @property
    def is_alone(self) -> bool:
        """Whether at most one call waits for an answer."""
        return len(self.calls.pending) <= 1

    @property
    def is_signed(self) -> bool:
        """Whether requests are signed. Signed headers have no common beginning, so no template fits them."""
        return self._credentials is not None

    def name(self, code: int) -> str:
        """Returns a request's name and the peer's address, for error texts."""
        return f"{_REQUEST_NAMES.get(code, code)} to {self.address}"

    # ------------------------------------------------------------ received bytes

    def receive(self, data: Buffer, now_ns: int) -> None:
        """Buffer received bytes; `next_command` decodes them."""
        self._silent_since_ns = None
        self._heard_ns, self._heard_size = now_ns, len(data)
        self._connection.receive_data(data)

    def next_command(self) -> Command | None:
        """Returns the next answer or request of the peer; None if more bytes are needed.

        Raises ConnectionLostError if the peer violates the protocol.
        """
        try:
            event = self._connection.next_event()
        except ProtocolError as error:
            raise ConnectionLostError(f"{self.address} violates the protocol: {error}") from None
        if isinstance(event, Command):
            return event
        unread_size = self._connection.unread_size
        if not unread_size:
            self._frame_since_ns = None
        elif unread_size <= self._heard_size:
            # The incomplete frame begins in the last received bytes.
            self._frame_since_ns = self._heard_ns
        return None

    def answered(self, answer: Command) -> PendingCall | None:
        """Remove and return the call that this answer belongs to; None if the call has ended already."""
        return self.calls.pending.pop(answer.opaque, None)

    # ------------------------------------------------------------ time-outs and the end

    def expire(self, now_ns: int) -> list[Lost]:
        """End the calls whose deadline has passed, and set `failure` if the connection is silent or stuck in a frame.

        The connection is silent if nothing was received for `SILENCE_S` while one of the ended calls waited. A silent
        connection is replaced, because a new one may work (`clientCloseSocketIfTimeout`). If something was received,
        only a single answer is slow, and the connection stays. The connection is stuck if only bytes of one frame came
        for `FRAME_S` and no call that was made before the frame still waits.

        `failure` is set before a caller gets its error, because a caller that retries at once must get another
        connection.
        """
        expired = self.calls.expired(now_ns)
        self._ended_unanswered(expired, now_ns)
        return [(call, AnswerTimeoutError(f"{self.name(call.code)}: no answer in time")) for call in expired]

    def _ended_unanswered(self, ended: list[PendingCall], now_ns: int) -> None:
        """Record that these calls got no answer. Sets `failure` after a long silence or a stuck frame."""
        since_ns = [max(call.begun_ns, self._heard_ns) for call in ended]
        if self._silent_since_ns is not None:
            since_ns.append(self._silent_since_ns)
        self._silent_since_ns = min(since_ns, default=None)
        is_silent = self._silent_since_ns is not None and now_ns - self._silent_since_ns >= SILENCE_S * 1e9
        if ended and is_silent and self.failure is None:
            self.failure = ConnectionLostError(f"{self.address} is silent; the connection was closed")
        frame_ns = 0 if self._frame_since_ns is None else now_ns - self._frame_since_ns
        if ended and frame_ns >= FRAME_S * 1e9 and self.failure is None and not self._waits_since(now_ns - frame_ns):
            took = f"has begun a frame {frame_ns / 1e9:.0f} s ago and not ended it"
            self.failure = ConnectionLostError(f"{self.address} {took}; the connection was closed")

    def _waits_since(self, then_ns: int) -> bool:
        return any(call.begun_ns <= then_ns for call in self.calls.pending.values())

    def lose(self, failure: ClientError) -> list[Lost]:
        """Mark the connection as lost, and end every call; later calls are rejected."""
        self.failure = failure
        waiting = list(self.calls.pending.values())
        self.calls.pending.clear()
        return [(call, ConnectionLostError(f"{self.name(call.code)}: {failure}")) for call in waiting]

    def tell(self, call: PendingCall, answer: Answer) -> None:
        """Invoke a call's callback and log its errors, so that other calls still get their answers."""
        try:
            call.callback(answer)
        except FAULTS:
            log.exception("the callback of %s failed", self.name(call.code))


def replied(request: Command, code: int, remark: str | None, body: Buffer) -> list[Buffer]:
    """Returns the bytes of an answer to the peer; empty for a one-way request. Raises LocalProtocolError."""
    if request.is_one_way:
        return []
    head = encode_reply_head(request, code, remark=remark, body_size=len(body))
    return [head, body] if len(body) else [head]


@define(slots=True, eq=False)
class Output:
    """Bytes that wait for a peer to read. Invariant: `size` is the total size of `parts`."""

    address: str
    parts: deque[Buffer] = field(factory=deque, init=False)
    size: int = field(default=0, init=False)

    def size_with(self, buffers: list[Buffer]) -> int:
        """Returns the total size of these buffers; raises LocalProtocolError if too many bytes would wait."""
        size = sum(map(len, buffers))
        if self.size + size > OUTPUT_BYTES_MAX:
            raise LocalProtocolError(f"{self.address} does not read; {self.size} bytes are waiting")
        return size

    def add(self, buffers: list[Buffer]) -> bool:
        """Queue bytes to send; returns whether the queue was empty. Raises LocalProtocolError if the queue is full."""
        size = self.size_with(buffers)
        was_idle = not self.parts
        self.parts.extend(buffers)
        self.size += size
        return was_idle

    def first(self, count: int) -> list[Buffer]:
        """Returns the first `count` waiting buffers."""
        return list(islice(self.parts, count))

    def sent(self, size: int) -> None:
        """Remove the first `size` bytes, which were sent."""
        self.size -= size
        while self.parts and size >= len(self.parts[0]):
            size -= len(self.parts.popleft())
        if size:
            self.parts[0] = memoryview(self.parts[0])[size:]

    def clear(self) -> None:
        """Discard all waiting bytes."""
        self.parts.clear()
        self.size = 0
