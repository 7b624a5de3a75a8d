"""Sends messages: picks a queue, asks its broker, tries another broker's when that fails.

Leaves out transactions (`transactions`), and staying away from brokers that were slow (`sendLatencyFaultEnable`).

Source: `DefaultMQProducerImpl.sendDefaultImpl`, `TopicPublishInfo.selectOneMessageQueue`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_client.credentials import Credentials
from longpoll_client.errors import (
    AnswerTimeoutError,
    ClientError,
    ConnectionLostError,
    NoRouteError,
    RefusedError,
    UnreachableError,
)
from longpoll_client.instance import ClientInstance
from longpoll_client.produce.outgoing import (
    OutgoingMessage,
    Parcel,
    batch_parcel,
    prepared_parcel,
    single_parcel,
)
from longpoll_client.remoting import CALL_TIMEOUT_S
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.codes import SEND_SUCCESS_CODES, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_runtime import Runtime
from longpoll_runtime.closeable import Closeable
from longpoll_spec.errors import ConfigError

ATTEMPT_COUNT: Final = 3
"""`retryTimesWhenSendFailed` 2, and the first try."""
RETRIED_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
    }
)
"""Answers after which another queue is tried (`retryResponseCodes`): another broker may take the message."""

Select: TypeAlias = Callable[[Sequence[MessageQueue]], MessageQueue]
"""Picks one of a topic's writable queues, which are in order and at least one (`MessageQueueSelector`)."""


@frozen
class SendResult:
    """Where a message went."""

    msg_id: str
    """The id that the producer gave it (`UNIQ_KEY`)."""
    broker_msg_id: str
    """The id that the broker gave it, which names its place in the log."""
    queue: MessageQueue
    queue_offset: int
    code: int
    """SUCCESS, or one of `SEND_SUCCESS_CODES` when it is stored but not yet flushed or copied."""

    @property
    def physical_offset(self) -> int:
        """Where it stands in its broker's log, which the broker's id ends with; raises ValueError when that is none."""
        return int(self.broker_msg_id[-16:], 16)


class Producer(Closeable):
    """Sends messages to any topic; may be used from many threads.

    Invariant: `_sequence` counts the messages made, `_turn` the queues picked in turn; both change under `_lock`.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        group: str = "longpoll-producer",
        *,
        credentials: Credentials | None = None,
        instance: ClientInstance | None = None,
    ) -> None:
        """`instance`: connections that are there already, instead of new ones; closed with the producer."""
        self.group = group
        self._instance = instance or ClientInstance(runtime, name_server, credentials=credentials)
        self._runtime = runtime
        self._lock = runtime.lock()
        self._sequence = 0
        self._turn = 0
        self._id_prefix = f"{runtime.unix_ms() & 0xFFFFFFFFFF:010X}{runtime.monotonic_ns() & 0xFFFFFFFFFFFF:012X}"

    def close(self) -> None:
        """Close every connection."""
        self._instance.close()

    def send(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        queue_id: int | None = None,
        select: Select | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> SendResult:
        """Send one message and wait until the broker has it.

        It goes to the next queue in turn, to `queue_id`, or to the one that `select` picks. When that fails, it is sent
        up to twice more within `timeout_s`: to the next queues, of another broker if there is one; with `queue_id` to
        the same one again, and with `select` to what this picks then. After an error the message may be stored all the
        same, or even twice, as with every RocketMQ producer.
        Raises ConfigError for a message that no broker takes, else a ClientError.
        """
        message = OutgoingMessage(body, tags, keys, properties or {}, delay_level)
        (msg_id,) = self._new_ids(1)
        parcel = single_parcel(self.group, topic, message, msg_id, self._runtime.unix_ms())
        (result,) = self._send(parcel, _selector(topic, queue_id, select), timeout_s)
        return result

    def send_prepared(
        self, topic: str, message: OutgoingMessage, select: Select | None, timeout_s: float
    ) -> SendResult:
        """Send a message that nobody gets before its transaction is committed; otherwise as `send`."""
        (msg_id,) = self._new_ids(1)
        parcel = prepared_parcel(self.group, topic, message, msg_id, self._runtime.unix_ms())
        (result,) = self._send(parcel, select, timeout_s)
        return result

    def send_batch(
        self,
        topic: str,
        messages: Sequence[OutgoingMessage],
        *,
        queue_id: int | None = None,
        select: Select | None = None,
        timeout_s: float = CALL_TIMEOUT_S,
    ) -> tuple[SendResult, ...]:
        """Send messages that one queue gets next to each other, or none of them; 4 MiB in all at most.

        Otherwise as `send`.
        """
        parcel = batch_parcel(self.group, topic, messages, self._new_ids(len(messages)), self._runtime.unix_ms())
        return self._send(parcel, _selector(topic, queue_id, select), timeout_s)

    def send_one_way(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> str:
        """Send one message and wait for nothing; the id that it was given.

        Whether it was stored is never known. Raises ConfigError, or a ClientError when it could not even be sent.
        """
        (msg_id,) = self._new_ids(1)
        message = OutgoingMessage(body, tags, keys, properties or {})
        parcel = single_parcel(self.group, topic, message, msg_id, self._runtime.unix_ms())
        queue, address = self._pick(topic, None, None)
        self._instance.client(address).one_way(parcel.code, parcel.header(queue.queue_id), body)
        return msg_id

    def _send(self, parcel: Parcel, select: Select | None, timeout_s: float) -> tuple[SendResult, ...]:
        """Try up to three queues; raises the last one's error."""
        deadline_ns = self._runtime.monotonic_ns() + int(timeout_s * 1e9)
        failure: ClientError | None = None
        avoided: str | None = None
        for _attempt in range(ATTEMPT_COUNT):
            left_s = (deadline_ns - self._runtime.monotonic_ns()) / 1e9
            if failure is not None and left_s <= 0:
                break
            queue, address = self._pick(parcel.topic, select, avoided)
            try:
                answer = self._instance.client(address).call(
                    parcel.code, parcel.header(queue.queue_id), parcel.body, timeout_s=left_s
                )
                return _results(parcel, queue, answer)
            except (UnreachableError, ConnectionLostError, AnswerTimeoutError) as error:
                self._instance.doubt_route(parcel.topic)
                failure = error
            except RefusedError as error:
                if error.code not in RETRIED_CODES:
                    raise
                failure = error
            avoided = queue.broker_name
        assert failure is not None
        raise failure

    def _pick(self, topic: str, select: Select | None, avoided: str | None) -> tuple[MessageQueue, str]:
        """The queue that `select` picks, else the next in turn, of another broker than the avoided one if there is."""
        route = self._instance.publish_route(topic)
        if not route.writable:
            raise NoRouteError(f"topic {topic!r} cannot be written: its permission has no W")
        if select is not None:
            queue = select(route.writable)
        else:
            others = [queue for queue in route.writable if queue.broker_name != avoided] or list(route.writable)
            with self._lock:
                queue = others[self._turn % len(others)]
                self._turn += 1
        if queue not in route.writable:
            raise ConfigError(f"{queue} is no writable queue of topic {topic!r}: pick one of those given")
        return queue, route.addresses[queue.broker_name]

    def _new_ids(self, count: int) -> list[str]:
        with self._lock:
            first = self._sequence + 1
            self._sequence += count
        return [f"{self._id_prefix}{number & 0xFFFFFFFF:08X}" for number in range(first, first + count)]


def _selector(topic: str, queue_id: int | None, select: Select | None) -> Select | None:
    """What picks the queue; raises ConfigError when it is asked for in both ways."""
    if queue_id is None:
        return select
    if select is not None:
        raise ConfigError("queue_id and select cannot both pick the queue: give one of them")

    def by_id(queues: Sequence[MessageQueue]) -> MessageQueue:
        for queue in queues:
            if queue.queue_id == queue_id:
                return queue
        raise ConfigError(f"topic {topic!r} has no queue {queue_id}: it has {len(queues)}")

    return by_id


def _results(parcel: Parcel, queue: MessageQueue, answer: Command) -> tuple[SendResult, ...]:
    """Where each message went; raises RefusedError or another ClientError."""
    if answer.code not in SEND_SUCCESS_CODES:
        raise RefusedError(f"send to topic {parcel.topic!r}", answer.code, answer.remark)
    try:
        header = SendMessageResponseHeader.decode(answer.ext_fields)
    except HeaderError as error:
        raise ClientError(f"send to topic {parcel.topic!r}: the answer cannot be read: {error}") from None
    stored = MessageQueue(topic=parcel.topic, broker_name=queue.broker_name, queue_id=header.queue_id)
    broker_ids = header.msg_id.split(",")
    if len(broker_ids) != len(parcel.msg_ids):
        broker_ids = [header.msg_id] * len(parcel.msg_ids)
    return tuple(
        SendResult(msg_id, broker_id, stored, header.queue_offset + number, answer.code)
        for number, (msg_id, broker_id) in enumerate(zip(parcel.msg_ids, broker_ids, strict=True))
    )
