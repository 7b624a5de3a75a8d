"""A RocketMQ client: producers, push and pull consumers and an administrator, for our broker and Java's.

Every public name is in `__all__`; `docs/client.md` shows how to use it. Other modules may change in any release.
"""

from typing import TYPE_CHECKING

from longpoll_client.admin import Admin, AsyncAdmin, GroupInfo, OffsetInfo, TopicInfo
from longpoll_client.aio.consumer import AsyncListener, AsyncPullConsumer, AsyncPushConsumer
from longpoll_client.aio.producer import AsyncProducer, AsyncTransactionProducer
from longpoll_client.allocate import (
    allocate_averagely,
    allocate_by_circle,
    allocate_by_consistent_hash,
    allocate_by_machine_room,
    allocate_near,
)
from longpoll_client.checks import Addresses, ConnectOptions, Sql, Topics
from longpoll_client.consume.consumer import PullConsumer, PushConsumer
from longpoll_client.consume.listener import Listener, Reject, Retry
from longpoll_client.consume.statistics import TopicStatistics
from longpoll_client.errors import (
    AnswerTimeoutError,
    ClientError,
    ConnectionLostError,
    LifecycleError,
    NoRouteError,
    NotOursError,
    RefusedError,
    ReplyTimeoutError,
    UnreachableError,
)
from longpoll_client.messages import ReceivedMessage, UnreadableMessage
from longpoll_client.produce.attempts import QueueSelector, SendResult
from longpoll_client.produce.hooks import SendHook, Sending, SendMetrics
from longpoll_client.produce.outgoing import OutgoingMessage
from longpoll_client.produce.producer import (
    MessageOptions,
    Producer,
    ProducerOptions,
    RequestOptions,
    SendCallback,
    SendOptions,
)
from longpoll_client.produce.requests import ReplyCallback
from longpoll_client.produce.trace import Tracing
from longpoll_client.produce.transactions import TransactionProducer, TransactionResult, TransactionState
from longpoll_client.settings import ConsumeHook, ConsumerConfig, ConsumerOptions, OnQueues, StartAt, Unreadable
from longpoll_protocol.bodies import MessageModel, MessageQueue
from longpoll_protocol.codes import Permission
from longpoll_protocol.compression import Compression
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.signature import Credentials
from longpoll_spec.errors import ConfigError, LongpollError

if TYPE_CHECKING:
    __version__: str

__all__ = [
    "Addresses",
    "Admin",
    "AnswerTimeoutError",
    "AsyncAdmin",
    "AsyncListener",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
    "ClientError",
    "Compression",
    "ConfigError",
    "ConnectOptions",
    "ConnectionLostError",
    "ConsumeHook",
    "ConsumerConfig",
    "ConsumerOptions",
    "Credentials",
    "GroupInfo",
    "LifecycleError",
    "Listener",
    "LocalProtocolError",
    "LongpollError",
    "MessageModel",
    "MessageOptions",
    "MessageQueue",
    "NoRouteError",
    "NotOursError",
    "OffsetInfo",
    "OnQueues",
    "OutgoingMessage",
    "Permission",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PushConsumer",
    "QueueSelector",
    "ReceivedMessage",
    "RefusedError",
    "Reject",
    "ReplyCallback",
    "ReplyTimeoutError",
    "RequestOptions",
    "Retry",
    "SendCallback",
    "SendHook",
    "SendMetrics",
    "SendOptions",
    "SendResult",
    "Sending",
    "Sql",
    "StartAt",
    "TopicInfo",
    "TopicStatistics",
    "Topics",
    "Tracing",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "UnreachableError",
    "Unreadable",
    "UnreadableMessage",
    "__version__",
    "allocate_averagely",
    "allocate_by_circle",
    "allocate_by_consistent_hash",
    "allocate_by_machine_room",
    "allocate_near",
]


if not TYPE_CHECKING:
    # This function is hidden from type checkers, because they take any name from a module that has `__getattr__`.

    def __getattr__(name: str) -> str:
        """Return the package's version, which is read only on demand."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - a slow import

        try:
            return version("longpoll-client")
        except PackageNotFoundError:
            return version("longpoll")
