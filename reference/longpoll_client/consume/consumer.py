"""A member of a consumer group, or a consumer of queues that were assigned: its parts, its life, and its messages.

Everything that asks and waits runs on the timer's thread (or, at start and close, on the caller's).
Leaves out which queues it has (`sharing`, `own_queues`), what it tells of itself (`membership`, `asked`), pulling
(`puller`), where offsets are kept (`offsets`) and what is done with the messages (`delivery`, `push`).

Source: `DefaultMQPushConsumerImpl.java`, `DefaultLitePullConsumerImpl.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from typing import Protocol

from longpoll_client.checks import Sql
from longpoll_client.consume.asked import Asked, Direct, MemberState
from longpoll_client.consume.membership import Membership, back_header
from longpoll_client.consume.own_queues import OwnQueues, check_seek
from longpoll_client.consume.puller import Batch, Puller, PullSettings
from longpoll_client.consume.sharing import Sharing
from longpoll_client.consume.statistics import Statistics
from longpoll_client.errors import AnswerTimeoutError, NoRouteError, RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import Lifecycle, State
from longpoll_client.link.exchange import CALL_TIMEOUT_S
from longpoll_client.messages import ReceivedMessage, UnreadableMessage, all_as_shown
from longpoll_client.offsets import LocalOffsets, OffsetsFile, OffsetStore, RemoteOffsets, ask, find_start
from longpoll_client.settings import DEAD_LEVEL, MemberOptions, StartAt, Unreadable
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import ConsumeType, MessageQueue, SubscriptionData
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.errors import RemoteProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)


class Delivery(Protocol):
    """Where a member's messages go."""

    def deliver(self, batch: Batch, /) -> None:
        """Take what a pull brought; on a reader thread, so never wait."""
        ...

    def is_busy(self, puller: Puller, /) -> bool:
        """Whether a listener has messages of the queue right now; only ever true when orderly."""
        ...


class GroupMember:
    """Keeps this client in its group and its queues pulled; batches go to `delivery`."""

    def __init__(
        self,
        options: MemberOptions,
        delivery: Delivery,
        *,
        direct: Direct | None = None,
        is_orderly: bool = False,
    ) -> None:
        """`direct` is a push consumer's listener; without it messages wait for somebody who asks for them."""
        runtime, config = options.runtime, options.config
        self.config = config
        self.statistics = Statistics(runtime)
        self.retry_topic = RETRY_PREFIX + config.group
        self.lifecycle = Lifecycle(runtime, f"the consumer of group {config.group}")
        self._delivery = delivery
        self._name_server = options.name_server
        self._started_ms = 0
        self._is_orderly = is_orderly and not config.is_broadcasting
        self._runtime = runtime
        self._instance = ClientInstance(
            runtime,
            options.name_server,
            client_id=config.client_id,
            on_request=self._requested,
            credentials=options.credentials,
        )
        self._offsets: OffsetStore
        if config.is_broadcasting:
            self._offsets = LocalOffsets(self._instance, OffsetsFile(runtime.files, config.offsets_file))
        else:
            self._offsets = RemoteOffsets(self._instance, config.group)
        self._consume_type = ConsumeType.CONSUME_ACTIVELY if direct is None else ConsumeType.CONSUME_PASSIVELY
        self._membership = Membership(self._instance, config, self._consume_type, self.statistics)
        for topic, expression in options.wanted.items():
            self._membership.want(self._membership.make(topic, expression))
        self._timer = Timer(runtime, f"consumer-{config.group}")
        self._settings = PullSettings.of(config, is_orderly=self._is_orderly)
        self._queues = OwnQueues(
            runtime, config, self.lifecycle, offsets=self._offsets, make=self._make_puller, on_share=options.on_share
        )
        self._sharing = Sharing(
            self._instance,
            self._timer,
            self._membership,
            queues=self._queues,
            is_orderly=self._is_orderly,
            is_busy=delivery.is_busy,
        )
        self._asked = Asked(
            self._instance,
            self._state,
            direct,
            lambda: self._timer.after(0.0, self._sharing.rebalance_later),
            self._sharing.move_later,
        )

    def _make_puller(self, queue: MessageQueue, subscription: SubscriptionData, offset: int, is_paused: bool) -> Puller:
        return Puller(
            instance=self._instance,
            timer=self._timer,
            statistics=self.statistics,
            settings=self._settings,
            queue=queue,
            subscription=subscription,
            offset=offset,
            deliver=self._delivery.deliver,
            pass_over=lambda message: self._pass_over(message, queue),
            is_paused=is_paused,
        )

    def _state(self) -> MemberState:
        return MemberState(
            self.config,
            self._name_server,
            self._consume_type,
            self._is_orderly,
            self._started_ms,
            self._runtime.unix_ms(),
            dict(self._membership.subscriptions),
            self._queues.pullers(),
            self.statistics.snapshot(),
        )

    def _requested(self, command: Command, address: str) -> bool:
        return self._asked.requested(command, address)

    @property
    def client_id(self) -> str:
        """This member's name in its group."""
        return self._instance.client_id

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues of the user's topics that are this client's now."""
        return tuple(sorted(queue for queue in self._queues.pullers() if queue.topic != self.retry_topic))

    # ------------------------------------------------------------ what is wanted

    def subscribe(self, topic: str, expression: str) -> None:
        """Want messages of a topic; while it runs this takes effect soon, on the timer's thread.

        Raises ConfigError, LifecycleError when it is closed, and, while it runs, a ClientError when a broker will not
        filter so: only what is no expression of tags is asked about.
        """
        self.lifecycle.check_open()
        subscription = self._membership.make(topic, expression)
        if self.lifecycle.state is State.RUNNING and isinstance(expression, Sql):
            self._check_filter(subscription)
        self._membership.want(subscription)
        self._wanted_anew()

    def _check_filter(self, subscription: SubscriptionData) -> None:
        try:
            route = self._instance.route(subscription.topic)
        except NoRouteError:
            # It is waited for, as at the start.
            return
        self._membership.check_filter(subscription, route)

    def unsubscribe(self, topic: str) -> None:
        """Want nothing of a topic any more, likewise. Raises ConfigError when it is not subscribed, or as above."""
        self.lifecycle.check_open()
        if topic == self.retry_topic:
            raise ConfigError(f"{topic[:140]!r} belongs to the group and cannot be unsubscribed")
        self._membership.leave_topic(topic)
        self._wanted_anew()

    def assign(self, queues: Collection[MessageQueue], expression: str) -> None:
        """Want these queues instead of a share, likewise. Raises ConfigError or LifecycleError."""
        self.lifecycle.check_open()
        self._membership.assign(queues, expression)
        self._queues.keep_places(frozenset(queues))
        self._wanted_anew()

    def _wanted_anew(self) -> None:
        if self.lifecycle.state is State.RUNNING:
            self._timer.after(0.0, self._sharing.wanted_anew)

    # ------------------------------------------------------------ where it goes on, and whether

    def _due(self) -> frozenset[MessageQueue]:
        """Queues that will be ours in a moment, if they are not already."""
        return self._membership.assigned or frozenset()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at an offset; raises ConfigError where the queue has none such, NotOursError or another ClientError."""
        self.lifecycle.check_running("seek")
        first, end = self.find(queue, "first"), self.find(queue, "last")
        check_seek(queue, offset, first, end)
        self._queues.seek(queue, offset, self._due())

    def seek_to(self, queue: MessageQueue, start_at: StartAt) -> None:
        """Go on at a queue's first message, or at its end; raises NotOursError or another ClientError."""
        self.lifecycle.check_running("seek")
        self._queues.seek(queue, self.find(queue, start_at), self._due())

    def pause(self, queues: Collection[MessageQueue] | None) -> None:
        """Have nothing of these queues, or of any, given to the user; raises NotOursError or LifecycleError."""
        self.lifecycle.check_running("pause")
        self._queues.pause(queues, self._due())

    def resume(self, queues: Collection[MessageQueue] | None) -> None:
        """Go on; raises NotOursError or LifecycleError."""
        self.lifecycle.check_running("resume")
        self._queues.resume(queues, self._due())

    # ------------------------------------------------------------ what brokers know

    def topic_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues of a topic that can be pulled; raises NoRouteError, another ClientError or LifecycleError."""
        self.lifecycle.check_open()
        return self._instance.route(topic).readable

    def find(self, queue: MessageQueue, start_at: StartAt) -> int:
        """The offset of a queue's first message, its end, or the first at or after a time; raises a ClientError."""
        self.lifecycle.check_open()
        addresses = self._instance.route(queue.topic).addresses
        if queue.broker_name not in addresses:
            raise NoRouteError(f"broker {queue.broker_name[:140]!r} has no queue of topic {queue.topic[:140]!r}")
        client = self._instance.client(addresses[queue.broker_name])
        return find_start(client, queue, start_at)

    def committed(self, queue: MessageQueue) -> int | None:
        """Where the group stands by what is stored; None where it has not begun. Raises a ClientError."""
        self.lifecycle.check_open()
        self._instance.route(queue.topic)
        return self._offsets.stored(queue)

    # ------------------------------------------------------------ its life

    def start(self, then: Callable[[], None] = lambda: None) -> None:
        """Join the group and begin to pull; a topic that is not there yet is looked for every `RETRY_S`.

        `then` is the last part of the start. Raises a ClientError when name server or broker are not there, and when a
        broker will not filter so: then nothing of it is left, and it may be tried again. Raises LifecycleError when it
        is started or closed.
        """
        self.lifecycle.begin()
        with ExitStack() as undo:
            undo.callback(self._undo_start)
            self._join()
            then()
            undo.pop_all()

    def _undo_start(self) -> None:
        """Leave no thread, connection or queue of a start that has failed, wherever it has; interrupted, the rest."""
        with ExitStack() as undo:
            undo.callback(self.lifecycle.begin_failed)
            undo.callback(self._instance.disconnect)
            undo.callback(self._give_queues_up)
            undo.callback(self._timer.clear)

    def _give_queues_up(self) -> None:
        pullers = [self._queues.give_up(queue, stores=True) for queue in sorted(self._queues.pullers())]
        self._sharing.unlock(pullers)
        # The brokers notice that the connections are gone: nobody is to be told by new ones.
        self._started_ms = 0

    def _join(self) -> None:
        if not self._membership.subscriptions:
            raise ConfigError(f"group {self.config.group} has no topic; pass topics, or call assign before start")
        self._started_ms = self._runtime.unix_ms()
        routes = self._sharing.routes() if self.config.waits_for_topics else self._sharing.all_routes()
        for topic, route in routes.items():
            self._membership.check_filter(self._membership.subscriptions[topic], route)
        if self._membership.assigned is None and not self.config.is_broadcasting:
            # The heartbeat makes this topic on every broker; its route is there once a name server has heard of it.
            self._membership.want(self._membership.make(self.retry_topic, "*"))
        self._membership.heartbeat(list(routes.values()))
        self._sharing.start()
        self._timer.every(self.config.persist_s, self._queues.persist)

    def close(self) -> None:
        """Stop pulling, store the offsets, leave the group, once; after `lifecycle.end`.

        Errors are logged: the broker notices a lost connection.
        """
        self._timer.close()
        pullers = self._queues.drop_all()
        self._queues.persist()
        self._sharing.unlock_all(pullers)
        if self._started_ms:
            self._membership.leave()
        self._instance.close()

    # ------------------------------------------------------------ for the delivery

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later on the timer's thread; never once the member is closed."""
        self._timer.after(delay_s, action)

    def is_locked(self, puller: Puller) -> bool:
        """Whether the queue's messages may be consumed in order now: the broker keeps it for this client."""
        return self._sharing.is_locked(puller)

    def released(self, puller: Puller) -> None:
        """A queue that was given up is not being consumed any more: let the next member have it."""
        self._sharing.released(puller)

    def shown(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Messages of one queue as the user gets them: those of the retry topic under their own topic."""
        return all_as_shown(messages, messages[0].topic, self.retry_topic, 0) if messages else []

    def store_now(self) -> None:
        """Store every offset that has moved, on the timer's thread, and wait for that; raises a LongpollError."""
        stored, errors = self._runtime.event(), list[LongpollError]()

        def store() -> None:
            self._queues.persist(errors.append)
            stored.set()

        self._timer.after(0.0, store)
        if not stored.wait(CALL_TIMEOUT_S):
            raise AnswerTimeoutError(f"the offsets of group {self.config.group} are not stored yet; commit again")
        if errors:
            raise errors[0]

    def send_back(self, message: ReceivedMessage, queue: MessageQueue, delay_level: int) -> None:
        """Have the broker give the message to the group again later; 0 lets it choose when, negative: never.

        Raises a ClientError. Source: `DefaultMQPushConsumerImpl.sendMessageBack`.
        """
        self._send_back(message.physical_offset, message.msg_id, queue, delay_level)

    def _send_back(self, physical_offset: int, msg_id: str, queue: MessageQueue, delay_level: int) -> None:
        header = back_header(self.config, physical_offset, msg_id, queue, delay_level)
        ask(
            self._instance.client(self._instance.broker_address(queue.broker_name)),
            RequestCode.CONSUMER_SEND_MSG_BACK,
            header,
        )
        self.statistics.add(queue.topic, sent_back_count=1)

    def _pass_over(self, message: UnreadableMessage, queue: MessageQueue) -> None:
        """Do with a message that cannot be read what the config says, and tell of it; on the timer's thread.

        Raises a LongpollError when it is to be asked for again.
        """
        place = f"{message.topic} queue {message.queue_id} offset {message.queue_offset}"
        if self.config.unreadable is Unreadable.STOP:
            raise RemoteProtocolError(f"{place} cannot be read, so its queue waits: {message.why}")
        became = self._buried(message, queue) if self.config.unreadable is Unreadable.DEAD_LETTER else "passed over"
        log.warning("%s cannot be read and is %s: %s", place, became, message.why)
        self.statistics.add(message.topic, unreadable_count=1)
        if self.config.on_unreadable is not None:
            with KeepGoing(log, f"on_unreadable of group {self.config.group} failed"):
                self.config.on_unreadable(message)

    def _buried(self, message: UnreadableMessage, queue: MessageQueue) -> str:
        """Have the broker make it a dead letter; what became of it. Raises a ClientError when no answer comes."""
        if self.config.is_broadcasting or message.physical_offset is None:
            return "passed over"
        try:
            self._send_back(message.physical_offset, "", queue, DEAD_LEVEL)
        except RefusedError as error:
            return f"passed over, for as a dead letter it is refused ({error})"
        return "a dead letter"
