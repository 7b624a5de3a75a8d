"""The schema of a recorded history: what an event is, and nothing about who writes or reads it.

A history is a directory of part files (`part-*.ndjson`, one event a line, or `part-*.parquet`, one event a row) and one
`meta.json`. An event's moment is the interval [after_ns, before_ns]: it happened after the one and before the other,
so an observer that cannot see the exact moment stays honest. Times are nanoseconds of the source's clock plus the
source's `offset_ns` of `meta.json`, which puts every source on Unix time; `uncertainty_ns` widens every interval of a
source on both sides.

Black-box events are what a proxy could see; white-box events carry the names of the law's actions and are what only
the broker itself can see. Five rules make a history judgeable:

1. A source is one life of one observer: a restarted broker is a new source with a new name, so that `sequence` counts
   0, 1, 2, ... through each source and a request's identifier is never used twice.
2. An observer starts with `source_started` and ends with `source_stopped`, which is its last event; without the latter
   the history counts as cut off.
3. Whatever is dropped is declared by a `lost` event (it takes a sequence number; the dropped events take none), whose
   interval holds the moments of all that it stands for. An undeclared gap is damage.
4. An answer to a request that names a queue carries that request's broker, topic and queue.
5. Offsets that were visible before the source started are told by one `make_visible` a queue right after the start.

An excerpt holds the events that one finding rests on. What it leaves out was recorded: an `omitted` event stands for
`lost_count` events, numbered from its own `sequence` on, and its `cause` is the clause that the excerpt shows to be
broken. It is asked nothing but that clause, so an excerpt can convict and never acquit.

Leaves out file handling (`longpoll_recorder.recorder` writes, `longpoll_judge.read.source` reads).
"""

from __future__ import annotations

from typing import Final, Literal, get_args

import msgspec

from longpoll_spec.tables import with_table

FORMAT_VERSION: Final = 1
ABSENT: Final = 1 - (1 << 61)
"""In a column of numbers without nulls, a field of an answer to a pull that the event does not have: -1 is a value."""
META_FILE: Final = "meta.json"
PART_GLOB: Final = "part-*.ndjson"
"""The parts that a recorder writes."""
NDJSON_SUFFIX: Final = ".ndjson"
PARQUET_SUFFIX: Final = ".parquet"
PART_SUFFIXES: Final = (NDJSON_SUFFIX, ".ndjson.zst", PARQUET_SUFFIX)
"""The kinds of parts that can be judged."""
PART_FILES: Final = "part-*"
"""Every part, of whatever kind."""

BlackBox = Literal[
    "source_started",
    "connection_opened",
    "request_received",
    "answer_sent",
    "message_acknowledged",
    "message_seen",
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
    """One event. A field that an event does not have is left at its default and not written.

    `after_ns`, `before_ns`: int64 nanoseconds, after_ns <= before_ns. `sequence`: int64, 0, 1, 2, ... per source, so
    that a gap shows. `request`: an identifier that is unique within the source for the source's whole life.
    """

    event: str
    """One of BLACK_BOX or WHITE_BOX."""
    after_ns: int
    before_ns: int
    source: str
    """Who saw it: a key of `meta.json`'s sources."""
    sequence: int
    broker: str = ""
    topic: str = ""
    queue: int = -1
    request: str = ""
    connection: str = ""

    code: int = -1
    """request_received: the request code; answer_sent: the response code."""
    direction: str = ""
    """blocked and unblocked, of a connection: `answers` when its client does not read what it is sent, `requests` when
    its broker does not read what it is asked. Between the two the observer saw bytes wait in that direction."""
    group: str = ""
    """request_received of a pull, and of a query or an update of a committed offset: the consumer group."""
    offset: int = -1
    """request_received of a pull: the first queue offset asked for; answer_sent to a query of a committed offset: that
    offset; a step of the law: the next offset that the request's consumer reads."""
    commit_offset: int = -1
    """request_received of a pull that commits, and of a request to store an offset: the offset to be committed."""
    count_max: int = -1
    """request_received of a pull: the most messages asked for."""
    may_hold: bool | None = None
    """request_received of a pull: whether the suspend bit is set; None where that is not known."""
    timeout_ms: int = -1
    """request_received of a pull: suspendTimeoutMillis; the deadline is receipt plus this."""
    expression_type: str = ""
    """request_received of a pull: TAG or SQL92; empty when no subscription is known."""
    expression: str = ""
    """request_received of a pull: the subscription expression that the broker applies, for instance `*` or `a || b`."""

    offset_next: int = ABSENT
    """answer_sent to a pull: nextBeginOffset."""
    offset_min: int = ABSENT
    """answer_sent to a pull: minOffset."""
    offset_max: int = ABSENT
    """answer_sent to a pull: maxOffset."""
    offsets: list[int] = []
    """answer_sent to a pull: the queue offset of every message in the body, in order."""
    actors: str = ""
    """An action of the law, in a history that declares its law: who takes part, as the law's labels name them, for
    instance `0` or `scanner,q1`; `?` for one that the observer does not know, empty for all of them unknown."""
    cause: str = ""
    """answer_sent to a pull: why it was sent now: immediate, woken, expired, busy, thrown, stopped or error; omitted:
    the clause that the excerpt is of."""

    queue_offset: int = -1
    """append, message_acknowledged and message_seen: the message's queue offset. `request` of message_acknowledged is
    the send that was answered so, where the observer knows it."""
    tag: str = ""
    """append, message_acknowledged and message_seen: the message's tag; empty when it has none."""
    visible_end: int = -1
    """make_visible: the new visible end (RocketMQ's maxOffset); hold, take, keep, recheck: the end that was seen."""
    lost_count: int = 0
    """lost: how many events were not recorded; omitted: how many that were recorded are left out."""

    ids: list[int] = []
    """Who each message is, as 60 bits of its unique id; 0 for a message without one. request_received of a send: its
    messages in order; message_acknowledged, message_seen and append: that message; answer_sent to a pull: one for each
    of `offsets`; request_received of the end of a transaction (37): the prepared message."""
    bodies: list[int] = []
    """What each of these messages holds: CRC-32 of its body as it travels; -1 where that is not known."""
    delay_ms: int = -1
    """request_received of a send: how long after its receipt its messages may be delivered, where it says so itself."""
    delay_level: int = -1
    """The same as one of the broker's levels, 1 being the first."""
    transaction: str = ""
    """request_received: `prepared` of a send; `commit`, `rollback` or `unknown` of the end of a transaction (37)."""


@with_table
class Source(msgspec.Struct, frozen=True, kw_only=True):
    """One observer and its clock."""

    name: str
    clock: str
    """For instance `monotonic` or `unix`."""
    offset_ns: int = 0
    """Add this to the source's times to get Unix time in nanoseconds."""
    uncertainty_ns: int = 0
    """Half the width by which every interval of this source is widened."""
    hold_limit: int = -1
    """Most pulls that the broker may hold at once, where it says so; -1 where nothing is known of a limit."""


@with_table
class Law(msgspec.Struct, frozen=True, kw_only=True):
    """Says that each source writes the steps of one run of the law, from its first state, and in which world."""

    requests: int
    """Request slots: most pulls that are under way at once."""
    queues: int = 1
    tags: int = 1
    hold_ticks: int = 1
    scan_ticks: int = 2
    aspects: list[str] = []
    hidden: list[str] = []
    """Actions of the law, or instances such as `recheck(scanner)`, that the sources do not always write: any number of
    them may have happened between two events."""


@with_table
class Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `meta.json`."""

    format_version: int
    sources: list[Source]
    policy: str = ""
    """The broker's policy where it is known: a preset, and `+KNOB=VALUE` for each knob that is set otherwise."""
    law: Law | None = None
    """Given by histories of steps, which are judged against the law itself."""


FIELD_TYPES: Final[dict[str, type]] = {
    "event": str,
    "after_ns": int,
    "before_ns": int,
    "source": str,
    "sequence": int,
    "broker": str,
    "topic": str,
    "queue": int,
    "request": str,
    "connection": str,
    "code": int,
    "direction": str,
    "group": str,
    "offset": int,
    "commit_offset": int,
    "count_max": int,
    "may_hold": bool,
    "timeout_ms": int,
    "expression_type": str,
    "expression": str,
    "offset_next": int,
    "offset_min": int,
    "offset_max": int,
    "offsets": list,
    "actors": str,
    "cause": str,
    "queue_offset": int,
    "tag": str,
    "visible_end": int,
    "lost_count": int,
    "ids": list,
    "bodies": list,
    "delay_ms": int,
    "delay_level": int,
    "transaction": str,
}
"""Every field of `Event` in order, with its Python type; lists are of int."""
