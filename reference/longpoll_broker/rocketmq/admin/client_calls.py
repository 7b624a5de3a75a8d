"""Forwards requests to clients: for a client's state, for offsets and for consuming one message; also forwards replies.

Requests with the codes 307 (state) and 309 (consume a message) are forwarded unchanged. A request with code 222 (reset
offsets) is forwarded with code 220, code 223 (query offsets) becomes 221, and replies with codes 324 and 325 get code
326.

The client sends its answer to a forwarded request (221, 307, 309 or 326) to the broker, and the broker answers the
requester. If the client has disconnected, or does not answer within 10 s, the requester gets an error code. The broker
merges the offsets that a group's members report; it skips members that do not answer within 5 s, or answer incorrectly.
Replies are not stored, as with RocketMQ's `storeReplyMessageEnable=false`.

Source: `AdminBrokerProcessor.callConsumer`, `resetOffset`, `getConsumerStatus`, `consumeMessageDirectly`,
`Broker2Client.java`, `ReplyMessageProcessor.java` 4.9.7.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final

import msgspec
from attrs import define, evolve, field, frozen
from msgspec import structs

from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Serving, Turns, answer, serves
from longpoll_broker.rocketmq.accounts.access import Right
from longpoll_broker.rocketmq.admin.client_processor import NOTICES_MAX, ClientProcessor
from longpoll_broker.send.message_builder import check_text
from longpoll_broker.send.send_processor import REGION_FIELDS
from longpoll_broker.shared.offsets import OFFSETS_FULL, Offsets
from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import Topics
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.bodies import MessageQueue, decode_by_queue, encode_by_queue
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames import EMPTY, Buffer, Command, encode
from longpoll_protocol.headers import (
    ConsumeMessageDirectlyResultRequestHeader,
    GetConsumerRunningInfoRequestHeader,
    GetConsumerStatusRequestHeader,
    ReplyMessageRequestHeader,
    ResetOffsetRequestHeader,
    SendMessageRequestHeader,
    SendMessageRequestHeaderV2,
    SendMessageResponseHeader,
)
from longpoll_protocol.log_record import Record
from longpoll_protocol.message import message_id_position
from longpoll_protocol.properties import (
    PUSH_REPLY_TIME,
    REPLY_TO_CLIENT,
    encode_properties,
    read_properties,
)
from longpoll_protocol.sizes import KIB
from longpoll_runtime import Lock, Runtime

log = logging.getLogger(__name__)

CALL_MS_MAX: Final = 10_000
"""Time limit for the answer of one member, ms (`Broker2Client.callClient`)."""
STATUS_MS_MAX: Final = 5_000
"""Time limit for all members' offsets together, ms; RocketMQ (`Broker2Client.getConsumeStatus`) has one per member."""
STATUS_SIZE_MAX: Final = 256 * KIB
"""Maximum bytes of all members' offsets together."""
CALL_COUNT_MAX: Final = 1000
"""Maximum requests that wait for members; a request beyond this limit is answered with SYSTEM_BUSY (2)."""
RESET_COUNT: Final = 50
"""Number of queues in which an offset is searched by time before the I/O loop serves other connections."""
NO_OFFSET: Final = -1
"""In a request to reset a queue, this value means that no offset is given."""
LATEST: Final = -1
"""This timestamp means the end of a queue."""


@frozen
class _Waiting:
    asker: Channel
    asked: Command
    member: str
    """The member's group and client id, as error texts show them."""
    deadline_ns: int

    def passed_on(self, command: Command) -> Parts | None:
        """Returns the answer to the requester after this member has answered; None if other members must answer too."""
        # The body is copied, because the member's receive buffer is reused.
        return answer(self.asked, command.code, command.remark, command.ext_fields, bytes(command.body))

    def gone(self) -> Parts | None:
        """Returns the answer to the requester if the member closed its connection."""
        told = f"invoke consumer {self.member} Exception: it closed the connection"
        return answer(self.asked, ResponseCode.SYSTEM_ERROR, told)

    def late(self) -> Parts | None:
        """Returns the answer to the requester if the member did not answer in time."""
        told = f"consumer {self.member} Timeout: no answer in {CALL_MS_MAX} ms"
        return answer(self.asked, ResponseCode.CONSUME_MSG_TIMEOUT, told)


@frozen
class _WaitingReply(_Waiting):
    """The sender of a reply, which waits until the reply is delivered; `member` is the receiver's client id."""

    queue_id: int

    def passed_on(self, command: Command) -> Parts:
        """Returns a successful answer to the send, without an offset, because replies are not stored."""
        if command.code != ResponseCode.SUCCESS:
            return self.gone()
        fields = SendMessageResponseHeader(msg_id="0", queue_id=self.queue_id, queue_offset=0).encode()
        return answer(self.asked, ResponseCode.SUCCESS, None, fields | REGION_FIELDS)

    def gone(self) -> Parts:
        """Returns the answer to the sender if the reply was not delivered."""
        told = f"push reply message to {self.member}fail."
        return answer(self.asked, ResponseCode.SYSTEM_ERROR, told, REGION_FIELDS)

    late = gone


@define(slots=True, eq=False)
class _Gathering:
    """Collects the offsets that each member of a group reports, by client id.

    Invariant: `left` is the number of members that may still answer; it decreases under `lock`.
    """

    lock: Lock
    left: int
    told: dict[str, dict[MessageQueue, int]] = field(factory=dict, init=False)
    size: int = field(default=0, init=False)
    """Number of bytes received from all members."""

    def take(self, client_id: str, body: Buffer) -> None:
        """Add a member's answer, unless the answer is unreadable or too large."""
        with self.lock:
            self.size += len(body)
            is_read = self.size <= STATUS_SIZE_MAX
        if not is_read or not len(body):
            return
        try:
            table = decode_by_queue(body, "messageQueueTable")
        except HeaderError as error:
            log.warning("what %s says of its offsets cannot be read: %s", client_id[:255], error)
            return
        offsets = {queue: offset for queue, offset in table.items() if type(offset) is int}
        with self.lock:
            self.told[client_id] = offsets

    def one_less(self, asked: Command) -> Parts | None:
        """Count one member as done; returns the answer if this was the last member, otherwise None."""
        with self.lock:
            self.left -= 1
            if self.left:
                return None
        if self.size > STATUS_SIZE_MAX:
            told = f"the members say {self.size} bytes, over the limit of {STATUS_SIZE_MAX}: ask one by its clientAddr"
            return answer(asked, ResponseCode.SYSTEM_ERROR, told)
        table = {client_id: encode_by_queue(offsets) for client_id, offsets in self.told.items()}
        # RocketMQ's answer to code 223 also has the field `messageQueueTable` of a member's answer to code 221; here
        # this table is empty.
        body = {"consumerTable": table, "messageQueueTable": {}}
        return answer(asked, ResponseCode.SUCCESS, body=msgspec.json.encode(body))


@frozen
class _WaitingStatus(_Waiting):
    """A requester that waits for the offsets of several members; `member` is the client id of one such member."""

    gathering: _Gathering

    def passed_on(self, command: Command) -> Parts | None:
        if command.code == ResponseCode.SUCCESS:
            self.gathering.take(self.member, command.body)
        return self.gone()

    def gone(self) -> Parts | None:
        return self.gathering.one_less(self.asked)

    late = gone


@define(slots=True, eq=False)
class ClientCalls(Serving):
    """The processors for forwarded requests, and the calls that wait for an answer.

    Invariant: `_waiting` changes under `lock`.
    """

    runtime: Runtime
    topics: Topics
    offsets: Offsets
    store: MessageStore
    members: ClientProcessor
    broker_name: str
    address: str
    """HOST:PORT of the broker."""
    lock: Lock
    quota: Quota = field(factory=lambda: Quota("waiting calls", CALL_COUNT_MAX), init=False)
    _waiting: dict[tuple[Channel, int], _Waiting] = field(factory=dict, init=False)
    """The waiting calls, by the member's connection and the `opaque` of the forwarded request."""
    _opaques: itertools.count[int] = field(factory=lambda: itertools.count(1), init=False)

    @serves(RequestCode.GET_CONSUMER_RUNNING_INFO)
    def running_info(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Code 307: ask a member for its state and return the state.

        Answers with code 1 if the member is not connected, and with code 207 if the member does not answer in time.
        """
        header = GetConsumerRunningInfoRequestHeader.decode(command.ext_fields)
        asked = _request(command.code, header.encode(), flag=command.flag)
        return self._call(channel, command, asked, outbox, member=(header.consumer_group, header.client_id))

    @serves(RequestCode.CONSUME_MESSAGE_DIRECTLY)
    def consume_directly(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Code 309: let a member consume one message; answers with code 1 if member or message does not exist."""
        header = ConsumeMessageDirectlyResultRequestHeader.decode(command.ext_fields)
        _host, _port, physical_offset = message_id_position(header.msg_id)
        record = self.store.record_at(physical_offset) if physical_offset >= 0 else None
        read = self.store.read_record(physical_offset) if record is not None else None
        if record is None or read is None:
            return answer(command, ResponseCode.SYSTEM_ERROR, f"there is no message {header.msg_id[:56]} here")
        fields = header.encode() | {"brokerName": self.broker_name}
        asked = _request(command.code, fields, bytes(record), flag=command.flag)
        member = (header.consumer_group, header.client_id or "")
        return self._call(channel, command, asked, outbox, member=member, record=read)

    @serves(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET)
    def reset_offset(self, channel: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 222: reset a group's offsets to those of a given time, by a request to its members (code 220).

        Without `isForce`, no queue moves forward. The members store the new offsets. As in 5.x, a request with
        `queueId` resets only that queue, to `offset` if it is given. If the group has no members, the broker stores the
        offset of a request with `queueId` itself, and answers any other request with code 206.
        """
        # The body is not needed later, and must not be kept because it refers to the receive buffer.
        command = structs.replace(command, body=EMPTY)
        header = ResetOffsetRequestHeader.decode(command.ext_fields)
        topic = self.topics.get(header.topic)
        if topic is None:
            told = f"[reset-offset] reset offset failed, no topic in this broker. topic={header.topic[:127]}"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        one = -1 if header.queue_id is None else header.queue_id
        if one >= topic.read_queue_nums:
            told = f"[reset-offset] topic {header.topic[:127]} has {topic.read_queue_nums} queues, and not queue {one}"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        table = yield from self._reset_all(header, range(topic.write_queue_nums) if one < 0 else (one,))
        if isinstance(table, str):
            return answer(command, ResponseCode.SYSTEM_ERROR, table)
        with self.members.lock:
            channels = self.members.clients.channels(header.group)
        if not channels and one >= 0:
            for queue, offset in table.items():
                if not self.offsets.commit(header.topic, header.group, queue.queue_id, offset, channel=channel):
                    return answer(command, ResponseCode.SYSTEM_ERROR, OFFSETS_FULL)
        elif not channels:
            place = f"Group: {header.group[:255]} Topic: {header.topic} Timestamp: {header.timestamp}"
            told = f"Consumer not online, so can not reset offset, {place}"
            return answer(command, ResponseCode.CONSUMER_NOT_ONLINE, told)
        body = _reset_body(table, is_list=command.language == "CPP")
        fields = ResetOffsetRequestHeader(topic=header.topic, group=header.group, timestamp=header.timestamp).encode()
        # The request is one-way, so all members can get it with the same `opaque`.
        request = _request(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, fields, body, flag=CommandFlag.ONE_WAY.value)
        parts, outbox = encode(structs.replace(request, opaque=self._opaque())), Outbox()
        for number, member in enumerate(channels):
            assert isinstance(member, Channel)
            if number and number % NOTICES_MAX == 0:
                outbox.flush()
                yield
            outbox.write(member, parts)
        outbox.flush()
        return answer(command, ResponseCode.SUCCESS, body=_reset_body(table, is_list=False))

    @serves(RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS)
    def consumer_status(self, asker: Channel, command: Command, _outbox: Outbox) -> Turns:
        """Code 223: ask one or all members of a group for their offsets; answers with code 1 if none is connected."""
        command = structs.replace(command, body=EMPTY)
        header = GetConsumerStatusRequestHeader.decode(command.ext_fields)
        wanted = (header.client_addr or "").strip()
        with self.members.lock:
            live = self.members.clients.group(header.group)
            members = {} if live is None else dict(live.members)
        if not members:
            told = f"No Any Consumer online in the consumer group: [{header.group[:255]}]"
            return answer(command, ResponseCode.SYSTEM_ERROR, told)
        asked = {channel: client_id for channel, client_id in members.items() if wanted in {"", client_id}}
        if wanted:
            asked = dict(list(asked.items())[:1])
        gathering = _Gathering(self.runtime.lock(), len(asked) + 1)
        fields = GetConsumerStatusRequestHeader(topic=header.topic, group=header.group).encode()
        request = _request(RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT, fields, flag=0)
        deadline_ns, outbox = self.runtime.monotonic_ns() + STATUS_MS_MAX * 1_000_000, Outbox()
        for number, (channel, client_id) in enumerate(asked.items()):
            if number and number % NOTICES_MAX == 0:
                outbox.flush()
                yield
            assert isinstance(channel, Channel)
            waiting = _WaitingStatus(asker, command, client_id, deadline_ns, gathering)
            refusal = self._ask(channel, request, waiting, outbox)
            if refusal is not None:
                # Stop waiting for the members that were asked already; their answers will be dropped.
                self._take(lambda _member, each: isinstance(each, _WaitingStatus) and each.gathering is gathering)
                return refusal
        outbox.flush()
        return gathering.one_less(command)

    @serves(RequestCode.SEND_REPLY_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2)
    def push_reply(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Codes 324 and 325: forward a reply to the client that sent the request, which is found by its client id.

        Answers with code 1 if that client is not connected.
        """
        is_long = command.code == RequestCode.SEND_REPLY_MESSAGE
        kind = SendMessageRequestHeader if is_long else SendMessageRequestHeaderV2
        header = kind.decode(command.ext_fields)
        if self.topics.get(header.topic) is None:
            told = f"topic[{header.topic[:127]}] not exist, apply first please!"
            return answer(command, ResponseCode.TOPIC_NOT_EXIST, told, REGION_FIELDS)
        try:
            check_text(header.properties)
        except MessageRefusedError as error:
            return answer(command, ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}", REGION_FIELDS)
        properties = read_properties(header.properties)
        client_id = properties.get(REPLY_TO_CLIENT)
        if client_id is None:
            told = f"reply message properties[{REPLY_TO_CLIENT}] is null"
            return answer(command, ResponseCode.SYSTEM_ERROR, told, REGION_FIELDS)
        member = self.members.producer_with(client_id, header.topic)
        if member is None:
            told = f"push reply message fail, channel of <{client_id[:255]}> not found."
            return answer(command, ResponseCode.SYSTEM_ERROR, told, REGION_FIELDS)
        waiting = _WaitingReply(channel, command, client_id[:255], self._deadline_ns(), max(header.queue_id, 0))
        return self._ask(member, self._pushed(channel, header, properties, command.body), waiting, outbox)

    def _pushed(
        self, channel: Channel, header: SendMessageRequestHeader, properties: dict[str, str], body: Buffer
    ) -> Command:
        now_ms = self.runtime.unix_ms()
        told = ReplyMessageRequestHeader(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=header.queue_id,
            sys_flag=header.sys_flag,
            born_timestamp=header.born_timestamp,
            flag=header.flag,
            properties=encode_properties(properties | {PUSH_REPLY_TIME: str(now_ms)}),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=channel.peer,
            store_host=self.address,
            store_timestamp=now_ms,
        )
        # The body is copied, because the receive buffer is reused.
        return _request(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, told.encode(), bytes(body), flag=0)

    def _take(self, is_meant: Callable[[Channel, _Waiting], bool]) -> list[_Waiting]:
        """Remove and return the calls for which `is_meant(connection, call)` is true."""
        with self.lock:
            found = [key for key, each in self._waiting.items() if is_meant(key[0], each)]
            for key in found:
                self.quota.release(key)
            return [self._waiting.pop(key) for key in found]

    def answered(self, channel: Channel, command: Command, outbox: Outbox) -> None:
        """Forward a member's answer to the requester; drop the answer if no requester waits for it."""
        with self.lock:
            waiting = self._waiting.pop((channel, command.opaque), None)
            self.quota.release((channel, command.opaque))
        if waiting is not None:
            _write(outbox, waiting, waiting.passed_on(command))

    def closed(self, channel: Channel, outbox: Outbox) -> None:
        """Answer the requesters that wait for a closed connection, and drop that connection's own requests."""
        for waiting in self._take(lambda member, each: channel in {member, each.asker}):
            if waiting.asker is not channel:
                _write(outbox, waiting, waiting.gone())

    def expire(self) -> None:
        """Answer the requesters that have waited too long. This method is called periodically."""
        now_ns = self.runtime.monotonic_ns()
        outbox = Outbox()
        for waiting in self._take(lambda _member, each: each.deadline_ns <= now_ns):
            _write(outbox, waiting, waiting.late())
        outbox.flush()

    def _call(
        self,
        asker: Channel,
        command: Command,
        asked: Command,
        outbox: Outbox,
        *,
        member: tuple[str, str],
        record: Record | None = None,
    ) -> Parts | None:
        """Send a request to a member, given by group and client id; returns None, or the refusal if this is impossible.

        If the request carries `record` and the member may not read that message, the member counts as not connected.
        """
        group, client_id = member
        name = f"<{group[:255]}> <{client_id[:255]}>"
        with self.members.lock:
            live = self.members.clients.group(group)
            found = [] if live is None else [each for each, other in live.members.items() if other == client_id]
        for channel in found:
            assert isinstance(channel, Channel)
            if record is None or self.members.may_get(channel, record, Right.SUB):
                return self._ask(channel, asked, _Waiting(asker, command, name, self._deadline_ns()), outbox)
        return answer(command, ResponseCode.SYSTEM_ERROR, f"The Consumer {name} not online")

    def _ask(self, channel: Channel, asked: Command, waiting: _Waiting, outbox: Outbox) -> Parts | None:
        """Send a request to a client's connection; returns None, or the refusal if too many requests wait."""
        opaque = self._opaque()
        # Fields and body are not needed for the answer, and the fields may have a megabyte.
        waiting = evolve(waiting, asked=structs.replace(waiting.asked, ext_fields=None, body=EMPTY))
        with self.lock:
            if not waiting.asked.is_one_way:
                if not self.quota.take((channel, opaque), waiting.asker):
                    told = f"{self.quota.used} requests wait for members already; ask again later"
                    return answer(waiting.asked, ResponseCode.SYSTEM_BUSY, told)
                self._waiting[channel, opaque] = waiting
        outbox.write(channel, encode(structs.replace(asked, opaque=opaque)))
        if channel.closed or channel.broken:
            self.closed(channel, outbox)
        return None

    def _deadline_ns(self) -> int:
        return self.runtime.monotonic_ns() + CALL_MS_MAX * 1_000_000

    def _opaque(self) -> int:
        return next(self._opaques) & 0x7FFFFFFF

    def _reset_all(
        self, header: ResetOffsetRequestHeader, queue_ids: Iterable[int]
    ) -> Generator[None, None, dict[MessageQueue, int] | str]:
        """Returns the queues' offsets after a reset, or a text that says why a queue cannot be reset."""
        table: dict[MessageQueue, int] = {}
        for number, queue_id in enumerate(queue_ids):
            if number and number % RESET_COUNT == 0:
                yield
            found = self._reset_to(header, queue_id)
            if isinstance(found, str):
                return found
            table[MessageQueue(topic=header.topic, broker_name=self.broker_name, queue_id=queue_id)] = found
        return table

    def _reset_to(self, header: ResetOffsetRequestHeader, queue_id: int) -> int | str:
        stored = self.offsets.query(header.topic, header.group, queue_id)
        if stored is None:
            return f"THe consumer group <{header.group[:255]}> not exist"
        if header.queue_id == queue_id and header.offset is not None and header.offset != NO_OFFSET:
            start, end = self.store.ends(header.topic, queue_id)[0], self.store.visible_end(header.topic, queue_id)
            if not start <= header.offset <= end:
                return f"Target offset {header.offset} not in consume queue range [{start}-{end}]"
            return header.offset
        if header.timestamp == LATEST:
            found = self.store.visible_end(header.topic, queue_id)
        else:
            found = max(self.store.offset_by_time(header.topic, queue_id, header.timestamp), 0)
        return found if header.is_force else min(found, stored)


def _write(outbox: Outbox, waiting: _Waiting, parts: Parts | None) -> None:
    if parts is not None:
        outbox.write(waiting.asker, parts)


def _request(code: int, fields: dict[str, str], body: Buffer = EMPTY, *, flag: int) -> Command:
    """Create a request to a member; its `opaque` is set when it is sent."""
    return Command(code=code, opaque=0, flag=flag, ext_fields=fields, body=body)


def _reset_body(table: Mapping[MessageQueue, int], *, is_list: bool) -> bytes:
    """Encode the offsets as a table by queue, or as a list for a group of C++ clients."""
    if not is_list:
        return msgspec.json.encode({"offsetTable": encode_by_queue(table)})
    rows = [
        {"topic": queue.topic, "brokerName": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in table.items()
    ]
    return msgspec.json.encode({"offsetTable": rows})
