"""Tests the clauses of pops: holding, as for pulls, and the invisible time of messages that a group popped.

If a broker has no pops, these clauses are neither tested nor counted. The test uses its own group with one member, and
pops four messages: it leaves one alone, acknowledges one, extends the invisible time of one, and shortens the invisible
time of one.

Source: `PopMessageProcessor`, `NotificationProcessor`, `PopReviveService`, `ExtraInfoUtil` of 5.5.0.
"""

from __future__ import annotations

import base64
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from types import MappingProxyType
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_conform import holds
from longpoll_conform.capabilities import NO_PERMISSION, Fields, ask, find_names, send_fields, topic_fields
from longpoll_conform.clauses import BY_VECTOR
from longpoll_conform.connection import ANSWER_S, COARSE_MS, Connection, Conversation, Echo, too_slow
from longpoll_conform.holds import ECHOES, QUEUES, Breach, Crowd, Kind
from longpoll_conform.play import UNKNOWN_CODE, Place
from longpoll_conform.suite import Result
from longpoll_conform.wire import NotReadableError, read_records

POP, ACKNOWLEDGE, CHANGE, NOTIFICATION = 200_050, 200_051, 200_053, 200_054
FULL, TIMEOUT = 209, 210
OF_TIME: Final = "invisible-"
"""The prefix of the names of checks about an invisible time."""
EARLY_MS: Final = 70
"""How many ms early an answer may arrive: `PopRequest.isTimeout` answers 50 ms early, and clocks have a limited
granularity."""
GROUP: Final = "GPOP"
GROUPS: Final = 8
MESSAGES: Final = ("shorter", "left", "longer", "acknowledged")
LONG_MS: Final = 60_000
"""An invisible time in ms that does not end during a test."""
LOOK_MS: Final = 1_000
"""The hold in ms of each pop that waits until a message is delivered again."""
APART_S: Final = 0.05
"""The minimum time in s between a pop and a change of its message's invisible time. RocketMQ may lose a message whose
invisible time is changed in the same millisecond as its pop (#10276)."""
TIMELY: Final = 0.6
"""The fraction of an invisible time within which the test must acknowledge a message or change the message's invisible
time."""


def pop_fields(topic: str, group: str, queue: int, hold_ms: int, hidden_ms: int = LONG_MS) -> Fields:
    """Return the fields of a pop, whose hold begins when the broker receives it, because `bornTime` is 0."""
    return {
        "consumerGroup": group, "topic": topic, "queueId": str(queue), "maxMsgNums": "32", "order": "false",
        "invisibleTime": str(hidden_ms), "pollTime": str(hold_ms), "bornTime": "0", "initMode": "0",
        "expType": "TAG", "exp": "*",
    }  # fmt: skip


def _of_queue(topic: str, number: int, _offset: int, hold_ms: int) -> Fields:
    return pop_fields(topic, f"GPOP{number // QUEUES % GROUPS}", number % QUEUES, hold_ms)


def _of_all(topic: str, number: int, _offset: int, hold_ms: int) -> Fields:
    return pop_fields(topic, f"GPOP{number % GROUPS}", -1, hold_ms)


def _told(answer: Mapping[str, Any]) -> int:
    """Return a pop's response code that corresponds to an answer to a notification, which has other fields."""
    fields = answer["extFields"] or {}
    if answer["code"] or fields.get("hasMsg") == "true":
        return int(answer["code"])
    return FULL if fields.get("pollingFull") == "true" else TIMEOUT


KINDS: Final[Mapping[str, Kind]] = MappingProxyType(
    {
        "pop": Kind(
            "pops", POP, _of_queue, Crowd(4, QUEUES * GROUPS, 160, 3_000, 1_200), TIMEOUT, FULL, early_ms=EARLY_MS
        ),
        "popany": Kind(
            "pops of all queues", POP, _of_all, Crowd(8, GROUPS, 80, 3_000), TIMEOUT, FULL,
            is_of_all=True, early_ms=EARLY_MS,
        ),
        # A notification leaves its message in the queue, so each queue can be used for only one round.
        "notification": Kind(
            "notifications", NOTIFICATION, _of_queue, Crowd(1, QUEUES * GROUPS, 80, 3_000), TIMEOUT, FULL,
            told=_told, early_ms=EARLY_MS,
        ),
    }
)  # fmt: skip


@frozen
class Times:
    """Invisible times of messages, in milliseconds."""

    hidden_ms: int = 3_000
    longer_ms: int = 8_000
    again_ms: int = 20_000
    """How many ms after its invisible time a message may be delivered again; RocketMQ takes two to seven seconds."""


@frozen
class _Got:
    """A message that a pop returned, or a change of its invisible time."""

    opaque: int
    asked_s: float
    at_s: float
    """When the request was sent, in seconds of the monotonic clock. The invisible time begins between this time and the
    answer."""
    fields: Fields
    breach: Breach | None = None


@define(eq=False)
class _Member:
    """The only member of a group.

    Invariant: `got` maps a body to the messages with this body that pops returned, in order.
    """

    place: Place
    topic: str
    echo: Echo
    times: Times
    line: Connection
    got: dict[str, list[_Got]] = field(factory=dict)
    done: dict[str, _Got] = field(factory=dict)
    """For each message, its last pop, acknowledgement or change, from which its invisible time counts."""

    def take(self, names: Collection[str], hidden_ms: int) -> None:
        for name in names:
            ask(self.place, 310, send_fields(self.topic), name.encode())
        end_s = time.monotonic() + ANSWER_S
        while time.monotonic() < end_s and not self.line.is_closed and not self.got.keys() >= set(names):
            self.pop(hidden_ms)

    def pop(self, hidden_ms: int) -> None:
        """Pop the messages that are available now or become available within `LOOK_MS`."""
        asked_s = time.monotonic()
        opaque = self.line.ask({"code": POP, "extFields": pop_fields(self.topic, GROUP, -1, LOOK_MS, hidden_ms)})
        answer = self.line.wait(opaque, LOOK_MS / 1000 + ANSWER_S)
        with suppress(NotReadableError, ValueError, KeyError):
            for name, fields in _messages(answer.command or {}, self.place.broker_name):
                self.got.setdefault(name, []).append(_Got(opaque, asked_s, answer.at_s, fields))

    def ask(self, code: int, name: str, **more: int) -> _Got:
        fields = {**self.got[name][0].fields, **{each: str(value) for each, value in more.items()}}
        asked_s = time.monotonic()
        opaque = self.line.ask({"code": code, "extFields": fields})
        answer = self.line.wait(opaque, ANSWER_S)
        got = self.line.missing if answer.command is None else str(answer.command["code"])
        return _Got(opaque, asked_s, answer.at_s, fields, None if got == "0" else (f"0 for request {code}", got))

    def play(self) -> None:
        """Pop messages, acknowledge one and change two, then pop until the others are delivered again or overdue."""
        hidden_ms, longer_ms = self.times.hidden_ms, self.times.longer_ms
        self.take(MESSAGES[:1], LONG_MS)
        self.take(MESSAGES[1:], hidden_ms)
        if len(self.got) < len(MESSAGES):
            return
        time.sleep(APART_S)
        self.done = {
            "acknowledged": self.ask(ACKNOWLEDGE, "acknowledged"),
            "longer": self.ask(CHANGE, "longer", invisibleTime=longer_ms),
            "shorter": self.ask(CHANGE, "shorter", invisibleTime=hidden_ms),
            "left": self.got["left"][0],
        }
        end_s = time.monotonic() + (longer_ms + self.times.again_ms) / 1000
        others = [self.got[name] for name in ("left", "longer", "shorter")]
        while time.monotonic() < end_s and not self.line.is_closed and any(len(each) == 1 for each in others):
            self.pop(LONG_MS)

    def result(self, name: str) -> Result:
        what = name.removeprefix(OF_TIME)
        message = what if what in MESSAGES else "left"
        title = f"message {message!r} of a group that pops it"
        if not self.done:
            return holds.result_of(name, title, "", ("pops of all messages", f"pops of {sorted(self.got)}"))
        done, first, *again = self.done[message], *self.got[message]
        spoken = tuple(frame for each in (first, done, *again[:1]) for frame in self.line.frames_of(each.opaque))
        breach = done.breach or self._breach(what, done, again)
        is_timely = done.at_s - first.asked_s < TIMELY * self.times.hidden_ms / 1000
        if message in {"acknowledged", "longer"} and done.breach is None and not is_timely:
            return holds.result_of(name, title, too_slow((done.at_s - done.asked_s) * 1000))
        if what == "acknowledged" and len(self.got["left"]) == 1:
            return holds.result_of(name, title, "no message was delivered again", breach, spoken=spoken)
        worst_ms = self.echo.worst_ms()
        return holds.result_of(name, title, too_slow(worst_ms) if worst_ms > COARSE_MS else "", breach, spoken=spoken)

    def _breach(self, what: str, done: _Got, again: Sequence[_Got]) -> Breach | None:
        """Return a breach if a message was delivered again too early, too late or never."""
        least_ms = self.times.longer_ms if what == "longer" else self.times.hidden_ms
        last_ms = least_ms + self.times.again_ms + ECHOES * self.echo.worst_ms()
        after_ms = (again[0].at_s - done.asked_s) * 1000 if again else math.inf
        got = f"again after {after_ms:.0f} ms" if again else "not again"
        if what == "acknowledged":
            return ("not again", got) if again else None
        if what != "over" and after_ms < least_ms - holds.EARLY_MS:
            return f"not again before {least_ms} ms", got
        return (f"again within {last_ms:.0f} ms", got) if what != "kept" and after_ms > last_ms else None


def _messages(answer: Mapping[str, Any], broker: str) -> Iterator[tuple[str, Fields]]:
    """Yields the body of each popped message, and the fields of requests about it. Raises ValueError."""
    fields = answer.get("extFields") or {}
    starts = dict(part.rsplit(" ", 1) for part in fields.get("startOffsetInfo", "").split(";") if " " in part)
    for record in read_records(answer.get("body") or b""):
        queue, offset = str(record["queueId"]), str(record["queueOffset"])
        popped = [fields[name] for name in ("popTime", "invisibleTime", "reviveQid")]
        own = " ".join([starts.get(f"0 {queue}", "0"), *popped, "0", broker, queue, offset])
        place = {"consumerGroup": GROUP, "topic": record["topic"], "queueId": queue, "offset": offset}
        handle = {"extraInfo": record["properties"].get("POP_CK", own)}
        yield base64.b64decode(record["body"]).decode(), place | handle


def see(
    place: Place, run: str, names: Sequence[str], echo: Echo, *, times: Times = Times(), crowd: Crowd | None = None
) -> list[Result]:
    """Test the clauses with these names and return the results in order. Raises SilentError."""
    topic = f"tpop{run}"
    why_not = _why_not(place, topic)
    if why_not:
        return [holds.result_of(name, BY_VECTOR[name].sentence, why_not) for name in names]
    timed = [name for name in names if name.startswith(OF_TIME)]
    others = [name for name in names if name not in timed]
    with ThreadPoolExecutor(1) as pool:
        follows = pool.submit(_follow, place, topic, timed, echo, times)
        held = holds.see(place, run, others, echo, scans=False, kinds=KINDS, crowd=crowd)
        found = {result.vector.id: result for result in (*held, *follows.result())}
    return [found[name] for name in names]


def _follow(place: Place, topic: str, names: Sequence[str], echo: Echo, times: Times) -> list[Result]:
    if not names:
        return []
    if not find_names(place):
        # Without a name server, the broker's name is unknown, and RocketMQ ignores a request about a popped message
        # that names another broker.
        return [holds.result_of(name, BY_VECTOR[name].sentence, "the broker lacks: name-server") for name in names]
    with closing(Connection("pop", place.broker, Conversation())) as line:
        member = _Member(place, topic, echo, times, line)
        member.play()
        return [member.result(name) for name in names]


def _why_not(place: Place, topic: str) -> str:
    """Return why the broker's pops are not tested; empty if they are tested."""
    ask(place, 17, topic_fields(topic))
    answer, _after_ms = ask(place, POP, pop_fields(topic, GROUP, -1, 0))
    if answer is None:
        return f"the broker never answers request {POP}"
    if answer["code"] == UNKNOWN_CODE:
        return f"the broker does not serve pops: it answers request {POP} with {UNKNOWN_CODE} (not supported)"
    return "the broker lacks: readable" if answer["code"] == NO_PERMISSION else ""
