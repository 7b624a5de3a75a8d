"""The client on asyncio's event loop: no thread of its own, and nothing that one caller waits for keeps another.

`connection` is one connection, `instance` all of a client's with its routes, `producer` sends, `member` shares queues
and has them pulled, `places` keeps where it stands, `consumer` is what both consumers are, `pull` gives messages to the
caller of `poll`, `push` to a coroutine, `burials` sees to messages that cannot be read. What is decided is decided by
the same code as on threads: `link` (calls, silence, routes), `produce.tries`, `consume.puller`, `consume.own_queues`,
`rebalance`. Names of hosts are looked up as asyncio does, on its own executor; an address in digits needs none.

`transactions` sends what is delivered only once it is committed.
"""

from longpoll_client.aio.producer import AsyncProducer
from longpoll_client.aio.pull import AsyncPullConsumer
from longpoll_client.aio.push import AsyncListener, AsyncPushConsumer
from longpoll_client.aio.transactions import AsyncTransactionProducer

__all__ = ["AsyncListener", "AsyncProducer", "AsyncPullConsumer", "AsyncPushConsumer", "AsyncTransactionProducer"]
