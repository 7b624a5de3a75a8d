"""Where a group stands in each queue: kept by the brokers, or by the member itself when every member gets everything.

Leaves out when an offset is stored (`consumer`).

Source: `RemoteBrokerOffsetStore.java`, `LocalFileOffsetStore.java`, `RebalancePushImpl.computePullFromWhere`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from typing import Final, Protocol, TypeAlias

import msgspec
from msgspec import Struct

from longpoll_client.checks import unix_ms
from longpoll_client.errors import RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.remoting import RemotingClient
from longpoll_client.settings import StartAt
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer
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


class OffsetStore(Protocol):
    """Keeps a group's or a member's offsets; not safe for two threads at once on one queue."""

    def begin(self, queue: MessageQueue, start_at: StartAt) -> int:
        """Where to begin: as asked the first time, where it was left from then on. Raises a ClientError."""
        ...

    def store(self, queue: MessageQueue, offset: int) -> None:
        """Keep where the queue stands; cheap when that is known already. Raises a ClientError."""
        ...

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Keep another place, whatever is known of the old one: the next `begin` is there. Raises a ClientError."""
        ...

    def doubt(self, queue: MessageQueue) -> None:
        """Keep the next place that `store` is given, also when it is one that was kept before."""
        ...

    def stored(self, queue: MessageQueue) -> int | None:
        """The place that is kept; None when none is. Raises a ClientError."""
        ...


class RemoteOffsets:
    """The offsets of one group, kept by the brokers.

    Invariant: `_stored` has every queue that was begun, with the offset that the broker is known to have or to imply.

    Where a group that has stored nothing begins is stored before the first pull, which Java's client leaves to the next
    5 s: a queue that changes hands in between would be begun again at its end, and what came meanwhile left out.
    """

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group
        self._stored: dict[MessageQueue, int] = {}
        self._doubted: set[MessageQueue] = set()

    def begin(self, queue: MessageQueue, start_at: StartAt) -> int:
        """Where the group stopped; if it has not begun, where `start_at` says. Raises a ClientError.

        A broker of 4.x says 0 of a group that has not begun in a young queue, so there an offset of 0 counts as none.
        """
        known = self._stored.get(queue)
        if known is None and start_at != "stored" and not is_retry(queue):
            offset = self.stored(queue) or self._begin_at(queue, start_at)
        else:
            offset = self._continue(queue, known)
        self._stored[queue] = offset
        return offset

    def store(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group stands, unless the broker has it already. Raises a ClientError."""
        if self._stored.get(queue) != offset or queue in self._doubted:
            with settling(self._doubted, queue):
                self.reset(queue, offset)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """Store where the group is to stand. Raises a ClientError."""
        self._tell(queue, offset)
        self._stored[queue] = offset

    def doubt(self, queue: MessageQueue) -> None:
        """Tell the broker the next time: pulls have told it offsets that `_stored` knows nothing of."""
        self._doubted.add(queue)

    def stored(self, queue: MessageQueue) -> int | None:
        """Where the group stopped, by its broker; None when it has not begun. Raises a ClientError."""
        try:
            return ask_offset(self._client(queue), *query_request(self._group, queue))
        except RefusedError as error:
            if error.code != ResponseCode.QUERY_NOT_FOUND:
                raise
            return None

    def _continue(self, queue: MessageQueue, known: int | None) -> int:
        """Where the group stopped; if it has not begun, where this member did, or else the queue's end."""
        stored = self.stored(queue)
        if stored is not None:
            return stored
        if known is not None:
            return known
        if is_retry(queue):
            # What was sent back must come again, wherever the group begins in the topics of its own choice.
            return 0
        return self._begin_at(queue, "last")

    def _begin_at(self, queue: MessageQueue, start_at: StartAt) -> int:
        """Where a group begins that has not; the broker is told, so that the next member goes on from there.

        A broker of 5.x takes no offset of a group that it has never heard of, and one that assigns its queues does not
        heartbeat it: then it is told after the first pull, which makes the group there.
        """
        offset = find_start(self._client(queue), queue, start_at)
        try:
            self._tell(queue, offset)
        except RefusedError as error:
            if error.code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            self._doubted.add(queue)
        return offset

    def _tell(self, queue: MessageQueue, offset: int) -> None:
        ask(self._client(queue), *store_request(self._group, queue, offset))

    def _client(self, queue: MessageQueue) -> RemotingClient:
        return self._instance.client(self._instance.broker_address(queue.broker_name))


@with_table
class _Entry(Struct, frozen=True, rename="camel"):
    """One queue in the file of a broadcasting member."""

    broker_name: str
    topic: str
    queue_id: int
    offset: int


OFFSETS_FILE_SIZE_MAX: Final = 16 * 1024 * 1024
"""A member has a few thousand queues at most, of 200 bytes each."""


class OffsetsFile:
    """The offsets of one broadcasting member, in a file of its own or, without one, for as long as it runs.

    Leaves out who writes when: `write` may run beside the rest, but not beside itself.

    Invariant: `_is_behind` says whether something was noted that neither the file has nor a `write` of now.
    """

    def __init__(self, files: Files, path: str | None) -> None:
        """Read the file, if it is there; raises ConfigError when it cannot be read."""
        self._files = files
        self._path = path
        self._is_behind = False
        self._offsets: dict[MessageQueue, int] = {}
        if path is not None and files.exists(path):
            self._offsets = self._read(path)

    def offset(self, queue: MessageQueue) -> int | None:
        """What was noted of a queue; None for one that was not begun."""
        return self._offsets.get(queue)

    def note(self, queue: MessageQueue, offset: int) -> None:
        """Keep a place, for as long as this runs."""
        if self._offsets.get(queue) != offset:
            self._offsets[queue] = offset
            self._is_behind = True

    def unwritten(self) -> bytes | None:
        """What `write` is to be called with; None when the file has it."""
        if self._path is None or not self._is_behind:
            return None
        entries = [
            _Entry(queue.broker_name, queue.topic, queue.queue_id, offset) for queue, offset in self._offsets.items()
        ]
        self._is_behind = False
        return msgspec.json.encode(entries)

    def write(self, content: bytes) -> None:
        """Write the file anew; raises ConfigError when it cannot be written, and then it is unwritten again."""
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


class LocalOffsets:
    """The offsets of one broadcasting member on threads, in its `OffsetsFile`."""

    def __init__(self, instance: ClientInstance, file: OffsetsFile) -> None:
        self._instance = instance
        self._file = file

    def begin(self, queue: MessageQueue, start_at: StartAt) -> int:
        """Where this member stopped; the first time as asked. Raises a ClientError."""
        known = self._file.offset(queue)
        if known is None:
            client = self._instance.client(self._instance.broker_address(queue.broker_name))
            known = find_start(client, queue, start_at)
            self._file.note(queue, known)
        return known

    def store(self, queue: MessageQueue, offset: int) -> None:
        """Write the file anew, unless it has this offset; raises ConfigError when it cannot be written."""
        self._file.note(queue, offset)
        content = self._file.unwritten()
        if content is not None:
            self._file.write(content)

    def reset(self, queue: MessageQueue, offset: int) -> None:
        """As `store`: nobody else keeps this member's offsets."""
        self.store(queue, offset)

    def doubt(self, queue: MessageQueue) -> None:
        """Nothing: this member alone keeps its offsets, and the file has them all."""

    def stored(self, queue: MessageQueue) -> int | None:
        """The place that is kept; None for a queue that was not begun."""
        return self._file.offset(queue)


@contextmanager
def settling(doubted: set[MessageQueue], queue: MessageQueue) -> Iterator[None]:
    """Told to its broker a queue is not in doubt, unless that fails or it is doubted anew meanwhile."""
    doubted.discard(queue)
    with ExitStack() as undo:
        undo.callback(doubted.add, queue)
        yield
        undo.pop_all()


def is_retry(queue: MessageQueue) -> bool:
    """Whether it has what was sent back: that must come again, wherever a group begins in topics of its own choice."""
    return queue.topic.startswith(RETRY_PREFIX)


Request: TypeAlias = tuple[RequestCode, Header]
"""What is asked of a queue's broker."""


def query_request(group: str, queue: MessageQueue) -> Request:
    """Where a group stands in a queue."""
    header = QueryConsumerOffsetRequestHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id)
    return RequestCode.QUERY_CONSUMER_OFFSET, header


def store_request(group: str, queue: MessageQueue, offset: int) -> Request:
    """Keep where a group stands."""
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
    )
    return RequestCode.UPDATE_CONSUMER_OFFSET, header


def start_request(queue: MessageQueue, start_at: StartAt) -> Request:
    """Which offset a queue without history begins at: its first, by time, or else its end."""
    topic, queue_id = queue.topic, queue.queue_id
    if start_at == "first":
        return RequestCode.GET_MIN_OFFSET, GetMinOffsetRequestHeader(topic=topic, queue_id=queue_id)
    if isinstance(start_at, datetime):
        timestamp = unix_ms("start_at", start_at)
        wanted = SearchOffsetRequestHeader(topic=topic, queue_id=queue_id, timestamp=timestamp)
        return RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, wanted
    return RequestCode.GET_MAX_OFFSET, GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id)


def find_start(client: RemotingClient, queue: MessageQueue, start_at: StartAt) -> int:
    """The offset that `start_request` asks for; raises a ClientError or HeaderError."""
    return ask_offset(client, *start_request(queue, start_at))


def ask_offset(client: RemotingClient, code: RequestCode, header: Header) -> int:
    """Ask for one offset; raises a ClientError or HeaderError."""
    return OffsetResponseHeader.decode(ask(client, code, header).ext_fields).offset


def ask(client: RemotingClient, code: RequestCode, header: Header | None = None, body: Buffer = EMPTY) -> Command:
    """Call, and take no answer but success; raises RefusedError or another ClientError."""
    return succeeded(code, client.address, client.call(code, header, body))


def succeeded(code: RequestCode, address: str, answer: Command) -> Command:
    """The answer, if it is success; raises RefusedError."""
    if answer.code != ResponseCode.SUCCESS:
        raise RefusedError(f"{code.name} to {address}", answer.code, answer.remark)
    return answer
