"""Helpers of the second judge's clauses: verdicts over intervals, pulls with their answers, and visible messages."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from attrs import frozen
from model_tests.judge.second.parts import MS, java_hash
from model_tests.judge.second.reading import FAR, LAW_EVENTS, PULLS, WAKE_NS, Queue, Record, Seen, before, wanted

from longpoll_spec.policy import PRESETS

DELETED_NS: Final = 5_000 * MS
"""The deletion of a topic (DELETE_TOPIC_IN_BROKER, 215) may take effect until this long after its receipt, because no
event shows its answer."""

RESTART_NS: Final = 1_000 * MS
"""A broker may have been restarted if it had no connection for this long."""
KEPT_NS: Final = 15_000 * MS
"""A killed broker loses no message older than this, because by then the message has been written to disk."""
STARTED_NS: Final = 60_000 * MS
"""A broker that is seen again within this time after an orderly stop was restarted."""
STOPPING_NS: Final = 5_000 * MS
"""After a stopping broker has answered its pulls, it closes their connections within this time."""
STOPPED_NS: Final = 15_000 * MS
"""A broker that continues for longer than this after it reports its stop did not stop."""


@frozen
class Said:
    verdict: str
    source: str
    why: str


def violated(one: Seen, why: str) -> Said:
    """Return a violation, because no choice of times within the intervals satisfies the clause."""
    return Said("violated", one.source, why)


def unknown(one: Seen, why: str) -> Said:
    """Return a possible violation, because only some choices of times within the intervals satisfy the clause."""
    return Said("unknown", one.source, why)


def absent(record: Record, one: Seen, lo: int, hi: int, why: str) -> Iterator[Said]:
    """Report a missing event between two times: a violation if the record is complete there, otherwise unknown."""
    if record.is_whole(one.source, lo, hi):
        yield violated(one, why)


def unrecorded(record: Record, request: Seen, hi: int, why: str) -> Iterator[Said]:
    """Report that a queue's log lacks an event: a violation if the broker's record is complete, otherwise unknown."""
    tellers = {one.source for one in record.events if one.broker == request.broker}
    if all(record.is_whole(source, -FAR, hi) for source in tellers):
        yield violated(request, why)
    else:
        yield unknown(request, why)


@frozen
class Exchange:
    request: Seen
    answer: Seen | None

    @property
    def code(self) -> int:
        """The code of the answer, or -1 without an answer."""
        return -1 if self.answer is None else int(self.answer.code)

    @property
    def name(self) -> str:
        return f"{self.request.source} {self.request.request}"


def first_answers(record: Record) -> dict[tuple[str, str], Seen]:
    return {one.about: one for one in reversed(record.of("answer_sent"))}


def exchanges(record: Record) -> Iterator[Exchange]:
    """Yield every pull that has an identifier and can be judged.

    A pull is not judged if its answer names a different queue from the pull's queue, or if another request of the queue
    has the same identifier.
    """
    answers = first_answers(record)
    for one in record.of("request_received"):
        answer = answers.get(one.about)
        if one.code in PULLS and is_sole(record, one) and (answer is None or answer.place == one.place):
            yield Exchange(one, answer)


def is_sole(record: Record, one: Seen) -> bool:
    """Whether a request has an identifier, and no other request of its queue has the same identifier."""
    others = [each for each in record.of("request_received") if (each.about, each.place) == (one.about, one.place)]
    return bool(one.request) and len(others) == 1


def is_after_close(record: Record, one: Seen) -> bool:
    """Whether the connection was closed between the request and the answer, so that its name was reused."""
    name = one.source, one.connection
    closes = [close for close in record.of("connection_closed") if (close.source, close.connection) == name]
    request = next((each for each in record.of("request_received") if each.about == one.about), None)
    if request is None:
        return bool(closes) and before(max(closes, key=lambda close: close.lo), one)
    mine = [close for close in closes if not before(close, request)]
    return bool(mine) and before(min(mine, key=lambda close: close.lo), one)


def read_answers(record: Record) -> Iterator[tuple[Seen, Seen]]:
    for one in exchanges(record):
        if one.answer is not None and one.code in {0, 19, 20, 21}:
            yield one.request, one.answer


def is_own(record: Record) -> bool:
    """Whether the broker has this project's own design: only our specification applies, and it has no slaves."""
    return all(one.split("+")[0] in {"strict", "strict-clone"} for one in record.policies)


def has_rolled(record: Record, request: Seen, answer: Seen) -> bool:
    """Whether an answer with code 19 (PULL_NOT_FOUND) may skip a missing log file, as RocketMQ may do."""
    skips = answer.offset_min <= request.offset < min(answer.offset_next, answer.offset_max)
    return answer.code == 19 and skips and not is_inside(record, request.source) and not is_own(record)


def may_be_slave(record: Record, request: Seen) -> bool:
    """Whether a slave may answer the pull: the pull's observer is outside and sees no sends to the broker."""
    is_apart = request.source not in _senders(record, request.broker) and not is_inside(record, request.source)
    return is_apart and not is_own(record)


def may_be_sent_away(record: Record, request: Seen, answer: Seen) -> bool:
    """Whether a slave may have answered 20 (PULL_RETRY_IMMEDIATELY) to send the pull to its master.

    A slave's answer leads beyond the queue's end only if the slave reset the offset; then `offset_max` is 0.
    """
    leads_past = answer.offset_next > max(request.offset, answer.offset_max) and answer.offset_max != 0
    return answer.code == 20 and not leads_past and may_be_slave(record, request)


def may_follow(record: Record, request: Seen) -> bool:
    """Whether the pull may go to a slave that has its master's name, because a second observer may watch the master."""
    senders = _senders(record, request.broker)
    of_master = {
        one.source
        for one in record.events
        if one.broker == request.broker and (one.source in senders or not is_inside(record, one.source))
    } - {request.source}
    return bool(request.broker) and bool(of_master) and may_be_slave(record, request)


def _senders(record: Record, broker: str) -> set[str]:
    return {one.source for one in record.of("message_acknowledged") if one.broker == broker}


def seen_inside(record: Record, queue: Queue) -> bool:
    """Whether a source inside the broker reports ends of this queue."""
    return any(one.place == queue for one in record.of("make_visible"))


def is_inside(record: Record, source: str) -> bool:
    return any(one.source == source and one.event in LAW_EVENTS for one in record.events)


def policy_says(record: Record, name: str, value: str, *, unnamed: bool) -> bool:
    """Whether every policy of the history has this value of a knob; returns `unnamed` if a policy is unknown."""
    for text in record.policies:
        preset, *knobs = text.split("+")
        if preset not in PRESETS:
            return unnamed
        known = getattr(PRESETS[preset], name)
        for knob in knobs:
            if knob.split("=")[0] == name:
                known = knob.split("=")[1]
        if known != value:
            return False
    return True


def restarts(record: Record, broker: str) -> list[tuple[int, int]]:
    """Return the intervals in which a broker may have been restarted: no client was connected for a second or more."""
    if broker not in record.restarts:
        tellers = {one.source for one in record.events if one.broker == broker}
        inside = any(is_inside(record, source) for source in tellers)
        record.restarts[broker] = [] if inside else _without_connections(record, tellers)
    return record.restarts[broker]


def _without_connections(record: Record, sources: set[str]) -> list[tuple[int, int]]:
    moments: list[tuple[int, int, int]] = []
    closes: list[int] = []
    for opened in record.of("connection_opened"):
        if opened.source in sources:
            mine = (opened.source, opened.connection)
            ends = [
                (gone.lo, gone.hi)
                for gone in record.of("connection_closed")
                if (gone.source, gone.connection) == mine and gone.lo >= opened.lo
            ]
            # A host that loses power closes no connection, so the broker may have ended at any time after the last
            # answer.
            seen = [one.hi for one in record.of("answer_sent", "message_acknowledged") if one.line == opened.line]
            closed = min(ends)[1] if ends else FAR
            closes.append(closed)
            moments += [(opened.lo, 0, 1), (min(closed, max([opened.lo, *seen])), 1, -1)]
    found: list[tuple[int, int]] = []
    count, since = 0, FAR
    for moment, _is_end, step in sorted(moments):
        since = max([since, *(one for one in closes if since <= one < moment)])
        if count == 0 and moment - since >= RESTART_NS:
            found.append((since + 1, moment - 1))
        count += step
        since = moment if count == 0 else FAR
    return found


def ended_in_order(record: Record, source: str) -> bool:
    """Whether an observer outside the broker saw all connections close and then stopped recording soon afterwards."""
    opened = [one for one in record.of("connection_opened") if one.source == source]
    stops = [one.lo for one in record.of("source_stopped") if one.source == source]
    if not opened or not stops or is_inside(record, source):
        return False
    ends = [
        min(
            (gone.hi for gone in record.of("connection_closed") if gone.line == one.line and gone.lo >= one.lo),
            default=FAR,
        )
        for one in opened
    ]
    return stops[-1] - STOPPING_NS <= max(ends) <= stops[-1]


def kills(record: Record, broker: str) -> list[tuple[int, int]]:
    """Return the restarts of a broker before which some observer saw no orderly stop."""
    tellers = {one.source for one in record.events if one.broker == broker}
    found = []
    for since, until in restarts(record, broker):
        old = [name for name in tellers if record.first(name).lo < since <= record.last(name).lo]
        is_soon = until - since <= STARTED_NS
        if (
            not is_soon
            or not old
            or not all(ended_in_order(record, name) and record.last(name).lo <= until for name in old)
        ):
            found.append((since, until))
    return found


def restarted(record: Record, broker: str, first: Seen, second: Seen) -> bool:
    """Whether a broker may have been restarted between two events, in either order."""
    lo, hi = min(first.lo, second.lo), max(first.hi, second.hi)
    return any(since <= hi and lo <= until for since, until in restarts(record, broker))


def outlives(record: Record, broker: str, old: Seen, new: Seen) -> bool:
    """Whether an event is so old at a possible restart that its effect is certainly on disk."""
    between = [since for since, until in restarts(record, broker) if since <= new.hi and old.lo <= until]
    return not between or (old.hi < min(between) - KEPT_NS and old.hi < new.lo)


def deleted_between(record: Record, queue: Queue, first: Seen, second: Seen) -> bool:
    """Whether the topic may have been deleted, or the broker restarted, between two events in either order."""
    return restarted(record, queue[0], first, second) or is_other_log(record, queue, first, second)


def is_other_log(record: Record, queue: Queue, first: Seen, second: Seen, *, in_order: bool = False) -> bool:
    one, other = sorted((first, second), key=lambda event: event.lo)
    # The source that begins first may also be the source that ends last.
    end = max(one.hi, other.hi)
    if {one.source, other.source} & record.jumped and (record.deletions() or record.holes):
        return True
    if any(lo <= end and one.lo <= hi for lo, hi in unwatched(record, queue[0], in_order=in_order)):
        return True
    if any(place == queue and lo <= end and one.lo <= hi for place, lo, hi in begun_anew(record)):
        return True
    is_told = any(
        (gone.broker, gone.topic) == queue[:2] and lasts_until(record, gone) >= one.lo and gone.lo <= end
        for gone in record.deletions()
    )
    sources = {one.source, other.source}
    return is_told or not all(record.is_whole(source, one.lo - DELETED_NS, end) for source in sources)


def begun_anew(record: Record) -> list[tuple[Queue, int, int]]:
    """Return the intervals in which an unseen client may have deleted a topic (clause `evidence.begun_anew`)."""
    if record.anew is None:
        record.anew = list(_begun_anew(record))
    return record.anew


def _begun_anew(record: Record) -> Iterator[tuple[Queue, int, int]]:
    firsts = [one for one in record.of("message_acknowledged") if one.queue_offset == 0]
    for source, place in {(one.source, one.place) for one in firsts}:
        mine = [one for one in firsts if (one.source, one.place) == (source, place)]
        for one, other in pairwise(sorted(mine, key=lambda each: (each.lo, each.hi))):
            is_known = any(
                (gone.broker, gone.topic) == place[:2] and gone.lo <= other.hi and one.lo <= lasts_until(record, gone)
                for gone in record.deletions()
            )
            is_one_send = bool(one.request) and one.request == other.request
            if not is_known and not is_one_send and not is_inside(record, source):
                yield place, one.lo, other.hi


def unwatched(record: Record, broker: str, *, in_order: bool = False) -> list[tuple[int, int]]:
    """Return the intervals in which a broker may have run without an observer.

    With `in_order`, a source that ends in order counts as ending together with its broker.
    """
    if (broker, in_order) not in record.unwatched:
        record.unwatched[broker, in_order] = _unwatched(record, broker, in_order=in_order)
    return record.unwatched[broker, in_order]


def _unwatched(record: Record, broker: str, *, in_order: bool) -> list[tuple[int, int]]:
    tellers = {one.source for one in record.events if one.broker == broker}
    spans = sorted((record.first(source).lo, record.last(source).lo, source) for source in tellers)
    found: list[tuple[int, int]] = []
    until, gap = FAR, 0
    for first, last, source in spans:
        if first - until > gap:
            found.append((until, first))
        if until == FAR or last > until:
            until, is_short = last, in_order and ended_in_order(record, source)
            gap = 2 * FAR if is_inside(record, source) else STARTED_NS if is_short else 0
    return found


def lasts_until(record: Record, gone: Seen) -> int:
    """The time until which a deletion may take effect; unbounded if the clock may have been set."""
    return FAR if gone.source in record.loose else gone.hi + DELETED_NS


def messages(record: Record, request: Seen, *kinds: str) -> list[Seen]:
    """Return the messages of a pull's queue, from any source, in the queue generation that spans the whole pull."""
    own = [one for one in record.of(*kinds) if one.place == request.place]
    mine = (request.source, request.connection)
    closes = [one for one in record.of("connection_closed") if (one.source, one.connection) == mine]
    closed = min((one for one in closes if not before(one, request)), key=lambda one: one.lo, default=None)
    answer = first_answers(record).get(request.about) or closed or record.last(request.source)
    if deleted_between(record, request.place, request, answer):
        return []
    return [
        one
        for one in own
        if not is_other_log(record, request.place, one, request) and outlives(record, request.place[0], one, request)
    ]


def holds(record: Record) -> list[Seen]:
    """Return the hold events that name the queue of their request; other hold events are ignored."""
    places = {(one.about, one.place) for one in record.of("request_received") if is_sole(record, one)}
    return [one for one in record.of("hold") if (one.about, one.place) in places]


def tags(record: Record, request: Seen) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for kind in ("append", "message_acknowledged", *(() if seen_inside(record, request.place) else ("message_seen",))):
        # A producer may get a wrong answer, so the append event decides which message is at an offset. If a broker was
        # stopped in order and a later run has another message at the offset, the first append decides.
        for one in sorted(messages(record, request, kind), key=lambda told: told.lo):
            found.setdefault(one.queue_offset, {one.tag})
    return found


def takes(request: Seen, tag: str) -> bool:
    codes = wanted(request)
    return codes is None or (not isinstance(codes, str) and java_hash(tag) in codes)


def became_visible(record: Record, request: Seen, offset: int) -> tuple[int, int] | None:
    if seen_inside(record, request.place):
        past = [one for one in messages(record, request, "make_visible") if one.visible_end > offset]
    else:
        past = [one for one in messages(record, request, "message_acknowledged") if one.queue_offset >= offset]
    return (min(one.lo for one in past), min(one.hi for one in past)) if past else None


def deliveries(record: Record, request: Seen) -> list[tuple[Seen, int]]:
    if seen_inside(record, request.place):
        return []
    mine = {id(one) for one in messages(record, request, "answer_sent")}
    return [
        (answer, answer.offsets[-1] + 1)
        for pull, answer in read_answers(record)
        if id(answer) in mine and answer.code == 0 and answer.offsets
        if pull.offset <= answer.offsets[-1] < answer.offset_max
        if not deleted_between(record, pull.place, pull, answer)
    ]


def certain_end(record: Record, request: Seen, *, delivered: bool = False) -> int:
    if seen_inside(record, request.place):
        ends = [one.visible_end for one in messages(record, request, "make_visible") if before(one, request)]
    else:
        acknowledged = messages(record, request, "message_acknowledged")
        ends = [one.queue_offset + 1 for one in acknowledged if one.hi + WAKE_NS < request.lo]
        ends += [end for answer, end in deliveries(record, request) if before(answer, request)] if delivered else []
    return max(ends, default=0)


def emptied_before(record: Record, request: Seen) -> list[Seen]:
    return [
        gone
        for gone in record.deletions()
        if (gone.broker, gone.topic) == request.place[:2] and lasts_until(record, gone) < request.lo
    ]


def left_to(record: Record, request: Seen, *kinds: str) -> list[Seen]:
    """Return the events of a pull's queue, except events that a deletion before the pull certainly removed."""
    emptied = emptied_before(record, request)
    own = [one for one in record.of(*kinds) if one.place == request.place]
    return [one for one in own if not any(before(one, gone) for gone in emptied)]


def first_known(record: Record, request: Seen) -> int:
    """Return the offset from which the record contains every message of the pull's queue."""
    shown = [one.queue_offset for one in left_to(record, request, "append", "message_acknowledged")]
    return 0 if emptied_before(record, request) else min(shown, default=FAR)


def possible_end(record: Record, request: Seen, moment: Seen) -> int | None:
    """Return the highest end that the queue may have had before an event ended; None if any end is possible."""
    if not seen_inside(record, request.place) or deleted_between(record, request.place, request, moment):
        return None
    # All earlier ends of the queue count, because an outdated end can only raise the result. `left_to` excludes the
    # ends from before a deletion of the queue.
    ends: list[int] = [one.visible_end for one in left_to(record, request, "make_visible") if one.lo <= moment.hi]
    base = first_known(record, request)
    return max([0, *ends, 0 if base == FAR else base])


def closed_after(record: Record, request: Seen, answer: Seen) -> list[Seen]:
    mine = (request.source, request.connection)
    closes = [one for one in record.of("connection_closed") if (one.source, one.connection) == mine]
    return [one for one in closes if not before(one, answer)]


def told_to_stop(record: Record, request: Seen, answer: Seen) -> str:
    """Whether the broker reports that it answered the pull because of its stop: "yes", "perhaps" or "no"."""
    says = answer.cause == "stopped" and is_inside(record, request.source)
    if not says and not any(one.about == request.about for one in record.of("stop")):
        return "no"
    went_on = record.last(request.source).lo - answer.hi
    if went_on <= STOPPING_NS:
        return "yes"
    changes = ("on_role_change", "on_master_return")
    may_change = not record.policies or any(
        policy_says(record, name, "answer", unnamed=True) or not _is_known(record) for name in changes
    )
    return "perhaps" if went_on <= STOPPED_NS or (says and may_change) else "no"


def _is_known(record: Record) -> bool:
    return all(text.split("+")[0] in PRESETS for text in record.policies)


def _all_closed(record: Record, answer: Seen, soon: int) -> bool:
    opened = [one for one in record.of("connection_opened") if one.source == answer.source and one.lo <= answer.lo]
    closed = [one for one in record.of("connection_closed") if one.source == answer.source and one.lo <= soon]
    gone = [any(end.connection == one.connection and end.lo >= one.lo for end in closed) for one in opened]
    return bool(gone) and all(gone) and not is_inside(record, answer.source)


def unless_stopping(record: Record, request: Seen, answer: Seen, why: str) -> Iterator[Said]:
    """Report a wrong response 19, unless the broker is stopping and closes its connections."""
    told = told_to_stop(record, request, answer)
    if told == "yes":
        return
    soon = answer.hi + STOPPING_NS
    closes = [one for one in closed_after(record, request, answer) if one.lo <= soon]
    is_silent = policy_says(record, "on_stop", "silent", unnamed=False)
    if closes and not is_silent and (record.last(request.source).lo <= soon or _all_closed(record, answer, soon)):
        return
    is_doubtful = request.source in record.loose and not is_inside(record, request.source) and not is_silent
    may_come = not is_inside(record, request.source) and not is_silent and record.last(request.source).lo < soon
    if may_come and not closed_after(record, request, answer):
        # The connection may be closed after the end of the record.
        yield unknown(request, why)
    elif (
        told == "perhaps"
        or (closes and not is_silent)
        or (is_doubtful and closed_after(record, request, answer))
        or has_rolled(record, request, answer)
    ):
        yield unknown(request, why)
    else:
        yield from absent(record, request, request.lo - DELETED_NS, soon, why)
