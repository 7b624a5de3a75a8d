"""A model of a store: the messages that were put, and their guarantees.

A simple list that knows nothing of files. Operations and faults: see `store`.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import Factory, define, frozen

from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival, MessageToStore
from longpoll_protocol.log_record import is_listed as is_listed_by

EVER_MS = 2**60
FOUND_COUNT_MAX = 64


@frozen
class Made:
    """A message to put, and its identification."""

    message: MessageToStore
    key: str
    body: bytes


@define
class Sent:
    """A message that was put; `is_gone` if its topic was deleted since, so that no queue lists it."""

    topic: str
    queue_id: int
    offset: int
    start: int
    record: bytes
    key: str
    tags_code: int
    is_listed: bool
    is_gone: bool = False

    @property
    def stop(self) -> int:
        """Physical offset after its record."""
        return self.start + len(self.record)

    @property
    def is_shown(self) -> bool:
        """Whether a queue lists it once it is visible."""
        return self.is_listed and not self.is_gone


@define
class StoreModel:
    """The expected store.

    Invariant: `sent` are the log's records in order, and those before `durable_end` must survive.
    """

    sent: list[Sent] = Factory(list)
    durable_end: int = 0
    may_lose: bool = False
    """Whether power was cut since the store was last open, so that records that are not durable may be lost."""
    start_max: int = 0
    """The latest possible begin of the log after retention."""
    dispatched_end: int = 0
    unsure: dict[str, int] = Factory(dict)
    """Topics with an unfinished deletion, by the log's end then: they may exist or not."""
    was_unsure: set[str] = Factory(set)
    """Topics for which such a deletion took effect: later messages keep their offsets, which do not begin at 0."""

    def next_offset(self, topic: str, queue_id: int) -> int:
        """Returns the next message's queue offset."""
        for each in reversed(self.sent):
            if each.topic == topic and each.queue_id == queue_id and each.is_shown:
                return each.offset + 1
        return 0

    def put(self, store: MessageStore, made: Made, offset: int, start: int) -> None:
        """Record a new message, and check its place and bytes."""
        topic, queue_id = made.message.topic, made.message.queue_id
        view = store.record_at(start)
        assert view is not None, f"{topic}@{queue_id}: what was just put is not there"
        record = bytes(view)
        assert made.body in record, f"{topic}@{queue_id}: another body"
        is_listed = is_listed_by(made.message.sys_flag)
        expected = self.next_offset(topic, queue_id) if is_listed else 0
        assert offset == expected, f"{topic}@{queue_id}: offset {offset}, not {expected}"
        self.sent.append(Sent(topic, queue_id, expected, start, record, made.key, made.message.tags_code, is_listed))

    def delete(self, topic: str) -> None:
        """Record a topic's deletion: its messages are listed nowhere."""
        self.unsure.pop(topic, None)
        self.was_unsure.discard(topic)
        for each in self.sent:
            if each.topic == topic:
                each.is_gone = True

    def dispatched(self, arrivals: Sequence[Arrival], end: int) -> None:
        """Compare newly visible messages with the expected ones."""
        next_ones = (each for each in self.sent if self.dispatched_end <= each.start < end and each.is_shown)
        expected = [(each.topic, each.queue_id, each.offset + 1, each.start) for each in next_ones]
        found = [(each.topic, each.queue_id, each.offset_end, each.physical_offset) for each in arrivals]
        assert found == expected, f"arrived: {found}, not {expected}"
        self.dispatched_end = end

    def reopened(self, store: MessageStore) -> None:
        """Compare a store that was just opened, with all its contents; missing messages count as lost from now on."""
        end, start = store.log_end, store.log_start
        # A blank at a file's end is not a loss.
        durable = max((each.stop for each in self.sent if each.stop <= self.durable_end), default=0)
        assert end >= durable, f"the log ends at {end}, and {durable} was durable"
        self.durable_end = min(self.durable_end, end)
        kept = [each for each in self.sent if each.start < end]
        assert self.may_lose or len(kept) == len(self.sent), f"the log ends at {end} and the power was never cut"
        assert start <= self.start_max, f"the log begins at {start}, and nothing after {self.start_max} could go"
        self.sent, self.may_lose = kept, False
        self._resolve(store, start)
        self.dispatched_end = store.dispatched_end
        assert self.dispatched_end == end
        self.compare(store)

    def _resolve(self, store: MessageStore, start: int) -> None:
        """Determine whether unfinished deletions took effect."""
        for topic, end in sorted(self.unsure.items()):
            before = [each for each in self.sent if each.topic == topic and each.start < end and each.is_shown]
            there = [each for each in before if each.start >= start]
            listed = [each for each in there if _is_listed(store, each)]
            assert listed in ([], there), f"{topic} was deleted in part"
            # A queue whose records have all expired is known only by its end.
            if not listed and (there or all(store.visible_end(topic, each.queue_id) == 0 for each in before)):
                self.was_unsure.add(topic)
                for each in before:
                    each.is_gone = True
        self.unsure.clear()

    def compare(self, store: MessageStore) -> None:
        """Compare every record, and every queue as far as it is visible."""
        start = store.log_start
        ends: dict[tuple[str, int], int] = {}
        for each in self.sent:
            if each.is_shown and each.start < self.dispatched_end:
                queue = ends.get((each.topic, each.queue_id), 0)
                is_first = not queue and each.topic in self.was_unsure
                assert is_first or each.offset == queue, (
                    f"{each.topic}@{each.queue_id}: {queue} comes before {each.offset}"
                )
                ends[each.topic, each.queue_id] = each.offset + 1
            if each.start < start:
                continue
            found = store.record_at(each.start)
            assert bytes(found or b"") == each.record, f"the record at {each.start} is another, or not there"
            if each.is_shown and each.start < self.dispatched_end:
                assert _is_listed(store, each), f"{each.topic}@{each.queue_id}: no unit {each.offset} for {each.start}"
        for topic, queue_id in sorted({(each.topic, each.queue_id) for each in self.sent}):
            end, expected = store.visible_end(topic, queue_id), ends.get((topic, queue_id), 0)
            assert end == expected, f"{topic}@{queue_id} ends at {end}, not {expected}"

    def find(self, store: MessageStore, wanted: Sent) -> bool:
        """Whether a message is found by its key."""
        return wanted.record in store.query(wanted.topic, wanted.key, FOUND_COUNT_MAX, 0, EVER_MS).records


def _is_listed(store: MessageStore, sent: Sent) -> bool:
    return store.unit(sent.topic, sent.queue_id, sent.offset) == (sent.start, len(sent.record), sent.tags_code)
