"""Both ends of a queue as answers report them: within one run of the broker neither falls from one read to a later one.

Connections do not outlive their broker, so overlapping ones are of one run (`generations`), and a restart is not a
fall. A deleted topic begins again. The visible end is judged only for queues seen from outside, because the inside
shows it directly (`rightness`). Single answers: `rightness`. Messages passed over: `filters`.

Source: `DefaultMessageStore.getMinOffsetInQueue` and `getMaxOffsetInQueue`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field, frozen

from longpoll_judge.columns.keys import Keys, Received
from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.columns.queue_log import Integers
from longpoll_judge.contract.clause import PULL_RESULTS, RETENTION_MS
from longpoll_judge.contract.clauses import finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.read.schema import order_of
from longpoll_judge.rules.answers import FOUND, NO_MATCHED_MSG
from longpoll_judge.rules.breaches import findings_of
from longpoll_judge.rules.cross_queue import (
    WEIGHT,
    Booleans,
    Gathered,
    Gathering,
    Tables,
    events_at,
    first_of,
    generations,
    hashes,
    have_request,
    highest_before,
    keys_of_queues,
    queue_keys,
    rows_where,
)
from longpoll_judge.rules.filters import Filters, judge_filters
from longpoll_judge.rules.generations import Spans, generations_of
from longpoll_judge.rules.messages import OF_POLLS, View, breaches_of
from longpoll_judge.rules.queue_columns import MS, PULL_CODES

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
    told = evolve(context, life_holes={})
    mine = np.flatnonzero(others & (asked.broker != 0))
    shown_end = np.concatenate([answers.values["shown_end"], acknowledged.values["queue_offset"] + 1])
    ended_ns = np.concatenate([answers.before_ns, acknowledged.before_ns])
    own = queue_keys(asked) * WEIGHT + generations(asked, answers, told)
    life = np.concatenate([own, queue_keys(acknowledged) * WEIGHT + generations(acknowledged, acknowledged, told)])
    before = highest_before(life, ended_ns, shown_end, own[mine], asked.after_ns[mine])
    # An acknowledged message of this life of the broker may take a while to be visible: `rightness` judges that.
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
        yield _doubtful(clause, [events[place] for place in places])


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


def _doubtful(clause: str, evidence: list[dict[str, Any]]) -> Finding:
    """An answer that the contract cannot decide, with the evidence against it."""
    subject = evidence[1]
    if clause == "pull.min.kept":
        message = evidence[2]["queue_offset"]
        why = f"message {message} was acknowledged, and lies below offset_min {subject['offset_min']} within an hour"
        why += ": retention keeps messages for hours, and a full disk removes them earlier"
    else:
        why = f"an answer tells offset_max {subject['offset_max']}, and more was shown before"
        why += ": no connection shows that the broker was not restarted in between"
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
