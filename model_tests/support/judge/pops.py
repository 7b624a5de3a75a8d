"""Histories of a simulated broker that serves pops, correct or with one injected fault."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, Final

from attrs import define, field, frozen

from longpoll_spec.history import Event, Meta, Source

MS: Final = 1_000_000
META: Final = Meta(format_version=1, sources=[Source(name="s", clock="monotonic")])
POP, NOTIFICATION, ACK, CHANGE = 200_050, 200_054, 200_051, 200_053
TICK_MS: Final = 5
POLL_MS: Final = 2_000
HIDDEN_MS: Final = 6_000
REVIVE_MS: Final = 2_000
"""The time in ms from the end of a message's invisible time until the message is in the retry topic."""
AT_LEAST_MS: Final = 4_000
"""The earliest time in ms at which the fault is injected."""


@frozen
class Fault:
    """A fault that the simulated broker shows once."""

    sentence: str
    clause: str
    is_certain: bool = True


FAULTS: Final = {
    "wake_lost": Fault("a message wakes no waiting pop", "pop.wake.prompt"),
    "wake_late": Fault("a message wakes a pop after half a second", "pop.wake.prompt"),
    "deadline_late": Fault("a pop is answered 300 ms after its deadline", "pop.deadline.met"),
    "never_answered": Fault("a pop is never answered", "pop.answered"),
    "early": Fault("a held pop gets nothing half a second before its deadline", "pop.hold.not_early"),
    "twice": Fault("a pop is answered twice", "answer.once"),
    "hidden_short": Fault("a message comes again before its invisible time is over", "pop.invisible.kept"),
    "change_ignored": Fault(
        "a message comes again although its time was changed to a longer one", "pop.invisible.kept"
    ),
    "after_ack": Fault("a message comes again although it was acknowledged", "pop.acknowledged.final"),
    "never_again": Fault(
        "a message without acknowledgement never comes again", "pop.delivered.again", is_certain=False
    ),
    "wrong_queue": Fault("a pop of a queue gets a message of another", "pop.found.asked"),
    "wrong_topic": Fault("a pop gets a message of another topic", "pop.found.asked"),
    "swapped": Fault("two waiting pops get each other's answers", "pop.found.asked"),
    "too_many": Fault("a pop gets more messages than it asked for", "pop.found.at_most"),
    "repeated": Fault("a pop's answer has a message twice", "pop.found.once"),
    "empty": Fault("a pop is answered 0 without messages", "pop.found.some"),
    "wrong_tag": Fault("a pop gets a message that does not match its subscription", "pop.found.tag"),
    "strange_code": Fault("a pop is answered with a code of nothing", "pop.code.known"),
}


@define(eq=False)
class Message:
    """A message in its own queue or in the retry topic."""

    number: int
    queue: int
    offset: int
    is_retry: bool = False
    tag: str = "red"


@define(eq=False)
class Ask:
    """A pop or notification that waits for a message."""

    code: int
    request: str
    member: int
    queue: int
    due_ms: int
    most: int
    expression: str = "*"

    def wants(self, message: Message) -> bool:
        """Whether the broker may answer the request with this message."""
        is_there = message.is_retry or self.queue in {-1, message.queue}
        return is_there and (message.is_retry or self.expression in {"*", message.tag})


@define(eq=False)
class World:
    """Simulates a broker with two queues of topic T, a producer and three members of group G."""

    seed: int
    fault: str = ""
    seconds: int = 60
    events: list[tuple[float, dict[str, Any]]] = field(factory=list)
    _now: int = 0
    _stored: list[Message] = field(factory=list)
    """The messages that are visible to the group."""
    _asks: list[Ask] = field(factory=list)
    _later: list[tuple[int, Callable[[], None]]] = field(factory=list)
    _sent: int = 0
    _retried: int = 0
    _asked: int = 0
    _idle: set[int] = field(factory=lambda: {0, 1, 2})
    _is_spent: bool = False
    _chance: random.Random = field(init=False)
    _offsets: list[int] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._chance = random.Random(f"{self.seed} {self.fault}")
        self._offsets = [0, 0]
        for member in ("p", 0, 1, 2):
            self._tell(-1, "connection_opened", connection=f"c{member}")

    # -- the simulated steps -----------------------------------------------------------------------------------------

    def run(self) -> list[Event]:
        """Run the simulation; returns the history."""
        for now in range(0, self.seconds * 1_000, TICK_MS):
            self._now = now
            due = [act for at_ms, act in self._later if at_ms <= self._now]
            self._later = [one for one in self._later if one[0] > self._now]
            for act in due:
                act()
            # The producer stops early, so that the history is long enough to show a missing redelivery.
            if self._now < self.seconds * 400 and self._chance.random() < 0.012:
                self._send()
            for member in sorted(self._idle):
                if self._chance.random() < 0.2:
                    self._ask(member)
            for ask in [ask for ask in self._asks if ask.due_ms <= self._now]:
                self._expire(ask)
            for ask in [ask for ask in self._asks if ask.code == POP and ask.due_ms <= self._now + 500]:
                if self._breaks("early"):
                    self._answer(ask, 210)
        told = sorted(self.events, key=lambda one: one[0])
        whole = [
            self._event(-2, "source_started"),
            *(event for _at, event in told),
            self._event(self._now, "source_stopped"),
        ]
        return [Event(sequence=number, source="s", **event) for number, event in enumerate(whole)]

    def _breaks(self, fault: str) -> bool:
        """Returns true once, if this is the injected fault and `AT_LEAST_MS` have passed."""
        is_due = fault == self.fault and not self._is_spent and self._now > AT_LEAST_MS
        self._is_spent |= is_due
        return is_due

    def _send(self) -> None:
        number, queue, self._sent = self._sent + 1, self._chance.randrange(2), self._sent + 1
        message = Message(number, queue, self._offsets[queue], tag=self._chance.choice(["red", "red", "blue"]))
        self._offsets[queue] += 1
        own: dict[str, Any] = {
            "request": f"p-{number}",
            "connection": "cp",
            "queue": queue,
            "ids": [number],
            "bodies": [1],
        }
        self._tell(0, "request_received", code=10, **own)
        self._tell(1, "message_acknowledged", queue_offset=message.offset, tag=message.tag, **own)
        self._arrive(message)

    def _arrive(self, message: Message) -> None:
        """Make a message visible to the group, and answer the requests that wait for it."""
        self._stored.append(message)
        waiting = [ask for ask in self._asks if ask.wants(message)]
        pops = [ask for ask in waiting if ask.code == POP]
        is_plain = not message.is_retry and bool(pops) and pops[0].due_ms > self._now + 1_000
        if is_plain and len(waiting) == 1 and self._breaks("wake_lost"):
            return
        if is_plain and len(waiting) == 1 and self._breaks("wake_late"):
            self._later.append((self._now + 500, lambda: self._serve(pops[0])))
            return
        for ask in waiting:
            if ask.code == NOTIFICATION:
                self._answer(ask, 0, cause="woken")
        if pops:
            self._serve(pops[0])

    def _ask(self, member: int) -> None:
        self._idle.discard(member)
        self._asked += 1
        code = NOTIFICATION if self._chance.random() < 0.15 else POP
        queue = self._chance.choice([-1, -1, 0, 1])
        ask = Ask(code, f"c{member}-{self._asked}", member, queue, self._now + POLL_MS, self._chance.choice([1, 2, 8]))
        # Some member subscribes to every message, so it gets the messages that do not match another member's
        # subscription.
        ask.expression = self._chance.choice(["*", "*", "*", "red"])
        own: dict[str, Any] = {"count_max": ask.most, "delay_ms": HIDDEN_MS} if code == POP else {}
        self._tell(
            0, "request_received", code=code, request=ask.request, connection=f"c{member}", queue=queue, group="G",
            may_hold=True, timeout_ms=POLL_MS, expression_type="TAG", expression=ask.expression, **own,
        )  # fmt: skip
        self._asks.append(ask)
        if self._breaks("never_answered"):
            self._asks.remove(ask)
        elif code == POP:
            self._serve(ask)
        elif any(ask.wants(message) for message in self._stored):
            self._answer(ask, 0, cause="woken")

    def _serve(self, ask: Ask) -> None:
        found = [message for message in self._stored if ask.wants(message)][: ask.most]
        if ask not in self._asks or not found:
            return
        if len(found) == 1 and self._swap(ask, found[0]):
            return
        if self._breaks("strange_code"):
            self._answer(ask, 77)
            return
        if self._breaks("empty"):
            self._answer(ask, 0)
            return
        self._give(ask, self._replaced(ask, found))

    def _swap(self, ask: Ask, message: Message) -> bool:
        others = [one for one in self._asks if one.code == POP and ask.queue >= 0 and one.queue == 1 - ask.queue]
        if message.is_retry or not others or not self._breaks("swapped"):
            return False
        self._give(others[0], [message])
        return True

    def _replaced(self, ask: Ask, found: list[Message]) -> list[Message]:
        """Returns the messages of an answer, perhaps with one wrong message as the injected fault."""
        others = [message for message in self._stored if message not in found and not message.is_retry]
        strange = [one for one in others if ask.queue in {0, 1} and one.queue != ask.queue]
        refused = [one for one in others if ask.queue in {-1, one.queue} and not ask.wants(one)]
        more = [one for one in others if ask.wants(one)]
        for fault, taken in (("wrong_queue", strange), ("wrong_tag", refused)):
            if taken and len(found) < ask.most and self._breaks(fault):
                return [*found, taken[0]]
        if more and len(found) == ask.most and self._breaks("too_many"):
            return [*found, more[0]]
        return found

    def _give(self, ask: Ask, found: list[Message]) -> None:
        self._answer(ask, 0, hidden=found)
        for message in found:
            self._stored.remove(message)
            self._hide(ask.member, message)

    def _hide(self, member: int, message: Message) -> None:
        """Make a message invisible, and draw whether the member acknowledges it, changes its time or lets it return."""
        choice = self._chance.random()
        end_ms = self._now + HIDDEN_MS
        if choice < 0.7:
            self._later.append((self._now + 200, lambda: self._about(member, ACK, message)))
            if message.number % 2 and self._breaks("after_ack"):
                self._revive(message, end_ms)
            return
        if choice < 0.8:
            is_ignored = self._breaks("change_ignored")
            hidden_ms = 3 * HIDDEN_MS if is_ignored else self._chance.choice([100, HIDDEN_MS, 2 * HIDDEN_MS])
            self._later.append((self._now + 200, lambda: self._about(member, CHANGE, message, delay_ms=hidden_ms)))
            self._revive(message, end_ms if is_ignored else self._now + 210 + hidden_ms)
        elif not self._breaks("never_again"):
            self._revive(message, self._now + 1_000 - REVIVE_MS if self._breaks("hidden_short") else end_ms)

    def _revive(self, message: Message, end_ms: int) -> None:
        def again() -> None:
            self._retried += 1
            self._arrive(Message(message.number, 0, self._retried, is_retry=True, tag=message.tag))

        self._later.append((end_ms + REVIVE_MS, again))

    def _about(self, member: int, code: int, message: Message, **fields: Any) -> None:
        self._asked += 1
        own = {"request": f"c{member}-{self._asked}", "connection": f"c{member}", "queue": message.queue}
        cause = {"cause": "retry"} if message.is_retry else {}
        place = {"queue_offset": message.offset, "group": "G"} | cause
        self._tell(0, "request_received", code=code, **own, **place, **fields)
        self._tell(1, "answer_sent", code=0, **own)

    def _expire(self, ask: Ask) -> None:
        if ask.code == POP and self._breaks("deadline_late"):
            ask.due_ms += 300
            return
        if ask.code == POP:
            self._answer(ask, 210)
        else:
            self._answer(ask, 0, cause="expired")

    def _answer(self, ask: Ask, code: int, hidden: list[Message] | None = None, **fields: Any) -> None:
        self._asks.remove(ask)
        self._idle.add(ask.member)
        own = {"request": ask.request, "connection": f"c{ask.member}"}
        self._tell(2, "answer_sent", code=code, queue=ask.queue, **own, **fields)
        found = hidden or []
        is_repeated = bool(found) and not found[0].is_retry and self._breaks("repeated")
        for message in [*found, *(found[:1] if is_repeated else ())]:
            cause = {"cause": "retry"} if message.is_retry else {}
            topic = "U" if not message.is_retry and self._breaks("wrong_topic") else "T"
            place = {"queue": message.queue, "queue_offset": message.offset, "topic": topic}
            content = {"ids": [message.number], "bodies": [1], "tag": message.tag, "delay_ms": HIDDEN_MS}
            self._tell(2.1, "message_popped", group="G", **own, **cause, **content, **place)
        if hidden and self._breaks("twice"):
            self._tell(3, "answer_sent", code=code, queue=ask.queue, **own)

    def _tell(self, after_ms: float, kind: str, **fields: Any) -> None:
        self.events.append((self._now + after_ms, self._event(self._now + after_ms, kind, **fields)))

    def _event(self, moment_ms: float, kind: str, **fields: Any) -> dict[str, Any]:
        begin_ns = round((10_000 + moment_ms) * MS)
        place = {} if kind.startswith(("source", "connection")) else {"topic": "T"}
        return {"event": kind, "after_ns": begin_ns, "before_ns": begin_ns + MS // 2, "broker": "b"} | place | fields
