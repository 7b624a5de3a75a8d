"""The store: append, dispatch, read, flush, close (`DefaultMessageStore.java` 4.9).

Files in the directory: `commitlog/`, `consumequeue/TOPIC/QUEUE/`, `index/`, `checkpoint`, `lock`, and `abort`, which
exists while the store is open. If `abort` exists when the store is opened, the last process did not close it.

The append lock orders the records in the log, the dispatch lock orders the messages that become visible, and readers
take no lock. Syncs and removals of queues have separate locks, so a sender that waits for a durable log waits for
nothing else. Lock order: queues, deletions, flush, dispatch, append.

Threads: the service calls `dispatch`, `index`, `flush` and `flush_queues`.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Final

from attrs import evolve

from longpoll_broker.config import StoreConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.burst_append import PreparedBatch, append_burst, append_prepared
from longpoll_broker.store.commit_log import CommitLog, believed_ms, size_of
from longpoll_broker.store.consume_queue import ConsumeQueue, QueueTable, inner_places, is_address, with_offsets
from longpoll_broker.store.index import Index, Indexer
from longpoll_broker.store.messages import (
    ALL,
    FOUND_NAME_SIZE_MAX,
    Arrival,
    GetResult,
    GetStatus,
    Matches,
    MessageToStore,
    PutResult,
    QueryResult,
    check_place,
    is_storable,
    storable,
)
from longpoll_broker.store.open_checks import check_config, check_parts
from longpoll_broker.store.queue_builder import QueueBuilder
from longpoll_broker.store.recovery import (
    Checkpoint,
    believed,
    encode_checkpoint,
    file_count,
    load_checkpoint,
    of_the_past,
    recover,
    without_queues,
)
from longpoll_broker.store.retention import Deletions, count_expired, queue_name, topic_of
from longpoll_broker.store.segment import make_durable
from longpoll_broker.store.selection import nearest_offset, nothing, read_queue
from longpoll_protocol.log_record import (
    SCHEDULE_TOPIC,
    Lookup,
    Record,
    lookup_in,
    tags_code_of,
)
from longpoll_protocol.names import LMQ_PREFIX
from longpoll_runtime import Runtime

_lines = logging.getLogger(__name__)

_DISPATCH_COUNT: Final = 4096
LOG: Final = "log"
QUEUES: Final = "queues"
INDEX: Final = "index"
DISPATCH: Final = "dispatch"
PARTS: Final = (LOG, QUEUES, INDEX, DISPATCH)
"""The parts of a store, for which errors are recorded separately. Without its log, a store accepts no messages."""
QUEUES_A_TURN: Final = 64
"""Queues synced before the lock is released. On a disk that takes 2 ms per queue, syncing so many takes about 0.1 s."""


class MessageStore:
    """One open store directory. Invariant: every visible unit points to a whole record before `log_end`."""

    _dispatcher: QueueBuilder
    """Created when recovery has found where the log begins."""
    _store_ms: int
    """Store time of the last message."""
    cut_size: int
    """Number of bytes that `open` cut off the log's end and saved in a separate directory."""

    def __init__(self, runtime: Runtime, directory: str, config: StoreConfig, unlock: Callable[[], None]) -> None:
        """Create the object only. Call `open` instead, which also checks and recovers the directory."""
        self._runtime = runtime
        self.directory = directory
        self._config = config if config.memory_size else evolve(config, memory_size=runtime.memory_size())
        self.message_size_max = config.message_size_max
        """Maximum bytes of a message's body, or of a whole batch (`maxMessageSize`)."""
        self._levels_ms = config.delay_levels_ms
        self._unlock = unlock
        self._lock_identity = runtime.files.identity(f"{directory}/lock")
        self._append_lock = runtime.lock()
        self._dispatch_lock = runtime.lock()
        self._flush_lock = runtime.lock()
        """Held by syncs of the log, and while files of the log are removed."""
        self._queues_lock = runtime.lock()
        """Held by syncs of the queues, and by the write of the checkpoint after them."""
        self._deletion_lock = runtime.lock()
        """Held while the files of deleted queues are removed, so that only one deletion runs at a time."""
        self._deletions = Deletions(runtime.files, directory)
        self._closed = False
        self._troubles: dict[str, OSError] = {}
        """The error of the last sync, by part of the store."""
        self._crashed = runtime.files.exists(f"{directory}/abort")
        if self._crashed:
            # If `abort` is a directory, reading it raises OSError here, because the stop could not remove it later.
            runtime.files.read(f"{directory}/abort")
        self._table = QueueTable(runtime.files, directory, config, runtime.lock(), lengthen=self._crashed)
        self._had_queues = runtime.files.exists(f"{directory}/consumequeue")
        self._had_extended = runtime.files.exists(f"{directory}/consumequeue_ext")
        self._log = CommitLog(
            runtime.files,
            f"{directory}/commitlog",
            config.commit_log_file_size,
            lengthen=self._crashed,
            store=directory,
        )
        self._checkpoint = load_checkpoint(runtime.files, f"{directory}/checkpoint")
        self._dispatched_ms = 0
        self._indexer: Indexer | None = None
        if config.index:
            index = Index(runtime, f"{directory}/index", config.index_slot_count, config.index_entry_count)
            self._indexer = Indexer(self._log, index, runtime.lock())

    @classmethod
    def open(cls, runtime: Runtime, directory: str, config: StoreConfig) -> MessageStore:
        """Open or create a store directory and recover it; afterwards every message of the log is visible.

        Raises StoreUserError if another process has opened the directory, it has unsupported parts, the file sizes
        differ from those of `config`, or a file is missing. Raises OSError if the directory cannot be written.
        """
        check_config(config)
        files = runtime.files
        make_durable(files, directory)
        try:
            unlock = files.lock(f"{directory}/lock")
        except BlockingIOError as error:
            raise StoreUserError(f"{directory} is in use: {error.strerror}; stop that broker first") from error
        with ExitStack() as undo:
            undo.callback(unlock)
            check_parts(files, directory, config)
            store = cls(runtime, directory, config, unlock)
            undo.pop_all()
            undo.callback(store.abandon)
            store._recover()
            undo.pop_all()
        return store

    def _recover(self) -> None:
        files = self._runtime.files
        for name in ("commitlog", "consumequeue"):
            files.make_directory(f"{self.directory}/{name}")
        self._table.load()
        if not (self._config.multi_dispatch and self._config.light_queues) and any(
            topic.startswith(LMQ_PREFIX) for topic in self._table.topics
        ):
            _lines.warning(
                "%s has light queues, which get no messages with these settings, nor again after a crash: set "
                "enableLmq=true and enableMultiDispatch=true",
                self.directory,
            )
        self._finish_deletions()
        queues = self._table.all()
        sane = of_the_past(self._checkpoint, self._runtime.unix_ms)
        crashed, covers = self._crashed, self._deletions.covers
        self._trust(believed(self._log, queues, sane, had_queues=self._had_queues, crashed=crashed))
        find = partial(recover, self._log, queues, crashed=crashed, covers=covers, has_addresses=self._had_extended)
        while (recovered := find(self._checkpoint)) is None:
            self._trust(without_queues(self._checkpoint))
        self._store_ms = believed_ms(recovered.store_ms, self._runtime.unix_ms)
        self.cut_size = recovered.set_aside
        if self._config.visible_when_durable:
            # Messages that a killed process did not flush are in the log, and become visible below.
            self._log.flush()
        self._deletions.limit(self._log.end)
        self._dispatcher = QueueBuilder(
            self._log, self._append_lock, self._queue_of, self._inner_of, recovered.cursor, levels_ms=self._levels_ms
        )
        self._dispatch_all(self._dispatcher.dispatch)
        for queue in self._table.all():
            queue.offset_next = queue.offset_end
            queue.correct_min(self._log.start)
        self._deletions.forget_before(self._log.start, self._table.left)
        if self._indexer is not None:
            self._indexer.recover(crashed=self._crashed, durable_ms=self._checkpoint.index_ms)
        if not self._crashed:
            files.write_atomic(f"{self.directory}/abort", b"")
        self._dispatcher.only_durable = self._config.visible_when_durable

    def _trust(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint if it has changed. Raises OSError."""
        if checkpoint != self._checkpoint:
            self._runtime.files.write_atomic(f"{self.directory}/checkpoint", encode_checkpoint(checkpoint))
            self._checkpoint = checkpoint

    def _finish_deletions(self) -> None:
        """Finish interrupted deletions: remove the queues that have a record from before their deletion."""
        for topic in {topic_of(name) for name in self._deletions.ends}:
            known = self._table.topics.get(topic)
            queues = known.queues if known is not None else {}
            units = {queue_id: queue.first_unit() for queue_id, queue in queues.items()}
            covered = {
                queue_id
                for queue_id, unit in units.items()
                if unit is not None and self._deletions.covers(topic, queue_id, unit[0])
            }
            if not covered:
                continue
            try:
                # A queue without units has no message of a later topic with the same name, so its files are removed
                # too.
                nobodys = {queue_id for queue_id, unit in units.items() if unit is None}
                self._table.remove_files(self._table.forget(topic, covered | nobodys))
            except OSError:
                # Other topics are intact, so the store opens. Sends to this topic are refused until its files are gone.
                _lines.exception("the files of the deleted topic %s cannot be removed", topic)

    # ------------------------------------------------------------------ append

    def put(self, message: MessageToStore) -> PutResult:
        """Append one message, which becomes visible with `dispatch` and durable with `flush`.

        Raises MessageRefusedError if a limit is exceeded and OSError if the disk is full; then the message is not
        stored.
        """
        if not is_storable(message, self.message_size_max):
            message = storable(message, self.message_size_max)
        if self._troubles:
            self._check_log()
        with self._append_lock:
            return self._append(message, self._log.end)

    def put_burst(self, messages: Sequence[MessageToStore]) -> Sequence[Arrival]:
        """Append adjacent messages as `put` does, but at the cost of one message; returns their arrivals.

        If a message needs more work than a plain append (`store.burst_append`), the result ends before it, and the
        caller passes that message to `put`. Raises nothing.
        """
        if LOG in self._troubles:
            # Each message must go through `put`, which checks whether the log works again.
            return []
        with self._append_lock:
            store_ms = max(self._runtime.unix_ms(), self._store_ms)
            burst = append_burst(self._log, self._table, messages, store_ms, self.message_size_max)
            if burst:
                self._store_ms = store_ms
                self._dispatcher.hand(burst, burst[0][1].physical_offset)
        return [arrival for _queue, arrival in burst]

    def put_batch(self, messages: Sequence[MessageToStore]) -> list[PutResult]:
        """Append messages adjacent in one file, with no other message between them (`MessageExtBatch`).

        Raises MessageRefusedError and OSError as `put` does, and MessageRefusedError if no file can hold all messages.
        After an error no message is stored.
        """
        checked = [storable(message, self.message_size_max) for message in messages]
        if self._troubles:
            self._check_log()
        with self._append_lock:
            for message in checked:
                check_place(message.topic, message.queue_id)
            # Reserve room before the first write, because reserving may fail, and once one message is written all must
            # be written.
            counts: Counter[tuple[str, int]] = Counter()
            for message in checked:
                counts[message.topic, message.queue_id] += message.in_queue
                counts.update(message.inner_queues)
            for place, count in counts.items():
                self._make_room(self._table.make(*place), count)
            end_before = self._log.end
            self._log.make_room(sum(map(size_of, checked)))
            results = []
            for message in checked:
                results.append(self._append(message, end_before))
                end_before = self._log.end
            return results

    def prepare(self, topic: str, queue_id: int) -> PreparedBatch:
        """Create an empty batch for one queue, which can be filled without a lock; raises MessageRefusedError."""
        check_place(topic, queue_id)
        return PreparedBatch(topic, queue_id, self.message_size_max)

    def put_prepared(self, batch: PreparedBatch) -> PutResult:
        """Append a batch as `put_batch` does, at the cost of one message; returns the first message's result.

        Raises OSError, and MessageRefusedError if no file can hold all messages. After an error no message is stored.
        """
        if self._troubles:
            self._check_log()
        with self._append_lock:
            # As in `put_batch`, room is reserved before the write, because reserving may fail.
            queue = self._table.make(batch.topic, batch.queue_id)
            self._make_room(queue, len(batch.sizes))
            end_before = self._log.end
            self._log.make_room(len(batch.content))
            store_ms = max(self._runtime.unix_ms(), self._store_ms)
            first, handed = append_prepared(self._log, queue, batch, store_ms)
            self._store_ms = store_ms
            self._dispatcher.hand(handed, end_before)
            return first

    def _check_log(self) -> None:
        """Raise OSError if a sync of the log failed, so that appended data could not become durable.

        Only a failed sync is permanent: a moved file may return, and other errors may pass.
        """
        if LOG in self._troubles:
            self._log.check_names()
            self._check_lock()

    def _check_lock(self) -> None:
        """Raise OSError if the lock file was removed or replaced: another broker may then write the same files."""
        path = f"{self.directory}/lock"
        try:
            if self._runtime.files.identity(path) != self._lock_identity:
                raise FileNotFoundError(errno.ENOENT, "another file replaced it; put it back, or restart", path)
        except OSError as error:
            self._troubles[LOG] = error
            raise

    def _append(self, message: MessageToStore, end_before: int) -> PutResult:
        """Write one message and hand it over to the dispatcher; the caller holds the append lock.

        `end_before` is the log's end before the message.
        """
        topic_name, queue_id = message.topic, message.queue_id
        topic = self._table.topics.get(topic_name)
        queue = topic.queues.get(queue_id) if topic is not None else None
        if queue is None or topic is None:
            check_place(topic_name, queue_id)
            queue = self._table.make(topic_name, queue_id)
            topic = self._table.topics[topic_name]
        # Store times never decrease, even if the clock is set back, because recovery compares them with the checkpoint.
        store_ms = max(self._runtime.unix_ms(), self._store_ms)
        listed = message.in_queue
        queue_offset = queue.offset_next if listed else 0
        if listed and queue_offset >= queue.room_end:
            self._make_room(queue)
        tags_code = message.tags_code
        if topic_name == SCHEDULE_TOPIC:
            tags_code = tags_code_of(topic_name, message.properties, store_ms, self._levels_ms)
        inner: list[ConsumeQueue] = []
        if message.inner_queues:
            inner = [self._table.make(*place) for place in message.inner_queues]
            for each in inner:
                self._make_room(each)
            message = with_offsets(message, [queue.offset_next for queue in inner])
        log = self._log
        start = log.append(message, topic.part, queue_offset, store_ms)
        size = log.end - start
        self._store_ms = store_ms
        if listed:
            queue.offset_next = queue_offset + 1
        if inner:
            # A record with additional queues is not handed over, because the dispatcher decodes it to find them.
            for each in inner:
                each.offset_next += 1
        else:
            arrival = Arrival(topic_name, queue_id, queue_offset + 1, tags_code, store_ms, start, size)
            self._dispatcher.hand([(queue if listed else None, arrival)], end_before)
        return PutResult(queue_offset, start, size, store_ms, message.store_host)

    def _make_room(self, queue: ConsumeQueue, count: int = 1) -> None:
        """Ensure that a queue's next messages can become visible; raises OSError if the queue is behind or full."""
        if queue in self._dispatcher.behind:
            raise OSError(errno.EAGAIN, f"earlier messages are not visible yet ({self._dispatcher.trouble})")
        queue.make_room(count)

    def _inner_of(self, record: Record) -> list[tuple[ConsumeQueue, int]]:
        """Returns a record's additional queues and its offset in each; a negative queue id is skipped as damage."""
        if not self._config.multi_dispatch:
            return []
        return [
            (self._listing(topic, queue_id), offset)
            for topic, queue_id, offset in inner_places(record, light=self._config.light_queues)
            if queue_id >= 0 and not self._deletions.covers(topic, queue_id, record.physical_offset)
        ]

    def _queue_of(self, record: Record) -> ConsumeQueue | None:
        """Returns the queue of a record, or None for a prepared message or a deleted topic.

        This method needs no append lock, because the appender has created the queues. Records of unknown queues are
        found only while the store is opened, by a single thread. Raises the errors of `_listing`.
        """
        if not record.in_queue or self._deletions.covers(record.topic, record.queue_id, record.physical_offset):
            return None
        return self._listing(record.topic, record.queue_id)

    def _listing(self, topic: str, queue_id: int) -> ConsumeQueue:
        """Returns the queue of an appended record, even of a topic that is being deleted, because the topic may stay.

        Raises MessageRefusedError for an illegal name, and OSError.
        """
        leaving = self._table.leaving.get(topic)
        queue = leaving.queues.get(queue_id) if leaving is not None else None
        queue = queue or self._table.find(topic, queue_id)
        if queue is not None:
            return queue
        check_place(topic, queue_id, size_max=FOUND_NAME_SIZE_MAX)
        return self._table.make(topic, queue_id)

    def delete_topic(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> None:
        """Delete a topic, or some of its queues, with files (`cleanUnusedTopic`); a new topic begins at offset 0.

        The topic's records stay in the log, but messages that are not yet visible never become visible. Slices in use
        stay valid. An unknown topic is ignored. After the return, no crash restores the queues. Raises OSError if files
        cannot be removed; then the topic is deleted, but its name stays blocked until the files are removed.
        """
        self.begin_deletion(topic, queue_ids)
        self.finish_deletion(topic)

    def begin_deletion(self, topic: str, queue_ids: AbstractSet[int] | None = None) -> None:
        """Start a deletion without waiting for the disk; the topic is hidden at once.

        A call of `finish_deletion` must follow; before it, writes to this topic raise TopicLeavingError.
        """
        with self._dispatch_lock, self._append_lock:
            self._table.leave(topic, queue_ids)

    def finish_deletion(self, topic: str) -> None:
        """Finish a deletion; raises OSError as `delete_topic` does.

        If the deletion cannot be recorded, the topic is restored.
        """
        table = self._table
        with self._deletion_lock:
            if topic not in table.leaving:
                with self._append_lock:
                    table.remove_left(topic)
                return
            # Writing the entry needs no append or dispatch lock, because a hidden topic gets no new records.
            refused: OSError | None = None
            names = [topic]
            if topic in table.topics:
                names = [queue_name(topic, queue_id) for queue_id in table.leaving[topic].queues]
            try:
                self._deletions.add(names, self._log.end, self._log.start, table.left)
            except OSError as error:
                refused = error
            with self._dispatch_lock, self._append_lock:
                if refused is not None:
                    table.stay(topic)
                    raise refused
                queues = list(table.leaving[topic].queues.values())
                self._dispatcher.unlist(queues)
            try:
                table.remove_files(queues)
            finally:
                del table.leaving[topic]

    # ------------------------------------------------------------------ dispatch and read

    def dispatch(self, limit: int) -> Sequence[Arrival]:
        """Make up to `limit` appended messages visible, in log order; returns their arrivals.

        The result is empty if no message waits, or if only records without a queue were skipped, which moves
        `dispatched_end`. A queue whose file cannot grow delays only its own messages (`is_behind`). Raises OSError if
        too many messages are delayed (retry later), and StoreDamageError.
        """
        with self._dispatch_lock:
            arrivals = self._dispatcher.dispatch(limit)
            if arrivals:
                # Limit the time to the last accepted store time, because recovery treats earlier messages as visible.
                self._dispatched_ms = min(arrivals[-1].store_ms, self._store_ms)
        return arrivals

    @property
    def dispatched_end(self) -> int:
        """Physical offset up to which every message is visible, except the messages that wait for their queue."""
        return self._dispatcher.cursor

    @property
    def is_behind(self) -> bool:
        """Whether messages before `dispatched_end` wait for their queue; `dispatch` retries them."""
        return bool(self._dispatcher.behind)

    def _dispatch_all(self, dispatch: Callable[[int], Sequence[Arrival]]) -> None:
        while self._dispatcher.cursor < self._log.end:
            dispatch(_DISPATCH_COUNT)
        while self._dispatcher.behind:
            if not dispatch(_DISPATCH_COUNT) and self._dispatcher.trouble is not None:
                raise self._dispatcher.trouble

    def waiting(self) -> Sequence[Arrival]:
        """The messages that writers have handed over to the dispatcher and that are not visible yet."""
        return self._dispatcher.waiting()

    @property
    def dispatchable_end(self) -> int:
        """Physical offset up to which messages may become visible: the log's end, or its durable end."""
        return self._log.flushed_end if self._dispatcher.only_durable else self._log.end

    @property
    def log_start(self) -> int:
        """Physical offset of the oldest byte of the log (`getMinPhyOffset`)."""
        return self._log.start

    @property
    def log_end(self) -> int:
        """Physical offset after the last appended record (`getMaxPhyOffset`)."""
        return self._log.end

    @property
    def flushed_end(self) -> int:
        """Physical offset up to which the log is durable."""
        return self._log.flushed_end

    def queues(self) -> list[tuple[str, int]]:
        """Every queue that has or had visible messages, as (topic, queue id)."""
        return sorted((queue.topic, queue.queue_id) for queue in self._table.all() if queue.offset_end)

    def all_queues(self) -> list[tuple[str, int]]:
        """Every queue, as (topic, queue id), including queues that have no visible messages yet."""
        return sorted((queue.topic, queue.queue_id) for queue in self._table.all())

    def has_queue(self, topic: str, queue_id: int) -> bool:
        """Whether the store has this queue."""
        return self._table.find(topic, queue_id) is not None

    def visible_end(self, topic: str, queue_id: int) -> int:
        """The queue offset after the last visible message (`getMaxOffsetInQueue`); 0 for an unknown queue."""
        queue = self._table.find(topic, queue_id)
        return queue.offset_end if queue is not None else 0

    def visible_start(self, topic: str, queue_id: int) -> int:
        """The smallest readable queue offset (`getMinOffsetInQueue`); 0 for an unknown queue."""
        return self.ends(topic, queue_id)[0]

    def ends(self, topic: str, queue_id: int) -> tuple[int, int]:
        """Returns `visible_start` and `visible_end` in one read."""
        queue = self._table.find(topic, queue_id)
        return (queue.offset_min, queue.offset_end) if queue is not None else (0, 0)

    def get(self, topic: str, queue_id: int, offset: int, count_max: int, matches: Matches = ALL) -> GetResult:
        """Read whole records at `offset`, as slices of the mapped log (`getMessage`).

        The first matching message is returned whatever its size. The number and size of further messages are limited by
        `count_max` and by settings of `config`, which differ for messages in memory and on disk. At most 800 units (or
        `count_max`) of one consume-queue file are read.
        """
        queue = self._table.find(topic, queue_id)
        if queue is None:
            # 4.9 creates the queue on lookup (`findConsumeQueue`), so its status is that of an empty queue.
            return nothing(GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0, 0)
        tags, properties = matches
        if tags is not None and queue.extended is not None:
            matches = queue.extended.matching(tags), properties
        elif tags is not None and self._had_extended:
            # As in RocketMQ, an invalid address matches, because the client checks the message's tag itself.
            matches = (lambda code: is_address(code) or tags(code)), properties
        return read_queue(self._log, queue, self._config, offset, count_max, matches=matches)

    def record_at(self, physical_offset: int) -> memoryview | None:
        """Returns the record that begins at a physical offset, or None (`lookMessageByOffset`)."""
        found = self._log.read(physical_offset)
        return self._log.slice(physical_offset, found.size) if isinstance(found, Record) else None

    def properties_at(self, topic: str, queue_id: int, offset: int) -> Lookup | None:
        """Returns the properties of the message at a queue offset, or None without a message."""
        queue = self._table.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        record = self._log.slice(unit[0], unit[1]) if unit is not None else None
        return lookup_in(record) if record is not None else None

    def read_record(self, physical_offset: int) -> Record | None:
        """Decode the record that begins at a physical offset; returns None without a record."""
        found = self._log.read(physical_offset)
        return found if isinstance(found, Record) else None

    def unit(self, topic: str, queue_id: int, offset: int) -> tuple[int, int, int] | None:
        """Returns (physical offset, size, tags code) of the unit at a queue offset, or None without a unit."""
        queue = self._table.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        if queue is None or unit is None:
            return None
        tags_code = queue.tags_code(unit)
        if tags_code is None:
            found = self.read_record(unit[0])
            tags_code = 0 if found is None else tags_code_of(topic, found.properties, found.store_ms, self._levels_ms)
        return unit[0], unit[1], tags_code

    def store_ms_of(self, topic: str, queue_id: int, offset: int) -> int | None:
        """Returns the store time of the message at a queue offset, ms, or None without a message."""
        queue = self._table.find(topic, queue_id)
        unit = queue.unit(offset) if queue is not None else None
        found = self._log.read(unit[0]) if unit is not None else None
        return found.store_ms if isinstance(found, Record) else None

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int) -> int:
        """Returns the queue offset of the message stored nearest to a time (`nearest_offset`); 0 for an empty queue."""
        queue = self._table.find(topic, queue_id)
        if queue is None:
            return 0
        return nearest_offset(
            queue.offset_min, queue.offset_end - 1, lambda offset: self.store_ms_of(topic, queue_id, offset), time_ms
        )

    # ------------------------------------------------------------------ index

    def index(self, count_max: int) -> bool:
        """Index up to `count_max` visible messages by key; returns whether all are indexed. Raises OSError (retry)."""
        if self._indexer is None:
            return True
        with self._noting(INDEX):
            return self._indexer.build(self._dispatcher.cursor, count_max)

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int, end_ms: int
    ) -> Generator[None, None, QueryResult]:
        """Find the newest messages with a key, up to `count_max` (at most 64), stored from `begin_ms` to `end_ms`.

        Times are compared in whole seconds. Yields after every few milliseconds of work.
        """
        if self._indexer is None:
            return QueryResult([], 0, 0)
        return (yield from self._indexer.query(topic, key, count_max, (begin_ms, end_ms), self._dispatcher.cursor))

    # ------------------------------------------------------------------ retention

    def remove_expired(self, *, at_any_hour: bool = False) -> int:
        """Remove the log's oldest expired files, and their queue and index files; returns how many log files.

        Which files expire: see `store.retention`. Raises OSError.
        """
        log = self._log
        needed_from = min(self._dispatcher.visible_end, log.flushed_end)
        if self._indexer is not None:
            needed_from = min(needed_from, self._indexer.cursor)
        files = self._runtime.files

        def expired() -> int:
            return count_expired(
                self._config, log.segments.segments, needed_from, now_ms=self._runtime.unix_ms(),
                used_ratio=files.used_ratio(self.directory), changed_ms=files.changed_ms, at_any_hour=at_any_hour,
            )  # fmt: skip

        if not expired():
            return 0
        # After a record is deleted from the log, only its queue's files show that the queue had messages, so sync these
        # files.
        self.flush_queues()
        with self._queues_lock, self._deletion_lock:
            with self._flush_lock, self._dispatch_lock, self._append_lock:
                count = expired()
                log.segments.remove(count)
                # `deletedTopics.json` drops an entry once the log begins after the deletion, so removed files must not
                # return.
                files.sync_directory(log.segments.directory)
                queues = self._table.all()
            for start in range(0, len(queues), QUEUES_A_TURN):
                # The lock is released after every few queues, so dispatching continues; a read skips removed records.
                with self._dispatch_lock:
                    for queue in queues[start : start + QUEUES_A_TURN]:
                        queue.remove_before(log.start)
        if self._indexer is not None:
            self._indexer.remove_before(log.start)
        return count

    # ------------------------------------------------------------------ flush and close

    def flush(self) -> int:
        """Make every appended message durable; returns the durable end.

        Raises OSError, even if only the lock file is missing.
        """
        with self._flush_lock:
            self._check_lock()
            if self._log.flushed_end == self._log.end:
                # No data was synced, so the errors of earlier syncs remain in `troubles`.
                return self._log.end
            with self._noting(LOG):
                return self._log.flush()

    @property
    def troubles(self) -> Mapping[str, str]:
        """The errors of the last sync or dispatch, by part of the store; empty without errors."""
        found: dict[str, Exception] = dict(self._troubles)
        if self._dispatcher.trouble is not None:
            found[DISPATCH] = self._dispatcher.trouble
        return {part: str(error) for part, error in found.items()}

    @contextmanager
    def _noting(self, part: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self._troubles[part] = error
            raise
        self._troubles.pop(part, None)

    def flush_queues(self) -> None:
        """Make every visible unit durable, then write the checkpoint, which shortens recovery. Raises OSError."""
        for _ in self.flush_queues_in_turns():
            pass

    def flush_queues_in_turns(self, a_turn: int = QUEUES_A_TURN) -> Generator[None, None, None]:
        """Run `flush_queues` as a generator that yields after every `a_turn` queues.

        Tens of thousands of queues take minutes. Meanwhile, appends, reads and flushes of the log do not wait. If the
        caller drops the generator, no checkpoint is written.
        """
        with self._noting(QUEUES):
            with self._dispatch_lock:
                # Read the queues under the lock, because a topic that is being deleted moves to another table.
                queues = self._table.all()
                dispatcher, store_ms = self._dispatcher, self._store_ms
                dispatched_ms, shown_offset = self._dispatched_ms, dispatcher.shown_offset
                if dispatcher.behind:
                    # Recovery must begin before the first message that still waits for its queue.
                    dispatched_ms, shown_offset = 0, -1
            self.flush()
            for start in range(0, len(queues), a_turn):
                with self._queues_lock:
                    for queue in queues[start : start + a_turn]:
                        queue.flush()
                yield
            with self._queues_lock:
                known = self._checkpoint
                index_ms = self._indexer.flushed_ms if self._indexer is not None else 0
                checkpoint = Checkpoint(
                    max(known.physic_ms, store_ms),
                    max(known.logics_ms, dispatched_ms),
                    max(known.index_ms, index_ms),
                    durable_offset=max(known.durable_offset, shown_offset),
                    queue_file_count=file_count(queues),
                )
                self._trust(checkpoint)

    def close(self) -> None:
        """Stop cleanly: make all messages visible and durable, remove `abort`, and unlock. A second call does nothing.

        Raises OSError. The store is closed even after an error, and the next `open` recovers it.
        """
        if self._closed:
            return
        self._closed = True
        try:
            self._dispatcher.only_durable = False
            self._dispatch_all(self.dispatch)
            # Records without a queue count as dispatched, so that recovery does not read them again.
            self._dispatched_ms = self._store_ms
            self.flush()
            while not self.index(_DISPATCH_COUNT):
                pass
            if self._indexer is not None:
                self._indexer.flush()
            self.flush_queues()
            self._runtime.files.remove(f"{self.directory}/abort")
        finally:
            self._unmap()

    def abandon(self) -> None:
        """Close without making anything durable, as after a kill; the next `open` recovers the store."""
        if not self._closed:
            self._closed = True
            self._unmap()

    def _unmap(self) -> None:
        for queue in self._table.all():
            for segments in queue.segment_lists():
                segments.close()
        if self._indexer is not None:
            self._indexer.close()
        self._log.segments.close()
        self._unlock()
