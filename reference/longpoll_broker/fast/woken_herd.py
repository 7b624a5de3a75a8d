"""Answers a herd, the pulls that one message wakes, together: equal pulls get one answer that differs only in `opaque`.

Common properties are checked once per herd. Other pulls run singly, as in `hold.pull_processor`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll_broker.hold.hold_table import ANSWERED, QUEUED, Cause, Pull
from longpoll_broker.hold.pull import FLAG_SUBSCRIPTION, Found
from longpoll_broker.hold.pull_processor import ONE_WAY, RESPONSE, RUN_COST, InlineExecutor, PullRunner
from longpoll_broker.io.channel import Channel, Outbox, Parts
from longpoll_broker.shared.filters import Filter
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_protocol.fast import PullHeads, pull_heads
from longpoll_protocol.frames import Buffer
from longpoll_runtime.recoverable import KeepGoing

log = logging.getLogger(__name__)

COPIED_SIZE_MAX: Final = 2048
"""Maximum bytes of records copied into a herd's answers; another buffer per answer costs as much."""
CHANNEL: Final[Callable[[Pull], Hashable]] = attrgetter("channel")
TERMS: Final[Callable[[Pull], tuple[Any, ...]]] = attrgetter(
    "topic", "queue_id", "offset", "group", "count_max", "filter", "flag", "sys_flag", "serialize"
)
"""Pulls equal in these have equal keys at the same time."""


class HerdKey(msgspec.Struct, frozen=True, gc=False):
    """Everything that a woken pull's answer depends on, except its opaque."""

    topic: TopicConfig | None
    """Includes the name, as the group does."""
    queue_id: int
    offset: int
    group: GroupConfig | None
    count_max: int
    filter: Filter | None
    flag: int
    ends: tuple[int, int]
    """The queue's minimum and visible end."""
    log_start: int
    since: object
    """Replaced by `forget_last`: a recreated topic may be equal in everything above."""


@define(slots=True, eq=False)
class HerdAnswer:
    """The answer to one woken pull, for later pulls with the same key.

    Most messages wake one pull, so shared parts are created for the second. Invariant: if `_heads` exists, so does
    `_body`. Any thread may create both, with the same result.
    """

    key: HerdKey
    terms: tuple[Any, ...]
    """The `TERMS` of that pull."""
    found: Found
    _body: bytes = field(default=b"", init=False)
    """The records as one buffer, if small; otherwise empty."""
    _heads: PullHeads | None = field(default=None, init=False)

    def parts(self, opaques: Sequence[int]) -> Parts:
        """Returns the buffers of the answers to pulls of one channel."""
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
    """Reuses the last woken pull's answer; for brokers that do not record and have `tells_offsets_only`."""

    _last: HerdAnswer | None = field(default=None, init=False)
    """Assigned in one step, so threads see either the old or the new value."""
    _since: object = field(factory=object, init=False)
    """Part of the key of every pull that runs after the last `forget_last`."""

    def run(self, pull: Pull, cause: Cause, outbox: Outbox) -> None:
        """Run a pull, or reuse the last woken pull's answer if it is the same."""
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
        """Answer the pulls at the begin of a herd that get the last woken pull's answer; the rest stays."""
        herd = self._last
        if herd is None or TERMS(pulls[0]) != herd.terms:
            return
        _terms, alike = next(groupby(pulls, TERMS))
        ran = list(alike)
        for _pull in ran:
            self.runtime.step("run")
        # Only now, because the step point is before the read.
        if self._herd_key(ran[0]) != herd.key:
            return
        for _channel, of_channel in groupby(ran, CHANNEL):
            self._answer_herd(list(of_channel), herd, outbox)

    def forget_last(self) -> None:
        """Release the last answer's slices of the log, before the store closes.

        A pull running on another thread may restore the old answer, but no later pull has its key.
        """
        self._since = object()
        self._last = None

    def _herd_key(self, pull: Pull) -> HerdKey | None:
        """Returns the key shared by pulls with the same answer; None if that is not easily known.

        One message wakes pulls with equal keys. The contents between a queue's ends do not change while these and the
        log's start stay. Groups, topics and filters are replaced, never changed.
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
        """Answer pulls of one channel like the last one."""
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


@define(slots=True, eq=False)
class HerdExecutor(InlineExecutor):
    """Runs pulls on the caller's thread, equal ones together."""

    run_alike: Callable[[Sequence[Pull], Outbox], None] = field(kw_only=True)
    """Runs the pulls at the begin of a herd that get the last woken pull's answer; the others stay QUEUED."""

    def _run_herd(self, pulls: Sequence[Pull], outbox: Outbox) -> int:
        """Run pulls that one message woke; returns the cost."""
        cost = len(pulls)
        for at, pull in enumerate(pulls):
            if pull.phase is QUEUED:
                with KeepGoing(log, "pulls that one message woke cannot be answered together"):
                    self.run_alike(pulls[at:], outbox)
            if pull.phase is QUEUED:
                self._run(pull, "woken", outbox)
                cost += RUN_COST - 1
        return cost
