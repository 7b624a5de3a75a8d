"""A client that sends any requests or bytes on one connection, in the order that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from model_tests.support.broker.wire_connection import BrokerConnection
from model_tests.support.simulation.client import pull_fields, records_of, send_fields

from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames import EMPTY, Buffer, Command, Serialisation, encode
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime

__all__ = ["PATIENCE_S", "RawClient", "bodies_of", "pull_fields", "records_of", "send_fields", "send_message"]

PATIENCE_S: Final = 240.0
"""The time limit in seconds for expected events, equal to the time limit of a whole test."""
LONG_MS: Final = 10_000
"""A pull held for at least this time in ms must be answered well before its deadline, to detect a lost wakeup."""


HOLD_MS: Final = 30_000
"""A deadline in ms that no passing test waits for."""
PULL_OPTIONS: Final = frozenset({"queue_id", "timeout_ms", "subscription", "group"})
"""The options of `pull_fields`."""


class RawClient(BrokerConnection):
    """A client with one connection. `_replies` has unread replies by opaque; `pushes` has the peer's requests."""

    def __init__(self, address: Address) -> None:
        super().__init__(RealRuntime(), address)
        self._replies: dict[int, Command] = {}
        self._patience_s: dict[int, float] = {}
        """Maps the opaque of each long pull to its time limit in seconds."""
        self.pushes: list[Command] = []

    def send(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        flag: int = 0,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> int:
        opaque, content = self._request(code, fields, body, flag=flag, serialisation=serialisation)
        self._note_hold(opaque, fields)
        self.send_bytes(content)
        return opaque

    def send_burst(self, code: int, burst: Sequence[tuple[dict[str, str], Buffer]]) -> list[int]:
        """Send requests with one code and these fields and bodies in one write; returns their opaques."""
        requests = [self._request(code, fields, body) for fields, body in burst]
        for (opaque, _content), (fields, _body) in zip(requests, burst, strict=True):
            self._note_hold(opaque, fields)
        self.send_bytes(b"".join(content for _opaque, content in requests))
        return [opaque for opaque, _content in requests]

    def reply(self, opaque: int, timeout_s: float | None = None) -> Command | None:
        """Returns the reply to a request; None if none arrives in time or if the peer closes the connection.

        By default the time limit is `PATIENCE_S`, or four fifths of the hold for a pull that may be held for a long
        time.
        """
        if timeout_s is None:
            timeout_s = self._patience_s.get(opaque, PATIENCE_S)
        self._wait(lambda: opaque in self._replies, timeout_s)
        return self._replies.pop(opaque, None)

    def call(
        self,
        code: int,
        fields: dict[str, str] | None = None,
        body: Buffer = EMPTY,
        *,
        serialisation: Serialisation = Serialisation.JSON,
    ) -> Command:
        """Send a request and return its reply; raises AssertionError if none arrives."""
        return self.answer(self.send(code, fields, body, serialisation=serialisation))

    def answer(self, opaque: int) -> Command:
        """Returns the reply to a request; raises AssertionError if none arrives."""
        reply = self.reply(opaque)
        assert reply is not None, f"request {opaque} got no reply"
        return reply

    def ask(self, code: int, body: Buffer = EMPTY, /, **fields: object) -> Command:
        return self.call(code, {name: str(value) for name, value in fields.items()}, body)

    def told(self, code: int, **fields: object) -> dict[str, Any]:
        """Send a request and return the JSON object of its reply; raises AssertionError if the broker refuses it."""
        reply = self.ask(code, **fields)
        assert reply.code == 0, reply.remark
        return dict(msgspec.json.decode(reply.body))

    def put(self, topic: str, body: Buffer = b"x", queue_id: int = 0, properties: str = "", **fields: str) -> Command:
        """Send a message and return the reply; `fields` replaces header fields by their one-letter names."""
        return self.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties) | fields, body)

    def pull(self, topic: str, offset: int = 0, **options: Any) -> Command:
        return self.answer(self.send_pull(topic, offset, **options))

    def send_pull(self, topic: str, offset: int = 0, *, flag: int = 0, **options: Any) -> int:
        """Send a pull and return its opaque; `options` are those of `pull_fields`, and header fields by name."""
        named = {name: options.pop(name) for name in PULL_OPTIONS & options.keys()}
        fields = pull_fields(topic, offset, **named) | {name: str(value) for name, value in options.items()}
        return self.send(RequestCode.PULL_MESSAGE, fields, flag=flag)

    def hold(self, topic: str, offset: int = 0, **options: Any) -> int:
        """Send a pull with a deadline that no passing test waits for, and return its opaque."""
        return self.send_pull(topic, offset, timeout_ms=HOLD_MS, **options)

    def bodies(self, topic: str, offset: int = 0, **options: Any) -> list[bytes]:
        return bodies_of(self.pull(topic, offset, **options))

    def create_topic(self, topic: str, queues: int = 1, **fields: object) -> None:
        counts = {"readQueueNums": queues, "writeQueueNums": queues, "perm": 6}
        reply = self.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic=topic, **(counts | fields))
        assert reply.code == 0, reply.remark

    def delete_topic(self, topic: str) -> int:
        return self.ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic=topic).code

    def create_group(self, group: str) -> Command:
        return self.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, msgspec.json.encode({"groupName": group}))

    def commit(self, topic: str, group: str, offset: int, queue_id: int = 0) -> int:
        place = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        return self.ask(RequestCode.UPDATE_CONSUMER_OFFSET, commitOffset=offset, **place).code

    def committed(self, topic: str, group: str, queue_id: int = 0, **fields: object) -> int | None:
        """Returns a group's offset, or None if the broker has no offset for the group."""
        place = {"consumerGroup": group, "topic": topic, "queueId": queue_id}
        reply = self.ask(RequestCode.QUERY_CONSUMER_OFFSET, **(place | fields))
        return int((reply.ext_fields or {})["offset"]) if reply.code == 0 else None

    def beat(
        self,
        client_id: str = "c",
        *,
        producers: Iterable[str] = (),
        consumers: Mapping[str, Iterable[str | dict[str, Any]]] | None = None,
    ) -> Command:
        """Send a heartbeat with producer groups, and with consumer groups and their topics or subscriptions."""
        return self.ask(RequestCode.HEART_BEAT, heartbeat_of(client_id, producers, consumers or {}))

    def is_served(self) -> bool:
        """Whether the broker answers a simple request."""
        return self.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0).code == 0

    def wait_closed(self) -> bool:
        """Wait until the peer closes the connection; returns whether it does so in time."""
        self._wait(lambda: False, PATIENCE_S)
        return self.closed

    def wait_push(self) -> Command:
        """Wait for the peer's next request and return it; raises AssertionError if none arrives."""
        self._wait(lambda: bool(self.pushes), PATIENCE_S)
        assert self.pushes, "the peer pushed nothing"
        return self.pushes.pop(0)

    def pushed(self, code: int) -> Command:
        """Wait for the peer's next request with this code and return it. Requests with other codes stay in `pushes`."""
        self._wait(lambda: any(each.code == code for each in self.pushes), PATIENCE_S)
        found = next((each for each in self.pushes if each.code == code), None)
        assert found is not None, f"the peer pushed no {code}"
        self.pushes.remove(found)
        return found

    def reply_to(self, request: Command, body: Buffer = EMPTY, *, code: int = 0) -> None:
        reply = Command(code, request.opaque, CommandFlag.RESPONSE.value, {"a": "b"}, body)
        self.send_bytes(b"".join(encode(reply)))

    def _note_hold(self, opaque: int, fields: dict[str, str] | None) -> None:
        hold = (fields or {}).get("suspendTimeoutMillis", "")
        if hold.isdecimal() and int(hold) >= LONG_MS:
            # Wait for four fifths of the hold. The integer division cannot overflow, although the field may exceed
            # every float.
            self._patience_s[opaque] = min(int(hold) // 1_250, PATIENCE_S)

    def _wait(self, is_done: Callable[[], bool], timeout_s: float) -> None:
        deadline_ns = self._runtime.monotonic_ns() + int(timeout_s * 1e9)
        self._read_until(is_done, lambda: deadline_ns - self._runtime.monotonic_ns())

    def _received(self, command: Command, read_ns: int) -> None:
        if command.is_response:
            self._replies[command.opaque] = command
        else:
            self.pushes.append(command)


def send_message(client: RawClient, topic: str, body: bytes = b"x", *, queue_id: int = 0, properties: str = "") -> int:
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)
    assert reply.code == 0, reply.remark
    assert reply.ext_fields is not None
    return int(reply.ext_fields["queueOffset"])


def bodies_of(reply: Command) -> list[bytes]:
    """Returns the bodies of the messages in a pull's reply, or an empty list if the reply has an error code."""
    return [bytes(record.body) for record in records_of(reply)] if reply.code == 0 else []


def heartbeat_of(
    client_id: str, producers: Iterable[str], consumers: Mapping[str, Iterable[str | dict[str, Any]]]
) -> bytes:
    """Returns the body of a heartbeat. A consumer's topic given as text means a subscription to all its messages."""
    sets = [
        {
            "groupName": group,
            "subscriptionDataSet": [
                {"topic": each, "subString": "*", "subVersion": 1} if isinstance(each, str) else each for each in wanted
            ],
        }
        for group, wanted in consumers.items()
    ]
    producing = [{"groupName": group} for group in producers]
    return msgspec.json.encode({"clientID": client_id, "producerDataSet": producing, "consumerDataSet": sets})
