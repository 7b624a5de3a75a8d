"""A member's subscriptions, and its requests about its group.

The requests are heartbeats (34), leaving the group (35), lists of members (38, 203), locks of queues (41, 42) and
checks of filters (46). `member` and `rebalance` decide when to send the requests.

Source: `MQClientInstance.sendHeartbeatToAllBrokerWithLock`, `checkClientInBroker`, `unregisterClient`,
`RebalanceImpl.lockAll`, `RebalanceImpl.unlock`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from longpoll_client.checks import Sql, check_wanted
from longpoll_client.consume.statistics import Statistics
from longpoll_client.errors import ClientError, RefusedError
from longpoll_client.link.routes import Route
from longpoll_client.link.steps import Ask, Steps, Together, ask_once
from longpoll_client.messages import wanted_tags
from longpoll_client.settings import MemberConfig
from longpoll_protocol.admin_headers import GetConsumerConnectionListRequestHeader
from longpoll_protocol.bodies import (
    CheckClientData,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    LockBatchRequest,
    LockBatchResponse,
    MessageQueue,
    SubscriptionData,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from longpoll_protocol.properties import java_hash
from longpoll_runtime import Runtime
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)

SUBSCRIPTION_COUNT_MAX: Final = 1000
LOCK_LIVE_S: Final = 30.0
"""Seconds after which a lock that was not renewed counts as lost (`REBALANCE_LOCK_MAX_LIVE_TIME`). The broker's limit
is twice as long, so that a client gives a queue up before its broker does."""
LOCK_RENEWAL_S: Final = 20.0
"""Seconds between two renewals of the locks (`REBALANCE_LOCK_INTERVAL`)."""


SAID_MAX: Final = 10
"""The maximum number of topics in one log line about other members' subscriptions."""


class SubscriptionCheck:
    """Compares this member's subscriptions with those that the broker has from other members of the group.

    If members have different subscriptions, messages are lost, because the broker keeps only one member's
    subscriptions, but all members share the queues. Java's client does not report different subscriptions. Each member
    compares before its heartbeat, so sooner or later one member finds another member's subscription.
    """

    def __init__(self, config: MemberConfig, statistics: Statistics) -> None:
        self._config = config
        self._statistics = statistics
        self._said = ""

    def compare(self, answer: Command, own: Mapping[str, SubscriptionData]) -> None:
        """Count the topics with different subscriptions, and log them when they change.

        `own` is the subscription that this broker last got from this member. An answer that cannot be read is ignored.
        """
        if answer.code != ResponseCode.SUCCESS:
            return
        try:
            others = ConsumerConnection.decode(answer.body).subscription_table
        except HeaderError as error:
            log.debug("the members of group %s cannot be read: %s", self._config.group, error)
            return
        found = {topic: (_asked(own.get(topic)), _asked(others.get(topic))) for topic in {**own, **others}}
        differing = {topic: texts for topic, texts in found.items() if len(set(texts)) > 1}
        for topic in differing.keys() & own.keys():
            self._statistics.add(topic, differing_count=1)
        each = [f"{topic}: {own} here, {other} there" for topic, (own, other) in sorted(differing.items())]
        said = "; ".join(each[:SAID_MAX] + ([f"and {len(each) - SAID_MAX} topics more"] if each[SAID_MAX:] else []))
        if said and said != self._said:
            log.warning("members of group %s want different messages, and lose some: %s", self._config.group, said)
        self._said = said


def _asked(subscription: SubscriptionData | None) -> str:
    if subscription is None:
        return "nothing"
    tags = wanted_tags(subscription.sub_string) if subscription.expression_type == "TAG" else frozenset[str]()
    if tags:
        return " || ".join(sorted(tags))
    return "everything" if tags is None else f"{subscription.expression_type} {subscription.sub_string[:140]}"


class Membership:
    """One client's membership of one group: its subscriptions (topics with expressions) or its assigned queues.

    A member with assigned queues is not in the group and sends no heartbeats.

    Invariant: `subscriptions` and `assigned` are replaced under `_lock` and never changed. `assigned` is None if the
    member shares the queues of its topics with the group. `_addresses` has the brokers that got the last heartbeat;
    `_has` maps each broker to the last subscriptions that this broker accepted.
    """

    def __init__(
        self,
        runtime: Runtime,
        config: MemberConfig,
        consume_type: ConsumeType,
        client_id: Callable[[], str],
        statistics: Statistics,
    ) -> None:
        self.config = config
        self.client_id = client_id
        self.subscriptions: Mapping[str, SubscriptionData] = {}
        """The subscriptions by topic."""
        self.assigned: frozenset[MessageQueue] | None = None
        """The queues that the user assigned; None if the member shares the queues of its topics."""
        self._runtime = runtime
        self._lock = runtime.lock()
        self._consume_type = consume_type
        self._subscription_check = SubscriptionCheck(config, statistics)
        self._addresses: list[str] = []
        self._has: dict[str, Mapping[str, SubscriptionData]] = {}

    def make(self, topic: str, expression: str) -> SubscriptionData:
        """Return a subscription for `subscribe`; raises ConfigError.

        Each subscription has a higher version than the last, because brokers ignore an older version.
        """
        check_wanted(topic, expression)
        expression_type = "SQL92" if isinstance(expression, Sql) else "TAG"
        with self._lock:
            known = self.subscriptions.get(topic)
        version = max(self._runtime.unix_ms(), known.sub_version + 1 if known is not None else 0)
        made = make_subscription(topic, str(expression), expression_type, version)
        is_same = known is not None and (known.sub_string, known.expression_type) == (made.sub_string, expression_type)
        return known if is_same and known is not None else made

    def subscribe(self, subscription: SubscriptionData) -> None:
        """Subscribe to a topic; raises ConfigError."""
        with self._lock:
            if self.assigned is not None:
                raise ConfigError(
                    f"group {self.config.group} has assigned queues; use either subscribe or assign, not both"
                )
            if len(self.subscriptions) >= SUBSCRIPTION_COUNT_MAX and subscription.topic not in self.subscriptions:
                raise ConfigError(f"{SUBSCRIPTION_COUNT_MAX} topics are already subscribed, which is the limit")
            self.subscriptions = {**self.subscriptions, subscription.topic: subscription}

    def unsubscribe(self, topic: str) -> None:
        """Leave a topic; raises ConfigError if the topic is not subscribed."""
        with self._lock:
            if topic not in self.subscriptions or self.assigned is not None:
                raise ConfigError(f"topic {topic[:140]!r} is not subscribed by group {self.config.group} here")
            self.subscriptions = {name: each for name, each in self.subscriptions.items() if name != topic}

    def assign(self, queues: Iterable[MessageQueue], expression: str) -> None:
        """Take exactly these queues; raises ConfigError."""
        chosen = frozenset(queues)
        topics = sorted({queue.topic for queue in chosen})
        made = {topic: self.make(topic, expression) for topic in topics}
        with self._lock:
            if self.assigned is None and self.subscriptions:
                raise ConfigError(
                    f"group {self.config.group} has subscribed topics; use either subscribe or assign, not both"
                )
            self.assigned, self.subscriptions = chosen, made

    def check_filter(self, subscription: SubscriptionData, route: Route) -> Steps[None]:
        """Ask every broker of the route to check a filter other than tags (`checkClientInBroker`).

        Raises a ClientError.
        """
        if subscription.expression_type == "TAG":
            return
        body = CheckClientData(
            client_id=self.client_id(), group=self.config.group, subscription_data=subscription
        ).encode()
        for address in sorted(route.addresses.values()):
            yield Ask(RequestCode.CHECK_CLIENT_CONFIG, None, body, address)

    def heartbeat(self, routes: Iterable[Route]) -> Steps[None]:
        """Send a heartbeat to every broker of the routes; raises a ClientError if a broker refuses or none answers.

        If there is no route, the heartbeat goes to the brokers that got the last one, because they must learn that the
        subscription ended.
        """
        if self.assigned is not None:
            return
        own = self.subscriptions
        body = heartbeat_body(self.client_id(), self.config, self._consume_type, own)
        addresses = sorted({address for route in routes for address in route.addresses.values()}) or self._addresses
        self._addresses = addresses
        asked = (ask_once(Ask(RequestCode.HEART_BEAT, None, body, address)) for address in addresses)
        answers = yield Together(list(asked))
        failures = [answer for answer in answers if isinstance(answer, LongpollError)]
        answered = zip(addresses, answers, strict=True)
        self._has.update({address: own for address, answer in answered if not isinstance(answer, LongpollError)})
        for error in failures:
            if not isinstance(error, ClientError) or isinstance(error, RefusedError):
                raise error
        if failures and len(failures) == len(addresses):
            raise failures[0]
        for error in failures:
            log.warning("heartbeat of group %s: %s; the other brokers have it", self.config.group, error)

    def check_subscriptions(self) -> Steps[None]:
        """Compare this member's subscriptions with the other members' subscriptions, as one broker reports them.

        The first broker that answers is used. Call this method before the heartbeat.
        """
        own = self.subscriptions
        if self.assigned is not None:
            return
        header = GetConsumerConnectionListRequestHeader(consumer_group=self.config.group)
        # Ask only brokers that have this member's subscription. Other brokers would report this member's old
        # subscription as another member's.
        for address in [each for each in self._addresses if self._has.get(each) is own]:
            try:
                answer = yield Ask(RequestCode.GET_CONSUMER_CONNECTION_LIST, header, address=address)
            except RefusedError:
                return
            except ClientError as error:
                log.debug("the members of group %s are not known: %s", self.config.group, error)
            else:
                # If the subscription changed meanwhile, the answer may contain this member's new subscription, so it is
                # not compared.
                if self.subscriptions is own:
                    self._subscription_check.compare(answer, own)
                return

    def members(self, route: Route) -> Steps[list[str]]:
        """Return the client ids of the group, from the first of the topic's brokers that answers.

        The list is empty if that broker does not know the group (code 1). Raises a ClientError.
        """
        failure: ClientError | None = None
        for address in sorted(route.addresses.values()):
            try:
                return (yield from members_at(address, self.config.group))
            except RefusedError:
                raise
            except ClientError as error:
                failure = error
        assert failure is not None, "a route has a broker"
        raise failure

    def leave(self) -> Steps[None]:
        """Unregister the member at every broker that got a heartbeat.

        Errors are only logged, because the broker also notices the closed connection.
        """
        if self.assigned is not None:
            return
        header = UnregisterClientRequestHeader(client_id=self.client_id(), consumer_group=self.config.group)
        addresses = sorted({*self._addresses, *self._has})
        asked = (ask_once(Ask(RequestCode.UNREGISTER_CLIENT, header, address=address)) for address in addresses)
        answers = yield Together(list(asked))
        for error in answers:
            if isinstance(error, LongpollError):
                log.warning("leaving group %s: %s", self.config.group, error)


def members_at(address: str, group: str) -> Steps[list[str]]:
    """Return the client ids of a group at one broker, or [] if the broker does not know the group (code 1)."""
    header = GetConsumerListByGroupRequestHeader(consumer_group=group)
    try:
        answer = yield Ask(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header, address=address)
    except RefusedError as error:
        if error.code != ResponseCode.SYSTEM_ERROR:
            raise
        return []
    return ConsumerList.decode(answer.body).consumer_id_list


class QueueLocks:
    """A member's locks on queues at their brokers. Only an orderly member (`is_orderly`) locks queues."""

    def __init__(self, runtime: Runtime, group: str, client_id: Callable[[], str], *, is_orderly: bool) -> None:
        self.held: set[MessageQueue] = set()
        """The queues that brokers may have locked, including those whose answers were lost."""
        self._runtime = runtime
        self._group = group
        self._client_id = client_id
        self._is_orderly = is_orderly

    @property
    def end_ns(self) -> int | None:
        """Return when locks that are taken now will end, by the monotonic clock; None if the member locks no queues."""
        return self._runtime.monotonic_ns() + int(LOCK_LIVE_S * 1e9) if self._is_orderly else None

    def lock(self, queues: Iterable[MessageQueue]) -> Steps[tuple[set[MessageQueue], set[MessageQueue]]]:
        """Lock queues. Returns the queues that are locked now, and the queues that another member has locked.

        If a broker does not answer, its queues are in neither set, and a line is logged.
        """
        if not self._is_orderly:
            return set(queues), set()
        wanted = by_broker(queues)
        self.held.update(*wanted.values())
        answers = yield Together([self._ask(RequestCode.LOCK_BATCH_MQ, *each) for each in wanted.items()])
        answered = [pair for pair in zip(wanted.values(), answers, strict=True) if pair[1] is not None]
        got = {queue for asked, locked in answered for queue in asked if queue in locked}
        refused = {queue for asked, _locked in answered for queue in asked} - got
        self.held -= refused
        return got, refused

    def unlock(self, queues: Iterable[MessageQueue]) -> Steps[None]:
        """Unlock queues. If a broker does not answer, its locks end after 60 s."""
        if self._is_orderly:
            wanted = by_broker(queues)
            self.held.difference_update(*wanted.values())
            yield Together([self._ask(RequestCode.UNLOCK_BATCH_MQ, *each) for each in wanted.items()])

    def _ask(self, code: RequestCode, broker_name: str, queues: list[MessageQueue]) -> Steps[set[MessageQueue] | None]:
        body = LockBatchRequest(consumer_group=self._group, client_id=self._client_id(), mq_set=queues).encode()
        try:
            answer = yield Ask(code, None, body, broker_name=broker_name)
            return set(LockBatchResponse.decode(answer.body).lock_ok_mq_set) if len(answer.body) else set()
        except LongpollError as error:
            log.warning("locks of group %s at %s: %s", self._group, broker_name, error)
            return None


def by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    """Returns the queues of each broker, sorted."""
    found: dict[str, list[MessageQueue]] = {}
    for queue in sorted(queues):
        found.setdefault(queue.broker_name, []).append(queue)
    return found


def heartbeat_body(
    client_id: str, config: MemberConfig, consume_type: ConsumeType, subscriptions: Mapping[str, SubscriptionData]
) -> bytes:
    """Returns a member's entry in a heartbeat (34)."""
    group = ConsumerData(
        group_name=config.group,
        consume_type=consume_type,
        message_model=config.message_model,
        consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
        subscription_data_set=list(subscriptions.values()),
    )
    return HeartbeatData(client_id=client_id, consumer_data_set=[group]).encode()


def make_subscription(topic: str, expression: str, expression_type: str, version: int) -> SubscriptionData:
    """Returns a topic's entry in a heartbeat; raises ConfigError if a tag expression has no tag."""
    if expression_type != "TAG" or expression in {"", "*"}:
        text = expression or "*"
        return SubscriptionData(topic=topic, sub_string=text, expression_type=expression_type, sub_version=version)
    tags = frozenset(tag for part in expression.split("||") if (tag := part.strip()))
    if not tags:
        raise ConfigError(f"tag expression {expression[:60]!r} has no tag; write, for example, a || b, or * for all")
    return SubscriptionData(
        topic=topic,
        sub_string=expression,
        expression_type=expression_type,
        sub_version=version,
        tags_set=tags,
        code_set=frozenset(java_hash(tag) for tag in tags),
    )
