"""A member of a consumer group on an event loop: shares the queues with the others, has them pulled, keeps offsets.

Its pullers, the answers to what brokers ask, and how members share are those of the client on threads; what waits is
awaited here. Leaves out where offsets are kept (`places`).

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from longpoll_client.aio.burials import Burials
from longpoll_client.aio.group import GroupCalls, LoopReach
from longpoll_client.aio.instance import AsyncInstance
from longpoll_client.aio.locks import AsyncLocks
from longpoll_client.aio.places import BrokerPlaces, FilePlaces, Places
from longpoll_client.checks import Sql
from longpoll_client.consume.asked import Asked, Direct, MemberState
from longpoll_client.consume.membership import LOCK_RENEWAL_S, Others, Wanted
from longpoll_client.consume.own_queues import Leaving, Queues, check_seek
from longpoll_client.consume.puller import RETRY_S, Batch, Puller, PullSettings
from longpoll_client.consume.sharing import SHARING_S
from longpoll_client.consume.statistics import Statistics
from longpoll_client.errors import NoRouteError
from longpoll_client.lifecycle import Lifecycle, State
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage, all_as_shown
from longpoll_client.offsets import OffsetsFile
from longpoll_client.settings import MemberOptions, StartAt
from longpoll_protocol.bodies import ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.frames.command import Command
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime.recoverable import ANYTHING, KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)


class AsyncMember:
    """Keeps this client in its group and its share of the queues pulled; batches go to `deliver`.

    Invariant: queues come and go within `_sharing` only.
    """

    def __init__(
        self,
        options: MemberOptions,
        deliver: Callable[[Batch], None],
        *,
        direct: Direct | None = None,
        is_orderly: bool = False,
        is_busy: Callable[[Puller], bool] = lambda _puller: False,
    ) -> None:
        """`direct` is a push consumer's listener; without it messages wait for somebody who asks for them.

        `is_busy` says whether the listener has messages of a queue right now, in order.
        """
        runtime, config = options.runtime, options.config
        self.config = config
        self.statistics = Statistics(runtime)
        self.lifecycle = Lifecycle(runtime, f"the consumer of group {config.group}")
        self.retry_topic = RETRY_PREFIX + config.group
        self.wanted = Wanted(runtime, config)
        for topic, expression in options.wanted.items():
            self.wanted.want(self.wanted.make(topic, expression))
        self._runtime = runtime
        self._name_server = options.name_server
        self._deliver = deliver
        self._is_orderly = is_orderly and not config.is_broadcasting
        self._is_busy = is_busy
        self._on_share = options.on_share
        self._started_ms = 0
        self._consume_type = ConsumeType.CONSUME_ACTIVELY if direct is None else ConsumeType.CONSUME_PASSIVELY
        self._instance = AsyncInstance(
            runtime,
            options.name_server,
            client_id=config.client_id,
            on_request=self._requested,
            credentials=options.credentials,
        )
        self.reach = LoopReach(self._instance)
        self.calls = GroupCalls(self._instance, config, self._consume_type)
        self._asked = Asked(self.reach, self._state, direct, self.rebalance_soon, self._move_soon)
        self.places: Places
        if config.is_broadcasting:
            self.places = FilePlaces(self.calls, config, OffsetsFile(runtime.files, config.offsets_file))
        else:
            self.places = BrokerPlaces(self.calls, config)
        self.locks = AsyncLocks(self._instance, self.calls, config.group, is_orderly=self._is_orderly)
        self._settings = PullSettings.of(config, is_orderly=self._is_orderly)
        self.own = Queues(
            runtime, self.lifecycle, doubt=self.places.doubt, make=self._make_puller, on_share=self._shared
        )
        self._unreadable = Burials(self.reach, self.calls, config, self.statistics)
        self._others = Others(config, self.statistics)
        self._leaving = Leaving()
        self._sharing = asyncio.Lock()
        self._tries_soon = False

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of the user's topics that are this client's now."""
        return tuple(sorted(queue for queue in self.own.pullers() if queue.topic != self.retry_topic))

    # ------------------------------------------------------------ what is wanted

    def subscribe(self, topic: str, expression: str) -> None:
        """Want messages of a topic; while it runs this takes effect soon. Raises ConfigError or LifecycleError."""
        subscription = self.wanted.make(topic, expression)
        if isinstance(expression, Sql):
            self.lifecycle.check_created("a subscription by SQL92")
        else:
            self.lifecycle.check_open()
        self.wanted.want(subscription)
        self._wanted_anew()

    def unsubscribe(self, topic: str) -> None:
        """Want nothing of a topic any more, likewise."""
        self.lifecycle.check_open()
        if topic == self.retry_topic:
            raise ConfigError(f"{topic[:140]!r} belongs to the group and cannot be unsubscribed")
        self.wanted.leave_topic(topic)
        self._wanted_anew()

    def assign(self, queues: Collection[MessageQueue], expression: str) -> None:
        """Want these queues instead of a share, likewise."""
        self.lifecycle.check_open()
        self.wanted.assign(queues, expression)
        self.own.keep_places(frozenset(queues))
        self._wanted_anew()

    def _wanted_anew(self) -> None:
        if self.lifecycle.state is State.RUNNING:
            self.reach.begin(self._have_wanted())

    async def _have_wanted(self) -> None:
        await self._heartbeat_all()
        await self._rebalance()

    # ------------------------------------------------------------ where it goes on

    def due(self) -> frozenset[MessageQueue]:
        """Queues that will be ours in a moment, if they are not already."""
        return self.wanted.assigned or frozenset()

    async def route(self, topic: str) -> Route:
        """Where a topic is; raises NoRouteError, another ClientError or LifecycleError."""
        self.lifecycle.check_open()
        return await self._instance.route(topic)

    async def find(self, queue: MessageQueue, start_at: StartAt) -> int:
        """The offset of a queue's first message, its end, or the first at or after a time; raises a ClientError."""
        addresses = (await self.route(queue.topic)).addresses
        if queue.broker_name not in addresses:
            raise NoRouteError(f"broker {queue.broker_name[:140]!r} has no queue of topic {queue.topic[:140]!r}")
        return await self.calls.find(queue, start_at)

    async def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; raises ConfigError where the queue has none such, NotOursError or another ClientError."""
        self.lifecycle.check_running("seek")
        first, end = await self.find(queue, "first"), await self.find(queue, "last")
        check_seek(queue, offset, first, end)
        self.own.seek(queue, offset, self.due())

    async def seek_to(self, queue: MessageQueue, start_at: StartAt) -> None:
        """Go on at a queue's first message, or at its end; raises NotOursError or another ClientError."""
        self.lifecycle.check_running("seek")
        self.own.seek(queue, await self.find(queue, start_at), self.due())

    async def start(self) -> None:
        """Join the group and begin to pull; raises as `GroupMember.start`. One that is cancelled may be tried again."""
        self.lifecycle.begin()
        try:
            await self._join()
        except ANYTHING as error:
            await self._undo_start(is_cancelled=not isinstance(error, Exception))
            raise

    async def _undo_start(self, *, is_cancelled: bool) -> None:
        """Leave no task, connection or queue of a start that has failed, wherever it has.

        Cancelled it waits for no broker: what one keeps for this member in order it gives away after 60 s.
        """
        queues = sorted(self.own.pullers())
        for queue in queues:
            self.own.let_go(queue, is_for_good=True)
        try:
            if queues and not is_cancelled:
                await self.locks.unlock(queues)
        finally:
            # The brokers notice that the connections are gone: nobody is to be told by new ones.
            self._started_ms = 0
            self.lifecycle.begin_failed()
            ending = [*self.reach.cut(), *self._instance.disconnect()]
            await asyncio.gather(*ending, return_exceptions=True)

    async def _join(self) -> None:
        if not self.wanted.subscriptions:
            raise ConfigError(f"group {self.config.group} has no topic; pass topics, or call assign before start")
        self._started_ms = self._runtime.unix_ms()
        routes = await self._routes(is_patient=self.config.waits_for_topics)
        for topic, route in routes.items():
            await self.calls.check_filter(self.wanted.subscriptions[topic], route)
        if self.wanted.assigned is None and not self.config.is_broadcasting:
            # The heartbeat makes this topic on every broker; its route is there once a name server has heard of it.
            self.wanted.want(self.wanted.make(self.retry_topic, "*"))
        await self._tell(list(routes.values()))
        await self._rebalance()
        self.every(self.config.heartbeat_s, self._heartbeat)
        self.every(self.config.rebalance_s, self.rebalance_soon)
        self.every(self.config.persist_s, lambda: self.reach.begin(self._persist()))
        if self._is_orderly:
            self.every(LOCK_RENEWAL_S, lambda: self.reach.begin(self._renew_locks()))

    async def close(self) -> None:
        """Stop pulling, store the offsets, leave the group, once; after `lifecycle.end`. Errors are logged."""
        await self.reach.close()
        pullers = self.own.drop_all()
        if self._started_ms:
            await self._persist()
            await self.places.close()
            # A listener that was left behind has its messages still, of a queue that was given up before maybe.
            busy = {puller.queue for puller in (*pullers, *self._leaving.pullers()) if self._is_busy(puller)}
            await self.locks.unlock(self.locks.held - busy)
            if self.wanted.assigned is None:
                await self.calls.leave()
        await self._instance.close()

    # ------------------------------------------------------------ for those who have its messages

    def shown(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Messages of one queue as the user gets them: those of the retry topic under their own topic."""
        return all_as_shown(messages, messages[0].topic, self.retry_topic, 0) if messages else []

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
        self.reach.begin(self._heartbeat_again())

    async def _heartbeat_again(self) -> None:
        """The same as the last time, but for what others want."""
        await self._look_at_others()
        await self._heartbeat_all()

    async def _look_at_others(self) -> None:
        """See what other members want; before brokers are told again what we want."""
        own = self.wanted.subscriptions
        if self.wanted.assigned is None:
            answer = await self.calls.others(own)
            # Changed meanwhile, it may have been told already, and be what the answer has.
            if answer is not None and self.wanted.subscriptions is own:
                self._others.look(answer, own)

    async def _heartbeat_all(self) -> None:
        try:
            routes = await self._routes(is_patient=True)
            await self._tell(list(routes.values()))
        except LongpollError as error:
            log.warning("heartbeat of group %s: %s", self.config.group, error)

    async def _tell(self, routes: list[Route]) -> None:
        """Tell brokers who we are; who has its queues assigned is no member of the group, and tells nobody."""
        if self.wanted.assigned is None:
            await self.calls.heartbeat(routes, self.wanted.subscriptions)

    async def _persist(self) -> LongpollError | None:
        """Store every offset that has moved; one of the errors, which are logged."""
        stored = await asyncio.gather(*(self._store(queue, puller) for queue, puller in self.own.pullers().items()))
        return next(filter(None, stored), None)

    async def _store(self, queue: MessageQueue, puller: Puller) -> LongpollError | None:
        if puller.is_locked:
            try:
                await self.places.store(queue, puller.offset_done)
            except LongpollError as error:
                log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)
                return error
        return None

    async def store_now(self) -> None:
        """Store every offset that has moved; raises a LongpollError."""
        error = await self._persist()
        if error is not None:
            raise error

    async def _routes(self, *, is_patient: bool) -> dict[str, Route]:
        """The routes of the user's topics; without those that are not there if it is patient. Raises a ClientError."""
        found = {}
        for topic in self.wanted.subscriptions:
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
            subscriptions = self.wanted.subscriptions
            for queue in sorted(self.own.pullers()):
                if queue.topic not in subscriptions:
                    await self._give_up(queue, stores=True)
            self.own.resubscribe(subscriptions)
            for topic in subscriptions:
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
        await self._have_wanted()

    async def _rebalance_topic(self, topic: str) -> None:
        route = await self._instance.route(topic)
        share = set(await self._share(route))
        own = self.own.of_topic(topic)
        for queue in sorted(own - share):
            await self._give_up(queue, stores=True)
        if not route.readable and topic != self.retry_topic:
            raise NoRouteError(f"topic {topic!r} is not readable: its permission lacks R")
        free = self._leaving.free(share - own)
        locked, _others = await self.locks.lock(free)
        if locked != free:
            self._try_soon()
        end_ns = self.locks.end_ns
        begun = await asyncio.gather(*(self._begin(queue, end_ns) for queue in sorted(locked)), return_exceptions=True)
        failures = [error for error in begun if error is not None]
        if failures:
            # Told once for all queues of a broker that is down; the others have begun.
            raise failures[0]

    async def _share(self, route: Route) -> tuple[MessageQueue, ...]:
        """The queues of a topic that are this client's."""
        assigned = self.wanted.assigned
        if assigned is not None:
            return tuple(queue for queue in assigned if queue.topic == route.topic)
        if self.config.is_broadcasting:
            return route.readable
        members = await self.calls.members(route)
        if self._instance.client_id not in members:
            # The broker was restarted and has forgotten us: without this our queues would be given up.
            await self._tell([route])
            members = await self.calls.members(route)
            self.wanted.tell_if_unknown(route.topic, self._instance.client_id, members)
        return self.config.allocate(self._instance.client_id, members, route.readable)

    async def _begin(self, queue: MessageQueue, locked_until_ns: int | None) -> None:
        offset = await self.places.begin(queue)
        subscription = self.wanted.subscriptions.get(queue.topic)
        if subscription is not None:
            # Else it is not wanted any more since a moment ago, and the next rebalance knows.
            self.own.begin_at(queue, subscription, offset, locked_until_ns)

    def _make_puller(self, queue: MessageQueue, subscription: SubscriptionData, offset: int, is_paused: bool) -> Puller:
        return Puller(
            instance=self.reach,
            timer=self.reach,
            statistics=self.statistics,
            settings=self._settings,
            queue=queue,
            subscription=subscription,
            offset=offset,
            deliver=self._deliver,
            pass_over=lambda message: self._unreadable.pass_over(message, queue),
            is_paused=is_paused,
        )

    async def _give_up(self, queue: MessageQueue, *, stores: bool, offset: int | None = None) -> None:
        puller = self.own.pullers()[queue]
        self._leaving.add(puller)
        self.own.let_go(queue, is_for_good=stores)
        if stores:
            await self._store(queue, puller)
        if offset is not None:
            # While nobody else may have the queue, who would begin it where it stood.
            await self._reset(queue, offset)
        self._leaving.stored(puller)
        if not self._is_busy(puller):
            await self.released(puller)

    async def released(self, puller: Puller) -> None:
        """A queue that was given up is not being consumed any more: let the next member have it, if it was not yet."""
        if self._leaving.claim(puller):
            await self.locks.unlock([puller.queue])
            if self._leaving.end(puller.queue):
                self.rebalance_soon()

    async def _renew_locks(self) -> None:
        """Keep the queues; one that another member has got meanwhile is given up, and not its offset overwritten."""
        async with self._sharing:
            pullers = self.own.pullers()
            end_ns = self.locks.end_ns
            got, refused = await self.locks.lock(pullers)
            for queue in got:
                pullers[queue].locked_until_ns = end_ns
            for queue in sorted(refused):
                log.warning(
                    "%s queue %d: another member of group %s has it", queue.topic, queue.queue_id, self.config.group
                )
                await self._give_up(queue, stores=False)
                self._try_soon()

    def _shared(self, queue: MessageQueue, is_ours: bool) -> None:
        if self._on_share is not None:
            with KeepGoing(log, f"on_assigned or on_revoked of group {self.config.group} failed"):
                self._on_share(queue, is_ours)

    # ------------------------------------------------------------ what brokers ask

    def _requested(self, command: Command, address: str) -> bool:
        return self._asked.requested(command, address)

    def _state(self) -> MemberState:
        return MemberState(
            self.config, self._name_server, self._consume_type, self._is_orderly, self._started_ms,
            self._runtime.unix_ms(), self.wanted.subscriptions, self.own.pullers(), self.statistics.snapshot(),
        )  # fmt: skip

    def _move_soon(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere (220) in those of the queues that are ours."""
        self.reach.begin(self._move(offsets))

    async def _move(self, offsets: Mapping[MessageQueue, int]) -> None:
        async with self._sharing:
            moving = {queue: puller for queue, puller in self.own.pullers().items() if queue in offsets}
            for puller in moving.values():
                puller.drop()
            if any(self._is_busy(puller) for puller in moving.values()):
                # For order's sake they go on only when no listener has messages of them.
                self.reach.after(SHARING_S, lambda: self._move_soon(offsets))
                return
            for queue in sorted(moving):
                await self._give_up(queue, stores=False, offset=offsets[queue])
        await self._rebalance()

    async def _reset(self, queue: MessageQueue, offset: int) -> None:
        try:
            await self.places.reset(queue, offset)
        except LongpollError as error:
            log.warning("offset of %s queue %d is not reset: %s", queue.topic, queue.queue_id, error)
