"""One schedule of a program: its steps as a token, the messages they send, and the kit's model of correct answers.

    p1a2070  connection 1 pulls queue a and waits up to 2070 ms     c1  connection 1 closes
    aa       a message arrives in queue a                           w   the wall clock is set back by an hour
    la       a message arrives in queue a at the next deadline      g3  message 3 continues at its scheduling point
    ba       a message of 2,000 letters arrives in queue a
    tb       a tick one millisecond before the next deadline        td  a tick at the next deadline

Time is virtual. Each event has a timestamp: the milliseconds since the start of the schedule, plus one nanosecond for
each earlier event, so that no two events have the same timestamp. The model treats a pull as a poll, and an arrival as
a publish that is acknowledged when the program has handled it. While a message is paused at a scheduling point, no
answer is owed, because the paused thread may still send it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec
from attrs import define, evolve, field, frozen

from longpoll_kit.errors import ViolationError
from longpoll_kit.model import MS, Allowances, Ask, Message, OffsetQueue
from longpoll_kit.programs.protocol import Answer, At, ProgramError, Reply, TokenError, broken, shown
from longpoll_kit.subject import Polled
from longpoll_kit.timeline import Moment, lines_of

Kind = Literal["pull", "arrive", "arrive_late", "arrive_large", "tick_before", "tick", "close", "set_back", "go"]
PREFIX: Final = "dojo1"
TOKEN_MAX: Final = 20_000
"""The maximum length of a token, which is enough for some thousand steps."""
WORDS: Final[dict[str, Kind]] = {
    "p": "pull", "a": "arrive", "l": "arrive_late", "b": "arrive_large",
    "tb": "tick_before", "td": "tick", "c": "close", "w": "set_back", "g": "go",
}  # fmt: skip
LETTERS: Final = {kind: letters for letters, kind in WORDS.items()}
WORD: Final = re.compile(
    r"(?P<pull>p)(?P<of>[1-9]\d{0,3})(?P<from>[a-z])(?P<wait>[1-9]\d{0,6})"
    r"|(?P<arrive>[alb])(?P<in>[a-z])|(?P<own>[cg])(?P<number>[1-9]\d{0,5})|(?P<time>tb|td|w)"
)


@frozen
class Step:
    """One step; fields that its kind does not use are 0 or empty."""

    kind: Kind
    number: int = 0
    """For `pull` and `close`: the connection. For `go`: the message that continues."""
    queue: str = ""
    wait_ms: int = 0

    def __str__(self) -> str:
        return f"{LETTERS[self.kind]}{self.number or ''}{self.queue}{self.wait_ms or ''}"


def token_of(steps: Sequence[Step]) -> str:
    """Return the steps as a token."""
    return ".".join([PREFIX, *map(str, steps)])


def steps_of(token: str) -> list[Step]:
    """Parse a token into steps. Raises TokenError if the token is invalid."""
    prefix, *words = token.split(".")
    if prefix != PREFIX or len(token) > TOKEN_MAX:
        raise TokenError(f"{token[:40]!r} is not a dojo token; copy one from a finding, it begins with {PREFIX}.")
    return [_step_of(word) for word in words]


def _step_of(word: str) -> Step:
    found = WORD.fullmatch(word)
    if found is None:
        raise TokenError(f"the token's part {word[:40]!r} is invalid; copy the whole token")
    kind = WORDS[found["pull"] or found["arrive"] or found["own"] or found["time"]]
    number = int(found["of"] or found["number"] or 0)
    return Step(kind, number, found["from"] or found["in"] or "", int(found["wait"] or 0))


def without(steps: Sequence[Step], place: int) -> list[Step]:
    """Remove one step and the steps that continue its message, and renumber later messages."""
    left = [*steps[:place], *steps[place + 1 :]]
    if steps[place].kind in {"go", "set_back"}:
        return left
    number = 1 + sum(step.kind not in {"go", "set_back"} for step in steps[:place])
    return [
        evolve(step, number=step.number - 1) if step.kind == "go" and step.number > number else step
        for step in left
        if step.kind != "go" or step.number != number
    ]


WALL_MS: Final = 1_700_000_000_000
"""The wall-clock time at the start of every schedule."""
SET_BACK_MS: Final = 3_600_000
LARGE_SIZE: Final = 2_000
"""The number of characters of a large message. An answer with `explore.LARGE_COUNT` such messages fits into a line."""
STOPS_MAX: Final = 20
"""The maximum number of scheduling points of one message; more indicate an endless loop."""
EVENTS_MAX: Final = 40
"""The maximum number of lines of a timeline."""
STRICT: Final = Allowances(wake_ms=0, late_ms=0, early_ms=0)


def allowances(wake_ms: int, late_ms: int) -> Allowances:
    """Return how late a program that scans its pulls may be. Virtual time needs no tolerance for the host."""
    return Allowances(wake_ms, late_ms, early_ms=0, visible_ms=wake_ms)


class Partner(Protocol):
    """The program's side of the protocol: a `process.Program`, or a fake in a test."""

    def turn(self, message: bytes) -> list[Reply]:
        """Send a message, and read until the turn has ended. Raises ProgramError."""
        ...


@frozen
class Turn:
    """A message and the program's output; the message is None for a step that sends nothing."""

    message: Mapping[str, Any] | None
    replies: tuple[Reply, ...] = ()

    def heard(self) -> tuple[str, ...]:
        """The program's output in a canonical order, because the answers to one message may come in any order."""
        return tuple(sorted(map(repr, self.replies)))


@define(eq=False)
class Pull(Ask):
    """A poll of a connection.

    `sent_ns` is the time when the program had handled the pull, and `cancelled_ns` the time when its connection closed.
    """

    connection: int = field(default=0, kw_only=True)
    owed_since_ms: int | None = field(default=None, kw_only=True)
    """The time, in ms, since which a message for this pull has been present and no message has been paused."""

    @property
    def deadline_ms(self) -> int:
        """The virtual time of this pull's deadline, in milliseconds."""
        return self.begun_ns // MS + self.timeout_ms

    @property
    def is_open(self) -> bool:
        """Whether this pull is neither answered nor cancelled."""
        return self.answer is None and self.cancelled_ns is None


@define(eq=False)
class Work:
    """A message to the program that the program has not finished handling."""

    kind: str
    what: str
    begun_ns: int
    is_alone: bool = True
    """Whether the program handled no other message since it received this one."""
    pull: Pull | None = None
    arrived: Message | None = None
    stops: int = 0


@define(eq=False)
class Schedule:
    """A schedule in progress.

    Invariant: `steps` lead from the reset to this state, and `turns` has a turn for each message sent; `paused`
    contains the messages that are paused at a scheduling point, in the order in which they paused.
    """

    partner: Partner
    limits: Allowances = STRICT
    now_ms: int = 0
    wall_ms: int = WALL_MS
    steps: list[Step] = field(factory=list)
    turns: list[Turn] = field(factory=list)
    pulls: dict[int, Pull] = field(factory=dict)
    queues: dict[str, OffsetQueue] = field(factory=dict)
    paused: dict[int, Work] = field(factory=dict)
    offsets: dict[tuple[int, str], int] = field(factory=dict)
    """The next offset of each connection in each queue."""
    _closed: set[int] = field(factory=set)
    _moments: list[Moment] = field(factory=list)
    _last_id: int = -1
    _stamps: int = 0

    def story(self) -> tuple[str, ...]:
        """The latest events of this schedule, as lines of text."""
        return lines_of(self.queues.values(), self.pulls.values(), self._moments, EVENTS_MAX)

    def begin(self) -> None:
        """Reset the program. Raises ViolationError."""
        self._send(Work("reset", "the reset", self._stamp()))

    def next_deadline_ms(self) -> int | None:
        """The next deadline of any pull so far. Answered pulls count, because the program may not have removed them."""
        return min((pull.deadline_ms for pull in self.pulls.values() if pull.deadline_ms > self.now_ms), default=None)

    def is_possible(self, step: Step) -> bool:
        """Whether a step can follow the steps so far."""
        deadline_ms = self.next_deadline_ms()
        match step.kind:
            case "pull":
                mine = (step.number, step.queue)
                waits = any(pull.is_open and (pull.connection, pull.queue) == mine for pull in self.pulls.values())
                return step.number not in self._closed and not waits
            case "close":
                is_known = any(pull.connection == step.number for pull in self.pulls.values())
                return is_known and step.number not in self._closed
            case "go":
                return step.number in self.paused
            case "tick_before":
                return deadline_ms is not None and deadline_ms - 1 > self.now_ms
            case "tick" | "arrive_late":
                return deadline_ms is not None
            case "arrive" | "arrive_large" | "set_back":
                return True

    def make(self, step: Step) -> None:
        """Make a step. Raises ViolationError, and TokenError if the step is impossible."""
        if not self.is_possible(step):
            raise TokenError(f"the token is invalid: step {step} is impossible at its place; copy the whole token")
        self.steps.append(step)
        deadline_ms = self.next_deadline_ms()
        match step.kind:
            case "go":
                self._go(step.number)
                return
            case "set_back":
                self.wall_ms -= SET_BACK_MS
                self._note("the wall clock is set back by an hour")
                self.turns.append(Turn(None))
                return
            case "tick" | "arrive_late" if deadline_ms is not None:
                self._pass_until(deadline_ms)
            case "tick_before" if deadline_ms is not None:
                self._pass_until(deadline_ms - 1)
        match step.kind:
            case "pull":
                self._pull(step)
            case "arrive" | "arrive_late" | "arrive_large":
                self._arrive(step)
            case "close":
                self._close(step.number)
            case _:
                self._tick()

    def finish(self) -> None:
        """Continue all paused messages, and send ticks until every owed answer is due. Raises ViolationError."""
        self._let_go()
        for moment_ms in self._last_ticks_ms():
            self._pass_until(moment_ms)
            self._tick()
            self._let_go()

    def _let_go(self) -> None:
        while self.paused:
            self._go(next(iter(self.paused)))

    def _last_ticks_ms(self) -> list[int]:
        """Return the times of the ticks at a schedule's end. By the last tick, every owed answer is due."""
        moments = {pull.deadline_ms for pull in self.pulls.values() if pull.deadline_ms > self.now_ms}
        last_ms = max([self.now_ms, *(pull.deadline_ms for pull in self.pulls.values())])
        allowed_ms = max(self.limits.wake_ms, self.limits.late_ms)
        if any(pull.is_open for pull in self.pulls.values()) or allowed_ms:
            moments.add(last_ms + allowed_ms)
        return sorted(moments)

    def _stamp(self) -> int:
        self._stamps += 1
        return self.now_ms * MS + self._stamps

    def _note(self, what: str) -> None:
        self._moments.append((self._stamp(), what))

    def _pass_until(self, moment_ms: int) -> None:
        assert moment_ms >= self.now_ms
        self.wall_ms += moment_ms - self.now_ms
        self.now_ms = moment_ms

    def _go(self, number: int) -> None:
        work = self.paused.pop(number)
        self._note(f"{work.what} goes on")
        self._exchange(work, {"type": "go", "id": number})

    def _pull(self, step: Step) -> None:
        self._queue(step.queue)
        offset = self.offsets.get((step.number, step.queue), 0)
        number, begun_ns = self._last_id + 1, self._stamp()
        pull = Pull(number, step.queue, offset, offset, step.wait_ms, begun_ns, connection=step.number)
        self.pulls[number] = pull
        work = Work("pull", f"poll {number}", begun_ns, pull=pull)
        self._send(work, connection=step.number, queue=step.queue, offset=offset, wait_ms=step.wait_ms)

    def _arrive(self, step: Step) -> None:
        queue, begun_ns = self._queue(step.queue), self._stamp()
        number = len(queue.messages)
        body = f"{step.queue}{number}".ljust(LARGE_SIZE * (step.kind == "arrive_large"), "x")
        work = Work("arrive", f"the publish of message {number} of {step.queue}", begun_ns)
        work.arrived = queue.publish(body.encode(), begun_ns)
        self._send(work, queue=step.queue, offset=number, message=body)

    def _close(self, connection: int) -> None:
        self._note(f"connection {connection} closes")
        work = Work("close", f"the close of connection {connection}", self._stamp())
        self._closed.add(connection)
        for pull in self.pulls.values():
            if pull.connection == connection:
                pull.cancelled_ns = work.begun_ns
        self._send(work, connection=connection)

    def _tick(self) -> None:
        self._note("a tick")
        self._send(Work("tick", "the tick", self._stamp()))

    def _queue(self, name: str) -> OffsetQueue:
        return self.queues.setdefault(name, OffsetQueue(name, self.limits))

    def _send(self, work: Work, **told: Any) -> None:
        """Send a message with the next id to the program."""
        self._last_id += 1
        work.is_alone = not self.paused
        self._exchange(work, {"type": work.kind, "id": self._last_id}, told)

    def _exchange(self, work: Work, begin: Mapping[str, Any], told: Mapping[str, Any] | None = None) -> None:
        for other in self.paused.values():
            other.is_alone = False
        message = {**begin, "now_ms": self.now_ms, "wall_ms": self.wall_ms, **(told or {})}
        replies: Sequence[Reply] = ()
        try:
            replies = self.partner.turn(msgspec.json.encode(message))
        except ProgramError as error:
            raise broken("speaks_the_protocol", str(error)) from None
        finally:
            self.turns.append(Turn(message, tuple(replies)))
        self._take(message["id"], work, replies)

    def _take(self, number: int, work: Work, replies: Sequence[Reply]) -> None:
        """Check the output of a turn. Raises ViolationError."""
        *answers, end = replies
        for answer in answers:
            assert isinstance(answer, Answer)
            self._judge(answer, work)
        assert not isinstance(end, Answer)
        named = end.id if isinstance(end, At) else end.done
        if named != number:
            raise broken("speaks_the_protocol", f"it ended message {number} with the id {named}")
        if isinstance(end, At):
            self._stop(number, work, end)
            return
        if work.pull is not None:
            work.pull.sent_ns = self._stamp()
        if work.arrived is not None:
            work.arrived.acked_ns = self._stamp()
        if not self.paused:
            self._judge_waiting(work)

    def _stop(self, number: int, work: Work, end: At) -> None:
        work.stops += 1
        place = shown(end.at.encode())
        if work.kind == "reset" or work.stops > STOPS_MAX:
            what = f"a reset must not stop, and any other message at most {STOPS_MAX} times"
            raise broken("speaks_the_protocol", f"message {number} stops at {place}; {what}")
        self._note(f"{work.what} stops at {place}")
        self.paused[number] = work

    def _judge(self, answer: Answer, work: Work) -> None:
        pull = self.pulls.get(answer.answer)
        if pull is None:
            raise broken("speaks_the_protocol", f"an answer has the id {answer.answer}, which is not a pull")
        if pull.cancelled_ns is not None and work.begun_ns >= pull.cancelled_ns:
            raise ViolationError("cancelled_is_over", f"{pull} got an answer after its connection was closed")
        if pull.answer is not None:
            raise ViolationError("answered_once", f"{pull} got a second answer")
        bodies = [body.encode("utf-8", "backslashreplace") for body in answer.messages]
        pull.ended_ns, pull.answer = self._stamp(), Polled(bodies, position_next=answer.offset_next)
        self.queues[pull.queue].judge(pull)
        wanted = pull.first + len(bodies)
        if answer.offset_next != wanted:
            raise broken("offset_goes_on", f"{pull} got offset_next {answer.offset_next} instead of {wanted}")
        self.offsets[pull.connection, pull.queue] = wanted

    def _judge_waiting(self, ended: Work) -> None:
        """Check that each waiting pull may still wait. Call it only while no message is paused."""
        for pull in self.pulls.values():
            if not pull.is_open or pull.sent_ns is None:
                continue
            message = self.queues[pull.queue].owed(pull)
            if message is not None:
                self._judge_owed(pull, message, is_tick=ended.kind == "tick")
            # A tick checks the deadline of each pull, unless another thread was handling the pull meanwhile.
            looked = ended.kind == "tick" and ended.is_alone and pull.sent_ns < ended.begun_ns
            late_ms = ended.begun_ns // MS - pull.deadline_ms
            if looked and late_ms >= self.limits.late_ms:
                late = f"{late_ms} ms after its deadline" if late_ms else "at its deadline"
                raise ViolationError("answered_by_deadline", f"{pull} has no answer after the tick {late}")

    def _judge_owed(self, pull: Pull, message: Message, *, is_tick: bool) -> None:
        if pull.owed_since_ms is None:
            pull.owed_since_ms = self.now_ms
        wake_ms = self.limits.wake_ms
        if wake_ms == 0 or (is_tick and self.now_ms >= pull.owed_since_ms + wake_ms):
            prop = self.queues[pull.queue].property_lost(pull, message)
            raise ViolationError(prop, f"{pull} still waits, although {message} is there; nothing will wake it")


@frozen
class Played:
    """A schedule that was played to its end or to a violation."""

    steps: tuple[Step, ...]
    turns: tuple[Turn, ...]
    violation: ViolationError | None
    story: tuple[str, ...] = field(default=(), eq=False)

    def is_alike(self, other: Played) -> bool:
        """Whether the program behaved the same in two plays."""
        return [turn.heard() for turn in self.turns] == [turn.heard() for turn in other.turns]


Chooser = Callable[[Schedule], Step | None]
"""Chooses the next step; None ends the schedule."""


def play(partner: Partner, limits: Allowances, choose: Chooser) -> Played:
    """Play the steps that a chooser returns. Raises TokenError if a step is impossible."""
    order, found = Schedule(partner, limits), None
    try:
        order.begin()
        while (step := choose(order)) is not None:
            order.make(step)
        order.finish()
    except ViolationError as error:
        found = error
    return Played(tuple(order.steps), tuple(order.turns), found, order.story() if found else ())


def given(steps: Sequence[Step]) -> Chooser:
    """Return a chooser that returns exactly the given steps, in order."""
    rest: Iterator[Step] = iter(steps)
    return lambda _order: next(rest, None)
