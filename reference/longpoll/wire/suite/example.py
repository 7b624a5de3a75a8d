"""State shared by the parts of an example: the connections, the model, and waiting for a reply that must come.

Requests: `sends`, `pulls`, `driver`.
"""

from __future__ import annotations

from attrs import define, field

from longpoll.wire.suite.answers import header_of
from longpoll.wire.suite.connection import Reply, Stalled, SuiteConnection, never
from longpoll.wire.suite.model import Expectations, Queue, ViolationError
from longpoll.wire.suite.subject import Subject
from longpoll_client.errors import UnreachableError
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_protocol.headers import GetMaxOffsetRequestHeader, OffsetResponseHeader
from longpoll_runtime import Runtime


class Links:
    """The connections of a run, created on first use and kept across examples."""

    def __init__(self, runtime: Runtime, subject: Subject, stalled_ms: Stalled = never) -> None:
        self._runtime = runtime
        self.stalled_ms = stalled_ms
        self._subject = subject
        self.open: dict[int, SuiteConnection] = {}
        self._made = 0

    def get(self, number: int) -> SuiteConnection:
        """The connection of this number; raises UnreachableError if it cannot be opened."""
        link = self.open.get(number)
        if link is None:
            link = self.open[number] = self.make(number)
        return link

    def make(self, number: int) -> SuiteConnection:
        """A new connection that the caller closes."""
        try:
            return SuiteConnection(self._runtime, self._subject.address, number, self.stalled_ms)
        except OSError as error:
            host, port = self._subject.address
            raise UnreachableError(f"no connection to the broker at {host}:{port}: {error}") from None

    def drop(self, number: int) -> None:
        """Close a connection, if it is open."""
        link = self.open.pop(number, None)
        if link is not None:
            link.close()

    def drop_all(self) -> None:
        """Close every connection."""
        for number in list(self.open):
            self.drop(number)


@define(eq=False)
class Example:
    """One example: fresh topics and groups, an empty model."""

    runtime: Runtime
    subject: Subject
    links: Links
    expectations: Expectations
    name: str
    """Unique; topics and groups are named after it."""
    queues: dict[tuple[int, int], Queue] = field(factory=dict)
    """(topic index, queue id) -> model."""
    committed: dict[tuple[int, Queue], int] = field(factory=dict)
    """(group index, queue) -> the group's offset."""

    def group_name(self, group: int) -> str:
        """The name of the example's n-th group."""
        return f"{self.name}-g{group}"

    @property
    def patience(self) -> str:
        """The patience in words."""
        return f"{self.expectations.patience_ns / 1e9:g} s"

    def reply(self, link: SuiteConnection, opaque: int) -> Reply:
        """Wait for a reply that must come; raises ViolationError if it does not."""
        reply = link.wait(opaque, self.runtime.monotonic_ns() + self.expectations.patience_ns)
        if reply is None:
            how = "it closed the connection" if link.closed else f"none came within {self.patience}"
            raise ViolationError(f"the broker owes connection {link.number} a reply to request {opaque}: {how}")
        return reply

    def expect(self, link: SuiteConnection, opaque: int, codes: frozenset[int] | set[int]) -> Command:
        """Wait for a reply that must have one of these codes; raises ViolationError otherwise."""
        command = self.reply(link, opaque).command
        if command.code not in codes:
            raise ViolationError(
                f"request {opaque} of connection {link.number} was answered {command.code} ({command.remark}), "
                f"not {' or '.join(map(str, sorted(codes)))}"
            )
        return command

    def ask_end(self, number: int, queue: Queue, code: RequestCode) -> int:
        """Ask for a queue's end (code 30) or start (31)."""
        link = self.links.get(number)
        fields = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).encode()
        return header_of(self.expect(link, link.ask(code, fields), {0}), OffsetResponseHeader).offset
