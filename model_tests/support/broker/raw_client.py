"""A client that sends any request or bytes in any order on one connection, as a test says."""

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
"""The time limit for expected events, in seconds, which is that of a whole test."""
LONG_MS: Final = 10_000
"""A pull with a longer hold must be woken, because an answer near its deadline shows a lost wakeup."""


HOLD_MS: Final = 30_000
"""A deadline in ms that no passing test waits for."""
PULL_OPTIONS: Final = frozenset({"queue_id", "timeout_ms", "subscription", "group"})
"""The options of `pull_fields`."""


class RawClient(BrokerConnection):
    """One connection. Unclaimed replies are kept by opaque; `pushes` are the peer's requests."""

    def __init__(self, address: Address) -> None:
        # A test that sends without reading does so on purpose, so unread answers are no error.
        """Connect; raises OSError."""
        super().__init__(RealRuntime(), address)
        self._replies: dict[int, Command] = {}
        self._patience_s: dict[int, float] = {}
        """Of long pulls, by opaque."""
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
        """Send requests with these fields and bodies in one piece; returns their opaques."""
        requests = [self._request(code, fields, body) for fields, body in burst]
        for (opaque, _content), (fields, _body) in zip(requests, burst, strict=True):
            self._note_hold(opaque, fields)
        self.send_bytes(b"".join(content for _opaque, content in requests))
        return [opaque for opaque, _content in requests]

    def reply(self, opaque: int, timeout_s: float | None = None) -> Command | None:
        """Returns the reply to a request; None if none arrives in time or the peer closes.

        Without a time-out, a long pull must be answered well before its deadline.
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
        """Send a request and return its reply; raises AssertionError without a reply."""
        return self.answer(self.send(code, fields, body, serialisation=serialisation))

    def answer(self, opaque: int) -> Command:
        """Returns the reply to a request; raises AssertionError without a reply."""
        reply = self.reply(opaque)
        assert reply is not None, f"request {opaque} got no reply"
        return reply

    def ask(self, code: int, body: Buffer = EMPTY, /, **fields: object) -> Command:
        """Send a request with these fields, and return its reply."""
        return self.call(code, {name: str(value) for name, value in fields.items()}, body)

    def told(self, code: int, **fields: object) -> dict[str, Any]:
        """Returns the JSON object that answers a request; AssertionError if the broker refuses it."""
        reply = self.ask(code, **fields)
        assert reply.code == 0, reply.remark
        return dict(msgspec.json.decode(reply.body))

    def put(self, topic: str, body: Buffer = b"x", queue_id: int = 0, properties: str = "", **fields: str) -> Command:
        """Send a message, with other fields by their letters, and return the reply."""
        return self.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties) | fields, body)

    def pull(self, topic: str, offset: int = 0, **options: Any) -> Command:
        return self.answer(self.send_pull(topic, offset, **options))

    def send_pull(self, topic: str, offset: int = 0, *, flag: int = 0, **options: Any) -> int:
        """Send a pull, and return its opaque; options are those of `pull_fields` and fields by their names."""
        named = {name: options.pop(name) for name in PULL_OPTIONS & options.keys()}
        fields = pull_fields(topic, offset, **named) | {name: str(value) for name, value in options.items()}
        return self.send(RequestCode.PULL_MESSAGE, fields, flag=flag)

    def hold(self, topic: str, offset: int = 0, **options: Any) -> int:
        """Send a pull whose deadline no passing test waits for, and return its opaque."""
        return self.send_pull(topic, offset, timeout_ms=HOLD_MS, **options)

    def bodies(self, topic: str, offset: int = 0, **options: Any) -> list[bytes]:
        """Returns the bodies that a pull finds; none if it finds nothing."""
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
        """Returns a group's offset; None if the broker knows none."""
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
        """Send a heartbeat with groups of producers, and with topics or whole subscriptions of groups of consumers."""
        return self.ask(RequestCode.HEART_BEAT, heartbeat_of(client_id, producers, consumers or {}))

    def is_served(self) -> bool:
        """Whether the broker answers a simple request."""
        return self.ask(RequestCode.GET_MAX_OFFSET, topic="T", queueId=0).code == 0

    def wait_closed(self) -> bool:
        """Whether the peer closes the connection in time."""
        self._wait(lambda: False, PATIENCE_S)
        return self.closed

    def wait_push(self) -> Command:
        """Returns the peer's next request; AssertionError without one."""
        self._wait(lambda: bool(self.pushes), PATIENCE_S)
        assert self.pushes, "the peer pushed nothing"
        return self.pushes.pop(0)

    def pushed(self, code: int) -> Command:
        """Returns the peer's next request of this code; earlier ones of other codes stay."""
        self._wait(lambda: any(each.code == code for each in self.pushes), PATIENCE_S)
        found = next((each for each in self.pushes if each.code == code), None)
        assert found is not None, f"the peer pushed no {code}"
        self.pushes.remove(found)
        return found

    def reply_to(self, request: Command, body: Buffer = EMPTY, *, code: int = 0) -> None:
        """Answer a request of the peer."""
        reply = Command(code, request.opaque, CommandFlag.RESPONSE.value, {"a": "b"}, body)
        self.send_bytes(b"".join(encode(reply)))

    def _note_hold(self, opaque: int, fields: dict[str, str] | None) -> None:
        hold = (fields or {}).get("suspendTimeoutMillis", "")
        if hold.isdecimal() and int(hold) >= LONG_MS:
            # Four fifths of the hold in whole seconds, because a field may exceed every float.
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
    """Send one message and return its queue offset."""
    reply = client.call(RequestCode.SEND_MESSAGE_V2, send_fields(topic, queue_id, properties), body)
    assert reply.code == 0, reply.remark
    assert reply.ext_fields is not None
    return int(reply.ext_fields["queueOffset"])


def bodies_of(reply: Command) -> list[bytes]:
    """Returns the bodies of the messages of a pull's answer; none if it has none."""
    return [bytes(record.body) for record in records_of(reply)] if reply.code == 0 else []


def heartbeat_of(
    client_id: str, producers: Iterable[str], consumers: Mapping[str, Iterable[str | dict[str, Any]]]
) -> bytes:
    """Returns the body of a heartbeat; a topic stands for a subscription of all its messages."""
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
