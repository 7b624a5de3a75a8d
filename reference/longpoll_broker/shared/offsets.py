"""The offsets that groups have committed, by queue.

As in RocketMQ 4.9, any offset is accepted, even if it is lower than the stored offset or the queue is unknown; limits
bound the memory. With light queues, a group named `%LMQ%...` has one offset per topic, whatever queue the commit names
(`LmqConsumerOffsetManager.java`).

Threads may share an object whose `guard` is a lock; reads need no lock. Persistence: see `upkeep.config_files`. Source:
`ConsumerOffsetManager.java`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_protocol.names import LMQ_PREFIX, name_problem

SEPARATOR: Final = "@"
OFFSET_COUNT_MAX: Final = 1_000_000
"""Maximum offsets of all queues of all (topic, group) pairs; further offsets are refused."""
TURN_COUNT: Final = 10_000
"""Number of (topic, group) pairs visited before other connections are served, which takes about 2 ms."""
QUEUE_COUNT_MAX: Final = 4096
"""Maximum queues per pair of topic and group; offsets of further queues are refused."""
OFFSETS_FULL: Final = "too many offsets are stored; this one is not"


@define(slots=True, eq=False)
class Offsets:
    """Committed offsets by topic and group, then by queue. As in `Topics`, `changed` is set after every change."""

    by_pair: dict[str, dict[int, int]] = field(factory=dict)
    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    quota: Quota = field(factory=lambda: Quota("offsets", OFFSET_COUNT_MAX), init=False)
    light: bool = False
    """`enableLmq`: a light group has one queue per topic, number 0."""
    pulled: Offsets | None = None
    """The offsets of each group's last pull, which some versions report; these offsets are not saved."""
    changed: bool = field(default=False, init=False)
    has_forgotten: bool = field(default=False, init=False)
    """Whether offsets of a deleted topic or group were removed since the last save."""
    _strays: dict[str, set[str]] = field(factory=dict, init=False)
    """The groups that have committed offsets for topics that do not exist, by topic."""

    def pulled_to(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns the offset of a group's last pull, or None if it is not recorded."""
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
        """Store an offset; returns false if a limit forbids a new entry.

        With `forward_only` a lower offset is ignored, because the offset in a pull may be older than the consumer's
        last commit. A consumer's explicit commit is always stored.
        """
        pair = f"{topic}{SEPARATOR}{group}"
        if self.light and group.startswith(LMQ_PREFIX):
            queue_id = 0
        # The guard makes the comparison and the assignment one step, because another thread may commit in between.
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
        """Count the entries that were loaded from a file."""
        for pair, queues in self.by_pair.items():
            self.quota.take(pair, size=len(queues))

    def query(self, topic: str, group: str, queue_id: int) -> int | None:
        """Returns the committed offset of a queue, or None if the group has committed no offset."""
        if self.light and group.startswith(LMQ_PREFIX):
            queue_id = 0
        return self.by_pair.get(f"{topic}{SEPARATOR}{group}", {}).get(queue_id)

    def topics_of(self, group: str) -> Generator[None, None, list[str]]:
        """Returns the topics in which a group has offsets. The generator yields to let other connections be served."""
        suffix, found = SEPARATOR + group, list[str]()
        for number, pairs in enumerate(self._parts()):
            if number:
                yield
            found += [pair.removesuffix(suffix) for pair in pairs if pair.endswith(suffix)]
        return found

    def topics_by_group(self, groups: Collection[str]) -> Generator[None, None, dict[str, list[str]]]:
        """Returns the result of `topics_of` for each of these groups, with one pass over the table."""
        found: dict[str, list[str]] = {group: [] for group in groups}
        left = TURN_COUNT
        for pair in itertools.chain.from_iterable(self._parts()):
            # A group's name may contain the separator, and then its retry topic's name contains it too: try every
            # separator.
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
        """Returns the groups that have offsets in a topic. The generator yields to let other connections be served."""
        prefix, found = topic + SEPARATOR, list[str]()
        for number, pairs in enumerate(self._parts()):
            if number:
                yield
            found += [pair.removeprefix(prefix) for pair in pairs if pair.startswith(prefix)]
        return found

    def _parts(self) -> Iterator[list[str]]:
        pairs = list(self.by_pair)
        for start in range(0, len(pairs), TURN_COUNT):
            yield pairs[start : start + TURN_COUNT]

    def is_light(self, pair: str) -> bool:
        """Whether the group of a pair is a light group."""
        return self.light and pair.partition(SEPARATOR)[2].startswith(LMQ_PREFIX)

    def clone(self, topic: str, group: str, other: str, channel: Hashable = None) -> bool:
        """Copy a group's offsets in a topic to another group; returns false if there is not enough room."""
        pair = f"{topic}{SEPARATOR}{other}"
        queues = self.by_pair.get(f"{topic}{SEPARATOR}{group}")
        if queues is None:
            return True
        with self.guard:
            if not self.quota.take(pair, channel, len(queues)):
                return False
            self.by_pair[pair] = queues.copy()
            self.changed = True
        return True

    def forget_group(self, group: str) -> None:
        """Remove one group's offsets of every topic."""
        if self.pulled is not None:
            self.pulled.forget_group(group)
        suffix = SEPARATOR + group
        self._forget(lambda pair: pair.endswith(suffix))

    def forget_topic(self, topic: str) -> None:
        """Remove every group's offsets of one topic."""
        if self.pulled is not None:
            self.pulled.forget_topic(topic)
        prefix = topic + SEPARATOR
        self._forget(lambda pair: pair.startswith(prefix))

    def note_stray(self, topic: str, group: str) -> None:
        """Record a commit for a topic that does not exist; a live consumer may commit after the topic's deletion."""
        if name_problem(topic) is None:
            with self.guard:
                self._strays.setdefault(topic, set()).add(group)

    def forget_strays(self, topic: str) -> None:
        """Remove the offsets that were committed before the topic existed; they do not refer to its messages."""
        with self.guard:
            groups = self._strays.pop(topic, ())
        self._remove(f"{topic}{SEPARATOR}{group}" for group in groups)

    def _forget(self, is_meant: Callable[[str], bool]) -> None:
        with self.guard:
            pairs = list(self.by_pair)
        # The pass over the table runs without the guard, so that commits do not wait for a large table.
        self._remove(filter(is_meant, pairs))

    def _remove(self, pairs: Iterable[str]) -> None:
        for pair in pairs:
            topic, _at, group = pair.partition(SEPARATOR)
            with self.guard:
                if self.by_pair.pop(pair, None) is not None:
                    self.quota.release(pair)
                    self.changed = self.has_forgotten = True
                if topic in self._strays:
                    self._strays[topic].discard(group)
                    if not self._strays[topic]:
                        del self._strays[topic]
