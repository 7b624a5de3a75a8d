"""A RocketMQ client: producer, push consumer and pull consumer, for our broker and the Java one alike.

`remoting` is one connection, `instance` all of a client's connections and routes, `producer` sends, `consumer` shares
queues and pulls them, `delivery` hands messages to the user.
Leaves out orderly consumption, sending back and flow control by bytes.
"""

from longpoll_broker.service.client.consumer import ConsumerConfig
from longpoll_broker.service.client.delivery import ConsumeStatus, PullConsumer, PushConsumer
from longpoll_broker.service.client.instance import ClientInstance
from longpoll_broker.service.client.messages import ReceivedMessage
from longpoll_broker.service.client.offsets import StartAt
from longpoll_broker.service.client.producer import Producer, SendResult
from longpoll_broker.service.client.remoting import RemotingClient

__all__ = [
    "ClientInstance",
    "ConsumeStatus",
    "ConsumerConfig",
    "Producer",
    "PullConsumer",
    "PushConsumer",
    "ReceivedMessage",
    "RemotingClient",
    "SendResult",
    "StartAt",
]
