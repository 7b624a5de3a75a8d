"""Runs pulls that left the hold table: checks each pull, reads the store, and answers.

Checks and results of a read: see `hold.pull`. The pool of threads for a polling dispatcher: see `hold.pull_pool`.

Equal pulls that one message wakes (a herd) are checked and read once, if their answers can differ only in `opaque`.

One message, or a deleted topic, may release many pulls. `LaterRuns` limits the work of one pass and queues the other
pulls by connection. Each later pass runs some pulls of each connection in turn, so a connection with one pull does not
wait for hundreds of pulls of another connection.

Sources: `PullMessageProcessor.java` 4.9 and 5.x, `PullRequestHoldService.java`.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import Final, TypeAlias

from attrs import define, field

from longpoll_broker.hold.herd import RESPONSE, TERMS, HerdAnswer, HerdKey
from longpoll_broker.hold.hold_service import PullEvents
from longpoll_broker.hold.hold_table import ANSWERED, QUEUED, Cause, Pull
from longpoll_broker.hold.pull import (
    FLAG_SUBSCRIPTION,
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
    code_of,
    look,
    of_negative_count,
)
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.io.processors import Refusal
from longpoll_broker.shared.filters import Filter, TagFilter
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import GetResult, GetStatus
from longpoll_protocol.codes import CommandFlag, ResponseCode
from longpoll_protocol.fast import encode_pull_head
from longpoll_protocol.frames import Command, Serialisation, encode_head
from longpoll_runtime import Lock, Runtime
from longpoll_runtime.recoverable import FAULTS, KeepGoing
from longpoll_spec.policy import Policy

log = logging.getLogger(__name__)

ONE_WAY: Final = CommandFlag.ONE_WAY.value
JSON: Final = Serialisation.JSON
KINDS: Final = (Serialisation.JSON, Serialisation.ROCKETMQ)
"""The header encodings, indexed by number, because a lookup in an enum is slower."""


@define(slots=True, eq=False)
class PullAnswers:
    """Encodes decisions as answers; callable from any thread."""

    checks: PullChecks
    events: PullEvents
    has_offsets_only: bool = field(init=False)
    """Whether answers have no fields except the offsets, as on a master without slaves before 5.x."""

    def __attrs_post_init__(self) -> None:
        self.has_offsets_only = self.checks.role.is_plain and not self.checks.traits.explains_refusals

    def encode(self, pull: Pull, decision: Decision, cause: Cause, kind: Serialisation, outbox: Outbox) -> Parts:
        """Returns the buffers of an answer. Answers with code 0, 19, 20 or 21 have offsets, and a refusal has none."""
        pull.phase = ANSWERED
        if isinstance(decision, Refused):
            refusal = None
            if decision.forbidden_type is not None and self.checks.traits.explains_refusals:
                refusal = {"forbiddenType": str(decision.forbidden_type)}
            head = encode_head(
                Command(decision.code, pull.opaque, RESPONSE, refusal, remark=decision.remark, serialisation=kind), 0
            )
            self.events.answered(pull, decision.code, None, cause, outbox)
            return Refusal((head,), decision.code, decision.remark)
        read = decision.read
        is_found = isinstance(decision, Found)
        head = self.head(pull, decision.code, read, kind, read.size_bytes if is_found else 0)
        self.events.answered(pull, decision.code, read, cause, outbox)
        return [head, *read.records] if is_found else [head]

    def head(self, pull: Pull, code: int, read: GetResult, kind: Serialisation, body_size: int) -> bytes:
        """Returns the part of an answer's frame that precedes the messages; the answer must have offsets."""
        if self.has_offsets_only and kind is JSON:
            return encode_pull_head(
                code, pull.opaque, RESPONSE, read.status,
                read.offset_next, read.offset_min, read.offset_max, body_size,
            )  # fmt: skip
        fields = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(read.offset_next),
            "minOffset": str(read.offset_min),
            "maxOffset": str(read.offset_max),
        }
        if self.checks.traits.explains_refusals:
            fields |= self._flag_fields(pull)
        if not self.checks.role.is_plain:
            fields |= self._role_fields(pull, read)
        command = Command(code, pull.opaque, RESPONSE, fields, remark=read.status.name, serialisation=kind)
        return encode_head(command, body_size)

    def _flag_fields(self, pull: Pull) -> dict[str, str]:
        """Returns the fields that 5.x adds about the topic and the group."""
        topic, group = self.checks.topics.get(pull.topic), self.checks.groups.by_name.get(pull.group)
        return {
            "topicSysFlag": str(topic.topic_sys_flag if topic is not None else 0),
            "groupSysFlag": str(group.group_sys_flag if group is not None else 0),
        }

    def _role_fields(self, pull: Pull, read: GetResult) -> dict[str, str]:
        """Returns the fields that differ on a slave, or on a master that may redirect consumers to a slave."""
        role, status = self.checks.role, read.status
        group = self.checks.groups.by_name.get(pull.group)
        suggested = role.suggested_broker(
            group, code_of(status, pull.offset), self.checks.traits, suggests_slave=read.suggest_slave
        )
        offset_next = role.offset_next(pull.offset, read.offset_next, status)
        return {"suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(offset_next)}


def ignore_moved_offset(_pull: Pull, _offset_next: int) -> None:
    """Do nothing about a moved offset: the default of a broker that stores no events about moved offsets."""


CHANNEL: Final[Callable[[Pull], Hashable]] = attrgetter("channel")


@define(slots=True, eq=False)
class PullRunner:
    """Runs pulls and answers them; callable from any thread."""

    runtime: Runtime
    policy: Policy
    checks: PullChecks
    store: MessageStore
    statistics: Statistics
    events: PullEvents
    answers: PullAnswers
    offset_moved: Callable[[Pull, int], None] = ignore_moved_offset
    """Called with every pull that is answered with code 21 (PULL_OFFSET_MOVED), and with the pull's new offset."""
    may_still_pull: Callable[[Pull], bool] | None = None
    """Whether a held pull's account may still read the topic; None if access control is off."""
    reuses_answers: bool = False
    """Whether equal woken pulls share one answer; requires `has_offsets_only`, no accounts and no history."""
    _last: HerdAnswer | None = field(default=None, init=False)
    """The last woken pull's answer. The assignment is atomic, so a thread sees either the old or the new value."""
    _since: object = field(factory=object, init=False)
    """Part of every herd key; `forget_last` replaces it, so that no later pull matches an older answer."""

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """Read the store for a pull."""
        found = look(pull, wanted, self.store)
        if (
            isinstance(found, OffsetMoved)
            and self.policy.on_truncate == "wake"
            and not self.checks.topics.get(pull.topic)
        ):
            # If the topic was deleted before the read, the client should get the error for an unknown topic and not a
            # moved offset.
            refused = check(pull, self.checks)
            if isinstance(refused, Refused):
                return refused
        decision = found if pull.count_max >= 0 else of_negative_count(pull, found, self.checks)
        if self.checks.role.is_plain or isinstance(decision, Refused):
            return decision
        return as_placed(decision, self.checks)

    def count(self, pull: Pull, decision: Decision, begun_ns: int) -> None:
        """Add the messages that a group gets to the statistics, and report a moved offset."""
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
        """Check and read a pull again, and answer it; reuse the last woken pull's answer for an equal pull."""
        after_ns = self.events.now_ns()
        self.runtime.step("run")
        key = self._herd_key(pull) if cause == "woken" and self.reuses_answers else None
        herd = self._last
        if key is not None and herd is not None and herd.key == key:
            self._answer_herd((pull,), herd, outbox)
            return
        decision = self.run_now(pull, cause, after_ns, outbox)
        if key is not None and isinstance(decision, Found):
            self._last = HerdAnswer(key, TERMS(pull), decision)

    def run_alike(self, pulls: Sequence[Pull], outbox: Outbox) -> None:
        """Answer the first pulls of a thundering herd, as long as their answer equals that of the last woken pull.

        The other pulls of the herd stay queued.
        """
        herd = self._last
        if herd is None or TERMS(pulls[0]) != herd.terms:
            return
        _terms, alike = next(groupby(pulls, TERMS))
        ran = list(alike)
        for _pull in ran:
            self.runtime.step("run")
        # The key is computed after the scheduling point, because the read comes after the scheduling point too.
        if self._herd_key(ran[0]) != herd.key:
            return
        for _channel, of_channel in groupby(ran, CHANNEL):
            self._answer_herd(list(of_channel), herd, outbox)

    def run_now(self, pull: Pull, cause: Cause, after_ns: int, outbox: Outbox) -> Decision:
        """Run a pull after its scheduling point; returns the decision. `after_ns` was read before that point."""
        begun_ns = self.runtime.monotonic_ns()
        try:
            wanted = check(pull, self.checks)
            if self.may_still_pull is not None and not self.may_still_pull(pull):
                wanted = Refused(NO_PERMISSION, f"its account may no longer pull from the topic[{pull.topic}]")
            decision: Decision = wanted if isinstance(wanted, Refused) else self.look(pull, wanted)
        except FAULTS as error:
            if self.policy.on_throw != "answer_and_go_on":
                raise
            log.exception("running a pull of %s again failed", pull.topic)
            decision = Refused(SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            cause = "thrown"
        self.events.record("run", (pull,), after_ns)
        self.count(pull, decision, begun_ns)
        self.answer(pull, decision, cause, outbox)
        return decision

    def refuse(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Answer a pull without running it, because it is `busy`, `thrown` or `stopped`."""
        if cause == "stopped":
            self.answer(pull, Miss(self._unread(pull), _NO_FILTER), cause, outbox)
        elif cause == "busy":
            self.answer(pull, Refused(ResponseCode.SYSTEM_BUSY, "too many pulls, try again later"), cause, outbox)
        else:
            self.answer(pull, Refused(SYSTEM_ERROR, "the filter of this pull failed"), cause, outbox)

    def _unread(self, pull: Pull) -> GetResult:
        """Returns an empty read result, after which the client of a stopping broker continues at the same offset."""
        ends = self.store.ends(pull.topic, pull.queue_id)
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, pull.offset, *ends, [], [], 0, suggest_slave=False)

    def forget_last(self) -> None:
        """Release the last answer's slices of the log, before the store closes.

        A pull that runs on another thread may set the old answer again, but no later pull matches its key.
        """
        self._since = object()
        self._last = None

    def _herd_key(self, pull: Pull) -> HerdKey | None:
        """Returns a key that is equal for pulls with the same answer; None if the answer may not be shared.

        While a queue's ends and the log's start stay the same, so do the messages between the ends. Groups, topics and
        filters are replaced instead of changed, so comparing their identity is enough.
        """
        if not pull.sys_flag & FLAG_SUBSCRIPTION or pull.flag & ONE_WAY or pull.serialize:
            return None
        checks, store = self.checks, self.store
        return HerdKey(
            checks.topics.get(pull.topic), pull.queue_id, pull.offset, checks.groups.find(pull.group),
            pull.count_max, pull.filter, pull.flag, store.ends(pull.topic, pull.queue_id), store.log_start,
            self._since,
        )  # fmt: skip

    def _answer_herd(self, pulls: Sequence[Pull], herd: HerdAnswer, outbox: Outbox) -> None:
        """Send the answer of the last woken pull to pulls of one channel."""
        first = pulls[0]
        channel = first.channel
        assert isinstance(channel, Channel)
        for pull in pulls:
            pull.phase = ANSWERED
        outbox.write_in_herd(channel, herd.parts([pull.opaque for pull in pulls]), len(pulls))
        read = herd.found.read
        self.statistics.count_get(
            first.topic, first.group, first.queue_id,
            messages=len(read.offsets), size=read.size_bytes, latency_ms=0, times=len(pulls),
            channel=channel,
        )  # fmt: skip

    def answer(self, pull: Pull, decision: Decision, cause: Cause, outbox: Outbox) -> None:
        """Queue the answer to a pull that left the table; a one-way pull gets no answer."""
        channel, traits = pull.channel, self.checks.traits
        assert isinstance(channel, Channel)
        if pull.flag & ONE_WAY and not traits.answers_woken_one_way:
            pull.phase = ANSWERED
            return
        # RocketMQ answers a woken pull in JSON, its default serialisation, whatever the request used.
        kind = JSON if traits.woken_in_json else KINDS[pull.serialize]
        outbox.write_in_herd(channel, self.answers.encode(pull, decision, cause, kind, outbox))


_NO_FILTER: Final = TagFilter("*", "TAG", frozenset(), all_tags=True)


Run = Callable[[Pull, Cause, Outbox], None]
RunAlike = Callable[[Sequence[Pull], Outbox], None]
RUN_COST: Final = 8
"""Cost of running one pull that shares no answer. A pull that reuses the previous answer costs 1."""
PASS_COST_MAX: Final = 2_000
"""Maximum cost of the new pulls, and also of the queued pulls, that one pass of the I/O loop runs. 250 single pulls
have this cost and take about 4 ms."""

Leaving: TypeAlias = tuple[Pull, Cause]
"""A pull to run, and the cause of its release."""


def no_wake() -> None:
    """Do nothing: the default for a loop that checks for queued runs itself before it sleeps."""


@define(slots=True, eq=False)
class LaterRuns:
    """Pulls that wait for a later pass of the I/O loop; callable from any thread.

    Invariant: `waiting` has one entry per connection with waiting pulls, in the order in which the connections are
    served. Without the lock, `waiting` is only approximate.
    """

    lock: Lock
    """Protects `waiting`."""
    wake: Callable[[], None] = no_wake
    """Wakes the loop that ends the passes."""
    spent: int = field(default=0, init=False)
    """The cost of the pulls in the current pass of the I/O loop; only approximate with several threads."""
    _is_over: bool = field(default=False, init=False)
    waiting: OrderedDict[Hashable, deque[Leaving]] = field(factory=OrderedDict, init=False)

    def spend(self, cost: int) -> bool:
        """Add `cost` to the cost of this pass; returns false if the budget is already used up."""
        if self.spent >= PASS_COST_MAX and not self._is_over:
            return False
        self.spent += cost
        return True

    def add(self, leaving: Iterable[Leaving]) -> None:
        """Queue pulls for later passes; the pulls of one connection keep their order."""
        with self.lock:
            was_empty = not self.waiting
            for each in leaving:
                self.waiting.setdefault(each[0].channel, deque()).append(each)
        if was_empty:
            self.wake()

    def turn(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """End a pass: run waiting pulls up to the budget, and reset the budget. `run` returns its cost."""
        left = PASS_COST_MAX
        while left > 0 and self.waiting and (part := self._take()):
            left -= run(part)
        self.spent = 0

    def finish(self, run: Callable[[Sequence[Leaving]], int]) -> None:
        """Run all waiting pulls now, and run every later pull immediately."""
        self._is_over = True
        while part := self._take():
            run(part)

    def _take(self) -> list[Leaving]:
        """Remove and return some pulls of the next connection: at least one, and fewer if many connections wait."""
        with self.lock:
            if not self.waiting:
                return []
            count = max(PASS_COST_MAX // RUN_COST // len(self.waiting), 1)
            channel, pulls = self.waiting.popitem(last=False)
            part = [pulls.popleft() for _ in range(min(count, len(pulls)))]
            if pulls:
                self.waiting[channel] = pulls
        return part


@define(slots=True, eq=False)
class InlineExecutor:
    """Runs pulls on the caller's thread. If the pass has used its budget, the pulls are queued in `later`."""

    run: Run
    run_alike: RunAlike
    """Runs the first pulls of a herd whose answer equals that of the last woken pull; the other pulls stay QUEUED."""
    later: LaterRuns

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:
        """Run the pull now or in a later pass. Always returns true, because no pull is rejected."""
        if self.later.spend(RUN_COST):
            self._run(pull, cause, outbox)
        else:
            self.later.add([(pull, cause)])
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run the pulls that one message woke, now or in a later pass; rejects no pull."""
        later = self.later
        if later.spend(len(pulls)):
            later.spend(self._run_herd(pulls, outbox) - len(pulls))
        else:
            later.add((pull, "woken") for pull in pulls)
        return ()

    def turn(self, outbox: Outbox) -> None:
        """Run some of the waiting pulls at the end of a pass of the I/O loop."""
        self.later.turn(lambda part: self._run_part(part, outbox))

    def finish(self, outbox: Outbox) -> None:
        """Run all waiting pulls, and run every later pull immediately."""
        self.later.finish(lambda part: self._run_part(part, outbox))

    def _run_part(self, part: Sequence[Leaving], outbox: Outbox) -> int:
        """Run queued pulls, and treat woken pulls as one herd; returns the cost."""
        cost = 0
        for cause, leaving in groupby(part, itemgetter(1)):
            pulls = [pull for pull, _cause in leaving]
            if cause == "woken":
                cost += self._run_herd(pulls, outbox)
            else:
                cost += RUN_COST * len(pulls)
                for pull in pulls:
                    self._run(pull, cause, outbox)
        return cost

    def _run_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> int:
        """Run the pulls that one message woke, equal pulls together; returns the cost."""
        cost = len(pulls)
        for at, pull in enumerate(pulls):
            if pull.phase is QUEUED:
                with KeepGoing(log, "pulls that one message woke cannot be answered together"):
                    self.run_alike(pulls[at:], outbox)
            if pull.phase is QUEUED:
                self._run(pull, "woken", outbox)
                cost += RUN_COST - 1
        return cost

    def _run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull; an error is logged, so that the next pulls still run."""
        try:
            self.run(pull, cause, outbox)
        except FAULTS:
            log.exception("a pull of %s failed and gets no answer", pull.topic)
