"""Reads a history for the second judge: puts times on a common clock, and collects gaps and doubtful clocks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any, Final

from attrs import define, field, frozen
from model_tests.judge.second.observer import DEFAULTS
from model_tests.judge.second.parts import DELETE_TOPIC, MS, java_hash

from longpoll_spec.history import BLACK_BOX, WHITE_BOX
from longpoll_spec.policy import PRESETS

PULLS: Final = (11, 361)
SENDS: Final = (10, 310, 320)
SENT_BACK: Final = ("%RETRY%", "%DLQ%")
"""Prefixes of topics to which the broker adds the messages that a consumer sends back (CONSUMER_SEND_MSG_BACK, 36)."""
QUERY, UPDATE = 14, 15
RESETS: Final = (207, 215, 222, 314)
READS: Final = (0, 19, 20, 21)
"""Response codes of a pull for which the broker has read its store."""
LAW_EVENTS: Final = frozenset(WHITE_BOX)
WAKE_NS: Final = 100 * MS
LATE_NS: Final = 50 * MS
CLOCK_STEP_NS: Final = 1_000 * MS
"""A clock went back if an event is this much earlier than an event with a lower number."""
DISORDER_NS: Final = 50 * MS
"""The largest time between a missing event and the events whose numbers are next to its number."""
FAR: Final = 1 << 62
NO_WIDTH: Final = 1 << 61
"""An interval of this width or more counts as damage."""
Queue = tuple[str, str, int]
NOBODYS: Final[Queue] = ("", "", -2)
"""The queue of an answer that matches several requests."""


class Seen:
    """One event, which happened between `lo` and `hi` (Unix nanoseconds, widened by its source's uncertainty).

    The event's fields are attributes, with their defaults if they are missing.
    """

    def __init__(self, fields: Mapping[str, Any], lo: int, hi: int) -> None:
        self.__dict__.update(DEFAULTS)
        self.__dict__.update(fields)
        self.fields = fields
        self.lo = lo
        self.hi = hi
        self.place: Queue = (self.broker, self.topic, self.queue)
        self.about = (self.source, self.request)
        self.line = (self.source, self.connection)
        self.is_nobodys = False

    def __getattr__(self, name: str) -> Any:
        return None


def is_sent_back(topic: str) -> bool:
    """Whether the broker itself adds messages to this topic, so that an older message may have the id of a new send."""
    return topic.startswith(SENT_BACK)


def before(one: Seen, other: Seen) -> bool:
    return one.hi < other.lo


@frozen
class Hole:
    source: str
    lo: int
    hi: int


@define
class Record:
    events: list[Seen] = field(factory=list)
    gaps: list[str] = field(factory=list)
    """The ids of the clauses about evidence that the history violates."""
    policies: list[str] = field(factory=list)
    limits: dict[str, int] = field(factory=dict)
    holes: list[Hole] = field(factory=list)
    jumped: set[str] = field(factory=set)
    """Sources whose clock jumped, so their times give no order."""
    loose: set[str] = field(factory=set)
    """Sources whose clock may be set, so their durations are unknown."""
    unwatched: dict[tuple[str, bool], list[tuple[int, int]]] = field(factory=dict)
    restarts: dict[str, list[tuple[int, int]]] = field(factory=dict)
    anew: list[tuple[Queue, int, int]] | None = None
    _of: dict[tuple[str, ...], list[Seen]] = field(factory=dict)

    def of(self, *kinds: str) -> list[Seen]:
        if kinds not in self._of:
            self._of[kinds] = [one for one in self.events if one.event in kinds]
        return self._of[kinds]

    def deletions(self) -> list[Seen]:
        if ("215",) not in self._of:
            self._of["215",] = [one for one in self.of("request_received") if one.code == DELETE_TOPIC]
        return self._of["215",]

    def forget(self) -> None:
        self._of.clear()

    def is_whole(self, source: str, lo: int, hi: int) -> bool:
        return not any(one.source == source and one.lo <= hi and lo <= one.hi for one in self.holes)

    def first(self, source: str) -> Seen:
        if ("first", source) not in self._of:
            mine = [one for one in self.events if one.source == source]
            self._of["first", source] = [min(mine, key=lambda one: one.lo)]
        return self._of["first", source][0]

    def last(self, source: str) -> Seen:
        if ("last", source) not in self._of:
            mine = [one for one in self.events if one.source == source]
            self._of["last", source] = [max(mine, key=lambda one: one.lo)]
        return self._of["last", source][0]


def read(meta: Mapping[str, Any], events: Iterable[Mapping[str, Any]]) -> Record:
    """Read a history. Gaps and doubtful clocks are recorded in the result and raise no exception."""
    sources = _declared(meta["sources"])
    record = Record(policies=[meta.get("policy", "")])
    record.limits = {name: one.get("hold_limit", -1) for name, one in sources.items()}
    if meta.get("policy") and meta["policy"].split("+")[0] not in PRESETS:
        record.gaps.append("evidence.unknown_policy")
    good = [_moment(fields, sources) for fields in events if _is_sound(record, fields)]
    unknown = {one.source for one in good} - set(sources)
    record.loose = {name for name, one in sources.items() if one["clock"] != "monotonic"} | unknown
    record.jumped |= unknown
    _look_at_fields(record, _placed(good))
    numbers: dict[str, list[Seen]] = defaultdict(list)
    for one in record.events:
        numbers[one.source].append(one)
    for source in {*sources, *numbers}:
        if source not in sources:
            record.gaps.append("evidence.undeclared_source")
        if source not in numbers:
            record.gaps.append("evidence.source_silent")
        else:
            _look_at_numbers(record, source, sorted(numbers[source], key=lambda one: one.sequence))
    record.events.sort(key=lambda one: (one.lo, one.hi))
    _place_resets(record)
    _look_at_clocks(record)
    if not record.events:
        record.gaps.append("evidence.empty")
    return record


def _declared(sources: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the declared sources by name, or no sources if any of them has an invalid uncertainty."""
    known = {one["name"]: one for one in sources}
    return {} if any(not 0 <= one.get("uncertainty_ns", 0) < NO_WIDTH for one in known.values()) else known


def _place_resets(record: Record) -> None:
    """Assign a deletion without a broker to the only broker of its source; otherwise its broker is unknown."""
    for one in record.of("request_received"):
        if one.code not in RESETS or one.broker:
            continue
        told = {other.broker for other in record.events if other.source == one.source} - {""}
        if len(told) == 1:
            one.__dict__.update(broker=min(told))
        elif told or any(other.broker for other in record.events):
            record.gaps += ["evidence.field_missing"] if one.code == DELETE_TOPIC else []
            record.holes += [Hole(source, one.lo, FAR) for source in {other.source for other in record.events}]


def _is_sound(record: Record, fields: Mapping[str, Any]) -> bool:
    is_there = all(name in fields for name in ("event", "after_ns", "before_ns", "source", "sequence"))
    lists = (number for name in ("offsets", "ids", "bodies") for number in fields.get(name, ()))
    numbers = [*lists, *(value for value in fields.values() if isinstance(value, int))]
    is_odd = not is_there or fields["after_ns"] > fields["before_ns"] or fields["sequence"] < 0
    if is_odd or any(abs(number) >= NO_WIDTH for number in numbers):
        record.gaps.append("evidence.damage")
    elif fields["event"] not in BLACK_BOX and fields["event"] not in LAW_EVENTS:
        record.gaps.append("evidence.unknown_event")
    else:
        return True
    return False


def _moment(fields: Mapping[str, Any], sources: Mapping[str, Any]) -> Seen:
    source = sources.get(fields["source"], {})
    offset, wide = source.get("offset_ns", 0), source.get("uncertainty_ns", 0)
    return Seen(fields, fields["after_ns"] + offset - wide, fields["before_ns"] + offset + wide)


def _placed(events: list[Seen]) -> list[Seen]:
    """Gives each answer without a queue the queue of its request, unless several requests match."""
    places: dict[object, set[Queue]] = defaultdict(set)
    for one in events:
        if one.event == "request_received":
            places[one.about].add(one.place)
    for one in events:
        if one.event == "answer_sent" and one.queue < 0 and one.request:
            asked = places[one.about]
            one.is_nobodys = len(asked) > 1
            if one.is_nobodys:
                one.place = NOBODYS
            elif asked and min(asked)[2] >= 0 and not _names_another(one, min(asked)):
                (one.place,) = asked
    return events


def _names_another(answer: Seen, asked: Queue) -> bool:
    return any(
        told and told != name for told, name in zip((answer.broker, answer.topic), asked[:2], strict=True) if name
    )


def _look_at_numbers(record: Record, source: str, own: list[Seen]) -> None:
    starts = [one.sequence for one in own if one.event == "source_started"]
    stops = [one.sequence for one in own if one.event == "source_stopped"]
    if starts != [0]:
        record.gaps.append("evidence.source_start")
    if stops != [own[-1].sequence]:
        record.gaps.append("evidence.source_end")
        record.holes.append(Hole(source, own[-1].lo - DISORDER_NS, FAR))
    if own[0].sequence > 0:
        record.gaps.append("evidence.sequence_gap")
        record.holes.append(Hole(source, -FAR, own[0].hi + DISORDER_NS))
    latest = own[0].lo
    for one, following in pairwise(own):
        latest = max(latest, one.lo)
        if following.sequence > one.sequence + 1:
            record.gaps.append("evidence.sequence_gap")
            record.holes.append(Hole(source, min(one.lo, following.lo) - DISORDER_NS, following.hi + DISORDER_NS))
        if following.sequence == one.sequence:
            record.gaps.append("evidence.sequence_repeated")
        _compare_moments(record, source, latest - following.hi)
    for one in own:
        if one.event == "lost":
            record.gaps.append("evidence.lost")
            record.holes.append(Hole(source, one.lo, one.hi))


def _compare_moments(record: Record, source: str, back_ns: int) -> None:
    if back_ns > CLOCK_STEP_NS:
        record.gaps.append("evidence.clock_jump")
    if back_ns > (0 if source in record.loose else CLOCK_STEP_NS):
        record.jumped.add(source)


def _look_at_clocks(record: Record) -> None:
    """Record that the order of events is unknown if a broker has several sources and one of their clocks may be set."""
    for broker in {one.broker for one in record.events}:
        tellers = {one.source for one in record.events if one.broker == broker}
        if len(tellers) > 1 and tellers & record.loose:
            record.jumped |= tellers


def _look_at_fields(record: Record, events: list[Seen]) -> None:
    record.events = sorted(events, key=lambda one: one.lo)
    answered = {one.about: one.code for one in reversed(record.of("answer_sent"))}
    asked = {one.about: one for one in record.of("request_received") if one.request}
    record.events = []
    namers = {one.source for one in events if one.broker}
    for one in events:
        is_unnamed = not one.broker and one.queue >= 0 and one.source in namers
        if is_unnamed or any(
            one.fields.get(name, DEFAULTS[name]) == DEFAULTS[name] for name in _needed(one, answered, asked)
        ):
            record.gaps.append("evidence.field_missing")
        else:
            record.events.append(one)
    record.forget()


_NEEDED: Final[Mapping[str, tuple[str, ...]]] = {
    "message_acknowledged": ("topic", "queue", "queue_offset"),
    "message_seen": ("topic", "queue", "queue_offset"),
    "message_popped": ("topic", "queue", "queue_offset", "request"),
    "append": ("topic", "queue", "queue_offset"),
    "make_visible": ("topic", "queue", "visible_end"),
    "blocked": ("connection", "direction"),
    "unblocked": ("connection", "direction"),
    "connection_opened": ("connection",),
    "connection_closed": ("connection",),
    "lost": ("lost_count",),
} | dict.fromkeys(("hold", "recheck", "take", "keep", "expire", "run", "stop"), ("topic", "queue", "request"))


def _needed(one: Seen, answered: Mapping[Any, int], asked: Mapping[Any, Seen]) -> tuple[str, ...]:
    if one.event == "answer_sent":
        request = asked.get(one.about)
        if request is not None and request.code == QUERY and one.code == 0:
            return ("request", "code", "offset")
        is_read = request is not None and request.code in PULLS and one.code in READS
        return ("request", "code", *(("offset_next", "offset_min", "offset_max") if is_read else ()))
    if one.event != "request_received":
        return _NEEDED.get(one.event, ())
    if one.code in {QUERY, UPDATE}:
        return "code", "topic", "queue", "group"
    if one.code in PULLS and one.request:
        code = answered.get(one.about)
        needed = ("code", *(("topic", "queue", "offset") if code in {0, 19, 20} else ()))
        return (*needed, *(("count_max",) if code == 0 else ()), *(("timeout_ms",) if one.may_hold else ()))
    return ("code",)


def wanted(request: Seen) -> frozenset[int] | str | None:
    """Return the tag hashes that a pull accepts, None if it accepts all tags, or a text if the hashes are unknown."""
    if request.expression_type not in {"", "TAG"} or not request.expression:
        return "undecidable"
    if request.expression == "*":
        return None
    parts = [part.strip() for part in request.expression.split("||")]
    codes = frozenset(java_hash(part) for part in parts if part)
    return codes or "undecidable"
