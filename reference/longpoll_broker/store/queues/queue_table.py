"""The consume queues of a store by topic and id: found on opening, created with their first message.

Locks: see `message_store`. Queues: see `consume_queue`.

Source: `DefaultMessageStore.consumeQueueTable`.
"""

from __future__ import annotations

import errno
from collections.abc import Set as AbstractSet
from typing import Final

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import TopicLeavingError
from longpoll_broker.store.queues.consume_queue import ConsumeQueue
from longpoll_broker.store.queues.consume_queue_ext import ConsumeQueueExt
from longpoll_broker.store.segment import Maps, SegmentList
from longpoll_runtime import Files, Lock

OTHER_MAPS: Final = 4096
"""Maps reserved for the program, the log and the index."""
MAPS_MAX: Final = 16_384
"""Maximum mapped files of queues: each costs some kilobytes, mostly in the kernel's page tables."""
MAPS_MIN: Final = 1
"""Minimum: a queue works even if its file is mapped for every message."""


class Topic:
    """A topic: its name as encoded in records, and its queues."""

    __slots__ = ("part", "queues")

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self.part = bytes((len(encoded),)) + encoded
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """The queues. Invariant: each queue occurs once, and its directory is `consumequeue/TOPIC/QUEUE`.

    Leftovers of a deleted topic are removed before a queue is created. A topic in `leaving` is not in `topics` and gets
    no queues. Writers hold the owner's lock; readers need none.
    """

    __slots__ = (
        "_config",
        "_extended_root",
        "_files",
        "_guard",
        "_left",
        "_lengthen",
        "_maps",
        "_root",
        "_store",
        "leaving",
        "topics",
    )

    def __init__(self, files: Files, directory: str, config: StoreConfig, guard: Lock, *, lengthen: bool) -> None:
        """Create an empty table; with `lengthen`, after a crash, a newest file that is too short is extended.

        `guard` is held briefly when a queue gets or loses a file.
        """
        self._files = files
        self._guard = guard
        self._store = directory
        self._root = f"{directory}/consumequeue"
        self._extended_root = f"{directory}/consumequeue_ext"
        self._config = config
        self._lengthen = lengthen
        self.topics: dict[str, Topic] = {}
        self.leaving: dict[str, Topic] = {}
        """Topics being deleted, whose files still exist."""
        self._left: dict[str, list[ConsumeQueue]] = {}
        """Queues of deleted topics whose files could not be removed, by topic."""
        self._maps = Maps(min(max(files.maps_max() - OTHER_MAPS, MAPS_MIN), MAPS_MAX))

    def load(self) -> None:
        """Find every queue that has files; raises StoreUserError and OSError."""
        for name in self._files.list(self._root):
            for queue_name in self._listed(f"{self._root}/{name}"):
                if queue_name.isascii() and queue_name.isdigit() and self._listed(f"{self._root}/{name}/{queue_name}"):
                    self.make(name, int(queue_name))

    def _listed(self, path: str) -> list[str]:
        try:
            return self._files.list(path)
        except NotADirectoryError:
            return []

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """Returns the queue, if it is known."""
        known = self.topics.get(topic)
        return known.queues.get(queue_id) if known is not None else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Find or create a queue; its files are created with its first unit.

        Raises OSError if files of a deleted topic of this name remain, and TopicLeavingError while it is being deleted.
        """
        known = self.topics.get(topic)
        if known is None:
            if topic in self.leaving:
                raise TopicLeavingError(errno.EBUSY, f"the broker is deleting the topic {topic}; try again later")
            self.remove_left(topic)
            known = self.topics[topic] = Topic(topic)
        queue = known.queues.get(queue_id)
        if queue is None:
            # Also for a known topic: some of its queues may have been deleted.
            self.remove_left(topic)
            name, config = f"{topic}/{queue_id}", self._config
            extended = None
            if config.extended_queues:
                extended = ConsumeQueueExt(self._segments(f"{self._extended_root}/{name}", config.extended_file_size))
            segments = self._segments(f"{self._root}/{name}", config.consume_queue_file_size)
            follows_log = config.minimum_follows_log
            queue = ConsumeQueue(segments, topic, queue_id, extended, follows_log=follows_log)
            known.queues[queue_id] = queue
        return queue

    def _segments(self, directory: str, file_size: int) -> SegmentList:
        return SegmentList(
            self._files,
            directory,
            file_size,
            lengthen=self._lengthen,
            maps=self._maps,
            store=self._store,
            guard=self._guard,
        )

    def all(self) -> list[ConsumeQueue]:
        """Every queue, including those of topics being deleted."""
        topics = (*self.topics.copy().values(), *self.leaving.copy().values())
        return [queue for topic in topics for queue in list(topic.queues.values())]

    def leave(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> None:
        """Hide a topic during its deletion, so that it is neither found nor created; ignores an unknown one.

        With `queue_ids` only these queues are hidden, unless the topic has no others.
        """
        if topic in self.topics:
            leaving = Topic(topic)
            leaving.queues = {queue.queue_id: queue for queue in self.forget(topic, queue_ids)}
            self.leaving[topic] = leaving

    def stay(self, topic: str) -> None:
        """Undo `leave`."""
        leaving = self.leaving.pop(topic)
        self.topics.setdefault(topic, leaving).queues.update(leaving.queues)

    def forget(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> list[ConsumeQueue]:
        """Remove a topic, or these of its queues, from the table; returns them, with their files still in place."""
        known = self.topics.get(topic)
        if known is None:
            return []
        if queue_ids is None or known.queues.keys() <= queue_ids:
            return list(self.topics.pop(topic).queues.values())
        return [known.queues.pop(queue_id) for queue_id in known.queues.keys() & queue_ids]

    def remove_files(self, queues: list[ConsumeQueue]) -> None:
        """Remove the files of queues permanently, even after a power cut.

        Raises OSError if some cannot be removed: these are `left`, and the others are removed.
        """
        failed: OSError | None = None
        left: dict[str, list[ConsumeQueue]] = {}
        for queue in queues:
            try:
                self._remove_files_of(queue)
            except OSError as error:
                failed = failed or error
                left.setdefault(queue.topic, []).append(queue)
        for topic, remaining in left.items():
            self._left[topic] = [*self._left.get(topic, ()), *remaining]
        if failed is not None:
            raise failed

    @property
    def left(self) -> AbstractSet[str]:
        """The deleted topics that still have files."""
        return self._left.keys()

    def remove_left(self, topic: str) -> None:
        """Remove the remaining files of a deleted topic, if any; raises OSError if this fails again."""
        queues = self._left.pop(topic, None)
        if queues is not None:
            self.remove_files(queues)

    def _remove_files_of(self, queue: ConsumeQueue) -> None:
        problem: OSError | None = None
        for segments in queue.segment_lists():
            try:
                segments.remove()
                # Even if nothing was left to remove: the earlier attempt may have failed here.
                if self._files.exists(segments.directory):
                    self._files.sync_directory(segments.directory)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem
