"""Stores offsets: at the brokers for a group, or in a file for a broadcasting member.

The methods of the stores are exchanges (`link.steps`), so threads and event loops share them. The member decides when
to store.

Source: `RemoteBrokerOffsetStore.java`, `LocalFileOffsetStore.java`, `RebalancePushImpl.computePullFromWhere`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from longpoll_client.checks import unix_ms
from longpoll_client.errors import RefusedError
from longpoll_client.link.steps import Ask, Steps, WriteFile
from longpoll_client.settings import StartAt
from longpoll_protocol.bodies import MessageQueue, OffsetTable
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.headers import (
    GetMaxOffsetRequestHeader,
    GetMinOffsetRequestHeader,
    Header,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SearchOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime import Files
from longpoll_spec.errors import ConfigError
from longpoll_spec.tables import with_table


class RemoteOffsets:
    """The offsets of one group, at the brokers.

    The first offset of a new group is stored before the first pull. Java's client stores the first offset up to 5 s
    later, and if the queue moves to another member in this time, the new member begins at the end and skips messages.
    Invariant: `_stored` has every queue that was begun, with the offset that its broker has. `_failed` has queues whose
    last store may have failed.
    """

    def __init__(self, group: str, start_at: StartAt) -> None:
        self._group = group
        self._start_at = start_at
        self._stored: dict[MessageQueue, int] = {}
        self._failed: set[MessageQueue] = set()

    def begin(self, queue: MessageQueue) -> Steps[int]:
        """Return the group's offset, or for a new group the offset that `start_at` selects. Raises a ClientError."""
        known = self._stored.get(queue)
        may_be_new = known is None and self._start_at != "stored" and not is_retry(queue)
        stored = yield from stored_offset(self._group, queue, zero_if_none=False if may_be_new else None)
        if may_be_new:
            if stored == 0 and (self._start_at == "first" or not (yield from self._has_row(queue))):
                stored = None
            offset = stored if stored is not None else (yield from self._begin_at(queue, self._start_at))
        elif stored is not None:
            offset = stored
        elif known is not None:
            offset = known
        elif is_retry(queue):
            # Retried messages must come again, wherever a new group starts in its own topics.
            offset = 0
        else:
            offset = yield from self._begin_at(queue, "last")
        self._stored[queue] = offset
        return offset

    def store(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """Store the group's offset, unless the broker already has it. Raises a ClientError."""
        if not self._has_stored(queue, offset):
            yield from self.reset(queue, offset)

    def store_last(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """Store the group's offset, and store an unchanged offset again if the broker has lost it in a crash.

        Raises a ClientError.
        """
        if self._has_stored(queue, offset):
            stored = yield from self.stored(queue)
            if stored is not None and stored >= offset:
                return
        yield from self.reset(queue, offset)

    def reset(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """Store the group's offset. Raises a ClientError."""
        self._failed.add(queue)
        yield ask_queue(queue, store_request(self._group, queue, offset))
        self._failed.discard(queue)
        self._stored[queue] = offset

    def _has_stored(self, queue: MessageQueue, offset: int) -> bool:
        return self._stored.get(queue) == offset and queue not in self._failed

    def stored(self, queue: MessageQueue) -> Steps[int | None]:
        """Return the group's offset at its broker, or None if the group has no offset. Raises a ClientError."""
        return stored_offset(self._group, queue)

    def _has_row(self, queue: MessageQueue) -> Steps[bool]:
        """Whether the broker's table of offsets has an entry for the group and queue.

        The entry is looked up because a broker of 4.x reports 0 for a group without an offset, if the queue still has
        its first message.
        """
        try:
            answer = yield ask_queue(queue, (RequestCode.GET_ALL_CONSUMER_OFFSET, None))
        except RefusedError:
            # A broker of 5.x may refuse to return its table of offsets. Such a broker reports 0 only if the stored
            # offset is 0: see `zero_if_none`.
            return True
        rows = OffsetTable.decode(answer.body).offset_table
        return queue.queue_id in rows.get(f"{queue.topic}@{self._group}", {})

    def _begin_at(self, queue: MessageQueue, start_at: StartAt) -> Steps[int]:
        """Store the first offset of a new group at the broker, and return it.

        A broker of 5.x refuses the offset of an unknown group. A member with assigned queues sends no heartbeat, so its
        offset is stored only after the first pull, which creates the group.
        """
        offset = yield from ask_offset(queue, start_request(queue, start_at))
        try:
            yield from self.reset(queue, offset)
        except RefusedError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
        return offset


@with_table
class _Entry(Struct, frozen=True, rename="camel"):
    """One queue in the file of a broadcasting member."""

    broker_name: str
    topic: str
    queue_id: int
    offset: int


OFFSETS_FILE_SIZE_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of the offsets file. A member has at most a few thousand queues, of 200 bytes each."""


class LocalOffsets:
    """The offsets of one broadcasting member, in a file, or only in memory if `path` is None.

    `write` may run concurrently with other methods, but not with itself. Invariant: `_is_behind` is true if an offset
    was noted that neither the file nor a running `write` has.
    """

    def __init__(self, files: Files, path: str | None, start_at: StartAt) -> None:
        """Read the file if it exists; raises ConfigError if the file cannot be read."""
        self._files = files
        self._path = path
        self._start_at = start_at
        self._is_behind = False
        self._offsets: dict[MessageQueue, int] = {}
        if path is not None and files.exists(path):
            self._offsets = self._read(path)

    def begin(self, queue: MessageQueue) -> Steps[int]:
        """Return the member's offset, or for a new queue the offset that `start_at` selects. Raises a ClientError."""
        known = self._offsets.get(queue)
        if known is None:
            known = yield from ask_offset(queue, start_request(queue, self._start_at))
            self._note(queue, known)
        return known

    def store(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """Write the file, unless it already has this offset; raises ConfigError if the write fails."""
        self._note(queue, offset)
        yield WriteFile(self.unwritten, self.write)

    reset = store_last = store

    def stored(self, queue: MessageQueue) -> Steps[int | None]:
        """Returns the member's offset; None for a queue that was not begun."""
        yield from ()
        return self._offsets.get(queue)

    def _note(self, queue: MessageQueue, offset: int) -> None:
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._is_behind = True

    def unwritten(self) -> bytes | None:
        """Return the next content for `write`; None if the file has the current offsets already."""
        if self._path is None or not self._is_behind:
            return None
        entries = [
            _Entry(queue.broker_name, queue.topic, queue.queue_id, offset) for queue, offset in self._offsets.items()
        ]
        self._is_behind = False
        return msgspec.json.encode(entries)

    def write(self, content: bytes) -> None:
        """Replace the file. Raises ConfigError if the write fails, and then `unwritten` returns the content again."""
        assert self._path is not None, "without a file nothing is unwritten"
        try:
            self._files.write_atomic(self._path, content)
        except OSError as error:
            self._is_behind = True
            raise ConfigError(f"offsets file {self._path} cannot be written: {error}; choose another file") from None

    def _read(self, path: str) -> dict[MessageQueue, int]:
        try:
            if self._files.size(path) > OFFSETS_FILE_SIZE_MAX:
                raise ConfigError(
                    f"offsets file {path} is over {OFFSETS_FILE_SIZE_MAX} bytes, so it is not an offsets file"
                )
            entries = msgspec.json.decode(self._files.read(path), type=list[_Entry])
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise ConfigError(f"offsets file {path} cannot be read: {error}; fix it or name another file") from None
        return {
            MessageQueue(topic=entry.topic, broker_name=entry.broker_name, queue_id=entry.queue_id): entry.offset
            for entry in entries
        }


OffsetStore: TypeAlias = RemoteOffsets | LocalOffsets
"""The offsets of a group or of one member. Only one exchange at a time may read or store a queue's offset."""


def is_retry(queue: MessageQueue) -> bool:
    """Whether the queue belongs to a retry topic."""
    return queue.topic.startswith(RETRY_PREFIX)


Request: TypeAlias = tuple[RequestCode, Header | None]
"""Code and header of a request."""


def store_request(group: str, queue: MessageQueue, offset: int) -> Request:
    """Returns the request that stores a group's offset."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return RequestCode.UPDATE_CONSUMER_OFFSET, header


def start_request(queue: MessageQueue, start_at: StartAt) -> Request:
    """Return the request for the offset of a queue's first message, its end, or the first message from a time on."""
    topic, queue_id = queue.topic, queue.queue_id
    if start_at == "first":
        return RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
    if isinstance(start_at, datetime):
        timestamp = unix_ms("start_at", start_at)
        wanted = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=timestamp)
        return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wanted
    return RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)


def ask_queue(queue: MessageQueue, request: Request) -> Ask:
    """Returns the step that sends a request to the queue's broker."""
    return Ask(*request, broker_name=queue.broker_name)


def ask_offset(queue: MessageQueue, request: Request) -> Steps[int]:
    """Ask a queue's broker for an offset; raises a ClientError or HeaderError."""
    answer = yield ask_queue(queue, request)
    return OffsetResponseHeader.decode(answer.ext_fields).offset


def stored_offset(group: str, queue: MessageQueue, *, zero_if_none: bool | None = None) -> Steps[int | None]:
    """Return a group's offset at its broker, or None if there is no offset (code 22). Raises a ClientError.

    While the queue has its first message, a broker reports 0 instead of no offset. If `zero_if_none` is false, a broker
    of 5.x reports no offset.
    """
    header = QueryConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=zero_if_none
    )
    try:
        return (yield from ask_offset(queue, (RequestCode.QUERY_CONSUMER_OFFSET, header)))
    except RefusedError as error:
        if error.code != ResponseCode.QUERY_NOT_FOUND:
            raise
        return None
