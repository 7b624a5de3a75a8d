"""The client on an asyncio event loop, without threads.

| module | content |
| --- | --- |
| `connection`, `instance` | one connection; all connections and routes of a client |
| `admin` | topics, groups and offsets |
| `producer`, `requests`, `transactions`, `heartbeat` | sending |
| `member`, `loop_connections` | a member of a group |
| `consumer`, `pull`, `push`, `orderly` | consumers |

Decisions come from the modules that the threads use too: `link`, `produce.attempts`, `consume.puller`, `allocate`.
asyncio's executor looks up host names.
"""

from longpoll_client.aio.admin import AsyncAdmin
from longpoll_client.aio.producer import AsyncProducer
from longpoll_client.aio.pull import AsyncPullConsumer
from longpoll_client.aio.push import AsyncListener, AsyncPushConsumer
from longpoll_client.aio.transactions import AsyncTransactionProducer

__all__ = [
    "AsyncAdmin",
    "AsyncListener",
    "AsyncProducer",
    "AsyncPullConsumer",
    "AsyncPushConsumer",
    "AsyncTransactionProducer",
]
