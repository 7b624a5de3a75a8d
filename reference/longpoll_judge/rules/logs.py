"""Properties of a queue's log and of its two ends, as its events and as answers report them.

offsets_in_order: inside a broker every append takes the next queue offset, each once. Seen from outside, no two
messages are acknowledged with the same one. visible_is_monotone: the visible end never moves back and never passes the
log's end. Both hold within one generation and one observer; a crash or truncation begins a new one. The order of two
events is certain only if their intervals do not overlap.

Within one run of the broker neither end falls from one answer to a later one. Overlapping connections are of one run
(`connections`), so a restart is not a fall. A deleted topic begins again. Messages passed over: `filters`.

A message that was acknowledged or appended must be shown in time while its source goes on. Only queues with a reported
visible end are judged: from inside, a stopped dispatcher looks like a log without readers. The findings: `sends`.

Source: `ConsumeQueue.putMessagePositionInfo`, `DefaultMessageStore.getMinOffsetInQueue`, `getMaxOffsetInQueue`,
`ReputMessageService`, and the specification's properties of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.batch import Events, QueueName
from longpoll_judge.columns.keys import Keys, Received
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.contract.clause import PULL_RESULTS, RETENTION_MS, SHOWN_MS, restart_text
from longpoll_judge.contract.clauses import CLAUSE, finding_of
from longpoll_judge.contract.result import OFFSETS_IN_ORDER, VISIBLE_IS_MONOTONE, Finding, FindingVerdict
from longpoll_judge.evidence.generations import KEPT_NS, NEITHER
from longpoll_judge.evidence.source_survey import NO_GAPS
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import order_of
from longpoll_judge.rules.connections import Spans, generations_of
from longpoll_judge.rules.cross_queue import (
    WEIGHT,
    Gathered,
    Gathering,
    Tables,
    changes_of,
    events_at,
    findings_of,
    first_of,
    generations,
    hash_of,
    hashes,
    have_request,
    highest_before,
    keys_of_queues,
    queue_keys,
    rows_where,
)
from longpoll_judge.rules.filters import Filters, judge_filters
from longpoll_judge.rules.messages import OF_POLLS, View, breaches_of
from longpoll_judge.rules.queue_case import FOUND, NO_MATCHED_MSG, Explanation, Suspects, suspects
from longpoll_judge.rules.queue_columns import MS, PULL_CODES


def not_shown(messages: Gathered, moved: Gathered, context: Context) -> tuple[Integers, Integers]:
    """The first message of each queue's generation that was not shown in time, and for each an end that was reported.

    Both are rows. A message that its topic's deletion may have removed is not included.
    """
    due_ns = messages.before_ns + SHOWN_MS * MS
    goes_on = np.zeros(len(messages), dtype=np.bool_)
    for name, facts in context.sources.items():
        # A specification may take a queue's end back, and judges that itself.
        goes_on |= (name not in context.lawful) & (messages.source == hash_of(name)) & (due_ns < facts.last_ns)
    told = first_of(messages.place, moved.place)
    # Only of queues whose visible end some source tells, and while that source goes on.
    asked = np.flatnonzero(goes_on & (told >= 0))
    asked = asked[~_may_be_gone(messages.take(asked), due_ns[asked], context)]
    life = _lives(messages, messages.after_ns, context)
    # An end that touches a deletion may have been told in the life before it and in the one after it.
    ends = np.concatenate([_lives(moved, at_ns, context) for at_ns in (moved.after_ns, moved.before_ns)])
    value, begun_ns = np.tile(moved.values["visible_end"], 2), np.tile(moved.after_ns, 2)
    best = highest_before(ends, begun_ns, value, life[asked], due_ns[asked] + 1)
    # The highest end told by then does not cover the message; an end is the offset after the last visible one.
    is_late = (best < 0) | (np.append(value, -1)[best] <= messages.values["queue_offset"][asked])
    late, best = asked[is_late], best[is_late]
    order = np.argsort(messages.after_ns[late], kind="stable")
    late, best = late[order], best[order]
    # The first late message of a life: those behind it are late for the same reason.
    first = np.sort(np.unique(life[late], return_index=True)[1])
    late, best = late[first], best[first]
    return late, np.where(best >= 0, best % len(moved), told[late])


def are_doubted(messages: Gathered, context: Context) -> Booleans:
    """Of which messages it is not certain that they were late: the end may be in a hole, or the clock set forward."""
    found = np.zeros(len(messages), dtype=np.bool_)
    until_ns = messages.before_ns + SHOWN_MS * MS
    for name, facts in context.sources.items():
        first_ns = np.full(len(messages), BEGINNING, dtype=np.int64)
        weak = facts.holes.touch(first_ns, until_ns) | (name in context.settable)
        found |= (messages.source == hash_of(name)) & weak
    return found


def _may_be_gone(messages: Gathered, due_ns: Integers, context: Context) -> Booleans:
    found = np.zeros(len(messages), dtype=np.bool_)
    for mine, holes in changes_of(messages, context):
        found |= mine & holes.touch(messages.after_ns, due_ns)
    return found


def _lives(events: Gathered, at_ns: Integers, context: Context) -> Keys:
    """The queue's life that each event lies in at a moment, by the deletions that had begun by then."""
    number = np.zeros(len(events), dtype=np.uint64)
    for (broker, topic), holes in context.deleted.items():
        mine = events.broker == (hash_of(broker) if broker else np.uint64(0))
        mine &= (events.topic == hash_of(topic)) if topic else True
        number += np.where(mine, np.searchsorted(holes.starts, at_ns, side="right"), 0).astype(np.uint64)
    return events.place * WEIGHT + number


CLAUSES: Final = {"append": "log.append.once", "message_acknowledged": "log.acknowledged.once"}
_NO_OFFSETS: Final = np.empty(0, dtype=np.int64)
MISSING_MAX: Final = 10
"""Most of the messages between two appends that a finding names."""
WORDS: Final = {"append": "appended", "message_acknowledged": "acknowledged"}


def judge_log(events: Events, context: Context, first_known: int | None = None) -> list[Suspects]:
    """Judge the log of one queue; members are rows of `events`, as are those of the explanations.

    Where the events are not all of the log, `first_known` is the first offset of all of it: then what is found may be
    no fault, but nothing is passed over.
    """
    found = []
    for kind in WORDS:
        for _of, rows in _known(_by_source(events, kind, context)):
            found += _given_twice(events, kind, rows, context)
    appended, moved = (_by_source(events, kind, context) for kind in ("append", "make_visible"))
    for (source, _life), rows in _known(appended):
        found += _fallen(events, rows, "queue_offset", "log.append.ordered", "was appended after offset")
        found += _left_out(events, rows, _perhaps(events, appended, source), context)
    for of, rows in _known(moved):
        found += _fallen(events, rows, "visible_end", "log.visible.monotone", "is the visible end, after it was")
        seen = appended.get(of, rows[:0]), appended.get((of[0], NEITHER), rows[:0])
        found += _not_appended(events, rows, seen, first_known, context)
    return found


Of = tuple[int, int]
"""Number of the source, and of the life of the queue; `NEITHER` for events of which that is not known."""


def _known(by_source: dict[Of, Integers]) -> list[tuple[Of, Integers]]:
    """Those of which it is known what life they belong to."""
    return [(of, rows) for of, rows in by_source.items() if of[1] != NEITHER]


def _perhaps(events: Events, appended: dict[Of, Integers], source: int) -> Integers:
    """The offsets that were appended around a deletion: each life may have them, and they show nothing for certain."""
    rows = appended.get((source, NEITHER))
    return _NO_OFFSETS if rows is None else np.unique(events.integers("queue_offset", rows))


def _by_source(events: Events, kind: str, context: Context) -> dict[Of, Integers]:
    """The rows of an event, apart for each source that declares no specification: one may take a queue's end back.

    Without those that lack their place, of which nothing is concluded.
    """
    rows = events.rows(kind)
    column = "visible_end" if kind == "make_visible" else "queue_offset"
    is_placed = (events.integers(column, rows) >= 0) & (events.integers("queue", rows) >= 0)
    rows = rows[is_placed]
    if not len(rows) or not events.text("topic", int(rows[0])):
        return {}
    sources, names = events.codes("source", rows)
    found: dict[Of, Integers] = {}
    for source in np.unique(sources).tolist():
        if names[source] not in context.lawful:
            lives = _by_life(events, rows[sources == source], context)
            found |= {(source, life): of_life for life, of_life in lives}
    return found


def _by_life(events: Events, rows: Integers, context: Context) -> list[tuple[int, Integers]]:
    """The rows apart for each life of the queue, and those of which it is not known which they belong to.

    What is in a log is there after a restart too (`_may_be_lost`).
    """
    lives = context.lives(_name_of(events, rows), restarts=False)
    if lives is None:
        return [(0, rows)]
    numbers = lives.number(events.integers("after_ns", rows), events.integers("before_ns", rows))
    return [(number, rows[numbers == number]) for number in np.unique(numbers).tolist()]


def _name_of(events: Events, rows: Integers) -> QueueName:
    """The queue that all of the rows are of."""
    broker, topic = (events.text(name, int(rows[0])) for name in ("broker", "topic"))
    return broker, topic, int(events.integers("queue", rows[:1])[0])


def _not_appended(
    events: Events, rows: Integers, seen: tuple[Integers, Integers], first_known: int | None, context: Context
) -> list[Suspects]:
    """Visible ends whose last message was not appended before, of those past the first one that was.

    Seen are the rows of what was appended, and of what may have been in this life of the queue.
    """
    appended, perhaps = seen
    offsets = events.integers("queue_offset", appended)
    first = first_known if first_known is not None else int(offsets.min(initial=NEVER))
    last = events.integers("visible_end", rows) - 1
    before_ns = events.integers("before_ns", rows)
    place = _places_of(last, offsets)
    begun_ns = np.append(events.integers("after_ns", appended), NEVER)[place]
    perhaps_ns = _begun_first(events, perhaps, last)
    # Below the first known append the record begins later; `NEVER`, of none, lies behind every moment.
    wrong = (last >= first) & (begun_ns > before_ns) & (perhaps_ns > before_ns)
    since_ns = np.minimum(events.integers("after_ns", appended).min(initial=NEVER), before_ns)
    # A hole since the first append may hide the one that is missing.
    is_whole = ~context.log_holes(events.text("broker", int(rows[0]))).touch(since_ns, before_ns)

    def explain(member: int) -> Explanation:
        told = f"{last[member] + 1} was made the visible end"
        lowest = int(appended[np.argmin(offsets)]) if len(appended) else int(rows[member])
        shown = dict.fromkeys((lowest, int(rows[member])))
        why = f"{told}, and message {last[member]} was never appended"
        if perhaps_ns[member] < NEVER:
            why = f"{told} before message {last[member]} was appended, in this life of the queue or another"
        if place[member] >= 0:
            shown[int(appended[place[member]])] = None
            why = f"{told} before message {last[member]} was appended"
        return Explanation("log.visible.appended", why, [], list(shown), [int(last[member])], [int(rows[member])])

    return suspects(VISIBLE_IS_MONOTONE, wrong & is_whole, wrong & ~is_whole, rows, explain)


def _begun_first(events: Events, rows: Integers, wanted: Integers) -> Integers:
    """For each wanted offset when the first of the rows that have it may have happened; `NEVER` where none has it."""
    offsets, after_ns = events.integers("queue_offset", rows), events.integers("after_ns", rows)
    order = np.lexsort((after_ns, offsets))
    known, first = np.unique(offsets[order], return_index=True)
    return np.append(after_ns[order][first], NEVER)[first_of(wanted, known)]


def _places_of(wanted: Integers, offsets: Integers) -> Integers:
    """For each wanted offset the first place where it stands, -1 for none; a log that has every one needs no search."""
    if len(offsets) and (np.diff(offsets) == 1).all():
        place = wanted - offsets[0]
        return np.where((place >= 0) & (place < len(offsets)), place, -1)
    return first_of(wanted, offsets)


def _given_twice(events: Events, kind: str, rows: Integers, context: Context) -> list[Suspects]:
    offsets = events.integers("queue_offset", rows)
    order = np.argsort(offsets, kind="stable")
    before = np.full(len(rows), -1, dtype=np.int64)
    before[order[1:]] = order[:-1]
    # Sorted by offset, so equal ones stand side by side.
    again = (before >= 0) & (offsets == offsets[before])

    def explain(member: int) -> Explanation:
        why = f"two messages were {WORDS[kind]} with queue offset {offsets[member]}"
        why += restart_text(int(killed_ns[member])) if lost[member] else ""
        shown = [int(rows[before[member]]), int(rows[member])]
        return Explanation(CLAUSES[kind], why, [], shown, [int(offsets[member])])

    has_one_life = context.lives(_name_of(events, rows)) is None
    killed_ns, may_be_lost = _may_be_lost(events, rows[before], rows, context)
    lost = again & may_be_lost
    return suspects(OFFSETS_IN_ORDER, again & ~lost, lost, rows, explain, is_timeless=has_one_life)


def _may_be_lost(events: Events, rows: Integers, later: Integers, context: Context) -> tuple[Integers, Booleans]:
    """When a restart may have begun, and which of the rows it may have lost before the later ones came."""
    restarts = context.restarts.get(events.text("broker", int(rows[0])), NO_GAPS)
    first_ns = np.minimum(*(events.integers("before_ns", of) for of in (rows, later)))
    last_ns = np.maximum(*(events.integers("after_ns", of) for of in (rows, later)))
    killed_ns = restarts.begin_from(first_ns)
    return killed_ns, restarts.touch(first_ns, last_ns) & (first_ns >= killed_ns - KEPT_NS)


def _fallen(events: Events, rows: Integers, column: str, clause: str, words: str) -> list[Suspects]:
    """Rows whose value lies below one that was certainly there before."""
    values = events.integers(column, rows)
    after_ns, before_ns = events.integers("after_ns", rows), events.integers("before_ns", rows)
    ended = np.argsort(before_ns, kind="stable")
    highest = np.append(0, np.maximum.accumulate(values[ended]))
    known = np.searchsorted(before_ns[ended], after_ns, side="left")
    # `known` rows had certainly ended before this one began: the highest of these is what it must not lie below.
    fell = values < highest[known]

    def explain(member: int) -> Explanation:
        earlier = ended[: known[member]]
        higher = int(earlier[np.argmax(values[earlier])])
        why = f"{values[member]} {words} {values[higher]}"
        messages = [int(values[member]), int(values[higher])] if column == "queue_offset" else []
        return Explanation(clause, why, [], [int(rows[higher]), int(rows[member])], messages)

    return suspects(CLAUSE[clause].property, fell, np.zeros_like(fell), rows, explain)


def _left_out(events: Events, rows: Integers, perhaps: Integers, context: Context) -> list[Suspects]:
    """Appends that do not follow upon the offset before; what is missing may have been lost by the recorder."""
    values, first = np.unique(events.integers("queue_offset", rows), return_index=True)
    unknown = np.setdiff1d(perhaps, values)
    # The first offset of the record follows upon nothing.
    skips = np.append(False, np.diff(values) - 1 > np.diff(np.searchsorted(unknown, values)))
    holes = context.log_holes(events.text("broker", int(rows[0])))
    after_ns = events.integers("after_ns", rows[first])
    before_ns = events.integers("before_ns", rows[first])
    since_ns = np.minimum(np.append(after_ns[:1], after_ns[:-1]), after_ns)
    is_whole = ~holes.touch(since_ns, np.maximum(np.append(before_ns[:1], before_ns[:-1]), before_ns))

    def explain(member: int) -> Explanation:
        why = f"no message was appended between the queue offsets {values[member - 1]} and {values[member]}"
        between = range(int(values[member - 1]) + 1, int(values[member]))
        missing = islice((offset for offset in between if offset not in unknown), MISSING_MAX)
        shown = [int(rows[first[member - 1]]), int(rows[first[member]])]
        return Explanation("log.append.gapless", why, [], shown, list(missing))

    return suspects(OFFSETS_IN_ORDER, skips & is_whole, skips & ~is_whole, rows[first], explain)


FINDINGS_MAX: Final = 50
"""Most findings of one clause that are listed; the others are counted."""
SHOWN: Final = {"offset_min": "offset_min", "offset_max": "shown_end"}
"""Each end as an earlier answer shows it: a message that it delivers was visible."""


@define
class Ends:
    """Pulls, and the ends that answers to them tell."""

    pulls: Gathering = field(factory=lambda: Gathering(("offset", "filter", "group")))
    answers: Gathering = field(
        factory=lambda: Gathering(("code", "offset_min", "offset_max", "offset_next", "shown_end", "body_count"))
    )
    filters: Filters = field(factory=Filters)
    opened: Gathering = field(factory=lambda: Gathering(()))
    acknowledged: Gathering = field(factory=lambda: Gathering(("queue_offset",)))
    received: Received = field(factory=Received)

    def see(self, number: int, table: pa.Table) -> None:
        """The events of one split."""
        named, code = have_request(table), table["code"].to_numpy()
        is_receipt = rows_where(table, "request_received") & named
        self.received.add(table, np.flatnonzero(is_receipt))
        rows = np.flatnonzero(is_receipt & is_one_of(code, PULL_CODES))
        groups = hashes(table, "group", rows).view(np.int64)
        self.pulls.add(table, number, rows, {"filter": self.filters.numbers(table, rows), "group": groups})
        lowest, highest = table["offset_min"].to_numpy(), table["offset_max"].to_numpy()
        # Bounds that contradict each other are another clause's matter, and say nothing of a fall.
        told = (lowest >= 0) & (lowest <= highest)
        is_answer = rows_where(table, "answer_sent") & named & is_one_of(code, PULL_RESULTS) & told
        rows = np.flatnonzero(is_answer)
        self.opened.add(table, number, np.flatnonzero(rows_where(table, "connection_opened")))
        acknowledged = rows_where(table, "message_acknowledged") & (table["queue_offset"].to_numpy() >= 0)
        self.acknowledged.add(table, number, np.flatnonzero(acknowledged & (table["queue"].to_numpy() >= 0)))
        shown_end = np.maximum(highest, _delivered_end(table))[rows]
        body_count = np.diff(table["offsets"].combine_chunks().offsets.to_numpy().astype(np.int64))[rows]
        self.answers.add(table, number, rows, {"shown_end": shown_end, "body_count": body_count})


def _delivered_end(table: pa.Table) -> Integers:
    """The end of the messages that each event delivers or passes over. It was visible, whatever the answer reports."""
    lists = table["offsets"].combine_chunks()
    bounds, values = lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
    passed = is_one_of(table["code"].to_numpy(), (FOUND, NO_MATCHED_MSG))
    found = np.where(passed, table["offset_next"].to_numpy(), 0)
    # Only FOUND delivers; a list beside another code is damage of its own.
    filled = np.flatnonzero(table["code"].to_numpy() == FOUND)
    owner = np.repeat(filled, np.diff(bounds)[filled])
    at = np.arange(len(owner)) + np.repeat(bounds[filled] - _starts(np.diff(bounds)[filled]), np.diff(bounds)[filled])
    np.maximum.at(found, owner, values[at] + 1)
    return found


def _starts(counts: Integers) -> Integers:
    starts: Integers = np.cumsum(counts) - counts
    return starts


def judge_offset_regression(tables: Tables, context: Context, *, most: int = FINDINGS_MAX) -> tuple[list[Finding], int]:
    """Judge all answers; `most` findings of each clause, and how many more there are."""
    ends = Ends()
    for number, table in tables():
        ends.see(number, table)
    pulls, answers = ends.pulls.all(), ends.answers.all()
    request = first_of(answers.request, pulls.request)
    # Of an identifier that came twice, with whatever requests, it is not known which of them an answer is to, and since
    # when. On one connection alone is it certain that an answer was sent before the next request came.
    is_sure = (request >= 0) & ~np.isin(answers.request, ends.received.again)
    mine = np.flatnonzero(is_sure & (answers.connection != 0))
    answers, asked = answers.take(mine), pulls.take(request[mine])
    # One that names no queue is about its request's; one that names another is not judged.
    mine = np.flatnonzero((answers.queue < 0) | (answers.place == asked.place))
    answers, asked = answers.take(mine), asked.take(mine)
    spans = generations_of(answers, asked, ends.opened.all(), context)
    queue = queue_keys(asked)
    life = (queue * WEIGHT + spans.life) * WEIGHT + generations(asked, answers, context)
    # Where a source shows the visible end, `visible_is_monotone` says more of it.
    outside = ~np.isin(queue, keys_of_queues(context.shown))
    shown: list[_Fall] = []
    have_fallen = np.zeros(len(answers), dtype=np.bool_)
    left_out = 0
    for clause, name, is_asked in (
        ("pull.min.never_falls", "offset_min", np.ones(len(answers), dtype=np.bool_)),
        ("pull.max.never_falls", "offset_max", outside),
    ):
        value = answers.values[name]
        shown_value = answers.values[SHOWN[name]]
        before = highest_before(life, answers.before_ns, shown_value, life, asked.after_ns)
        # -1, for none, is cut to 0 only to pick something: `before >= 0` leaves it out.
        fell = np.flatnonzero(is_asked & (before >= 0) & (shown_value[np.maximum(before, 0)] > value))
        have_fallen[fell] = True
        fell = fell[np.argsort(answers.after_ns[fell], kind="stable")]
        # One answer that tells too much makes all later ones fall: it is told once.
        fell = fell[np.sort(np.unique(before[fell], return_index=True)[1])]
        shown += [_Fall(clause, name, one, int(before[one])) for one in fell[:most].tolist()]
        left_out += max(len(fell) - most, 0)
    found = list(_findings(tables, (asked, answers), shown, spans, context))
    found += _unwatched(tables, (asked, answers), ends.acknowledged.all(), outside & ~have_fallen, context)
    view = View(tables, context, told=ends.acknowledged.all(), asked=asked, answers=answers)
    found += findings_of(tables, breaches_of(OF_POLLS, view), context, most)
    disagreements, beyond = judge_filters(tables, ends.filters, (asked, answers), outside, context, most=most)
    return [*found, *disagreements], left_out + beyond


@frozen
class _Fall:
    """An end that fell: the later answer, and the earlier one that shows more."""

    clause: str
    name: str
    one: int
    earlier: int


def _unwatched(
    tables: Tables, exchanges: tuple[Gathered, Gathered], acknowledged: Gathered, others: Booleans, context: Context
) -> Iterator[Finding]:
    """Possible faults that a restart or a full disk could explain: the first of each queue.

    The queue's end lies below one that an earlier answer or acknowledgement shows, perhaps from another run of the
    broker. Or a message is gone soon after its acknowledgement. `others` are the answers that certainly show no fall.
    """
    asked, answers = exchanges
    told = evolve(context, life_holes={}, restarts={})
    mine = np.flatnonzero(others & (asked.broker != 0))
    shown_end = np.concatenate([answers.values["shown_end"], acknowledged.values["queue_offset"] + 1])
    ended_ns = np.concatenate([answers.before_ns, acknowledged.before_ns])
    own = queue_keys(asked) * WEIGHT + generations(asked, answers, told)
    life = np.concatenate([own, queue_keys(acknowledged) * WEIGHT + generations(acknowledged, acknowledged, told)])
    before = highest_before(life, ended_ns, shown_end, own[mine], asked.after_ns[mine])
    # An acknowledged message of this life of the broker may take a while to be visible: `pull_answers` judges that.
    is_far = asked.after_ns[mine] - ended_ns[before] > context.wake_ns if len(ended_ns) else before >= 0
    fell = np.flatnonzero(
        (before >= 0) & is_far & (np.append(shown_end, 0)[before] > answers.values["offset_max"][mine])
    )
    picked = [("pull.max.never_falls", mine[fell], before[fell])]
    if not context.is_own:
        gone, message = _gone(answers, own, acknowledged, life[len(answers) :])
        is_asked = others[gone]
        picked.append(("pull.min.kept", gone[is_asked], message[is_asked] + len(answers)))
    shown: list[tuple[str, list[tuple[int, int]]]] = []
    for clause, rows, causes in picked:
        order = np.argsort(answers.after_ns[rows], kind="stable")
        firsts = np.sort(np.unique(own[rows[order]], return_index=True)[1])[:FINDINGS_MAX]
        for row, cause in zip(rows[order][firsts].tolist(), causes[order][firsts].tolist(), strict=True):
            at = [(asked, row), (answers, row)]
            own_cause = cause < len(answers)
            at += [(asked, cause), (answers, cause)] if own_cause else [(acknowledged, cause - len(answers))]
            shown.append((clause, [(int(kind.split[place]), int(kind.row[place])) for kind, place in at]))
    events = events_at(tables, (place for _clause, places in shown for place in places))
    for clause, places in shown:
        yield _doubtful(clause, [events[place] for place in places], context)


def _gone(answers: Gathered, own: Keys, acknowledged: Gathered, life: Keys) -> tuple[Integers, Integers]:
    """Answers whose minimum lies above a message that was acknowledged less than an hour before, and that message."""
    by_offset = np.argsort(acknowledged.values["queue_offset"], kind="stable")
    # By offset, as `highest_before` is by time: the latest acknowledgement below each minimum.
    latest = highest_before(
        life[by_offset],
        acknowledged.values["queue_offset"][by_offset],
        acknowledged.before_ns[by_offset],
        own,
        answers.values["offset_min"],
    )
    message = np.append(by_offset, -1)[latest]
    age_ns = answers.before_ns - np.append(acknowledged.after_ns, 0)[message]
    gone = np.flatnonzero((message >= 0) & (age_ns < RETENTION_MS * MS) & (age_ns > 0))
    return gone, message[gone]


def _doubtful(clause: str, evidence: list[dict[str, Any]], context: Context) -> Finding:
    """An answer that the contract cannot decide, with the evidence against it."""
    subject = evidence[1]
    if clause == "pull.min.kept":
        message = evidence[2]["queue_offset"]
        why = f"message {message} was acknowledged, and lies below offset_min {subject['offset_min']} within an hour"
        why += ": retention keeps messages for hours, and a full disk removes them earlier"
    else:
        why = f"an answer tells offset_max {subject['offset_max']}, and more was shown before"
        restarts = context.restarts.get(subject.get("broker", ""), NO_GAPS)
        (killed_ns,) = restarts.begin_from(np.array([evidence[-1]["before_ns"]])).tolist()
        is_killed = killed_ns < evidence[0]["after_ns"]
        unshown = ": no connection shows that the broker was not restarted in between"
        why += restart_text(killed_ns) if is_killed else unshown
    evidence.sort(key=order_of)
    return finding_of(evidence, subject, clause=clause, verdict="unknown", why=why)


def _findings(
    tables: Tables, exchanges: tuple[Gathered, Gathered], shown: list[_Fall], spans: Spans, context: Context
) -> Iterator[Finding]:
    asked, answers = exchanges

    def place(kind: Gathered, row: int) -> tuple[int, int]:
        return int(kind.split[row]), int(kind.row[row])

    places = []
    for fall in shown:
        own = [place(kind, row) for row in (fall.earlier, fall.one) for kind in (asked, answers)]
        places.append(list(dict.fromkeys([*own, *spans.path(fall.earlier, fall.one)])))
    events = events_at(tables, (each for several in places for each in several))
    for fall, several in zip(shown, places, strict=True):
        evidence = [events[each] for each in several]
        subject = evidence[3]
        is_steady = all(context.sources.get(each["source"], UNSEEN).is_steady for each in evidence)
        verdict: FindingVerdict = "violated" if is_steady else "unknown"
        is_same = subject.get("connection") == evidence[1].get("connection")
        evidence.sort(key=order_of)
        high, low = answers.values[SHOWN[fall.name]][fall.earlier], answers.values[fall.name][fall.one]
        where = "on its connection" if is_same else "in the same life of the broker"
        why = f"an answer tells {fall.name} {low}, and one sent {where} before it was asked for shows {high}"
        yield finding_of(evidence, subject, clause=fall.clause, verdict=verdict, why=why)
