"""Reads for a checked pull, and runs a pull that left the hold table: decides it again and answers it.

The first decision: see `hold.pull_processor`. The thread that runs a pull: see `hold.executors`.

Source: `PullRequestHoldService.java`, `PullMessageProcessor.executeRequestWhenWakeup` 4.9.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from attrs import define

from longpoll_broker.hold.hold_table import ANSWERED, Cause, Pull
from longpoll_broker.hold.pull import (
    NO_PERMISSION,
    PULL_OFFSET_MOVED,
    SYSTEM_ERROR,
    Decision,
    Found,
    Miss,
    OffsetMoved,
    PullChecks,
    Refused,
    as_placed,
    check,
    look,
    of_negative_count,
)
from longpoll_broker.hold.pull_answers import JSON, KINDS, PullAnswers
from longpoll_broker.hold.pull_events import ONE_WAY, PullEvents
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.shared.filters import Filter, TagFilter
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.read import GetResult, GetStatus
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Runtime
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.policy import Policy

log = logging.getLogger(__name__)


def nobody_is_told(_pull: Pull, _offset_next: int) -> None:
    """Do nothing about a moved offset: the default of a broker that stores no such events."""


@define(slots=True, eq=False)
class PullRunner:
    """Runs pulls; callable from any thread."""

    runtime: Runtime
    policy: Policy
    desk: PullChecks
    store: MessageStore
    statistics: Statistics
    events: PullEvents
    answers: PullAnswers
    offset_moved: Callable[[Pull, int], None] = nobody_is_told
    """Called for every pull that is answered with code 21, with its new offset."""
    may_still_pull: Callable[[Pull], bool] | None = None
    """Whether a held pull's account may still read; None without accounts."""

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """Read for a pull."""
        found = look(pull, wanted, self.store)
        if (
            isinstance(found, OffsetMoved)
            and self.policy.on_truncate == "wake"
            and not self.desk.topics.get(pull.topic)
        ):
            # The topic was deleted between check and read, so the client should get that error.
            refused = check(pull, self.desk)
            if isinstance(refused, Refused):
                return refused
        decision = found if pull.count_max >= 0 else of_negative_count(pull, found, self.desk)
        if self.desk.standing.is_plain or isinstance(decision, Refused):
            return decision
        return as_placed(decision, self.desk)

    def count(self, pull: Pull, decision: Decision, begun_ns: int) -> None:
        """Count the messages that a group gets, and report a moved offset."""
        if isinstance(decision, Found):
            read = decision.read
            latency_ms = (self.runtime.monotonic_ns() - begun_ns) // 1_000_000
            self.statistics.count_get(
                pull.topic, pull.group, pull.queue_id,
                messages=len(read.offsets), size=read.size_bytes, latency_ms=latency_ms, channel=pull.channel,
            )  # fmt: skip
        elif isinstance(decision, OffsetMoved) and decision.code == PULL_OFFSET_MOVED:
            self.offset_moved(pull, decision.read.offset_next)

    def run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull's checks and read again, and answer it in any case."""
        after_ns = self.events.now_ns()
        self.runtime.step("run")
        self.run_now(pull, cause, after_ns, outbox)

    def run_now(self, pull: Pull, cause: Cause, after_ns: int, outbox: Outbox) -> Decision:
        """Run a pull after the step point; returns the decision. `after_ns` is an event time before the step."""
        begun_ns = self.runtime.monotonic_ns()
        try:
            wanted = check(pull, self.desk)
            if self.may_still_pull is not None and not self.may_still_pull(pull):
                wanted = Refused(NO_PERMISSION, f"its account may no longer pull from the topic[{pull.topic}]")
            decision: Decision = wanted if isinstance(wanted, Refused) else self.look(pull, wanted)
        except FAULTS as error:
            if self.policy.on_throw != "answer_and_go_on":
                raise
            log.exception("running a pull of %s again failed", pull.topic)
            decision = Refused(SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            cause = "thrown"
        self.events.ran(pull, after_ns)
        self.count(pull, decision, begun_ns)
        self.answer(pull, decision, cause, outbox)
        return decision

    def refuse(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Answer a pull without running it: `busy`, `thrown`, or `stopped` with the offset that it asked for."""
        if cause == "stopped":
            self.answer(pull, Miss(self._unread(pull), _NO_FILTER), cause, outbox)
        elif cause == "busy":
            self.answer(pull, Refused(ResponseCode.SYSTEM_BUSY, "too many pulls, try again later"), cause, outbox)
        else:
            self.answer(pull, Refused(SYSTEM_ERROR, "the filter of this pull failed"), cause, outbox)

    def _unread(self, pull: Pull) -> GetResult:
        """Returns the result for a stopping broker, without a read: nothing new, continue at the same offset."""
        ends = self.store.ends(pull.topic, pull.queue_id)
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, pull.offset, *ends, [], [], 0, suggest_slave=False)

    def forget_last(self) -> None:
        """Release log data that is kept between runs; call this before the store closes."""

    def answer(self, pull: Pull, decision: Decision, cause: Cause, outbox: Outbox) -> None:
        """Queue the answer to a pull that left the table, unless it is one-way."""
        channel, traits = pull.channel, self.desk.traits
        assert isinstance(channel, Channel)
        if pull.flag & ONE_WAY and not traits.answers_woken_one_way:
            pull.phase = ANSWERED
            return
        # Java answers a woken pull in JSON, its default, whatever the request used.
        kind = JSON if traits.woken_in_json else KINDS[pull.serialize]
        outbox.write_in_herd(channel, self.answers.encode(pull, decision, cause, kind, outbox))


_NO_FILTER: Final = TagFilter("*", "TAG", frozenset(), all_tags=True)
