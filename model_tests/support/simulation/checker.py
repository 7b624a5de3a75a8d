"""The oracle of a simulated run: checks the broker's answers against the promises.

The oracle sees only requests and answers with their virtual times. A pull waits at most until its deadline, or until
the broker has acknowledged a message for it. Pulls return the messages of a queue in order, and acknowledged messages
stay. `SLACK_MS` allows for rounding to milliseconds. Virtual time that scheduling steps and host pauses take is
subtracted.

`longpoll_judge` judges a recorded history by the same rules of time and content. These checks stay for three reasons:

- A run ends at its first broken promise.
- Judging would triple a run's processor time, so a search would try a third of the schedules.
- Clients see what the broker's own history does not show: lost frames, and messages lost in a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from attrs import define, field

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.shared.version_traits import traits_of
from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.log_record import Record
from longpoll_simulation.world import StuckError
from longpoll_spec.errors import LongpollError
from longpoll_spec.policy import Policy

SLACK_MS: Final = 3.0
DISPATCHER_SLEEP_MS: Final = BrokerConfig().dispatcher_sleep_ms
SCAN_PERIOD_MS: Final = BrokerConfig().scan_period_ms
RETRY_MS: Final = 2.0 * StoreConfig().flush_interval_ms
"""How many ms after the disk's last error a broker may take to complete the work that failed."""


PROMISES: Final = {
    "lost wakeup": "a held pull gets an answer as soon as the broker acknowledges a message for it",
    "late": "a held pull gets an answer by its deadline",
    "early": "an empty answer comes at the deadline, and no answer before its request",
    "told nothing": "a pull from below the queue's end gets messages",
    "unanswered": "every request gets an answer",
    "unacknowledged": "every send gets an answer",
    "answered twice": "no request gets two answers",
    "acknowledged without an offset": "an acknowledgement contains the offset",
    "refused": "only a busy or stopping broker rejects a request",
    "order": "a send after an acknowledgement gets a higher offset",
    "two at one offset": "the message at an offset never changes",
    "wrong message": "a pull gets its queue's messages in order, from its offset on",
    "found nothing": "an answer with code SUCCESS has a message",
    "invented": "the broker delivers only messages that were sent",
    "moved": "the broker accepts every offset that it returned",
    "lost": "acknowledged and delivered messages survive kills, and power cuts if they were flushed",
    "deleted": "a pull of a deleted topic gets an answer at once",
    "closed": "the broker closes no connection on its own",
    "gone": "a started broker accepts connections",
    "left without a word": "a stopping broker answers its held pulls",
    "left behind": "no pull of a closed connection stays held",
    "logged": "the broker logs no error",
}
"""Maps the name of each promise to its text."""


DISK_CODES: Final = {
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.FLUSH_DISK_TIMEOUT,
    ResponseCode.SERVICE_NOT_AVAILABLE,
}
"""The response codes that a broker may send while its disk has errors."""


class BrokenError(AssertionError):
    """Raised when the broker breaks a promise. Its text describes the case; `kind` is a key of `PROMISES`."""

    def __init__(self, kind: str, text: str) -> None:
        assert kind in PROMISES
        super().__init__(kind, text)
        self.kind = kind

    def __str__(self) -> str:
        return ": ".join(self.args)


@define(eq=False)
class Sent:
    queue: int
    body: bytes
    sent_ms: float


@define(eq=False)
class Asked:
    """A pull that has no answer yet."""

    peer: str
    queue: int
    offset: int
    hold_ms: int
    sent_ms: float
    life: int
    """The number of broker restarts before the pull was sent."""

    def __str__(self) -> str:
        return f"{self.peer}'s pull of queue {self.queue} from {self.offset}, held up to {self.hold_ms} ms"


@define(eq=False)
class Deletion:
    """A request to delete the topic."""

    sent_ms: float


@define(eq=False)
class Checker:
    """Checks all requests and answers of a run.

    Invariant: `by_offset` maps (queue, offset) to the body of every message whose offset is known.
    """

    delay_ms: float
    """The longest transit time of an answer in ms."""
    sent: list[Sent] = field(factory=list)
    by_offset: dict[tuple[int, int], bytes] = field(factory=dict)
    firsts: dict[int, list[tuple[float, int]]] = field(factory=dict)
    """Maps each queue to (time in ms, offset) of its acknowledged messages."""
    quiet_from_ms: float = float("inf")
    """The time from which the broker stops or is down, so that it need not answer a pull or may answer it at any time.
    """
    spent_ms: Callable[[], float] = lambda: 0.0
    """Returns the time in ms that the simulation itself has taken so far for scheduling points, pauses and disk calls.
    """
    disk_failed_ms: Callable[[], float] = lambda: float("-inf")
    """Returns the time in ms of the disk's last error."""
    lag_ms: float = 0.0
    """How many ms a message may stay invisible after its acknowledgement, because the dispatcher polls."""
    late_ms: float = 0.0
    """How many ms after its deadline a scan may answer a pull, if no timer watches each deadline."""
    stopped_ms: float | None = None
    """The time in ms at which the broker was last stopped; None if a stop does not answer held pulls."""
    may_cut: bool = False
    """Whether connections may break at any time."""
    life: int = 0
    """The number of broker restarts."""
    hold_ms_max: float = float("inf")
    """The longest time in ms for which the policy lets a pull be held."""
    is_narrow: bool = False
    """Whether a pull may get SYSTEM_BUSY at any time, because the thread pool accepts hardly any pulls."""
    is_deleting: bool = False
    deleted_ms: float = float("inf")
    """The time in ms at which the broker answered the deletion of the topic."""
    answered: int = 0

    @property
    def slack_ms(self) -> float:
        """How many ms late an answer may be, because of transit in both directions and the simulation's own time."""
        return SLACK_MS + 2 * self.delay_ms + self.spent_ms()

    @property
    def healed_ms(self) -> float:
        """The time in ms by which the broker must have completed the work that a disk error delayed."""
        return self.disk_failed_ms() + RETRY_MS

    # -- sends -------------------------------------------------------------------------------------------------------

    def acknowledged(self, sent: Sent, code: int, offset: int | None, now_ms: float) -> None:
        """Check the answer to a send. Raises BrokenError."""
        self.answered += 1
        if code != ResponseCode.SUCCESS:
            self._refused(f"a send to queue {sent.queue}", code, now_ms)
            return
        if offset is None:
            raise BrokenError("acknowledged without an offset", f"a send to queue {sent.queue}")
        self._tell(sent.queue, offset, sent.body, "acknowledged")
        # A message that was acknowledged before this message was sent must have a lower offset.
        for at_ms, before in self.firsts.get(sent.queue, ()):
            if at_ms < sent.sent_ms and before > offset:
                raise BrokenError(
                    "order", f"queue {sent.queue}: a send got offset {offset} after {before} was acknowledged"
                )
        self.firsts.setdefault(sent.queue, []).append((now_ms, offset))

    def _tell(self, queue: int, offset: int, body: bytes, how: str) -> None:
        known = self.by_offset.setdefault((queue, offset), body)
        if known != body:
            raise BrokenError(
                "two at one offset", f"queue {queue}, offset {offset}: first {known!r}, then {how} {body!r}"
            )

    def end_of(self, queue: int) -> int:
        return max((offset for _at_ms, offset in self.firsts.get(queue, ())), default=-1) + 1

    # -- pulls -------------------------------------------------------------------------------------------------------

    def pulled(self, asked: Asked, code: int, records: Sequence[Record], offset_next: int, now_ms: float) -> int:
        """Check the answer to a pull; returns the offset at which the client continues. Raises BrokenError."""
        self.answered += 1
        self._in_time(asked, now_ms, "answered")
        if code == ResponseCode.SUCCESS:
            return self._found(asked, records, now_ms)
        if code == ResponseCode.PULL_NOT_FOUND:
            self._nothing(asked, now_ms)
            return asked.offset
        if code in {ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}:
            return self._moved(asked, code, offset_next)
        is_gone = code == ResponseCode.TOPIC_NOT_EXIST and self.is_deleting
        is_busy = code == ResponseCode.SYSTEM_BUSY and self.is_narrow
        if not is_gone and not is_busy:
            self._refused(str(asked), code, now_ms)
        return asked.offset

    def _in_time(self, asked: Asked, now_ms: float, how: str) -> None:
        if now_ms > self.quiet_from_ms or asked.life != self.life:
            return
        waited_ms = now_ms - asked.sent_ms
        if now_ms > max(self.deleted_ms, asked.sent_ms) + self.slack_ms:
            raise BrokenError("deleted", f"{asked}: {how} {now_ms - self.deleted_ms:.1f} ms after the deletion")
        if now_ms > max(asked.sent_ms + self.granted_ms(asked), self.healed_ms) + self.slack_ms + self.late_ms:
            raise BrokenError("late", f"{asked}: {how} after {waited_ms:.1f} ms")
        came_ms = self.came_ms(asked)
        due_ms = max(came_ms or 0.0, asked.sent_ms, self.healed_ms)
        if came_ms is not None and now_ms > due_ms + self.slack_ms + self.lag_ms:
            late_ms = now_ms - max(came_ms, asked.sent_ms)
            raise BrokenError("lost wakeup", f"{asked}: {how} {late_ms:.1f} ms after a message for it was acknowledged")

    def granted_ms(self, asked: Asked) -> float:
        """Returns how many ms the broker may hold a pull."""
        return min(asked.hold_ms, self.hold_ms_max)

    def came_ms(self, asked: Asked) -> float | None:
        """Returns when a message that the pull waits for was first acknowledged; None if there is no such message."""
        return min((at for at, offset in self.firsts.get(asked.queue, ()) if offset >= asked.offset), default=None)

    def _found(self, asked: Asked, records: Sequence[Record], now_ms: float) -> int:
        if not records:
            raise BrokenError("found nothing", f"{asked}: answered SUCCESS without a message")
        bodies = {one.body for one in self.sent if one.queue == asked.queue}
        for place, record in enumerate(records):
            if (record.queue_id, record.queue_offset) != (asked.queue, asked.offset + place):
                told = f"message {record.queue_offset} of queue {record.queue_id}"
                raise BrokenError("wrong message", f"{asked}: got {told} at index {place}")
            body = bytes(record.body)
            if body not in bodies:
                raise BrokenError("invented", f"{asked}: {body!r} was never sent")
            self._tell(asked.queue, record.queue_offset, body, "delivered")
        if now_ms < asked.sent_ms:
            raise BrokenError("early", f"{asked}: answered before it was sent")
        return asked.offset + len(records)

    def _nothing(self, asked: Asked, now_ms: float) -> None:
        if asked.life == self.life and now_ms - asked.sent_ms < self.granted_ms(asked) and now_ms <= self.quiet_from_ms:
            raise BrokenError("early", f"{asked}: empty answer after {now_ms - asked.sent_ms:.3f} ms")
        came_ms = self.came_ms(asked)
        # Every delay of the run also delays a polling dispatcher.
        lag_ms = self.lag_ms + self.spent_ms() if self.lag_ms else 0.0
        shown_ms = max(came_ms or 0.0, self.healed_ms) + lag_ms
        if came_ms is not None and shown_ms < asked.sent_ms and asked.life == self.life:
            raise BrokenError("told nothing", f"{asked}: empty answer, although a message was acknowledged before")

    def _moved(self, asked: Asked, code: int, offset_next: int) -> int:
        # A client continues at the offset that an answer returned, and known offsets survive every fault. The exception
        # is a polling dispatcher, which may show a message after its acknowledgement, so that a client at the queue's
        # end is ahead of the visible end.
        if not self.lag_ms and asked.sent_ms > self.healed_ms:
            raise BrokenError("moved", f"{asked}: answered {code} with the next offset {offset_next}")
        return offset_next

    def read_whole(self, queue: int, offset_end: int) -> None:
        """Check that a client that read a whole queue missed no known message; raises BrokenError otherwise."""
        missing = sorted(offset for one, offset in self.by_offset if one == queue and offset >= offset_end)
        if missing:
            raise BrokenError("lost", f"queue {queue} ends at {offset_end}, but message {missing[0]} was known")

    def _refused(self, what: str, code: int, now_ms: float) -> None:
        if now_ms <= self.healed_ms + self.slack_ms and code in DISK_CODES:
            return
        if code not in {ResponseCode.SYSTEM_BUSY, ResponseCode.SERVICE_NOT_AVAILABLE}:
            raise BrokenError("refused", f"{what}: answered {code}")
        if self.quiet_from_ms == float("inf"):
            raise BrokenError("refused", f"{what}: answered {code}, but the broker was neither busy nor stopping")

    def unanswered(self, asked: Asked, now_ms: float) -> None:
        """Check a pull whose client gives up without an answer; raises BrokenError if an answer was due."""
        self._in_time(asked, now_ms, "not answered")

    def deleted(self, code: int, now_ms: float) -> None:
        """Check the answer to the deletion of the topic. Raises BrokenError."""
        if code != ResponseCode.SUCCESS:
            self._refused("the deletion of the topic", code, now_ms)
        self.deleted_ms = now_ms

    # -- stops and restarts of the broker ----------------------------------------------------------------------------

    def stopping(self, now_ms: float, *, answers: bool = False) -> None:
        """Record that the broker stops or is down from now on; `answers` says whether it first answers held pulls."""
        if self.quiet_from_ms == float("inf"):
            self.stopped_ms = now_ms if answers else None
        self.quiet_from_ms = min(self.quiet_from_ms, now_ms)

    def left_alone(self, asked: Asked, life: int) -> None:
        """Check a pull whose connection to the broker's run number `life` ended without an answer.

        Raises BrokenError if a stop should have answered the pull.
        """
        stopped_ms = self.stopped_ms
        if stopped_ms is None or self.may_cut or life != asked.life:
            return
        if asked.sent_ms + self.slack_ms < stopped_ms:
            raise BrokenError("left without a word", f"{asked}: the broker stopped and did not answer it")

    def ended(self) -> None:
        """Record that the broker is down, so that it never answers open requests."""
        self.life += 1

    def started(self) -> None:
        """Record that the broker runs again."""
        self.stopped_ms = None
        self.quiet_from_ms = float("inf")


def checker_of(policy: Policy, delay_ms: float, *, may_cut: bool) -> Checker:
    lag_ms = SLACK_MS + DISPATCHER_SLEEP_MS if policy.notify == "dispatcher_poll" else 0.0
    late_ms = float(SCAN_PERIOD_MS) if policy.expiry == "scan" else 0.0
    hold_ms_max = BrokerConfig().hold_timeout_ms_max if traits_of(policy).caps_hold else float("inf")
    return Checker(delay_ms, lag_ms=lag_ms, late_ms=late_ms, may_cut=may_cut, hold_ms_max=hold_ms_max)


OUTCOMES: Final = (
    LongpollError,
    BrokenError,
    StuckError,
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""The exceptions with which a run can fail: a broken promise, a deadlock, or an error of the code under test."""
