"""A member of a consumer group: says what it wants, shares the queues with the others, keeps their offsets.

Everything that asks and waits runs on the timer's thread (or, at start and close, on the caller's).
Leaves out pulling (`puller`), where offsets are kept (`offsets`) and what is done with the messages (`delivery`).

Source: `MQClientInstance.sendHeartbeatToAllBrokerWithLock`, `RebalanceImpl.java`, `RemoteBrokerOffsetStore.java`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import field, frozen

from longpoll_broker.errors import BrokerError, ConfigError, RefusedError
from longpoll_broker.runtime import Runtime
from longpoll_broker.service.client.instance import ClientInstance, Route
from longpoll_broker.service.client.offsets import RemoteOffsets, StartAt, ask
from longpoll_broker.service.client.puller import RETRY_S, Batch, Puller, PullSettings
from longpoll_broker.service.client.rebalance import allocate_averagely
from longpoll_broker.service.client.timer import Timer
from longpoll_broker.wire.bodies import (
    CheckClientData,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerList,
    HeartbeatData,
    MessageQueue,
    SubscriptionData,
)
from longpoll_broker.wire.codes import RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.headers import (
    GetConsumerListByGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from longpoll_broker.wire.message import java_hash

log = logging.getLogger(__name__)

GROUP_SIZE_MAX: Final = 255
SUBSCRIPTION_COUNT_MAX: Final = 1000


@frozen
class ConsumerConfig:
    """How a consumer behaves; the defaults are those of Java's push consumer."""

    group: str
    start_at: StartAt = field(default=StartAt.STORED)
    start_timestamp_ms: int = field(default=0)
    """With `StartAt.TIMESTAMP`: the first message stored at or after it."""
    batch_count_max: int = field(default=32)
    """`pullBatchSize`."""
    hold_ms: int = field(default=15_000)
    """`BROKER_SUSPEND_MAX_TIME_MILLIS`."""
    pull_timeout_s: float = field(default=30.0)
    """`CONSUMER_TIMEOUT_MILLIS_WHEN_SUSPEND`."""
    cached_count_max: int = field(default=1000)
    """`pullThresholdForQueue`: with so many messages not consumed a queue is not pulled."""
    rebalance_s: float = field(default=20.0)
    heartbeat_s: float = field(default=30.0)
    persist_s: float = field(default=5.0)
    """`persistConsumerOffsetInterval`."""

    def __attrs_post_init__(self) -> None:
        """Refuse a group that no broker takes."""
        if not 0 < len(self.group) <= GROUP_SIZE_MAX or self.group.isspace():
            raise ConfigError(f"group {self.group[:40]!r} is not allowed: 1 to {GROUP_SIZE_MAX} characters")


class GroupMember:
    """Keeps this client in its group and its share of the queues pulled; batches go to `deliver`.

    Invariant: `_pullers` has one puller, not dropped, for each queue of this client's share. It changes under `_lock`
    and only within `_rebalancing`: two at once, of which the first heartbeat's own notice makes a second, would each
    begin the same queue, and every message of it would come twice.
    """

    def __init__(
        self, runtime: Runtime, name_server: str, config: ConsumerConfig, deliver: Callable[[Batch], None]
    ) -> None:
        self.config = config
        self._deliver = deliver
        self._runtime = runtime
        self._lock = runtime.lock()
        self._rebalancing = runtime.lock()
        self._subscriptions: dict[str, SubscriptionData] = {}
        self._pullers: dict[MessageQueue, Puller] = {}
        self._instance = ClientInstance(runtime, name_server, on_request=self._requested)
        self._offsets = RemoteOffsets(self._instance, config.group)
        self._timer = Timer(runtime, f"consumer-{config.group}")
        self._settings = PullSettings(
            config.group, config.batch_count_max, config.hold_ms, config.pull_timeout_s, config.cached_count_max
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
        """Want messages of a topic; before `start`. Raises ConfigError."""
        if len(self._subscriptions) >= SUBSCRIPTION_COUNT_MAX:
            raise ConfigError(f"{SUBSCRIPTION_COUNT_MAX} topics are subscribed already")
        self._subscriptions[topic] = make_subscription(topic, expression, expression_type, self._runtime.unix_ms())

    def start(self) -> None:
        """Join the group and begin to pull.

        Raises a ClientError when name server, route or broker are not there, and when a broker will not filter so.
        """
        routes = [self._instance.route(topic) for topic in self._subscriptions]
        self._check_filters(routes)
        self._heartbeat(routes)
        self._rebalance()
        self._every(self.config.heartbeat_s, self._heartbeat_all)
        self._every(self.config.rebalance_s, self._rebalance)
        self._every(self.config.persist_s, self._persist)

    def close(self) -> None:
        """Stop pulling, store the offsets, leave the group. Errors are logged: the broker notices a lost connection."""
        self._timer.close()
        with self._lock:
            pullers = list(self._pullers.values())
        for puller in pullers:
            puller.drop()
        self._persist()
        self._leave()
        self._instance.close()

    # ------------------------------------------------------------ on the timer's thread

    def _every(self, period_s: float, action: Callable[[], None]) -> None:
        def run() -> None:
            action()
            self._timer.after(period_s, run)

        self._timer.after(period_s, run)

    def _requested(self, command: Command) -> bool:
        """What a broker asks of us, on a reader thread."""
        if command.code != RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            return False
        self._timer.after(0.0, self._rebalance)
        return True

    def _heartbeat_all(self) -> None:
        try:
            self._heartbeat([self._instance.route(topic) for topic in self._subscriptions])
        except BrokerError as error:
            log.warning("heartbeat of group %s: %s", self.config.group, error)

    def _check_filters(self, routes: list[Route]) -> None:
        """Ask every broker whether it filters other than by tags as we want (`checkClientInBroker`)."""
        for subscription, route in zip(self._subscriptions.values(), routes, strict=True):
            if subscription.expression_type == "TAG":
                continue
            wanted = CheckClientData(client_id=self.client_id, group=self.config.group, subscription_data=subscription)
            for address in sorted(route.addresses.values()):
                ask(self._instance.client(address), RequestCode.CHECK_CLIENT_CONFIG, None, wanted.encode())

    def _heartbeat(self, routes: list[Route]) -> None:
        """Tell every broker of the routes who we are; raises ClientError."""
        group = ConsumerData(
            group_name=self.config.group,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=list(self._subscriptions.values()),
        )
        body = HeartbeatData(client_id=self.client_id, consumer_data_set=[group]).encode()
        for address in sorted({address for route in routes for address in route.addresses.values()}):
            ask(self._instance.client(address), RequestCode.HEART_BEAT, None, body)

    def _rebalance(self) -> None:
        """Take and give up queues so that this client has its share; what fails is tried again soon."""
        with self._rebalancing:
            for topic in self._subscriptions:
                try:
                    self._rebalance_topic(topic)
                except BrokerError as error:
                    log.warning("rebalance of %s for group %s: %s", topic, self.config.group, error)
                    self._timer.after(RETRY_S, self._heartbeat_all)
                    self._timer.after(RETRY_S, self._rebalance)

    def _rebalance_topic(self, topic: str) -> None:
        route = self._instance.route(topic)
        members = self._members(route)
        if self.client_id not in members:
            # The broker was restarted and has forgotten us: without this our queues would be given up.
            self._heartbeat([route])
            members = self._members(route)
        share = set(allocate_averagely(self.client_id, members, route.readable))
        with self._lock:
            own = {queue for queue in self._pullers if queue.topic == topic}
        for queue in sorted(own - share):
            with self._lock:
                puller = self._pullers.pop(queue)
            puller.drop()
            self._offsets.store(queue, puller.offset_done)
        for queue in sorted(share - own):
            self._begin(queue)

    def _members(self, route: Route) -> list[str]:
        """The client ids of the group by one of the topic's brokers; none when the broker does not know the group."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self.config.group)
        client = self._instance.client(min(route.addresses.values()))
        try:
            answer = ask(client, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        except RefusedError as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return []
        return ConsumerList.decode(answer.body).consumer_id_list

    def _begin(self, queue: MessageQueue) -> None:
        offset = self._offsets.begin(queue, self.config.start_at, self.config.start_timestamp_ms)
        puller = Puller(
            instance=self._instance,
            timer=self._timer,
            settings=self._settings,
            queue=queue,
            subscription=self._subscriptions[queue.topic],
            offset=offset,
            deliver=self._deliver,
        )
        with self._lock:
            self._pullers[queue] = puller
        puller.pull()

    def _persist(self) -> None:
        """Store every offset that has moved."""
        with self._lock:
            offsets = {queue: puller.offset_done for queue, puller in self._pullers.items()}
        for queue, offset in offsets.items():
            try:
                self._offsets.store(queue, offset)
            except BrokerError as error:
                log.warning("offset of %s queue %d: %s", queue.topic, queue.queue_id, error)

    def _leave(self) -> None:
        header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=self.config.group)
        for address in self._instance.broker_addresses():
            try:
                ask(self._instance.client(address), RequestCode.UNREGISTER_CLIENT, header)
            except BrokerError as error:
                log.warning("leaving group %s: %s", self.config.group, error)


def make_subscription(topic: str, expression: str, expression_type: str, version: int) -> SubscriptionData:
    """What a heartbeat says of one topic; raises ConfigError when a tag expression names no tag."""
    if expression_type != "TAG" or expression in {"", "*"}:
        text = expression or "*"
        return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise ConfigError(f"tag expression {expression[:60]!r} names no tag: write a || b, or * for all")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        expression_type=expression_type,
        sub_version=version,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
    )
