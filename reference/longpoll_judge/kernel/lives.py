"""The generations of all queues of a window, called lives. Each life has its own log, and each log has a number.

A queue with one life has one log. A queue with several lives has a log for each life, and one more log for the events
that overlap a change of generations (`evidence.generations`); only rules that need no log judge events that overlap a
change. The log of a life also has the messages of earlier lives that a restart cannot have lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from attrs import frozen

from longpoll_judge.columns.lookup import Booleans, Integers
from longpoll_judge.evidence.generations import NEITHER, Generation, Generations
from longpoll_judge.evidence.survey import Context
from longpoll_judge.kernel.gathered import closes_from, gather
from longpoll_judge.kernel.window import Window
from longpoll_judge.read.schema import INTEGER_LIMIT

REQUEST_EVENTS = ("request_received", "answer_sent", "hold", "take", "keep", "expire", "run", "stop")
"""The events that a verdict on a request uses."""


@frozen(eq=False)
class Lives:
    """The logs of a window's queues."""

    window: Window
    context: Context
    changed: list[tuple[Generations, Integers]]
    """The queues with several lives, as pairs of their generations and the numbers of all queues that share them."""
    base: Integers
    """For each queue, the number of the queue's first log."""
    queue: Integers
    """For each log, the number of its queue."""
    number: Integers
    """For each log, the number of its life; `NEITHER` for the log of events that overlap a change."""
    first_known: Integers
    """For each log, the offset from which on the record has all messages; -1 if it must be inferred from the log's
    messages."""

    @property
    def count(self) -> int:
        """The number of logs."""
        return len(self.queue)

    @cached_property
    def is_single(self) -> Booleans:
        """For each queue, whether it has only one life."""
        found = np.ones(len(self.base), dtype=np.bool_)
        for _lives, queues in self.changed:
            found[queues] = False
        return found

    @cached_property
    def is_neither(self) -> Booleans:
        """For each log, whether it has the events that overlap a change."""
        found: Booleans = self.number == NEITHER
        return found

    def _parts(self, rows: Integers) -> Iterator[tuple[Generations, Integers]]:
        """For each group of queues with several lives, yields the lives and the positions of the queues' rows."""
        queue = self.window.queue[rows]
        for lives, queues in self.changed:
            is_mine = np.zeros(len(self.base), dtype=np.bool_)
            is_mine[queues] = True
            yield lives, np.flatnonzero(is_mine[queue])

    def _each(self, rows: Integers) -> Iterator[tuple[Generation, Integers, Integers]]:
        """Yields each life of the queues with several lives, with the positions of its queues' rows and their logs."""
        for lives, places in self._parts(rows):
            first = self.base[self.window.queue[rows[places]]] - NEITHER
            for number in range(len(lives.changes) + 1):
                yield lives.life(number), places, first + number

    def _moments(self, rows: Integers) -> tuple[Integers, Integers]:
        return self.window.integers("after_ns", rows), self.window.integers("before_ns", rows)

    def of(self, rows: Integers) -> Integers:
        """Returns the log that each event belongs to by its own timestamps."""
        found = self.base[self.window.queue[rows]]
        for lives, places in self._parts(rows):
            found[places] += lives.number(*self._moments(rows[places])) - NEITHER
        return found

    def sure(self, rows: Integers) -> tuple[Integers, Integers]:
        """Returns pairs of an event and a log to which it certainly belongs. An event may be in several pairs."""
        return self._described(rows, lambda life, moments: life.sure(*moments))

    def possible(self, rows: Integers) -> tuple[Integers, Integers]:
        """Returns pairs of an event and a log to which it may belong. An event may be in several pairs."""
        return self._described(rows, lambda life, moments: life.possible(*moments))

    def doubtful(self, rows: Integers) -> tuple[Integers, Integers]:
        """Returns the pairs of `possible` that are not in `sure`."""
        single = self.is_single[self.window.queue[rows]]
        return self._described(rows[~single], lambda life, moments: life.possible(*moments) & ~life.sure(*moments))

    def _described(
        self, rows: Integers, are_theirs: Callable[[Generation, tuple[Integers, Integers]], Booleans]
    ) -> tuple[Integers, Integers]:
        single = rows[self.is_single[self.window.queue[rows]]]
        found, logs = [single], [self.base[self.window.queue[single]]]
        for life, places, log in self._each(rows):
            mine = are_theirs(life, self._moments(rows[places]))
            found.append(rows[places[mine]])
            logs.append(log[mine])
        return np.concatenate(found), np.concatenate(logs)

    def are_sure(self, rows: Integers, log: Integers) -> Booleans:
        """Returns which events certainly belong to the log at the same position in `log`."""
        queue = self.window.queue[rows]
        found: Booleans = self.is_single[queue] & (self.base[queue] == log)
        for life, places, logs in self._each(rows):
            found[places] |= life.sure(*self._moments(rows[places])) & (log[places] == logs)
        return found

    @cached_property
    def of_requests(self) -> Integers:
        """For each row, the log that contains the event's whole request; a request without an answer has no end."""
        window = self.window
        every = np.arange(len(window))
        found = self.base[window.queue]
        if not self.changed:
            return found
        first_ns, last_ns = window.integers("after_ns", every), window.integers("before_ns", every)
        key = window.request_key
        # Skip other events that name a request, such as the acknowledgement of a message, or a late recheck.
        mine = (key >= 0) & window.are_of(REQUEST_EVENTS)
        count = int(key.max(initial=-1)) + 1
        first_of, last_of = (np.full(count, none, dtype=np.int64) for none in (INTEGER_LIMIT, -INTEGER_LIMIT))
        np.minimum.at(first_of, key[mine], first_ns[mine])
        np.maximum.at(last_of, key[mine], last_ns[mine])
        answered = np.zeros(count, dtype=np.bool_)
        answers = window.rows("answer_sent")
        answered[key[answers[mine[answers]]]] = True
        # An open request may be answered in any later life while its connection is open.
        last_of[~answered] = INTEGER_LIMIT
        received = window.rows("request_received")
        if self.context.restarts:
            waiting = received[mine[received]]
            waiting = waiting[~answered[key[waiting]]]
            asked = gather(window.table, waiting)
            last_of[key[waiting]] = closes_from(asked, asked.after_ns, self.context)[1]
        first_ns, last_ns = first_ns.copy(), last_ns.copy()
        first_ns[mine], last_ns[mine] = first_of[key[mine]], last_of[key[mine]]
        for lives, queues in self.changed:
            rows = np.flatnonzero(np.isin(window.queue, queues))
            found[rows] += lives.number(first_ns[rows], last_ns[rows]) - NEITHER
        return found


def make_lives(window: Window, context: Context, *, restarts: bool = True) -> Lives:
    """Returns the lives of a window's queues. If `restarts` is true, each restart begins a new life."""
    changed: dict[int, tuple[Generations, list[int]]] = {}
    known: dict[tuple[str, str], Generations | None] = {}
    is_any = bool(context.deleted or context.begun_anew or any(map(len, context.life_holes.values())))
    is_any |= restarts and bool(context.restarts)
    for queue, name in enumerate(window.names if is_any else ()):
        if name in context.begun_anew:
            lives = context.lives(name, restarts=restarts)
        elif name[:2] in known:
            lives = known[name[:2]]
        else:
            lives = known[name[:2]] = context.lives(name, restarts=restarts)
        if lives is not None:
            changed.setdefault(id(lives), (lives, []))[1].append(queue)
    size = np.ones(len(window.names), dtype=np.int64)
    for lives, queues in changed.values():
        size[queues] = len(lives.changes) + 2
    base = np.cumsum(size) - size
    number = np.zeros(int(size.sum()), dtype=np.int64)
    first_known = np.full(len(number), -1, dtype=np.int64)
    for lives, queues in changed.values():
        first = base[queues]
        number[first] = NEITHER
        for life in range(len(lives.changes) + 1):
            number[first + 1 + life] = life
            told = lives.life(life).first_known
            first_known[first + 1 + life] = -1 if told is None else told
    together = [(lives, np.array(queues, dtype=np.int64)) for lives, queues in changed.values()]
    return Lives(window, context, together, base, np.repeat(np.arange(len(size)), size), number, first_known)
