"""Properties of the two ends of a queue, as answers and acknowledgements report them. `order` judges a queue's log.

Within one run of the broker, neither end falls from one answer to a later one. Connections that overlap belong to one
run (`connections`), so an end that is lower after a restart has not fallen. After a topic was deleted, its queues start
at 0 again. `filters` judges the messages that answers passed over.

A message that was acknowledged or appended must become visible in time, while its source continues. This rule judges
only queues whose visible end was recorded, because otherwise a stopped dispatcher looks like a log that no client
reads. `sends` creates the findings.

Source: `ConsumeQueue.putMessagePositionInfo`, `DefaultMessageStore.getMinOffsetInQueue`, `getMaxOffsetInQueue`,
`ReputMessageService`, and the specification's properties of the same names.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import evolve, frozen

from longpoll_judge.columns.lookup import (
    BEGINNING,
    Booleans,
    Integers,
    are_among,
    first_of,
    highest_before,
    is_one_of,
    numbered,
)
from longpoll_judge.contract.clause import RETENTION_MS, SHOWN_MS, restart_text
from longpoll_judge.contract.clauses import finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.source_survey import NO_GAPS
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.kernel.case import FOUND, NO_MATCHED_MSG
from longpoll_judge.kernel.connections import Spans, generations_of
from longpoll_judge.kernel.filters import Filters, judge_filters
from longpoll_judge.kernel.gathered import (
    Gathered,
    changes_of,
    events_at,
    findings_of,
    gather,
    generations,
    have_request,
    names_of,
    received_again,
    rows_where,
    with_life,
)
from longpoll_judge.kernel.messages import OF_POLLS, View, are_reads, breaches_of
from longpoll_judge.kernel.pulls import MS, PULL_CODES
from longpoll_judge.read.schema import integers_of, lists_of, order_of, spread


def not_shown(messages: Gathered, moved: Gathered, context: Context) -> tuple[Integers, Integers]:
    """Returns each generation's first message that was not visible in time, and an event with the visible end.

    Both the message and the event are given as rows. A message that the deletion of its topic may have removed is
    ignored.
    """
    due_ns = messages.before_ns + SHOWN_MS * MS
    goes_on = np.zeros(len(messages), dtype=np.bool_)
    for name, facts in context.sources.items():
        # Skip sources with a specification, which may let a queue's end fall and has its own clauses for this.
        goes_on |= (name not in context.lawful) & messages.are("source", [name]) & (due_ns < facts.last_ns)
    told = first_of(messages.place, moved.place)
    # Judge only queues whose visible end a source records, and only while that source continues.
    asked = np.flatnonzero(goes_on & (told >= 0))
    asked = asked[~_may_be_gone(messages.take(asked), due_ns[asked], context)]
    life = _lives(messages, messages.after_ns, context)
    # An end that overlaps a deletion may belong to the generation before or after the deletion.
    told_lives = [_lives(moved, at_ns, context) for at_ns in (moved.after_ns, moved.before_ns)]
    life, ends = with_life((messages.place, life), (np.tile(moved.place, 2), np.concatenate(told_lives)))
    value, begun_ns = np.tile(moved.values["visible_end"], 2), np.tile(moved.after_ns, 2)
    best = highest_before(ends, begun_ns, value, life[asked], due_ns[asked] + 1)
    # The message is late if the highest end recorded by then does not exceed the message's offset.
    is_late = (best < 0) | (np.append(value, -1)[best] <= messages.values["queue_offset"][asked])
    late, best = asked[is_late], best[is_late]
    order = np.argsort(messages.after_ns[late], kind="stable")
    late, best = late[order], best[order]
    # Report the first late message of a generation, because later ones are late for the same reason.
    first = np.sort(np.unique(life[late], return_index=True)[1])
    late, best = late[first], best[first]
    return late, np.where(best >= 0, best % len(moved), told[late])


def are_doubted(messages: Gathered, context: Context) -> Booleans:
    """Returns which messages may be visible in time, because a source has a gap or a clock that may be set."""
    found = np.zeros(len(messages), dtype=np.bool_)
    until_ns = messages.before_ns + SHOWN_MS * MS
    for name, facts in context.sources.items():
        first_ns = np.full(len(messages), BEGINNING, dtype=np.int64)
        weak = facts.holes.touch(first_ns, until_ns) | (name in context.settable)
        found |= messages.are("source", [name]) & weak
    return found


def _may_be_gone(messages: Gathered, due_ns: Integers, context: Context) -> Booleans:
    found = np.zeros(len(messages), dtype=np.bool_)
    for mine, holes in changes_of(messages, context):
        found |= mine & holes.touch(messages.after_ns, due_ns)
    return found


def _lives(events: Gathered, at_ns: Integers, context: Context) -> Integers:
    """Returns the generation of the queue to which each event belongs, counting deletions that began by this time."""
    number = np.zeros(len(events), dtype=np.int64)
    for (broker, topic), holes in context.deleted.items():
        mine = events.are("broker", [broker])
        mine &= events.are("topic", [topic]) if topic else True
        number += np.where(mine, np.searchsorted(holes.starts, at_ns, side="right"), 0)
    return number


FINDINGS_MAX: Final = 50
"""The maximum number of findings of one clause that are listed; the others are counted."""
SHOWN: Final = {"offset_min": "offset_min", "offset_max": "shown_end"}
"""For `offset_min` and `offset_max`, the column with the end that earlier answers show, by their fields or by the
messages that they deliver."""


def _delivered_end(table: pa.Table) -> Integers:
    """The end of the messages that each event delivers or passes over, which may be above the end that it reports."""
    bounds, values = lists_of(table, "offsets")
    passed = is_one_of(integers_of(table, "code"), (FOUND, NO_MATCHED_MSG))
    found = np.where(passed, integers_of(table, "offset_next"), 0)
    # Only FOUND delivers messages; a list of offsets next to another code is a different kind of damage.
    filled = np.flatnonzero(integers_of(table, "code") == FOUND)
    owner, places = spread(bounds, filled)
    np.maximum.at(found, filled[owner], values[places] + 1)
    return found


def judge_ends(
    table: pa.Table, context: Context, native: Booleans, own: Booleans, *, most: int = FINDINGS_MAX
) -> tuple[list[Finding], int]:
    """Judge the `own` answers by the answers in `native` rows; returns at most `most` findings of each clause.

    Also returns the number of further findings.
    """
    named, code = have_request(table), integers_of(table, "code")
    rows = np.flatnonzero(rows_where(table, "request_received") & named & is_one_of(code, PULL_CODES))
    filters = Filters()
    told = {"filter": filters.numbers(table, rows), "group": names_of(table, "group", rows)}
    pulls = gather(table, rows, ("offset",), told)
    rows = np.flatnonzero(are_reads(table))
    told = {
        "shown_end": np.maximum(integers_of(table, "offset_max"), _delivered_end(table))[rows],
        "body_count": np.diff(lists_of(table, "offsets")[0])[rows],
        "own": own[rows].astype(np.int64),
    }
    answers = gather(table, rows, ("code", "offset_min", "offset_max", "offset_next"), told)
    opened = gather(table, np.flatnonzero(rows_where(table, "connection_opened")))
    acknowledged = rows_where(table, "message_acknowledged") & (integers_of(table, "queue_offset") >= 0) & native
    acknowledged_rows = np.flatnonzero(acknowledged & (integers_of(table, "queue") >= 0))
    messages = gather(table, acknowledged_rows, ("queue_offset",))
    request = first_of(answers.request, pulls.request)
    # If an identifier was received twice, by requests of any kind, it is unknown to which request an answer belongs.
    # Only on one connection is it certain that an answer was sent before the next request came.
    is_sure = (request >= 0) & ~are_among(answers.request, received_again(table))
    mine = np.flatnonzero(is_sure & (answers.connection != 0))
    answers, asked = answers.take(mine), pulls.take(request[mine])
    # An answer without a queue is about its request's queue. An answer with another queue is not judged here.
    mine = np.flatnonzero((answers.queue < 0) | (answers.place == asked.place))
    answers, asked = answers.take(mine), asked.take(mine)
    # Answers of other queues also show how long a connection lasted.
    spans = generations_of(answers, asked, opened, context)
    mine = np.flatnonzero(native[asked.row])
    answers, asked, spans = answers.take(mine), asked.take(mine), evolve(spans, of=spans.of[mine])
    (life,) = numbered((asked.whole_queue, spans.life, generations(asked, answers, context)))
    # If a source records the visible end, `visible_is_monotone` judges it more exactly.
    outside = ~asked.are_in(context.shown)
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
        # A missing answer has the index -1, which is replaced by 0 only for the lookup; `before >= 0` excludes it.
        fell = np.flatnonzero(is_asked & (before >= 0) & (shown_value[np.maximum(before, 0)] > value))
        have_fallen[fell] = True
        fell = fell[np.argsort(answers.before_ns[fell], kind="stable")]
        # If one answer reports an end that is too high, the ends in all later answers seem to have fallen, so report
        # the fault once.
        fell = fell[np.sort(np.unique(before[fell], return_index=True)[1])]
        fell = fell[own[answers.row[fell]]]
        shown += [_Fall(clause, name, one, int(before[one])) for one in fell[:most].tolist()]
        left_out += max(len(fell) - most, 0)
    found = list(_findings(table, (asked, answers), shown, spans, context))
    found += _unwatched(table, (asked, answers), messages, outside & ~have_fallen & own[answers.row], context)
    view = View(table, context, told=messages, asked=asked, answers=answers)
    breaches = (breach.only(own) for breach in breaches_of(OF_POLLS.values(), view))
    found += findings_of(table, breaches, context, most)
    disagreements, beyond = judge_filters(table, filters, (asked, answers), outside, context, most=most)
    return [*found, *disagreements], left_out + beyond


@frozen
class _Fall:
    """A fall of a queue's end: a later answer reports a lower end than an earlier answer."""

    clause: str
    name: str
    one: int
    earlier: int


def _unwatched(
    table: pa.Table, exchanges: tuple[Gathered, Gathered], acknowledged: Gathered, others: Booleans, context: Context
) -> Iterator[Finding]:
    """Yields possible faults that a restart or a full disk could explain, only the first fault for each cause.

    A fault is an end of a queue below an end that an earlier answer or acknowledgement shows, perhaps from another run
    of the broker, or a message that is removed soon after its acknowledgement. `others` are the answers that certainly
    show no fall.
    """
    asked, answers = exchanges
    told = evolve(context, life_holes={}, restarts={})
    mine = np.flatnonzero(others & (asked.broker != 0))
    shown_end = np.concatenate([answers.values["shown_end"], acknowledged.values["queue_offset"] + 1])
    ended_ns = np.concatenate([answers.before_ns, acknowledged.before_ns])
    own, other = with_life(
        (asked.whole_queue, generations(asked, answers, told)),
        (acknowledged.whole_queue, generations(acknowledged, acknowledged, told)),
    )
    life = np.concatenate([own, other])
    before = highest_before(life, ended_ns, shown_end, own[mine], asked.after_ns[mine])
    # A message that this run of the broker acknowledged may need some time to become visible, which `answers` judges.
    is_far = asked.after_ns[mine] - ended_ns[before] > context.wake_ns if len(ended_ns) else before >= 0
    fell = np.flatnonzero(
        (before >= 0) & is_far & (np.append(shown_end, 0)[before] > answers.values["offset_max"][mine])
    )
    picked = [("pull.max.never_falls", mine[fell], before[fell])]
    lowest = answers.values["offset_min"]
    before = highest_before(life[: len(answers)], answers.before_ns, lowest, own[mine], asked.after_ns[mine])
    fell = np.flatnonzero((before >= 0) & (np.append(lowest, 0)[before] > lowest[mine]))
    picked.append(("pull.min.never_falls", mine[fell], before[fell]))
    if not context.is_own:
        gone, message = _gone(answers, own, acknowledged, life[len(answers) :])
        is_asked = others[gone]
        picked.append(("pull.min.kept", gone[is_asked], message[is_asked] + len(answers)))
    shown: list[tuple[str, list[int]]] = []
    for clause, rows, causes in picked:
        order = np.argsort(answers.before_ns[rows], kind="stable")
        firsts = np.sort(np.unique(causes[order], return_index=True)[1])[:FINDINGS_MAX]
        for row, cause in zip(rows[order][firsts].tolist(), causes[order][firsts].tolist(), strict=True):
            at = [(asked, row), (answers, row)]
            own_cause = cause < len(answers)
            at += [(asked, cause), (answers, cause)] if own_cause else [(acknowledged, cause - len(answers))]
            shown.append((clause, [int(kind.row[place]) for kind, place in at]))
    events = events_at(table, (place for _clause, places in shown for place in places))
    for clause, places in shown:
        yield _doubtful(clause, [events[place] for place in places], context)


def _gone(answers: Gathered, own: Integers, acknowledged: Gathered, life: Integers) -> tuple[Integers, Integers]:
    """Returns answers whose `offset_min` is above a message acknowledged in the last hour, and that message."""
    by_offset = np.argsort(acknowledged.values["queue_offset"], kind="stable")
    # `highest_before` usually compares times. Here it compares offsets, to find the highest acknowledged offset below
    # each minimum.
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
    """Returns the finding that an answer may be a fault, but that the record cannot decide this."""
    subject = evidence[1]
    if clause == "pull.min.kept":
        message = evidence[2]["queue_offset"]
        why = f"message {message} was acknowledged, and lies below offset_min {subject['offset_min']} within an hour"
        why += ": retention keeps messages for hours, and a full disk removes them earlier"
    else:
        name = "offset_max" if clause == "pull.max.never_falls" else "offset_min"
        why = f"an answer tells {name} {subject[name]}, and more was shown before"
        restarts = context.restarts.get(subject.get("broker", ""), NO_GAPS)
        (killed_ns,) = restarts.begin_from(np.array([evidence[-1]["before_ns"]])).tolist()
        is_killed = killed_ns < evidence[0]["after_ns"]
        unshown = ": no connection shows that the broker was not restarted in between"
        why += restart_text(killed_ns) if is_killed else unshown
    evidence.sort(key=order_of)
    return finding_of(evidence, subject, clause=clause, verdict="unknown", why=why)


def _findings(
    table: pa.Table, exchanges: tuple[Gathered, Gathered], shown: list[_Fall], spans: Spans, context: Context
) -> Iterator[Finding]:
    asked, answers = exchanges

    places = []
    for fall in shown:
        own = [int(kind.row[row]) for row in (fall.earlier, fall.one) for kind in (asked, answers)]
        places.append(list(dict.fromkeys([*own, *spans.path(fall.earlier, fall.one)])))
    events = events_at(table, (each for several in places for each in several))
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
