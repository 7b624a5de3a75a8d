"""The moves of the dojo, the replies of a program, and the facts of an order: messages, waiting pulls, answers owed.

    p1a2070  connection 1 pulls queue a and waits up to 2070 ms     c1  connection 1 closes
    aa       a message arrives in queue a                           w   the wall clock is set back by an hour
    la       the same, exactly at the next deadline                 g3  message 3 continues at its scheduling point
    ba       a message of 2,000 letters arrives in queue a
    tb       a tick one millisecond before the next deadline        td  a tick at the next deadline

Only messages and replies are observed; replies are untrusted input. A message may be available from its `arrive` on,
and certainly is from its `done` on. Nothing is owed while a message is paused at a scheduling point, because its
thread still has to act.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal

import msgspec
from attrs import define, evolve, field, frozen

from longpoll_dojo.errors import ProgramError, TokenError, ViolationError
from longpoll_runtime.logs import escaped

Kind = Literal["pull", "arrive", "arrive_late", "arrive_large", "tick_before", "tick", "close", "set_back", "go"]
PREFIX: Final = "dojo1"
TOKEN_MAX: Final = 20_000
"""Letters of a token: some thousand moves."""
WORDS: Final[dict[str, Kind]] = {
    "p": "pull", "a": "arrive", "l": "arrive_late", "b": "arrive_large",
    "tb": "tick_before", "td": "tick", "c": "close", "w": "set_back", "g": "go",
}  # fmt: skip
LETTERS: Final = {kind: letters for letters, kind in WORDS.items()}
WORD: Final = re.compile(
    r"(?P<pull>p)(?P<of>[1-9])(?P<at>[a-z])(?P<wait>[1-9]\d{0,6})"
    r"|(?P<arrive>[alb])(?P<in>[a-z])|(?P<tick>tb|td|w)|(?P<close>c)(?P<closed>[1-9])|(?P<go>g)(?P<id>[1-9]\d{0,5})"
)


@frozen
class Step:
    """One move; fields that its kind does not use are 0 or empty."""

    kind: Kind
    connection: int = 0
    queue: str = ""
    wait_ms: int = 0
    message_id: int = 0
    """Of `go`: the message that continues."""

    def __str__(self) -> str:
        letters = LETTERS[self.kind]
        match self.kind:
            case "pull":
                return f"{letters}{self.connection}{self.queue}{self.wait_ms}"
            case "arrive" | "arrive_late" | "arrive_large":
                return letters + self.queue
            case "close":
                return f"{letters}{self.connection}"
            case "go":
                return f"{letters}{self.message_id}"
            case _:
                return letters


def token_of(moves: Sequence[Step]) -> str:
    """The moves as a token."""
    return ".".join([PREFIX, *map(str, moves)])


def steps_of(token: str) -> list[Step]:
    """The moves of a token. Raises TokenError."""
    prefix, *words = token.split(".")
    if prefix != PREFIX or len(token) > TOKEN_MAX:
        raise TokenError(f"{token[:40]!r} is not a dojo token; copy one from a finding, it begins with {PREFIX}.")
    return [_move_of(word) for word in words]


def _move_of(word: str) -> Step:
    found = WORD.fullmatch(word)
    if found is None:
        raise TokenError(f"the token's part {word[:40]!r} is invalid; copy the whole token")
    said = found.groupdict()
    if said["pull"]:
        return Step("pull", int(said["of"]), said["at"], int(said["wait"]))
    if said["arrive"]:
        return Step(WORDS[said["arrive"]], queue=said["in"])
    if said["close"]:
        return Step("close", int(said["closed"]))
    if said["go"]:
        return Step("go", message_id=int(said["id"]))
    return Step(WORDS[word])


def without(moves: Sequence[Step], place: int) -> list[Step]:
    """The moves without one and without those that continue its message; later messages are renumbered."""
    left = [*moves[:place], *moves[place + 1 :]]
    if moves[place].kind in {"go", "set_back"}:
        return left
    number = 1 + sum(move.kind not in {"go", "set_back"} for move in moves[:place])
    return [
        evolve(move, message_id=move.message_id - 1) if move.message_id > number else move
        for move in left
        if move.message_id != number
    ]


NUMBER_MAX: Final = 2**53
"""Integers that every language's JSON can represent; those of an order are small."""
SHOWN_MAX: Final = 120
"""The most letters of a program's line in an error message."""


Number = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_MAX)]


class Answer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The answer to a pull. It does not end the turn."""

    answer: Number
    messages: tuple[str, ...]
    offset_next: Number


class At(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The work on a message pauses at a scheduling point, and the turn ends."""

    at: str
    id: Number


class Done(msgspec.Struct, frozen=True, forbid_unknown_fields=True, order=True):
    """The work on a message is done, and the turn ends."""

    done: Number


Reply = Answer | At | Done
_answers: Final = msgspec.json.Decoder(Answer)
_ats: Final = msgspec.json.Decoder(At)
_dones: Final = msgspec.json.Decoder(Done)


ABSENT: Final = msgspec.Raw()


class _Keys(msgspec.Struct):
    """The key that identifies the kind of a line; the others are skipped."""

    answer: msgspec.Raw = ABSENT
    at: msgspec.Raw = ABSENT
    done: msgspec.Raw = ABSENT


_keys: Final = msgspec.json.Decoder(_Keys)


def reply_of(line: bytes) -> Reply:
    """Parse a line. Raises ProgramError."""
    try:
        if line.startswith(b'{"done"'):
            return _dones.decode(line)
        keys = _keys.decode(line)
        if keys.answer is not ABSENT:
            return _answers.decode(line)
        if keys.at is not ABSENT:
            return _ats.decode(line)
        if keys.done is not ABSENT:
            return _dones.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ProgramError(f"it wrote {shown(line)}, which is not valid: {error}") from None
    raise ProgramError(f"it wrote {shown(line)}, which is not an answer, at or done")


def shown(line: bytes) -> str:
    """An untrusted line for an error message: escaped and truncated."""
    text = escaped(line[: SHOWN_MAX + 1].decode("utf-8", "backslashreplace"))
    return repr(text) if len(line) <= SHOWN_MAX else f"{text[:SHOWN_MAX]!r}... ({len(line)} bytes)"


WALL_MS: Final = 1_700_000_000_000
"""The wall-clock time at the start of every order."""
SET_BACK_MS: Final = 3_600_000
LARGE_SIZE: Final = 2_000
"""The letters of a large message: an answer with `explore.LARGE_COUNT` of them fits into a line."""
STOPS_MAX: Final = 20
"""The most scheduling points of one message; more indicate an endless loop."""
Message = Mapping[str, Any]


@frozen
class Allowances:
    """How late a program may be, if it scans: both 0 unless the user sets them.

    `wake_ms`: from the time when a message and a pull for it are both there, to the answer. `late_ms`: from a pull's
    deadline to its answer.
    """

    wake_ms: int = 0
    late_ms: int = 0


@define(eq=False)
class Pull:
    """A pull that was sent. Invariant: `deadline_ms` never changes."""

    id: int
    connection: int
    queue: str
    offset: int
    deadline_ms: int
    begun_turn: int
    handled_turn: int | None = None
    """The turn in which its own message was done."""
    closed_turn: int | None = None
    """The turn in which its connection's close was sent."""
    owed_since_ms: int | None = None
    """Since when a message for it was there and no thread was about to act."""
    is_answered: bool = False

    @property
    def is_open(self) -> bool:
        """Whether its answer is still to come."""
        return not self.is_answered and self.closed_turn is None

    def __str__(self) -> str:
        return f"pull {self.id} of queue {self.queue} from {self.offset}"


@define(eq=False)
class Arrived:
    """A message of a queue."""

    body: str
    sure_ms: int | None = None
    """When its arrive was done; None while it is paused."""
    sure_turn: int = 0


@define(eq=False)
class Sent:
    """A message to the program whose work is not done."""

    kind: str
    begun_turn: int
    begun_ms: int
    is_alone: bool
    """Whether nothing else has run since it began."""
    pull: Pull | None = None
    arrived: Arrived | None = None
    stops: int = 0


@define(eq=False)
class Model:
    """One order. Invariant: `paused` has exactly the messages at a scheduling point, in the order they stopped."""

    allowances: Allowances = field(factory=Allowances)
    now_ms: int = 0
    wall_ms: int = WALL_MS
    turn: int = 0
    next_id: int = 1
    pulls: dict[int, Pull] = field(factory=dict)
    queues: dict[str, list[Arrived]] = field(factory=dict)
    closed: set[int] = field(factory=set)
    set_backs: int = 0
    paused: dict[int, Sent] = field(factory=dict)
    offsets: dict[tuple[int, str], int] = field(factory=dict)
    """The next offset of each connection in each queue."""
    _at_work: tuple[int, Sent] = (0, Sent("reset", 0, 0, is_alone=True))

    # -- moves -------------------------------------------------------------------------------------------------------

    def next_deadline_ms(self) -> int | None:
        """The next deadline of any pull so far, answered or not: the program may have forgotten to remove something."""
        return min((pull.deadline_ms for pull in self.pulls.values() if pull.deadline_ms > self.now_ms), default=None)

    def is_possible(self, move: Step) -> bool:
        """Whether a move is possible now."""
        deadline_ms = self.next_deadline_ms()
        match move.kind:
            case "pull":
                waits = any(self._is_waiting(pull, move) for pull in self.pulls.values())
                return move.connection not in self.closed and not waits
            case "close":
                mine = any(pull.connection == move.connection for pull in self.pulls.values())
                return mine and move.connection not in self.closed
            case "go":
                return move.message_id in self.paused
            case "tick_before":
                return deadline_ms is not None and deadline_ms - 1 > self.now_ms
            case "tick" | "arrive_late":
                return deadline_ms is not None
            case "arrive" | "arrive_large" | "set_back":
                return True

    def _is_waiting(self, pull: Pull, move: Step) -> bool:
        return pull.is_open and (pull.connection, pull.queue) == (move.connection, move.queue)

    def message_of(self, move: Step) -> Message | None:
        """Make a move; returns its message, None if it sends none. Raises TokenError if it is impossible."""
        if not self.is_possible(move):
            raise TokenError(f"the token is invalid: step {move} is impossible at its place; copy the whole token")
        if move.kind == "set_back":
            self.wall_ms -= SET_BACK_MS
            self.set_backs += 1
            return None
        if move.kind == "go":
            return self._go(move.message_id)
        deadline_ms = self.next_deadline_ms()
        if deadline_ms is not None and move.kind in {"tick", "arrive_late"}:
            self._pass_until(deadline_ms)
        elif deadline_ms is not None and move.kind == "tick_before":
            self._pass_until(deadline_ms - 1)
        return self._begin(move)

    def tick_at(self, moment_ms: int) -> Message:
        """A tick at a time that has not passed, for the end of an order."""
        self._pass_until(moment_ms)
        return self._begin(Step("tick"))

    def _pass_until(self, moment_ms: int) -> None:
        assert moment_ms >= self.now_ms
        self.wall_ms += moment_ms - self.now_ms
        self.now_ms = moment_ms

    def _stamped(self, kind: str, number: int) -> dict[str, Any]:
        return {"type": kind, "id": number, "now_ms": self.now_ms, "wall_ms": self.wall_ms}

    def _go(self, number: int) -> Message:
        self.turn += 1
        self._at_work = (number, self.paused.pop(number))
        self._disturb()
        return self._stamped("go", number)

    def _disturb(self) -> None:
        for other in self.paused.values():
            other.is_alone = False

    def _begin(self, move: Step) -> Message:
        self.turn += 1
        number, self.next_id = self.next_id, self.next_id + 1
        kind = {"arrive_late": "arrive", "arrive_large": "arrive", "tick_before": "tick"}.get(move.kind, move.kind)
        sent = Sent(kind, self.turn, self.now_ms, is_alone=not self.paused)
        self._disturb()
        self._at_work = (number, sent)
        message = self._stamped(kind, number)
        if kind == "pull":
            offset = self.offsets.get((move.connection, move.queue), 0)
            deadline_ms = self.now_ms + move.wait_ms
            sent.pull = Pull(number, move.connection, move.queue, offset, deadline_ms, self.turn)
            self.pulls[number] = sent.pull
            message |= {"connection": move.connection, "queue": move.queue, "offset": offset, "wait_ms": move.wait_ms}
        elif kind == "arrive":
            log = self.queues.setdefault(move.queue, [])
            sent.arrived = Arrived(f"{move.queue}{len(log)}".ljust(LARGE_SIZE * (move.kind == "arrive_large"), "x"))
            message |= {"queue": move.queue, "offset": len(log), "message": sent.arrived.body}
            log.append(sent.arrived)
        elif kind == "close":
            message["connection"] = move.connection
            self._close(move.connection)
        return message

    def _close(self, connection: int) -> None:
        self.closed.add(connection)
        for pull in self.pulls.values():
            if pull.connection == connection:
                pull.closed_turn = self.turn

    # -- what the program did ----------------------------------------------------------------------------------------

    def take(self, replies: Sequence[Reply]) -> None:
        """Check a turn's output, whose last line ends it. Raises ViolationError and ProgramError."""
        number, sent = self._at_work
        *answers, end = replies
        for answer in answers:
            assert isinstance(answer, Answer)
            self._judge(answer, sent)
        named = end.id if isinstance(end, At) else end.done if not isinstance(end, Answer) else 0
        if named != number:
            raise ProgramError(f"it ended message {number} with the id {named}")
        if isinstance(end, At):
            self._stop(number, sent, end)
            return
        if sent.pull is not None:
            sent.pull.handled_turn = self.turn
        if sent.arrived is not None:
            sent.arrived.sure_ms, sent.arrived.sure_turn = self.now_ms, self.turn
        if not self.paused:
            self._judge_waiting(sent)

    def _stop(self, number: int, sent: Sent, end: At) -> None:
        sent.stops += 1
        if sent.kind == "reset" or sent.stops > STOPS_MAX:
            raise ProgramError(
                f"message {number} stops at {shown(end.at.encode())}; a reset must not stop, and any other message "
                f"at most {STOPS_MAX} times"
            )
        self.paused[number] = sent

    def _judge(self, answer: Answer, sent: Sent) -> None:
        pull = self.pulls.get(answer.answer)
        if pull is None:
            raise ViolationError("nothing_unasked", f"an answer has the id {answer.answer}, which is not a pull")
        if pull.closed_turn is not None and sent.begun_turn >= pull.closed_turn:
            raise ViolationError(
                "nothing_for_closed", f"{pull} got an answer after its connection {pull.connection} was closed"
            )
        if pull.is_answered:
            raise ViolationError("answered_once", f"{pull} got a second answer")
        pull.is_answered = True
        if answer.messages:
            self._judge_messages(pull, answer)
        else:
            self._judge_nothing(pull)
        wanted = pull.offset + len(answer.messages)
        if answer.offset_next != wanted:
            raise ViolationError("offset_goes_on", f"{pull} got offset_next {answer.offset_next} instead of {wanted}")
        self.offsets[pull.connection, pull.queue] = wanted

    def _judge_messages(self, pull: Pull, answer: Answer) -> None:
        there = [each.body for each in self.queues.get(pull.queue, ())[pull.offset :]]
        if list(answer.messages) != there[: len(answer.messages)]:
            said, queue = (shown(", ".join(each).encode()) if each else "nothing" for each in (answer.messages, there))
            raise ViolationError("answer_is_right", f"{pull} got {said}; the queue has {queue}")

    def _judge_nothing(self, pull: Pull) -> None:
        there = self._sure_for(pull)
        if there is not None and there.sure_ms is not None:
            is_older = there.sure_turn < pull.begun_turn and self.allowances.wake_ms == 0
            if is_older or there.sure_ms + self.allowances.wake_ms < pull.deadline_ms:
                when = f"since {there.sure_ms} ms" + (", before it was sent" if is_older else "")
                raise ViolationError(
                    "no_lost_wakeup", f"{pull} got an empty answer, but {there.body} has been available {when}"
                )
        early_ms = pull.deadline_ms - self.now_ms
        if early_ms > 0:
            raise ViolationError("not_answered_early", f"{pull} got an empty answer {early_ms} ms too early")

    def _sure_for(self, pull: Pull) -> Arrived | None:
        """The message that a pull asks for, if it is certainly there."""
        log = self.queues.get(pull.queue, ())
        there = log[pull.offset] if pull.offset < len(log) else None
        return there if there is not None and there.sure_ms is not None else None

    # -- what is owed ------------------------------------------------------------------------------------------------

    def _judge_waiting(self, ended: Sent) -> None:
        """Nothing is paused: each waiting pull must have a reason to wait."""
        for pull in self.pulls.values():
            if not pull.is_open or pull.handled_turn is None:
                continue
            there = self._sure_for(pull)
            if there is not None:
                self._judge_owed(pull, there, is_tick=ended.kind == "tick")
            # A tick checks deadlines, unless another thread was handling a pull meanwhile.
            looked = ended.kind == "tick" and ended.is_alone and pull.handled_turn < ended.begun_turn
            if looked and ended.begun_ms >= pull.deadline_ms + self.allowances.late_ms:
                since = ended.begun_ms - pull.deadline_ms
                late = f"{since} ms after its deadline" if since else "at its deadline"
                raise ViolationError("answered_by_deadline", f"{pull} has no answer after the tick {late}")

    def _judge_owed(self, pull: Pull, there: Arrived, *, is_tick: bool) -> None:
        if pull.owed_since_ms is None:
            pull.owed_since_ms = self.now_ms
        wake_ms = self.allowances.wake_ms
        if wake_ms == 0 or (is_tick and self.now_ms >= pull.owed_since_ms + wake_ms):
            raise ViolationError(
                "no_lost_wakeup",
                f"{pull} still waits, although {there.body} has been available since {there.sure_ms} ms; nothing will "
                "wake it",
            )

    def last_ticks_ms(self) -> list[int]:
        """The times of the ticks at an order's end, by which everything owed is due."""
        moments = {pull.deadline_ms for pull in self.pulls.values() if pull.deadline_ms > self.now_ms}
        last_ms = max([self.now_ms, *(pull.deadline_ms for pull in self.pulls.values())])
        allowed_ms = max(self.allowances.wake_ms, self.allowances.late_ms)
        if any(pull.is_open for pull in self.pulls.values()) or allowed_ms:
            moments.add(last_ms + allowed_ms)
        return sorted(moments)
