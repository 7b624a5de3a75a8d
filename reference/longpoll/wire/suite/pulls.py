"""The pulls of an example: sent, awaited if an answer is due, and judged by the model.

Only answers that are due at once are awaited, so pulls, sends and closes of several connections overlap as in practice.
The right answers: `model`.
"""

from __future__ import annotations

from typing import Final

from attrs import define, evolve, field

from longpoll.wire.suite.answers import pull_answer
from longpoll.wire.suite.connection import Reply
from longpoll.wire.suite.example import Example
from longpoll.wire.suite.model import Pull, Queue, ViolationError, Wanted
from longpoll.wire.suite.requests import PullTerms, pull_fields
from longpoll_protocol.codes import RequestCode, ResponseCode

IDLE_NS_MAX: Final = 100 * 10**9
"""The broker may close a connection on which we were silent for longer (`serverChannelMaxIdleTimeSeconds`)."""

PLAINLY: Final = PullTerms()


@define(eq=False)
class Pulls:
    """The pulls of one example.

    Invariant: `asked` are those whose answers are not judged yet; each belongs to an open connection, as far as known.
    """

    example: Example
    asked: list[Pull] = field(factory=list)
    cursors: dict[tuple[int, Queue], int] = field(factory=dict)
    """(connection, queue) -> nextBeginOffset of the connection's last answer there."""

    def pull(self, number: int, queue: Queue, offset: int, wanted: Wanted, terms: PullTerms = PLAINLY) -> int:
        """Pull; wait for the answer if one is due at once. Returns the next offset, -1 if the pull is held.

        It carries no older offset than its group has committed: brokers differ in whether they accept that.
        """
        if terms.commit_offset is not None:
            known = self.example.committed.get((terms.group, queue), 0)
            terms = evolve(terms, commit_offset=max(terms.commit_offset, known))
        pull, content = self.prepare(number, queue, offset, wanted, terms)
        self.example.links.get(number).write(content)
        if not pull.must_be_answered():
            return -1
        self.await_answer(pull)
        if terms.commit_offset is not None:
            self.example.committed[terms.group, queue] = terms.commit_offset
        return self.cursors[number, queue]

    def prepare(
        self, number: int, queue: Queue, offset: int, wanted: Wanted, terms: PullTerms = PLAINLY
    ) -> tuple[Pull, bytes]:
        """Record a pull as sent; the caller writes its bytes at once."""
        fields = pull_fields(
            self.example.group_name(terms.group), queue.topic, queue.queue_id, offset, expression=wanted.expression,
            count_max=terms.count_max, timeout_ms=terms.timeout_ms, commit_offset=terms.commit_offset,
        )  # fmt: skip
        opaque, content = self.example.links.get(number).prepare(
            RequestCode.PULL_MESSAGE, fields, serialisation=terms.form.serialisation
        )
        pull = Pull(
            queue, number, opaque, offset, wanted, terms.count_max, terms.timeout_ms, terms.form.serialisation,
            queue.end, self.example.runtime.monotonic_ns(),
        )  # fmt: skip
        self.asked.append(pull)
        return pull, content

    def await_answer(self, pull: Pull) -> None:
        """Wait for an answer that is due now."""
        reply = self._wait(pull, self.example.runtime.monotonic_ns() + self.example.expectations.patience_ns)
        if reply is None:
            raise ViolationError(
                f"{pull}: no answer within {self.example.patience}, although a matching message is there"
            )
        self.judge(pull, reply)

    def await_wakes(self, queue: Queue) -> None:
        """Wait for the answer of every pull of the queue that has something to read."""
        for pull in [pull for pull in self.asked if pull.queue is queue and pull.must_be_answered()]:
            self.await_answer(pull)

    def await_expiries(self, timeout_ms_max: int) -> int:
        """Wait until every pull with at most this hold is answered; returns their number."""
        short = [pull for pull in self.asked if pull.timeout_ms <= timeout_ms_max]
        for pull in short:
            deadline_ns = pull.asked_ns + pull.timeout_ms * 1_000_000 + self.example.expectations.late_ns
            reply = self._wait(pull, max(deadline_ns, self.example.runtime.monotonic_ns()))
            if reply is None:
                raise ViolationError(
                    f"{pull}: not answered {self.example.expectations.late_ns // 1_000_000} ms after its deadline"
                )
            self.judge(pull, reply)
        return len(short)

    def judge_arrived(self) -> None:
        """Judge every answer that has arrived; detect closed connections and late pulls."""
        now_ns = self.example.runtime.monotonic_ns()
        for link in self.example.links.open.values():
            link.drain()
        for pull in list(self.asked):
            link = self.example.links.get(pull.link)
            reply = link.take(pull.opaque)
            if reply is not None:
                self.judge(pull, reply)
            elif self._is_late(pull, now_ns):
                raise ViolationError(
                    f"{pull}: not answered {self.example.expectations.late_ns // 1_000_000} ms after its deadline"
                )
        for link in list(self.example.links.open.values()):
            if link.closed and now_ns - link.written_ns > IDLE_NS_MAX:
                self.close(link.number)
            elif link.closed:
                raise ViolationError(f"the broker closed connection {link.number}")

    def _is_late(self, pull: Pull, now_ns: int) -> bool:
        """Whether a pull is late, even without the host pauses since it was sent."""
        expectations = self.example.expectations
        if not pull.is_late(now_ns, expectations):
            return False
        stalled_ns = int(self.example.links.stalled_ms(pull.asked_ns, now_ns) * 1e6)
        return pull.is_late(now_ns - stalled_ns, expectations)

    def _wait(self, pull: Pull, deadline_ns: int) -> Reply | None:
        link = self.example.links.get(pull.link)
        reply = link.wait(pull.opaque, deadline_ns, since_ns=pull.asked_ns)
        if reply is None and link.closed:
            raise ViolationError(f"the broker closed connection {link.number} while {pull} was waiting")
        return reply

    def judge(self, pull: Pull, reply: Reply, *, stopping: bool = False) -> None:
        """Judge one answer; raises ViolationError."""
        self.asked.remove(pull)
        if stopping and reply.command.code == ResponseCode.SYSTEM_BUSY:
            return  # It came when those who serve pulls had stopped already, and was told so.
        answer = pull_answer(reply.command)
        if self.example.expectations.copies_serialisation and reply.command.serialisation is not pull.serialisation:
            raise ViolationError(f"{pull}: asked in {pull.serialisation.name}, answered in another encoding")
        pull.judge(answer, reply.read_ns, stopping=stopping)
        self.cursors[pull.link, pull.queue] = answer.offset_next

    def close(self, number: int) -> int:
        """Close a connection; returns the number of its unanswered pulls."""
        mine = [pull for pull in self.asked if pull.link == number]
        self.asked = [pull for pull in self.asked if pull.link != number]
        self.example.links.drop(number)
        return len(mine)
