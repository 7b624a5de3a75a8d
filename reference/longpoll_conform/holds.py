"""Tests the clauses of long polling: whether a broker holds pulls, wakes them, and answers them at their deadline.

A test with a single pull uses its own connection and topic. A test with a crowd, which is many concurrent pulls, finds
rare faults. All tests run at the same time, so the longest hold decides how long the clauses take. Each answer has an
earliest and a latest time. A recorded conversation cannot test these clauses, because its holds are short, and
RocketMQ's five-second scan permits an answer to be up to five seconds late. The races that RocketMQ's presets declare
cannot explain a lost wakeup in these tests, because each pull was held well before its message. The tests also apply to
other requests that a broker holds, such as pops (`pops`). A `Kind` describes each request.

Source: `PullRequestHoldService.java` and `DefaultMQPushConsumerImpl.BROKER_SUSPEND_MAX_TIME_MILLIS` 4.9.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from types import MappingProxyType
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_conform.capabilities import NO_PERMISSION, Fields, ask, pull_fields, send_fields, topic_fields
from longpoll_conform.clauses import BY_VECTOR, CROWD
from longpoll_conform.compare import Difference
from longpoll_conform.connection import (
    ANSWER_S,
    COARSE_MS,
    REQUEST,
    Answer,
    Connection,
    Conversation,
    Echo,
    RecordedFrame,
    SilentError,
    too_slow,
)
from longpoll_conform.play import Place
from longpoll_conform.suite import Result, Seen

HELD_PART: Final = 4
"""The divisor of the hold. A broker that answers within a quarter of the requested hold does not hold the pull."""
WOKEN_PART: Final = 3
"""The divisor of the hold. The message that wakes a pull is sent after a third of the hold, and at most one second
after the pull."""
SCAN_MS: Final = 5_000
"""How many ms later an answer may arrive if RocketMQ's five-second scan sends it."""
LATE_MS: Final = 1_500
"""How many ms late an answer may arrive, in addition to `ECHOES` times the longest echo."""
ECHOES: Final = 2
"""How many times the latency of an echo an answer may be late, because a wake crosses about twice as many threads."""
EARLY_MS: Final = 20
"""How many ms early an answer at the deadline may arrive, because clocks have a limited granularity."""
FOUND = 0
QUEUES: Final = 4
LINES: Final = 4
"""The number of connections over which a crowd of pulls is distributed."""
FRAMES_MAX: Final = 1 << 20
"""The maximum number of recorded frames: enough for every frame of a crowd, so that the report can show a rare fault.
"""
AT_ONCE: Final = 97
"""The number of pulls after which the test sends a different request and waits for its answer, on each connection in
turn."""
HOLD_MS: Final = 15_000
SETTLED_S: Final = 0.3
"""How many seconds the pulls of a round are held before the message that wakes them is sent."""
ROUNDS_S: Final = 60.0
"""No round begins more than this many seconds after the first. On a slow host, too few rounds fit, and the clause stays
untested."""
FIRST_MS: Final = 500
"""The shortest hold in the crowd, in ms."""
LIMIT_MS: Final = 2_000
"""The hold in ms of the requests that test the broker's limit for one key."""
PUNCTUAL_MS: Final = 200
"""How many ms late the most punctual answer in a crowd may be."""
APART_MS: Final = 500
LATER: Final = 50
OVERTAKEN: Final = 10
"""A pull counts as forgotten if this many pulls with clearly later deadlines were answered well before it."""
Breach = tuple[str, str]
"""A violation of a clause: the expected and the received answer as texts."""


@frozen
class Crowd:
    """The numbers of concurrent pulls: 3,000 pulls find a fault that affects 1 wake in 1,000 with 95 % probability."""

    rounds: int = 8
    wakes: int = 1_024
    """In each round, the number of pulls that wait at the same time for a message."""
    deadlines: int = 3_000
    spread_ms: int = 6_000
    """The interval over which the deadlines are spread. It is longer than a period of RocketMQ's scan, so that some
    deadlines pass shortly before a scan and some shortly after."""
    at_limit: int = 0
    """The number of requests with one key, which exceeds the broker's limit; 0 if the limit is not tested."""


@frozen
class Kind:
    """A request that a broker holds."""

    nouns: str
    code: int
    fields: Callable[[str, int, int, int], Fields]
    """Returns the fields of a request. Parameters: topic, number in the crowd, round, hold in milliseconds."""
    crowd: Crowd
    at_deadline: int
    """The response code at the deadline."""
    no_room: int
    """The response code if the broker already holds too many requests."""
    told: Callable[[Mapping[str, Any]], int] = lambda answer: int(answer["code"])
    """Returns the response code of an answer. The function for notifications derives it from other fields."""
    is_of_all: bool = False
    """Whether a message in any queue wakes the request. If so, the round's number determines the queue of the message.
    """
    early_ms: int = EARLY_MS


PULL: Final = Kind(
    "pulls",
    11,
    lambda topic, number, offset, hold_ms: pull_fields(topic, queue=number % QUEUES, offset=offset, hold_ms=hold_ms),
    Crowd(),
    at_deadline=19,
    no_room=2,
)
PULLS: Final[Mapping[str, Kind]] = MappingProxyType({"poll": PULL})


@define(eq=False)
class _Pull:
    kind: Kind
    line: Connection
    opaque: int
    queue: int
    """The queue of the message that wakes this pull."""
    hold_ms: int
    asked_s: float
    sent_ms: float | None = None
    """When the send of the pull's message began, in ms after the pull; None if no message was sent."""
    stored_ms: float = 0.0
    """When the send of the message was acknowledged, in ms after the pull."""
    answer: Answer | None = None

    @property
    def code(self) -> int | None:
        return None if self.answer is None or self.answer.command is None else self.kind.told(self.answer.command)

    @property
    def after_ms(self) -> float:
        """The arrival of the answer, in milliseconds after the pull."""
        return 0.0 if self.answer is None else (self.answer.at_s - self.asked_s) * 1000

    @property
    def due_ms(self) -> float:
        """When the pull should be answered: when its message is stored, or at its deadline."""
        return self.hold_ms if self.sent_ms is None else self.stored_ms

    @property
    def due_s(self) -> float:
        return self.asked_s + self.due_ms / 1000

    @property
    def got(self) -> str:
        when = f"{self.after_ms:.0f} ms"
        return f"{self.line.missing} within {when}" if self.code is None else f"{self.code} after {when}"

    def not_held(self) -> Breach | None:
        """Return a breach if the broker answered at once instead of holding the pull."""
        least_ms = self.hold_ms // HELD_PART
        first_ms = least_ms if self.sent_ms is None else min(least_ms, self.sent_ms)
        is_early = self.code is not None and self.after_ms <= first_ms
        return (f"no answer in the first {least_ms} ms", self.got) if is_early else None


@define(eq=False)
class _Test:
    title: str
    breaches: list[tuple[_Pull, Breach]] = field(factory=list)
    untested: str = ""
    """Why the test proves nothing if it has no breaches; empty if it proves the clause."""


@frozen
class _Tester:
    place: Place
    kind: Kind
    topic: str
    echo: Echo
    scan_ms: int
    """How late the broker may answer a pull after its deadline, in milliseconds."""
    crowd: Crowd

    @property
    def late_ms(self) -> float:
        return LATE_MS + ECHOES * self.echo.worst_ms()

    def pull(self, line: Connection, hold_ms: int, number: int = 0, offset: int = 0) -> _Pull:
        asked_s, fields = time.monotonic(), self.kind.fields(self.topic, number, offset, hold_ms)
        opaque = line.ask({"code": self.kind.code, "extFields": fields, "body": b""})
        queue = (offset if self.kind.is_of_all else number) % QUEUES
        return _Pull(self.kind, line, opaque, queue, hold_ms, asked_s)

    def pulls(
        self, lines: Sequence[Connection], holds: Sequence[int], offset: int = 0, *, one_key: bool = False
    ) -> list[_Pull]:
        """Send a crowd of pulls no faster than the broker reads them, because a hold begins when the pull is read."""
        found = []
        for number, hold_ms in enumerate(holds):
            line = lines[number // QUEUES % LINES]
            found.append(self.pull(line, hold_ms, 0 if one_key else number, offset))
            is_last = number % QUEUES == QUEUES - 1 and number >= len(holds) - LINES * QUEUES
            if number % AT_ONCE == 0 or is_last:
                line.wait(line.ask(REQUEST), ANSWER_S)
        return found

    def send(self, queue: int, pulls: Iterable[_Pull]) -> None:
        begun_s = time.monotonic()
        ask(self.place, 310, {**send_fields(self.topic), "e": str(queue)}, b"wakes")
        stored_s = time.monotonic()
        for pull in pulls:
            if pull.queue == queue:
                pull.sent_ms, pull.stored_ms = (begun_s - pull.asked_s) * 1000, (stored_s - pull.asked_s) * 1000

    def lines(self, stack: ExitStack, count: int) -> list[Connection]:
        made = (Connection("pull", self.place.broker, Conversation(FRAMES_MAX)) for _ in range(count))
        return [stack.enter_context(closing(line)) for line in made]

    def wait(self, pull: _Pull, most_ms: float | None = None) -> None:
        """Wait for the answer to a pull, at most `most_ms`.

        By default, wait until the latest time at which the answer may arrive, which becomes later if the latency grows.
        """
        while pull.code is None and not pull.line.is_closed:
            last_ms = self._last_ms(pull) if most_ms is None else most_ms
            left_s = pull.asked_s + last_ms / 1000 - time.monotonic()
            pull.answer = pull.line.wait(pull.opaque, max(0.0, left_s))
            if left_s <= 0 or pull.line.unasked:
                return

    def _last_ms(self, pull: _Pull) -> float:
        return pull.due_ms + self.late_ms + self.scan_ms * (pull.sent_ms is None)

    def breach(self, pull: _Pull) -> Breach | None:
        """Return a breach if the pull was answered neither with its message nor at its deadline."""
        at_deadline = (self.kind.at_deadline, pull.hold_ms - self.kind.early_ms)
        code, first_ms = at_deadline if pull.sent_ms is None else (FOUND, pull.sent_ms)
        last_ms = self._last_ms(pull)
        if pull.code == code and first_ms <= pull.after_ms <= last_ms:
            return None
        return pull.not_held() or (f"{code} from {first_ms:.0f} to {last_ms:.0f} ms", pull.got)

    def doubt(self) -> str:
        """Return why punctual answers prove nothing on this host; empty if they prove the clause."""
        worst_ms = self.echo.worst_ms()
        return too_slow(worst_ms) if worst_ms > COARSE_MS else ""

    def test(self, what: str, hold: str) -> _Test:
        """Run a test by its name and its hold, which is a number of milliseconds or a crowd."""
        if hold == CROWD:
            return {"wakes": self.wakes, "deadline": self.deadlines, "limit": self.limit}[what]()
        return self.alone(what, self.hold(int(hold), wakes=what == "wakes"))

    def hold(self, hold_ms: int, *, wakes: bool) -> _Pull:
        """Hold a pull, with or without a message that wakes it, and return it with its answer."""
        with ExitStack() as stack:
            (line,) = self.lines(stack, 1)
            pull = self.pull(line, hold_ms)
            if wakes:
                self.wait(pull, min(hold_ms / WOKEN_PART, 1_000))
                if pull.code is None:
                    self.send(pull.queue, [pull])
            self.wait(pull)
            return pull

    def alone(self, what: str, pull: _Pull) -> _Test:
        breach = pull.not_held() if what == "holds" else self.breach(pull)
        test = _Test(f"a hold of {pull.hold_ms} ms", [(pull, breach)] if breach else [])
        least_ms = pull.hold_ms - self.kind.early_ms
        if pull.code == self.kind.at_deadline and pull.sent_ms and pull.stored_ms > least_ms <= pull.after_ms:
            # The message was stored only after the deadline, so an empty answer is correct.
            return _Test(test.title, [], too_slow(pull.stored_ms - pull.sent_ms))
        test.untested = "" if what == "holds" else self.doubt()
        return test

    def wakes(self) -> _Test:
        """Test rounds of pulls that all wait when their message arrives."""
        test, woken, wanted, begun_s = _Test(""), 0, self.crowd.rounds * self.crowd.wakes, time.monotonic()
        with ExitStack() as stack:
            lines = self.lines(stack, LINES)
            for number in range(self.crowd.rounds):
                pulls = self.pulls(lines, [HOLD_MS] * self.crowd.wakes, number)
                time.sleep(SETTLED_S)
                for queue in sorted({pull.queue for pull in pulls}):
                    self.send(queue, pulls)
                taken = self._answered(pulls, test)
                woken += len(taken)
                if test.breaches or test.untested or time.monotonic() - begun_s > ROUNDS_S:
                    break
        test.title = (
            f"{woken:,} {self.kind.nouns}, each held before its message; {len(test.breaches):,} not woken by it"
        )
        test.untested = test.untested or (too_slow(self.echo.worst_ms()) if woken < wanted else "")
        return test

    def deadlines(self) -> _Test:
        """Test pulls whose deadlines are spread over more than one period of RocketMQ's scan."""
        test, count = _Test(""), self.crowd.deadlines
        holds = [FIRST_MS + self.crowd.spread_ms * number // count for number in range(count)]
        with ExitStack() as stack:
            lines = self.lines(stack, LINES)
            taken = self._answered(self.pulls(lines, holds), test)
        test.breaches = test.breaches or list(self._forgotten(taken))
        held = f"{count:,} {self.kind.nouns} held from {holds[0]} to {holds[-1]} ms"
        test.title = f"{held}; {len(test.breaches):,} not answered then"
        return test

    def limit(self) -> _Test:
        """Test that the broker at once rejects the pulls of one key beyond its limit of waiting pulls."""
        test = _Test("")
        with ExitStack() as stack:
            pulls = self.pulls(self.lines(stack, LINES), [LIMIT_MS] * self.crowd.at_limit, one_key=True)
            taken = self._answered(pulls, test)
        refused = [pull for pull in pulls if pull.code == self.kind.no_room]
        at_once = f"{self.kind.no_room} within {self.late_ms:.0f} ms"
        test.breaches += [(pull, (at_once, pull.got)) for pull in refused if pull.after_ms > self.late_ms]
        test.title = f"{len(pulls):,} {self.kind.nouns} of one key: {len(taken):,} held, {len(refused):,} refused"
        no_limit = "" if refused else f"the broker has room for {len(pulls):,} {self.kind.nouns} of one key"
        test.untested = no_limit or self.doubt()
        return test

    def _answered(self, pulls: Sequence[_Pull], test: _Test) -> Sequence[_Pull]:
        """Wait for the answers and record breaches; return the pulls that the broker did not reject."""
        for pull in pulls:
            self.wait(pull)
        no_room_code = self.kind.no_room
        taken = [pull for pull in pulls if pull.code != no_room_code]
        refused = len(pulls) - len(taken)
        no_room = f"the broker has no room for {refused:,} of {len(pulls):,} {self.kind.nouns} (code {no_room_code})"
        test.untested = no_room if refused else self.doubt()
        test.breaches = [(pull, breach) for pull in taken if (breach := self.breach(pull))]
        if taken and not test.breaches:
            self._compare_best(taken, test)
        return taken

    def _compare_best(self, pulls: Sequence[_Pull], test: _Test) -> None:
        """Record a breach if even the most punctual answer to these pulls is late."""
        best = min(pulls, key=lambda pull: pull.after_ms - pull.due_ms)
        late_ms, most_ms = best.after_ms - best.due_ms, PUNCTUAL_MS + ECHOES * self.echo.usual_ms()
        if late_ms <= most_ms:
            return
        worst_ms = self.echo.worst_ms(best.due_s, best.due_s + late_ms / 1000)
        if late_ms > PUNCTUAL_MS + ECHOES * worst_ms:
            expected = f"some of {len(pulls):,} answered within {most_ms:.0f} ms"
            test.breaches.append((best, (expected, f"none within {late_ms:.0f} ms")))
        else:
            test.untested = test.untested or too_slow(worst_ms)

    def _forgotten(self, pulls: Sequence[_Pull]) -> Iterable[tuple[_Pull, Breach]]:
        """Return pulls answered well after many pulls with later deadlines, which RocketMQ's scan cannot cause."""
        ordered = sorted(pulls, key=lambda pull: pull.due_s)
        due_s = [pull.due_s for pull in ordered]
        answered_s = [pull.asked_s + pull.after_ms / 1000 for pull in ordered]
        for pull, at_s in zip(ordered, answered_s, strict=True):
            # Pulls reach the broker with different delays, so a scan may answer a pull later than pulls with later
            # deadlines.
            apart_ms = APART_MS + ECHOES * self.echo.worst_ms(pull.asked_s, pull.asked_s + APART_MS / 1000)
            begin = bisect_left(due_s, pull.due_s + apart_ms / 1000)
            next_s = sorted(answered_s[begin : begin + LATER])
            if len(next_s) < OVERTAKEN or at_s - next_s[OVERTAKEN - 1] < LATE_MS / 1000:
                continue
            slack_ms = ECHOES * self.echo.worst_ms(next_s[OVERTAKEN - 1], at_s)
            if at_s - next_s[OVERTAKEN - 1] > (LATE_MS + slack_ms) / 1000:
                yield (
                    pull,
                    (
                        f"{self.kind.at_deadline}, when {OVERTAKEN} later deadlines are answered",
                        f"{pull.got}, after them",
                    ),
                )


def see(
    place: Place,
    run: str,
    names: Sequence[str],
    echo: Echo,
    *,
    scans: bool,
    crowd: Crowd | None = None,
    kinds: Mapping[str, Kind] = PULLS,
) -> list[Result]:
    """Test the clauses with these names and return the results in order. Raises SilentError.

    A name contains the kind of request, the test, and the hold in milliseconds. If `scans` is true, an answer at the
    deadline may be late by up to a period of RocketMQ's scan.
    """
    kind_of = {name: kinds[name.split("-")[0]] for name in names}
    testers = [
        _Tester(place, kind, f"t{name}{run}", echo, SCAN_MS * scans, crowd or kind.crowd)
        for name, kind in kind_of.items()
    ]
    if any(ask(place, 17, topic_fields(each.topic))[0] is None for each in testers):
        raise SilentError("the broker does not answer a request to create a topic")
    with ThreadPoolExecutor(len(names) or 1) as pool:
        found = pool.map(lambda tester, name: tester.test(*name.split("-")[1:]), testers, names)
        return [_result(name, test) for name, test in zip(names, found, strict=True)]


def _result(name: str, test: _Test) -> Result:
    if not test.breaches:
        return result_of(name, test.title, test.untested)
    pull, breach = test.breaches[0]
    if pull.code == NO_PERMISSION:
        return result_of(name, test.title, "the broker lacks: readable")
    spoken = pull.line.frames_of(pull.opaque)
    return result_of(name, test.title, "", breach, spoken=spoken, seconds=pull.after_ms / 1000)


def result_of(
    name: str,
    title: str,
    untested: str,
    breach: Breach | None = None,
    *,
    spoken: tuple[RecordedFrame, ...] = (),
    seconds: float = 0.0,
) -> Result:
    """Create the result of a test. A breach proves a fault even if the test was incomplete."""
    clause, seen = BY_VECTOR[name], Seen(name, title)
    if breach is None:
        return Result(seen, clause, "UNTESTED" if untested else "PASS", untested)
    difference = Difference("answer, when", *breach)
    return Result(seen, clause, "FAIL", str(difference), (difference,), spoken, 0, seconds)
