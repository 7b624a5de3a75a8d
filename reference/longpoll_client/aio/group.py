"""What a member of a group on an event loop asks of brokers, and how its pullers reach them.

The requests are those of the threads' client (`offsets`, `consume.membership`), and so is what is made of the answers.

Leaves out when anything is asked (`member`), and where offsets are kept (`places`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from itertools import compress
from typing import Any

from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.consume.membership import Told, back_header, heartbeat_body, others_request
from longpoll_client.errors import ClientError, RefusedError
from longpoll_client.link.calls import Callback
from longpoll_client.link.routes import Route
from longpoll_client.offsets import Request, start_request, succeeded
from longpoll_client.settings import MemberConfig, StartAt
from longpoll_protocol.bodies import CheckClientData, ConsumerList, ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import EMPTY, Buffer
from longpoll_protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    Header,
    OffsetResponseHeader,
    UnregisterClientRequestHeader,
)
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)


class LoopReach:
    """What `Puller` and `Asked` ask of a client, on an event loop: connections, and a time later.

    Invariant: `_tasks` and `_handles` have everything that is still to happen; `close` ends it.
    """

    def __init__(self, instance: AsyncInstance) -> None:
        self._instance = instance
        self._tasks: set[asyncio.Task[None]] = set()
        self._handles: set[asyncio.TimerHandle] = set()
        self._is_closed = False

    @property
    def runtime(self) -> Runtime:
        """The clock; its locks are had at once, for nobody holds one while waiting."""
        return self._instance.runtime

    def client(self, address: str) -> _Asking:
        """A connection to host:port, made when it is needed."""
        return _Asking(self, self._instance, address)

    def broker_address(self, broker_name: str) -> str:
        """Host:port of a broker; raises NoRouteError."""
        return self._instance.routes.address(broker_name)

    def broker_address_of(self, broker_name: str, broker_id: int) -> str:
        """The address of one broker of that name, or of its master where it is not known; raises NoRouteError."""
        return self._instance.routes.address_of(broker_name, broker_id)

    def other_broker_id(self, broker_name: str, address: str) -> int | None:
        """The least id of a broker of that name at another address; None when there is none."""
        return self._instance.routes.other_id(broker_name, address)

    def reply(self, address: str, request: Command, code: int, remark: str | None = None, body: Buffer = EMPTY) -> None:
        """Answer what the peer at host:port asked, if there is a connection to it."""
        connection = self._instance.opened(address)
        if connection is not None:
            connection.reply(request, code, remark, body)

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do it after the delay, unless it is closed by then."""
        if self._is_closed:
            return

        def act() -> None:
            self._handles.discard(handle)
            with KeepGoing(log, "something that was due later failed"):
                action()

        handle = asyncio.get_running_loop().call_later(delay_s, act)
        self._handles.add(handle)

    def begin(self, work: Coroutine[Any, Any, object]) -> None:
        """Have a task do it, unless it is closed by then; what it raises is logged."""
        if self._is_closed:
            work.close()
            return

        async def kept() -> None:
            with KeepGoing(log, "what a consumer does beside the loop failed"):
                await work

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            # Of a task that was cancelled before its first step this was never begun, which Python warns of.
            work.close()

        task = asyncio.create_task(kept())
        self._tasks.add(task)
        task.add_done_callback(ended)

    async def close(self) -> None:
        """End everything for good, but for the task that calls this."""
        self._is_closed = True
        await asyncio.gather(*self.cut(), return_exceptions=True)

    def cut(self) -> list[asyncio.Task[None]]:
        """End what is begun, but for the task that calls this; whose ends may be waited for."""
        for handle in self._handles:
            handle.cancel()
        self._handles.clear()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        return tasks


class _Asking:
    """A broker that a puller asks."""

    def __init__(self, reach: LoopReach, instance: AsyncInstance, address: str) -> None:
        self._reach = reach
        self._instance = instance
        self._address = address

    def call_async(self, code: int, header: Header | None, /, *, callback: Callback, timeout_s: float) -> None:
        """Ask, once connected; raises a LongpollError when nothing is sent."""
        connection = self._instance.opened(self._address)
        if connection is not None:
            connection.call_async(code, header, callback=callback, timeout_s=timeout_s)
            return

        async def connect() -> None:
            try:
                made = await self._instance.connection(self._address)
                made.call_async(code, header, callback=callback, timeout_s=timeout_s)
            except ClientError as error:
                callback(error)

        self._reach.begin(connect())


class GroupCalls:
    """What one member asks of brokers and tells them."""

    def __init__(self, instance: AsyncInstance, config: MemberConfig, consume_type: ConsumeType) -> None:
        self._instance = instance
        self._config = config
        self._consume_type = consume_type
        self._told = Told()

    async def ask(self, address: str, code: RequestCode, header: Header | None = None, body: Buffer = EMPTY) -> Command:
        """Call, and take no answer but success; raises RefusedError or another ClientError."""
        connection = await self._instance.connection(address)
        return succeeded(code, address, await connection.call(code, header, body))

    # ------------------------------------------------------------ the group

    async def check_filter(self, subscription: SubscriptionData, route: Route) -> None:
        """Ask every broker whether it filters other than by tags as we want; raises a ClientError."""
        if subscription.expression_type == "TAG":
            return
        client_id, group = self._instance.client_id, self._config.group
        body = CheckClientData(client_id=client_id, group=group, subscription_data=subscription).encode()
        for address in sorted(route.addresses.values()):
            await self.ask(address, RequestCode.CHECK_CLIENT_CONFIG, None, body)

    async def heartbeat(self, routes: list[Route], subscriptions: Mapping[str, SubscriptionData]) -> None:
        """Tell every broker of the routes, at once, who we are; raises when one refuses or none of them answers.

        Without a route those are told that were the last time: nothing is wanted there any more.
        """
        body = heartbeat_body(self._instance.client_id, self._config, self._consume_type, subscriptions)
        told = self._told
        addresses = sorted({address for route in routes for address in route.addresses.values()}) or told.addresses
        told.addresses = addresses
        answers = await asyncio.gather(
            *(self.ask(address, RequestCode.HEART_BEAT, None, body) for address in addresses), return_exceptions=True
        )
        failures = [error for error in answers if isinstance(error, BaseException)]
        heard = [not isinstance(answer, BaseException) for answer in answers]
        told.has.update(dict.fromkeys(compress(addresses, heard), subscriptions))
        for error in failures:
            if not isinstance(error, ClientError) or isinstance(error, RefusedError):
                raise error
        if failures and len(failures) == len(addresses):
            raise failures[0]
        for error in failures:
            log.warning("heartbeat of group %s: %s; other brokers were told", self._config.group, error)

    async def others(self, own: Mapping[str, SubscriptionData]) -> Command | None:
        """What others want, by the first broker that answers and has what is wanted here; None where none does."""
        for address in self._told.who_has(own):
            try:
                return await (await self._instance.connection(address)).call(*others_request(self._config))
            except ClientError as error:
                log.debug("the members of group %s are not known: %s", self._config.group, error)
        return None

    async def members(self, route: Route) -> list[str]:
        """The client ids of the group by the first of the topic's brokers that answers; none if it knows no group."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self._config.group)
        failure: ClientError | None = None
        for address in sorted(route.addresses.values()):
            try:
                answer = await self.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
            except RefusedError as error:
                if error.code == ResponseCode.SYSTEM_ERROR:
                    return []
                raise
            except ClientError as error:
                failure = error
            else:
                return ConsumerList.decode(answer.body).consumer_id_list
        assert failure is not None, "a route has a broker"
        raise failure

    async def leave(self) -> None:
        """Tell every broker, at once; errors are logged, for it notices the lost connection."""
        header = UnregisterClientRequestHeader(client_id=self._instance.client_id, consumer_group=self._config.group)
        told = await asyncio.gather(
            *(
                self.ask(address, RequestCode.UNREGISTER_CLIENT, header)
                for address in self._instance.routes.addresses()
            ),
            return_exceptions=True,
        )
        for error in told:
            if isinstance(error, BaseException):
                log.warning("leaving group %s: %s", self._config.group, error)

    # ------------------------------------------------------------ queues

    async def find(self, queue: MessageQueue, start_at: StartAt) -> int:
        """The offset of a queue's first message, its end, or the first at or after a time. Raises a ClientError."""
        answer = await self.ask_of(queue, start_request(queue, start_at))
        return OffsetResponseHeader.decode(answer.ext_fields).offset

    async def send_back(self, physical_offset: int, msg_id: str, queue: MessageQueue, delay_level: int) -> None:
        """Have the broker give a message to the group again later, or make it a dead letter. Raises a ClientError."""
        header = back_header(self._config, physical_offset, msg_id, queue, delay_level)
        await self.ask_of(queue, (RequestCode.CONSUMER_SEND_MSG_BACK, header))

    async def ask_of(self, queue: MessageQueue, request: Request) -> Command:
        """Ask a queue's broker, likewise; raises RefusedError or another ClientError."""
        return await self.ask(self._instance.routes.address(queue.broker_name), *request)
