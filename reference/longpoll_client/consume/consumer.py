"""A member of a consumer group: shares the queues with the others, has them pulled, keeps their offsets.

Everything that asks and waits runs on the timer's thread (or, at start and close, on the caller's).
Leaves out what it tells of itself (`membership`), pulling (`puller`), where offsets are kept (`offsets`) and what is
done with the messages (`delivery`, `push`).

Source: `RebalanceImpl.java`, `RebalancePushImpl.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Final, Protocol

from longpoll_client.consume.control import (
    DIRECT_COUNT_MAX,
    MemberState,
    direct_body,
    offsets_body,
    read_reset,
    running_body,
)
from longpoll_client.consume.locks import LOCK_LIVE_S, LOCK_RENEWAL_S, BrokerLocks
from longpoll_client.consume.membership import Membership
from longpoll_client.consume.process_queue import FlowLimits
from longpoll_client.consume.puller import RETRY_S, Batch, Puller, PullSettings
from longpoll_client.consume.statistics import Statistics
from longpoll_client.credentials import Credentials
from longpoll_client.errors import NoRouteError, RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.lifecycle import Lifecycle
from longpoll_client.link.routes import Route
from longpoll_client.messages import ReceivedMessage, UnreadableMessage, as_first_sent, decode_messages
from longpoll_client.offsets import LocalOffsets, OffsetStore, RemoteOffsets, ask
from longpoll_client.settings import DEAD_LEVEL, RECONSUME_COUNT_MAX, ConsumerConfig, Unreadable
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import ConsumeType, MessageQueue
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import ProtocolError, RemoteProtocolError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import (
    ConsumerSendMsgBackRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
)
from longpoll_protocol.names import RETRY_PREFIX
from longpoll_runtime import Runtime
from longpoll_runtime.faults import KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)

SHARING_S: Final = 0.02
"""How long until the timer's thread looks again whether somebody else still shares queues."""

Reply = Callable[..., None]
"""Takes code, remark and body of the answer to a request."""
OnShare = Callable[[MessageQueue, bool], None]
"""Told that this client got a queue (true) or gave it up (false); on the timer's thread, so never wait or raise."""


class Delivery(Protocol):
    """Where a member's messages go."""

    def deliver(self, batch: Batch, /) -> None:
        """Take what a pull brought; on a reader thread, so never wait."""
        ...

    def is_busy(self, puller: Puller, /) -> bool:
        """Whether a listener has messages of the queue right now; only ever true when orderly."""
        ...


class Direct(Protocol):
    """A listener that a message can be given to at an administrator's wish."""

    def give(self, message: ReceivedMessage, then: Callable[[bool], None], /) -> None:
        """Have it consumed on a thread of the listener's, and tell `then` whether it is."""
        ...


class GroupMember:
    """Keeps this client in its group and its share of the queues pulled; batches go to `delivery`.

    Invariant: `_pullers` has one puller, not dropped, for each queue of this client's share. It changes under `_lock`
    and only within `_rebalancing`: two at once, of which the first heartbeat's own notice makes a second, would each
    begin the same queue, and every message of it would come twice.
    """

    def __init__(
        self,
        runtime: Runtime,
        name_server: str,
        config: ConsumerConfig,
        delivery: Delivery,
        *,
        direct: Direct | None = None,
        is_orderly: bool = False,
        on_share: OnShare | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        """`direct` is a push consumer's listener; without it messages wait for somebody who asks for them."""
        self.config = config
        self.statistics = Statistics(runtime)
        self.retry_topic = RETRY_PREFIX + config.group
        self.lifecycle = Lifecycle(runtime, f"the consumer of group {config.group}")
        self._delivery = delivery
        self._is_push = direct is not None
        self._direct = direct
        self._direct_count = 0
        self._name_server = name_server
        self._started_ms = 0
        self._is_orderly = is_orderly and not config.is_broadcasting
        self._on_share = on_share
        self._runtime = runtime
        self._lock = runtime.lock()
        self._rebalancing = runtime.lock()
        self._tries_soon = False
        self._pullers: dict[MessageQueue, Puller] = {}
        self._instance = ClientInstance(runtime, name_server, on_request=self._requested, credentials=credentials)
        self._offsets: OffsetStore
        if config.is_broadcasting:
            self._offsets = LocalOffsets(self._instance, runtime.files, config.offsets_file)
        else:
            self._offsets = RemoteOffsets(self._instance, config.group)
        self._consume_type = ConsumeType.CONSUME_ACTIVELY if direct is None else ConsumeType.CONSUME_PASSIVELY
        self._membership = Membership(self._instance, config, self._consume_type)
        self._locks = BrokerLocks(self._instance, config.group)
        self._timer = Timer(runtime, f"consumer-{config.group}")
        limits = FlowLimits(
            config.cached_count_max, config.cached_size_max, None if self._is_orderly else config.cached_span_max
        )
        self._settings = PullSettings(
            config.group,
            config.batch_count_max,
            config.hold_ms,
            config.pull_timeout_s,
            limits,
            not config.is_broadcasting,
        )

    @property
    def client_id(self) -> str:
        """This member's name in its group."""
        return self._instance.client_id

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        """The queues that are this client's now."""
        with self._lock:
            return tuple(sorted(self._pullers))

    def subscribe(self, topic: str, expression: str, expression_type: str = "TAG") -> None:
        """Want messages of a topic; before `start`. Raises ConfigError, or LifecycleError when it is started."""
        self.lifecycle.check_created("subscribe")
        self._membership.subscribe(topic, expression, expression_type)

    def start(self) -> None:
        """Join the group and begin to pull; a topic that is not there yet is looked for every `RETRY_S`.

        Raises a ClientError when name server or broker are not there, and when a broker will not filter so: then it may
        be tried again. Raises LifecycleError when it is started or closed.
        """
        self.lifecycle.begin()
        with ExitStack() as undo:
            undo.callback(self.lifecycle.begin_failed)
            self._join()
            undo.pop_all()

    def _join(self) -> None:
        self._started_ms = self._runtime.unix_ms()
        if not self._membership.subscriptions:
            raise ConfigError(f"group {self.config.group} wants no topic: call subscribe before start")
        routes = self._routes() if self.config.waits_for_topics else self._all_routes()
        self._membership.check_filters(routes)
        if self._is_push and not self.config.is_broadcasting:
            # The heartbeat makes this topic on every broker; its route is there once a name server has heard of it.
            self._membership.subscribe(self.retry_topic, "*", "TAG")
        self._membership.heartbeat(list(routes.values()))
        self._rebalance()
        self._every(self.config.heartbeat_s, self._heartbeat_all)
        self._every(self.config.rebalance_s, self._rebalance_later)
        self._every(self.config.persist_s, self._persist)
        if self._is_orderly:
            self._every(LOCK_RENEWAL_S, self._renew_locks)

    def close(self) -> None:
        """Stop pulling, store the offsets, leave the group, once; after `lifecycle.end`.

        Errors are logged: the broker notices a lost connection.
        """
        self._timer.close()
        with self._lock:
            pullers = list(self._pullers.values())
        for puller in pullers:
            puller.drop()
        self._persist()
        if self._is_orderly:
            idle = [puller.queue for puller in pullers if not self._delivery.is_busy(puller)]
            self._locks.unlock(idle, self._lock_failed)
        self._membership.leave()
        self._instance.close()

    # ------------------------------------------------------------ for the delivery

    def after(self, delay_s: float, action: Callable[[], None]) -> None:
        """Do something later on the timer's thread; never once the member is closed."""
        self._timer.after(delay_s, action)

    def send_back(self, message: ReceivedMessage, queue: MessageQueue, delay_level: int) -> None:
        """Have the broker give the message to the group again later; 0 lets it choose when, negative: never.

        Raises a ClientError. Source: `DefaultMQPushConsumerImpl.sendMessageBack`.
        """
        self._send_back(message.physical_offset, message.msg_id, queue, delay_level)

    def _send_back(self, physical_offset: int, msg_id: str, queue: MessageQueue, delay_level: int) -> None:
        most = self.config.reconsume_count_max
        header = ConsumerSendMsgBackRequestHeader(
            offset=physical_offset,
            group=self.config.group,
            delay_level=delay_level,
            origin_msg_id=msg_id,
            origin_topic=queue.topic,
            max_reconsume_times=RECONSUME_COUNT_MAX if most is None else most,
        )
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
            raise RemoteProtocolError(f"{place} cannot be read, and its queue waits: {message.why}")
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

    def is_locked(self, puller: Puller) -> bool:
        """Whether the queue's messages may be consumed in order now: the broker keeps it for this client."""
        return not self._is_orderly or self._runtime.monotonic_ns() < puller.locked_until_ns

    def released(self, puller: Puller) -> None:
        """A queue that was given up is not being consumed any more: let the next member have it."""
        if self._is_orderly:
            self._locks.unlock([puller.queue], self._lock_failed)

    # ------------------------------------------------------------ on the timer's thread

    def _every(self, period_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self._timer.after(period_s, run)

        self._timer.after(period_s, run)

    def _requested(self, command: Command, address: str) -> bool:
        """What a broker asks of us, on a reader thread; whether we know it."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._timer.after(0.0, self._rebalance_later)
            return True
        answers: dict[int, Callable[[Command, Reply], None]] = {
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: self._reset,
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: self._tell_offsets,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self._tell_running,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self._consume_directly,
        }
        found = answers.get(command.code)
        if found is None:
            return False
        try:
            found(command, partial(self._instance.reply, address, command))
        except ProtocolError as error:
            log.warning("request %d of %s: %s", command.code, address, error)
            self._instance.reply(address, command, ResponseCode.SYSTEM_ERROR, str(error))
        return True

    def _tell_offsets(self, command: Command, reply: Reply) -> None:
        """221; raises HeaderError."""
        topic = GetConsumerStatusRequestHeader.decode(command.ext_fields).topic
        with self._lock:
            pullers = dict(self._pullers)
        reply(ResponseCode.SUCCESS, None, offsets_body(pullers, topic))

    def _tell_running(self, command: Command, reply: Reply) -> None:
        """307; raises HeaderError."""
        group = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields).consumer_group
        if group != self.config.group:
            reply(ResponseCode.SYSTEM_ERROR, f"The Consumer Group <{group[:255]}> not exist in this consumer")
            return
        with self._lock:
            pullers = dict(self._pullers)
        state = MemberState(
            self.config,
            self._name_server,
            self._consume_type,
            self._is_orderly,
            self._started_ms,
            self._runtime.unix_ms(),
            dict(self._membership.subscriptions),
            pullers,
            self.statistics.snapshot(),
        )
        reply(ResponseCode.SUCCESS, None, running_body(state))

    def _consume_directly(self, command: Command, reply: Reply) -> None:
        """309, answered by the listener's thread; raises a ProtocolError."""
        messages = decode_messages(command.body)
        if len(messages) != 1:
            raise RemoteProtocolError(f"one message is to be consumed, and the body has {len(messages)}")
        if self._direct is None:
            reply(ResponseCode.SYSTEM_ERROR, f"group {self.config.group} is no push consumer here: it has no listener")
            return
        with self._lock:
            is_much = self._direct_count >= DIRECT_COUNT_MAX
            self._direct_count += not is_much
        if is_much:
            reply(ResponseCode.SYSTEM_BUSY, f"{DIRECT_COUNT_MAX} messages are being consumed directly already")
            return
        began_ns = self._runtime.monotonic_ns()

        def told(is_consumed: bool) -> None:
            with self._lock:
                self._direct_count -= 1
            took_ms = (self._runtime.monotonic_ns() - began_ns) / 1e6
            body = direct_body(is_consumed=is_consumed, is_orderly=self._is_orderly, took_ms=took_ms)
            reply(ResponseCode.SUCCESS, None, body)

        self._direct.give(as_first_sent(messages[0], self.retry_topic), told)

    # ------------------------------------------------------------ going on elsewhere, on the timer's thread

    def _reset(self, command: Command, _reply: Reply) -> None:
        """220: go on from other offsets where the queue is ours; raises HeaderError."""
        offsets = read_reset(command, self.config.group)
        log.warning("group %s is told by a broker to go on elsewhere in %d queues", self.config.group, len(offsets))
        self._timer.after(0.0, lambda: self._when_shared(lambda: self._move(offsets)))

    def _move(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Stop consuming the queues; go on once no listener has messages of them, for order's sake."""
        with self._lock:
            moving = {queue: self._pullers[queue] for queue in offsets if queue in self._pullers}
        for puller in moving.values():
            puller.drop()
        if any(self._delivery.is_busy(puller) for puller in moving.values()):
            self._timer.after(SHARING_S, lambda: self._when_shared(lambda: self._move(offsets)))
            return
        for queue in sorted(moving):
            self._give_up(queue, stores=False)
            try:
                self._offsets.reset(queue, offsets[queue])
            except LongpollError as error:
                log.warning("offset of %s queue %d is not reset: %s", queue.topic, queue.queue_id, error)
        self._rebalance_topics()

    def _heartbeat_all(self) -> None:
        try:
            self._membership.heartbeat(list(self._routes().values()))
        except LongpollError as error:
            log.warning("heartbeat of group %s: %s", self.config.group, error)

    def _own_topics(self) -> list[str]:
        """The topics that the user asked for."""
        return [topic for topic in self._membership.subscriptions if topic != self.retry_topic]

    def _all_routes(self) -> dict[str, Route]:
        """The routes of the topics that the user asked for; raises NoRouteError or another ClientError."""
        return {topic: self._instance.route(topic) for topic in self._own_topics()}

    def _routes(self) -> dict[str, Route]:
        """The routes of the topics that the user asked for, as far as these are there; raises a ClientError."""
        found = {}
        for topic in self._own_topics():
            try:
                found[topic] = self._instance.route(topic)
            except NoRouteError as error:
                log.warning("group %s waits for its topic: %s", self.config.group, error)
        return found

    def _rebalance(self) -> None:
        """Take and give up queues so that this client has its share; what fails is tried again soon."""
        with self._rebalancing:
            self._rebalance_topics()

    def _rebalance_later(self) -> None:
        """The same on the timer's thread."""
        self._when_shared(self._rebalance_topics)

    def _when_shared(self, action: Callable[[], None]) -> None:
        """Do something within `_rebalancing`, on the timer's thread, which never waits for it.

        Who shares queues now may be in `on_share`, close this member there, and so wait for the timer's thread.
        """
        if not self._rebalancing.acquire(blocking=False):
            self._timer.after(SHARING_S, lambda: self._when_shared(action))
            return
        with ExitStack() as stack:
            stack.callback(self._rebalancing.release)
            action()

    def _rebalance_topics(self) -> None:
        for topic in list(self._membership.subscriptions):
            try:
                self._rebalance_topic(topic)
            except NoRouteError as error:
                if topic != self.retry_topic:
                    self._rebalance_failed(topic, error)
            except LongpollError as error:
                self._rebalance_failed(topic, error)

    def _rebalance_failed(self, topic: str, error: LongpollError) -> None:
        log.warning("rebalance of %s for group %s: %s", topic, self.config.group, error)
        self._try_soon()

    def _try_soon(self) -> None:
        """Join and share again, once, however much failed by then: else what fails for long is tried ever more."""
        if not self._tries_soon:
            self._tries_soon = True
            self._timer.after(RETRY_S, self._try_again)

    def _try_again(self) -> None:
        self._tries_soon = False
        self._heartbeat_all()
        self._rebalance_later()

    def _rebalance_topic(self, topic: str) -> None:
        route = self._instance.route(topic)
        share = set(self._share(route))
        with self._lock:
            own = {queue for queue in self._pullers if queue.topic == topic}
        for queue in sorted(own - share):
            self._give_up(queue, stores=True)
        if not route.readable and topic != self.retry_topic:
            raise NoRouteError(f"topic {topic!r} cannot be read: its permission has no R")
        failure: LongpollError | None = None
        for queue in sorted(self._lockable(share - own)):
            try:
                self._begin(queue)
            except LongpollError as error:
                failure = error
        if failure is not None:
            # Told once for all queues of a broker that is down; the others have begun.
            raise failure

    def _share(self, route: Route) -> tuple[MessageQueue, ...]:
        """The queues of a topic that are this client's."""
        if self.config.is_broadcasting:
            return route.readable
        members = self._membership.members(route)
        if self.client_id not in members:
            # The broker was restarted and has forgotten us: without this our queues would be given up.
            self._membership.heartbeat([route])
            members = self._membership.members(route)
        return self.config.allocate(self.client_id, members, route.readable)

    def _begin(self, queue: MessageQueue) -> None:
        offset = self._offsets.begin(queue, self.config.start_at, self.config.start_timestamp_ms)
        puller = Puller(
            instance=self._instance,
            timer=self._timer,
            statistics=self.statistics,
            settings=self._settings,
            queue=queue,
            subscription=self._membership.subscriptions[queue.topic],
            offset=offset,
            deliver=self._delivery.deliver,
            pass_over=lambda message: self._pass_over(message, queue),
        )
        puller.locked_until_ns = self._lock_end_ns()
        with self._lock:
            if self.lifecycle.is_closed:
                # By the user's own `on_share`, called for the queue before.
                return
            self._pullers[queue] = puller
        self._shared(queue, True)
        puller.pull()

    def _shared(self, queue: MessageQueue, is_ours: bool) -> None:
        if self._on_share is not None:
            self._on_share(queue, is_ours)

    def _give_up(self, queue: MessageQueue, *, stores: bool) -> None:
        """Let a queue go; a listener that still has messages of it ends its lock when it is done."""
        with self._lock:
            puller = self._pullers.pop(queue)
        puller.drop()
        self._shared(queue, False)
        if stores:
            self._store(queue, puller.offset_done)
        if not self._delivery.is_busy(puller):
            self.released(puller)

    def _persist(self) -> None:
        """Store every offset that has moved."""
        with self._lock:
            offsets = {queue: puller.offset_done for queue, puller in self._pullers.items()}
        for queue, offset in offsets.items():
            self._store(queue, offset)

    def _store(self, queue: MessageQueue, offset: int) -> None:
        try:
            self._offsets.store(queue, offset)
        except LongpollError as error:
            log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)

    # ------------------------------------------------------------ locks, on the timer's thread

    def _lock_end_ns(self) -> int:
        return self._runtime.monotonic_ns() + int(LOCK_LIVE_S * 1e9)

    def _lockable(self, queues: set[MessageQueue]) -> set[MessageQueue]:
        """The queues that may be begun: when orderly those that the brokers keep for us, and the rest soon again."""
        if not self._is_orderly or not queues:
            return queues
        got, _refused = self._locks.lock(queues, self._lock_failed)
        if got != queues:
            self._try_soon()
        return got

    def _renew_locks(self) -> None:
        """Keep the queues; one that another member has got meanwhile is given up, and not its offset overwritten."""
        self._when_shared(self._renew)

    def _renew(self) -> None:
        with self._lock:
            pullers = dict(self._pullers)
        end_ns = self._lock_end_ns()
        got, refused = self._locks.lock(pullers, self._lock_failed)
        for queue in got:
            pullers[queue].locked_until_ns = end_ns
        self._lose(refused)

    def _lose(self, queues: Iterable[MessageQueue]) -> None:
        for queue in sorted(queues):
            log.warning(
                "%s queue %d: another member of group %s has it", queue.topic, queue.queue_id, self.config.group
            )
            self._give_up(queue, stores=False)
            self._try_soon()

    def _lock_failed(self, broker_name: str, error: LongpollError) -> None:
        log.warning("locks of group %s at %s: %s", self.config.group, broker_name, error)
