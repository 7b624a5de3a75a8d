"""A member of a consumer group on an event loop: shares the queues with the others, has them pulled, keeps offsets.

Its pullers, the answers to what brokers ask, and how members share are those of the client on threads; what waits is
awaited here. Leaves out broadcasting, order, and queues chosen by hand: those have threads.

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from longpoll_client.aio.group import GroupCalls, LoopReach
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.consume.asked import Asked, Direct, MemberState
from longpoll_client.consume.membership import SUBSCRIPTION_COUNT_MAX, make_subscription
from longpoll_client.consume.own_queues import OnShare
from longpoll_client.consume.process_queue import FlowLimits
from longpoll_client.consume.puller import RETRY_S, Batch, Puller, PullSettings
from longpoll_client.consume.statistics import Statistics, TopicStatistics
from longpoll_client.credentials import Credentials
from longpoll_client.errors import ClientError, NoRouteError, RefusedError
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage, UnreadableMessage
from longpoll_client.settings import DEAD_LEVEL, ConsumerConfig, Unreadable
from longpoll_protocol.bodies import ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime import Runtime
from longpoll_runtime.faults import KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)


class AsyncConsumer(ABC):
    """A consumer as a member of its group: `async with` starts and closes it."""

    _member: AsyncMember

    async def __aenter__(self) -> Self:
        """Join the group; raises as `start`."""
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this consumer's now; of the retry topic too, where it has one."""
        return self._member.queues

    @property
    def statistics(self) -> Mapping[str, TopicStatistics]:
        """What was pulled and consumed, topic by topic."""
        return self._member.statistics.snapshot()

    def subscribe(self, topic: str, expression: str = "*", expression_type: str = "TAG") -> None:
        """Want messages of a topic with these tags, before the start. Raises ConfigError or LifecycleError."""
        self._member.subscribe(topic, expression, expression_type)

    @abstractmethod
    async def start(self) -> None:
        """Join the group."""

    @abstractmethod
    async def close(self) -> None:
        """Store the offsets and leave the group."""


class AsyncMember:
    """Keeps this client in its group and its share of the queues pulled; batches go to `deliver`.

    Invariant: `_pullers` has one puller, not dropped, for each queue of this client's share, and changes within
    `_sharing` only. `_buried` says what became of messages that cannot be read, until their pullers have gone past.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        config: ConsumerConfig,
        deliver: Callable[[Batch], None],
        *,
        direct: Direct | None = None,
        on_share: OnShare | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`direct` is a push consumer's listener; without it messages wait for somebody who asks for them."""
        if config.is_broadcasting:
            raise ConfigError("broadcasting keeps its offsets in a file: use PushConsumer or PullConsumer on threads")
        self.config = config
        self.statistics = Statistics(runtime)
        self.lifecycle = Lifecycle(runtime, f"the consumer of group {config.group}")
        self.retry_topic = RETRY_PREFIX + config.group
        self.subscriptions: Mapping[str, SubscriptionData] = {}
        self._runtime = runtime
        self._name_server = name_server
        self._deliver = deliver
        self._is_push = direct is not None
        self._on_share = on_share
        self._started_ms = 0
        self._consume_type = ConsumeType.CONSUME_PASSIVELY if self._is_push else ConsumeType.CONSUME_ACTIVELY
        self._instance = AsyncInstance(
            runtime,
            name_server,
            on_request=self._requested,
            credentials=credentials,
        )
        self.reach = LoopReach(self._instance)
        self.calls = GroupCalls(self._instance, config, self._consume_type)
        self._asked = Asked(self.reach, self._state, direct, self.rebalance_soon, self._move_soon)
        limits = FlowLimits(config.cached_count_max, config.cached_size_max, config.cached_span_max)
        self._settings = PullSettings(
            config.group, config.batch_count_max, config.hold_ms, config.pull_timeout_s, limits, commits=True
        )
        self._pullers: dict[MessageQueue, Puller] = {}
        self._buried: dict[tuple[MessageQueue, int], str] = {}
        self._sharing = asyncio.Lock()
        self._tries_soon = False

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this client's now."""
        return tuple(sorted(self._pullers))

    def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Want messages of a topic, before the start. Raises ConfigError or LifecycleError."""
        self.lifecycle.check_created("subscribe")
        if len(self.subscriptions) >= SUBSCRIPTION_COUNT_MAX:
            raise ConfigError(f"{SUBSCRIPTION_COUNT_MAX} topics are subscribed already")
        made = make_subscription(topic, expression, expression_type, self._runtime.unix_ms())
        self.subscriptions = {**self.subscriptions, topic: made}

    async def start(self) -> None:
        """Join the group and begin to pull; raises as `GroupMember.start`. One that is cancelled may be tried again."""
        self.lifecycle.begin()
        is_started = False
        try:
            await self._join()
            is_started = True
        finally:
            if not is_started:
                for puller in self._pullers.values():
                    puller.drop()
                self._pullers.clear()
                self.lifecycle.begin_failed()
                await self.reach.end()

    async def _join(self) -> None:
        self._started_ms = self._runtime.unix_ms()
        if not self.subscriptions:
            raise ConfigError(f"group {self.config.group} wants no topic: call subscribe before start")
        routes = await self._routes(is_patient=self.config.waits_for_topics)
        for topic, route in routes.items():
            await self.calls.check_filter(self.subscriptions[topic], route)
        if self._is_push:
            # The heartbeat makes this topic on every broker; its route is there once a name server has heard of it.
            made = make_subscription(self.retry_topic, "*", "TAG", self._runtime.unix_ms())
            self.subscriptions = {**self.subscriptions, self.retry_topic: made}
        await self.calls.heartbeat(list(routes.values()), self.subscriptions)
        await self._rebalance()
        self.every(self.config.heartbeat_s, self._heartbeat)
        self.every(self.config.rebalance_s, self.rebalance_soon)
        self.every(self.config.persist_s, lambda: self.reach.begin(self._persist()))

    async def close(self) -> None:
        """Stop pulling, store the offsets, leave the group, once; after `lifecycle.end`. Errors are logged."""
        await self.reach.close()
        for puller in self._pullers.values():
            puller.drop()
        if self._started_ms:
            await self._persist()
            await self.calls.leave()
        await self._instance.close()

    # ------------------------------------------------------------ for those who have its messages

    async def send_back(self, message: ReceivedMessage, queue: MessageQueue, delay_level: int) -> None:
        """Have the broker give the message to the group again later; 0 lets it choose when, negative: never.

        Raises a ClientError.
        """
        await self.calls.send_back(message.physical_offset, message.msg_id, queue, delay_level)
        self.statistics.add(queue.topic, sent_back_count=1)

    # ------------------------------------------------------------ from time to time

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Do it again and again, until it is closed."""

        def act() -> None:
            action()
            self.reach.after(period_s, act)

        self.reach.after(period_s, act)

    def _heartbeat(self) -> None:
        self.reach.begin(self._heartbeat_all())

    async def _heartbeat_all(self) -> None:
        try:
            routes = await self._routes(is_patient=True)
            await self.calls.heartbeat(list(routes.values()), self.subscriptions)
        except LongpollError as error:
            log.warning("heartbeat of group %s: %s", self.config.group, error)

    async def _persist(self) -> None:
        """Store every offset that has moved."""
        await asyncio.gather(*(self._store(queue, puller) for queue, puller in list(self._pullers.items())))

    async def _store(self, queue: MessageQueue, puller: Puller) -> None:
        try:
            await self.calls.store(queue, puller.offset_done)
        except LongpollError as error:
            log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)

    async def _routes(self, *, is_patient: bool) -> dict[str, Route]:
        """The routes of the user's topics; without those that are not there if it is patient. Raises a ClientError."""
        found = {}
        for topic in self.subscriptions:
            if topic == self.retry_topic:
                continue
            try:
                found[topic] = await self._instance.route(topic)
            except NoRouteError as error:
                if not is_patient:
                    raise
                log.warning("group %s waits for its topic: %s", self.config.group, error)
        return found

    # ------------------------------------------------------------ sharing

    def rebalance_soon(self) -> None:
        """Share queues anew, in a task of its own."""
        self.reach.begin(self._rebalance())

    async def _rebalance(self) -> None:
        """Take and give up queues so that this client has its share; what fails is tried again soon."""
        async with self._sharing:
            for topic in self.subscriptions:
                try:
                    await self._rebalance_topic(topic)
                except LongpollError as error:
                    if topic != self.retry_topic or not isinstance(error, NoRouteError):
                        log.warning("rebalance of %s for group %s: %s", topic, self.config.group, error)
                        self._try_soon()

    def _try_soon(self) -> None:
        """Join and share again, once, however much failed by then."""
        if not self._tries_soon:
            self._tries_soon = True
            self.reach.after(RETRY_S, lambda: self.reach.begin(self._try_again()))

    async def _try_again(self) -> None:
        self._tries_soon = False
        await self._heartbeat_all()
        await self._rebalance()

    async def _rebalance_topic(self, topic: str) -> None:
        route = await self._instance.route(topic)
        members = await self.calls.members(route)
        if self._instance.client_id not in members:
            # The broker was restarted and has forgotten us: without this our queues would be given up.
            await self.calls.heartbeat([route], self.subscriptions)
            members = await self.calls.members(route)
        share = set(self.config.allocate(self._instance.client_id, members, route.readable))
        own = {queue for queue in self._pullers if queue.topic == topic}
        for queue in sorted(own - share):
            await self._give_up(queue, stores=True)
        if not route.readable and topic != self.retry_topic:
            raise NoRouteError(f"topic {topic!r} cannot be read: its permission has no R")
        begun = await asyncio.gather(*(self._begin(queue) for queue in sorted(share - own)), return_exceptions=True)
        failures = [error for error in begun if error is not None]
        if failures:
            # Told once for all queues of a broker that is down; the others have begun.
            raise failures[0]

    async def _begin(self, queue: MessageQueue) -> None:
        offset = await self.calls.begin(queue)
        if self.lifecycle.is_closed:
            return
        puller = Puller(
            instance=self.reach,
            timer=self.reach,
            statistics=self.statistics,
            settings=self._settings,
            queue=queue,
            subscription=self.subscriptions[queue.topic],
            offset=offset,
            deliver=self._deliver,
            pass_over=lambda message: self._pass_over(message, queue),
        )
        self._pullers[queue] = puller
        self._shared(queue, True)
        puller.pull()

    async def _give_up(self, queue: MessageQueue, *, stores: bool) -> None:
        puller = self._pullers.pop(queue)
        puller.drop()
        self._shared(queue, False)
        if stores:
            await self._store(queue, puller)

    def _shared(self, queue: MessageQueue, is_ours: bool) -> None:
        if self._on_share is not None:
            with KeepGoing(log, f"on_share of group {self.config.group} failed"):
                self._on_share(queue, is_ours)

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        return self._asked.requested(command, address)

    def _state(self) -> MemberState:
        return MemberState(
            self.config,
            self._name_server,
            self._consume_type,
            False,
            self._started_ms,
            self._runtime.unix_ms(),
            self.subscriptions,
            dict(self._pullers),
            self.statistics.snapshot(),
        )

    def _move_soon(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere (220) in those of the queues that are ours."""
        self.reach.begin(self._move(offsets))

    async def _move(self, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._sharing:
            for queue in sorted(offsets.keys() & self._pullers.keys()):
                await self._give_up(queue, stores=False)
                try:
                    await self.calls.reset(queue, offsets[queue])
                except LongpollError as error:
                    log.warning("offset of %s queue %d is not reset: %s", queue.topic, queue.queue_id, error)
        await self._rebalance()

    # ------------------------------------------------------------ what cannot be read

    def _pass_over(self, message: UnreadableMessage, queue: MessageQueue) -> None:
        """Do with a message that cannot be read what the config says, and tell of it.

        Raises a LongpollError when it is to be asked for again: a dead letter is made meanwhile, which waits.
        """
        place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        if self.config.unreadable is Unreadable.STOP:
            raise RemoteProtocolError(f"{place} cannot be read, and its queue waits: {message.why}")
        became = "passed over"
        if self.config.unreadable is Unreadable.DEAD_LETTER and message.physical_offset is not None:
            known = self._buried.pop((queue, message.queue_offset), None)
            if known is None:
                self.reach.begin(self._bury(message, queue, message.physical_offset))
                raise RemoteProtocolError(f"{place} cannot be read and is being made a dead letter: {message.why}")
            became = known
        log.warning("%s is unreadable, so it is %s: %s", place, became, message.why)
        self.statistics.add(message.topic, unreadable_count=1)
        if self.config.on_unreadable is not None:
            with KeepGoing(log, f"on_unreadable of group {self.config.group} failed"):
                self.config.on_unreadable(message)

    async def _bury(self, message: UnreadableMessage, queue: MessageQueue, physical_offset: int) -> None:
        became = "a dead letter"
        try:
            await self.calls.send_back(physical_offset, "", queue, DEAD_LEVEL)
        except RefusedError as error:
            became = f"passed over, for as a dead letter it is refused ({error})"
        except ClientError as error:
            log.warning("a dead letter of group %s could not be sent: %s", self.config.group, error)
            return
        self._buried[queue, message.queue_offset] = became
