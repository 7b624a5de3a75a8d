"""Serves clients that join, leave and list groups (34, 35, 38, 46), and lists connections (203, 204, 328, 345).

When a group changes, its members get a notification (NOTIFY_CONSUMER_IDS_CHANGED, 40), so that they rebalance. For
transaction checks and replies, this module finds the connections of producers.

Source: `ClientManageProcessor.java`, `ConsumerManageProcessor.java`, `DefaultConsumerIdsChangeListener.java`,
`ProducerManager.java`, `AdminBrokerProcessor.getConsumerConnectionList` and `getProducerConnectionList` 4.9.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

import msgspec
from attrs import Factory, define, field, frozen

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, serves
from longpoll_broker.rocketmq.accounts.access import Right
from longpoll_broker.shared.filters import is_tag_type, not_supported, sql_filter
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.subscription import SUBSCRIPTION_COST, Clients, Subscription, subscription_of
from longpoll_broker.shared.topics import GroupConfig, Groups, Topics
from longpoll_broker.shared.version_traits import STRICT_TRAITS, Traits
from longpoll_protocol.admin_headers import (
    GetConsumerConnectionListRequestHeader,
    GetProducerConnectionListRequestHeader,
    QuerySubscriptionByConsumerRequestHeader,
)
from longpoll_protocol.bodies import (
    CheckClientData,
    Connection,
    ConsumeFromWhere,
    ConsumerConnection,
    ConsumerData,
    ConsumerList,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    ProducerConnection,
    SubscriptionData,
)
from longpoll_protocol.codes import LANGUAGES, CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import Command, encode
from longpoll_protocol.headers import (
    GetConsumerListByGroupRequestHeader,
    NotifyConsumerIdsChangedRequestHeader,
    UnregisterClientRequestHeader,
)
from longpoll_protocol.log_record import Record, host_text
from longpoll_protocol.names import GROUP_SIZE_MAX, RETRY_PREFIX
from longpoll_runtime import Lock

LOOKS_MAX: Final = 256
"""Maximum connections of a group that one search for a permitted producer examines."""
PRODUCER_COUNT_MAX: Final = 100_000
"""Maximum pairs of a producer group and a connection; further pairs are ignored."""
PART_COUNT: Final = 2_000
"""Number of members or producers handled before other connections are served; handling so many takes about 4 ms."""
HEARTBEAT_SIZE: Final = 50_000
"""Maximum size of the subscriptions handled before other connections are served, as computed by `_cost`; takes about 10
ms."""
TOLD_PRODUCER_COUNT_MAX: Final = 10_000
"""Maximum producers in one answer."""


@define(slots=True, eq=False)
class Producers:
    """The connections of the producers of each group; callers hold a lock.

    Invariant: `_groups`, `_groups_of` and `quota` have the same pairs of group and connection, without empty entries.
    `_clients` and `_client_of` map between the connections of `_groups_of` and their last client ids.
    """

    quota: Quota = field(factory=lambda: Quota("producers", PRODUCER_COUNT_MAX), init=False)
    _groups: dict[str, OrderedDict[Hashable, None]] = field(factory=dict, init=False)
    _groups_of: dict[Hashable, set[str]] = field(factory=dict, init=False)
    _clients: dict[str, dict[Hashable, None]] = field(factory=dict, init=False)
    _client_of: dict[Hashable, str] = field(factory=dict, init=False)
    _named: dict[str, Hashable] = field(factory=dict, init=False)
    """The connections of `_groups_of` by their `str`; if several have the same `str`, only the last is kept."""

    def register(self, channel: Hashable, group: str, client_id: str) -> None:
        """Add a producer's connection to a group; does nothing if the quota is used up or a name is too long."""
        members = self._groups.get(group, ())
        if channel in members:
            if self._client_of.get(channel) != client_id:
                self._note_client(channel, client_id)
            return
        if len(group) > GROUP_SIZE_MAX or not self.quota.take((channel, group), channel):
            return
        self._groups.setdefault(group, OrderedDict())[channel] = None
        self._named[str(channel)] = channel
        self._groups_of.setdefault(channel, set()).add(group)
        self._note_client(channel, client_id)

    def unregister(self, channel: Hashable, group: str) -> None:
        """Remove a producer's connection from a group."""
        members = self._groups.get(group)
        if members is None or channel not in members:
            return
        del members[channel]
        if not members:
            del self._groups[group]
        groups = self._groups_of[channel]
        groups.discard(group)
        if not groups:
            del self._groups_of[channel]
            if self._named.get(str(channel)) is channel:
                del self._named[str(channel)]
            self._forget_client(channel)
        self.quota.release((channel, group))

    def close(self, channel: Hashable, count_max: int | None = None) -> int:
        """Remove a closed connection from at most `count_max` of its groups; returns the number of groups."""
        groups = list(islice(self._groups_of.get(channel, ()), count_max))
        for group in groups:
            self.unregister(channel, group)
        return len(groups)

    def by_group(self) -> dict[str, list[Hashable]]:
        """Returns every group's connections."""
        return {group: list(members) for group, members in self._groups.items()}

    def channels(self, group: str) -> list[Hashable]:
        """Returns the group's connections."""
        return list(self._groups.get(group, ()))

    def find(self, client_id: str, may_get: Callable[[Hashable], bool] = lambda _channel: True) -> Hashable | None:
        """Returns the connection on which a client with this id last registered a producer, or None.

        If connections of several accounts use this id, only those of the first permitted account count, because a reply
        (326) goes to a client id and another account must not be able to redirect the reply.
        """
        found = None
        for channel in filter(may_get, self._clients.get(client_id, ())):
            if found is None or getattr(found, "account", "") == getattr(channel, "account", ""):
                found = channel
        return found

    def _note_client(self, channel: Hashable, client_id: str) -> None:
        self._forget_client(channel)
        self._client_of[channel] = client_id
        self._clients.setdefault(client_id, {})[channel] = None

    def _forget_client(self, channel: Hashable) -> None:
        known = self._client_of.pop(channel, None)
        if known is not None:
            del self._clients[known][channel]
            if not self._clients[known]:
                del self._clients[known]

    def pick(
        self, group: str, may_ask: Callable[[Hashable], bool] = lambda _channel: True, *, first: str = ""
    ) -> Hashable | None:
        """Returns the group's next permitted connection, cyclically; None if the group has no such connection.

        The connection whose `str` equals `first` is preferred.
        """
        members = self._groups.get(group)
        if not members:
            return None
        channel = self._named.get(first)
        if channel in members and may_ask(channel):
            members.move_to_end(channel)
            return channel
        for _ in range(min(len(members), LOOKS_MAX)):
            channel = next(iter(members))
            members.move_to_end(channel)
            if may_ask(channel):
                return channel
        return None


NOTICES_MAX: Final = 256
"""Maximum number of notifications that one pass of the I/O loop sends, which takes 2 to 4 ms, because each needs a
system call."""


@define(slots=True, eq=False)
class MemberNotifications:
    """The members that must be notified because their group changed; callable from the thread of any I/O loop.

    Each pass sends up to `NOTICES_MAX` notifications at once, in RocketMQ's order, and the other groups wait for later
    passes. While a group waits, one notification covers all its changes; RocketMQ sends each change to every member.

    Invariant: after a change, every member was notified, or the group is in `_waiting`, or the member is in `_round`,
    which has members of one group only.
    """

    clients: Clients
    lock: Lock
    """Protects `clients` and this object."""
    _left: int = field(factory=lambda: NOTICES_MAX, init=False)
    """Number of notifications that may still be sent in this pass."""
    _waiting: dict[str, None] = field(factory=dict, init=False)
    """Changed groups whose members are not yet being notified, oldest first."""
    _round: deque[Channel] = field(factory=deque, init=False)
    _round_parts: Parts = field(default=(), init=False)
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    @property
    def has_more(self) -> bool:
        """Whether members wait for a notification; only approximate without the lock."""
        return bool(self._waiting or self._round)

    def changed(self, group: str, outbox: Outbox) -> None:
        """Notify every member of a group, now or in a later pass, including the member that caused the change."""
        with self.lock:
            if group in self._waiting:
                return
            channels = self.clients.channels(group)
            if len(channels) > self._left:
                self._waiting[group] = None
                return
            self._left -= len(channels)
            parts = self._notice(group)
        for channel in channels:
            assert isinstance(channel, Channel)
            outbox.write(channel, parts)

    def turn(self, outbox: Outbox) -> None:
        """End a pass: continue with the waiting groups, within the limit."""
        if self._left == NOTICES_MAX and not self.has_more:
            return
        with self.lock:
            told = self._take(NOTICES_MAX)
            self._left = NOTICES_MAX
        for channel, parts in told:
            outbox.write(channel, parts)

    def _take(self, count: int) -> list[tuple[Channel, Parts]]:
        """Remove and return at most `count` members to notify, with their notifications."""
        taken: list[tuple[Channel, Parts]] = []
        while len(taken) < count and (self._round or self._begin_round()):
            taken.append((self._round.popleft(), self._round_parts))
        return taken

    def _begin_round(self) -> bool:
        """Begin to notify the next group with members; returns False if no group waits."""
        while self._waiting:
            group = next(iter(self._waiting))
            del self._waiting[group]
            self._round.extend(channel for channel in self.clients.channels(group) if isinstance(channel, Channel))
            self._round_parts = self._notice(group)
            if self._round:
                return True
        return False

    def _notice(self, group: str) -> Parts:
        """Create a one-way notification, which any number of members can get with the same `opaque`."""
        return encode(
            Command(
                code=RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                opaque=next(self._opaques) & 0x7FFFFFFF,
                flag=CommandFlag.ONE_WAY.value,
                ext_fields=NotifyConsumerIdsChangedRequestHeader(consumer_group=group).encode(),
            )
        )


LEAVES_MAX: Final = 1_000
"""Maximum number of groups from which one pass of the I/O loop removes closed connections, which takes about 10 ms."""
LANGUAGE_SIZE_MAX: Final = 32
"""Maximum characters of a client's language that are stored; the names in RocketMQ have at most 7."""


def check_sizes(body: str, names: Iterable[tuple[str, str, int]]) -> None:
    """Raise HeaderError for the first field whose value is longer than its limit."""
    for name, value, size_max in names:
        if len(value) > size_max:
            told = f"has {len(value)} characters, over the limit of {size_max}; shorten it"
            raise HeaderError(body, name, told)


@frozen
class Program:
    """What a client's heartbeat says about the client program."""

    client_id: str
    language: str
    """The language as the client sent it, which may be any text."""
    version: int
    heard_ms: int
    """Time of the last heartbeat, by the wall clock."""

    @property
    def java_language(self) -> str:
        """The language as a name of Java's enum, because Java clients cannot parse other names."""
        return self.language if self.language in LANGUAGES else "OTHER"


@define(slots=True, eq=False)
class ClientProcessor(Serving):
    """The processors for clients that join and leave groups."""

    topics: Topics
    groups: Groups
    clients: Clients
    lock: Lock
    """Protects `clients`, because its two maps change together."""
    property_filter: bool = False
    """`enablePropertyFilter`: whether consumers may filter by SQL92 on properties."""
    traits: Traits = STRICT_TRAITS
    now_ms: Callable[[], int] = lambda: 0
    """Returns the wall clock's time, ms."""
    resubscribed: Callable[[str, Iterable[str], Outbox], None] = lambda _group, _topics, _outbox: None
    """Called with a group and the topics for which a heartbeat changed the subscription."""
    may_get: Callable[[Channel, Record | str, Right], bool] = lambda _channel, _record, _right: True
    """Whether a client may get a message that it did not request; the second argument is the message or its topic."""
    producers: Producers = field(factory=Producers, init=False)
    programs: dict[Channel, Program] = field(factory=dict, init=False)
    """The client program of each connection, from its last heartbeat; protected by `lock`."""
    _closing: dict[Channel, None] = field(factory=dict, init=False)
    """Closed connections that must still be removed from groups; protected by `lock`."""
    _leaves_left: int = field(default=LEAVES_MAX, init=False)
    """Number of groups from which connections may still be removed in this pass."""
    needs_turn: bool = field(default=False, init=False)
    """Whether `turn` has work: removals from groups, notifications, or a limit of this pass that must be reset."""
    notices: MemberNotifications = field(
        init=False, default=Factory(lambda self: MemberNotifications(self.clients, self.lock), takes_self=True)
    )

    @serves(RequestCode.HEART_BEAT)
    def heartbeat(self, channel: Channel, command: Command, outbox: Outbox) -> Turns:
        """Code 34: register the client in its groups, and notify members of changed groups.

        Answers with SYSTEM_BUSY (2) if a table is full.
        """
        data = HeartbeatData.decode(command.body)
        self._check_sizes(data)
        with self.lock:
            self.programs[channel] = Program(
                data.client_id, command.language[:LANGUAGE_SIZE_MAX], command.version, self.now_ms()
            )
        full: dict[str, None] = {}
        for number, producer in enumerate(data.producer_data_set, 1):
            with self._noting_refusals(full):
                self.producers.register(channel, producer.group_name, data.client_id)
            if number % PART_COUNT == 0:
                yield
        wants_subscriptions, spent = False, 0
        for consumer in data.consumer_data_set:
            subscriptions = None if data.without_sub else (yield from self._subscriptions(consumer))
            spent += SUBSCRIPTION_COST + sum(map(_cost, consumer.subscription_data_set))
            if spent >= HEARTBEAT_SIZE:
                spent = 0
                yield
            group = self._group(channel, consumer.group_name, full)
            if group is None and not self.traits.registers_unknown_groups:
                continue
            with self._noting_refusals(full):
                if data.heartbeat_fingerprint:
                    wants_subscriptions |= self.clients.note_fingerprint(
                        consumer.group_name, data.heartbeat_fingerprint, without_subscriptions=data.without_sub
                    )
                before = self._subscriptions_of(consumer.group_name)
                changed = self.clients.heartbeat(
                    channel,
                    data.client_id,
                    consumer.group_name,
                    message_model=consumer.message_model.value,
                    consume_type=consumer.consume_type.value,
                    consume_from_where=consumer.consume_from_where.value,
                    subscriptions=subscriptions,
                )
                after = self._subscriptions_of(consumer.group_name)
            if before and before != after:
                others = [topic for topic, tags in before.items() if after.get(topic, tags) != tags]
                self.resubscribed(consumer.group_name, others, outbox)
            if changed and (group is None or group.notify_consumer_ids_changed_enable):
                self.notices.changed(consumer.group_name, outbox)
                self.needs_turn = True
        if full:
            told = f"this connection may add no more {', '.join(full)}; use fewer groups and topics, or try again later"
            return answer(command, ResponseCode.SYSTEM_BUSY, told)
        return answer(command, ResponseCode.SUCCESS, None, self._heartbeat_fields(data, wants_subscriptions))

    def _subscriptions_of(self, name: str) -> dict[str, tuple[int, str]]:
        """Returns the version and the expression of each subscription of a group."""
        group = self.clients.group(name)
        found = {} if group is None else group.subscriptions
        return {topic: (each.sub_version, each.tags.expression) for topic, each in found.items()}

    def _group(self, channel: Channel, name: str, full: dict[str, None]) -> GroupConfig | None:
        """Find or create a group and its retry topic; the names of full tables are added to `full`."""
        group = self.groups.find(name, channel)
        if group is None:
            if self.groups.may_create(name):
                full[self.groups.quota.name] = None
            return None
        refused = self.topics.quota.refused
        retry = self.topics.make_retry(RETRY_PREFIX + name, group.retry_queue_nums, channel=channel)
        if retry is None and self.topics.quota.refused > refused:
            full[self.topics.quota.name] = None
        return group

    @contextmanager
    def _noting_refusals(self, full: dict[str, None]) -> Iterator[None]:
        """Hold `lock` during the `with` block, and add the names of tables that refuse an entry in it to `full`."""
        clients = self.clients
        quotas = (
            self.producers.quota,
            clients.members_quota,
            clients.subscriptions_quota,
            clients.filters.quota,
        )
        with self.lock:
            before = [quota.refused for quota in quotas]
            yield
            full |= {quota.name: None for quota, refused in zip(quotas, before, strict=True) if quota.refused > refused}

    def _check_sizes(self, data: HeartbeatData) -> None:
        """Raise HeaderError if a name in a heartbeat is too long, because other members receive the name."""
        group_max = self.groups.size_max
        names = [("clientID", data.client_id, GROUP_SIZE_MAX)]
        for consumer in data.consumer_data_set:
            names.append(("groupName", consumer.group_name, group_max))
            names += [("topic", item.topic, group_max + len(RETRY_PREFIX)) for item in consumer.subscription_data_set]
        check_sizes("HeartbeatData", names)

    def _heartbeat_fields(self, data: HeartbeatData, wants_subscriptions: bool) -> dict[str, str] | None:
        """Returns 5.x's fields: whether a heartbeat may omit subscriptions, and whether the next one must have them."""
        if not self.traits.heartbeat_fields:
            return None
        changed = wants_subscriptions or not data.heartbeat_fingerprint
        return {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": str(changed).lower()}

    @serves(RequestCode.UNREGISTER_CLIENT)
    def unregister(self, channel: Channel, command: Command, outbox: Outbox) -> Parts:
        """Code 35: remove the client from a group."""
        header = UnregisterClientRequestHeader.decode(command.ext_fields)
        if header.producer_group:
            with self.lock:
                self.producers.unregister(channel, header.producer_group)
        if header.consumer_group:
            with self.lock:
                changed = self.clients.unregister(channel, header.consumer_group)
            if changed:
                self.notices.changed(header.consumer_group, outbox)
                self.needs_turn = True
        return answer(command, ResponseCode.SUCCESS)

    @serves(RequestCode.GET_CONSUMER_LIST_BY_GROUP)
    def members(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 38: return the client ids of a group; answers with code 1 if the group has no members."""
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
        """Code 46: check a Java client's filter before the client starts.

        Answers with code 1 if property filters are off, and with 23 (SUBSCRIPTION_PARSE_FAILED) if the filter is
        invalid.
        """
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

    @serves(RequestCode.GET_CONSUMER_CONNECTION_LIST)
    def consumer_connections(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 203: return a group's members and subscriptions; answers with code 206 if the group has no members."""
        name = GetConsumerConnectionListRequestHeader.decode(command.ext_fields).consumer_group
        with self.lock:
            group = self.clients.group(name)
            if group is None:
                text = f"the consumer group[{name[:255]}] not online"
                return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, text)
            members, subscriptions = list(group.members), list(group.subscriptions.items())
        table, spent = dict[str, Any](), 0
        for topic, each in subscriptions:
            told = subscription_data(each)
            table[topic] = msgspec.Raw(told.encode())
            spent += _cost(told)
            if spent >= HEARTBEAT_SIZE:
                spent = 0
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
    def producer_connections(self, _channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 204: return a producer group's members; answers with code 1 if the group has no members."""
        name = GetProducerConnectionListRequestHeader.decode(command.ext_fields).producer_group
        with self.lock:
            members = self.producers.channels(name)
        found = yield from self._connections(members)
        if not found:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"the producer group[{name[:255]}] not exist")
        return answer(command, ResponseCode.SUCCESS, body=ProducerConnection(connection_set=found).encode())

    @serves(RequestCode.GET_ALL_PRODUCER_INFO)
    def all_producers(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 328: return the members of every producer group."""
        with self.lock:
            groups = self.producers.by_group()
            count = sum(map(len, groups.values()))
            if count > TOLD_PRODUCER_COUNT_MAX:
                limit = f"over the limit of {TOLD_PRODUCER_COUNT_MAX}: ask for one group (204)"
                return answer(command, ResponseCode.SYSTEM_ERROR, f"there are {count} producers, {limit}")
            found = {group: [self._producer(channel) for channel in channels] for group, channels in groups.items()}
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode({"data": found}))

    @serves(RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER)
    def subscription(self, _channel: Channel, command: Command, _outbox: Outbox) -> Parts:
        """Code 345: return a group's subscription to a topic; the answer is empty without such a subscription."""
        header = QuerySubscriptionByConsumerRequestHeader.decode(command.ext_fields)
        with self.lock:
            live = self.clients.group(header.group)
            found = None if live is None else live.subscriptions.get(header.topic)
        told: dict[str, object] = {"group": header.group, "topic": header.topic}
        if found is not None:
            told["subscriptionData"] = subscription_data(found)
        return answer(command, ResponseCode.SUCCESS, body=msgspec.json.encode(told))

    def _producer(self, channel: object) -> dict[str, object]:
        """Describe a producer; the caller holds the lock."""
        assert isinstance(channel, Channel)
        program = self.programs[channel]
        return {
            "clientId": program.client_id,
            "remoteIP": f"/{channel.peer}",
            "language": program.java_language,
            "version": program.version,
            "lastUpdateTimestamp": program.heard_ms,
        }

    def _connections(self, channels: Iterable[object]) -> Generator[None, None, list[Connection]]:
        found = []
        for number, channel in enumerate(channels, 1):
            assert isinstance(channel, Channel)
            program = self.programs.get(channel)
            # A member may have left while other connections were served.
            if program is not None:
                found.append(
                    Connection(
                        client_id=program.client_id,
                        client_addr=channel.peer,
                        language=program.java_language,
                        version=program.version,
                    )
                )
            if number % PART_COUNT == 0:
                yield
        return found

    def closed(self, channel: Channel, outbox: Outbox) -> None:
        """Remove a closed connection from its groups."""
        with self.lock:
            self._closing[channel] = None
        self._close_some(outbox)
        self.needs_turn = True

    @property
    def has_more(self) -> bool:
        """Whether a later pass has work for this processor; only approximate without the lock."""
        return bool(self._closing) or self.notices.has_more

    def turn(self, outbox: Outbox) -> None:
        """End a pass: continue to remove closed connections from their groups, and to send notifications."""
        # The flag is reset before the work, because another loop's thread may set it during the work.
        self.needs_turn = False
        self._leaves_left = LEAVES_MAX
        if self._closing:
            self._close_some(outbox)
        self.notices.turn(outbox)
        if self.has_more:
            self.needs_turn = True

    def _close_some(self, outbox: Outbox) -> None:
        """Remove closed connections from their groups, within the limit of one pass."""
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
        """Returns the connection of a producer that can be asked about a prepared message, or None.

        The producer needs the right to publish to the message's topic. The connections are used alternately; with
        `sender_first` the connection that sent the message is preferred.
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

        The producer's account needs any right to the topic of the replies.
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

    def _subscriptions(self, consumer: ConsumerData) -> Generator[None, None, list[Subscription]]:
        found, spent = [], 0
        for item in consumer.subscription_data_set:
            found.append(
                subscription_of(
                    item.topic,
                    item.sub_string,
                    item.expression_type,
                    item.sub_version,
                    code_set=item.code_set if self.traits.believes_tag_hashes else None,
                    class_filter=item.class_filter_mode,
                )
            )
            spent += _cost(item)
            if spent >= HEARTBEAT_SIZE:
                spent = 0
                yield
        return found


def _cost(subscription: SubscriptionData) -> int:
    """Returns the size of a subscription, as counted towards `HEARTBEAT_SIZE`."""
    return SUBSCRIPTION_COST + len(subscription.sub_string)


def subscription_data(subscription: Subscription) -> SubscriptionData:
    """Returns a subscription as its client sent it."""
    tags = subscription.tags
    names = tags.expression.split("||") if subscription.is_by_tag and not tags.all_tags else []
    return SubscriptionData(
        topic=subscription.topic,
        sub_string=tags.expression,
        expression_type=tags.expression_type,
        sub_version=subscription.sub_version,
        class_filter_mode=subscription.class_filter,
        tags_set=frozenset(name.strip() for name in names if name.strip()),
        code_set=tags.codes,
    )
