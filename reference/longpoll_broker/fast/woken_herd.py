"""Answers a herd, the pulls that one message wakes, in one go where they are alike: one answer, but for their opaques.

What they have in common is looked at once a herd, and the frames differ in one number. Leaves out pulls that are not
alike: these are run one by one, as `hold.pull_runner` does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll_broker.hold.executors import RUN_COST, InlineExecutor
from longpoll_broker.hold.hold_table import ANSWERED, QUEUED, Cause, Pull
from longpoll_broker.hold.pull import FLAG_SUBSCRIPTION, Found
from longpoll_broker.hold.pull_answers import RESPONSE
from longpoll_broker.hold.pull_events import ONE_WAY
from longpoll_broker.hold.pull_runner import PullRunner
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.shared.filter.filters import Filter
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_protocol.fast.pull_answer import PullHeads, pull_heads
from longpoll_protocol.frames.frame import Buffer
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)

COPIED_SIZE_MAX: Final = 2048
"""Bytes of records that a herd's answers are given copies of: a further buffer costs a system call as much."""
CHANNEL: Final[Callable[[Pull], Hashable]] = attrgetter("channel")
TERMS: Final[Callable[[Pull], tuple[Any, ...]]] = attrgetter(
    "topic", "queue_id", "offset", "group", "count_max", "filter", "flag", "sys_flag", "serialize"
)
"""Pulls that are equal in these have equal keys at any one moment."""


class HerdKey(msgspec.Struct, frozen=True, gc=False):
    """Everything that the answer to a woken pull depends on but its opaque."""

    topic: TopicConfig | None
    """With its name, as the group."""
    queue_id: int
    offset: int
    group: GroupConfig | None
    count_max: int
    filter: Filter | None
    flag: int
    ends: tuple[int, int]
    """Of the queue."""
    log_start: int
    since: object
    """What `forget_last` makes anew: a topic that is deleted and made again may be equal in everything above."""


@define(slots=True, eq=False)
class HerdAnswer:
    """The answer to one woken pull, for those after it that have the same key.

    Most messages wake one pull, so what the others would share is made for the second. Invariant: where `_heads` is
    made, so is `_body`; any thread may make both, and makes the same.
    """

    key: HerdKey
    terms: tuple[Any, ...]
    """`TERMS` of that pull."""
    found: Found
    _body: bytes = field(default=b"", init=False)
    """The records as one, where that is little; else empty."""
    _heads: PullHeads | None = field(default=None, init=False)

    def parts(self, opaques: Sequence[int]) -> Parts:
        """The buffers of the answers to some pulls of one channel."""
        heads, records = self._heads or self._make(), self.found.read.records
        if len(opaques) == 1:
            return (heads.head(opaques[0]), *records)
        if self._body:
            return (heads.frames(opaques, self._body),)
        parts: list[Buffer] = []
        for opaque in opaques:
            parts.append(heads.head(opaque))
            parts.extend(records)
        return parts

    def _make(self) -> PullHeads:
        read = self.found.read
        if read.size_bytes <= COPIED_SIZE_MAX:
            self._body = b"".join(read.records)
        self._heads = heads = pull_heads(
            self.found.code, RESPONSE, read.status.name,
            read.offset_next, read.offset_min, read.offset_max, read.size_bytes,
        )  # fmt: skip
        return heads


@define(slots=True, eq=False)
class HerdRunner(PullRunner):
    """Remembers what the last woken pull got; for a broker that records nothing and `tells_offsets_only`."""

    _last: HerdAnswer | None = field(default=None, init=False)
    """One assignment, so threads see the old one or the new one."""
    _since: object = field(factory=object, init=False)
    """In the key of each pull that began to run after the last was forgotten, and in no other's."""

    def run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull, or answer it as the last woken one was where it would get the same."""
        self.runtime.step("run")
        key = self._herd_key(pull) if cause == "woken" else None
        herd = self._last
        if key is not None and herd is not None and herd.key == key:
            self._answer_herd((pull,), herd, outbox)
            return
        decision = self.run_now(pull, cause, 0, outbox)
        if key is not None and isinstance(decision, Found):
            self._last = HerdAnswer(key, TERMS(pull), decision)

    def run_alike(self, pulls: Sequence[Pull], outbox: Outbox) -> None:
        """Run the pulls at the beginning of a herd that get what the last woken pull got; the rest stays as it is."""
        herd = self._last
        if herd is None or TERMS(pulls[0]) != herd.terms:
            return
        _terms, alike = next(groupby(pulls, TERMS))
        ran = list(alike)
        for _pull in ran:
            self.runtime.step("run")
        # Only now, for they read what is there when they run.
        if self._herd_key(ran[0]) != herd.key:
            return
        for _channel, of_channel in groupby(ran, CHANNEL):
            self._answer_herd(list(of_channel), herd, outbox)

    def forget_last(self) -> None:
        """Let go of the last answer's slices of the log; before the store closes.

        A pull that is at work on another thread may put the answer of before back: nobody after it has its key.
        """
        self._since = object()
        self._last = None

    def _herd_key(self, pull: Pull) -> HerdKey | None:
        """What a woken pull has in common with those that get the same answer; None when that is not known so easily.

        One message wakes a herd of pulls with equal keys. What lies between a queue's two ends does not change as long
        as they and the log's start do not; a group, a topic and a filter are replaced, never changed.
        """
        if not pull.sys_flag & FLAG_SUBSCRIPTION or pull.flag & ONE_WAY or pull.serialize:
            return None
        desk, store = self.desk, self.store
        return HerdKey(
            desk.topics.get(pull.topic), pull.queue_id, pull.offset, desk.groups.find(pull.group),
            pull.count_max, pull.filter, pull.flag, store.ends(pull.topic, pull.queue_id), store.log_start,
            self._since,
        )  # fmt: skip

    def _answer_herd(self, pulls: Sequence[Pull], herd: HerdAnswer, outbox: Outbox) -> None:
        """Answer pulls of one channel as the last one was."""
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
        )  # fmt: skip


@define(slots=True, eq=False)
class HerdExecutor(InlineExecutor):
    """Runs at once, on the caller's thread, and those that are alike together."""

    run_alike: Callable[[Sequence[Pull], Outbox], None] = field(kw_only=True)
    """Runs those at the beginning of a herd that get what the last woken pull got; the others stay QUEUED."""

    def _run_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> int:
        """Run pulls that one message woke, now; what it cost."""
        cost = len(pulls)
        for at, pull in enumerate(pulls):
            if pull.phase is QUEUED:
                with KeepGoing(log, "pulls that one message woke cannot be answered together"):
                    self.run_alike(pulls[at:], outbox)
            if pull.phase is QUEUED:
                self._run(pull, "woken", outbox)
                cost += RUN_COST - 1
        return cost
