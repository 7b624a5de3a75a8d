"""Small long-polling services in memory, and subjects with which the kit tests them, in real or virtual time.

Clients read a `Feed` by offset and consume a `TakeQueue`. A fault is a parameter, or a subclass with one wrong method.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from attrs import define, field

from longpoll_kit.subject import LongPollSubject, Polled, Semantics
from longpoll_runtime import Condition, Event, Runtime
from longpoll_runtime.real import RealRuntime

MESSAGES_MAX = 3
MS: Final = 1_000_000


@define(eq=False)
class Poll:
    queue: str
    offset: int
    timeout_ms: int
    until_ns: int = 0
    is_cancelled: bool = False
    beats: int = 0
    others: tuple[Poll, ...] = ()
    looks_at: int = 2
    """The number of the poll's queues whose messages can wake the poll."""
    woken: Event = field(factory=lambda: RealRuntime().event())


@define(eq=False, slots=False)
class Feed:
    runtime: Runtime = field(factory=RealRuntime)
    wakes: int = 1_000_000
    holds: Callable[[int], int] = lambda timeout_ms: timeout_ms
    """Timeout of a poll in ms -> the time in ms that the service holds the poll."""
    gives: Callable[[list[bytes]], list[bytes]] = lambda messages: messages
    """The messages of the correct answer -> the messages of the actual answer."""
    keeps: Callable[[bytes], bytes] = lambda body: body
    names: Callable[[str], str] = lambda queue: queue
    beats: int = 0
    """The milliseconds between two heartbeats; 0 for none."""
    semantics: Semantics = "offsets"
    queues: dict[str, list[bytes]] = field(factory=lambda: defaultdict(list))
    polls: list[Poll] = field(factory=list)
    changed: Condition = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.changed = self.runtime.condition()

    def publish(self, queue: str, body: bytes) -> None:
        with self.changed:
            self.queues[self.names(queue)].append(self.keeps(body))
            self.changed.notify(min(self.wakes, len(self.polls)))

    def begin(self, queue: str, offset: int, timeout_ms: int) -> Poll:
        until_ns = self.runtime.monotonic_ns() + self.holds(timeout_ms) * MS
        return Poll(self.names(queue), offset, timeout_ms, until_ns, woken=self.runtime.event())

    def left_s(self, poll: Poll) -> float:
        return max(0.0, (poll.until_ns - self.runtime.monotonic_ns()) / 1e9)

    def poll(self, poll: Poll) -> list[bytes]:
        with self.changed:
            self.wait(poll)
            return [] if poll.is_cancelled else self.gives(self.answer(poll))

    def wait(self, poll: Poll) -> None:
        """Wait for messages; called with the lock held, as are `has_some` and `answer`."""
        self.polls.append(poll)
        while not (poll.is_cancelled or self.has_some(poll)) and (left_s := self.left_s(poll)) > 0:
            poll.beats += not self.changed.wait(min(left_s, self.beats / 1000 or left_s))
        self.polls.remove(poll)

    def has_some(self, poll: Poll) -> bool:
        return any(len(self.queues[each.queue]) > each.offset for each in (poll, *poll.others)[: poll.looks_at])

    def answer(self, poll: Poll) -> list[bytes]:
        return self.queues[poll.queue][poll.offset :][:MESSAGES_MAX]

    def cancel(self, poll: Poll) -> None:
        with self.changed:
            poll.is_cancelled = True
            self.changed.notify_all()

    def delete(self, queue: str) -> None:
        for poll in [each for each in self.polls if each.queue == queue]:
            self.cancel(poll)
        self.queues.pop(queue, None)

    def restart(self) -> None:
        for poll in list(self.polls):
            self.cancel(poll)


@define(eq=False, slots=False)
class TakeQueue(Feed):
    """Queues in which each message goes to one poll."""

    semantics: Semantics = "consuming"

    def has_some(self, poll: Poll) -> bool:
        return any(self.queues[each.queue] for each in (poll, *poll.others)[: poll.looks_at])

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        taken, queue[:] = queue[:MESSAGES_MAX], queue[MESSAGES_MAX:]
        return taken


# -- races -------------------------------------------------------------------------------------------------------------


class LooksThenWaits(Feed):
    """The lost wakeup: a message that arrives between the check and the wait wakes no poll."""

    look_s = 0.0

    def publish(self, queue: str, body: bytes) -> None:
        self.queues[queue].append(body)
        self.wake(queue)

    def wake(self, queue: str) -> None:
        for poll in list(self.polls):
            if poll.queue == queue:
                poll.woken.set()

    def poll(self, poll: Poll) -> list[bytes]:
        if not self.has_some(poll):
            if self.look_s:
                poll.woken.wait(self.look_s)
            self.polls.append(poll)
            poll.woken.wait(self.left_s(poll))
            self.polls.remove(poll)
        return [] if poll.is_cancelled else self.answer(poll)

    def cancel(self, poll: Poll) -> None:
        poll.is_cancelled = True
        poll.woken.set()


class SlowToHold(LooksThenWaits):
    """The lost wakeup with a long time between the check and the wait, as with a database."""

    look_s = 0.005


class NotifiesThenAppends(LooksThenWaits):
    """A poll is notified before the message is readable."""

    def publish(self, queue: str, body: bytes) -> None:
        self.wake(queue)
        self.queues[queue].append(body)

    def poll(self, poll: Poll) -> list[bytes]:
        """Join the list before the check, and wait again after a wake that brought no message."""
        self.polls.append(poll)
        while not self.has_some(poll) and not poll.is_cancelled and self.left_s(poll) > 0:
            poll.woken.wait(self.left_s(poll))
            poll.woken.clear()
        self.polls.remove(poll)
        return [] if poll.is_cancelled else self.answer(poll)


class LosesAtOnce(Feed):
    """Two concurrent publishes read the queue, and the later write removes the message of the earlier write."""

    def publish(self, queue: str, body: bytes) -> None:
        before = list(self.queues[queue])
        with self.changed:
            self.changed.wait(0.002)
        self.queues[queue] = before
        super().publish(queue, body)


class TakesAtOnce(TakeQueue, LosesAtOnce):
    """Two concurrent publishes lose a message, in a queue where each message goes to one poll."""


class NewestPollFirst(TakeQueue):
    """A message goes to the poll that arrived last."""

    def has_some(self, poll: Poll) -> bool:
        mine = [each for each in self.polls if each.queue == poll.queue]
        return super().has_some(poll) and mine[-1:] in ([], [poll])

    def wait(self, poll: Poll) -> None:
        super().wait(poll)
        self.changed.notify_all()


class LooksAgain(Feed):
    """A waiting poll is not notified of messages, so it checks for them every 20 ms."""

    def wait(self, poll: Poll) -> None:
        while not (poll.is_cancelled or self.has_some(poll)) and self.left_s(poll) > 0:
            self.polls.append(poll)
            self.changed.wait(min(self.left_s(poll), 0.02))
            self.polls.remove(poll)


class VisibleLater(LooksAgain):
    """A message can be read only 30 ms after its publish has returned."""

    def publish(self, queue: str, body: bytes) -> None:
        super().publish(f"times of {queue}", b"%d" % (self.runtime.monotonic_ns() + 30 * MS))
        super().publish(queue, body)

    def has_some(self, poll: Poll) -> bool:
        return bool(self.answer(poll))

    def answer(self, poll: Poll) -> list[bytes]:
        now_ns, times = self.runtime.monotonic_ns(), self.queues[f"times of {poll.queue}"][poll.offset :]
        return super().answer(poll)[: sum(int(time) <= now_ns for time in times)]


class GivesToAll(TakeQueue):
    """Two waiting polls get the same message, because both check for it before one of them takes it."""

    def answer(self, poll: Poll) -> list[bytes]:
        taken = self.queues[poll.queue][:MESSAGES_MAX]
        self.changed.wait(0.001)
        self.queues[poll.queue] = [each for each in self.queues[poll.queue] if each not in taken]
        return taken


# -- services with one wrong method ------------------------------------------------------------------------------------


class GivesUpOnOthers(Feed):
    """Any publish ends every wait."""

    def wait(self, poll: Poll) -> None:
        self.polls.append(poll)
        if not self.has_some(poll) and not poll.is_cancelled:
            self.changed.wait(self.left_s(poll))
        self.polls.remove(poll)


class BeginsOneBefore(Feed):
    """The last message of an answer is also the first message of the next answer."""

    def answer(self, poll: Poll) -> list[bytes]:
        return self.queues[poll.queue][max(poll.offset - 1, 0) :][:MESSAGES_MAX] if self.has_some(poll) else []


class ForgetsOnRestart(Feed):
    """Acknowledged messages are lost at a restart."""

    def restart(self) -> None:
        super().restart()
        self.queues.clear()


class TakesAfterCancel(TakeQueue):
    """A cancelled poll stays waiting and takes a message that no client gets."""

    def poll(self, poll: Poll) -> list[bytes]:
        taken = super().poll(poll)
        return [] if poll.woken.is_set() else taken

    def cancel(self, poll: Poll) -> None:
        poll.woken.set()


class ServesAfterCancel(TakeQueue):
    """A cancel has no effect, so the poll is served later."""

    def cancel(self, poll: Poll) -> None:
        """Let the poll continue to wait."""


class DropsAtCancel(TakeQueue):
    """A cancel removes the messages that its poll would have got."""

    def cancel(self, poll: Poll) -> None:
        super().cancel(poll)
        del self.queues[poll.queue][:1]


class AnyOrder(TakeQueue):
    """The newest messages are delivered first."""

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        return [queue.pop() for _ in queue[:MESSAGES_MAX]]


class NewestFirst(TakeQueue):
    """Messages are delivered one at a time, the newest first."""

    def answer(self, poll: Poll) -> list[bytes]:
        return [queue.pop()] if (queue := self.queues[poll.queue]) else []


class AnswersNothingAtTimes(TakeQueue):
    """A poll that finds many messages returns none."""

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll) if len(self.queues[poll.queue]) < MESSAGES_MAX else []


class DropsWhatIsBuffered(Feed):
    """A queue holds 128 unread messages and drops later ones."""

    read = 0

    def publish(self, queue: str, body: bytes) -> None:
        if len(self.queues[queue]) - self.read < 128:
            super().publish(queue, body)

    def answer(self, poll: Poll) -> list[bytes]:
        self.read = max(self.read, poll.offset)
        return super().answer(poll)


class TakesMoreThanItGives(TakeQueue):
    """An answer has at most 100,000 bytes, and messages taken beyond this are lost."""

    def answer(self, poll: Poll) -> list[bytes]:
        taken = super().answer(poll)
        while sum(map(len, taken)) > 100_000:
            taken.pop()
        return taken


class WaitsAgain(TakeQueue):
    """A poll that is woken without a message waits its whole time again."""

    def wait(self, poll: Poll) -> None:
        self.polls.append(poll)
        while not (poll.is_cancelled or self.has_some(poll)) and self.changed.wait(poll.timeout_ms / 1000):
            pass
        self.polls.remove(poll)


class DropsAtTheDeadline(TakeQueue):
    """At its deadline a poll takes the arrived messages, and answers without them."""

    def answer(self, poll: Poll) -> list[bytes]:
        taken = super().answer(poll)
        if self.left_s(poll) > 0:
            return taken
        self.changed.wait(0.05)
        del self.queues[poll.queue][:1]
        return []


class DropsBeforeTheDeadline(TakeQueue):
    """A message that arrives in the last 20 ms of a wait is taken at the deadline, but the poll does not return it."""

    def has_some(self, poll: Poll) -> bool:
        return self.left_s(poll) > 0.02 and super().has_some(poll)

    def answer(self, poll: Poll) -> list[bytes]:
        taken = super().answer(poll)
        return taken if self.left_s(poll) > 0 else []


NEVER_MS: Final = 20_000
"""Longer than the kit waits for an answer, in ms."""


class HangsBehindTheEnd(Feed):
    """A poll at a position after the end of the queue waits without a deadline."""

    def wait(self, poll: Poll) -> None:
        if poll.offset > len(self.queues[poll.queue]):
            poll.until_ns += NEVER_MS * MS
        super().wait(poll)


class ForgetsIdle(Feed):
    """A queue that was idle for 4 s loses its messages."""

    used_ns = 0

    def publish(self, queue: str, body: bytes) -> None:
        now_ns = self.runtime.monotonic_ns()
        if now_ns - self.used_ns > 4_000 * MS:
            self.queues[queue].clear()
        self.used_ns = now_ns
        super().publish(queue, body)


class LateOnce(Feed):
    """Exactly one poll waits too long."""

    was_late = False

    def wait(self, poll: Poll) -> None:
        if not self.was_late and poll.timeout_ms in {10, 50}:
            type(self).was_late = True
            poll.until_ns += 800 * MS
        super().wait(poll)


# -- limits ------------------------------------------------------------------------------------------------------------


@define(eq=False, slots=False)
class Limited(Feed):
    """At most `most` polls wait. Any further poll is answered at once without messages, or waits `beyond_ms` longer."""

    most: int = 10
    beyond_ms: int = -NEVER_MS

    def wait(self, poll: Poll) -> None:
        if len(self.polls) >= self.most:
            poll.until_ns += self.beyond_ms * MS
        super().wait(poll)


@define(eq=False, slots=False)
class Pool(Feed):
    """Each waiting poll holds one of ten threads. A publish also needs a thread if the pool is shared."""

    is_shared: bool = False
    busy: int = 0

    @contextmanager
    def thread(self) -> Iterator[None]:
        with self.changed:
            while self.busy == 10:
                self.changed.wait()
            self.busy += 1
        yield
        with self.changed:
            self.busy -= 1
            self.changed.notify_all()

    def poll(self, poll: Poll) -> list[bytes]:
        with self.thread():
            # The timeout begins only when the service reads the request.
            poll.until_ns = self.runtime.monotonic_ns() + poll.timeout_ms * MS
            return super().poll(poll)

    def publish(self, queue: str, body: bytes) -> None:
        if not self.is_shared:
            super().publish(queue, body)
            return
        with self.thread():
            super().publish(queue, body)


# -- other contracts ---------------------------------------------------------------------------------------------------


class TellsNewest(Feed):
    """A poll gets only the newest message."""

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll) and self.queues[poll.queue][-1:]


class TellsOld(Feed):
    """A poll that is far behind gets the next message instead of the newest."""

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll)[:1]


@define(eq=False, slots=False)
class Confirmed(Feed):
    """A poll from a position deletes the messages before this position."""

    more: int = -1
    """An answer deletes its own messages and this many messages after them; with -1 it deletes none."""
    gone: dict[str, int] = field(factory=lambda: defaultdict(int))

    def answer(self, poll: Poll) -> list[bytes]:
        first = self.gone[poll.queue] = max(self.gone[poll.queue], poll.offset)
        found = self.queues[poll.queue][first:][:MESSAGES_MAX]
        if self.more >= 0:
            self.gone[poll.queue] += len(found) + self.more
        return found


class DeletesQuietly(Feed):
    """Polls of a deleted queue wait until their deadlines."""

    def delete(self, queue: str) -> None:
        self.queues.pop(queue, None)


class HangsAtDeletion(Feed):
    """Polls of a deleted queue lose their deadlines."""

    def delete(self, queue: str) -> None:
        for poll in self.polls:
            poll.until_ns += NEVER_MS * MS * (poll.queue == queue)


@define(eq=False, slots=False)
class Leased(LooksAgain, TakeQueue):
    """A message is delivered again if it is not acknowledged in time."""

    lease_ms: int = 200
    forgets: bool = False
    """Whether the service loses acknowledgements."""
    leases: dict[bytes, int] = field(factory=dict)

    def has_some(self, poll: Poll) -> bool:
        return bool(self.free(poll))

    def free(self, poll: Poll) -> list[bytes]:
        now_ns = self.runtime.monotonic_ns()
        return [body for body in self.queues[poll.queue] if self.leases.get(body, 0) <= now_ns]

    def answer(self, poll: Poll) -> list[bytes]:
        found = self.free(poll)[:1]
        self.leases.update(dict.fromkeys(found, self.runtime.monotonic_ns() + self.lease_ms * MS))
        return found

    def acknowledge(self, queue: str, bodies: Sequence[bytes]) -> None:
        if not self.forgets:
            self.queues[queue] = [each for each in self.queues[queue] if each not in bodies]


class OfKeys(TakeQueue):
    """The messages of each key are in order, but messages of different keys are not."""

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        last = max((body.partition(b"=")[0] for body in queue), default=b"")
        return self.take(queue, [body for body in queue if body.startswith(last)])

    def take(self, queue: list[bytes], of_key: list[bytes]) -> list[bytes]:
        for body in of_key[:1]:
            queue.remove(body)
        return [body.partition(b"=")[2] for body in of_key[:1]]


class NewestOfKeyFirst(OfKeys):
    """The newest message of a key is delivered first."""

    def take(self, queue: list[bytes], of_key: list[bytes]) -> list[bytes]:
        return super().take(queue, of_key[::-1])


@define(eq=False, slots=False)
class KeepsForTheGone(TakeQueue):
    """The oldest poll is served first, even after its deadline, when its client no longer reads the answer."""

    line: list[Poll] = field(factory=list)

    def begin(self, queue: str, offset: int, timeout_ms: int) -> Poll:
        poll = super().begin(queue, offset, timeout_ms)
        self.line.append(poll)
        return poll

    def has_some(self, poll: Poll) -> bool:
        first = next((each for each in self.line if each.queue == poll.queue), poll)
        return super().has_some(poll) and first is poll

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll) if self.has_some(poll) else []

    def poll(self, poll: Poll) -> list[bytes]:
        found = super().poll(poll)
        with self.changed:
            self.line.remove(poll)
            self.changed.notify_all()
        return found


@define(eq=False, slots=False)
class Slow(TakeQueue):
    """Requests wait in line and each publish takes long, but the service is correct."""

    takes_s: float = 0.5
    is_busy: bool = False

    def publish(self, queue: str, body: bytes) -> None:
        with self.changed:
            while self.is_busy:
                self.changed.wait()
            self.is_busy = True
        self.runtime.event().wait(self.takes_s)
        super().publish(queue, body)
        with self.changed:
            self.is_busy = False
            self.changed.notify_all()


# -- subjects that connect a service to the kit ------------------------------------------------------------------------


class InMemory(LongPollSubject):
    durable = True

    def __init__(self, service: Feed | None = None, **contract: Any) -> None:
        self.service = service or Feed()
        self.semantics = self.service.semantics
        vars(self).update(contract)

    def publish(self, queue: str, body: bytes) -> None:
        self.service.publish(queue, body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Poll:
        """Create a poll; the service receives it at the first wait."""
        return self.service.begin(queue, position or 0, timeout_ms)

    def finish_poll(self, handle: Poll) -> Polled:
        bodies = self.service.poll(handle)
        return Polled(bodies, position_next=handle.offset + len(bodies))

    def cancel(self, handle: Poll) -> None:
        self.service.cancel(handle)

    def restart(self) -> None:
        self.service.restart()


class Newest(InMemory):
    def finish_poll(self, handle: Poll) -> Polled:
        bodies = self.service.poll(handle)
        known = self.service.queues[handle.queue]
        return Polled(bodies, position_next=known.index(bodies[-1]) + 1) if bodies else Polled()


class Acknowledged(LongPollSubject):
    semantics = "consuming"
    order = "none"

    def __init__(self, service: Leased, **contract: Any) -> None:
        self.service = service
        vars(self).update(contract)

    def publish(self, queue: str, body: bytes) -> None:
        self.service.publish(queue, body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Poll, list[bytes]]:
        return self.service.begin(queue, 0, timeout_ms), []

    def finish_poll(self, handle: tuple[Poll, list[bytes]]) -> Polled:
        handle[1][:] = self.service.poll(handle[0])
        return Polled(handle[1])

    def acknowledge(self, handle: tuple[Poll, list[bytes]]) -> None:
        self.service.acknowledge(handle[0].queue, handle[1])


class Keyed(InMemory):
    order = "key"

    def publish_keyed(self, queue: str, key: str, body: bytes) -> None:
        self.publish(queue, key.encode() + b"=" + body)


class Able(InMemory):
    looks_at = 2
    ends_at_deletion = True
    heartbeat_ms = 100

    def start_poll_of(self, queues: Sequence[str], positions: Sequence[Any], timeout_ms: int) -> Poll:
        polls = [
            self.start_poll(queue, position, timeout_ms) for queue, position in zip(queues, positions, strict=True)
        ]
        polls[0].others = tuple(polls[1:])
        polls[0].looks_at = self.looks_at
        return polls[0]

    def finish_poll(self, handle: Poll) -> Polled:
        answer = super().finish_poll(handle)
        if not handle.others:
            return answer
        of_others = {each.queue: self.service.answer(each) for each in handle.others}
        bodies = [*answer.bodies, *itertools.chain.from_iterable(of_others.values())]
        offsets = {each.queue: each.offset + len(of_others[each.queue]) for each in handle.others}
        return Polled(bodies, position_next={handle.queue: answer.position_next, **offsets})

    def delete_queue(self, queue: str) -> None:
        self.service.delete(queue)

    def heartbeats(self, handle: Poll) -> int:
        return handle.beats


class EndsSeveralEarly(Able):
    def start_poll_of(self, queues: Sequence[str], positions: Sequence[Any], timeout_ms: int) -> Poll:
        return super().start_poll_of(queues, positions, 0)


class AddsToSeveral(Able):
    """An answer from several queues has an additional message that belongs to no queue."""

    def finish_poll(self, handle: Poll) -> Polled:
        answer = super().finish_poll(handle)
        more = [b"nowhere/0/"] if handle.others else []
        return Polled([*answer.bodies, *more], position_next=answer.position_next)
