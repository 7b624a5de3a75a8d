"""The consume queues of a store by topic and id: found in the directory on opening, made with their first message.

Leaves out locks (the facade's) and what a queue holds (`consume_queue`).

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
"""Maps that are left to the program itself, to the log and the index."""
MAPS_MAX: Final = 16_384
"""Most files of queues that are mapped: each costs some kilobytes, most of them in the kernel's page tables."""
MAPS_MIN: Final = 1
"""And least: a queue whose file is mapped for every message works."""


class Topic:
    """A topic that has been written or found: its bytes as a record carries them, and its queues."""

    __slots__ = ("part", "queues")

    def __init__(self, name: str) -> None:
        encoded = name.encode()
        self.part = bytes((len(encoded),)) + encoded
        self.queues: dict[int, ConsumeQueue] = {}


class QueueTable:
    """Invariant: a queue stands here once, and its directory is `consumequeue/TOPIC/QUEUE`.

    What was left there of a deleted topic is removed before a queue is made, and a topic that is `leaving` is in
    `topics` no more and gets no queues. Writers hold the owner's lock; readers need none.
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
        """An empty table; with `lengthen`, after a crash, a newest file that is too short is filled up.

        `guard` is held for a moment where a queue gets or loses a file.
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
        """Those that are being deleted: their files are still there."""
        self._left: dict[str, list[ConsumeQueue]] = {}
        """By topic the queues of a deleted one whose files could not be removed."""
        self._maps = Maps(min(max(files.maps_max() - OTHER_MAPS, MAPS_MIN), MAPS_MAX))

    def load(self) -> None:
        """Find every queue that has files; raises StoreUserError and OSError."""
        for name in self._files.list(self._root):
            for queue_name in self._listed(f"{self._root}/{name}"):
                if queue_name.isascii() and queue_name.isdigit() and self._listed(f"{self._root}/{name}/{queue_name}"):
                    self.make(name, int(queue_name))

    def _listed(self, path: str) -> list[str]:
        """The names in a directory; none for a file, which somebody left there."""
        try:
            return self._files.list(path)
        except NotADirectoryError:
            return []

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue, if it is known."""
        known = self.topics.get(topic)
        return known.queues.get(queue_id) if known is not None else None

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, made if need be; its files come with its first unit.

        Raises OSError where the files of a deleted topic of this name are still there, for what they list is not its;
        TopicLeavingError while it is being deleted.
        """
        known = self.topics.get(topic)
        if known is None:
            if topic in self.leaving:
                raise TopicLeavingError(errno.EBUSY, f"the broker is deleting the topic {topic}; try again later")
            self.remove_left(topic)
            known = self.topics[topic] = Topic(topic)
        queue = known.queues.get(queue_id)
        if queue is None:
            # Of a topic that is known as well: single queues of it may have been removed.
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
        """Every queue, also of topics that are leaving."""
        topics = (*self.topics.copy().values(), *self.leaving.copy().values())
        return [queue for topic in topics for queue in list(topic.queues.values())]

    def leave(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> None:
        """Have nobody find a topic or make it again while it is being deleted; nothing for one that is not there.

        With `queue_ids` only these of its queues leave, unless there are no others.
        """
        if topic in self.topics:
            leaving = Topic(topic)
            leaving.queues = {queue.queue_id: queue for queue in self.forget(topic, queue_ids)}
            self.leaving[topic] = leaving

    def stay(self, topic: str) -> None:
        """Take that back: a topic that was leaving is as it was."""
        leaving = self.leaving.pop(topic)
        self.topics.setdefault(topic, leaving).queues.update(leaving.queues)

    def forget(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> list[ConsumeQueue]:
        """Take a topic out, or only these of its queues; those that there were, whose files are still there."""
        known = self.topics.get(topic)
        if known is None:
            return []
        if queue_ids is None or known.queues.keys() <= queue_ids:
            return list(self.topics.pop(topic).queues.values())
        return [known.queues.pop(queue_id) for queue_id in known.queues.keys() & queue_ids]

    def remove_files(self, queues: list[ConsumeQueue]) -> None:
        """Remove the files of queues for good: no power cut brings their names back.

        Raises OSError when that failed with some; the others are removed all the same, and those are `left`.
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
        """The deleted topics of which there are still files."""
        return self._left.keys()

    def remove_left(self, topic: str) -> None:
        """Remove what is left of a deleted topic, if there is any; raises OSError when it still cannot be."""
        queues = self._left.pop(topic, None)
        if queues is not None:
            self.remove_files(queues)

    def _remove_files_of(self, queue: ConsumeQueue) -> None:
        problem: OSError | None = None
        for segments in queue.segment_lists():
            try:
                segments.remove()
                # Also where nothing was left to remove: the try before may have failed here.
                if self._files.exists(segments.directory):
                    self._files.sync_directory(segments.directory)
            except OSError as error:
                problem = problem or error
        if problem is not None:
            raise problem
