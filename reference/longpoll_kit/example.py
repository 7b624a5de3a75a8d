"""One example: performs the steps on a subject, checks all answers with the model, and lists the latest events.

A step ends when every poll that is owed a message has been answered; polls that are owed none stay in flight across
steps. The example waits only for answers that must arrive, and for deadlines.

`machine` chooses the steps. `run` records failures.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from math import inf
from typing import Any, ClassVar, Final, Literal

from attrs import define, field

from longpoll_kit.errors import SubjectError, ViolationError
from longpoll_kit.history import RecordedHistory
from longpoll_kit.model import (
    MS,
    Allowances,
    Ask,
    ConsumingQueue,
    Message,
    OffsetQueue,
    Queue,
    never_published,
    queue_for,
)
from longpoll_kit.polls import Polls, Workers
from longpoll_kit.subject import LongPollSubject, Polled, abilities_of, wait_of
from longpoll_kit.timeline import Moment, lines_of
from longpoll_runtime import Runtime
from longpoll_runtime.breakpoints import Pause
from longpoll_runtime.host_pauses import HostPauseWatch

Place = Literal["start", "known", "end"]
Who = Literal["poll", "publish"]
Order = Literal["cancel only", "cancel first", "together"]
QUEUE_COUNT: Final = 2
POLLS_MAX: Final = 8
LINES_MAX: Final = 40
"""The kit stops a thread before at most this many lines of the service's code, one after another."""
MISSES_MAX: Final = 3
"""After this many successive lines at which no thread stopped, the kit assumes that the service has no further lines,
because even a busy machine rarely misses so many."""
GIVEN_UP_MS: Final = 5_000
"""The kit gives up a poll that is still unanswered this long after it became late."""
HELD_MS: Final = 5
"""A poll that was sent at least this long before a publish began counts as waiting when the publish began."""
HELD_SHARE: Final = 0.1
"""If a poll ends empty before this fraction of its timeout, the service did not hold the poll."""
DISTURBED_SHARE: Final = 0.8
"""The kit publishes to another queue after this fraction of a poll's timeout. A service that then restarts the poll's
wait answers clearly late."""
HERD_MAX: Final = 200
"""The maximum number of polls that wait at once, if the user sets no other number."""
BODY_MAX: Final = 65_536
"""The size of the largest message body in bytes, if the user sets no other size."""
HELD_WAIT_MS: Final = 100
"""The minimum timeout for the check that the service holds polls, because shorter timeouts show little."""
UNHELD_MAX: Final = 5
"""After this many polls in a row that ended empty at once, the kit reports that the service holds no polls."""
REDELIVERY_MS_MAX: Final = 10_000
"""The kit does not test redelivery if the service's redelivery time is longer than this."""
BRINK_MS: Final = 4
"""In a test at the deadline, a message is published at most this long before or after the poll's deadline."""
KEYS: Final = ("red", "blue", "red", "green")
"""The keys of successive messages, if the service orders messages by key; "red" occurs twice as often as the others."""
NOTHING_DONE: Final = "nothing to do"

FOUND: Final = "answered at once"
WOKEN: Final = "held and woken"
EXPIRED: Final = "held until its deadline"
TIMED: Final = "held until a deadline that is far enough to measure"
EARLY: Final = "answered empty before its deadline"
REPEATED: Final = "given again because nobody acknowledged"
SEVERAL: Final = "of several queues"
DELETED: Final = "under the deletion of their queue"
KEPT_ALIVE: Final = "with heartbeats"
CROSSED: Final = "met by its message on the way"
CANCELLED: Final = "cancelled"
RESTARTED: Final = "under a restart"
ONCE: Final = "checked for a second answer"
NEEDED: Final = {
    FOUND: "",
    WOKEN: "",
    EXPIRED: "",
    CANCELLED: "cancel",
    RESTARTED: "restart",
    ONCE: "answered_again",
    REPEATED: "acknowledge",
    SEVERAL: "start_poll_of",
    DELETED: "delete_queue",
    KEPT_ALIVE: "heartbeats",
}
"""Maps each situation that must occur at least once to the optional method that the situation needs."""


@define(eq=False)
class Example:
    """Performs the steps of one example on its own subject and its own queues.

    Invariant: between two steps no poll in flight is owed a message.
    """

    polls_max: ClassVar[int] = POLLS_MAX
    runtime: Runtime
    subject: LongPollSubject
    watch: HostPauseWatch
    allowances: Allowances
    name: str
    """Unique among all examples against one service, because the names of the example's queues contain it."""
    workers: Workers
    suspect: Callable[[ViolationError], None]
    """Records an answer that was slightly late. Raises the violation if an earlier answer in the run was slightly late
    too."""
    long_ms: int
    short_ms: int
    told: RecordedHistory
    counts: Counter[str] = field(factory=Counter)
    step_ms: float = inf
    """The time limit of a burst. After this time, the step publishes no further message."""
    queues: list[Queue] = field(init=False)
    polls: Polls = field(init=False)
    abilities: frozenset[str] = field(init=False)
    excused: Counter[str] = field(factory=Counter)
    """Counts the late answers for which the service is not blamed, because the host paused."""
    _asks: list[Ask] = field(factory=list)
    _past: list[Queue] = field(factory=list)
    _moments: list[Moment] = field(factory=list)
    _answered: list[Ask] = field(factory=list)
    _quiet: list[Ask] = field(factory=list)
    """The polls that a silence test holds, one for each queue."""
    _lives: int = 0

    @property
    def tried(self) -> frozenset[str]:
        """The optional methods to test; `acknowledge` only if the service redelivers within `REDELIVERY_MS_MAX`."""
        again_ms = getattr(self.subject, "redelivery_ms", None)
        is_waited_for = again_ms is not None and again_ms <= REDELIVERY_MS_MAX
        return self.abilities if is_waited_for else self.abilities - {"acknowledge"}

    def __attrs_post_init__(self) -> None:
        self.abilities = abilities_of(self.subject)
        self._watch_process()
        self.polls = Polls(self.runtime, self.subject, self.watch, self.workers, self.told.sent)
        self._make_queues()

    def _watch_process(self) -> None:
        process_id = getattr(self.subject, "process_id", None)
        if process_id is not None:
            self.watch.add(process_id)

    def _make_queues(self) -> None:
        names = [f"{self.name}-{self._lives}-{index}" for index in range(QUEUE_COUNT)]
        self.queues = [queue_for(self.subject, name, self.allowances) for name in names]
        self._past += self.queues
        self._lives += 1

    def publish(self, queue: Queue, payload: Any, count: int = 1) -> str:
        """Publish `count` messages one after another, and check that waiting polls are answered."""
        messages = [self._publish(queue, payload) for _ in range(count)]
        self.settle()
        return ", ".join(map(str, messages))

    def send_burst(self, queue: Queue, count: int, size: int) -> str:
        """Publish many messages of `size` bytes in a row to a queue with one waiting poll, then read them all."""
        self.poll(queue, "end", self.long_ms, 1)
        done = self._publish_many(queue, count, size)
        self._read_up(queue)
        return f"{done:,} of {size:,} bytes" if size else f"{done:,} messages"

    def _publish_many(self, queue: Queue, count: int, size: int = 0) -> int:
        """Publish up to `count` messages in a row within the time limit of a step; returns the number of messages."""
        ends_ns = self.runtime.monotonic_ns() + self.step_ms * MS
        done = 0
        while done < count and self.runtime.monotonic_ns() < ends_ns:
            self._publish(queue, b"", size)
            done += 1
        self.settle()
        return done

    def together(self, queue: Queue, count: int) -> str:
        """Publish `count` messages at the same time while a poll waits. The messages may arrive in any order."""
        self.poll(queue, "end", self.long_ms, 1)
        begun_ns, number = self.runtime.monotonic_ns(), len(queue.messages)
        numbers = range(number, number + count)
        messages = [queue.publish(self._body(queue, each), begun_ns, self._key(each)) for each in numbers]
        for message in messages:
            message.is_unordered = True
        joins = [self.polls.apart(partial(self._send, queue, each)) for each in messages]
        for join in joins:
            join()
        now_ns = self.runtime.monotonic_ns()
        for message in messages:
            message.acked_ns = now_ns
            self.told.published(queue, message)
        self.settle()
        self._read_up(queue)
        return f"{count} messages"

    def take_turns(self, queue: Queue, count: int) -> str:
        """Hold `count` polls that arrived one after another, then check that they are woken in this order."""
        self._end_polls(queue)
        waiting: list[Ask] = []
        for _ in range(count):
            waiting.append(self._begin(queue, self._first(queue, "end"), GIVEN_UP_MS))
            self.polls.wait_sent(waiting[-1])
            self.expire(self._other(queue), self.short_ms)
        for ask in waiting:
            message = self._publish(queue, b"")
            self.settle()
            if message.taken_by is not None and message.taken_by is not ask:
                what = f"{message} went to {message.taken_by}, although {ask} has waited longer"
                raise ViolationError("served_in_turn", what)
        return f"{count} polls"

    def poll(self, queue: Queue, place: Any, timeout_ms: int, count: int) -> str:
        """Send `count` polls at once from some position, and leave the unanswered polls in flight."""
        if len(self.polls.under_way) + count > self.polls_max:
            return NOTHING_DONE
        asks = [self._begin(queue, self._first(queue, place), timeout_ms) for _ in range(count)]
        for ask in asks:
            self.polls.wait_sent(ask)
        self.settle()
        return f"{sum(ask.ended_ns is None for ask in asks)} of {count} wait"

    def wake(self, queue: Queue, payload: Any, count: int, place: Any = "end") -> str:
        """Hold polls, publish when the service has certainly received them, and check that they are woken.

        The service has received the polls when a poll that was sent after them has reached its deadline.
        """
        self.poll(queue, place, self.long_ms, count)
        other = self._other(queue)
        self.expire(other, self.short_ms)
        return self.publish(queue, payload)

    def expire(self, queue: Queue, timeout_ms: int, place: Any = "end", other: Queue | None = None) -> str:
        """Let a poll wait until its deadline. A message in the queue `other` must not end the wait."""
        ask = self._expire(queue, timeout_ms, place, other)
        if ask.is_suspected:
            # Repeat the step: a slow service will be late again, but a host pause is over.
            self._expire(queue, timeout_ms, place, other)
        tried = 1
        while self._was_not_held(ask):
            if tried == UNHELD_MAX:
                raise ViolationError(
                    "holds",
                    f"{tried} polls in a row ended empty within a tenth of their {ask.timeout_ms:,} ms, although "
                    "nothing was there for them",
                )
            ask = self._expire(queue, timeout_ms, place)
            tried += 1
        return str(ask)

    def herd(self, queue: Queue, count: int, place: Any = "end") -> str:
        """Hold many polls of a queue at once, serve another queue meanwhile, and then wake all of the polls."""
        other = self._other(queue)
        first, is_shared = self._first(queue, place), isinstance(queue, OffsetQueue)
        self._first(other, place)
        for ask in [self._begin(queue, first, GIVEN_UP_MS) for _ in range(count)]:
            self.polls.wait_sent(ask)
        self.publish(other, b"")
        self._read_up(other)
        return f"{self._publish_many(queue, 1 if is_shared else count)} messages"

    def herd_ends(self, queue: Queue, count: int, timeout_ms: int, place: Any = "end") -> str:
        """Hold many polls until their deadlines, while one published message ends the wait of at most one of them."""
        other = queue if isinstance(queue, ConsumingQueue) else self._other(queue)
        first = self._first(queue, place)
        asks = [self._begin(queue, first, timeout_ms) for _ in range(count)]
        for ask in asks:
            self.polls.wait_sent(ask)
        self.polls.let_pass(int(asks[0].timeout_ms * 1000 * DISTURBED_SHARE))
        self._publish(other, b"")
        for ask in asks:
            self._wait_over(ask)
        self.settle()
        return f"{sum(ask.answer is not None and not ask.answer.bodies for ask in asks)} of {count} got nothing"

    def begin_silence(self, timeout_ms: int) -> None:
        """Start the polls of a silence test: one long poll of each queue, after its first message."""
        for queue in self.queues:
            self._publish(queue, b"")
        self._quiet = [self._begin(queue, self._first(queue, "end"), timeout_ms) for queue in self.queues]

    def silence(self, timeout_ms: int) -> str:
        """Hold a poll until its deadline while nothing happens, and wake a second poll shortly before its deadline."""
        if not self._quiet:
            self.begin_silence(timeout_ms)
        woken, expired = self._quiet
        left_ms = woken.timeout_ms - self.allowances.wake_ms - (self.runtime.monotonic_ns() - woken.begun_ns) / MS
        if left_ms > 0:
            self.polls.wait_ended(woken, self.runtime.monotonic_ns(), left_ms)
        self.settle()
        self.publish(self._queue(woken), b"")
        self._wait_over(expired)
        self.settle()
        return f"{woken.timeout_ms:,} ms"

    def beyond(self, queue: Queue, count: int = 3) -> str:
        """Poll from a position behind the end of the queue. Any answer that arrives in time is correct."""
        other = self._other(queue)
        if not (isinstance(queue, OffsetQueue) and isinstance(other, OffsetQueue)):
            return NOTHING_DONE
        while len(other.messages) < len(queue.messages) + count:
            self._publish(other, b"")
        self._read_up(other)
        beyond, position = len(queue.messages) + count, other.positions[other.end]
        ask = self._asked(Ask(0, queue.name, beyond, position, wait_of(self.subject, self.short_ms), 0))
        ask.is_stray = True
        self.polls.begin(ask)
        self.polls.wait_sent(ask)
        self._wait_over(ask)
        self._judge_ended()
        return str(ask)

    def fall_silent(self, queue: Queue, count: int) -> str:
        """Let clients send polls without reading the answers, and check that the service still serves other clients.

        After the deadlines of the unread polls, other clients of the same queue must be served too. At the end the
        silent clients read their answers, which may be anything, so that no connection stays open.
        """
        self._end_polls(queue)
        first = self._first(queue, "end")
        gone = [self._unsent(queue, first, self.short_ms) for _ in range(count)]
        for ask in gone:
            ask.handle = self.subject.start_poll(ask.queue, ask.position, ask.timeout_ms)
            ask.is_stray = True
        sent_ns = self.runtime.monotonic_ns()
        self._note(f"{count} clients stop polling")
        self.wake(self._other(queue), b"", 1)
        self.polls.wait_ended(gone[0], sent_ns, gone[0].timeout_ms + self.allowances.late_ms)
        self.wake(queue, b"", 1)
        self._read_up(queue)
        for ask in gone:
            ask.begun_ns = self.runtime.monotonic_ns()
            self.polls.begin(ask)
        for ask in gone:
            self.polls.wait_sent(ask)
            self._wait_over(ask)
        self._judge_ended()
        return f"{count} at once"

    def brink(self, queue: Queue, payload: bytes, rounds: int, timeout_ms: int) -> str:
        """Publish messages close to a poll's deadline, some before and some after the deadline."""
        for number in range(rounds):
            ask = self._begin(queue, self._first(queue, "end"), timeout_ms)
            self.polls.wait_sent(ask)
            beside_ms = BRINK_MS * (2 * number / max(1, rounds - 1) - 1)
            self.polls.let_pass(int((ask.timeout_ms + beside_ms) * 1000))
            self._publish(queue, payload)
            self._wait_over(ask)
            self.settle()
        return f"{rounds} times"

    def redeliver(self, queue: Queue, payload: bytes) -> str:
        """Take a message without acknowledging it, and check that the service delivers it again in time."""
        again_ms = getattr(self.subject, "redelivery_ms", None)
        if again_ms is None or "acknowledge" not in self.tried:
            return NOTHING_DONE
        self._end_polls(queue)
        self._read_up(queue)
        message = self._publish(queue, payload)
        kept = self._begin(queue, 0, self.long_ms)
        kept.is_kept = True
        self.polls.wait_sent(kept)
        self.settle()
        again = self._begin(queue, 0, again_ms + self.allowances.wake_ms + self.long_ms)
        self.polls.wait_sent(again)
        self._wait_over(again)
        self.settle()
        if again.answer is None or message.body not in again.answer.bodies:
            what = f"{message} was given to {kept}, which did not acknowledge it, and {again} did not get it again"
            raise ViolationError("given_again", f"{what} (redelivery_ms is {again_ms:,})")
        self.counts[REPEATED] += 1
        return str(message)

    def cross(self, queue: Queue, payload: Any, rounds: int, gap_us: int, place: Any = "end") -> str:
        """Poll and publish at the same time, repeatedly, with gaps of up to `gap_us` microseconds.

        If `gap_us` is 0, the poll and the publish race, and either may reach the service first.
        """
        for number in range(rounds):
            ask = self._begin(queue, self._first(queue, place), self.long_ms)
            if gap_us:
                self.polls.wait_sent(ask)
                self.polls.let_pass(gap_us * (number + 1) // rounds)
            self._publish(queue, payload)
            self.polls.wait_sent(ask)
            self.settle()
        return f"{rounds} times"

    def preempt(self, queue: Queue, payload: bytes, who: Who) -> str | None:
        """Stop a poll between two lines of the service's code and publish meanwhile, or stop the publish and poll.

        If the service is not Python code in this process, the polls and publishes are not stopped.
        """
        reached, missed = 0, 0
        for line in range(LINES_MAX):
            pause = Pause(line)
            is_reached = (self._preempt_poll if who == "poll" else self._preempt_publish)(queue, payload, pause)
            self.settle()
            reached, missed = (line + 1, 0) if is_reached else (reached, missed + 1)
            if missed == MISSES_MAX:
                break
        return f"before each of {reached} lines" if reached else None

    def cancel(self, queue: Queue, payload: Any, order: Order, gap_us: int, place: Any = "end") -> str:
        """Cancel a waiting poll, and publish a message right after the cancel, at the same time, or not at all."""
        ask = self._begin(queue, self._first(queue, place), self.long_ms)
        self.polls.wait_sent(ask)
        if ask.error is None:
            join = self.polls.apart(lambda: self._cancel(ask))
            if order == "together":
                self.polls.let_pass(gap_us)
                self._publish(queue, payload)
            join()
            if order == "cancel first":
                self._publish(queue, payload)
            self._wait_ended_by(ask, "cancelled_is_over", "its cancel")
        self.counts[CANCELLED] += 1
        self.settle()
        return str(ask)

    def several(self, queue: Queue, payload: Any, place: Any = "end") -> str:
        """Send one poll of all queues and publish to the first queue, then repeat this with the second queue."""
        for woken in (queue, self._other(queue)):
            firsts = [self._first(each, place) for each in self.queues]
            ask = self._asked(Ask(0, queue.name, 0, None, wait_of(self.subject, self.long_ms), 0))
            ask.parts = [
                Ask(ask.number, each.name, *self._position(each, first), ask.timeout_ms, ask.begun_ns)
                for each, first in zip(self.queues, firsts, strict=True)
            ]
            self.polls.begin(ask)
            self.polls.wait_sent(ask)
            self._publish(woken, payload)
            self.settle()
        return str(ask)

    def delete_queue(self, queue: Queue) -> str:
        """Delete a queue while a poll waits, and check that the polls of both queues end in time."""
        ask, other = self._begin(queue, self._first(queue, "end"), self.long_ms), self._other(queue)
        self.polls.wait_sent(ask)
        self.expire(other, self.short_ms)
        ask.is_stray, ask.cancelled_ns = True, self.runtime.monotonic_ns()
        self._note(f"{queue.name} is deleted")
        self.subject.delete_queue(queue.name)
        if getattr(self.subject, "ends_at_deletion", False):
            self._wait_ended_by(ask, "deleted_is_over", f"the deletion of {queue.name}")
        self._wait_over(ask)
        self._judge_ended()
        self.queues[self.queues.index(queue)] = fresh = queue_for(
            self.subject, f"{queue.name}-{self._lives}", self.allowances
        )
        self._lives += 1
        self._past.append(fresh)
        self.counts[DELETED] += 1
        return self.wake(other, b"", 1)

    def restart(self) -> str:
        """Restart the service, and check that acknowledged messages survive if the service declares `durable`."""
        held, now_ns = list(self.polls.under_way), self.runtime.monotonic_ns()
        for ask in held:
            self.told.abandoned(ask)
            ask.cancelled_ns = now_ns
        for queue in self.queues:
            queue.restarted_ns = now_ns
        self._note("the service restarts")
        self.subject.restart()
        self._watch_process()
        for ask in held:
            self._wait_over(ask)
        self._judge_ended()
        self.counts[RESTARTED] += 1
        if getattr(self.subject, "durable", False):
            self._read_all()
        else:
            self._make_queues()
        return f"{len(held)} polls were in flight"

    def end(self) -> None:
        """Wait for all polls, read every queue to its end, and check that no unexpected message arrives."""
        self.settle()
        for queue in self.queues:
            self._end_polls(queue)
        self._read_all()
        left = list(self.queues)
        while left:
            asks = [self._begin(queue, self._first(queue, "end"), self.short_ms) for queue in left]
            for ask in asks:
                self.polls.wait_sent(ask)
            for ask in asks:
                self._wait_over(ask)
            self.settle()
            # An unanswered poll may have taken a message that can still arrive, so poll the queues of such polls again.
            left = [self._queue(ask) for ask in asks if ask.answer is None or ask.answer.bodies]
        self._look_for_second_answers()

    def _end_polls(self, queue: Queue) -> None:
        """Publish messages until no poll of this queue is in flight."""
        while any(ask.queue == queue.name for ask in self.polls.under_way):
            self.publish(queue, b"")

    def close(self) -> None:
        """Close the subject."""
        self.told.left()
        if "close" in self.abilities:
            self.subject.close()

    def timeline(self) -> tuple[str, ...]:
        """The latest events of the example, as lines of a report."""
        return lines_of(self._past, self._asks, self._moments)

    def _note(self, what: str) -> None:
        self._moments.append((self.runtime.monotonic_ns(), what))

    def _publish(self, queue: Queue, payload: bytes, size: int = 0) -> Message:
        number = len(queue.messages)
        body = self._body(queue, number, payload, size)
        message = queue.publish(body, self.runtime.monotonic_ns(), self._key(number))
        self._send(queue, message)
        message.acked_ns = self.runtime.monotonic_ns()
        self.told.published(queue, message)
        return message

    def _key(self, number: int) -> str:
        return KEYS[number % len(KEYS)] if getattr(self.subject, "order", "total") == "key" else ""

    def _send(self, queue: Queue, message: Message) -> None:
        if message.key:
            self.subject.publish_keyed(queue.name, message.key, message.body)
        else:
            self.subject.publish(queue.name, message.body)

    @staticmethod
    def _body(queue: Queue, number: int, payload: bytes = b"", size: int = 0) -> bytes:
        return (f"{queue.name}/{number}/".encode() + payload).ljust(size, b".")

    def _begin(self, queue: Queue, first: Any, timeout_ms: int, pause: Pause | None = None) -> Ask:
        ask = self._unsent(queue, first, timeout_ms)
        ask.is_stopped = pause is not None
        self.polls.begin(ask, pause)
        return ask

    def _unsent(self, queue: Queue, first: Any, timeout_ms: int) -> Ask:
        return self._asked(Ask(0, queue.name, *self._position(queue, first), wait_of(self.subject, timeout_ms), 0))

    def _asked(self, ask: Ask) -> Ask:
        """Register a poll that is about to be sent, and set the poll's number and start time."""
        self._asks.append(ask)
        ask.number, ask.begun_ns = len(self._asks), self.runtime.monotonic_ns()
        return ask

    def _other(self, queue: Queue) -> Queue:
        return self.queues[self.queues.index(queue) - 1]

    def _position(self, queue: Queue, first: Any) -> tuple[int, Any]:
        """Return the number of the first requested message, and the position to pass to the subject."""
        return first, queue.positions[first] if isinstance(queue, OffsetQueue) else None

    def _preempt_poll(self, queue: Queue, payload: bytes, pause: Pause) -> bool:
        first = self._first(queue, "end")
        with pause.new_threads():
            ask = self._begin(queue, first, self.long_ms, pause)
            is_reached = pause.wait_reached()
        if is_reached:
            self._note(f"poll {ask.number} stops before {pause.place}")
        self._publish(queue, payload)
        pause.end()
        self.polls.wait_sent(ask)
        return is_reached

    def _preempt_publish(self, queue: Queue, payload: bytes, pause: Pause) -> bool:
        first = self._first(queue, "end")
        with pause.new_threads():
            join = self.polls.apart(lambda: self._publish(queue, payload), pause)
            is_reached = pause.wait_reached()
        if is_reached:
            self._note(f"the publish stops before {pause.place}")
        ask = self._begin(queue, first, self.long_ms)
        self.polls.wait_sent(ask)
        join()
        return is_reached

    def _first(self, queue: Queue, place: Any) -> Any:
        """Return the number of the first message to request. For the place "end", read the whole queue first."""
        if place == "end":
            self._read_up(queue)
            return queue.end if isinstance(queue, OffsetQueue) else 0
        if not isinstance(queue, OffsetQueue):
            return 0
        known = sorted(queue.positions)
        if queue.is_confirming:
            return known[-1]
        if place == "start":
            return 0
        return known[len(known) // 2]

    def _read_up(self, queue: Queue) -> None:
        """Read until the queue's end is known, or until a consuming queue is empty."""
        if isinstance(queue, OffsetQueue):
            while queue.end not in queue.positions:
                self._read(queue, max(queue.positions))
        elif isinstance(queue, ConsumingQueue):
            while (message := queue.waiting()) is not None:
                ask = self._read(queue, 0)
                is_empty = ask.answer is not None and not ask.answer.bodies
                if queue.waiting() is message and is_empty and queue.must_have_seen(ask, message):
                    raise queue.passed_over(ask, message)

    def _read_all(self) -> None:
        for queue in self.queues:
            if not isinstance(queue, OffsetQueue):
                self._read_up(queue)
                continue
            first = self._first(queue, "start")
            while first < queue.end:
                first = max(first, self._read(queue, first).reached)

    def _read(self, queue: Queue, first: int) -> Ask:
        ask = self._begin(queue, first, self.long_ms)
        self.polls.wait_sent(ask)
        self.settle()
        return ask

    def _expire(self, queue: Queue, timeout_ms: int, place: Any = "end", other: Queue | None = None) -> Ask:
        ask = self._begin(queue, self._first(queue, place), timeout_ms)
        self.polls.wait_sent(ask)
        if other is not None:
            self.polls.let_pass(int(ask.timeout_ms * 1000 * DISTURBED_SHARE))
            self._publish(other, b"")
        self._wait_over(ask)
        self.settle()
        return ask

    def _was_not_held(self, ask: Ask) -> bool:
        """Whether a poll ended empty long before its deadline, if the service may answer early.

        If the service may not answer early, the model already reports such an answer as a violation.
        """
        if not self.allowances.may_answer_early or ask.timeout_ms < HELD_WAIT_MS:
            return False
        if ask.answer is None or ask.answer.bodies or ask.ended_ns is None:
            return False
        return (ask.ended_ns - ask.begun_ns) / MS < HELD_SHARE * ask.timeout_ms

    def _cancel(self, ask: Ask) -> None:
        self.told.abandoned(ask)
        self.subject.cancel(ask.handle)
        ask.cancelled_ns = self.runtime.monotonic_ns()

    def settle(self) -> None:
        """Check the answers that have arrived, and wait until no poll is owed a message. Raises ViolationError."""
        self._judge_ended()
        while (owed := self._owed()) is not None:
            since_ns = self.runtime.monotonic_ns()
            if not self.polls.wait_any(since_ns, self.allowances.wake_ms):
                self._wait_lost(*owed)
            else:
                self._excuse_wait(since_ns)
            self._judge_ended()
        for ask in list(self.polls.under_way):
            is_due = ask.timeout_ms == 0
            if is_due or (ask.sent_ns is not None and self._is_late(ask, self.runtime.monotonic_ns())):
                self._wait_over(ask)
        self._judge_ended()

    def _judge_ended(self) -> None:
        for ask in self.polls.take_ended():
            self._judge(ask)

    def _judge(self, ask: Ask) -> None:
        if ask.is_stray:
            self.told.abandoned(ask)
            return
        queue = self._queue(ask)
        if ask.error is not None:
            if ask.cancelled_ns is None or isinstance(ask.error, SubjectError | ViolationError):
                ask.error.add_note(f"raised for {ask}, which was neither cancelled nor in flight during a restart")
                raise ask.error
            queue.ended_unanswered(ask)
            return
        assert ask.ended_ns is not None
        try:
            if ask.parts:
                self._judge_parts(ask)
            else:
                queue.judge(ask)
            if ask.cancelled_ns is None and self._is_late(ask, ask.ended_ns):
                self._suspect(ask, self._late(ask))
        except ViolationError:
            self._tell_answered(queue, ask, is_doubted=False)
            raise
        self._tell_answered(queue, ask, is_doubted=ask.is_suspected)
        self._answered.append(ask)
        self._judge_heartbeats(ask)
        if "acknowledge" in self.abilities and ask.answer is not None and ask.answer.bodies and not ask.is_kept:
            self._acknowledge(queue, ask)
        self._count(ask, queue)

    def _judge_parts(self, ask: Ask) -> None:
        """Check the messages of each queue separately. Skip a queue that has no messages in the answer."""
        assert ask.answer is not None
        bodies = list(ask.answer.bodies)
        for part in ask.parts:
            own = [body for body in bodies if body.startswith(f"{part.queue}/".encode())]
            told = ask.answer.position_next
            position = told.get(part.queue) if isinstance(told, Mapping) else None
            part.answer, part.ended_ns = Polled(own, position_next=position), ask.ended_ns
            if own or not bodies:
                self._queue(part).judge(part)
        strange = [body for body in bodies if not any(body in part.answer.bodies for part in ask.parts if part.answer)]
        if strange:
            raise never_published(ask, strange[0])
        self.counts[SEVERAL] += 1

    def _judge_heartbeats(self, ask: Ask) -> None:
        """Check that enough heartbeats arrived for a poll; host pauses do not count."""
        every_ms = getattr(self.subject, "heartbeat_ms", None)
        if every_ms is None or "heartbeats" not in self.abilities or ask.sent_ns is None or ask.ended_ns is None:
            return
        due = int(self.polls.awake_ms(ask.sent_ns, ask.ended_ns) / (every_ms + self.allowances.late_ms))
        came = self.subject.heartbeats(ask.handle)
        self.counts[KEPT_ALIVE] += due > 0
        if came < due:
            what = f"{ask} got {came} heartbeats, where at least {due} were due (heartbeat_ms is {every_ms:,})"
            raise ViolationError("heartbeats", what)

    def _acknowledge(self, queue: Queue, ask: Ask) -> None:
        assert ask.answer is not None
        self.subject.acknowledge(ask.handle)
        now_ns, bodies = self.runtime.monotonic_ns(), set(ask.answer.bodies)
        again_ms = getattr(self.subject, "redelivery_ms", None)
        for message in queue.messages:
            # If an acknowledgement arrives after the redelivery time, it may have no effect.
            is_in_time = not again_ms or now_ns < max(ask.begun_ns, message.begun_ns) + again_ms * MS
            if message.body in bodies and is_in_time:
                message.read_ns = now_ns

    def _tell_answered(self, queue: Queue, ask: Ask, *, is_doubted: bool) -> None:
        """Record an answer in the history; if `is_doubted`, the host may have caused its delay, so omit the delay."""
        end_ns = ask.ended_ns
        assert end_ns is not None

        def since_ns() -> int:
            return ask.begun_ns if is_doubted else ask.begun_ns + int(self.polls.awake_ms(ask.begun_ns, end_ns) * MS)

        self.told.answered(queue, ask, since_ns)

    def _count(self, ask: Ask, queue: Queue) -> None:
        assert ask.answer is not None
        assert ask.ended_ns is not None
        if ask.is_suspected or ask.is_excused or ask.parts:
            return  # The timing of this answer proves nothing, or the poll was already counted.
        if not ask.answer.bodies:
            is_early = ask.ended_ns < self.allowances.deadline_ns(ask)
            if ask.cancelled_ns is None and ask.timeout_ms > 0:
                self.counts[EARLY if is_early else EXPIRED] += 1
                self.counts[TIMED] += not is_early and ask.timeout_ms >= HELD_WAIT_MS
            return
        message = next(each for each in queue.messages if each.body == ask.answer.bodies[0])
        if message.is_sure(ask.begun_ns):
            self.counts[FOUND] += 1
        elif ask.sent_ns is not None and message.begun_ns - ask.sent_ns >= HELD_MS * MS and not ask.is_stopped:
            self.counts[WOKEN] += 1
        else:
            self.counts[CROSSED] += 1

    def _queue(self, ask: Ask) -> Queue:
        return next(queue for queue in self.queues if queue.name == ask.queue)

    def _owed(self) -> tuple[Ask, Message] | None:
        for ask in self.polls.under_way:
            for part in ask.parts or [ask]:
                message = None if ask.is_stray else self._queue(part).owed(part)
                if message is not None:
                    return ask, message
        return None

    def _suspect(self, ask: Ask, error: ViolationError) -> None:
        if not ask.is_suspected:
            ask.is_suspected = True
            self.suspect(error)

    def _excuse_wait(self, since_ns: int) -> None:
        """Count a wait that was longer than allowed only because the host paused."""
        self.excused[WOKEN] += (self.runtime.monotonic_ns() - since_ns) / MS > self.allowances.wake_ms

    def _wait_lost(self, ask: Ask, message: Message) -> None:
        """Wait for a poll that should have been woken. A poll that is answered before its deadline was only late."""
        lost = self._lost(ask, message)
        if not self._is_over(ask):
            raise lost
        self._judge_ended()
        assert ask.ended_ns is not None
        if ask.ended_ns >= self.allowances.deadline_ns(ask):
            raise lost
        self._suspect(ask, lost)

    def _wait_ended_by(self, ask: Ask, prop: str, event: str) -> None:
        """Wait for the end of a poll that the given event must end."""
        now_ns, wake_ms = self.runtime.monotonic_ns(), self.allowances.wake_ms
        if self.polls.wait_ended(ask, now_ns, wake_ms):
            self._excuse_wait(now_ns)
            return
        still = ViolationError(prop, f"{ask} still waits {wake_ms} ms (wake_ms) after {event}")
        if not self._is_over(ask):
            raise still
        self._suspect(ask, still)

    def _lost(self, ask: Ask, message: Message) -> ViolationError:
        assert message.acked_ns is not None
        order = "before" if message.acked_ns < ask.begun_ns else "after"
        what = (
            f"{ask} was not answered within {self.allowances.wake_ms} ms (wake_ms) without host pauses, "
            f"although {message} is there for it, acknowledged {order} the poll began"
        )
        return ViolationError(self._queue(ask).property_lost(ask, message), what)

    def _wait_over(self, ask: Ask) -> None:
        if not self._is_over(ask):
            self._suspect(ask, self._late(ask))
            if not self.polls.wait_ended(ask, self.runtime.monotonic_ns(), GIVEN_UP_MS):
                raise self._late(ask)

    def _is_over(self, ask: Ask) -> bool:
        """Wait until a poll has ended; return false if it has not ended by its deadline plus the allowed lateness."""
        since_ns = ask.begun_ns if ask.sent_ns is None else ask.sent_ns
        allowed_ms = ask.timeout_ms + self.allowances.late_ms
        return ask.ended_ns is not None or self.polls.wait_ended(ask, since_ns, allowed_ms)

    def _is_late(self, ask: Ask, moment_ns: int) -> bool:
        assert ask.sent_ns is not None
        allowed_ms = ask.timeout_ms + self.allowances.late_ms
        if (moment_ns - ask.sent_ns) / MS <= allowed_ms:
            return False
        if self.polls.awake_ms(ask.sent_ns, moment_ns) > allowed_ms:
            return True
        self.excused[TIMED] += not ask.is_excused
        ask.is_excused = True
        return False

    def _late(self, ask: Ask) -> ViolationError:
        assert ask.sent_ns is not None
        end_ns = self.runtime.monotonic_ns() if ask.ended_ns is None else ask.ended_ns
        late_ms = (end_ns - ask.sent_ns) / MS - ask.timeout_ms
        stalled_ms = (end_ns - ask.sent_ns) / MS - self.polls.awake_ms(ask.sent_ns, end_ns)
        how = "is not answered" if ask.ended_ns is None else "was answered"
        return ViolationError(
            "answered_by_deadline",
            f"{ask} {how} {late_ms:.0f} ms after its deadline, where {self.allowances.late_ms} are "
            f"allowed (late_ms); the host paused for {stalled_ms:.0f} ms in total",
        )

    def _look_for_second_answers(self) -> None:
        if "answered_again" not in self.abilities:
            return
        for ask in self._answered:
            if self.subject.answered_again(ask.handle):
                raise ViolationError("answered_once", f"{ask} got a second answer")
            self.counts[ONCE] += 1
