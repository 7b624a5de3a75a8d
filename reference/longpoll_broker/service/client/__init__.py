"""A RocketMQ client: producer, push consumer and pull consumer, for our broker and the Java one alike.

`remoting` is one connection, `instance` all of a client's connections and routes, `producer` sends, `consumer` shares
queues and pulls them, `delivery` gives messages to whoever polls, `push` to a listener, `aio` to
asyncio, `transactions` sends what is delivered only once it is committed, and `admin` asks and changes what there is.
Leaves out pulling without a group. `docs/client.md` shows how it is used.
"""

from longpoll_broker.service.client.admin import Admin
from longpoll_broker.service.client.aio import AsyncProducer, AsyncPullConsumer
from longpoll_broker.service.client.consumer import OnShare
from longpoll_broker.service.client.credentials import Credentials
from longpoll_broker.service.client.delivery import PullConsumer
from longpoll_broker.service.client.instance import ClientInstance
from longpoll_broker.service.client.messages import ReceivedMessage
from longpoll_broker.service.client.outgoing import OutgoingMessage
from longpoll_broker.service.client.producer import Producer, SendResult
from longpoll_broker.service.client.push import PushConsumer
from longpoll_broker.service.client.rebalance import allocate_averagely, allocate_by_circle
from longpoll_broker.service.client.remoting import RemotingClient
from longpoll_broker.service.client.settings import ConsumerConfig, StartAt
from longpoll_broker.service.client.statistics import TopicStatistics
from longpoll_broker.service.client.transactions import TransactionProducer, TransactionResult, TransactionState
from longpoll_broker.service.client.workers import ConsumeStatus, Later, Listener
from longpoll_protocol.bodies import MessageModel, MessageQueue

__all__ = [
    "Admin",
    "AsyncProducer",
    "AsyncPullConsumer",
    "ClientInstance",
    "ConsumeStatus",
    "ConsumerConfig",
    "Credentials",
    "Later",
    "Listener",
    "MessageModel",
    "MessageQueue",
    "OnShare",
    "OutgoingMessage",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RemotingClient",
    "SendResult",
    "StartAt",
    "TopicStatistics",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "allocate_averagely",
    "allocate_by_circle",
]
