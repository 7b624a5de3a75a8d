"""Does what a rule says, over real connections, and has the model judge everything that comes back.

One driver is one example: fresh topics and groups, an empty model. It waits for what is due (a reply, the wake of a
held pull that has something to read) and otherwise never, so that pulls, sends and closes of several connections
overlap as they do in life.

Leaves out choosing what to do (`machine`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from attrs import define, field

from longpoll_broker.errors import HeaderError, UnreachableError
from longpoll_broker.runtime import Runtime
from longpoll_broker.testing.served.answers import header_of, pull_answer, records_of
from longpoll_broker.testing.served.link import Link, Reply
from longpoll_broker.testing.served.model import Expectations, Message, Pull, Queue, ViolationError, Wanted
from longpoll_broker.testing.served.requests import (
    MALFORMED,
    Bad,
    Form,
    pull_fields,
    send_request,
    topic_fields,
)
from longpoll_broker.testing.served.subject import Subject
from longpoll_broker.wire.codes import RequestCode, ResponseCode
from longpoll_broker.wire.command import Command
from longpoll_broker.wire.frame import EMPTY
from longpoll_broker.wire.headers import (
    GetMaxOffsetRequestHeader,
    OffsetResponseHeader,
    QueryConsumerOffsetRequestHeader,
    SendMessageResponseHeader,
    UpdateConsumerOffsetRequestHeader,
)
from longpoll_broker.wire.message import BatchMessage, encode_batch, encode_properties, message_id_position

QUEUE_COUNTS: Final = (3, 1)
"""Queues of each topic of an example."""
GROUP_COUNT: Final = 2
IDLE_NS_MAX: Final = 100 * 10**9
"""A connection on which we were silent for longer may be closed by the broker (`serverChannelMaxIdleTimeSeconds`)."""
LONG_MS: Final = 10_000
"""Held so long, a pull that is answered within the patience was woken, and did not just expire."""
EVERYTHING: Final = Wanted("*")
SEND_CODES: Final = frozenset({0, 10, 11, 12})


class Links:
    """The connections of a run, made when first used and kept over examples."""

    def __init__(self, runtime: Runtime, subject: Subject) -> None:
        self._runtime = runtime
        self._subject = subject
        self.open: dict[int, Link] = {}
        self._made = 0

    def get(self, number: int) -> Link:
        """The connection of this number; raises UnreachableError when there is none and none can be made."""
        link = self.open.get(number)
        if link is None:
            link = self.open[number] = self.make(number)
        return link

    def make(self, number: int) -> Link:
        """A new connection that the caller closes."""
        try:
            return Link(self._runtime, self._subject.address, number)
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
class Driver:
    """One example.

    Invariant: `pulls` are the pulls that were asked and whose answers were not yet judged; each is of a connection
    that is open as far as we know.
    """

    runtime: Runtime
    subject: Subject
    links: Links
    expectations: Expectations
    name: str
    """Unique; topics and groups are named after it."""
    queues: dict[tuple[int, int], Queue] = field(factory=dict)
    """(topic index, queue id) -> model."""
    pulls: list[Pull] = field(factory=list)
    committed: dict[tuple[int, Queue], int] = field(factory=dict)
    """(group index, queue) -> the group's offset."""
    cursors: dict[tuple[int, Queue], int] = field(factory=dict)
    """(connection, queue) -> nextBeginOffset of the connection's last answer there."""

    # -- begin and end -----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the topics, and the groups by a first pull."""
        link = self.links.get(0)
        for index, count in enumerate(QUEUE_COUNTS):
            topic = f"{self.name}-t{index}"
            self._expect(link, link.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, topic_fields(topic, count)), {0})
            for queue_id in range(count):
                self.queues[index, queue_id] = Queue(topic, queue_id, self.expectations.queue_file_units)
        for group in range(GROUP_COUNT):
            self.pull(0, self.queues[0, 0], 0, EVERYTHING, group=group)

    def end(self) -> None:
        """Read everything back, then leave nothing behind: no held pull, no topic."""
        self.judge_arrived()
        for number in {pull.link for pull in self.pulls}:
            self.close(number)
        self.audit()
        link = self.links.get(0)
        for topic in {queue.topic for queue in self.queues.values()}:
            self._expect(link, link.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": topic}), {0})

    def audit(self) -> None:
        """Check every queue's end, all of its messages, and every group's offset."""
        for queue in self.queues.values():
            self.check_end(0, queue)
            offset = 0
            while offset < queue.end:
                offset = self.pull(0, queue, offset, EVERYTHING)
        for group, queue in self.committed:
            self.check_committed(0, group, queue)

    # -- sends -------------------------------------------------------------------------------------------------------

    def send(self, number: int, queue: Queue, body: bytes, properties: Mapping[str, str], form: Form) -> str:
        """Send one message, and wait until those have it who wait for it."""
        link = self.links.get(number)
        code, fields = send_request(queue.topic, queue.queue_id, properties, form)
        opaque = link.ask(code, fields, body, serialisation=form.serialisation)
        reply = self._reply(link, opaque)
        if not body and reply.command.code == ResponseCode.SYSTEM_ERROR:
            return "empty body refused"  # 5.x refuses it, 4.9 does not
        self._stored(queue, [(reply, body, properties)])
        return f"offset {queue.end - 1}"

    def send_anywhere(self, number: int, topic: int, body: bytes) -> str:
        """Send one message to queue -1: the broker picks."""
        link = self.links.get(number)
        name = self.queues[topic, 0].topic
        code, fields = send_request(name, -1, {}, Form())
        reply = self._reply(link, link.ask(code, fields, body))
        queue_id = header_of(reply.command, SendMessageResponseHeader).queue_id
        queue = self.queues.get((topic, queue_id))
        if queue is None:
            raise ViolationError(f"the broker put a message into queue {queue_id} of {name}, which has no such queue")
        self._stored(queue, [(reply, body, {})])
        return f"queue {queue_id}"

    def send_many(self, number: int, queue: Queue, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> str:
        """Send messages in one write, without waiting for any reply in between."""
        link = self.links.get(number)
        prepared = []
        for body, properties in messages:
            code, fields = send_request(queue.topic, queue.queue_id, properties, Form())
            prepared.append(link.prepare(code, fields, body))
        link.write(b"".join(content for _, content in prepared))
        replies = [self._reply(link, opaque) for opaque, _ in prepared]
        self._stored(queue, [(reply, *message) for reply, message in zip(replies, messages, strict=True)])
        return f"end {queue.end}"

    def send_batch(self, number: int, queue: Queue, messages: Sequence[tuple[bytes, Mapping[str, str]]]) -> str:
        """Send messages as one batch (code 320)."""
        link = self.links.get(number)
        code, fields = send_request(queue.topic, queue.queue_id, {}, Form(), batch=True)
        parts = [BatchMessage(body, encode_properties(properties)) for body, properties in messages]
        command = self._expect(link, link.ask(code, fields, encode_batch(parts)), SEND_CODES)
        header = header_of(command, SendMessageResponseHeader)
        if header.queue_offset != queue.end:
            raise ViolationError(f"a batch was put at {queue} offset {header.queue_offset}, its end was {queue.end}")
        ids = header.msg_id.split(",")
        if len(ids) != len(messages):
            raise ViolationError(f"a batch of {len(messages)} messages got {len(ids)} ids")
        now_ns = self.runtime.monotonic_ns()
        queue.messages.extend(
            Message(body, properties, now_ns, _physical_offset(msg_id))
            for (body, properties), msg_id in zip(messages, ids, strict=True)
        )
        self._made_visible(queue)
        return f"end {queue.end}"

    def cross(  # noqa: PLR0917 - two requests
        self, puller: int, sender: int, queue: Queue, wanted: Wanted, tag: str, *, pull_first: bool
    ) -> str:
        """Ask for what comes next on one connection and send it on another, neither waiting for the other."""
        pull, asked = self.prepare_pull(puller, queue, queue.end, wanted, timeout_ms=LONG_MS)
        code, fields = send_request(queue.topic, queue.queue_id, {"TAGS": tag}, Form())
        link = self.links.get(sender)
        opaque, sent = link.prepare(code, fields, b"cross")
        if not pull_first:
            link.write(sent)
        self.links.get(puller).write(asked)
        if pull_first:
            link.write(sent)
        self._stored(queue, [(self._reply(link, opaque), b"cross", {"TAGS": tag})])
        return "held" if pull in self.pulls else "answered"

    def send_one_way(self, number: int, queue: Queue, body: bytes, properties: Mapping[str, str], form: Form) -> str:
        """Send one message without a reply; the queue's end tells when it is there."""
        code, fields = send_request(queue.topic, queue.queue_id, properties, form)
        self.links.get(number).ask(code, fields, body, serialisation=form.serialisation, one_way=True)
        self._wait_end(queue, queue.end + 1)
        queue.messages.append(Message(body, properties, self.runtime.monotonic_ns(), None))
        self.await_wakes(queue)
        return f"offset {queue.end - 1}"

    def _stored(self, queue: Queue, sent: Sequence[tuple[Reply, bytes, Mapping[str, str]]]) -> None:
        """Note acknowledged messages: they stand at the end of the queue, in whatever order they were served."""
        by_offset: dict[int, Message] = {}
        for reply, body, properties in sent:
            if reply.command.code not in SEND_CODES:
                raise ViolationError(f"a good send was refused: code {reply.command.code} {reply.command.remark}")
            header = header_of(reply.command, SendMessageResponseHeader)
            if header.queue_id != queue.queue_id:
                raise ViolationError(f"a message for {queue} was put into queue {header.queue_id}")
            by_offset[header.queue_offset] = Message(body, properties, reply.read_ns, _physical_offset(header.msg_id))
        if sorted(by_offset) != list(range(queue.end, queue.end + len(sent))):
            raise ViolationError(f"{len(sent)} messages were put at {queue} offsets {sorted(by_offset)}, its end was {queue.end}")
        queue.messages.extend(by_offset[offset] for offset in sorted(by_offset))
        self._made_visible(queue)

    def _made_visible(self, queue: Queue) -> None:
        if not self.expectations.visible_at_ack:
            self._wait_end(queue, queue.end)
        self.await_wakes(queue)

    def _wait_end(self, queue: Queue, end: int) -> None:
        deadline_ns = self.runtime.monotonic_ns() + self.expectations.patience_ns
        while (seen := self._ask_end(0, queue, RequestCode.GET_MAX_OFFSET)) < end:
            if self.runtime.monotonic_ns() > deadline_ns:
                raise ViolationError(f"the end of {queue} stays at {seen}, though message {seen} was sent")

    # -- pulls -------------------------------------------------------------------------------------------------------

    def pull(
        self,
        number: int,
        queue: Queue,
        offset: int,
        wanted: Wanted,
        *,
        count_max: int = 32,
        group: int = 0,
        timeout_ms: int = 0,
        commit_offset: int | None = None,
        form: Form | None = None,
    ) -> int:
        """Pull; wait for the answer if one is due at once. Returns where to go on, -1 if the pull is held."""
        pull, content = self.prepare_pull(
            number, queue, offset, wanted, count_max=count_max, group=group, timeout_ms=timeout_ms,
            commit_offset=commit_offset, form=form,
        )  # fmt: skip
        self.links.get(number).write(content)
        if not pull.must_be_answered():
            return -1
        self.await_answer(pull)
        if commit_offset is not None:
            self.committed[group, queue] = commit_offset
        return self.cursors[number, queue]

    def prepare_pull(
        self,
        number: int,
        queue: Queue,
        offset: int,
        wanted: Wanted,
        *,
        count_max: int = 32,
        group: int = 0,
        timeout_ms: int = 0,
        commit_offset: int | None = None,
        form: Form | None = None,
    ) -> tuple[Pull, bytes]:
        """Note a pull as asked; the caller writes its bytes at once."""
        form = form or Form()
        fields = pull_fields(
            self.group_name(group), queue.topic, queue.queue_id, offset, expression=wanted.expression,
            count_max=count_max, timeout_ms=timeout_ms, commit_offset=commit_offset,
        )  # fmt: skip
        opaque, content = self.links.get(number).prepare(
            RequestCode.PULL_MESSAGE, fields, serialisation=form.serialisation
        )
        pull = Pull(
            queue, number, opaque, offset, wanted, count_max, timeout_ms, form.serialisation, queue.end,
            self.runtime.monotonic_ns(),
        )  # fmt: skip
        self.pulls.append(pull)
        return pull, content

    def await_answer(self, pull: Pull) -> None:
        """Wait for an answer that is due now."""
        reply = self._wait(pull, self.runtime.monotonic_ns() + self.expectations.patience_ns)
        if reply is None:
            raise ViolationError(f"{pull}: a message that it wants is there, and it was not answered within {self._patience}")
        self._judge(pull, reply)

    def await_wakes(self, queue: Queue) -> None:
        """Wait for the answer of every pull of the queue that has something to read."""
        for pull in [pull for pull in self.pulls if pull.queue is queue and pull.must_be_answered()]:
            self.await_answer(pull)

    def await_expiries(self, timeout_ms_max: int) -> int:
        """Wait until every pull that is held up to so long is answered; how many there were."""
        short = [pull for pull in self.pulls if pull.timeout_ms <= timeout_ms_max]
        for pull in short:
            deadline_ns = pull.asked_ns + pull.timeout_ms * 1_000_000 + self.expectations.late_ns
            reply = self._wait(pull, max(deadline_ns, self.runtime.monotonic_ns()))
            if reply is None:
                raise ViolationError(f"{pull}: not answered {self.expectations.late_ns // 1_000_000} ms after its deadline")
            self._judge(pull, reply)
        return len(short)

    def judge_arrived(self) -> None:
        """Judge every answer that has arrived; find connections that were closed and pulls that are late."""
        now_ns = self.runtime.monotonic_ns()
        for link in self.links.open.values():
            link.drain()
        for pull in list(self.pulls):
            link = self.links.get(pull.link)
            reply = link.take(pull.opaque)
            if reply is not None:
                self._judge(pull, reply)
            elif pull.is_late(now_ns, self.expectations):
                raise ViolationError(f"{pull}: not answered {self.expectations.late_ns // 1_000_000} ms after its deadline")
        for link in list(self.links.open.values()):
            if link.closed and now_ns - link.written_ns > IDLE_NS_MAX:
                self.close(link.number)
            elif link.closed:
                raise ViolationError(f"the broker closed connection {link.number}")

    def _wait(self, pull: Pull, deadline_ns: int) -> Reply | None:
        link = self.links.get(pull.link)
        reply = link.wait(pull.opaque, deadline_ns)
        if reply is None and link.closed:
            raise ViolationError(f"the broker closed connection {link.number}, on which it had {pull}")
        return reply

    def _judge(self, pull: Pull, reply: Reply, *, stopping: bool = False) -> None:
        self.pulls.remove(pull)
        answer = pull_answer(reply.command)
        if self.expectations.copies_serialisation and reply.command.serialisation is not pull.serialisation:
            raise ViolationError(f"{pull}: asked in {pull.serialisation.name}, answered in another encoding")
        pull.judge(answer, reply.read_ns, stopping=stopping)
        self.cursors[pull.link, pull.queue] = answer.offset_next

    # -- offsets, views, refusals, frames ----------------------------------------------------------------------------

    def check_end(self, number: int, queue: Queue) -> None:
        """Check the queue's end and start (codes 30, 31)."""
        end = self._ask_end(number, queue, RequestCode.GET_MAX_OFFSET)
        start = self._ask_end(number, queue, RequestCode.GET_MIN_OFFSET)
        if (start, end) != (0, queue.end):
            raise ViolationError(f"{queue} reaches from {start} to {end}; it is 0 to {queue.end}")

    def commit(self, number: int, group: int, queue: Queue, offset: int) -> None:
        """Store a group's offset (code 15)."""
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group=self.group_name(group), topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        link = self.links.get(number)
        self._expect(link, link.ask(RequestCode.UPDATE_CONSUMER_OFFSET, header.encode()), {0})
        self.committed[group, queue] = offset

    def check_committed(self, number: int, group: int, queue: Queue) -> str:
        """Check a group's offset (code 14); a group without one has 0 where the first message is still there."""
        header = QueryConsumerOffsetRequestHeader(
            consumer_group=self.group_name(group), topic=queue.topic, queue_id=queue.queue_id
        )
        link = self.links.get(number)
        expected = self.committed.get((group, queue))
        known = expected is not None or queue.end > 0
        command = self._expect(
            link, link.ask(RequestCode.QUERY_CONSUMER_OFFSET, header.encode()), {0} if known else {0, 22}
        )
        if command.code != 0:
            return "none"
        offset = header_of(command, OffsetResponseHeader).offset
        if offset != (expected or 0):
            raise ViolationError(f"group {group} stands at {offset} of {queue}; {expected} was committed")
        return str(offset)

    def view(self, number: int, queue: Queue, offset: int) -> None:
        """Read one message by its place in the log (code 33) and compare it."""
        physical_offset = queue.messages[offset].physical_offset
        if physical_offset is None:
            return
        link = self.links.get(number)
        command = self._expect(link, link.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(physical_offset)}), {0})
        stored = records_of(memoryview(command.body))
        if [(each.queue_offset, each.physical_offset) for each in stored] != [(offset, physical_offset)]:
            raise ViolationError(f"a view of log offset {physical_offset} gives {stored}")
        queue.check_stored(stored[0])

    def refuse(self, number: int, bad: Bad, form: Form) -> int:
        """Send a request that must be refused; returns the code."""
        queue = self.queues[0, 0]
        fields: dict[str, str] = {}
        if bad.code == RequestCode.PULL_MESSAGE:
            fields = pull_fields(
                self.group_name(0), queue.topic, 0, 0, expression="*", count_max=32, timeout_ms=10_000
            )
        elif bad.code == RequestCode.SEND_MESSAGE_V2:
            fields = send_request(queue.topic, 0, {}, Form())[1]
        for name, value in bad.changes.items():
            fields.pop(name, None)
            if value is not None:
                fields[name] = value
        link = self.links.get(number)
        return self._expect(link, link.ask(bad.code, fields, b"x", serialisation=form.serialisation), bad.refusals).code

    def send_malformed(self, kind: str) -> None:
        """Open a connection of its own and send bytes after which the broker must close it."""
        link = self.links.make(-1)
        try:
            link.write(MALFORMED[kind])
            if not link.wait_closed(self.runtime.monotonic_ns() + self.expectations.patience_ns):
                raise ViolationError(f"after {kind} the connection stays open")
        finally:
            link.close()
        self.check_end(0, self.queues[0, 0])

    # -- connections and the broker ----------------------------------------------------------------------------------

    def close(self, number: int) -> int:
        """Close a connection; how many pulls were held on it."""
        mine = [pull for pull in self.pulls if pull.link == number]
        self.pulls = [pull for pull in self.pulls if pull.link != number]
        self.links.drop(number)
        return len(mine)

    def restart(self) -> int:
        """Restart the broker; check what it says to held pulls, and that everything acknowledged is there."""
        self.judge_arrived()
        self.subject.restart()
        held = list(self.pulls)
        deadline_ns = self.runtime.monotonic_ns() + self.expectations.patience_ns
        for link in self.links.open.values():
            if not link.wait_closed(deadline_ns):
                raise ViolationError(f"connection {link.number} stays open after the broker's stop")
        for pull in held:
            reply = self.links.get(pull.link).take(pull.opaque)
            if reply is not None:
                self._judge(pull, reply, stopping=True)
            elif self.expectations.answers_on_stop:
                raise ViolationError(f"{pull}: the broker stopped without an answer")
        self.pulls.clear()
        self.links.drop_all()
        self.audit()
        return len(held)

    # -- the parts ---------------------------------------------------------------------------------------------------

    def group_name(self, group: int) -> str:
        """The name of the example's n-th group."""
        return f"{self.name}-g{group}"

    @property
    def _patience(self) -> str:
        return f"{self.expectations.patience_ns / 1e9:g} s"

    def _reply(self, link: Link, opaque: int) -> Reply:
        reply = link.wait(opaque, self.runtime.monotonic_ns() + self.expectations.patience_ns)
        if reply is None:
            how = "it closed the connection" if link.closed else f"none came within {self._patience}"
            raise ViolationError(f"the broker owes connection {link.number} a reply to request {opaque}: {how}")
        return reply

    def _expect(self, link: Link, opaque: int, codes: frozenset[int] | set[int]) -> Command:
        command = self._reply(link, opaque).command
        if command.code not in codes:
            raise ViolationError(
                f"request {opaque} of connection {link.number} was answered {command.code} ({command.remark}), "
                f"not {' or '.join(map(str, sorted(codes)))}"
            )
        return command

    def _ask_end(self, number: int, queue: Queue, code: RequestCode) -> int:
        link = self.links.get(number)
        fields = GetMaxOffsetRequestHeader(topic=queue.topic, queue_id=queue.queue_id).encode()
        return header_of(self._expect(link, link.ask(code, fields, EMPTY), {0}), OffsetResponseHeader).offset


def _physical_offset(message_id: str) -> int:
    try:
        return message_id_position(message_id)[2]
    except HeaderError as error:
        raise ViolationError(str(error)) from None
