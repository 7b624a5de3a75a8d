"""A caller that reads its own answer: the socket of a connection in its hands instead of the reader thread's.

It leads: it receives until its answer is there, and leaves all else that comes to the reader thread, which keeps
deadlines, callbacks and what the peer asks. No callback ever runs on a caller's thread.

Between two callers the socket is lent for a moment longer, for mostly the next one leads too, and to change what a
poller watches costs as much as to receive. Then nobody reads: what the peer asks meanwhile waits that moment.

It sleeps until its answer is there, or looks for it again and again (`awake` says which).

Leaves out who may lead, and what is done with what a leader leaves (`remoting`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_client.errors import ClientError, ConnectionLostError
from longpoll_client.link.awake import Awake
from longpoll_client.link.exchange import Exchange, Output
from longpoll_client.link.waits import wait_ns
from longpoll_protocol.frames.command import Command
from longpoll_runtime import Lock, Poller, Runtime, Socket

SLEEP_S_MAX: Final = 3600.0
"""The longest sleep of a thread that has a deadline to keep: a poller takes no more than 24 days."""
LENT_S: Final = 0.005
"""How long the socket is lent after a leader has left: for once or twice this long, if none follows."""

Received: TypeAlias = tuple[list[Command], ClientError | None]
"""What came, and why nothing more can be read."""


@define(slots=True, eq=False)
class Left:
    """What a leader has read, and leaves to the reader thread."""

    commands: list[Command] = field(factory=list)
    failure: ClientError | None = None
    """Why nothing more can be read."""


class Leading:
    """Who reads one connection, beside its reader thread. The owner holds its lock for all but `lead` and `close`.

    Invariant, under that lock: the owner's poller watches the socket unless `is_lent`. While `is_led`, and then it is
    lent, one caller alone receives, within `turn`; while it is lent and not led no call waits for an answer.
    """

    def __init__(
        self,
        runtime: Runtime,
        socket: Socket,
        watching: Poller,
        *,
        lock: Lock,
        exchange: Exchange,
        output: Output,
        receive: Callable[[], Received],
    ) -> None:
        """`watching` is the reader thread's poller; `receive` receives once, on the leader's thread."""
        self.is_led = False
        self.leader: object = None
        """Who leads, or was to."""
        self.is_lent = False
        self.turn = runtime.lock()
        """Is held by who leads, for as long as it does, and by who closes the socket."""
        self._runtime = runtime
        self._now_ns = runtime.monotonic_ns
        self._socket = socket
        self._watching = watching
        self._lock = lock
        self._exchange = exchange
        self._output = output
        self._receive = receive
        self._poller: Poller | None = None
        self._awake = Awake(runtime.idle_ns)
        self._left: list[Left] = []
        self._begun_count = self._seen_count = self._seen_ns = 0
        """How many have led; how many when the reader thread looked last, and when that was."""
        self._is_slow = False
        """Whether one leads for so long that the reader thread sleeps as if nobody did."""
        address = exchange.address
        self._interrupted = ConnectionLostError(f"a call to {address} was interrupted while it was reading")

    # ------------------------------------------------------------ with the lock

    def begin(self, leader: object) -> bool:
        """Take the socket for this one, which the reader thread does not read now; whether that could be done."""
        if self._poller is None:
            try:
                self._poller = self._new_poller()
            except OSError:
                # No descriptor is left: the reader thread has one.
                return False
        if not self.is_lent:
            self.is_lent = True
            self._seen_count, self._seen_ns = self._begun_count, self._now_ns()
            with suppress(FileNotFoundError):
                self._watching.unregister(self._socket)
            # It is to look now and then whether the socket is still needed.
            self._watching.wake()
        self.is_led, self.leader = True, leader
        self._begun_count += 1
        return True

    def take_back(self) -> None:
        """Have the reader thread read from now on, unless somebody leads."""
        if self.is_lent and not self.is_led and self._exchange.failure is None:
            self.is_lent = self._is_slow = False
            # After an interrupt it may be watched already.
            with suppress(FileExistsError):
                self._watching.register(self._socket, read=True, write=False, data=None)

    def look(self) -> list[Left]:
        """What leaders have left, for the reader thread; takes the socket back if none began since the last time."""
        now_ns = self._now_ns() if self.is_lent else 0
        if self.is_lent and now_ns - self._seen_ns >= LENT_S * 1e9:
            if self._begun_count == self._seen_count:
                self._is_slow = self.is_led
                self.take_back()
            self._seen_count, self._seen_ns = self._begun_count, now_ns
        left, self._left = self._left, []
        return left

    def sleep_s(self, left_s: float | None) -> float | None:
        """How long the reader thread may sleep that has `left_s` until a deadline, None for as long as it likes."""
        if not self.is_lent or self._is_slow:
            return None if left_s is None else min(left_s, SLEEP_S_MAX)
        return LENT_S if left_s is None else min(left_s, LENT_S)

    def wake(self) -> None:
        """Have who leads look whether it is to leave."""
        if self.is_led and self._poller is not None:
            self._poller.wake()

    def close(self) -> None:
        """Give up the poller: nobody leads any more."""
        if self._poller is not None:
            self._poller.close()

    def _new_poller(self) -> Poller:
        poller = self._runtime.poller()
        try:
            poller.register(self._socket, read=True, write=False, data=None)
        except OSError:
            poller.close()
            raise
        return poller

    # ------------------------------------------------------------ on the caller's thread, after `begin`

    def lead(self, opaque: int, most_s: float) -> Command | None:
        """Read until the answer is there, for `most_s` at most; None when another thread takes it, or has told of it.

        What is received and is nowhere would be missed by all who come after: interrupted, it ends the connection.
        """
        with self.turn:
            assert self._poller is not None, "it has begun"
            begun_ns = now_ns = self._now_ns()
            end_ns = begun_ns + wait_ns(most_s)
            asleep_ns = min(begun_ns + self._awake.awake_ns, end_ns)
            left = Left()
            answer: Command | None = None
            try:
                while not (left.commands or left.failure or self._has_to_leave(opaque)) and now_ns < end_ns:
                    sleep_s = 0.0 if now_ns < asleep_ns else min((end_ns - now_ns) / 1e9, SLEEP_S_MAX)
                    if self._poller.poll(sleep_s):
                        left.failure = self._interrupted
                        left.commands, left.failure = self._receive()
                    now_ns = self._now_ns()
                self._awake.ended(now_ns, now_ns - begun_ns)
            finally:
                answer = self._leave(left, opaque)
            return answer

    def _has_to_leave(self, opaque: int) -> bool:
        """Whether somebody else has ended the call or the connection, or waits for room on the socket.

        Each is looked up once, and the thread that changes one wakes the leader then: no lock is needed.
        """
        return opaque not in self._exchange.calls.pending or bool(self._output.parts)

    def _leave(self, left: Left, opaque: int) -> Command | None:
        """Give the socket back, or keep it lent, with what was read of it but for the answer, if it is there."""
        with self._lock:
            answer = self._own(left.commands, opaque)
            if answer is not None:
                left.commands.remove(answer)
            if left.commands or left.failure is not None:
                self._left.append(left)
            self.is_led, self.leader = False, None
            if self._left or self._output.parts:
                self.take_back()
                if self._exchange.failure is None:
                    self._watching.wake()
            elif self._exchange.calls.pending or self._is_slow:
                self.take_back()
        return answer

    def interrupted(self) -> None:
        """A caller was interrupted (Ctrl-C) where nobody knows what it has read or left undone: the connection ends."""
        with self._lock:
            self._left.append(Left(failure=self._interrupted))
            self.is_led, self.leader = False, None
            if self._exchange.failure is None:
                self.take_back()
                self._watching.wake()

    def _own(self, commands: Sequence[Command], opaque: int) -> Command | None:
        """The answer to a call, if it is among these and the call has not ended before."""
        for command in commands:
            if command.opaque == opaque and command.is_response:
                return command if self._exchange.answered(command) is not None else None
        return None
