"""message_is_delivered: follows each message by its identity, and the pulls of each member of a group.

The module has the checks of Jepsen's workload for Kafka: one offset with two values, duplicates, aborted reads, early,
late and unseen messages, skipped and repeated reads. Each analysis is a function from the gathered events to breaches.
The clause of the same name decides whether a breach is a violation or an observation. A missing field is not compared.

The clauses `pull.found.complete`, `pull.passed.none_match` and `send.sequential` find lost messages and writes out of
order, because these need no identity. `sends` and `ends` gather the events. `gathered` creates the findings.

Source: https://github.com/jepsen-io/redpanda; `TransactionalMessageServiceImpl`, `ScheduleMessageService`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, field

from longpoll_judge.columns.lookup import (
    BEGINNING,
    NEVER,
    Booleans,
    Grouped,
    Integers,
    are_among,
    count_of,
    first_of,
    highest_before,
    is_one_of,
    least_of,
    numbered,
    order_by,
)
from longpoll_judge.contract.clause import EARLY_MS, LATE_MS, PULL_RESULTS, RETRY_MS
from longpoll_judge.evidence.generations import KEPT_NS
from longpoll_judge.evidence.survey import Context
from longpoll_judge.kernel.gathered import (
    Breach,
    Gathered,
    closes_of,
    gather,
    generations,
    have_request,
    nothing_gathered,
    numbered_generations,
    once,
    request_numbers,
    rows_where,
    together,
    with_life,
)
from longpoll_judge.kernel.pulls import MS
from longpoll_judge.read.schema import coded, integers_of, lists_of
from longpoll_protocol.properties import DELAY_LEVELS_MS

IDENTITY: Final = ("id", "body")
"""The identity of a message: its unique id as a small number (`ids_of`, 0 if unknown), and its body's hash (-1 if
unknown)."""
END_TRANSACTION: Final = 37
OUTCOMES: Final = {"prepared": 1, "commit": 2, "rollback": 3}
_NO_ROWS: Final = np.empty(0, dtype=np.int64)
_LEVELS_MS: Final = np.array([0, *DELAY_LEVELS_MS], dtype=np.int64)
_NO_EVENTS: Final = nothing_gathered(
    (
        *("offset", "group", "offset_next", "offset_max", "queue_offset", "delay_ms", "delay_level", "transaction"),
        *("message", "logged", "at", *IDENTITY),
    )
)


@define(eq=False, slots=False)
class View:
    """The gathered messages, and the pulls with their answers."""

    table: pa.Table
    context: Context
    sent: Gathered = _NO_EVENTS
    ended: Gathered = _NO_EVENTS
    """Requests that end a transaction."""
    refused: Integers = field(factory=lambda: np.empty(0, dtype=np.int64))
    """Sends that the broker refused, so it stored nothing."""
    unplaced: Gathered = _NO_EVENTS
    """Answers to sends that report a stored message without an offset."""
    told: Gathered = _NO_EVENTS
    """Acknowledged messages."""
    appended: Gathered = _NO_EVENTS
    delivered: Gathered = _NO_EVENTS
    copied: Gathered = _NO_EVENTS
    """Messages that pops got from the retry topic; `logged` is -1."""
    asked: Gathered = _NO_EVENTS
    answers: Gathered = _NO_EVENTS

    @cached_property
    def all_(self) -> Gathered:
        """Every message, once for each acknowledgement or delivery of it."""
        return together((self.told, self.delivered), ("queue_offset", "message", "logged", *IDENTITY))

    @cached_property
    def stored(self) -> tuple[Gathered, Integers, Integers, Integers]:
        """The result of `_stored`."""
        return _stored(self)


Analysis = Callable[[View], Breach | None]


def breaches_of(analyses: Iterable[Analysis], view: View) -> Iterator[Breach]:
    """Yields the breaches that the analyses find."""
    return (breach for find in analyses if (breach := find(view)) is not None)


def ids_of(table: pa.Table) -> tuple[Integers, Integers]:
    """Returns the lists of unique ids as small numbers; 0 for a missing id."""
    bounds, values = lists_of(table, "ids")
    numbers = np.unique(values, return_inverse=True)[1] + 1
    return bounds, np.where(values != 0, numbers, 0)


def real_ids(table: pa.Table, numbers: Iterable[int]) -> list[int]:
    """The unique ids that have these small numbers."""
    values = np.append(0, np.unique(lists_of(table, "ids")[1]))
    return [int(values[number]) for number in numbers]


def identity(table: pa.Table, ids: tuple[Integers, Integers], rows: Integers, nth: Integers) -> dict[str, Integers]:
    """Returns the identity of the `nth` message of each row, as columns."""
    return {"id": _item(ids, rows, nth, 0), "body": _item(lists_of(table, "bodies"), rows, nth, -1)}


def _item(lists: tuple[Integers, Integers], rows: Integers, nth: Integers, none: int) -> Integers:
    bounds, values = lists
    is_there = nth < np.diff(bounds)[rows]
    found: Integers = np.append(values, none)[np.where(is_there, bounds[rows] + nth, -1)]
    return found


def are_unlisted(table: pa.Table, rows: Integers) -> Booleans:
    """Returns the rows whose number of ids or bodies is neither 0 nor the number of offsets."""
    counts = [np.diff(lists_of(table, name)[0])[rows] for name in ("offsets", "ids", "bodies")]
    found: Booleans = np.logical_or.reduce([(count > 0) & (count != counts[0]) for count in counts[1:]])
    return found


def outcomes(table: pa.Table, rows: Integers) -> Integers:
    """Returns the outcome of the transaction of each row as a number; 0 without a transaction."""
    codes, names = coded(table, "transaction")
    return np.array([OUTCOMES.get(name, 0) for name in names], dtype=np.int64)[codes[rows]]


def identified(*lots: Gathered) -> None:
    """Set `message` for each message: a small number that is equal for equal unique ids in one topic."""
    for lot, number in zip(lots, numbered(*((lot.values["id"], lot.topic) for lot in lots)), strict=True):
        lot.values["message"] = number


def located(*lots: Gathered) -> None:
    """Number the place (queue and offset) of each message: `at` within one source, `logged` across all sources."""
    for name, places in (("at", [lot.place for lot in lots]), ("logged", [lot.log for lot in lots])):
        pairs = ((place, lot.values["queue_offset"]) for place, lot in zip(places, lots, strict=True))
        for lot, number in zip(lots, numbered(*pairs), strict=True):
            lot.values[name] = number


def _of_message(events: Gathered) -> Integers:
    """Returns numbers that are equal for equal unique ids in one topic.

    The broker is not compared, because a producer may send one message to several brokers.
    """
    return events.values["message"]


def _most(keys: Integers, wanted: Integers, values: Integers, none: int) -> Integers:
    """Returns, for each wanted key, the highest value of the rows with this key; `none` if no row has it."""
    return -least_of(keys, wanted, -values, -none)


def _others(events: Gathered, rows: Integers, key: Integers, value: Integers) -> tuple[Integers, Integers]:
    """Returns rows whose value differs from the earliest row of their key, and for each event that earliest row."""
    cause = np.full(len(events), -1, dtype=np.int64)
    own = key[rows]
    rows = rows[least_of(own, own, value[rows], 0) != _most(own, own, value[rows], 0)]
    rows = rows[np.argsort(events.before_ns[rows], kind="stable")]
    cause[rows] = rows[first_of(key[rows], key[rows])]
    return once(events, rows[value[rows] != value[cause[rows]]], cause), cause


def _are_outside(events: Gathered, context: Context) -> Booleans:
    return ~events.are("source", context.inside)


def _are_holed(events: Gathered, since_ns: Integers, until_ns: Integers, context: Context) -> Booleans:
    found = np.zeros(len(events), dtype=np.bool_)
    for broker, holes in context.broker_holes.items():
        if len(holes):
            found |= events.are("broker", [broker]) & holes.touch(np.minimum(since_ns, until_ns), until_ns)
    return found


def _appends(view: View, events: Gathered) -> Integers:
    """Returns each message's append; -1 if none was recorded, for example if the message is older than the record."""
    return first_of(events.values["logged"], view.appended.values["logged"])


def one_value(view: View) -> Breach | None:
    """Returns different messages with one offset in one generation of a queue."""
    all_ = view.all_
    # A kill may lose unflushed messages, so a different message after a kill is weak evidence. A broker that stops in
    # order loses no message, so a different message after such a stop is strong evidence.
    told = evolve(view.context, restarts={}, life_holes=view.context.unordered_holes)
    life, is_doubtful = numbered_generations(all_, all_, told)
    (key,) = with_life((all_.values["logged"], life))
    members, partner = np.zeros(len(all_), dtype=np.bool_), np.full(len(all_), -1, dtype=np.int64)
    for name, none in zip(IDENTITY, (0, -1), strict=True):
        value = all_.values[name]
        wrong, cause = _others(all_, np.flatnonzero((value != none) & ~is_doubtful), key, value)
        partner[wrong], members[wrong] = cause[wrong], True
    if not members.any():
        return None
    first = all_.take(partner)
    weak = _are_outside(all_, view.context) & _may_be_lost(first, all_, view.context)
    events = ((all_, np.arange(len(all_))), (all_, partner))

    def who(member: int) -> str:
        numbers, bodies = ([int(all_.values[name][row]) for row in (partner[member], member)] for name in IDENTITY)
        ids = real_ids(view.table, numbers)
        return f"ids {ids[0]} and {ids[1]}" if ids[0] != ids[1] else f"id {ids[0]}, bodies {bodies[0]} and {bodies[1]}"

    return Breach("message.one_value", np.flatnonzero(members), events, "one queue offset has two messages", weak, who)


def as_sent(view: View) -> Breach | None:
    """Returns messages that were delivered with another body, or in another queue, than each of their sends before.

    Where an acknowledgement shows the message, other rules compare them. A producer may have sent the same id again
    where no observer saw it.
    """
    sent = view.sent.take(~are_among(view.sent.request, view.refused))
    sent = sent.take(np.argsort(sent.after_ns, kind="stable"))
    got = together((view.delivered, view.copied), ("message", "logged", *IDENTITY))
    own, key = got.values["message"], sent.values["message"]
    send = first_of(own, key)
    # A copy is in a queue of the retry topic.
    is_placed = (np.arange(len(got)) < len(view.delivered)) & ~are_among(own, view.told.values["message"])
    is_other = np.zeros(len(got), dtype=np.bool_)
    for value, of_send in (
        (got.values["body"], sent.values["body"]),
        (np.where(is_placed, got.queue, -1), sent.queue),
    ):
        values, untold, told = numbered((own, value), (own, np.full_like(value, -1)), (key, of_send))
        same_ns = (least_of(told, wanted, sent.after_ns, NEVER) for wanted in (values, untold))
        is_other |= (value != -1) & (np.minimum(*same_ns) > got.before_ns)
    is_other &= (got.values["id"] != 0) & (np.append(sent.after_ns, NEVER)[send] <= got.before_ns)
    is_other &= ~are_among(got.values["logged"], view.told.values["logged"])
    if not is_other.any():
        return None
    append = _appends(view, got)
    weak = _are_outside(got, view.context) | (append < 0) | (got.broker != np.append(sent.broker, 0)[send])
    weak |= _are_holed(got, np.full_like(got.before_ns, BEGINNING), got.before_ns, view.context)
    events = ((got, np.arange(len(got))), (sent, send), (view.appended, append))
    why = "a message was delivered with another body or in another queue than its send has"
    return Breach("message.one_value", np.flatnonzero(is_other), events, why, weak)


def _may_be_lost(first: Gathered, second: Gathered, context: Context) -> Booleans:
    """Whether a kill between the two events of each pair may have lost the first event's message.

    If one connection existed at both events, no kill came between them.
    """
    _after_ns, closed_ns = closes_of(first, context)
    found: Booleans = ((closed_ns < second.before_ns) | (first.connection == 0)) & (
        first.connection != second.connection
    )
    tells = first.are("source", context.spans) & second.are("source", context.spans)
    tells &= (first.connection != 0) & (second.connection != 0)
    killed = np.zeros(len(found), dtype=np.bool_)
    for broker, kills in context.kills.items():
        mine = first.are("broker", [broker])
        since_ns, until_ns = (pick(first.before_ns, second.before_ns) for pick in (np.minimum, np.maximum))
        is_young = since_ns >= kills.begin_from(since_ns) - KEPT_NS
        killed |= mine & kills.touch(since_ns, until_ns) & is_young
    return np.where(tells, killed, found)


def _stored(view: View) -> tuple[Gathered, Integers, Integers, Integers]:
    """Returns the messages that are stored at two places, which are offsets of queues.

    The result has all messages, the rows of messages at a second place, the first place by message, and how often each
    message may be stored.
    """
    all_ = view.all_
    rows = np.flatnonzero(all_.values["id"] != 0)
    (value,) = numbered((all_.queue, all_.values["queue_offset"]))
    members, cause = _others(all_, rows, _of_message(all_), value)
    own = all_.take(members)
    commits = view.ended.take(view.ended.values["transaction"] == OUTCOMES["commit"])
    count = np.zeros(len(all_), dtype=np.int64)
    sends = count_of(_of_message(view.sent), _of_message(own))
    commit_count = count_of(commits.values["id"], own.values["id"])
    # If no send to the topic was recorded, as for retries, the number of stored copies is unknown.
    count[members] = np.where(sends > 0, np.maximum(sends, commit_count), 0)
    return all_, members, cause, count


def stored_once(view: View) -> Breach | None:
    """Returns messages of one send that are stored at two places.

    If the observer is outside the broker, the breach is weak, because the producer may have sent the message again,
    unobserved.
    """
    all_, members, cause, count = view.stored
    members = members[count[members] == 1]
    if not len(members):
        return None
    until_ns = all_.before_ns
    since_ns = np.full_like(until_ns, BEGINNING)
    append = _appends(view, all_)
    weak = _are_outside(all_, view.context) | _are_holed(all_, since_ns, until_ns, view.context)
    weak |= (append < 0) | (append[cause] < 0) | (all_.broker != all_.broker[cause])
    sent = first_of(_of_message(all_), _of_message(view.sent))
    appends = (view.appended, append), (view.appended, append[cause])
    events = ((all_, np.arange(len(all_))), (all_, cause), (view.sent, sent), *appends)
    return Breach("message.stored.once", members, events, "a message that was sent once is stored twice", weak)


def stored_again(view: View) -> Breach:
    """Returns messages that were sent or committed several times and are stored at several places."""
    all_, members, cause, count = view.stored
    events = ((all_, np.arange(len(all_))), (all_, cause))
    return Breach(
        "message.stored.again",
        members[count[members] > 1],
        events,
        "a message that was sent more than once is stored twice",
    )


def committed(view: View) -> Breach | None:
    """Returns prepared or refused messages that were delivered although they cannot have been committed before."""
    got, sent, ended = view.delivered, view.sent, view.ended
    own = _of_message(got)
    is_hidden = (sent.values["transaction"] == OUTCOMES["prepared"]) | are_among(sent.request, view.refused)
    if not is_hidden.any():
        return None
    wanted = (got.values["id"] != 0) & (least_of(_of_message(sent), own, is_hidden.astype(np.int64), 0) == 1)
    ends, key = ended.values["id"], got.values["id"]
    is_commit, is_back = (ended.values["transaction"] == OUTCOMES[name] for name in ("commit", "rollback"))
    commit_ns = least_of(ends[is_commit], key, ended.after_ns[is_commit], NEVER)
    back = np.append(np.flatnonzero(is_back), -1)[first_of(key, ends[is_back])]
    is_back_before = (back >= 0) & (np.append(ended.before_ns, NEVER)[back] < got.before_ns)
    send = first_of(own, _of_message(sent))
    members = once(got, np.flatnonzero(wanted & (commit_ns > got.before_ns)), send)
    since_ns = np.append(sent.after_ns, BEGINNING)[send]
    # If the delivery came before each known send, a send from before the delivery is missing from the record.
    since_ns[since_ns > got.before_ns] = BEGINNING
    append = _appends(view, got)
    # After a rollback, no commit can make the message visible, unless the message was sent again, perhaps to another
    # broker.
    is_over = is_back_before & (count_of(_of_message(sent), own) == 1)
    weak = (_are_outside(got, view.context) | (append < 0)) & ~is_over
    weak |= _are_holed(got, since_ns, got.before_ns, view.context)
    back = np.where(is_back_before, back, -1)
    events = ((got, np.arange(len(got))), (sent, send), (ended, back), (view.appended, append))
    return Breach(
        "message.committed",
        members,
        events,
        "a prepared or refused message is delivered, and no commit of it came before",
        weak,
    )


def sent_later(view: View) -> Breach | None:
    """Returns messages that were delivered before each of their recorded sends.

    `_delivered` in `sends` finds the messages whose acknowledgement shows their offset. On a connection from before the
    record began, a producer may have sent a message before the record began, and a second time within `RETRY_MS`.
    """
    got, sent = view.delivered, view.sent
    own, keys = numbered(*((_of_message(each), each.source) for each in (got, sent)))
    by_time = np.argsort(sent.after_ns, kind="stable")
    send = np.append(by_time, -1)[first_of(own, keys[by_time])]
    sent_ns = np.append(sent.after_ns, BEGINNING)[send]
    is_told = are_among(got.values["at"], view.told.values["at"])
    members = np.flatnonzero((got.before_ns < sent_ns) & (got.values["id"] != 0) & ~is_told)
    if not len(members):
        return None
    opened = gather(view.table, np.flatnonzero(rows_where(view.table, "connection_opened")))
    names, wanted = numbered(*((each.source, each.connection) for each in (opened, sent)))
    connection = np.append(np.where(sent.connection != 0, first_of(wanted, names), -1), -1)[send]
    weak = (connection < 0) | (np.append(opened.before_ns, NEVER)[connection] > sent_ns)
    for name, facts in view.context.sources.items():
        first_ns = np.full_like(got.before_ns, facts.first_ns)
        is_near = (sent_ns <= first_ns + RETRY_MS * MS) | facts.holes.touch(first_ns, got.before_ns)
        weak |= got.are("source", [name]) & is_near
    events = ((got, np.arange(len(got))), (sent, send), (opened, connection))
    return Breach(
        "send.delivered.after_request",
        once(got, members, send),
        events,
        "a message was delivered before its send came, by its id",
        weak,
    )


def _delays(sent: Gathered) -> tuple[Integers, Integers]:
    """Returns the delay level of each send (0 if it has no level), and its delay in milliseconds."""
    level = np.clip(sent.values["delay_level"], 0, len(_LEVELS_MS) - 1)
    return level, np.where(sent.values["delay_ms"] >= 0, sent.values["delay_ms"], _LEVELS_MS[level])


def _due_ns(
    view: View, pick: Callable[[Integers, Integers, Integers, int], Integers], moment_ns: Integers, none: int
) -> tuple[Integers, Booleans]:
    """Returns when each delivered message is due by the send that `pick` selects, and whether a send has a level."""
    sent, own = view.sent, _of_message(view.delivered)
    level, delay_ms = _delays(sent)
    # Skip prepared messages, which are due only after their commit.
    is_asked = (sent.values["transaction"] == 0) & (sent.values["id"] != 0)
    if not (delay_ms[is_asked] > 0).any():
        return np.full(len(own), none, dtype=np.int64), np.zeros(len(own), dtype=np.bool_)
    key = _of_message(sent)
    due_ns = pick(key[is_asked], own, (moment_ns + delay_ms * MS)[is_asked], none)
    is_delayed = least_of(key[is_asked], own, delay_ms[is_asked], 0) > 0
    has_level = _most(key, own, level, 0) > 0
    return np.where(is_delayed & (view.delivered.values["id"] != 0), due_ns, none), has_level


def early(view: View) -> Breach:
    """Returns messages that were delivered too early.

    The delay levels depend on the broker's configuration, so a violation is uncertain if the send has a level.
    """
    got = view.delivered
    due_ns, has_level = _due_ns(view, least_of, view.sent.after_ns, BEGINNING)
    send = first_of(_of_message(got), _of_message(view.sent))
    members = once(got, np.flatnonzero(got.before_ns < due_ns - EARLY_MS * MS), send)
    weak = has_level | got.are("source", view.context.settable)
    why = f"a delayed message is delivered more than {EARLY_MS} ms before it is due"
    return Breach("message.early", members, ((got, np.arange(len(got))), (view.sent, send)), why, weak)


def late(view: View) -> Breach:
    """Returns messages that were delivered too late to a pull that was already waiting when they became due."""
    got = view.delivered
    due_ns, _has_level = _due_ns(view, _most, view.sent.before_ns, NEVER)
    mine = np.flatnonzero(got.after_ns > np.minimum(due_ns, NEVER - LATE_MS * MS) + LATE_MS * MS)
    send = first_of(_of_message(got), _of_message(view.sent))
    mine = once(got, mine, send)
    asked = requests_of(view.table, got.take(mine))
    request = np.full(len(got), -1, dtype=np.int64)
    request[mine] = first_of(got.request[mine], asked.request)
    waited = mine[(request[mine] >= 0) & (np.append(asked.before_ns, NEVER)[request[mine]] < due_ns[mine])]
    why = f"a delayed message is delivered more than {LATE_MS} ms after it was due, to a pull that waited for it"
    return Breach("message.late", waited, ((got, np.arange(len(got))), (view.sent, send), (asked, request)), why)


def are_reads(table: pa.Table) -> Booleans:
    """Returns the answers with a request's identifier, a code of a read and the queue's bounds."""
    lowest, highest = integers_of(table, "offset_min"), integers_of(table, "offset_max")
    found = rows_where(table, "answer_sent") & have_request(table)
    found &= is_one_of(integers_of(table, "code"), PULL_RESULTS)
    # Skip answers whose bounds contradict each other: they do not show that an end fell, and a different clause covers
    # them.
    found &= (lowest >= 0) & (lowest <= highest)
    return found


def _visible_ns(view: View) -> tuple[Integers, Integers]:
    """Returns when each send's message must be readable (`NEVER` if unknown), and the send's answer without an offset.

    The time is known for a delayed message, and for a message that was stored without an offset, unless the message
    must be committed first.
    """
    sent, commits = view.sent, view.ended
    commits = commits.take(commits.values["transaction"] == OUTCOMES["commit"])
    answer = first_of(sent.request, view.unplaced.request)
    _level, delay_ms = _delays(sent)
    since_ns = np.where(answer >= 0, np.append(view.unplaced.before_ns, NEVER)[answer], sent.before_ns)
    commit_ns = _most(commits.values["id"], sent.values["id"], commits.before_ns, NEVER)
    commit_ns = np.where(answer >= 0, commit_ns, NEVER)
    due_ns = np.where((answer >= 0) | (delay_ms > 0), since_ns + delay_ms * MS, NEVER)
    return np.where(sent.values["transaction"] == 0, due_ns, np.maximum(due_ns, commit_ns)), answer


def overdue(view: View) -> Breach | None:
    """Returns messages that were not in the queue long after they were due, as the answer to a later pull shows."""
    got, sent = view.delivered, view.sent
    visible_ns, _answer = _visible_ns(view)
    if (visible_ns == NEVER).all():
        return None
    due_ns = _most(_of_message(sent), _of_message(got), visible_ns, NEVER)
    late_ns = np.minimum(due_ns, NEVER - LATE_MS * MS) + LATE_MS * MS
    mine = np.flatnonzero((got.values["id"] != 0) & (got.after_ns > late_ns))
    own = got.take(mine)
    asked, answers = reads_of(view, own)
    # Of the reads whose end of the queue is not beyond the message, take the last one.
    reads, life = _lives(view, (asked, answers), (own, own))
    read = np.full(len(got), -1, dtype=np.int64)
    read[mine] = highest_before(
        reads, answers.values["offset_max"], asked.after_ns, life, own.values["queue_offset"] + 1
    )
    is_late = np.append(asked.after_ns, BEGINNING)[read] > late_ns
    send = first_of(_of_message(got), _of_message(sent))
    members = once(got, mine[is_late[mine]], send)
    events = ((got, np.arange(len(got))), (sent, send), (asked, read), (answers, read))
    why = f"a message was not there more than {LATE_MS} ms after it was due"
    return Breach("message.overdue", members, events, why, np.ones(len(got), dtype=np.bool_))


def lost(view: View) -> Breach | None:
    """Returns messages that their broker reported as stored, but that are at no offset of their queue.

    The record shows another message at every offset that the message can have. The possible offsets lie between an end
    of the queue from before the send and an end from long after the send.
    """
    sent, all_ = view.sent, view.all_
    due_ns, answer = _visible_ns(view)
    is_told = (answer >= 0) & (sent.queue >= 0) & (sent.topic != 0) & (sent.broker != 0) & (sent.values["id"] != 0)
    mine = np.flatnonzero(is_told & (due_ns < NEVER) & ~are_among(_of_message(sent), _of_message(all_)))
    if not len(mine):
        return None
    own, all_ = sent.take(mine), all_.take(all_.values["id"] != 0)
    asked, answers = reads_of(view, own)
    life, reads, places = _lives(view, (own, own), (asked, answers), (all_, all_))
    end = answers.values["offset_max"]
    first = np.append(end, 0)[highest_before(reads, answers.before_ns, end, life, own.after_ns)]
    last = highest_before(reads, -asked.after_ns, end, life, -(due_ns[mine] + LATE_MS * MS))
    until = np.maximum(np.append(end, 0)[last], first)
    # Count each offset once, even if several events name it.
    offset = all_.values["queue_offset"]
    order = order_by(places, offset)
    places, offset = places[order], offset[order]
    is_new = np.append(True, (places[1:] != places[:-1]) | (offset[1:] != offset[:-1]))[: len(order)]
    known = Grouped(places[is_new], offset[is_new], int(max(places.max(initial=-1), life.max())) + 1)
    is_full = (last >= 0) & (known.between(life, first, until) == until - first)
    read = np.full(len(sent), -1, dtype=np.int64)
    read[mine] = last
    events = ((sent, np.arange(len(sent))), (view.unplaced, answer), (asked, read), (answers, read))
    why = "a message was stored by the broker's word, and is at no place of its queue that it can have"
    return Breach("message.lost", mine[is_full], events, why, np.ones(len(sent), dtype=np.bool_))


def _lives(view: View, *lots: tuple[Gathered, Gathered]) -> list[Integers]:
    """Returns small numbers for exchanges, which are equal within one generation of a queue."""
    return with_life(*((each.whole_queue, generations(each, others, view.context)) for each, others in lots))


def reads_of(view: View, about: Gathered) -> tuple[Gathered, Gathered]:
    """Returns the pulls of the queues of some messages, and their answers."""
    if not len(about):
        return _NO_EVENTS, _NO_EVENTS
    answers = gather(view.table, np.flatnonzero(are_reads(view.table)), ("offset_max",))
    answers = answers.take(are_among(answers.whole_queue, about.whole_queue))
    asked = requests_of(view.table, answers)
    request = first_of(answers.request, asked.request)
    is_one = (request >= 0) & (np.append(asked.place, 0)[request] == answers.place)
    return asked.take(request[is_one]), answers.take(is_one)


def requests_of(table: pa.Table, answers: Gathered) -> Gathered:
    """Returns the requests that these answers belong to."""
    rows = np.flatnonzero(rows_where(table, "request_received") & have_request(table)) if len(answers) else _NO_ROWS
    return gather(table, rows[are_among(request_numbers(table, rows), answers.request)])


def _of_group(view: View) -> Integers:
    """Returns numbers that are equal for pulls of one group and one generation of a queue."""
    life = generations(view.asked, view.answers, view.context)
    (found,) = numbered((view.asked.log, life, view.asked.values["group"]))
    return found


def skipped(view: View) -> Breach:
    """Returns pulls from an offset beyond all messages that the group's members can have received before the pull."""
    asked, answers, group = view.asked, view.answers, _of_group(view)
    end = answers.values["offset_next"]
    reached = highest_before(group, answers.after_ns, end, group, asked.before_ns + 1)
    # The pull's own answer does not count as an earlier answer.
    is_own = reached == np.arange(len(asked))
    past = (reached >= 0) & ~is_own & (asked.values["offset"] > np.append(end, 0)[reached])
    members = np.flatnonzero(past & (asked.values["group"] != 0))
    every = np.arange(len(asked))
    why = "a group asks past the messages that it was given: it skips those in between"
    return Breach(
        "message.skipped", once(answers, members, group), ((answers, every), (asked, every), (answers, reached)), why
    )


def read_back(view: View) -> Breach:
    """Returns pulls whose offset is below the `offset_next` that the same member received last."""
    asked, answers = view.asked, view.answers
    (member,) = numbered((_of_group(view), asked.source, asked.connection))
    rank = np.empty(len(asked), dtype=np.int64)
    rank[np.argsort(asked.after_ns, kind="stable")] = np.arange(len(asked))
    last = highest_before(member, answers.before_ns, rank, member, asked.after_ns)
    back = (last >= 0) & (asked.values["offset"] < np.append(answers.values["offset_next"], 0)[last])
    members = once(answers, np.flatnonzero(back & (asked.values["group"] != 0)), member)
    every = np.arange(len(asked))
    why = "a member of a group asks again for messages that it was given"
    return Breach("message.read_back", members, ((answers, every), (asked, every), (answers, last)), why)


def unseen(view: View) -> Breach:
    """Returns acknowledged messages beyond all messages that any group received.

    Of each queue that a group reads, only the first unread message is returned.
    """
    told = view.told
    end = _most(view.asked.whole_queue, told.whole_queue, view.answers.values["offset_next"], NEVER)
    popped = gather(view.table, np.flatnonzero(rows_where(view.table, "message_popped")), ("queue_offset",))
    own, got = numbered(*((each.log, each.values["queue_offset"]) for each in (told, popped)))
    rows = np.flatnonzero((told.values["queue_offset"] >= end) & ~are_among(own, got))
    rows = rows[np.argsort(told.values["queue_offset"][rows], kind="stable")]
    first = rows[np.sort(np.unique(told.whole_queue[rows], return_index=True)[1])]
    why = "a message was acknowledged, and no group was given it, or passed it, in this record"
    return Breach("message.unseen", first, ((told, np.arange(len(told))),), why)


OF_MESSAGES: Final[Mapping[str, Analysis]] = {
    "message.one_value": one_value,
    "message.stored.once": stored_once,
    "message.stored.again": stored_again,
    "message.committed": committed,
    "message.early": early,
    "message.late": late,
    "message.overdue": overdue,
    "message.lost": lost,
}
"""The analyses of sends, acknowledgements and deliveries."""
OF_POLLS: Final[Mapping[str, Analysis]] = {
    "message.skipped": skipped,
    "message.read_back": read_back,
    "message.unseen": unseen,
}
"""The analyses of pulls and their answers, for observers outside the broker."""
