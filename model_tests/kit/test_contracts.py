"""Services that limit, cut or forget waiting polls are found; right services with other contracts are not accused.

The kinds are those of public reports on Redis, NATS, Kafka, SQS clones, Consul, Telegram and others.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, ClassVar, Final

import pytest
from attrs import define, field
from hypothesis import Phase, settings
from model_tests.kit.services import MESSAGES_MAX, Feed, InMemory, Poll, RepeatsItself, TakeQueue
from model_tests.kit.test_kit import GOOD, PATIENT, SEED, excuse_nothing, machine
from model_tests.support.spec.cases import quick_if

from longpoll_kit.errors import ViolationError
from longpoll_kit.run import KitReport
from longpoll_kit.subject import LongPollSubject, Polled, Semantics, wait_of

FEW: Final = settings(max_examples=1, stateful_step_count=1, database=None, phases=(Phase.generate,))
STRICT: Final = {"wake_ms": 300, "late_ms": 200, "long_ms": 600, "burst": 5, "polls_max": 40, "silence_ms": 2_500}
"""Limits with which a fault is found soon. No right service is tried with them, because a busy machine breaks them."""
NEVER_MS: Final = 2_500
"""Longer than the kit waits for an answer here; the thread of such a poll must end before its test does."""


# -- what is limited, cut or forgotten ---------------------------------------------------------------------------------


class Limited(Feed):
    """At most `most` polls wait."""

    most: ClassVar[int] = 10

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    @contextmanager
    def counted(self) -> Iterator[bool]:
        """Whether there is room for one more."""
        with self.changed:
            self.count += 1
            has_room = self.count <= self.most
        try:
            yield has_room
        finally:
            with self.changed:
                self.count -= 1


class SendsAway(Limited):
    """One too many is answered at once with nothing."""

    def poll(self, poll: Poll) -> list[bytes]:
        with self.counted() as has_room:
            poll.timeout_ms *= has_room
            return super().poll(poll)


class SendsAwayOf32(SendsAway):
    """The same with room for more."""

    most = 32


class Forgets(Limited):
    """One too many is never answered."""

    most = 32

    def poll(self, poll: Poll) -> list[bytes]:
        with self.counted() as has_room:
            poll.timeout_ms = poll.timeout_ms if has_room else poll.timeout_ms + NEVER_MS
            return super().poll(poll)


class Pool(Feed):
    """Each poll holds one of ten threads while it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.threads = threading.Semaphore(10)

    def poll(self, poll: Poll) -> list[bytes]:
        with self.threads:
            poll.received = time.monotonic()  # the service reads it only now
            return super().poll(poll)


class SharedPool(Pool):
    """A publish needs one of the threads too."""

    def publish(self, queue: str, body: bytes) -> None:
        with self.threads:
            super().publish(queue, body)


class WakesEight(Feed):
    """A message wakes only the first eight."""

    def publish(self, queue: str, body: bytes) -> None:
        with self.changed:
            self.queues[queue].append(body)
            self.changed.notify(8)


class NeverEndsAtZero(Feed):
    """A wait of 0 means no deadline."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms = poll.timeout_ms or NEVER_MS
        return super().poll(poll)


class CutsSilence(Feed):
    """A proxy in between ends a request after a second of silence."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms = min(poll.timeout_ms, 1_000)
        return super().poll(poll)


class WaitsAgain(TakeQueue):
    """A poll that was woken and finds nothing waits its whole time again."""

    def poll(self, poll: Poll) -> list[bytes]:
        with self.changed:
            self.polls.add(poll)
            while not (poll.is_cancelled or self.has_some(poll)) and self.changed.wait(poll.timeout_ms / 1000):
                pass
            return [] if poll.is_cancelled else self.answer(poll)


class HangsBehindTheEnd(Feed):
    """A position behind the end is waited for without a deadline."""

    def poll(self, poll: Poll) -> list[bytes]:
        if poll.offset > len(self.queues[poll.queue]):
            poll.timeout_ms += NEVER_MS
        return super().poll(poll)


class NeverHolds(Feed):
    """Every poll is answered at once."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms = 0
        return super().poll(poll)


MISSED: Final[dict[type[Feed], tuple[set[str], Mapping[str, Any]]]] = {
    SendsAway: ({"not_early"}, {}),
    SendsAwayOf32: ({"not_early"}, {}),
    Forgets: ({"answered_by_deadline"}, {}),
    Pool: ({"answered_by_deadline", "nothing_lost", "no_lost_wakeup"}, {}),
    SharedPool: ({"answered_by_deadline", "no_lost_wakeup"}, {}),
    WakesEight: ({"no_lost_wakeup"}, {}),
    NeverEndsAtZero: ({"answered_by_deadline"}, {}),
    CutsSilence: ({"not_early"}, {}),
    WaitsAgain: ({"answered_by_deadline"}, {}),
    HangsBehindTheEnd: ({"answered_by_deadline"}, {}),
    NeverHolds: ({"holds"}, {"may_answer_early": True}),
}
"""A service with a fault -> the properties by which it is found, and its settings."""
QUICK: Final = {SendsAway, WaitsAgain, HangsBehindTheEnd, NeverHolds, CutsSilence}
"""One of each step that no other test has."""


@pytest.mark.parametrize("service", quick_if(MISSED, QUICK.__contains__), ids=lambda service: service.__name__)
def test_what_a_service_does_with_many_or_odd_polls_is_found(
    service: type[Feed], monkeypatch: pytest.MonkeyPatch
) -> None:
    excuse_nothing(monkeypatch)
    monkeypatch.setattr("longpoll_kit.example.GIVEN_UP_MS", 1_500)
    properties, attributes = MISSED[service]
    report = machine(lambda: InMemory(service()), **STRICT, **attributes).exercise(FEW, SEED)

    assert (report.verdict, report.property in properties) == ("invalid", True), report


# -- other contracts ---------------------------------------------------------------------------------------------------


class WholeSeconds(Feed):
    """It reads a wait in seconds, without a fraction."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms = poll.timeout_ms // 1000 * 1000
        return super().poll(poll)


class WaitsForEverAtZero(NeverEndsAtZero):
    """A wait of 0 means no deadline, and its documentation says so."""


class AtMostASecond(CutsSilence):
    """It waits for a second at most, and its documentation says so."""


class AnyOrder(TakeQueue):
    """It gives the newest messages first."""

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        return [queue.pop() for _ in queue[:MESSAGES_MAX]]


class TellsNewest(Feed):
    """A poll gets the newest message alone."""

    semantics: Semantics = "newest"

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll) and self.queues[poll.queue][-1:]


class TellsOld(TellsNewest):
    """A poll that is far behind gets the next message instead of the newest."""

    def answer(self, poll: Poll) -> list[bytes]:
        return self.queues[poll.queue][poll.offset :][:1]


class Confirmed(Feed):
    """A position deletes what is before it; a deleted message can't be read any more."""

    semantics: Semantics = "confirming"

    def __init__(self) -> None:
        super().__init__()
        self.gone: dict[str, int] = {}

    def poll(self, poll: Poll) -> list[bytes]:
        with self.changed:
            self.gone[poll.queue] = max(self.gone.get(poll.queue, 0), poll.offset)
        return super().poll(poll)

    def answer(self, poll: Poll) -> list[bytes]:
        first = max(poll.offset, self.gone[poll.queue])
        return self.queues[poll.queue][first:][:MESSAGES_MAX]


class ConfirmsUnread(Confirmed):
    """An answer confirms its own messages and one more."""

    def answer(self, poll: Poll) -> list[bytes]:
        found = super().answer(poll)
        self.gone[poll.queue] += len(found) + 1
        return found


@define(eq=False)
class Leased:
    """A service that gives a message again if nobody acknowledges it in time."""

    lease_s: float = 0.2
    changed: threading.Condition = field(factory=threading.Condition)
    queues: dict[str, list[bytes]] = field(factory=dict)
    leases: dict[tuple[str, bytes], float] = field(factory=dict)

    def publish(self, queue: str, body: bytes) -> None:
        with self.changed:
            self.queues.setdefault(queue, []).append(body)
            self.changed.notify_all()

    def free(self, queue: str) -> list[bytes]:
        now = time.monotonic()
        return [body for body in self.queues.get(queue, ()) if self.leases.get((queue, body), 0.0) <= now]

    def take(self, queue: str, timeout_ms: int) -> list[bytes]:
        until = time.monotonic() + timeout_ms / 1000
        with self.changed:
            while not (found := self.free(queue)) and (left_s := until - time.monotonic()) > 0:
                ends = [end for (name, _body), end in self.leases.items() if name == queue]
                self.changed.wait(max(0.0, min([left_s, *(end - time.monotonic() for end in ends)])))
            for body in found[:1]:
                self.leases[queue, body] = time.monotonic() + self.lease_s
            return found[:1]

    def acknowledge(self, queue: str, bodies: list[bytes]) -> None:
        with self.changed:
            left = [body for body in self.queues[queue] if body not in bodies]
            self.queues[queue] = left


class NeverAgain(Leased):
    """A message that is not acknowledged is lost."""

    def take(self, queue: str, timeout_ms: int) -> list[bytes]:
        found = super().take(queue, timeout_ms)
        for body in found:
            self.leases[queue, body] = time.monotonic() + 3_600
        return found


class TooSoon(Leased):
    """A message comes again long before its time."""

    def take(self, queue: str, timeout_ms: int) -> list[bytes]:
        found = super().take(queue, timeout_ms)
        for body in found:
            self.leases[queue, body] = time.monotonic()
        return found


class Undead(Leased):
    """An acknowledgement is forgotten."""

    def acknowledge(self, queue: str, bodies: list[bytes]) -> None:
        """Drop it."""


class LeasedSubject(LongPollSubject):
    """A leased service; the kit acknowledges."""

    semantics = "consuming"
    order = "none"
    redelivery_ms = 200

    def __init__(self, service: Leased) -> None:
        self.service = service

    def publish(self, queue: str, body: bytes) -> None:
        self.service.publish(queue, body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[str, int, list[bytes]]:
        """The last is for its answer."""
        return queue, timeout_ms, []

    def finish_poll(self, handle: tuple[str, int, list[bytes]]) -> Polled:
        handle[2][:] = self.service.take(*handle[:2])
        return Polled(handle[2])

    def acknowledge(self, handle: tuple[str, int, list[bytes]]) -> None:
        self.service.acknowledge(handle[0], handle[2])


class NewestSubject(InMemory):
    """Its position is the number of the newest message."""

    def finish_poll(self, handle: Poll) -> Polled:
        bodies = self.service.poll(handle)
        if not bodies:
            return Polled()
        return Polled(bodies, position_next=self.service.queues[handle.queue].index(bodies[-1]) + 1)


def declared(kind: Callable[[Any], LongPollSubject], service: Callable[[], Any], **contract: Any) -> Any:
    """A function that makes a subject which declares a contract."""

    def make() -> LongPollSubject:
        subject = kind(service())
        for name, value in contract.items():
            setattr(subject, name, value)
        return subject

    return make


RIGHT: Final[dict[str, tuple[Any, Mapping[str, Any]]]] = {
    "whole seconds": (declared(InMemory, WholeSeconds, wait_unit_ms=1_000), {}),
    "0 is for ever": (declared(InMemory, WaitsForEverAtZero, wait_min_ms=1), {}),
    "a second at most": (declared(InMemory, AtMostASecond, wait_max_ms=1_000), {"silence_ms": 2_000}),
    "any order": (declared(InMemory, AnyOrder, order="none"), {}),
    "the newest alone": (declared(NewestSubject, TellsNewest), {}),
    "a position confirms": (declared(InMemory, Confirmed), {}),
    "given again": (declared(LeasedSubject, Leased), {}),
    "many wait": (declared(InMemory, Feed), {"polls_max": 200}),
}
"""A right service, as it declares itself, and settings."""
FAULTY: Final[dict[str, tuple[Any, set[str]]]] = {
    "fractions cut, undeclared": (declared(InMemory, WholeSeconds), {"not_early"}),
    "any order, undeclared": (declared(InMemory, AnyOrder), {"in_order"}),
    "old values": (declared(NewestSubject, TellsOld), {"nothing_lost"}),
    "confirms what nobody read": (declared(InMemory, ConfirmsUnread), {"nothing_lost", "no_lost_wakeup", "not_early"}),
    "never given again": (declared(LeasedSubject, NeverAgain), {"given_again"}),
    "given again at once": (declared(LeasedSubject, TooSoon), {"answered_once"}),
    "given again though acknowledged": (declared(LeasedSubject, Undead), {"answered_once"}),
    "given again, undeclared": (declared(LeasedSubject, TooSoon, redelivery_ms=None), {"answered_once"}),
    "twice in one answer": (declared(InMemory, RepeatsItself), {"answered_once"}),
}
"""A service that does not keep what it declares -> the properties by which it is found."""


def exercise(make: Any, chosen: settings = FEW, **attributes: Any) -> KitReport:
    return machine(make, **attributes).exercise(chosen, SEED)


@pytest.mark.parametrize("name", quick_if(RIGHT, {"given again"}.__contains__))
def test_a_right_service_with_another_contract_is_not_accused(name: str) -> None:
    make, attributes = RIGHT[name]
    limits: dict[str, Any] = {**PATIENT, "burst": 20, "polls_max": 12, "silence_ms": 0, **attributes}
    report = exercise(make, settings(GOOD, max_examples=2, stateful_step_count=10), **limits)

    assert report.property == "", report


@pytest.mark.parametrize("name", FAULTY)
def test_a_declared_contract_is_tested_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    excuse_nothing(monkeypatch)
    make, properties = FAULTY[name]
    limits: dict[str, Any] = {**STRICT, "silence_ms": 0, "polls_max": 2}
    report = exercise(make, settings(FEW, max_examples=20, stateful_step_count=10), **limits)

    assert (report.verdict, report.property in properties) == ("invalid", True), report


def test_a_wait_is_rounded_up_to_what_the_service_accepts() -> None:
    subject = declared(InMemory, Feed, wait_unit_ms=1_000, wait_min_ms=1, wait_max_ms=3_000)()
    plain = declared(InMemory, Feed)()

    assert [wait_of(subject, wait_ms) for wait_ms in (0, 1, 1_000, 1_001, 60_000)] == [
        1_000,
        1_000,
        1_000,
        2_000,
        3_000,
    ]
    assert [wait_of(plain, wait_ms) for wait_ms in (0, 1, 60_000)] == [0, 1, 60_000]


class DropsAtTheDeadline(TakeQueue):
    """A poll whose time is up looks once more, takes what has come, and answers nothing."""

    def poll(self, poll: Poll) -> list[bytes]:
        taken = super().poll(poll)
        return taken if taken and poll.left_s() > 0 else self.drop(poll)

    def drop(self, poll: Poll) -> list[bytes]:
        with self.changed:
            self.changed.wait_for(lambda: self.has_some(poll), 0.05)
            del self.queues[poll.queue][:1]
        return []


def test_a_message_that_meets_a_deadline_is_not_lost() -> None:
    """The step publishes before and after the deadline, so that one of them meets a service's last look."""
    limits: dict[str, Any] = {**PATIENT, "polls_max": 2, "silence_ms": 0}
    mine = machine(partial(InMemory, DropsAtTheDeadline()), **limits)()
    with pytest.raises(ViolationError, match=r"nothing_lost|no_lost_wakeup"):
        mine.brink(queue=0, payload=b"", rounds=5, timeout_ms=50)
    mine.teardown()


def test_a_poll_that_was_stopped_is_not_counted_as_held() -> None:
    """It may have reached the service only when its message was there."""
    limits: dict[str, Any] = {**PATIENT, "burst": 5, "polls_max": 2, "silence_ms": 0}
    mine = machine(partial(InMemory, Feed()), **limits)()
    mine.preempt(queue=0, payload=b"", who="poll")
    counts = dict(mine.run.counts)
    mine.teardown()

    assert "held and woken" not in counts
    assert sum(counts.values()) > 0
