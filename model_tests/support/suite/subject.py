"""RocketMQ over the wire as a subject of the kit: connections, requests, and replies read as whole, checked records.

A poll of the kit is a pull. To cancel a pull, its connection is closed, which also ends the connection's other pulls.
The right answers: see `model`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final, TypeVar

from model_tests.support.suite.brokers import EmbeddedBroker, TestedBroker
from model_tests.support.suite.connection import Link
from model_tests.support.suite.model import FOUND, NOT_FOUND, OFFSET_MOVED, RETRY_IMMEDIATELY, Answer, Stored, broken
from model_tests.support.suite.requests import MALFORMED, Draft, Form, PullTerms, send_request

from longpoll.wire.requests import pull_header
from longpoll_client.errors import UnreachableError
from longpoll_kit.subject import LongPollSubject, Semantics
from longpoll_protocol.codes import SEND_SUCCESS_CODES, RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError
from longpoll_protocol.frames import EMPTY, Buffer, Command, Serialisation
from longpoll_protocol.headers import (
    GetMaxOffsetRequestHeader,
    Header,
    OffsetResponseHeader,
    PullMessageResponseHeader,
)
from longpoll_protocol.log_record import Damage, decode
from longpoll_protocol.properties import decode_properties
from longpoll_runtime import Runtime

H = TypeVar("H", bound=Header)
WITH_OFFSETS: Final = frozenset({FOUND, NOT_FOUND, RETRY_IMMEDIATELY, OFFSET_MOVED})


class RocketMQSubject(LongPollSubject):
    """A broker, given by its address and used over a few connections, which are opened on first use.

    A queue's name is `TOPIC@QUEUE_ID`. A position is a `PullTerms`; groups are named after the topic.
    """

    semantics: Semantics = "offsets"
    durable = True

    def __init__(self, runtime: Runtime, broker: TestedBroker) -> None:
        self.runtime = runtime
        self.broker = broker
        self.stalled_ms: Callable[[int, int], float] = lambda _begin_ns, _end_ns: 0.0
        """Returns for how many ms the host paused between two times in ns, because no broker answers in a pause."""
        self.links: dict[int, Link] = {}
        self._opening = runtime.lock()
        self._is_stopping = False

    # -- connections -------------------------------------------------------------------------------------------------

    def link(self, number: int) -> Link:
        """Returns the connection of this number; raises UnreachableError if it cannot be opened."""
        with self._opening:
            link = self.links.get(number)
            if link is None:
                link = self.links[number] = self.new_link(number)
            return link

    def new_link(self, number: int = -1) -> Link:
        """Open a new connection, which the caller closes; raises UnreachableError."""
        try:
            return Link(self.runtime, self.broker.address, number)
        except OSError as error:
            host, port = self.broker.address
            raise UnreachableError(f"no connection to the broker at {host}:{port}: {error}") from None

    def left_s(self) -> Callable[[], float]:
        """Returns a function for the seconds left from now on for a prompt reply; host pauses do not count."""
        begun_ns = self.runtime.monotonic_ns()
        allowed_ms = self.broker.expectations.allowances.wake_ms

        def left() -> float:
            now_ns = self.runtime.monotonic_ns()
            passed_ms = (now_ns - begun_ns) / 1e6
            if passed_ms >= allowed_ms:
                passed_ms -= self.stalled_ms(begun_ns, now_ns)
            return (allowed_ms - passed_ms) / 1e3

        return left

    def check(self) -> None:
        """Raise the violation that a reader has found, or an error if the broker has closed a connection or is gone."""
        opened = list(self.links.values())
        for link in opened:
            if link.fault is not None:
                raise link.fault
        for link in opened:
            if link.closed and not (link.is_ours or self._is_stopping):
                self.new_link().close()
                raise broken(f"the broker closed connection {link.number}")

    def close(self) -> None:
        for number in list(self.links):
            self.links.pop(number).close()

    # -- requests ----------------------------------------------------------------------------------------------------

    def reply(self, link: Link, opaque: int) -> Command:
        """Wait for the reply to a request; raises ViolationError if none arrives in time."""
        command = link.wait(opaque, self.left_s())
        if command is None:
            self.check()
            wake_ms = self.broker.expectations.allowances.wake_ms
            said = f"the broker owes connection {link.number} a reply to request {opaque}"
            raise broken(f"{said}: none came within {wake_ms / 1e3:g} s")
        return command

    def replies(self, number: int, requests: Iterable[tuple[int, Mapping[str, str], Buffer]]) -> list[Command]:
        """Send requests (code, fields, body) in one write, and wait for all replies."""
        link = self.link(number)
        prepared = [link.prepare(*request) for request in requests]
        link.write(b"".join(content for _, content in prepared))
        return [self.reply(link, opaque) for opaque, _ in prepared]

    def call(
        self,
        number: int,
        code: int,
        fields: Mapping[str, str],
        body: Buffer = EMPTY,
        *,
        codes: Collection[int] = (0,),
        serialisation: Serialisation = Serialisation.JSON,
    ) -> Command:
        """Send a request and return its reply; raises ViolationError unless the reply has one of these codes."""
        link = self.link(number)
        opaque = link.ask(code, fields, body, serialisation=serialisation)
        command = self.reply(link, opaque)
        if command.code not in codes:
            raise broken(
                f"request {opaque} of connection {number} was answered {command.code} ({command.remark}), "
                f"not {' or '.join(map(str, sorted(codes)))}"
            )
        return command

    def end_of(self, number: int, queue: str, code: RequestCode = RequestCode.GET_MAX_OFFSET) -> int:
        """Query a queue's max offset (code 30) or min offset (code 31)."""
        topic, queue_id = place_of(queue)
        fields = GetMaxOffsetRequestHeader(topic=topic, queue_id=queue_id).encode()
        return header_of(self.call(number, code, fields), OffsetResponseHeader).offset

    def wait_end(self, queue: str, end: int) -> int:
        """Wait until a queue's max offset has reached `end` or time is over; returns the max offset."""
        left_s = self.left_s()
        while (seen := self.end_of(0, queue)) < end and left_s() > 0:
            pass
        return seen

    def send_malformed(self, kind: str) -> None:
        """Send malformed bytes on a new connection, which the broker must then close if it promises to do so."""
        with closing(self.new_link()) as link:
            link.write(MALFORMED[kind])
            if self.broker.expectations.closes_malformed and not link.wait_closed(self.left_s()):
                raise broken(f"after {kind} the connection stays open")

    # -- methods that the kit calls ----------------------------------------------------------------------------------

    def publish(self, queue: str, body: bytes) -> None:
        topic, queue_id = place_of(queue)
        self.call(0, *send_request(topic, queue_id, {}, Form()), body, codes=SEND_SUCCESS_CODES)

    def send(self, queue: str, draft: Draft) -> Command:
        """Send a message with the draft's encoding and connection; returns the reply."""
        topic, queue_id = place_of(queue)
        code, fields = send_request(topic, -1 if draft.is_anywhere else queue_id, draft.properties, draft.form)
        link = self.link(draft.link)
        return self.reply(link, link.ask(code, fields, draft.body, serialisation=draft.form.serialisation))

    def start_poll(self, queue: str, position: PullTerms, timeout_ms: int) -> tuple[Link, int, PullTerms]:
        topic, queue_id = place_of(queue)
        fields = pull_header(
            group_of(topic, position.group),
            topic,
            queue_id,
            position.offset,
            timeout_ms,
            expression=position.wanted.expression,
            count_max=position.count_max,
            commit_offset=position.commit_offset,
        ).encode()
        link = self.link(position.link)
        form = position.form.serialisation
        return link, link.ask(RequestCode.PULL_MESSAGE, fields, serialisation=form), position

    def finish_poll(self, handle: tuple[Link, int, PullTerms]) -> Answer:
        """Wait for a pull's answer; raises ViolationError if it is a rejection or if its header or body is damaged."""
        link, opaque, terms = handle
        command = link.wait(opaque)
        if command is None or (self._is_stopping and command.code == ResponseCode.SYSTEM_BUSY):
            if not (link.is_ours or self._is_stopping):
                self.check()
            raise ConnectionAbortedError(f"connection {link.number} ended while pull {opaque} was waiting")
        if command.code not in WITH_OFFSETS:
            raise broken(f"a valid pull was rejected: code {command.code} {command.remark}")
        is_copied = command.serialisation is terms.form.serialisation
        if self.broker.expectations.copies_serialisation and not is_copied:
            raise broken(f"a pull in {terms.form.serialisation.name} was answered in another encoding")
        header = header_of(command, PullMessageResponseHeader)
        stored = records_of(memoryview(command.body))
        if bool(stored) != (command.code == FOUND):
            raise broken(f"an answer with code {command.code} carries {len(stored)} messages")
        return Answer(
            [record.body for record in stored],
            position_next=header.next_begin_offset,
            code=command.code,
            offset_min=header.min_offset,
            offset_max=header.max_offset,
            stored=stored,
        )

    def cancel(self, handle: tuple[Link, int, PullTerms]) -> None:
        """Close the pull's connection, which also ends the other pulls on it."""
        link = handle[0]
        with self._opening:
            if self.links.get(link.number) is link:
                del self.links[link.number]
        link.close()

    def answered_again(self, handle: tuple[Link, int, PullTerms]) -> bool:
        """Returns false, or raises the violation that the connection's reader has found, such as a second answer."""
        if handle[0].fault is not None:
            raise handle[0].fault
        return False


class RestartableSubject(RocketMQSubject):
    """A broker that the suite may restart."""

    settling_queue: str = ""
    """A queue whose max offset is queried before a restart, so that the broker has certainly read each pull. If the
    name is empty, no query is sent."""

    def restart(self) -> None:
        """Restart the broker, and check that it closes its connections and answers the held pulls that it has read."""
        numbers = list(self.links) if self.settling_queue else []
        for number in numbers:
            self.end_of(number, self.settling_queue)
        read = [(self.links[number], set(self.links[number].asked)) for number in numbers]
        self._is_stopping = True
        assert isinstance(self.broker, EmbeddedBroker)
        self.broker.restart()
        for link in self.links.values():
            if not link.wait_closed(self.left_s()):
                self.check()
                raise broken(f"connection {link.number} stays open after the broker's stop")
        for link, asked in read:
            if asked & link.asked and self.broker.expectations.answers_on_stop:
                raise broken(f"pull {min(asked & link.asked)} of {link.number}: the broker stopped without an answer")
        self.close()
        self._is_stopping = False


def place_of(queue: str) -> tuple[str, int]:
    topic, _, queue_id = queue.rpartition("@")
    return topic, int(queue_id)


def group_of(topic: str, group: int) -> str:
    """Returns the name of an example's group, from a topic of the example, whose name ends in -t0, -t1 and so on."""
    return f"{topic.rpartition('-')[0]}-g{group}"


def header_of(command: Command, kind: type[H]) -> H:
    """Returns the reply's header; raises ViolationError if a field is missing or is not a number."""
    try:
        return kind.decode(command.ext_fields)
    except HeaderError as error:
        raise broken(f"code {command.code} with fields {command.ext_fields}: {error}") from None


def records_of(body: memoryview) -> Sequence[Stored]:
    """Returns the records in a pull's body; raises ViolationError if a size, magic, CRC or other part is wrong."""
    found: list[Stored] = []
    start = 0
    while start < len(body):
        physical_offset = int.from_bytes(body[start + 28 : start + 36])
        record: Any = decode(body, start, len(body), physical_offset)
        if isinstance(record, Damage):
            said = f"byte {start + record.offset} of a pull's body: {record.found} instead of {record.expected}"
            raise broken(said, "right_messages")
        place = record.topic, record.queue_id, record.queue_offset, physical_offset
        found.append(Stored(*place, bytes(record.body), decode_properties(record.properties)))
        start += record.size
    return found
