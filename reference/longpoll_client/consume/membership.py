"""What a consumer tells brokers of itself, and what they tell it of its group: 34, 35, 38 and 46.

Leaves out when (`consumer`) and what follows from it.

Source: `MQClientInstance.sendHeartbeatToAllBrokerWithLock`, `checkClientInBroker`, `unregisterClient`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Final

from longpoll_client.errors import ClientError, RefusedError
from longpoll_client.instance import ClientInstance
from longpoll_client.link.routes import Route
from longpoll_client.offsets import ask
from longpoll_client.settings import ConsumerConfig
from longpoll_protocol.bodies import (
    CheckClientData,
    ConsumeFromWhere,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    SubscriptionData,
)
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from longpoll_protocol.tags import java_hash
from longpoll_spec.errors import ConfigError, LongpollError

log = logging.getLogger(__name__)

SUBSCRIPTION_COUNT_MAX: Final = 1000


class Membership:
    """One client's membership of one group; every method may wait for brokers."""

    def __init__(self, instance: ClientInstance, config: ConsumerConfig, consume_type: ConsumeType) -> None:
        self.config = config
        self.subscriptions: dict[str, SubscriptionData] = {}
        """What is wanted, by topic; changes before the start only."""
        self._instance = instance
        self._consume_type = consume_type

    def subscribe(self, topic: str, expression: str, expression_type: str) -> None:
        """Want messages of a topic; raises ConfigError."""
        if len(self.subscriptions) >= SUBSCRIPTION_COUNT_MAX:
            raise ConfigError(f"{SUBSCRIPTION_COUNT_MAX} topics are subscribed already")
        now_ms = self._instance.runtime.unix_ms()
        self.subscriptions[topic] = make_subscription(topic, expression, expression_type, now_ms)

    def check_filters(self, routes: Mapping[str, Route]) -> None:
        """Ask every broker whether it filters other than by tags as we want (`checkClientInBroker`)."""
        for topic, route in routes.items():
            subscription = self.subscriptions[topic]
            if subscription.expression_type == "TAG":
                continue
            wanted = CheckClientData(
                client_id=self._instance.client_id, group=self.config.group, subscription_data=subscription
            )
            for address in sorted(route.addresses.values()):
                ask(self._instance.client(address), RequestCode.CHECK_CLIENT_CONFIG, None, wanted.encode())

    def heartbeat(self, routes: list[Route]) -> None:
        """Tell every broker of the routes who we are; raises ClientError when one refuses or none of them answers."""
        group = ConsumerData(
            group_name=self.config.group,
            consume_type=self._consume_type,
            message_model=self.config.message_model,
            consume_from_where=ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
            subscription_data_set=list(self.subscriptions.values()),
        )
        body = HeartbeatData(client_id=self._instance.client_id, consumer_data_set=[group]).encode()
        addresses = sorted({address for route in routes for address in route.addresses.values()})
        failures: list[ClientError] = []
        for address in addresses:
            try:
                ask(self._instance.client(address), RequestCode.HEART_BEAT, None, body)
            except RefusedError:
                raise
            except ClientError as error:
                failures.append(error)
        if failures and len(failures) == len(addresses):
            raise failures[0]
        for failure in failures:
            log.warning("heartbeat of group %s: %s; the other brokers have it", self.config.group, failure)

    def members(self, route: Route) -> list[str]:
        """The client ids of the group by the first of the topic's brokers that answers; none if it knows no group."""
        header = GetConsumerListByGroupRequestHeader(consumer_group=self.config.group)
        failure: ClientError | None = None
        for address in sorted(route.addresses.values()):
            try:
                answer = ask(self._instance.client(address), RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
                return ConsumerList.decode(answer.body).consumer_id_list
            except RefusedError as error:
                if error.code != ResponseCode.SYSTEM_ERROR:
                    raise
                return []
            except ClientError as error:
                failure = error
        assert failure is not None
        raise failure

    def leave(self) -> None:
        """Tell every broker that a route has named; errors are logged, for it notices the lost connection."""
        header = UnregisterClientRequestHeader(client_id=self._instance.client_id, consumer_group=self.config.group)
        for address in self._instance.broker_addresses():
            try:
                ask(self._instance.client(address), RequestCode.UNREGISTER_CLIENT, header)
            except LongpollError as error:
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
