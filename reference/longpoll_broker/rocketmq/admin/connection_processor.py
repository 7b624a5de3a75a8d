"""Lists connections: members of consumer and producer groups (203, 204, 328), and their subscriptions (345).

Registration: see `client_processor`. Source: `AdminBrokerProcessor.getConsumerConnectionList` and
`getProducerConnectionList` 4.9.7.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

import msgspec
from attrs import define

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, in_turns, serves
from longpoll_broker.rocketmq.admin.client_processor import ClientProcessor
from longpoll_broker.rocketmq.admin.progress_processor import subscription_data
from longpoll_protocol.admin_headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
)
from longpoll_protocol.bodies import (
    Connection,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumeType,
    MessageModel,
    ProducerConnection,
)
from longpoll_protocol.codes import LANGUAGES, RequestCode, ResponseCode
from longpoll_protocol.frames import Command

PART_COUNT: Final = 2_000
"""Members or subscriptions of one turn: some 4 ms."""
TOLD_PRODUCER_COUNT_MAX: Final = 10_000
"""Maximum producers of one answer."""


@define(slots=True, eq=False)
class ConnectionProcessor(Serving):
    """The processors; the data belongs to `members`."""

    members: ClientProcessor

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumers(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """203: return a group's members and subscriptions; 206 without members."""
        name = GetConsumerConnectionListRequestHeader.decode(command.ext_fields).consumer_group
        return in_turns(channel, command, self._consumers(command, name))

    def _consumers(self, command: Command, name: str) -> Turns:
        with self.members.lock:
            group = self.members.clients.group(name)
            if group is None:
                text = f"the consumer group[{name[:255]}] not online"
                return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, text)
            members, subscriptions = list(group.members), list(group.subscriptions.items())
        table = {}
        for number, (topic, each) in enumerate(subscriptions, 1):
            table[topic] = subscription_data(each)
            if number % PART_COUNT == 0:
                yield
        body = ConsumerConnection(
            connection_set=(yield from self._connections(members)),
            subscription_table=table,
            consume_type=ConsumeType(group.consume_type),
            message_model=MessageModel(group.message_model),
            consume_from_where=ConsumeFromWhere(group.consume_from_where),
        )
        return answer(command, ResponseCode.SUCCESS, body=body.encode())

    @serves(RequestCode.GET_PRODUCER_CONNECTION_LIST)
    def producers(self, channel: Channel, command: Command, _outbox: Outbox) -> Parts | None:
        """204: return a producer group's members; 1 without members."""
        name = GetProducerConnectionListRequestHeader.decode(command.ext_fields).producer_group
        return in_turns(channel, command, self._producers(command, name))

    def _producers(self, command: Command, name: str) -> Turns:
        with self.members.lock:
            members = self.members.producers.channels(name)
        found = yield from self._connections(members)
        if not found:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:255]}] not exist")
        return answer(command, ResponseCode.SUCCESS, body=ProducerConnection(connection_set=found).encode())

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """328: return the members of every producer group."""
        with self.members.lock:
            groups = self.members.producers.by_group()
            count = sum(map(len, groups.values()))
            if count > TOLD_PRODUCER_COUNT_MAX:
                limit = f"over the limit of {TOLD_PRODUCER_COUNT_MAX}: ask for one group (204)"
                return answer(command, ResponseCode.SYSTEM_ERROR, f"there are {count} producers, {limit}")
            found = {group: [self._producer(channel) for channel in channels] for group, channels in groups.items()}
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode({"data": found}))

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """345: return a group's current subscription to a topic; without it if there is none."""
        header = QuerySubscriptionByConsumerRequestHeader.decode(command.ext_fields)
        with self.members.lock:
            live = self.members.clients.group(header.group)
            found = None if live is None else live.subscriptions.get(header.topic)
        told: dict[str, object] = {"group": header.group, "topic": header.topic}
        if found is not None:
            told["subscriptionData"] = subscription_data(found)
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(told))

    def _producer(self, channel: object) -> dict[str, object]:
        """Describe a producer; the caller holds the lock."""
        assert isinstance(channel, Channel)
        program = self.members.programs[channel]
        return {
            "clientId": program.client_id,
            "remoteIP": f"/{channel.peer}",
            "language": program.language if program.language in LANGUAGES else "OTHER",
            "version": program.version,
            "lastUpdateTimestamp": program.heard_ms,
        }

    def _connections(self, channels: Iterable[object]) -> Generator[None, None, list[Connection]]:
        found = []
        for number, channel in enumerate(channels, 1):
            assert isinstance(channel, Channel)
            program = self.members.programs.get(channel)
            # A member may have left between two turns.
            if program is not None:
                # Java cannot read a name that its enum does not have.
                language = program.language if program.language in LANGUAGES else "OTHER"
                found.append(
                    Connection(
                        client_id=program.client_id,
                        client_addr=channel.peer,
                        language=language,
                        version=program.version,
                    )
                )
            if number % PART_COUNT == 0:
                yield
        return found
