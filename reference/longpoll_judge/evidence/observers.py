"""The observers: where each source begins and ends, whether it was inside a broker, and which topics were deleted.

Each split is surveyed separately, and the results can be merged in any order. `survey` finds the gaps within a source.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import NEVER, Booleans, Integers, are_of, is_one_of
from longpoll_judge.contract.clause import SEND_CODES
from longpoll_judge.contract.result import Gap
from longpoll_judge.read.schema import NAMES, are_named, coded, coded_texts, has_column, integers_of, lists_of
from longpoll_judge.read.source import History
from longpoll_spec.errors import SpecUserError
from longpoll_spec.history import WHITE_BOX
from longpoll_spec.policy import Policy, policy_named
from longpoll_spec.tables import with_table

DELETE_TOPIC: Final = 215
"""The code of DELETE_TOPIC_IN_BROKER, after which new generations of the topic's queues begin."""
ENDS_MAX: Final = 10
"""The maximum number of repeated starts or stops that a split reports."""
NEEDED: Final = {
    "request_received": ("code",),
    "answer_sent": ("code", "request"),
    "message_acknowledged": ("topic", "queue", "queue_offset"),
    "message_seen": ("topic", "queue", "queue_offset"),
    "message_popped": ("topic", "queue", "queue_offset", "request"),
    "append": ("topic", "queue", "queue_offset"),
    "make_visible": ("topic", "queue", "visible_end"),
    "connection_opened": ("connection",),
    "connection_closed": ("connection",),
    "lost": ("lost_count",),
    "omitted": ("lost_count", "cause"),
} | dict.fromkeys(("hold", "recheck", "take", "keep", "expire", "run", "stop"), ("topic", "queue", "request"))
"""Fields that each event always needs. The fields that pulls need are checked together with their answers (`case`)."""
Deletion = tuple[str, str, int, int]
"""A request to delete a topic: (source, topic, after_ns, before_ns). An empty topic means any topic."""


@with_table
class Seen(msgspec.Struct):
    """The evidence about one source."""

    starts: list[int] = msgspec.field(default_factory=list)
    """Sequence numbers of the source's `source_started` events."""
    stops: list[int] = msgspec.field(default_factory=list)
    last: int = -1
    """The highest sequence number of the source's events."""
    inside: int = 0
    """The number of this source's events that only an observer inside a broker can record."""
    requests: int = 0
    missing: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of events that lack a required field, by event and field."""
    acknowledged: int = 0
    appended: int = 0


@with_table
class Observers(msgspec.Struct):
    """The evidence about all sources."""

    sources: dict[str, Seen] = msgspec.field(default_factory=dict)
    sends: int = 0
    """The number of sends that have an identifier."""
    acknowledged: int = 0
    appended: int = 0
    min_least: int = NEVER
    """The lowest `offset_min` in any answer; `NEVER` if no answer has one."""
    min_most: int = -1
    moved: int = 0
    """How often a change of a queue's visible end was recorded."""
    identified: int = 0
    """The number of events that identify their messages."""


def attend(table: pa.Table, missing: Mapping[str, Booleans]) -> Observers:
    """Survey the observers in one split. `missing` has masks of the events that lack a field (`lacking`)."""
    found = Observers()
    codes, names = coded(table, "event")
    sources, source_names = coded(table, "source")
    # Count the events by name in a matrix with one row for each source.
    places = sources.astype(np.int64) * len(names) + codes if len(source_names) > 1 else codes
    counts = np.bincount(places, minlength=len(names) * len(source_names)).reshape(-1, len(names))
    count_of = dict(zip(names, counts.sum(axis=0).tolist(), strict=True))
    found.acknowledged = count_of.get("message_acknowledged", 0)
    found.appended, found.moved = count_of.get("append", 0), count_of.get("make_visible", 0)
    if has_column(table, "offset_min"):
        found.min_least, found.min_most = _ends_of_told(integers_of(table, "offset_min"))
    found.identified = int(np.count_nonzero(np.diff(lists_of(table, "ids")[0])))
    sequence = integers_of(table, "sequence")
    is_start, is_stop = are_of(codes, names, {"source_started"}), are_of(codes, names, {"source_stopped"})
    wanted_names = (list(WHITE_BOX), ["request_received"], ["message_acknowledged"], ["append"])
    is_inside, is_request, is_told, is_append = (np.isin(names, wanted) for wanted in wanted_names)
    for code in np.flatnonzero(counts.any(axis=1)).tolist():
        mine: Any = sources == code if len(source_names) > 1 else slice(None)
        found.sources[source_names[code]] = Seen(
            starts=sequence[mine][is_start[mine]][:ENDS_MAX].tolist(),
            stops=sequence[mine][is_stop[mine]][:ENDS_MAX].tolist(),
            last=int(sequence[mine].max()),
            inside=int(counts[code][is_inside].sum()),
            requests=int(counts[code][is_request].sum()),
            acknowledged=int(counts[code][is_told].sum()),
            appended=int(counts[code][is_append].sum()),
            missing={text: int(np.count_nonzero(flags[mine])) for text, flags in missing.items()},
        )
    rows = np.flatnonzero(are_of(codes, names, {"request_received"}))
    requested = integers_of(table, "code")[rows]
    found.sends = int(np.count_nonzero(is_one_of(requested, SEND_CODES)))
    return found


def _ends_of_told(values: Integers) -> tuple[int, int]:
    """Returns the lowest and the highest non-negative value; `NEVER` and -1 if all values are negative."""
    most = int(values.max(initial=-1))
    # As unsigned numbers, negative values are the highest, so the minimum ignores them.
    return (int(values.view(np.uint64).min()), most) if most >= 0 else (NEVER, -1)


def lacking(table: pa.Table, codes: NDArray[np.int32], names: list[str]) -> dict[str, Booleans]:
    """Returns, by event and field, a mask of the events that lack the field.

    `codes` and `names` encode the column `event`.
    """
    found: dict[str, Booleans] = {}
    untold: dict[str, Booleans] = {}
    for event in sorted(NEEDED.keys() & set(names), key=list(NEEDED).index):
        is_event = codes == names.index(event)
        for name in NEEDED[event] if is_event.any() else ():
            if name not in untold:
                untold[name] = _are_untold(table, name)
            # Compare the whole column in order, which is faster than first selecting the rows of one event.
            lacks = is_event & untold[name]
            if lacks.any():
                found[f"{event} without {name}"] = lacks
    return found


def _are_untold(table: pa.Table, name: str) -> Booleans:
    if name in NAMES:
        codes, texts = coded_texts(table, name)
        empty = np.flatnonzero(~are_named(texts))
        return is_one_of(codes, empty.tolist())
    lacks: Booleans = integers_of(table, name) < (name == "lost_count")
    return lacks


def field_gaps(observers: Observers, lawful: Iterable[str]) -> list[Gap]:
    """Returns a gap for each required field that events lack.

    Histories of steps are skipped, because their events need no fields.
    """
    counts: Counter[str] = Counter()
    for name, seen in observers.sources.items():
        counts.update(seen.missing if name not in lawful else {})
    return [Gap("field missing", text, count, f"{count} events: {text}") for text, count in sorted(counts.items())]


def observer_gaps(observers: Observers, history: History, policies: Iterable[str]) -> list[Gap]:
    """Returns a gap for each source that is missing, does not begin or end properly, or names an unknown policy."""
    gaps = []
    for name, seen in sorted(observers.sources.items()):
        if name in history.laws:
            continue
        if seen.starts != [0]:
            lacks = "does not begin with source_started: what came before its first event is not known"
            text = _fault("source_started", seen.starts, lacks, "not as its first event")
            gaps.append(Gap("source start", name, len(seen.starts), f"source {name!r} {text}"))
        if seen.stops != [seen.last]:
            lacks = "breaks off without source_stopped: what came after its last event is not known"
            text = _fault("source_stopped", seen.stops, lacks, f"and events up to {seen.last}")
            gaps.append(Gap("source end", name, len(seen.stops), f"source {name!r} {text}"))
    for name in sorted(history.declared_sources - observers.sources.keys()):
        text = f"source {name!r} stands in meta.json, and no event of it is there"
        gaps.append(Gap("source silent", name, 0, text))
    for text in sorted(policies):
        try:
            policy_named(text)
        except SpecUserError as error:
            gaps.append(Gap("unknown policy", text, 1, f"meta.json names a policy that nobody knows: {error}"))
    return gaps


def _fault(event: str, sequences: Sequence[int], lacks: str, misplaced: str) -> str:
    """Returns why a source's start or stop event, which must occur exactly once, is missing, repeated or misplaced."""
    if not sequences:
        return lacks
    if len(sequences) > 1:
        return f"has {event} {len(sequences)} times"
    return f"has {event} with sequence {sequences[0]}, {misplaced}"


def are_own(policies: Iterable[str]) -> bool:
    """Whether at least one policy is named, and all named policies were designed by this project."""
    names = [text.split("+")[0] for text in policies]
    return bool(names) and all(name in {"strict", "strict-clone"} for name in names)


def stops_silently(policies: Iterable[str]) -> bool:
    """Whether at least one policy is named, and all of them leave held pulls unanswered when the broker stops."""
    return _all_are(policies, lambda policy: policy.on_stop == "silent")


def answers_on_stop(policies: Iterable[str]) -> bool:
    """Whether at least one policy is named, and all of them answer held pulls when the broker stops."""
    return _all_are(policies, lambda policy: policy.on_stop == "answer")


def keeps_role(policies: Iterable[str]) -> bool:
    """Whether at least one policy is named, and none of them answers a held pull when a role changes."""
    return _all_are(policies, lambda policy: "answer" not in {policy.on_role_change, policy.on_master_return})


def _all_are(policies: Iterable[str], question: Callable[[Policy], bool]) -> bool:
    """Whether at least one policy is named, all are known, and `question` is true for each."""
    try:
        found = [question(policy_named(text)) for text in policies]
    except SpecUserError:
        return False
    return bool(found) and all(found)
