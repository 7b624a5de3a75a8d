"""Serves pull requests: decodes, checks and reads, then answers or holds. Runs and answers pulls that left the table.

Checks and results of a read: see `hold.pull`. Held pulls: see `hold.hold_service`.

One message, or a deleted topic, may release many pulls. `LaterRuns` limits the work of one pass and keeps the rest by
connection. Each later pass runs some pulls of each connection in turn, so a connection with one pull does not wait for
another's hundreds.

Sources: `PullMessageProcessor.java` 4.9 and 5.x, `PullRequestHoldService.java`, `pullMessageExecutor` of
`BrokerController.java`, `BrokerFastFailure.java`, `OffsetMovedEvent.java` 4.9.
"""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Final, TypeAlias

import msgspec
from attrs import define, field, frozen

from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_service import HoldService, PullEvents
from longpoll_broker.hold.hold_table import ANSWERED, Cause, Pull
from longpoll_broker.hold.pull import (
    FLAG_COMMIT_OFFSET,
    FLAG_SUSPEND,
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
from longpoll_broker.io.processors import Processor, Refusal
from longpoll_broker.send.append import Appender
from longpoll_broker.shared.filters import Filter, TagFilter
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.statistics import Statistics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import GetResult, GetStatus, MessageToStore
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import MessageRefusedError
from longpoll_protocol.frames import Command, Serialisation, encode_head
from longpoll_protocol.headers import PullMessageRequestHeader
from longpoll_protocol.properties import DELAY, KEYS, TAGS, java_hash, write_properties
from longpoll_runtime import Event, Lock, Queue, Runtime, Thread
from longpoll_runtime.recoverable import FAULTS
from longpoll_spec.policy import Policy

RESPONSE: Final = CommandFlag.RESPONSE.value
JSON: Final = Serialisation.JSON
KINDS: Final = (Serialisation.JSON, Serialisation.ROCKETMQ)
"""Indexed by number, because an enum lookup is slower."""


@define(slots=True, eq=False)
class PullAnswers:
    """Encodes decisions; callable from any thread."""

    checks: PullChecks
    events: PullEvents

    def encode(self, pull: Pull, decision: Decision, cause: Cause, kind: Serialisation, outbox: Outbox) -> Parts:
        """Returns the buffers of an answer; codes 0, 19, 20 and 21 carry offsets, a refusal carries none."""
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
        """Returns the frame up to the records of an answer with offsets."""
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
        """Returns the fields that differ on a slave, or on a master that may redirect readers to one."""
        role, status = self.checks.role, read.status
        group = self.checks.groups.by_name.get(pull.group)
        suggested = role.suggested_broker(
            group, code_of(status, pull.offset), self.checks.traits, suggests_slave=read.suggest_slave
        )
        offset_next = role.offset_next(pull.offset, read.offset_next, status)
        return {"suggestWhichBrokerId": str(suggested), "nextBeginOffset": str(offset_next)}


ONE_WAY = CommandFlag.ONE_WAY.value


log = logging.getLogger(__name__)


def nobody_is_told(_pull: Pull, _offset_next: int) -> None:
    """Do nothing about a moved offset: the default of a broker that stores no such events."""


@define(slots=True, eq=False)
class PullRunner:
    """Runs pulls; callable from any thread."""

    runtime: Runtime
    policy: Policy
    checks: PullChecks
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
            and not self.checks.topics.get(pull.topic)
        ):
            # The topic was deleted between check and read, so the client should get that error.
            refused = check(pull, self.checks)
            if isinstance(refused, Refused):
                return refused
        decision = found if pull.count_max >= 0 else of_negative_count(pull, found, self.checks)
        if self.checks.role.is_plain or isinstance(decision, Refused):
            return decision
        return as_placed(decision, self.checks)

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
        channel, traits = pull.channel, self.checks.traits
        assert isinstance(channel, Channel)
        if pull.flag & ONE_WAY and not traits.answers_woken_one_way:
            pull.phase = ANSWERED
            return
        # Java answers a woken pull in JSON, its default, whatever the request used.
        kind = JSON if traits.woken_in_json else KINDS[pull.serialize]
        outbox.write_in_herd(channel, self.answers.encode(pull, decision, cause, kind, outbox))


_NO_FILTER: Final = TagFilter("*", "TAG", frozenset(), all_tags=True)


SHORT_POLLING_MS: Final = 1000
"""`shortPollingTimeMills`: how long a pull is held when long polling is off, ms."""
PULLS: Final = frozenset({RequestCode.PULL_MESSAGE.value, RequestCode.LITE_PULL_MESSAGE.value})


@define(slots=True, eq=False)
class PullProcessor:
    """The processor of pulls; callable from any thread."""

    runtime: Runtime
    policy: Policy
    config: BrokerConfig
    checks: PullChecks
    offsets: Offsets
    runner: PullRunner
    hold_service: HoldService
    events: PullEvents

    @property
    def processors(self) -> Mapping[int, Processor]:
        """Code 11, and the lite pull of a 5.x broker."""
        served: dict[int, Processor] = {RequestCode.PULL_MESSAGE: self.receive}
        if self.checks.traits.serves_lite_pull:
            served[RequestCode.LITE_PULL_MESSAGE] = self.receive
        return served

    def receive(self, channel: Channel, command: Command, outbox: Outbox) -> Parts | None:
        """Serve a pull request; returns the reply, or None when the pull is held."""
        pull = self._decode(channel, command)
        wanted = self.check(pull)
        commits = bool(pull.sys_flag & FLAG_COMMIT_OFFSET) and self._takes_commits
        self.events.received(pull, channel.received_ns, wanted, max(pull.commit_offset, -1) if commits else -1)
        if isinstance(wanted, Refused):
            decision: Decision = wanted
        else:
            self.runtime.step("pull_read")
            decision = self.look(pull, wanted)
            commits = commits and not isinstance(decision, Refused)
            if self.offsets.pulled is not None:
                self.offsets.pulled.commit(pull.topic, pull.group, pull.queue_id, pull.offset, channel=channel)
            if commits and self.policy.commit != "after_hold":
                self._commit(pull)
            is_held = isinstance(decision, Miss) and self.may_be_held(pull)
            if is_held:
                pull.filter = wanted
                self.hold_service.hold(pull, outbox)
            if commits and self.policy.commit == "after_hold":
                self._commit(pull)
            if is_held:
                if self.checks.topics.get(pull.topic) is None and self.policy.on_truncate == "wake":
                    # The topic was deleted between check and insert, perhaps before the pull was in its bucket.
                    self.hold_service.topic_deleted(pull.topic, outbox)
                return None
        self.runner.count(pull, decision, channel.received_ns)
        return self.runner.answers.encode(pull, decision, "immediate", KINDS[pull.serialize], outbox)

    def header_of(self, command: Command) -> PullMessageRequestHeader:
        """Decode the request's header; raises HeaderError."""
        return PullMessageRequestHeader.decode(command.ext_fields)

    def check(self, pull: Pull) -> Filter | Refused:
        """Run every check before the read; returns the filter to read with, or the refusal."""
        return check(pull, self.checks)

    def look(self, pull: Pull, wanted: Filter) -> Decision:
        """Read for a pull. A held pull's `read` is never used."""
        return self.runner.look(pull, wanted)

    def may_be_held(self, pull: Pull) -> bool:
        """Whether a pull that missed may wait; some brokers drop a one-way pull instead."""
        is_dropped = bool(pull.flag & ONE_WAY) and self.checks.traits.drops_one_way_pull
        return bool(pull.sys_flag & FLAG_SUSPEND) and not is_dropped

    @property
    def _takes_commits(self) -> bool:
        return not self.checks.role.is_slave or self.checks.traits.commits_as_slave

    def _commit(self, pull: Pull) -> None:
        forward_only = self.policy.commit == "monotone_max"
        self.offsets.commit(
            pull.topic, pull.group, pull.queue_id, pull.commit_offset, forward_only=forward_only, channel=pull.channel
        )

    def _decode(self, channel: Channel, command: Command) -> Pull:
        header = self.header_of(command)
        channel.request_count += 1
        timeout_ms = self._granted_ms(header.suspend_timeout_millis or 0)
        return Pull(
            channel=channel,
            opaque=command.opaque,
            group=header.consumer_group,
            topic=header.topic,
            queue_id=header.queue_id,
            offset=header.queue_offset,
            count_max=header.max_msg_nums,
            sys_flag=header.sys_flag,
            commit_offset=header.commit_offset or 0,
            timeout_ms=timeout_ms,
            subscription=header.subscription,
            expression_type=header.expression_type,
            sub_version=header.sub_version or 0,
            serialize=command.serialisation,
            flag=command.flag,
            number=channel.request_count,
            # Rounded up, so that no pull is answered before its deadline.
            deadline_ms=-(-channel.received_ns // 1_000_000) + timeout_ms,
        )

    def _granted_ms(self, asked_ms: int) -> int:
        """Returns how long a pull may be held, ms; RocketMQ sets no maximum."""
        if not self.config.long_polling:
            return SHORT_POLLING_MS
        if not self.checks.traits.caps_hold:
            return asked_ms
        return min(max(asked_ms, 0), self.config.hold_timeout_ms_max)


Run = Callable[[Pull, Cause, Outbox], None]
Task = Callable[[Outbox], None]
Refuse = Callable[[Pull, Cause, Outbox], None]
TAKE_S: Final = 0.5
"""Interval at which an idle worker checks whether the pool stops, seconds."""
LOOK_S: Final = 0.01
"""Interval between checks for tasks that waited too long, seconds (`BrokerFastFailure.start`)."""
RUN_COST: Final = 8
"""Cost of running one pull alone; a pull that reuses the previous answer costs 1."""
PASS_COST_MAX: Final = 2_000
"""Cost budget of one pass, for immediate and again for later runs: 250 single pulls, about 4 ms."""

Leaving: TypeAlias = tuple[Pull, Cause]
"""A pull to run, and why."""


def nobody() -> None:
    """Do nothing: a running loop checks for later runs before it sleeps."""


@define(slots=True, eq=False)
class LaterRuns:
    """Pulls that wait for a later pass; callable from any thread.

    Invariant: `waiting` has one entry per connection with waiting pulls, in the order of their turns. It is approximate
    without the lock.
    """

    lock: Lock
    """Protects `waiting`."""
    wake: Callable[[], None] = nobody
    """Wakes the loop that ends passes."""
    spent: int = field(default=0, init=False)
    """Cost of this pass so far; approximate with several threads."""
    _is_over: bool = field(default=False, init=False)
    waiting: OrderedDict[Hashable, deque[Leaving]] = field(factory=OrderedDict, init=False)

    def spend(self, cost: int) -> bool:
        """Charge `cost` to the budget; returns false if the budget is exhausted."""
        if self.spent >= PASS_COST_MAX and not self._is_over:
            return False
        self.spent += cost
        return True

    def add(self, leaving: Iterable[Leaving]) -> None:
        """Queue pulls for later passes, in order for each connection."""
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
        """Run all waiting pulls now, and all future ones at once."""
        self._is_over = True
        while part := self._take():
            run(part)

    def _take(self) -> list[Leaving]:
        """Remove the next connection's next pulls: at least one, and fewer if many connections wait."""
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
    """Runs pulls on the caller's thread; a pass over budget leaves the rest to `later`."""

    run: Run
    later: LaterRuns

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:
        """Run the pull now or in a later pass; always true."""
        if self.later.spend(RUN_COST):
            self._run(pull, cause, outbox)
        else:
            self.later.add([(pull, cause)])
        return True

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Run pulls that one message woke, now or in a later pass; rejects none."""
        later = self.later
        if later.spend(len(pulls)):
            later.spend(self._run_herd(pulls, outbox) - len(pulls))
        else:
            later.add((pull, "woken") for pull in pulls)
        return ()

    def turn(self, outbox: Outbox) -> None:
        """End a pass: run some of the waiting pulls."""
        self.later.turn(lambda part: self._run_part(part, outbox))

    def finish(self, outbox: Outbox) -> None:
        """Run all waiting pulls, and from now on everything at once."""
        self.later.finish(lambda part: self._run_part(part, outbox))

    def _run_part(self, part: Sequence[Leaving], outbox: Outbox) -> int:
        """Run waiting pulls, keeping woken ones together as a herd; returns the cost."""
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
        for pull in pulls:
            self._run(pull, "woken", outbox)
        return RUN_COST * len(pulls)

    def _run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull; log a fault, so that the next pulls run."""
        try:
            self.run(pull, cause, outbox)
        except FAULTS:
            log.exception("a pull of %s failed and gets no answer", pull.topic)


@frozen(eq=False)
class _Queued:
    queued_ns: int
    task: Task
    too_late: Task


@define(slots=True, eq=False)
class PoolExecutor:
    """Threads with a bounded queue, as in Java. If a task raises, the error is logged and its pull gets no answer.

    A task that waited too long is replaced by its `too_late` task, in queue order. A watcher thread checks for late
    tasks every 10 ms, so clients get this answer even if every worker is blocked.
    """

    runtime: Runtime
    run: Run
    refuse: Refuse
    thread_count: int
    capacity: int
    wait_ms_max: int | None
    """`waitTimeMillsInPullQueue`; None means no limit (`brokerFastFailureEnable=false`)."""
    _tasks: Queue[_Queued] = field(init=False)
    _ended: Event = field(init=False)
    _threads: list[Thread] = field(factory=list, init=False)
    _watcher: Thread | None = field(default=None, init=False)
    _stopping: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self._tasks = self.runtime.queue(self.capacity)
        self._ended = self.runtime.event()

    def submit(self, pull: Pull, cause: Cause, outbox: Outbox) -> bool:  # noqa: ARG002 - a worker has its own outbox
        """Queue the pull; returns false when the queue is full or the pool stops."""
        return self.offer(
            lambda worker_outbox: self.run(pull, cause, worker_outbox),
            lambda worker_outbox: self.refuse(pull, "busy", worker_outbox),
        )

    def submit_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> Sequence[Pull]:
        """Queue each of the pulls that one message woke; returns those that found no room."""
        return [pull for pull in pulls if not self.submit(pull, "woken", outbox)]

    def offer(self, task: Task, too_late: Task) -> bool:
        """Queue a task and its replacement for when it is late; false when the queue is full or the pool stops."""
        return not self._stopping and self._tasks.offer(_Queued(self.runtime.monotonic_ns(), task, too_late))

    def waiting(self) -> tuple[int, int]:
        """Returns the number of queued tasks, and the waiting time of the first, ms."""
        first_ns: list[int] = []

        def look(queued: _Queued) -> bool:
            first_ns.append(queued.queued_ns)
            return False

        self._tasks.take_if(look)
        waited_ms = (self.runtime.monotonic_ns() - first_ns[0]) // 1_000_000 if first_ns else 0
        return len(self._tasks), waited_ms

    def start(self) -> None:
        """Start the workers and the watcher."""
        self._threads = [self.runtime.spawn(f"pull-{number}", self._work) for number in range(self.thread_count)]
        if self.wait_ms_max is not None:
            self._watcher = self.runtime.spawn("pull-watcher", self._watch)

    def stop(self) -> None:
        """Run the queued tasks, then end the workers."""
        self._stopping = True
        for _ in self._threads:
            self._tasks.offer(_Queued(self.runtime.monotonic_ns(), _nothing, _nothing))
        for thread in self._threads:
            thread.join()
        self._ended.set()
        if self._watcher is not None:
            self._watcher.join()

    def _work(self) -> None:
        outbox = Outbox()
        while True:
            taken = self._tasks.take(0.0 if self._stopping else TAKE_S)
            if taken is None:
                if self._stopping:
                    return
                continue
            _do(taken.too_late if self._is_late(taken) else taken.task, outbox)

    def _watch(self) -> None:
        """Refuse late tasks from the head of the queue; those behind have waited less."""
        outbox = Outbox()
        while not self._ended.wait(LOOK_S):
            while (late := self._tasks.take_if(self._is_late)) is not None:
                _do(late.too_late, outbox)

    def _is_late(self, queued: _Queued) -> bool:
        limit_ms = self.wait_ms_max
        return limit_ms is not None and self.runtime.monotonic_ns() - queued.queued_ns >= limit_ms * 1_000_000


def _do(task: Task, outbox: Outbox) -> None:
    try:
        task(outbox)
    except FAULTS:
        log.exception("a pull failed and gets no answer")
    outbox.flush()


def _nothing(_outbox: Outbox) -> None:
    """Do nothing: wakes a worker so that it ends."""


OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"


@define(slots=True, eq=False)
class OffsetMovedEvents:
    """Stores the event messages; callable from any thread."""

    runtime: Runtime
    appender: Appender
    broker_name: str
    host: bytes
    """The broker's address, encoded as in records."""

    def tell(self, pull: Pull, offset_new: int) -> None:
        """Record that a pull was redirected to `offset_new`. If the store fails, this logs a warning, as Java does."""
        event = {
            "consumerGroup": pull.group,
            "messageQueue": {"brokerName": self.broker_name, "queueId": pull.queue_id, "topic": pull.topic},
            "offsetNew": offset_new,
            "offsetRequest": pull.offset,
        }
        message = MessageToStore(
            topic=OFFSET_MOVED_TOPIC,
            queue_id=0,
            body=msgspec.json.encode(event),
            properties=write_properties({TAGS: pull.group, DELAY: "0", KEYS: pull.group}),
            tags_code=java_hash(pull.group),
            born_ms=self.runtime.unix_ms(),
            born_host=self.host,
            store_host=self.host,
        )
        try:
            self.appender.append(message, pull.group)
        except (MessageRefusedError, OSError) as error:
            log.warning("the event of a moved offset of group %s is not stored: %s", pull.group[:64], error)
