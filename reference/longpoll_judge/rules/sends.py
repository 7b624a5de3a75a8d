"""send_is_kept: a send is acknowledged after it came, on its connection, with its message's place.

From outside, a message cannot have been there before its send's request. From inside, the append shows when it was
stored and what was stored. Logs as such: `logs`.

Source: `SendMessageProcessor.handlePutMessageResult`, `CommitLog.putMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.keys import Keys, Received, request_keys
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING
from longpoll_judge.contract.clause import (
    NOTE_REFUSED,
    SEND_ANSWERS,
    SEND_CODES,
    SEND_MS,
    SEND_NOT_STORED,
    SEND_STORED,
    SHOWN_MS,
    are_many_refused,
)
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import Finding, Gap, Share
from longpoll_judge.evidence.survey import Context
from longpoll_judge.read.schema import are_named, coded_texts
from longpoll_judge.rules.cross_queue import (
    WEIGHT,
    Breach,
    Gathered,
    Gathering,
    Tables,
    are_closed,
    breach_of,
    changes_of,
    closes_of,
    earliest,
    findings_of,
    first_of,
    generations,
    hash_of,
    hashes_of,
    have_request,
    highest_before,
    in_order,
    numbered_generations,
    once,
    placed_at,
    queue_keys,
    rows_where,
)
from longpoll_judge.rules.logs import are_doubted, not_shown
from longpoll_judge.rules.messages import (
    END_TRANSACTION,
    IDENTITY,
    OF_MESSAGES,
    View,
    are_unlisted,
    breaches_of,
    count_of,
    identity,
    outcomes,
    requests_of,
    sent_later,
)
from longpoll_judge.rules.queue_columns import MS

FINDINGS_MAX: Final = 50
"""Most findings of one clause that are listed; the others are counted."""

OWN_TOPICS: Final = ("%", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "TRANS_CHECK_")
"""Topics in which a broker stores messages sent to other topics: retries, delays and half messages."""


@define
class Messages:
    """The gathered sends, their messages and the pulls that got these."""

    sends: Gathering = field(factory=lambda: Gathering(()))
    acknowledged: Gathering = field(factory=lambda: Gathering(("queue_offset", "is_moved", "is_named", *IDENTITY)))
    refused: Gathering = field(factory=lambda: Gathering(("code",)))
    appended: Gathering = field(factory=lambda: Gathering(("queue_offset",)))
    delivered: Gathering = field(factory=lambda: Gathering(("queue_offset", *IDENTITY)))
    sent: Gathering = field(factory=lambda: Gathering((*IDENTITY, "delay_ms", "delay_level", "transaction")))
    """A row a message, of sends that tell who their messages are."""
    unlisted: Gathering = field(factory=lambda: Gathering(()))
    """Reads that tell the ids or bodies of some of their messages."""
    ended: Gathering = field(factory=lambda: Gathering((*IDENTITY, "transaction")))
    moved: Gathering = field(factory=lambda: Gathering(("visible_end",)))
    received: Received = field(factory=Received)

    def see(self, number: int, table: pa.Table) -> None:
        """The events of one split."""
        named = have_request(table)
        # A send without a name joins no acknowledgement.
        is_receipt = rows_where(table, "request_received") & named
        self.received.add(table, np.flatnonzero(is_receipt))
        is_send = is_receipt & is_one_of(table["code"].to_numpy(), SEND_CODES)
        self.sends.add(table, number, np.flatnonzero(is_send))
        self._see_identities(table, number)
        topics, topic_names = coded_texts(table, "topic")
        # What lacks its place is damage, of which nothing is concluded.
        known = are_named(topic_names)[topics] & (table["queue"].to_numpy() >= 0)
        moved = rows_where(table, "make_visible") & known & (table["visible_end"].to_numpy() >= 0)
        # Visible ends have no offset of a message; what else is gathered needs one.
        known &= table["queue_offset"].to_numpy() >= 0
        rows = np.flatnonzero(rows_where(table, "message_acknowledged") & known)
        is_own = np.array([name.startswith(OWN_TOPICS) for name in topic_names.to_pylist()], dtype=np.bool_)
        flags = {"is_moved": is_own[topics[rows]].astype(np.int64), "is_named": named[rows].astype(np.int64)}
        self.acknowledged.add(table, number, rows, flags | identity(table, rows, np.zeros_like(rows)))
        # A read tells its bounds; an answer that tells none refused the send, or answers another kind of request.
        of_no_read = rows_where(table, "answer_sent") & named & (table["offset_min"].to_numpy() < 0)
        self.refused.add(table, number, np.flatnonzero(of_no_read))
        self.appended.add(table, number, np.flatnonzero(rows_where(table, "append") & known))
        self.moved.add(table, number, np.flatnonzero(moved))
        lists = table["offsets"].combine_chunks()
        bounds = lists.offsets.to_numpy().astype(np.int64)
        # An answer that tells no bounds is none to a pull, whatever else it tells.
        is_read = rows_where(table, "answer_sent") & (table["offset_min"].to_numpy() >= 0)
        found = np.flatnonzero(is_read & (table["code"].to_numpy() == 0))
        counts = np.diff(bounds)[found]
        rows = np.repeat(found, counts)
        # One row a message: the place where the answer's list begins, and how far in it the message stands.
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        offsets = {"queue_offset": lists.values.to_numpy()[bounds[rows] + nth]}
        self.delivered.add(table, number, rows, offsets | identity(table, rows, nth))
        self.unlisted.add(table, number, found[are_unlisted(table, found)])

    def _see_identities(self, table: pa.Table, number: int) -> None:
        """The messages of sends, and the transactions that end."""
        counts = np.diff(table["ids"].combine_chunks().offsets.to_numpy().astype(np.int64))
        asked = np.flatnonzero(rows_where(table, "request_received") & (counts > 0))
        code, transaction = table["code"].to_numpy()[asked], outcomes(table, asked)
        ends = asked[code == END_TRANSACTION]
        told = identity(table, ends, np.zeros_like(ends)) | {"transaction": transaction[code == END_TRANSACTION]}
        self.ended.add(table, number, ends, told)
        is_send = is_one_of(code, SEND_CODES)
        sends, each = asked[is_send], counts[asked[is_send]]
        rows = np.repeat(sends, each)
        nth = np.arange(len(rows)) - np.repeat(np.cumsum(each) - each, each)
        told = identity(table, rows, nth) | {"transaction": np.repeat(transaction[is_send], each)}
        self.sent.add(table, number, rows, told)


def judge_sends(
    tables: Tables, context: Context, *, most: int = FINDINGS_MAX, clear: int = 0
) -> tuple[list[Finding], int, Share, list[Gap]]:
    """Judge all sends, except `clear` ones whose queues are known to break no clause, and are not in the tables.

    Returns at most `most` findings of each kind, how many more there are, how many sends were acknowledged and how many
    there are. The gaps are refusals, and acknowledgements of an unseen send whose source records sends.
    """
    messages = Messages()
    for number, table in tables():
        messages.see(number, table)
    sends, told = messages.sends.all(), messages.acknowledged.all()
    send = first_of(told.request, sends.request)
    # Of an identifier that came twice, with whatever requests, it is not known which of them a message answers.
    sure = np.where(np.isin(told.request, messages.received.again), -1, send)
    breaches = [
        *_joined(sends, told, sure, context),
        *_coded(messages, sends),
        *_torn(messages, told, sure, context),
        *_misnamed(tables, messages, told, sure),
        *_as_answers(messages, sends, told, sure, context),
        *_unanswered(sends, told, messages.refused.all(), context),
        *_late(sends, told, sure, context),
        *_delivered(tables, messages, told, sure, context),
        *_stored(told, _since_ns(sends, send), messages.appended.all(), context),
        *_shown(told, messages.appended.all(), messages.moved.all(), context),
        *breaches_of(
            {"send.delivered.after_request": sent_later, **OF_MESSAGES},
            View(
                tables, context, sent=messages.sent.all(), ended=messages.ended.all(), told=told,
                delivered=messages.delivered.all(), appended=messages.appended.all(),
                refused=_not_stored(messages, told),
            ),
        ),
    ]  # fmt: skip
    findings = list(findings_of(tables, breaches, context, most))
    left_out = sum(
        max(len(breach.members) - most, 0) for breach in breaches if CLAUSE[breach.clause].verdict != "observed"
    )
    share = Share(len(np.unique(send[send >= 0])) + clear, max(len(sends), len(np.unique(told.request))) + clear)
    # Only where the source tells of sends at all can one be missing.
    unasked = (send < 0) & (told.values["is_named"] == 1) & np.isin(told.source, np.unique(sends.source))
    refused = messages.refused.all()
    mine = np.isin(refused.request, sends.request) & ~is_one_of(refused.values["code"], SEND_STORED)
    count, lost = int(np.count_nonzero(mine)), int(np.count_nonzero(unasked))
    gaps = [Gap("not judged", "", lost, f"{lost} acknowledgements whose sends are not in the history")] * (lost > 0)
    if are_many_refused(count, len(sends) + clear):
        gaps.append(Gap("not judged", "", count, f"{count} {NOTE_REFUSED.format(len(sends) + clear, 'sends')}"))
    return findings, left_out, share, gaps


def _joined(sends: Gathered, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    mine = np.flatnonzero(send >= 0)
    asked, answered = sends.take(send[mine]), told.take(mine)
    every = np.arange(len(mine))
    # Certain only where the whole interval of the one lies before the other's.
    early = np.flatnonzero(answered.before_ns < asked.after_ns)
    pair = ((answered, every), (asked, every))
    yield breach_of("send.acknowledged.after_request", early, pair, "a message was acknowledged before its send came")
    # 0 is no name: an observer that tells no connections says nothing of two.
    both = (answered.connection != 0) & (asked.connection != 0)
    elsewhere = np.flatnonzero(both & (answered.connection != asked.connection))
    why = "a message was acknowledged on another connection than its send came on"
    yield breach_of("send.acknowledged.same_connection", elsewhere, pair, why)
    life = answered.place * WEIGHT + generations(answered, asked, context)
    offset = answered.values["queue_offset"]
    # Of the messages of this life acknowledged for certain before this send came: the one with the highest offset.
    before = highest_before(life, answered.before_ns, offset, life, asked.after_ns)
    inverted = np.flatnonzero((before >= 0) & (offset[np.maximum(before, 0)] > offset))
    message = life * WEIGHT + offset.astype(np.uint64)
    # Of several with that offset the one that ended first, which did so before this send came too.
    before[inverted] = earliest(answered, every, message, message[before[inverted]])
    # One message with a wrong offset is at odds with all that follow it: the cause counts, and is told once.
    inverted = once(answered, inverted, before)
    why = "a message that was sent after another one was acknowledged has the lower queue offset"
    events = ((answered, every), (asked, every), (answered, before), (asked, before))
    yield breach_of("send.sequential", inverted, events, why)
    yield from _across_sources(asked, answered, context)


def _across_sources(asked: Gathered, answered: Gathered, context: Context) -> Iterator[Breach]:
    """The same of two sources that watched one broker at both moments, by clocks that order both."""
    steady = hashes_of([name for name, facts in context.sources.items() if facts.is_steady])
    mine = (answered.broker != 0) & ~np.isin(answered.broker, hashes_of(context.unsteady_brokers))
    mine &= np.isin(answered.source, steady)
    # Only where several sources tell of one broker.
    pairs = np.unique(np.stack([answered.broker[mine], answered.source[mine]]), axis=1)[0]
    brokers, counts = np.unique(pairs, return_counts=True)
    mine = np.flatnonzero(mine & np.isin(answered.broker, brokers[counts > 1]))
    if not len(mine):
        return
    asked, answered = asked.take(mine), answered.take(mine)
    first_ns, last_ns = (np.zeros(len(mine), dtype=np.int64) for _ in range(2))
    for name, facts in context.sources.items():
        of_source = answered.source == hash_of(name)
        first_ns[of_source], last_ns[of_source] = facts.first_ns, facts.last_ns
    life = queue_keys(answered) * WEIGHT + generations(answered, asked, context)
    offset = answered.values["queue_offset"]
    found, causes = [], np.full(len(mine), -1, dtype=np.int64)
    for source in np.unique(answered.source):
        own, others = np.flatnonzero(answered.source == source), np.flatnonzero(answered.source != source)
        before = highest_before(
            life[others], answered.before_ns[others], offset[others], life[own], asked.after_ns[own]
        )
        earlier = others[np.maximum(before, 0)]
        watched = (first_ns[own] <= asked.after_ns[earlier]) & (last_ns[earlier] >= answered.before_ns[own])
        wrong = (before >= 0) & watched & (offset[earlier] >= offset[own])
        causes[own[wrong]] = earlier[wrong]
        found.append(own[wrong])
    inverted = once(answered, np.concatenate(found), causes)
    every = np.arange(len(mine))
    why = "a message was sent after another source saw one acknowledged with no lower queue offset"
    events = ((answered, every), (asked, every), (answered, causes), (asked, causes))
    yield breach_of("send.sequential", inverted, events, why)


def _coded(messages: Messages, sends: Gathered) -> Iterator[Breach]:
    """Answers to sends with codes that no broker gives."""
    refused = messages.refused.all()
    send = first_of(refused.request, sends.request)
    code = refused.values["code"]
    strange = (send >= 0) & (code >= 0) & ~is_one_of(code, SEND_ANSWERS)
    strange &= ~np.isin(refused.request, messages.received.again)
    pair = ((refused, np.arange(len(refused))), (sends, send))
    why = "a send was answered with a code that no broker gives to it"
    yield breach_of("send.code.known", np.flatnonzero(strange), pair, why)


def _not_stored(messages: Messages, told: Gathered) -> Keys:
    """The requests with a unique identifier that were refused with a code that means: not stored."""
    refused = messages.refused.all()
    mine = refused.request[is_one_of(refused.values["code"], SEND_NOT_STORED)]
    return np.setdiff1d(mine, np.concatenate((messages.received.again, told.request)))


def _torn(messages: Messages, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    """Batches with an offset between two of their messages, in another order than they were sent, or stored in part."""
    sends, sent = messages.sends.all(), messages.sent.all()
    key = told.request * WEIGHT + told.place
    order = np.lexsort((told.values["queue_offset"], key))
    order = order[send[order] >= 0]
    offset = told.values["queue_offset"][order]
    own, other = (each.request * WEIGHT + each.values["id"].astype(np.uint64) for each in (told, sent))
    # The place of a message in its send's list, where the list has its id once.
    is_listed = (count_of(other, own) == 1) & (told.values["id"] != 0)
    nth = np.where(is_listed, first_of(own, other), -1)[order]
    follows = np.append(False, key[order[1:]] == key[order[:-1]])[: len(order)]
    is_torn = follows & np.append(False, np.diff(offset) > 1)[: len(order)]
    is_turned = follows & np.append(False, (nth[1:] >= 0) & (nth[1:] < nth[:-1]))[: len(order)]
    weak = _are_holed(told, np.append(sends.after_ns, BEGINNING)[send], context)
    every = np.arange(len(told))
    for is_wrong, why in (
        (is_torn, "a batch was acknowledged with offsets that do not follow one another"),
        (is_turned, "the messages of a batch were stored in another order than they were sent"),
    ):
        members = order[is_wrong]
        before = placed_at(len(told), members, np.roll(order, 1)[is_wrong])
        yield breach_of("send.batch.gapless", members, ((told, every), (told, before), (sends, send)), why, weak)
    is_short = (send >= 0) & (count_of(told.request, told.request) < count_of(sent.request, told.request))
    members = once(told, np.flatnonzero(is_short), send)
    why = "a batch was acknowledged without some of its messages"
    yield breach_of("send.batch.gapless", members, ((told, every), (sends, send)), why, weak)


def _misnamed(tables: Tables, messages: Messages, told: Gathered, send: Integers) -> Iterator[Breach]:
    """Acknowledgements of other messages than their send's, and reads that tell who some of their messages are."""
    sent = messages.sent.all()
    own, other = (each.request * WEIGHT + each.values["id"].astype(np.uint64) for each in (told, sent))
    mine = (send >= 0) & (told.values["id"] != 0) & (told.values["is_moved"] == 0)
    is_whole = np.isin(told.request, sent.request) & ~np.isin(told.request, sent.request[sent.values["id"] == 0])
    is_listed = np.isin(own, other)
    bodies, sent_bodies = (
        key * WEIGHT + each.values["body"].astype(np.uint64) for key, each in ((own, told), (other, sent))
    )
    is_same = (
        (told.values["body"] == -1) | np.isin(bodies, sent_bodies) | np.isin(own, other[sent.values["body"] == -1])
    )
    members = once(told, np.flatnonzero(mine & is_whole & ~(is_listed & is_same)), send)
    why = "a message was acknowledged with an id or a body that its send does not list"
    pair = ((told, np.arange(len(told))), (messages.sends.all(), send))
    yield breach_of("send.acknowledged.identity", members, pair, why)
    answers = messages.unlisted.all()
    asked = requests_of(tables, answers)
    pair = ((answers, np.arange(len(answers))), (asked, first_of(answers.request, asked.request)))
    why = "an answer lists ids or bodies of some of its messages"
    yield breach_of("pull.found.identified", np.arange(len(answers)), pair, why)


def _late(sends: Gathered, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    """Sends that were acknowledged long after they came: no message is lost by that."""
    mine = np.flatnonzero(send >= 0)
    late = mine[told.after_ns[mine] - sends.before_ns[send[mine]] > SEND_MS * MS]
    unread = np.zeros(len(late), dtype=np.bool_)
    for (source, connection), holes in context.blocked.items():
        own = (told.source[late] == hash_of(source)) & (told.connection[late] == hash_of(connection))
        unread |= own & holes.touch(sends.after_ns[send[late]], told.before_ns[late])
    late = once(told, late[~unread], send)
    pair = ((told, np.arange(len(told))), (sends, send))
    why = f"a send was acknowledged later than {SEND_MS} ms after it came"
    yield breach_of("send.answered", late, pair, why, np.ones(len(told), dtype=np.bool_))


def _as_answers(
    messages: Messages, sends: Gathered, told: Gathered, send: Integers, context: Context
) -> Iterator[Breach]:
    """An acknowledgement answers its send: once, while the connection is open, and for the queue that was named."""
    refused = messages.refused.all()
    mine = np.flatnonzero(send >= 0)
    asked, answered = sends.take(send[mine]), told.take(mine)
    every = np.arange(len(mine))
    pair = ((answered, every), (asked, every))
    why = "a message was acknowledged on a connection that was closed before"
    members = np.flatnonzero(are_closed(answered, asked.after_ns, answered.after_ns, context))
    yield breach_of("send.acknowledged.open_connection", members, pair, why)
    order = np.argsort(answered.before_ns, kind="stable")
    first = order[first_of(answered.request, answered.request[order])]
    # Another acknowledgement of this send had certainly come before this one.
    again = answered.before_ns[first] < answered.after_ns
    refusal = first_of(answered.request, refused.request)
    twice = np.flatnonzero(again | (refusal >= 0))
    requests = answered.request[twice]
    first[twice] = earliest(answered, every, answered.request, requests)
    refusal[twice] = earliest(refused, np.arange(len(refused)), refused.request, requests)
    events = (*pair, (answered, np.where(again, first, -1)), (refused, refusal))
    twice = once(answered, twice, first)
    yield breach_of("send.acknowledged.once", twice, events, "a send was answered once more after it was answered")
    elsewhere = (asked.topic != answered.topic) | ((asked.queue != answered.queue) & (asked.queue >= 0))
    # A send may leave its topic or queue to the broker, and a broker stores retries, delays and half messages
    # elsewhere.
    elsewhere &= (asked.topic != 0) & (answered.values["is_moved"] == 0)
    why = "a message was acknowledged in another queue than it was sent to"
    yield breach_of("send.acknowledged.place", np.flatnonzero(elsewhere), pair, why)


def _unanswered(sends: Gathered, told: Gathered, refused: Gathered, context: Context) -> Iterator[Breach]:
    """Sends without an answer, though their connection and their source went on for long.

    Sources whose acknowledgements do not name their send are skipped.
    """
    due_ns = sends.before_ns + SEND_MS * MS
    # Neither acknowledged nor refused, by a source that names the sends it acknowledges, on a connection open until
    # then.
    late = ~np.isin(sends.request, told.request) & ~np.isin(sends.request, refused.request)
    late &= ~np.isin(sends.source, told.source[told.values["is_named"] == 0])
    closed_after_ns, closed_ns = closes_of(sends, context)
    late &= (closed_after_ns > due_ns) | (closed_ns < sends.after_ns)
    goes_on, weak = (np.zeros(len(sends), dtype=np.bool_) for _ in range(2))
    for name, facts in context.sources.items():
        mine = sends.source == hash_of(name)
        # A source that ended before the answer was due shows nothing of it; one with a hole in between may hide it.
        goes_on |= mine & (due_ns < facts.last_ns)
        weak |= mine & (facts.holes.touch(sends.after_ns, due_ns) | (name in context.settable))
    for (source, connection), holes in context.blocked.items():
        mine = (sends.source == hash_of(source)) & (sends.connection == hash_of(connection))
        weak |= mine & holes.touch(sends.after_ns, due_ns)
    for (source, connection), closes in context.closed_often.items():
        mine = (sends.source == hash_of(source)) & (sends.connection == hash_of(connection))
        for after_ns, before_ns in closes:
            # Closed at some moment in between: the answer had nowhere to go.
            late &= ~(mine & (before_ns >= sends.after_ns) & (after_ns <= due_ns))
    members = np.flatnonzero(late & goes_on)
    why = f"a send was neither acknowledged nor refused within {SEND_MS} ms"
    yield breach_of("send.answered", members, ((sends, np.arange(len(sends))),), why, weak)


def _delivered(
    tables: Tables, messages: Messages, told: Gathered, send: Integers, context: Context
) -> Iterator[Breach]:
    sends, delivered = messages.sends.all(), messages.delivered.all()
    mine = np.flatnonzero(send >= 0)
    mine = mine[np.argsort(sends.after_ns[send[mine]], kind="stable")]
    keys, wanted = _message_keys(told), _message_keys(delivered)
    acknowledgement = np.append(mine, -1)[first_of(wanted, keys[mine])]
    known = np.flatnonzero(acknowledgement >= 0)
    early = known[delivered.before_ns[known] < sends.after_ns[send[acknowledgement[known]]]]
    # Of several messages with that offset the one whose send came first, and of several such the one told first.
    alike = in_order(told, mine[np.isin(keys[mine], wanted[early])])
    alike = alike[np.argsort(sends.after_ns[send[alike]], kind="stable")]
    acknowledgement[early] = np.append(alike, -1)[first_of(wanted[early], keys[alike])]
    early = _of_one_queue(tables, early, delivered, told.take(acknowledgement[early]), context)
    early = once(delivered, early, acknowledgement)
    events = _delivery_events(delivered, told, sends, send, acknowledgement)
    yield breach_of("send.delivered.after_request", early, events, "a message was delivered before its send came")
    yield _delivered_elsewhere(tables, messages, told.take(mine), send[mine], context)


def _of_one_queue(tables: Tables, early: Integers, delivered: Gathered, until: Gathered, context: Context) -> Integers:
    """The early deliveries whose queue certainly did not begin again before their acknowledgements, `until`.

    Otherwise the offset belongs to two messages, and another one was delivered.
    """
    since = delivered.take(early)
    anew = np.zeros(len(early), dtype=np.bool_)
    for about, holes in changes_of(since, context):
        anew |= about & holes.touch(since.after_ns, until.before_ns)
    early = early[~anew]
    return early[~_asked_elsewhere(tables, delivered.take(early))]


def _delivery_events(
    delivered: Gathered, told: Gathered, sends: Gathered, send: Integers, acknowledgement: Integers
) -> tuple[tuple[Gathered, Integers], ...]:
    """Delivery, acknowledgement and send, as the evidence of a breach."""
    return (
        (delivered, np.arange(len(delivered))),
        (told, acknowledgement),
        (sends, np.append(send, -1)[acknowledgement]),
    )


def _delivered_elsewhere(
    tables: Tables, messages: Messages, told: Gathered, send: Integers, context: Context
) -> Breach:
    """The same of messages that another source of the broker saw delivered, by clocks that order both.

    That source may be another broker's of the same name, so nothing of this is certain. `told` is by time of its send.
    """
    sends, delivered = messages.sends.all(), messages.delivered.all()
    steady = hashes_of([name for name, facts in context.sources.items() if facts.is_steady])
    is_ordered = np.isin(delivered.source, steady) & (delivered.broker != 0)
    is_ordered &= ~np.isin(delivered.broker, hashes_of(context.unsteady_brokers))
    mine = np.flatnonzero(np.isin(told.source, steady))
    keys, wanted = (
        queue_keys(each) * WEIGHT + each.values["queue_offset"].astype(np.uint64) for each in (told, delivered)
    )
    acknowledgement = np.append(mine, -1)[first_of(wanted, keys[mine])]
    sent_ns = np.append(sends.after_ns[send], BEGINNING)[acknowledgement]
    is_early = is_ordered & (acknowledgement >= 0) & (delivered.before_ns < sent_ns)
    early = np.flatnonzero(is_early & (np.append(told.source, np.uint64(0))[acknowledgement] != delivered.source))
    early = _of_one_queue(tables, early, delivered, told.take(acknowledgement[early]), context)
    early = once(delivered, early, acknowledgement)
    events = _delivery_events(delivered, told, sends, send, acknowledgement)
    why = "a message was delivered before another source saw its send come"
    return breach_of("send.delivered.after_request", early, events, why, np.ones(len(delivered), dtype=np.bool_))


def _asked_elsewhere(tables: Tables, answers: Gathered) -> Booleans:
    """Which answers name another queue than their requests: nothing is known of these."""
    found = np.zeros(len(answers), dtype=np.bool_)
    for number, table in tables() if len(answers) else ():
        rows = np.flatnonzero(rows_where(table, "request_received") & have_request(table))
        asked = Gathering(())
        asked.add(table, number, rows[np.isin(request_keys(table, rows), answers.request)])
        own = asked.all()
        request = first_of(answers.request, own.request)
        found |= (request >= 0) & (np.append(own.place, np.uint64(0))[request] != answers.place)
    return found


def _message_keys(messages: Gathered) -> Keys:
    keys: Keys = messages.place * WEIGHT + messages.values["queue_offset"].astype(np.uint64)
    return keys


def _since_ns(sends: Gathered, send: Integers) -> Integers:
    """The earliest time at which each acknowledged message can have been appended: its send's arrival, if known.

    An identifier that came twice does not show which send it was.
    """
    _names, first, counts = np.unique(sends.request, return_inverse=True, return_counts=True)
    return np.append(np.where(counts[first] == 1, sends.after_ns, BEGINNING), BEGINNING)[send]


def _stored(told: Gathered, since_ns: Integers, appended: Gathered, context: Context) -> Iterator[Breach]:
    """Acknowledged messages that differ from what was appended; only for sources that write appends."""
    inside = np.isin(told.source, np.unique(appended.source))
    if not inside.any():
        return
    by_time = np.argsort(appended.after_ns, kind="stable")
    own, logged = _message_keys(told), _message_keys(appended)
    append = np.append(by_time, -1)[first_of(own, logged[by_time])]
    # Appended, but certainly only after it was acknowledged.
    late = (append >= 0) & (appended.after_ns[append] > told.before_ns)
    missing = np.flatnonzero(inside & ((append < 0) | late))
    append[missing] = earliest(appended, by_time, logged, own[missing])
    every = np.arange(len(told))
    weak = _are_holed(told, since_ns, context)
    why = "a message was acknowledged with a place at which none was appended"
    yield breach_of("send.acknowledged.appended", missing, ((told, every), (appended, append)), why, weak)
    # The append that is not in the record may be of another life of the queue than those that are.
    (own_life, is_doubtful), (life, is_vague) = (numbered_generations(each, each, context) for each in (told, appended))
    own, logged = (_message_keys(each) * WEIGHT + at for each, at in ((told, own_life), (appended, life)))
    sure = np.flatnonzero(~is_vague)
    append = np.append(sure, -1)[first_of(own, logged[sure])]
    has_tag = np.isin(own * WEIGHT + told.tag, (logged * WEIGHT + appended.tag)[sure])
    # Only of messages whose life is known, on both sides, and whose append is in the record.
    other = np.flatnonzero(inside & ~is_doubtful & (append >= 0) & ~late & ~has_tag)
    why = "a message was acknowledged with another tag than was appended"
    yield breach_of("send.acknowledged.tag", other, ((told, every), (appended, append)), why)


def _shown(told: Gathered, appended: Gathered, moved: Gathered, context: Context) -> Iterator[Breach]:
    """Messages that were never shown. It is unknown whether an unacknowledged one was stored whole."""
    late, end = not_shown(told, moved, context)
    missing = first_of(_message_keys(told.take(late)), _message_keys(appended))
    shown = (told, placed_at(len(told), late, late)), (moved, placed_at(len(told), late, end))
    three = (*shown, (appended, placed_at(len(told), late, missing)))
    why = f"a message was acknowledged, and not visible {SHOWN_MS} ms later"
    yield breach_of("send.shown", late, three, why, are_doubted(told, context))
    other, end = not_shown(appended, moved, context)
    # A queue in which an acknowledged message was not shown has its finding.
    is_new = ~np.isin(appended.place[other], told.place[late])
    other, end = other[is_new], end[is_new]
    pair = ((appended, placed_at(len(appended), other, other)), (moved, placed_at(len(appended), other, end)))
    why = f"a message was appended, and not visible {SHOWN_MS} ms later"
    yield breach_of("send.shown", other, pair, why, np.ones(len(appended), dtype=np.bool_))


def _are_holed(told: Gathered, since_ns: Integers, context: Context) -> Booleans:
    """Whose append may be missing from the record: it has a hole between that moment and the acknowledgement."""
    found = np.zeros(len(told), dtype=np.bool_)
    for name, facts in context.sources.items():
        if len(facts.holes):
            found |= (told.source == hash_of(name)) & facts.holes.touch(since_ns, told.before_ns)
    return found
