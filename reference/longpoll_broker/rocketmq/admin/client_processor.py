"""Serves clients that join, leave and list each other: codes 34, 35, 38, 46.

Notices (40): see `member_notifications`.

Source: `ClientManageProcessor.java`, `ConsumerManageProcessor.java`, `DefaultConsumerIdsChangeListener.java` 4.9.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Final

from attrs import Factory, define, field, frozen

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, answer, serves
from longpoll_broker.rocketmq.accounts.access import Right
from longpoll_broker.rocketmq.admin.member_notifications import MemberNotifications
from longpoll_broker.rocketmq.tables.producers import Producers
from longpoll_broker.shared.filter.filters import is_tag_type, not_supported, sql_filter
from longpoll_broker.shared.subscription import Clients, subscription_of
from longpoll_broker.shared.topics import Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_protocol.bodies import CheckClientData, ConsumerData, ConsumerList, HeartbeatData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import GetConsumerListByGroupRequestHeader, UnregisterClientRequestHeader
from longpoll_protocol.log_record import Record, host_text
from longpoll_protocol.names import GROUP_SIZE_MAX, RETRY_PREFIX
from longpoll_runtime import Lock

LEAVES_MAX: Final = 1_000
"""Maximum groups that closed connections leave in one pass: some 10 ms."""
LANGUAGE_SIZE_MAX: Final = 32
"""Characters of a client's language that are kept; Java's names have at most 7."""


def check_sizes(body: str, names: Iterable[tuple[str, str, int]]) -> None:
    """Raise HeaderError for the first field whose value is longer than its limit."""
    for name, value, size_max in names:
        if len(value) > size_max:
            told = f"has {len(value)} characters, over the limit of {size_max}; shorten it"
            raise HeaderError(body, name, told)


@frozen
class Program:
    """A client's description of itself."""

    client_id: str
    language: str
    """Any text."""
    version: int
    heard_ms: int
    """Time of the last heartbeat, by the wall clock."""


@define(slots=True, eq=False)
class ClientProcessor(Serving):
    """The processors for clients that join and leave."""

    topics: Topics
    groups: Groups
    clients: Clients
    lock: Lock
    """Protects `clients`: its two maps change together."""
    property_filter: bool = False
    """`enablePropertyFilter`."""
    traits: Traits = STRICT_TRAITS
    now_ms: Callable[[], int] = lambda: 0
    """The wall clock."""
    may_get: Callable[[Channel, Record | str, Right], bool] = lambda _channel, _record, _right: True
    """Whether a client may get a message, or one of a topic, that it did not request."""
    producers: Producers = field(factory=Producers, init=False)
    programs: dict[Channel, Program] = field(factory=dict, init=False)
    """The client of each connection by its last heartbeat; protected by `lock`."""
    _closing: dict[Channel, None] = field(factory=dict, init=False)
    """Closed connections that still have groups to leave; protected by `lock`."""
    _leaves_left: int = field(default=LEAVES_MAX, init=False)
    """Number of groups that may still be left in this pass."""
    notices: MemberNotifications = field(
        init=False, default=Factory(lambda self: MemberNotifications(self.clients, self.lock), takes_self=True)
    )

    @serves(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, command: Command, outbox: Outbox) -> Parts:
        """34: register the client in its groups; notify members of changed groups."""
        data = HeartbeatData.decode(command.body)
        self._check_sizes(data)
        with self.lock:
            self.programs[channel] = Program(
                data.client_id, command.language[:LANGUAGE_SIZE_MAX], command.version, self.now_ms()
            )
            for producer in data.producer_data_set:
                self.producers.register(channel, producer.group_name, data.client_id)
        wants_subscriptions = False
        for consumer in data.consumer_data_set:
            group = self.groups.find(consumer.group_name, channel)
            if group is None and not self.traits.registers_unknown_groups:
                continue
            if group is not None:
                self.topics.make_retry(RETRY_PREFIX + consumer.group_name, group.retry_queue_nums, channel=channel)
            with self.lock:
                if data.heartbeat_fingerprint:
                    wants_subscriptions |= self.clients.note_fingerprint(
                        consumer.group_name, data.heartbeat_fingerprint, without_subscriptions=data.without_sub
                    )
                changed = self._register(channel, data, consumer)
            if changed and (group is None or group.notify_consumer_ids_changed_enable):
                self.notices.changed(consumer.group_name, outbox)
        return answer(command, ResponseCode.SUCCESS, None, self._heartbeat_fields(data, wants_subscriptions))

    def _check_sizes(self, data: HeartbeatData) -> None:
        """Raise HeaderError for a name that is too long, because other members receive it."""
        group_max = self.groups.size_max
        names = [("clientID", data.client_id, GROUP_SIZE_MAX)]
        for consumer in data.consumer_data_set:
            names.append(("groupName", consumer.group_name, group_max))
            names += [("topic", item.topic, group_max + len(RETRY_PREFIX)) for item in consumer.subscription_data_set]
        check_sizes("HeartbeatData", names)

    def _heartbeat_fields(self, data: HeartbeatData, wants_subscriptions: bool) -> dict[str, str] | None:
        """Returns 5.x's fields: whether heartbeats need subscriptions in general, and whether the next does."""
        if not self.traits.heartbeat_fields:
            return None
        changed = wants_subscriptions or not data.heartbeat_fingerprint
        return {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(changed).lower()}

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, command: Command, outbox: Outbox) -> Parts:
        """35: remove the client from a group."""
        header = UnregisterClientRequestHeader.decode(command.ext_fields)
        if header.producer_group:
            with self.lock:
                self.producers.unregister(channel, header.producer_group)
        if header.consumer_group:
            with self.lock:
                changed = self.clients.unregister(channel, header.consumer_group)
            if changed:
                self.notices.changed(header.consumer_group, outbox)
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def members(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """38: return the client ids of a group; code 1 without members."""
        name = GetConsumerListByGroupRequestHeader.decode(command.ext_fields).consumer_group
        with self.lock:
            group = self.clients.group(name)
            if group is None:
                return answer(command, ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
            if group.encoded_ids is None:
                each = self.traits.lists_each_connection
                ids = list(group.members.values()) if each else self.clients.client_ids(name)
                group.encoded_ids = ConsumerList(consumer_id_list=ids).encode()
            body = group.encoded_ids
        return answer(command, ResponseCode.SUCCESS, body=body)

    @serves(RequestCode.CHECK_CLIENT_CONFIG)
    def check_config(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """46: check a Java client's filter before it starts; 1 if filters are off, 23 if it is invalid."""
        wanted = CheckClientData.decode(command.body).subscription_data if command.body else None
        if wanted is None or is_tag_type(wanted.expression_type):
            return answer(command, ResponseCode.SUCCESS)
        if not self.property_filter:
            return answer(command, ResponseCode.SYSTEM_ERROR, not_supported(wanted.expression_type))
        problem = sql_filter(
            wanted.sub_string, wanted.expression_type, with_parts=self.traits.filters_with_parts
        ).problem
        if problem:
            return answer(command, ResponseCode.SUBSCRIPTION_PARSE_FAILED, problem)
        return answer(command, ResponseCode.SUCCESS)

    def closed(self, channel: Channel, outbox: Outbox) -> None:
        """Remove a closed channel from its groups."""
        with self.lock:
            self._closing[channel] = None
        self._close_some(outbox)

    @property
    def has_more(self) -> bool:
        """Whether a later pass has work here; approximate without the lock."""
        return bool(self._closing) or self.notices.has_more

    def turn(self, outbox: Outbox) -> None:
        """End a pass: continue with closed connections in many groups, and with notices."""
        self._leaves_left = LEAVES_MAX
        if self._closing:
            self._close_some(outbox)
        self.notices.turn(outbox)

    def _close_some(self, outbox: Outbox) -> None:
        """Remove closed connections from their groups, as many as one pass may."""
        groups: list[str] = []
        with self.lock:
            while self._closing and self._leaves_left > 0:
                channel = next(iter(self._closing))
                self._leaves_left -= self.producers.close(channel, self._leaves_left)
                left = self.clients.close(channel, self._leaves_left)
                self._leaves_left -= len(left)
                groups += left
                if self._leaves_left > 0:
                    self._closing.pop(channel)
                    self.programs.pop(channel, None)
        for group in groups:
            self.notices.changed(group, outbox)

    def producer_of(self, group: str, half: Record, *, sender_first: bool) -> Channel | None:
        """Returns a producer's connection to ask about a prepared message, or None.

        It needs the right to publish to the message's topic. Connections take turns; with `sender_first` the message's
        sender goes first.
        """

        def may_ask(channel: Hashable) -> bool:
            assert isinstance(channel, Channel)
            return self.may_get(channel, half, Right.PUB)

        with self.lock:
            channel = self.producers.pick(group, may_ask, first=f"/{host_text(half.born_host)}" if sender_first else "")
        assert channel is None or isinstance(channel, Channel)
        return channel

    def producer_with(self, client_id: str, topic: str) -> Channel | None:
        """Returns a connection of a producer with this client id that may get replies, or None.

        It needs any right to the topic of the replies.
        """
        known: dict[tuple[str, str], bool] = {}

        def may_get(channel: Hashable) -> bool:
            assert isinstance(channel, Channel)
            who = (channel.account, channel.peer_host[0])
            if who not in known:
                known[who] = self.may_get(channel, topic, Right.PUB | Right.SUB)
            return known[who]

        with self.lock:
            channel = self.producers.find(client_id, may_get)
        assert channel is None or isinstance(channel, Channel)
        return channel

    def _register(self, channel: Channel, data: HeartbeatData, consumer: ConsumerData) -> bool:
        return self.clients.heartbeat(
            channel,
            data.client_id,
            consumer.group_name,
            message_model=consumer.message_model.value,
            consume_type=consumer.consume_type.value,
            consume_from_where=consumer.consume_from_where.value,
            subscriptions=None
            if data.without_sub
            else [
                subscription_of(
                    item.topic,
                    item.sub_string,
                    item.expression_type,
                    item.sub_version,
                    code_set=item.code_set if self.traits.believes_tag_hashes else None,
                    class_filter=item.class_filter_mode,
                )
                for item in consumer.subscription_data_set
            ],
        )
