"""message_is_delivered: follows each message by its identity, and each group member's pulls.

The checks are those of Jepsen's workload for Kafka: one offset with two values, duplicates, aborted reads, early, late
and unseen messages, skipped and repeated reads. Each analysis is a function from the gathered events to breaches. The
clause of the same name says whether a breach is a violation or an observation. Missing fields are not compared.

Lost messages and writes out of order need no identity: `pull.found.complete`, `pull.passed.none_match` and
`send.sequential`. Gathering: `sends`, `logs`. Reports: `cross_queue`.

Source: https://github.com/jepsen-io/redpanda; `TransactionalMessageServiceImpl`, `ScheduleMessageService`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import evolve, field, frozen

from longpoll_judge.columns.keys import NO_KEYS, Keys, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers
from longpoll_judge.columns.queue_log import BEGINNING, NEVER
from longpoll_judge.contract.clause import EARLY_MS, LATE_MS
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import coded
from longpoll_judge.rules.cross_queue import (
    WEIGHT,
    Breach,
    Gathered,
    Gathering,
    Tables,
    closes_of,
    first_of,
    generations,
    hash_of,
    hashes_of,
    have_request,
    highest_before,
    numbered_generations,
    once,
    queue_keys,
    rows_where,
    together,
)
from longpoll_judge.rules.queue_columns import MS
from longpoll_protocol.properties import DELAY_LEVELS_MS

IDENTITY: Final = ("id", "body")
"""The identity of a message; 0 and -1 if unknown."""
END_TRANSACTION: Final = 37
OUTCOMES: Final = {"prepared": 1, "commit": 2, "rollback": 3}
_LEVELS_MS: Final = np.array([0, *DELAY_LEVELS_MS], dtype=np.int64)
_NO_EVENTS: Final = Gathering(
    ("offset", "group", "offset_next", "queue_offset", "delay_ms", "delay_level", "transaction", *IDENTITY)
).all()


@frozen(eq=False)
class View:
    """The gathered messages, one a row, and the pulls with their answers, one a row."""

    tables: Tables
    context: Context
    sent: Gathered = _NO_EVENTS
    ended: Gathered = _NO_EVENTS
    """Ends of transactions."""
    refused: Keys = NO_KEYS
    """Sends that the broker did not store."""
    told: Gathered = _NO_EVENTS
    """Acknowledged."""
    appended: Gathered = _NO_EVENTS
    delivered: Gathered = _NO_EVENTS
    asked: Gathered = _NO_EVENTS
    answers: Gathered = _NO_EVENTS


@frozen(eq=False)
class Wrong:
    """The breaches that one analysis found; see `Breach`."""

    members: Integers
    events: tuple[tuple[Gathered, Integers], ...]
    why: str
    weak: Booleans = field(factory=lambda: np.zeros(0, dtype=np.bool_))


Analysis = Callable[[View], Wrong]


def breaches_of(analyses: Mapping[str, Analysis], view: View) -> Iterator[Breach]:
    """The breaches that each analysis finds, by clause."""
    for clause, find in analyses.items():
        wrong = find(view)
        yield Breach(clause, wrong.members, wrong.weak, wrong.events, wrong.why)


# -- columns -----------------------------------------------------------------------------------------------------------


def identity(table: pa.Table, rows: Integers, nth: Integers) -> dict[str, Integers]:
    """The identity of the `nth` message of each row."""
    return {"id": _item(table, "ids", rows, nth, 0), "body": _item(table, "bodies", rows, nth, -1)}


def _item(table: pa.Table, name: str, rows: Integers, nth: Integers, none: int) -> Integers:
    lists = table[name].combine_chunks()
    bounds, values = lists.offsets.to_numpy().astype(np.int64), lists.values.to_numpy()
    is_there = nth < np.diff(bounds)[rows]
    found: Integers = np.append(values, none)[np.where(is_there, bounds[rows] + nth, -1)]
    return found


def are_unlisted(table: pa.Table, rows: Integers) -> Booleans:
    """Which rows have some ids or bodies, but not as many as offsets."""
    counts = [
        np.diff(table[name].combine_chunks().offsets.to_numpy().astype(np.int64))[rows]
        for name in ("offsets", "ids", "bodies")
    ]
    found: Booleans = np.logical_or.reduce([(count > 0) & (count != counts[0]) for count in counts[1:]])
    return found


def outcomes(table: pa.Table, rows: Integers) -> Integers:
    """The outcome of the transaction of each row, as a number; 0 if it has none."""
    codes, names = coded(table, "transaction")
    return np.array([OUTCOMES.get(name, 0) for name in names], dtype=np.int64)[codes[rows]]


def _all(view: View) -> Gathered:
    """Every message, by each of its acknowledgements and deliveries."""
    return together((view.told, view.delivered), ("queue_offset", *IDENTITY))


def _of_message(events: Gathered, *, topic: bool = True) -> Keys:
    """Equal for messages with one unique id in one topic, or in any: a producer may send one to several brokers."""
    found: Keys = (events.topic if topic else np.uint64(0)) * WEIGHT + events.values["id"].astype(np.uint64)
    return found


def _least(keys: Keys, wanted: Keys, values: Integers, none: int) -> Integers:
    """For each wanted key the least value of that key; `none` where there is none."""
    order = np.lexsort((values, keys))
    found: Integers = np.append(values[order], none)[first_of(wanted, keys[order])]
    return found


def _most(keys: Keys, wanted: Keys, values: Integers, none: int) -> Integers:
    """The same of the greatest value."""
    return -_least(keys, wanted, -values, -none)


def count_of(keys: Keys, wanted: Keys) -> Integers:
    """How often each wanted key is there."""
    names, counts = np.unique(keys, return_counts=True)
    found: Integers = np.append(counts, 0)[first_of(wanted, names)]
    return found


def _others(events: Gathered, rows: Integers, key: Keys, value: Keys | Integers) -> tuple[Integers, Integers]:
    """Of these rows those with another value than the first in time of their key, and by event that first one."""
    rows = rows[np.argsort(events.before_ns[rows], kind="stable")]
    _names, first, inverse = np.unique(key[rows], return_index=True, return_inverse=True)
    cause = np.full(len(events), -1, dtype=np.int64)
    cause[rows] = rows[first[inverse]]
    return once(events, rows[value[rows] != value[cause[rows]]], cause), cause


def _are_outside(events: Gathered, context: Context) -> Booleans:
    return ~np.isin(events.source, hashes_of(context.inside))


def _are_holed(events: Gathered, since_ns: Integers, until_ns: Integers, context: Context) -> Booleans:
    """Whether something may have happened to the brokers of these events in between that is not in the record."""
    found = np.zeros(len(events), dtype=np.bool_)
    for broker, holes in context.broker_holes.items():
        if len(holes):
            mine = events.broker == (hash_of(broker) if broker else np.uint64(0))
            found |= mine & holes.touch(np.minimum(since_ns, until_ns), until_ns)
    return found


def _appends(view: View, events: Gathered) -> Integers:
    """Of each message the append at its place; -1 where none is seen, as of one stored before the record began."""
    own, other = (
        np.where(each.broker != 0, queue_keys(each), each.place) * WEIGHT
        + each.values["queue_offset"].astype(np.uint64)
        for each in (events, view.appended)
    )
    return first_of(own, other)


# -- messages ----------------------------------------------------------------------------------------------------------


def one_value(view: View) -> Wrong:
    """Messages at one place of one life of a queue that are not the same."""
    all_ = _all(view)
    # What a restart may lose is weak, and what it may not is not.
    life, is_doubtful = numbered_generations(all_, all_, evolve(view.context, restarts={}))
    place = np.where(all_.broker != 0, queue_keys(all_), all_.place) * WEIGHT + life
    key = place * WEIGHT + all_.values["queue_offset"].astype(np.uint64)
    members, partner = np.zeros(len(all_), dtype=np.bool_), np.full(len(all_), -1, dtype=np.int64)
    for name, none in zip(IDENTITY, (0, -1), strict=True):
        value = all_.values[name]
        wrong, cause = _others(all_, np.flatnonzero((value != none) & ~is_doubtful), key, value)
        partner[wrong], members[wrong] = cause[wrong], True
    first = all_.take(partner)
    # From outside a broker may have been killed, and have lost the first, if no connection outlived both.
    _after_ns, closed_ns = closes_of(first, view.context)
    ended = (closed_ns < all_.before_ns) | (first.connection == 0)
    weak = _are_outside(all_, view.context) & ended & (first.connection != all_.connection)
    every = np.arange(len(all_))
    return Wrong(np.flatnonzero(members), ((all_, every), (all_, partner)), "one queue offset has two messages", weak)


def _stored(view: View) -> tuple[Gathered, Integers, Integers, Integers]:
    """Messages, those found at a second place, by message the one at the first, and how often each may be stored."""
    all_ = _all(view)
    rows = np.flatnonzero(all_.values["id"] != 0)
    value = all_.queue.astype(np.uint64) * WEIGHT + all_.values["queue_offset"].astype(np.uint64)
    members, cause = _others(all_, rows, _of_message(all_), value)
    own = all_.take(members)
    commits = view.ended.take(view.ended.values["transaction"] == OUTCOMES["commit"])
    count = np.zeros(len(all_), dtype=np.int64)
    sends = count_of(_of_message(view.sent), _of_message(own))
    commit_count = count_of(_of_message(commits, topic=False), _of_message(own, topic=False))
    # Where no send to the topic is told, as of retries, nothing tells how often it was stored.
    count[members] = np.where(sends > 0, np.maximum(sends, commit_count), 0)
    return all_, members, cause, count


def stored_once(view: View) -> Wrong:
    """Messages of one send at two places. From outside a producer may have sent it again past every observer."""
    all_, members, cause, count = _stored(view)
    members = members[count[members] == 1]
    until_ns = all_.before_ns
    since_ns = np.full_like(until_ns, BEGINNING)
    append = _appends(view, all_)
    weak = _are_outside(all_, view.context) | _are_holed(all_, since_ns, until_ns, view.context)
    weak |= (append < 0) | (append[cause] < 0) | (all_.broker != all_.broker[cause])
    sent = first_of(_of_message(all_), _of_message(view.sent))
    appends = (view.appended, append), (view.appended, append[cause])
    events = ((all_, np.arange(len(all_))), (all_, cause), (view.sent, sent), *appends)
    return Wrong(members, events, "a message that was sent once is stored twice", weak)


def stored_again(view: View) -> Wrong:
    """Messages that were sent, or committed, several times, at several places."""
    all_, members, cause, count = _stored(view)
    events = ((all_, np.arange(len(all_))), (all_, cause))
    return Wrong(members[count[members] > 1], events, "a message that was sent more than once is stored twice")


def committed(view: View) -> Wrong:
    """Prepared or refused messages that are delivered though no commit of theirs may have come before."""
    got, sent, ended = view.delivered, view.sent, view.ended
    own = _of_message(got)
    is_hidden = (sent.values["transaction"] == OUTCOMES["prepared"]) | np.isin(sent.request, view.refused)
    wanted = (got.values["id"] != 0) & (_least(_of_message(sent), own, is_hidden.astype(np.int64), 0) == 1)
    ends, key = _of_message(ended, topic=False), _of_message(got, topic=False)
    is_commit, is_back = (ended.values["transaction"] == OUTCOMES[name] for name in ("commit", "rollback"))
    commit_ns = _least(ends[is_commit], key, ended.after_ns[is_commit], NEVER)
    back = np.append(np.flatnonzero(is_back), -1)[first_of(key, ends[is_back])]
    is_back_before = (back >= 0) & (np.append(ended.before_ns, NEVER)[back] < got.before_ns)
    send = first_of(own, _of_message(sent))
    members = once(got, np.flatnonzero(wanted & (commit_ns > got.before_ns)), send)
    since_ns = np.append(sent.after_ns, BEGINNING)[send]
    append = _appends(view, got)
    # After a rollback nothing can commit it, unless it was sent again, perhaps to another broker.
    is_over = is_back_before & (count_of(_of_message(sent), own) == 1)
    weak = (_are_outside(got, view.context) | (append < 0)) & ~is_over
    weak |= _are_holed(got, since_ns, got.before_ns, view.context)
    back = np.where(is_back_before, back, -1)
    events = ((got, np.arange(len(got))), (sent, send), (ended, back), (view.appended, append))
    return Wrong(members, events, "a prepared or refused message is delivered, and no commit of it came before", weak)


def sent_later(view: View) -> Wrong:
    """Messages of which every send that their source saw came after they were delivered.

    A producer may have sent one before, past the observer. One whose acknowledgement shows its place is told by that.
    """
    got, sent = view.delivered, view.sent
    own, keys = (_of_message(each) * WEIGHT + each.source for each in (got, sent))
    place, told = (each.place * WEIGHT + each.values["queue_offset"].astype(np.uint64) for each in (got, view.told))
    send = first_of(own, keys)
    is_later = got.before_ns < _least(keys, own, sent.after_ns, BEGINNING)
    members = np.flatnonzero(is_later & (got.values["id"] != 0) & ~np.isin(place, told))
    events = ((got, np.arange(len(got))), (sent, send))
    why = "a message was delivered before its send came, by its id"
    return Wrong(once(got, members, send), events, why, np.ones(len(got), dtype=np.bool_))


def _due_ns(
    view: View, pick: Callable[[Keys, Keys, Integers, int], Integers], moment_ns: Integers, none: int
) -> tuple[Integers, Booleans]:
    """When each delivered message is due, by the earliest or latest of its sends, and whether one names a level."""
    sent, own = view.sent, _of_message(view.delivered)
    level = np.clip(sent.values["delay_level"], 0, len(_LEVELS_MS) - 1)
    delay_ms = np.where(sent.values["delay_ms"] >= 0, sent.values["delay_ms"], _LEVELS_MS[level])
    # A prepared one is due once it is committed, at the earliest.
    is_asked = (sent.values["transaction"] == 0) & (sent.values["id"] != 0)
    key = _of_message(sent)
    due_ns = pick(key[is_asked], own, (moment_ns + delay_ms * MS)[is_asked], none)
    is_delayed = _least(key[is_asked], own, delay_ms[is_asked], 0) > 0
    has_level = _most(key, own, level, 0) > 0
    return np.where(is_delayed & (view.delivered.values["id"] != 0), due_ns, none), has_level


def early(view: View) -> Wrong:
    """Messages that are delivered before their time. The broker's configuration says what a delay level means."""
    got = view.delivered
    due_ns, has_level = _due_ns(view, _least, view.sent.after_ns, BEGINNING)
    send = first_of(_of_message(got), _of_message(view.sent))
    members = once(got, np.flatnonzero(got.before_ns < due_ns - EARLY_MS * MS), send)
    weak = has_level | np.isin(got.source, hashes_of(view.context.settable))
    why = f"a delayed message is delivered more than {EARLY_MS} ms before it is due"
    return Wrong(members, ((got, np.arange(len(got))), (view.sent, send)), why, weak)


def late(view: View) -> Wrong:
    """Messages that are delivered long after their time to a pull that waited for them since before it."""
    got = view.delivered
    due_ns, _has_level = _due_ns(view, _most, view.sent.before_ns, NEVER)
    mine = np.flatnonzero(got.after_ns > np.minimum(due_ns, NEVER - LATE_MS * MS) + LATE_MS * MS)
    send = first_of(_of_message(got), _of_message(view.sent))
    mine = once(got, mine, send)
    asked = requests_of(view.tables, got.take(mine))
    request = np.full(len(got), -1, dtype=np.int64)
    request[mine] = first_of(got.request[mine], asked.request)
    waited = mine[(request[mine] >= 0) & (np.append(asked.before_ns, NEVER)[request[mine]] < due_ns[mine])]
    why = f"a delayed message is delivered more than {LATE_MS} ms after it was due, to a pull that waited for it"
    return Wrong(waited, ((got, np.arange(len(got))), (view.sent, send), (asked, request)), why)


def requests_of(tables: Tables, answers: Gathered) -> Gathered:
    """The requests that these are answers to."""
    asked = Gathering(())
    for number, table in tables() if len(answers) else ():
        rows = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
        asked.add(table, number, rows[np.isin(request_keys(table, rows), answers.request)])
    return asked.all()


# -- polls -------------------------------------------------------------------------------------------------------------


def _of_group(view: View) -> Keys:
    """Equal for pulls of one group from one life of a queue."""
    queue = np.where(view.asked.broker != 0, queue_keys(view.asked), view.asked.place)
    life = queue * WEIGHT + generations(view.asked, view.answers, view.context)
    found: Keys = life * WEIGHT + view.asked.values["group"].view(np.uint64)
    return found


def skipped(view: View) -> Wrong:
    """Pulls past all that any member of the group can have been given by then."""
    asked, answers, group = view.asked, view.answers, _of_group(view)
    end = answers.values["offset_next"]
    reached = highest_before(group, answers.after_ns, end, group, asked.before_ns + 1)
    # An answer to the pull itself is no earlier one.
    is_own = reached == np.arange(len(asked))
    past = (reached >= 0) & ~is_own & (asked.values["offset"] > np.append(end, 0)[reached])
    members = np.flatnonzero(past & (asked.values["group"] != 0))
    cause = group.view(np.int64)
    every = np.arange(len(asked))
    why = "a group asks past the messages that it was given: it skips those in between"
    return Wrong(once(answers, members, cause), ((answers, every), (asked, every), (answers, reached)), why)


def read_back(view: View) -> Wrong:
    """Pulls of a member from before what it was given last."""
    asked, answers = view.asked, view.answers
    member = (_of_group(view) * WEIGHT + asked.source) * WEIGHT + asked.connection
    rank = np.empty(len(asked), dtype=np.int64)
    rank[np.argsort(asked.after_ns, kind="stable")] = np.arange(len(asked))
    last = highest_before(member, answers.before_ns, rank, member, asked.after_ns)
    back = (last >= 0) & (asked.values["offset"] < np.append(answers.values["offset_next"], 0)[last])
    members = once(answers, np.flatnonzero(back & (asked.values["group"] != 0)), member.view(np.int64))
    every = np.arange(len(asked))
    why = "a member of a group asks again for messages that it was given"
    return Wrong(members, ((answers, every), (asked, every), (answers, last)), why)


def unseen(view: View) -> Wrong:
    """Acknowledged messages past all that any group was given, the first of each queue that a group reads."""
    told, own = view.told, queue_keys(view.asked)
    end = _most(own, queue_keys(told), view.answers.values["offset_next"], NEVER)
    rows = np.flatnonzero(told.values["queue_offset"] >= end)
    rows = rows[np.argsort(told.values["queue_offset"][rows], kind="stable")]
    first = rows[np.sort(np.unique(queue_keys(told)[rows], return_index=True)[1])]
    why = "a message was acknowledged, and no group was given it, or passed it, in this record"
    return Wrong(first, ((told, np.arange(len(told))),), why)


OF_MESSAGES: Final[Mapping[str, Analysis]] = {
    "message.one_value": one_value,
    "message.stored.once": stored_once,
    "message.stored.again": stored_again,
    "message.committed": committed,
    "message.early": early,
    "message.late": late,
}
"""The analyses of sends, acknowledgements and deliveries."""
OF_POLLS: Final[Mapping[str, Analysis]] = {
    "message.skipped": skipped,
    "message.read_back": read_back,
    "message.unseen": unseen,
}
"""The analyses of pulls and their answers, from outside."""
