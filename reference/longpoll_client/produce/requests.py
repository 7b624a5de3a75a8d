"""Requests and replies, and the heartbeats by which brokers know a producer.

A request has the client's id (`REPLY_TO_CLIENT`) and a unique number (`CORRELATION_ID`). The request's consumer sends a
reply with the same id and number to the topic `CLUSTER_REPLY_TOPIC` (325). The broker that gets the reply pushes it
(326) over the connection from which the requester's heartbeat came. A broker stores replies only if its configuration
says so.

Source: `DefaultMQProducerImpl.request`, `RequestFutureHolder.java`, `MessageUtil.createReplyMessage`,
`ClientRemotingProcessor.receiveReplyMessage`, `ReplyMessageProcessor.java` 4.9.7,
`MQClientInstance.sendHeartbeatToAllBroker`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeAlias

from attrs import define, field

from longpoll_client.errors import ClientError, ConnectionLostError, LifecycleError, ReplyTimeoutError
from longpoll_client.instance import ClientInstance, InstanceCore
from longpoll_client.link.steps import Ask, Connect, Steps, Together
from longpoll_client.messages import UNPACKED_SIZE_MAX, ReceivedMessage
from longpoll_client.timer import Timer
from longpoll_protocol.bodies import HeartbeatData, ProducerData
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.compression import unpack
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import ReplyMessageRequestHeader, UnregisterClientRequestHeader
from longpoll_protocol.names import REPLY_SUFFIX
from longpoll_protocol.properties import (
    CLUSTER,
    CORRELATION_ID,
    MESSAGE_TYPE,
    REPLY_TO_CLIENT,
    TTL,
    UNIQUE_KEY,
    read_properties,
)
from longpoll_runtime.recoverable import KeepGoing
from longpoll_spec.errors import ConfigError, LongpollError

log: logging.Logger = logging.getLogger(__name__)

HEARTBEAT_S: Final = 30.0
"""Seconds between two heartbeats (`heartbeatBrokerInterval`)."""
HEARTBEAT_RETRY_S: Final = 3.0
"""Seconds until another heartbeat is sent to a broker that did not accept one."""


@define(slots=True, eq=False)
class ProducerHeartbeat:
    """The heartbeats of one producer group.

    Invariant: `_registered` has the connections that got a heartbeat since the last round. Each change is atomic, and a
    second heartbeat does no harm.
    """

    instance: InstanceCore
    group: str
    _registered: dict[str, Any] = field(factory=dict, init=False)
    _failed_ns: dict[str, int] = field(factory=dict, init=False)

    def heartbeat(self, address: str) -> Steps[None]:
        """Send a heartbeat, unless this connection has sent one. Errors are logged; a new attempt follows later."""
        now_ns = self.instance.runtime.monotonic_ns()
        failed_ns = self._failed_ns.get(address)
        if failed_ns is not None and now_ns - failed_ns < HEARTBEAT_RETRY_S * 1e9:
            return
        producer = ProducerData(group_name=self.group)
        body = HeartbeatData(client_id=self.instance.client_id, producer_data_set=[producer]).encode()
        try:
            connection = yield Connect(address)
            if self._registered.get(address) is connection:
                return
            yield Ask(RequestCode.HEART_BEAT, None, body, address)
        except ClientError as error:
            self._failed_ns[address] = now_ns
            log.warning("heartbeat of producer group %s: %s", self.group, error)
            return
        self._failed_ns.pop(address, None)
        self._registered[address] = connection

    def heartbeat_new(self) -> Steps[None]:
        """Send a heartbeat to every known broker over whose current connection no heartbeat was sent."""
        yield Together([self.heartbeat(address) for address in self.instance.broker_addresses()])

    def heartbeat_all(self) -> Steps[None]:
        """Send a heartbeat to every known broker. A broker forgets a producer after two minutes without a heartbeat."""
        self._registered.clear()
        return self.heartbeat_new()

    def leave(self) -> Steps[None]:
        """Unregister the producer at each broker whose connection is still open; errors are logged."""
        header = UnregisterClientRequestHeader(client_id=self.instance.client_id, producer_group=self.group)
        for address in sorted(self._registered):
            if self._registered[address].is_open:
                try:
                    yield Ask(RequestCode.UNREGISTER_CLIENT, header, address=address)
                except LongpollError as error:
                    log.warning("leaving group %s: %s", self.group, error)


REPLY_TYPE = "reply"
"""The value of `MSG_TYPE` in a reply."""
NOT_STORED = -1
"""The queue offset and physical offset of a reply, because a reply is pushed without being stored."""

ReplyCallback: TypeAlias = Callable[["ReceivedMessage | ClientError"], object]
"""Called once with the reply or the error, on a thread of the client, so it must return quickly."""


class Replies:
    """The requests of one producer that wait for replies, on threads and on an event loop.

    Invariant: `_waiting` and `_is_closed` change under `_lock`. The code that removes a request calls its callback.
    """

    def __init__(self, instance: InstanceCore) -> None:
        self._instance_core = instance
        self._new_lock = instance.runtime.lock
        self._lock = instance.runtime.lock()
        self._waiting: dict[str, ReplyCallback] = {}
        self._is_closed = False
        instance.runtime.when_forked(self)

    def forked(self) -> None:
        """Forget the waiting requests, which belong to the parent process."""
        self._lock = self._new_lock()
        self._waiting = {}

    def expect(self, correlation_id: str, timeout_s: float, on_reply: ReplyCallback) -> dict[str, str]:
        """Register a request that waits for a reply; returns the request's properties. Raises LifecycleError."""
        with self._lock:
            if self._is_closed:
                raise LifecycleError("the producer is closed; create a new one")
            self._waiting[correlation_id] = on_reply
        return {
            CORRELATION_ID: correlation_id,
            REPLY_TO_CLIENT: self._instance_core.client_id,
            TTL: str(int(timeout_s * 1000)),
        }

    def forget(self, correlation_id: str) -> bool:
        """Stop waiting for a reply; returns false if the request's callback was called."""
        with self._lock:
            return self._waiting.pop(correlation_id, None) is not None

    def requested(self, command: Command, address: str) -> bool:
        """Handle a pushed reply (326); returns false for other requests. A late reply is dropped."""
        if command.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            return False
        code, remark = ResponseCode.SUCCESS, None
        try:
            correlation_id, reply = read_reply(command)
        except LongpollError as error:
            log.warning("a reply that %s brings cannot be read: %s", address, error)
            code, remark = ResponseCode.SYSTEM_ERROR, "process reply message fail"
        else:
            if not self.end(correlation_id, reply):
                log.warning("a reply that %s brings is for no request that waits: %.64s", address, correlation_id)
        self._instance_core.reply(address, command, code, remark)
        return True

    def end(self, correlation_id: str, outcome: ReceivedMessage | ClientError) -> bool:
        """Call the callback of a request; returns false if the callback was called before."""
        with self._lock:
            on_reply = self._waiting.pop(correlation_id, None)
        if on_reply is None:
            return False
        with KeepGoing(log, "the callback of a reply failed"):
            on_reply(outcome)
        return True

    def close(self) -> None:
        """Accept no more requests. The waiting requests get a ConnectionLostError."""
        with self._lock:
            self._is_closed = True
            waiting = list(self._waiting)
        for correlation_id in waiting:
            self.end(correlation_id, ConnectionLostError("the producer was closed before a reply came"))


class Requests(Replies):
    """The requests of a producer on threads, with a timer. Invariant: `_timer` changes under `_lock`."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        super().__init__(instance)
        self.instance = instance
        self.group = group
        self._heartbeat = ProducerHeartbeat(instance, group)
        self._timer: Timer | None = None

    def forked(self) -> None:
        """Forget the timer; the next request starts a new timer, which sends the heartbeats of this process."""
        super().forked()
        self._timer = None

    def expect(self, correlation_id: str, timeout_s: float, on_reply: ReplyCallback) -> dict[str, str]:
        """Call `Replies.expect` after a heartbeat to every known broker."""
        self.instance.run(self._heartbeat.heartbeat_new())
        marks = super().expect(correlation_id, timeout_s, on_reply)
        with self._lock:
            if self._timer is None and not self._is_closed:
                self._timer = Timer(self.instance.runtime, f"requests-{self.group}")
                self._timer.after(HEARTBEAT_S, self._heartbeat_again)
            timer = self._timer
        if timer is not None:
            timer.after(timeout_s, partial(self.end, correlation_id, too_late(timeout_s)))
        return marks

    def close(self) -> None:
        """Leave the group, if the producer has joined it, and end the waiting requests."""
        with self._lock:
            self._is_closed = True
            timer, self._timer = self._timer, None
        if timer is not None:
            timer.close()
            self.instance.run(self._heartbeat.leave())
        super().close()

    def _heartbeat_again(self) -> None:
        if self.instance.is_abandoned:
            # The producer was garbage-collected, so close here, on the timer's thread, which has no further work then.
            self.close()
            return
        self.instance.run(self._heartbeat.heartbeat_all())
        if self._timer is not None:
            self._timer.after(HEARTBEAT_S, self._heartbeat_again)


def too_late(timeout_s: float) -> ReplyTimeoutError:
    """Returns the error of a request without a reply."""
    return ReplyTimeoutError(f"no reply within {timeout_s:g} s; whether the request was served is not known")


def read_reply(command: Command) -> tuple[str, ReceivedMessage]:
    """Return a request's number and the reply that a broker pushed; raises a LongpollError for an unreadable reply."""
    header = ReplyMessageRequestHeader.decode(command.ext_fields)
    properties = read_properties(header.properties)
    return properties.get(CORRELATION_ID, ""), ReceivedMessage(
        topic=header.topic,
        queue_id=header.queue_id,
        queue_offset=NOT_STORED,
        body=unpack(header.sys_flag, command.body, UNPACKED_SIZE_MAX),
        properties=properties,
        msg_id=properties.get(UNIQUE_KEY, ""),
        born_ms=header.born_timestamp,
        born_host=header.born_host or "",
        store_ms=header.store_timestamp,
        store_host=header.store_host or "",
        physical_offset=NOT_STORED,
        sys_flag=header.sys_flag,
        flag=header.flag,
        reconsume_times=header.reconsume_times or 0,
    )


def reply_to(request: ReceivedMessage) -> tuple[str, Mapping[str, str]]:
    """Returns the topic and the properties of a reply; raises ConfigError if the message is not a request."""
    if not isinstance(request, ReceivedMessage):
        raise ConfigError(f"a {type(request).__name__} is not a request; pass the message that the consumer received")
    named = {name: request.properties.get(name) for name in (CORRELATION_ID, REPLY_TO_CLIENT, TTL, CLUSTER)}
    cluster = named.pop(CLUSTER)
    if cluster is None or named[CORRELATION_ID] is None or named[REPLY_TO_CLIENT] is None:
        raise ConfigError(f"message {request.msg_id} is not a request, so it needs no reply")
    return cluster + REPLY_SUFFIX, {MESSAGE_TYPE: REPLY_TYPE} | {name: text for name, text in named.items() if text}
