"""History events about pulls, from request to answer, and about visible ends.

`PullEvents` records nothing; callers report every event without checking whether the broker records.
`RecordedPullEvents` writes the events.

Sends: see `send.send_events`. Format of a history: see `longpoll_recorder`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from attrs import define

from longpoll_broker.hold.hold_table import Cause, Pull
from longpoll_broker.hold.pull import FLAG_SUSPEND, Refused
from longpoll_broker.io.channel import Channel, Outbox
from longpoll_broker.shared.filters import Filter, is_as_said
from longpoll_broker.store.messages import Arrival
from longpoll_broker.store.read import GetResult
from longpoll_protocol.codes import CommandFlag
from longpoll_recorder.offsets import kept
from longpoll_recorder.recorder import HistoryRecorder

ONE_WAY = CommandFlag.ONE_WAY.value


class PullEvents:
    """Records nothing. `after_ns` is always a time of `now_ns` before the event began."""

    __slots__ = ()

    def now_ns(self) -> int:
        """Returns the clock's time; 0 when nothing is recorded."""
        return 0

    def received(self, pull: Pull, received_ns: int, wanted: Filter | Refused, commit_offset: int) -> None:
        """A pull arrived. `wanted` is the result of its checks; `commit_offset` is -1 if it commits nothing."""

    def held(self, pull: Pull, after_ns: int) -> None:
        """The pull was inserted into the table."""

    def rechecked(self, pull: Pull, after_ns: int, visible_end: int) -> None:
        """The visible end was rechecked for a pull that had just been held."""

    def taken(self, pulls: Iterable[Pull], after_ns: int, visible_end: int) -> None:
        """A traversal took these pulls out of the table."""

    def kept(self, pulls: Iterable[Pull], after_ns: int, visible_end: int) -> None:
        """A traversal put these pulls back."""

    def expired(self, pulls: Iterable[Pull], after_ns: int) -> None:
        """The deadlines of these pulls passed."""

    def stopped(self, pulls: Iterable[Pull], after_ns: int) -> None:
        """The shutdown removed these pulls from the table."""

    def ran(self, pull: Pull, after_ns: int) -> None:
        """A pull that left the table was decided again."""

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        """An answer is about to be queued in the outbox; `read` is its read, None for a refusal."""

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        """The queues' visible ends moved past these messages."""

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """The visible ends before the broker serves requests: topic, queue id, visible end."""


@define(slots=True, eq=False)
class RecordedPullEvents(PullEvents):
    """Writes every event to the recorder."""

    recorder: HistoryRecorder

    def now_ns(self) -> int:
        """Returns the time of the recorder's clock."""
        return self.recorder.now_ns()

    def received(self, pull: Pull, received_ns: int, wanted: Filter | Refused, commit_offset: int) -> None:
        """Write `request_received`, except for a one-way pull, which needs no answer."""
        if pull.flag & ONE_WAY:
            return
        known = None if isinstance(wanted, Refused) or not is_as_said(wanted) else wanted
        self.recorder.put(
            "request_received",
            received_ns,
            **_place(pull),
            code=11,
            group=pull.group,
            offset=kept(pull.offset),
            count_max=pull.count_max,
            may_hold=bool(pull.sys_flag & FLAG_SUSPEND),
            timeout_ms=kept(pull.timeout_ms),
            expression_type=known.expression_type if known else "",
            expression=known.expression if known else "",
            commit_offset=kept(commit_offset),
        )

    def held(self, pull: Pull, after_ns: int) -> None:
        """Write `hold`."""
        self.recorder.put("hold", after_ns, **_place(pull), visible_end=kept(pull.offset))

    def rechecked(self, pull: Pull, after_ns: int, visible_end: int) -> None:
        """Write `recheck`."""
        self.recorder.put("recheck", after_ns, **_place(pull), visible_end=visible_end)

    def taken(self, pulls: Iterable[Pull], after_ns: int, visible_end: int) -> None:
        """Write one `take` per pull."""
        for pull in pulls:
            self.recorder.put("take", after_ns, **_place(pull), visible_end=visible_end)

    def kept(self, pulls: Iterable[Pull], after_ns: int, visible_end: int) -> None:
        """Write one `keep` per pull."""
        for pull in pulls:
            self.recorder.put("keep", after_ns, **_place(pull), visible_end=visible_end)

    def expired(self, pulls: Iterable[Pull], after_ns: int) -> None:
        """Write one `expire` per pull."""
        for pull in pulls:
            self.recorder.put("expire", after_ns, **_place(pull))

    def stopped(self, pulls: Iterable[Pull], after_ns: int) -> None:
        """Write one `stop` per pull."""
        for pull in pulls:
            self.recorder.put("stop", after_ns, **_place(pull))

    def ran(self, pull: Pull, after_ns: int) -> None:
        """Write `run`."""
        self.recorder.put("run", after_ns, **_place(pull))

    def answered(self, pull: Pull, code: int, read: GetResult | None, cause: Cause, outbox: Outbox) -> None:
        """Write `answer_sent` when the answer has been handed to the socket."""
        if pull.flag & ONE_WAY:
            return
        fields = _place(pull) | {"code": code, "cause": cause}
        if read is not None:
            fields |= {
                "offset_next": kept(read.offset_next),
                "offset_min": read.offset_min,
                "offset_max": read.offset_max,
                "offsets": list(read.offsets),
            }
        after_ns = self.recorder.now_ns()
        outbox.after_answer(_channel(pull), lambda: self.recorder.put("answer_sent", after_ns, **fields))

    def made_visible(self, arrivals: Iterable[Arrival], after_ns: int) -> None:
        """Write one `make_visible` per message, all with the same `before_ns`."""
        before_ns = self.recorder.now_ns()
        for arrival in arrivals:
            self.recorder.put(
                "make_visible",
                after_ns,
                before_ns=before_ns,
                topic=arrival.topic,
                queue=arrival.queue_id,
                visible_end=arrival.offset_end,
            )

    def visible_from_start(self, ends: Iterable[tuple[str, int, int]]) -> None:
        """Write one `make_visible` per queue."""
        after_ns = self.recorder.now_ns()
        for topic, queue_id, visible_end in ends:
            self.recorder.put("make_visible", after_ns, topic=topic, queue=queue_id, visible_end=visible_end)


def _channel(pull: Pull) -> Channel:
    channel = pull.channel
    assert isinstance(channel, Channel)
    return channel


def _place(pull: Pull) -> dict[str, Any]:
    number = str(_channel(pull).number)
    return {
        "topic": pull.topic,
        "queue": pull.queue_id,
        "request": f"{number}-{pull.number}",
        "connection": number,
    }
