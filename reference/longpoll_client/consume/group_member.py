"""A member of a consumer group: the parts and exchanges that threads and event loops share.

`member` has the member on threads, and `aio.consumer` the member on an event loop. The parts are:

| module | content |
| --- | --- |
| `rebalance` | which queues the member has |
| `membership` | heartbeats, subscriptions and locks |
| `broker_requests` | answers to brokers |
| `puller`, `offsets` | pulling and storing offsets |

Source: `DefaultMQPushConsumerImpl.java`, `DefaultLitePullConsumerImpl.java`.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import frozen

from longpoll_client.consume.membership import LOCK_RENEWAL_S, Membership, QueueLocks
from longpoll_client.consume.offsets import (
    LocalOffsets,
    OffsetStore,
    RemoteOffsets,
    ask_offset,
    start_request,
)
from longpoll_client.consume.puller import RETRY_S, Batch, Puller, Scheduler
from longpoll_client.consume.rebalance import BUSY_RETRY_S, AssignedQueues, Rebalancer, check_seek
from longpoll_client.consume.statistics import Statistics
from longpoll_client.errors import NoRouteError, RefusedError
from longpoll_client.instance import InstanceCore
from longpoll_client.lifecycle import Lifecycle, State
from longpoll_client.link.routes import Route
from longpoll_client.link.steps import Ask, FindRoute, Steps
from longpoll_client.messages import ReceivedMessage, UnreadableMessage, all_as_shown, place_of
from longpoll_client.settings import ATTEMPTS_MAX, DEAD_LEVEL, MemberOptions, StartAt, Unreadable
from longpoll_protocol.bodies import ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.headers import ConsumerSendMsgBackRequestHeader
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)

LOCAL_RETRY_S: Final = 5.0
"""Seconds until the listener gets messages again that the broker did not accept back (`submitConsumeRequestLater`)."""


GiveDirectly: TypeAlias = Callable[[ReceivedMessage, Callable[[bool], None]], None]
"""A function that lets a listener consume one message, and then passes true to the callback if it was consumed."""


@frozen
class Listening:
    """The functions by which a member calls the listener of a push consumer."""

    direct: GiveDirectly | None = None
    """Lets the listener consume one message at a broker's request (CONSUME_MESSAGE_DIRECTLY, 309)."""
    is_orderly: bool = False
    is_busy: Callable[[Puller], bool] = lambda _puller: False
    """Returns whether the listener has messages of a queue now."""


NO_LISTENER: Final = Listening()


class GroupMember(ABC):
    """A member of a consumer group, or a consumer of assigned queues."""

    def __init__(
        self,
        options: MemberOptions,
        instance: InstanceCore,
        timer: Scheduler,
        deliver: Callable[[Batch], None],
        listening: Listening,
    ) -> None:
        """Create a member. `deliver` takes the messages of one pull, and must return quickly."""
        runtime, config = options.runtime, options.config

        def client_id() -> str:
            return instance.client_id

        self.config = config
        self.statistics: Statistics = Statistics(runtime)
        self.retry_topic: str = RETRY_PREFIX + config.group
        self.lifecycle: Lifecycle = Lifecycle(runtime, f"the consumer of group {config.group}")
        self._runtime = runtime
        self._connections = instance
        self._scheduler = timer
        self._deliver = deliver
        self.name_server: str = options.name_server
        self.started_ms: int = 0
        """When the member joined, by the wall clock, ms; 0 before that."""
        self._tries_soon = False
        self.is_orderly: bool = listening.is_orderly and not config.is_broadcasting
        self.consume_type: ConsumeType = (
            ConsumeType.CONSUME_ACTIVELY if listening.direct is None else ConsumeType.CONSUME_PASSIVELY
        )
        self.membership: Membership = Membership(runtime, config, self.consume_type, client_id, self.statistics)
        for topic, expression in options.wanted.items():
            self.membership.subscribe(self.membership.make(topic, expression))
        self.offsets: OffsetStore
        if config.is_broadcasting:
            self.offsets = LocalOffsets(runtime.files, config.offsets_file, config.start_at)
        else:
            self.offsets = RemoteOffsets(config.group, config.start_at)
        self.assigned_queues: AssignedQueues = AssignedQueues(
            runtime,
            self.lifecycle,
            make=self._make_puller,
            on_assigned=options.on_assigned,
            on_revoked=options.on_revoked,
        )
        self.locks: QueueLocks = QueueLocks(runtime, config.group, client_id, is_orderly=self.is_orderly)
        self.rebalancer: Rebalancer = Rebalancer(
            self.membership,
            self.assigned_queues,
            self.offsets,
            self.locks,
            is_busy=listening.is_busy,
            try_soon=self._try_soon,
            rebalance_soon=self.rebalance_soon,
        )

    # ------------------------------------------------------------ later

    @abstractmethod
    def soon(self, make: Callable[[], Steps[object]], delay_s: float = 0.0, *, rebalances: bool = False) -> None:
        """Run an exchange (`link.steps`) after the delay, unless the member is closed by then.

        Exchanges for which `rebalances` is true run one after the other.
        """

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Call `action`, which must return quickly, after the delay, unless the member is closed by then."""
        self._scheduler.after(delay_s, action)

    def every(self, period_s: float, action: Callable[[], None]) -> None:
        """Call `action`, which must return quickly, after each period, until the member is closed."""
        self._scheduler.every(period_s, action)

    def rebalance_soon(self) -> None:
        """Rebalance soon: begin or give up queues until this member has its share."""
        self.soon(self.rebalancer.rebalance, rebalances=True)

    def release_soon(self, puller: Puller) -> None:
        """Store the offset of a queue that was given up, and unlock it, because its listener has returned."""
        self.soon(lambda: self.rebalancer.release(puller), rebalances=True)

    def reset_soon(self, offsets: Mapping[MessageQueue, int], delay_s: float = 0.0) -> None:
        """Continue at the given offsets, as a broker requested (220), in the queues that this member has."""

        def reset() -> Steps[None]:
            is_done = yield from self.rebalancer.reset_offsets(offsets)
            if not is_done:
                self.reset_soon(offsets, BUSY_RETRY_S)

        self.soon(reset, delay_s, rebalances=True)

    def begin_again_soon(self, queue: MessageQueue, delay_s: float = 0.0) -> None:
        """Continue in a queue that was deleted and created again, as a new group would.

        With `start_at` "stored", and in the retry topic, the member begins with the queue's first message.
        """
        start_at = self.config.start_at
        rule: StartAt = "first" if start_at == "stored" or queue.topic == self.retry_topic else start_at

        def begin() -> Steps[None]:
            try:
                offset = yield from self.find(queue, rule)
            except LongpollError as error:
                log.warning("%s queue %d was created again: %s", queue.topic, queue.queue_id, error)
                self.begin_again_soon(queue, RETRY_S)
                return
            log.warning("%s queue %d was created again: continuing at %d", queue.topic, queue.queue_id, offset)
            self.reset_soon({queue: offset})

        self.soon(begin, delay_s)

    def _try_soon(self) -> None:
        """Send heartbeats and rebalance again after a while. Even if several requests fail, there is only one retry."""
        if not self._tries_soon:
            self._tries_soon = True
            self.soon(self._try_again, RETRY_S)

    def _try_again(self) -> Steps[None]:
        self._tries_soon = False
        return self._apply_subscription()

    def _apply_subscription(self) -> Steps[None]:
        yield from self._heartbeat()
        self.rebalance_soon()

    def _heartbeat(self) -> Steps[None]:
        try:
            routes = yield from self.rebalancer.routes()
            yield from self.membership.heartbeat(routes.values())
        except LongpollError as error:
            log.warning("heartbeat of group %s: %s", self.config.group, error)

    def _heartbeat_again(self) -> Steps[None]:
        yield from self.membership.check_subscriptions()
        yield from self._heartbeat()

    # ------------------------------------------------------------ state

    @property
    def client_id(self) -> str:
        """The client id of this member in its group."""
        return self.membership.client_id()

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The current queues of the user's topics."""
        return tuple(sorted(queue for queue in self.assigned_queues.pullers() if queue.topic != self.retry_topic))

    def _make_puller(self, queue: MessageQueue, subscription: SubscriptionData, offset: int, is_paused: bool) -> Puller:
        return Puller(
            instance=self._connections,
            timer=self._scheduler,
            statistics=self.statistics,
            config=self.config,
            is_orderly=self.is_orderly,
            queue=queue,
            subscription=subscription,
            offset=offset,
            deliver=self._deliver,
            handle_unreadable=lambda message, then: self.soon(lambda: self._handle_unreadable(message, queue, then)),
            begin_again=lambda: self.begin_again_soon(queue),
            is_paused=is_paused,
        )

    def shown(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Return messages of one queue as the user gets them: messages of the retry topic have their original topic."""
        return all_as_shown(messages, messages[0].topic, self.retry_topic, 0) if messages else []

    # ------------------------------------------------------------ subscriptions

    @abstractmethod
    def subscribe(self, topic: str, expression: str) -> None:
        """Subscribe to a topic, or change the topic's expression. A running member applies the change soon.

        Raises ConfigError and LifecycleError. Brokers check `Sql`, so with `Sql` this method also raises a ClientError
        on threads, and LifecycleError on an event loop after the start.
        """

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic. Raises ConfigError if the topic is not subscribed, and LifecycleError after the close."""
        self.lifecycle.check_open()
        if topic == self.retry_topic:
            raise ConfigError(f"{topic[:140]!r} belongs to the group and cannot be unsubscribed")
        self.membership.unsubscribe(topic)
        self._subscription_changed()

    def assign(self, queues: Collection[MessageQueue], expression: str) -> None:
        """Take exactly these queues instead of a share of the topics' queues. Raises ConfigError or LifecycleError."""
        self.lifecycle.check_open()
        self.membership.assign(queues, expression)
        self.assigned_queues.keep_start_offsets(frozenset(queues))
        self._subscription_changed()

    def _subscription_changed(self) -> None:
        if self.lifecycle.state is State.RUNNING:
            self.soon(self._apply_subscription)

    def _due(self) -> frozenset[MessageQueue]:
        """Return the assigned queues, including those that have not begun."""
        return self.membership.assigned or frozenset()

    def pause(self, queues: Collection[MessageQueue] | None) -> None:
        """Stop delivering messages of these queues, or of all queues. Raises NotOursError or LifecycleError."""
        self.lifecycle.check_running("pause")
        self.assigned_queues.pause(queues, self._due())

    def resume(self, queues: Collection[MessageQueue] | None) -> None:
        """Deliver messages of these queues, or of all queues, again. Raises NotOursError or LifecycleError."""
        self.lifecycle.check_running("resume")
        self.assigned_queues.resume(queues, self._due())

    # ------------------------------------------------------------ exchanges: offsets

    def find(self, queue: MessageQueue, start_at: StartAt) -> Steps[int]:
        """Return the offset of a queue's first message, of its end, or of the first message at or after a time.

        Raises a ClientError.
        """
        self.lifecycle.check_open()
        route: Route = yield FindRoute(queue.topic)
        if queue.broker_name not in route.addresses:
            raise NoRouteError(f"broker {queue.broker_name[:140]!r} has no queue of topic {queue.topic[:140]!r}")
        return (yield from ask_offset(queue, start_request(queue, start_at)))

    def seek(self, queue: MessageQueue, offset: int) -> Steps[None]:
        """Continue at an offset; raises ConfigError if the queue lacks the offset, NotOursError or a ClientError."""
        self.lifecycle.check_running("seek")
        first = yield from self.find(queue, "first")
        end = yield from self.find(queue, "last")
        check_seek(queue, offset, first, end)
        self.assigned_queues.seek(queue, offset, self._due())

    def seek_to(self, queue: MessageQueue, start_at: StartAt) -> Steps[None]:
        """Continue at a queue's first message, or at its end; raises NotOursError or another ClientError."""
        self.lifecycle.check_running("seek")
        offset = yield from self.find(queue, start_at)
        self.assigned_queues.seek(queue, offset, self._due())

    def committed(self, queue: MessageQueue) -> Steps[int | None]:
        """Return the stored offset, or None if no offset is stored. Raises a ClientError."""
        self.lifecycle.check_open()
        yield FindRoute(queue.topic)
        return (yield from self.offsets.stored(queue))

    def topic_queues(self, topic: str) -> Steps[tuple[MessageQueue, ...]]:
        """Returns the readable queues of a topic; raises NoRouteError, another ClientError or LifecycleError."""
        self.lifecycle.check_open()
        route: Route = yield FindRoute(topic)
        return route.readable

    # ------------------------------------------------------------ exchanges: start and close

    def join(self) -> Steps[None]:
        """Join the group; raises a ClientError.

        If a topic is missing, the option `waits_for_topics` decides whether the member looks for it again later or
        NoRouteError is raised.
        """
        if not self.membership.subscriptions:
            raise ConfigError(f"group {self.config.group} has no topic; pass topics, or call assign before start")
        self.started_ms = self._runtime.unix_ms()
        routes = yield from self.rebalancer.routes(is_patient=self.config.waits_for_topics)
        for topic, route in routes.items():
            yield from self.membership.check_filter(self.membership.subscriptions[topic], route)
        if self.membership.assigned is None and not self.config.is_broadcasting:
            # The heartbeat creates the retry topic on every broker. The topic's route is known once the name server has
            # learned of it.
            self.membership.subscribe(self.membership.make(self.retry_topic, "*"))
        yield from self.membership.heartbeat(routes.values())

    def _start_periods(self) -> None:
        self.every(self.config.heartbeat_s, lambda: self.soon(self._heartbeat_again))
        self.every(self.config.rebalance_s, self.rebalance_soon)
        self.every(self.config.persist_s, lambda: self.soon(self.rebalancer.persist, rebalances=True))
        if self.is_orderly:
            self.every(LOCK_RENEWAL_S, lambda: self.soon(self.rebalancer.renew_locks, rebalances=True))

    def leave(self) -> Steps[None]:
        """Drop and unlock the queues, store the offsets and leave the group. Errors are logged."""
        if self.started_ms:
            yield from self.rebalancer.leave()
            yield from self.membership.leave()

    # ------------------------------------------------------------ exchanges: messages that come again

    def send_back(self, message: ReceivedMessage, queue: MessageQueue, delay_level: int) -> Steps[None]:
        """Ask the broker to deliver a message again later.

        At level 0 the broker chooses the delay; level -1 makes the message a dead letter. Raises a ClientError. Source:
        `DefaultMQPushConsumerImpl.sendMessageBack`.
        """
        yield self._back(message.physical_offset, message.msg_id, queue, delay_level)
        self.statistics.add(queue.topic, sent_back_count=1)

    def put_off(
        self,
        puller: Puller,
        messages: Sequence[ReceivedMessage],
        delay_level: int,
        give_again: Callable[[list[ReceivedMessage]], None],
    ) -> Steps[None]:
        """Send messages back to the broker, so that they count as consumed here.

        If the broker does not accept a message, `give_again` gives the message to the listener again.
        """
        kept = []
        if self.config.is_broadcasting:
            self.log_not_retried(messages)
        else:
            for message in messages:
                try:
                    yield from self.send_back(message, puller.queue, delay_level)
                except LongpollError as error:
                    log.warning("sending back failed: %s; the message is given again in %g s", error, LOCAL_RETRY_S)
                    kept.append(message)
        puller.done([message for message in messages if message not in kept])
        if kept:
            self.after(LOCAL_RETRY_S, lambda: give_again(kept))

    def log_not_retried(self, messages: Iterable[ReceivedMessage]) -> None:
        """Log that retried messages of a broadcasting group do not come again."""
        for message in messages:
            log.warning("group %s is broadcast to, so %s does not come again", self.config.group, place_of(message))

    def _back(self, physical_offset: int, msg_id: str, queue: MessageQueue, delay_level: int) -> Ask:
        header = ConsumerSendMsgBackRequestHeader(
            offset=physical_offset,
            group=self.config.group,
            delay_level=delay_level,
            origin_msg_id=msg_id,
            origin_topic=queue.topic,
            max_reconsume_times=(self.config.max_attempts or ATTEMPTS_MAX) - 1,
        )
        return Ask(RequestCode.CONSUMER_SEND_MSG_BACK, header, broker_name=queue.broker_name)

    def _handle_unreadable(
        self, message: UnreadableMessage, queue: MessageQueue, then: Callable[[LongpollError | None], None]
    ) -> Steps[None]:
        """Handle an unreadable message as the option `unreadable` requires.

        `then` gets an error if the message must be pulled again, else None.
        """
        place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        try:
            if self.config.unreadable is Unreadable.STOP:
                raise RemoteProtocolError(f"{place} is unreadable and blocks its queue: {message.why}")
            fate = "skipped"
            if self.config.unreadable is Unreadable.DEAD_LETTER:
                fate = yield from self._send_to_dead_letters(message, queue)
        except LongpollError as error:
            then(error)
            return
        log.warning("%s is unreadable and is %s: %s", place, fate, message.why)
        self.statistics.add(message.topic, unreadable_count=1)
        if self.config.on_unreadable is not None:
            with KeepGoing(log, f"on_unreadable of group {self.config.group} failed"):
                self.config.on_unreadable(message)
        then(None)

    def _send_to_dead_letters(self, message: UnreadableMessage, queue: MessageQueue) -> Steps[str]:
        """Send an unreadable message to the dead letter topic; returns the outcome as text for the log.

        Raises a ClientError if the broker does not answer.
        """
        if self.config.is_broadcasting or message.physical_offset is None:
            return "skipped"
        try:
            yield self._back(message.physical_offset, "", queue, DEAD_LEVEL)
        except RefusedError as error:
            return f"skipped, because the broker refuses the dead letter ({error})"
        self.statistics.add(queue.topic, sent_back_count=1)
        return "a dead letter"
