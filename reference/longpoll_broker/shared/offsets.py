"""How far each group has consumed each queue, as the groups themselves say.

Any offset is stored, also a lower one or one of an unknown queue, as RocketMQ 4.9 does; limits bound the memory. With
light queues a group named `%LMQ%...` has one offset a topic, whatever queue it names (`LmqConsumerOffsetManager.java`).
May be shared between threads with a lock as `guard`; reading needs none. Leaves out persistence
(`upkeep.config_files`). Source: `ConsumerOffsetManager.java`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_protocol.names import LMQ_PREFIX

SEPARATOR: Final = "@"
OFFSET_COUNT_MAX: Final = 1_000_000
"""Most offsets, each of a topic, a group and a queue; a commit for one more is refused."""
TURN_COUNT: Final = 10_000
"""Pairs that are looked at in one turn: some 2 ms."""
QUEUE_COUNT_MAX: Final = 4096
"""Most queues of one pair; a commit for one more is refused."""


@define(slots=True, eq=False)
class Offsets:
    """Committed offsets by topic and group, then by queue; `changed` is set after every change, as in `topics`."""

    by_pair: dict[str, dict[int, int]] = field(factory=dict)
    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    quota: Quota = field(factory=lambda: Quota("offsets", OFFSET_COUNT_MAX), init=False)
    light: bool = False
    """`enableLmq`: a light group has one queue of each topic, number 0."""
    pulled: Offsets | None = None
    """The offsets that groups asked for last, for a version that tells them; they are not saved."""
    changed: bool = field(default=False, init=False)
    has_forgotten: bool = field(default=False, init=False)
    """Whether the deletion of a topic or group waits for these to be saved."""

    def pulled_to(self, topic: str, group: str, queue_id: int) -> int | None:
        """The offset that a group asked for last, where that is noted."""
        return None if self.pulled is None else self.pulled.query(topic, group, queue_id)

    def commit(
        self,
        topic: str,
        group: str,
        queue_id: int,
        offset: int,
        *,
        forward_only: bool = False,
        channel: Hashable = None,
    ) -> bool:
        """Store an offset; false when a limit forbids a new entry.

        With `forward_only` a lower one than is there changes nothing: what a pull carries along may be older than what
        its consumer has said since. A consumer's own word counts whatever it is.
        """
        pair = f"{topic}{SEPARATOR}{group}"
        if self.light and group.startswith(LMQ_PREFIX):
            queue_id = 0
        # Looking whether an offset goes forward and storing it are one: another thread's may come between.
        with self.guard:
            queues = self.by_pair.get(pair, {})
            if queue_id not in queues:
                if len(queues) >= QUEUE_COUNT_MAX or not self.quota.take(pair, channel, len(queues) + 1):
                    return False
                self.by_pair[pair] = queues
            if forward_only and offset < queues.get(queue_id, offset):
                return True
            queues[queue_id] = offset
            self.changed = True
        return True

    def note_loaded(self) -> None:
        """Count what was read from a file."""
        for pair, queues in self.by_pair.items():
            self.quota.take(pair, size=len(queues))

    def lay_over(self, table: Mapping[str, Mapping[int, int]], channel: Hashable = None) -> None:
        """Take over another broker's offsets, pair by pair (`SlaveSynchronize.syncConsumerOffset`).

        Pairs that it does not have stay; what would be too much is left out.
        """
        with self.guard:
            for pair, queues in table.items():
                is_new = len(queues) <= QUEUE_COUNT_MAX and self.by_pair.get(pair) != queues
                if is_new and self.quota.take(pair, channel, len(queues)):
                    self.by_pair[pair] = dict(queues)
                    self.changed = True

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """The stored offset; None when there is none."""
        if self.light and group.startswith(LMQ_PREFIX):
            queue_id = 0
        return self.by_pair.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id)

    def topics_of(self, group: str) -> Generator[None, None, list[str]]:
        """The topics that a group has stored offsets of; yields where others may have their turn."""
        suffix, found = SEPARATOR + group, list[str]()
        for number, pairs in enumerate(self._parts()):
            if number:
                yield
            found += [pair.removesuffix(suffix) for pair in pairs if pair.endswith(suffix)]
        return found

    def topics_by_group(self, groups: Collection[str]) -> Generator[None, None, dict[str, list[str]]]:
        """What `topics_of` tells of each of these groups, the table being gone through once; yields likewise."""
        found: dict[str, list[str]] = {group: [] for group in groups}
        left = TURN_COUNT
        for pair in itertools.chain.from_iterable(self._parts()):
            # A group may have the mark in its name, and then its retry topic has it too.
            at = pair.find(SEPARATOR)
            while at >= 0:
                topics = found.get(pair[at + 1 :])
                if topics is not None:
                    topics.append(pair[:at])
                at = pair.find(SEPARATOR, at + 1)
                left -= 1
            if left <= 0:
                yield
                left = TURN_COUNT
        return found

    def groups_of(self, topic: str) -> Generator[None, None, list[str]]:
        """The groups that have stored offsets of a topic; yields likewise."""
        prefix, found = topic + SEPARATOR, list[str]()
        for number, pairs in enumerate(self._parts()):
            if number:
                yield
            found += [pair.removeprefix(prefix) for pair in pairs if pair.startswith(prefix)]
        return found

    def _parts(self) -> Iterator[list[str]]:
        """The pairs that there are now, as many at a time as one turn looks at."""
        pairs = list(self.by_pair)
        for start in range(0, len(pairs), TURN_COUNT):
            yield pairs[start : start + TURN_COUNT]

    def is_light(self, pair: str) -> bool:
        """Whether a pair's group is a light one."""
        return self.light and pair.partition(SEPARATOR)[2].startswith(LMQ_PREFIX)

    def clone(self, topic: str, group: str, other: str, channel: Hashable = None) -> None:
        """Let another group of a topic have the offsets that this one has; nothing when it has none."""
        queues = self.by_pair.get(f"{topic}{SEPARATOR}{group}")
        if queues is not None:
            self.lay_over({f"{topic}{SEPARATOR}{other}": queues.copy()}, channel)

    def forget_group(self, group: str) -> None:
        """Drop one group's offsets of every topic."""
        if self.pulled is not None:
            self.pulled.forget_group(group)
        suffix = SEPARATOR + group
        self._forget(lambda pair: pair.endswith(suffix))

    def forget_topic(self, topic: str) -> None:
        """Drop every group's offsets of one topic."""
        if self.pulled is not None:
            self.pulled.forget_topic(topic)
        prefix = topic + SEPARATOR
        self._forget(lambda pair: pair.startswith(prefix))

    def _forget(self, is_meant: Callable[[str], bool]) -> None:
        with self.guard:
            pairs = list(self.by_pair)
        # Looked for without the guard: no commit waits until a large table is gone through.
        for pair in filter(is_meant, pairs):
            with self.guard:
                if self.by_pair.pop(pair, None) is not None:
                    self.quota.release(pair)
                    self.changed = self.has_forgotten = True
