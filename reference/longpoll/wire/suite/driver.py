"""Performs the steps over real connections, and passes all replies to the model.

The choice of steps: `machine`. Sends and pulls: `sends`, `pulls`.
"""

from __future__ import annotations

from typing import Final

from attrs import define, field

from longpoll.wire.suite.answers import header_of, records_of
from longpoll.wire.suite.example import Example
from longpoll.wire.suite.model import Queue, ViolationError, Wanted
from longpoll.wire.suite.pulls import Pulls
from longpoll.wire.suite.requests import (
    MALFORMED,
    Bad,
    Form,
    PullTerms,
    pull_fields,
    send_request,
    topic_fields,
)
from longpoll.wire.suite.sends import Sends
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.headers import (
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    UpdateConsumerOffsetRequestHeader,
)

QUEUE_COUNTS: Final = (3, 1)
"""Queues of each topic of an example."""
GROUP_COUNT: Final = 2
EVERYTHING: Final = Wanted("*")


@define(eq=False)
class Driver:
    """One example; sends and pulls are its parts."""

    example: Example
    pulls: Pulls = field(init=False)
    sends: Sends = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.pulls = Pulls(self.example)
        self.sends = Sends(self.example, self.pulls)

    # -- begin and end -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Create the topics, and create each group by pulling once."""
        link = self.example.links.get(0)
        for index, count in enumerate(QUEUE_COUNTS):
            topic = f"{self.example.name}-t{index}"
            self.example.expect(link, link.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, count)), {0})
            for queue_id in range(count):
                self.example.queues[index, queue_id] = Queue(
                    topic, queue_id, self.example.expectations.queue_file_units
                )
        for group in range(GROUP_COUNT):
            self.pulls.pull(0, self.example.queues[0, 0], 0, EVERYTHING, PullTerms(group=group))

    def end(self) -> None:
        """Read everything back, then leave nothing behind: no held pull, no topic."""
        self.pulls.judge_arrived()
        for number in {pull.link for pull in self.pulls.asked}:
            self.pulls.close(number)
        self.audit()
        link = self.example.links.get(0)
        for topic in {queue.topic for queue in self.example.queues.values()}:
            self.example.expect(link, link.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}), {0})

    def audit(self) -> None:
        """Check every queue's end, all of its messages, and every group's offset."""
        for queue in self.example.queues.values():
            self.check_end(0, queue)
            offset = 0
            while offset < queue.end:
                offset = self.pulls.pull(0, queue, offset, EVERYTHING)
        for group, queue in self.example.committed:
            self.check_committed(0, group, queue)

    def check_end(self, number: int, queue: Queue) -> None:
        """Check the queue's end and start (codes 30, 31)."""
        end = self.example.ask_end(number, queue, RequestCode.GET_MAX_OFFSET)
        start = self.example.ask_end(number, queue, RequestCode.GET_MIN_OFFSET)
        if (start, end) != (0, queue.end):
            raise ViolationError(f"{queue} has offsets {start} to {end}; expected 0 to {queue.end}")

    def commit(self, number: int, group: int, queue: Queue, offset: int) -> None:
        """Store a group's offset (code 15)."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.example.group_name(group),
            topic=queue.topic,
            queue_id=queue.queue_id,
            commit_offset=offset,
        )
        link = self.example.links.get(number)
        self.example.expect(link, link.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()), {0})
        self.example.committed[group, queue] = offset

    def check_committed(self, number: int, group: int, queue: Queue) -> str:
        """Check a group's offset (code 14); a group without one has 0 while the first message exists."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self.example.group_name(group), topic=queue.topic, queue_id=queue.queue_id
        )
        link = self.example.links.get(number)
        expected = self.example.committed.get((group, queue))
        known = expected is not None or queue.end > 0
        command = self.example.expect(
            link, link.ask(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()), {0} if known else {0, 22}
        )
        if command.code != 0:
            return "none"
        offset = header_of(command, OffsetResponseHeader).offset
        if offset != (expected or 0):
            raise ViolationError(f"group {group} has offset {offset} in {queue}, but {expected} was committed")
        return str(offset)

    def view(self, number: int, queue: Queue, offset: int) -> None:
        """Read one message by its log position (code 33) and compare it."""
        physical_offset = queue.messages[offset].physical_offset
        if physical_offset is None:
            return
        link = self.example.links.get(number)
        command = self.example.expect(
            link, link.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}), {0}
        )
        stored = records_of(memoryview(command.body))
        if [(each.queue_offset, each.physical_offset) for each in stored] != [(offset, physical_offset)]:
            raise ViolationError(f"a view of log offset {physical_offset} returned {stored}")
        queue.check_stored(stored[0])

    def refuse(self, number: int, bad: Bad, form: Form) -> int:
        """Send a request that must be rejected; returns the code."""
        queue = self.example.queues[0, 0]
        fields: dict[str, str] = {}
        if bad.code == RequestCode.PULL_MESSAGE:
            fields = pull_fields(
                self.example.group_name(0), queue.topic, 0, 0, expression="*", count_max=32, timeout_ms=10_000
            )
        elif bad.code == RequestCode.SEND_MESSAGE_V2:
            fields = send_request(queue.topic, 0, {}, Form())[1]
        for name, value in bad.changes.items():
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
        link = self.example.links.get(number)
        return self.example.expect(
            link, link.ask(bad.code, fields, b"x", serialisation=form.serialisation), bad.refusals
        ).code

    def send_malformed(self, kind: str) -> None:
        """Send bytes on a new connection after which the broker must close it, if it promises that."""
        link = self.example.links.make(-1)
        try:
            link.write(MALFORMED[kind])
            if not self.example.expectations.closes_malformed:
                return
            if not link.wait_closed(self.example.runtime.monotonic_ns() + self.example.expectations.patience_ns):
                raise ViolationError(f"after {kind} the connection stays open")
        finally:
            link.close()

    def restart(self, *, settle: bool) -> int:
        """Restart the broker; check its answers to held pulls, and that everything acknowledged survives.

        `settle` first makes sure that the broker has read every pull: only then must it answer them all.
        """
        if settle:
            for number in sorted({pull.link for pull in self.pulls.asked}):
                self.check_end(number, self.example.queues[0, 0])
        self.pulls.judge_arrived()
        self.example.subject.restart()
        # A start moves an offset beyond its queue's end back to that end.
        for (group, queue), offset in self.example.committed.items():
            self.example.committed[group, queue] = min(offset, queue.end)
        held = list(self.pulls.asked)
        deadline_ns = self.example.runtime.monotonic_ns() + self.example.expectations.patience_ns
        for link in self.example.links.open.values():
            if not link.wait_closed(deadline_ns):
                raise ViolationError(f"connection {link.number} stays open after the broker's stop")
        for pull in held:
            reply = self.example.links.get(pull.link).take(pull.opaque)
            if reply is not None:
                self.pulls.judge(pull, reply, stopping=True)
            elif settle and self.example.expectations.answers_on_stop:
                raise ViolationError(f"{pull}: the broker stopped without an answer")
        self.pulls.asked.clear()
        self.example.links.drop_all()
        self.audit()
        return len(held)
