"""The schema of a recorded history: its events and its metadata.

A history is a directory of part files (`part-*.ndjson`, one event a line, or `part-*.parquet`, one event a row) and one
`meta.json`. The time of an event is the interval [after_ns, before_ns]: the event happened between these times, because
an observer may not know the exact time. Times are nanoseconds of the source's clock. Adding the source's `offset_ns`
from `meta.json` gives Unix time; `uncertainty_ns` widens every interval of a source on both sides.

Black-box events are those that a proxy can observe. White-box events carry the names of the specification's actions,
which only the broker itself can observe. Five rules make a history judgeable:

1. A source is one process lifetime of one observer: a restarted broker is a new source with a new name, so
   `sequence` counts 0, 1, 2, ... within each source and request identifiers are never reused.
2. A source starts with `source_started` and ends with `source_stopped`, its last event; without
   `source_stopped` the history counts as cut off.
3. Dropped events are declared by a `lost` event, which takes one sequence number while the dropped events take none.
   The interval of a `lost` event contains the times of all dropped events. An undeclared gap is damage.
4. An answer to a request that names a queue carries that request's broker, topic and queue.
5. Offsets that were visible before the source started are declared by one `make_visible` per queue right after the
   start.

An excerpt holds the events behind one finding. An `omitted` event replaces `lost_count` recorded events that the
excerpt leaves out; the first of these has the `sequence` of the `omitted` event. The `cause` of the `omitted` event is
the clause that the excerpt shows to be broken. The judge checks only this clause, so an excerpt can show a violation
but never that a history has none.

`longpoll_recorder.recorder` writes histories, and `longpoll_judge.read.source` reads them.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args, get_origin

import msgspec

from longpoll_spec.tables import with_table

FORMAT_VERSION: Final = 1
ABSENT: Final = 1 - (1 << 61)
"""The value of a missing field of a pull's answer, because integer columns have no nulls and -1 is a valid value."""
META_FILE: Final = "meta.json"
PART_GLOB: Final = "part-*.ndjson"
"""Matches the files of events that a recorder writes."""
NDJSON_SUFFIX: Final = ".ndjson"
PARQUET_SUFFIX: Final = ".parquet"
PART_SUFFIXES: Final = (NDJSON_SUFFIX, ".ndjson.zst", PARQUET_SUFFIX)
"""The suffixes of the files of events that the judge can read."""
PART_FILES: Final = "part-*"
"""Matches files of events with any suffix."""

BlackBox = Literal[
    "source_started",
    "connection_opened",
    "request_received",
    "answer_sent",
    "message_acknowledged",
    "message_seen",
    "message_popped",
    "connection_closed",
    "blocked",
    "unblocked",
    "lost",
    "omitted",
    "source_stopped",
]
WhiteBox = Literal["append", "make_visible", "hold", "recheck", "take", "keep", "expire", "run", "stop"]
BLACK_BOX: Final[tuple[str, ...]] = get_args(BlackBox)
WHITE_BOX: Final[tuple[str, ...]] = get_args(WhiteBox)


@with_table
class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """One event. Fields that an event does not have keep their defaults and are not written.

    The docstring of a field names the events that have the field, then a colon, then its meaning in these events.
    `after_ns`, `before_ns`: int64 nanoseconds, after_ns <= before_ns. `sequence`: int64, 0, 1, 2, ... per source, so
    that gaps show. `request`: an identifier that is unique within the source.
    """

    event: str
    """The kind of event: one of BLACK_BOX or WHITE_BOX."""
    after_ns: int
    before_ns: int
    source: str
    """The observer: a key of `meta.json`'s sources."""
    sequence: int
    broker: str = ""
    topic: str = ""
    queue: int = -1
    request: str = ""
    connection: str = ""

    code: int = -1
    """request_received: the request code; answer_sent: the response code."""
    direction: str = ""
    """blocked and unblocked, of a connection: `answers` if its client does not read the answers, `requests` if its
    broker does not read the requests. Between the two events, bytes waited in that direction."""
    group: str = ""
    """request_received of a pull, of a query or an update of a committed offset, and of a request about pops;
    message_popped: the consumer group.
    """
    offset: int = -1
    """request_received of a pull: the first queue offset requested; answer_sent to a query of a committed offset: that
    offset; an action: the next offset that the request's consumer reads.
    """
    commit_offset: int = -1
    """request_received of a pull that commits, and of an offset update: the offset to be committed."""
    count_max: int = -1
    """request_received of a pull or a pop: the most messages requested."""
    may_hold: bool | None = None
    """request_received of a pull: whether the suspend bit is set; of a pop or a notification: whether it has a time to
    wait; None if unknown.
    """
    timeout_ms: int = -1
    """request_received of a pull: suspendTimeoutMillis; of a pop or a notification: the part of its pollTime that is
    left at the receipt. The deadline is the time of the receipt plus `timeout_ms`."""
    expression_type: str = ""
    """request_received of a pull or a pop: TAG or SQL92; empty if no subscription is known."""
    expression: str = ""
    """request_received of a pull: the subscription expression that the broker applies, such as `*` or `a || b`."""

    offset_next: int = ABSENT
    """answer_sent to a pull: nextBeginOffset."""
    offset_min: int = ABSENT
    """answer_sent to a pull: minOffset."""
    offset_max: int = ABSENT
    """answer_sent to a pull: maxOffset."""
    offsets: list[int] = []
    """answer_sent to a pull: the queue offset of every message in the body, in order."""
    actors: str = ""
    """An action, in a history that declares its model (`law`): the actors as in the action's label, such as `0` or
    `scanner,q1`; `?` for an unknown actor, empty if all are unknown."""
    cause: str = ""
    """answer_sent to a pull: why it was sent now: immediate, woken, expired, busy, thrown, stopped or error; to a
    notification: woken, busy or expired. omitted: the clause that the excerpt shows to be broken. request_received of
    an orderly pop: orderly. message_popped, and request_received of an acknowledgement of a pop or of a change of its
    invisible time: retry, if queue and offset are those of the group's retry topic.
    """

    queue_offset: int = -1
    """append, message_acknowledged, message_seen, message_popped, and request_received of an acknowledgement of a pop
    or of a change of its invisible time: the message's queue offset. In message_acknowledged, `request` is the send
    that is answered, if known."""
    tag: str = ""
    """append, message_acknowledged, message_seen and message_popped: the message's tag; empty if the message has no
    tag."""
    visible_end: int = -1
    """make_visible: the new visible end (RocketMQ's maxOffset); hold, take, keep, recheck: the end that was read."""
    lost_count: int = 0
    """lost: the number of unrecorded events; omitted: the number of recorded events that are left out."""

    ids: list[int] = []
    """Each message's identity: 60 bits of its unique id; 0 for a message without one. request_received of a send: its
    messages in order; message_acknowledged, message_popped and append: that message; answer_sent to a pull: one for
    each of `offsets`; request_received of the end of a transaction (37): the prepared message.
    """
    bodies: list[int] = []
    """For each message in `ids`, the CRC-32 of its body on the wire; -1 if unknown."""
    delay_ms: int = -1
    """request_received of a send: the delay from receipt to delivery, if the send sets one; of a pop and of a change of
    its invisible time, and message_popped: the invisible time.
    """
    delay_level: int = -1
    """The delay of `delay_ms` as one of the broker's delay levels, from 1."""
    transaction: str = ""
    """request_received: `prepared` of a send; `commit`, `rollback` or `unknown` of the end of a transaction (37)."""


@with_table
class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One observer of a history, and its clock."""

    name: str
    clock: str
    """The kind of clock, such as `monotonic` or `unix`."""
    offset_ns: int = 0
    """Add this to the source's times to get Unix time in nanoseconds."""
    uncertainty_ns: int = 0
    """Nanoseconds by which every interval of this source is widened on each side."""
    hold_limit: int = -1
    """The maximum number of pulls that the broker may hold at once, if it declares a limit; -1 if unknown."""


@with_table
class Law(msgspec.Struct, frozen=True, kw_only=True):
    """Declares that each source writes the steps of one run of the specification from its first state."""

    requests: int
    """The number of request slots, which is the greatest number of pulls in progress at once."""
    queues: int = 1
    tags: int = 1
    hold_ticks: int = 1
    scan_ticks: int = 2
    aspects: list[str] = []
    hidden: list[str] = []
    """Actions, or instances such as `recheck(scanner)`, that the sources do not record, so that any number of them may
    have happened between two events.
    """


@with_table
class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `meta.json`."""

    format_version: int
    sources: list[Source]
    policy: str = ""
    """The broker's policy if known: a preset, and `+KNOB=VALUE` for each changed knob."""
    law: Law | None = None
    """Present if the history records the steps of runs, which are checked directly against the specification."""


def _plain(kind: Any) -> type:
    known = {kind, get_origin(kind), *get_args(kind)}
    return next(each for each in (bool, list, int, str) if each in known)


FIELD_TYPES: Final[dict[str, type]] = {each.name: _plain(each.type) for each in msgspec.structs.fields(Event)}
"""Maps each field of `Event` to its Python type, in order; the elements of lists are int."""
