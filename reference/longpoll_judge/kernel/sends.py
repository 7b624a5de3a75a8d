"""send_is_kept: a message is acknowledged after its send was received, on the same connection, with its own offset.

An observer outside the broker can only show that a message did not exist before its send was received. An observer
inside records the append, which shows when the message was stored and its contents. Rules of a queue's log: `order`.

Source: `SendMessageProcessor.handlePutMessageResult`, `CommitLog.putMessage`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import frozen

from longpoll_judge.columns.lookup import (
    BEGINNING,
    NEVER,
    Booleans,
    Integers,
    are_among,
    are_of,
    count_of,
    distinct,
    first_of,
    highest_before,
    is_one_of,
    least_of,
    numbered,
    order_by,
)
from longpoll_judge.contract.clause import (
    SEND_ANSWERS,
    SEND_CODES,
    SEND_MS,
    SEND_NOT_STORED,
    SEND_STORED,
    SENT_BACK,
    SHOWN_MS,
)
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.pops import RETRIED
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.survey import Context
from longpoll_judge.kernel.ends import are_doubted, not_shown
from longpoll_judge.kernel.gathered import (
    Breach,
    Gathered,
    are_closed,
    changes_of,
    closes_of,
    earliest,
    findings_of,
    gather,
    generations,
    have_request,
    in_order,
    numbered_generations,
    once,
    placed_at,
    received_again,
    rows_where,
    together,
    with_life,
)
from longpoll_judge.kernel.messages import (
    END_TRANSACTION,
    IDENTITY,
    OF_MESSAGES,
    View,
    are_unlisted,
    as_sent,
    breaches_of,
    identified,
    identity,
    ids_of,
    located,
    outcomes,
    reads_of,
    real_ids,
    requests_of,
    sent_later,
)
from longpoll_judge.kernel.pulls import MS
from longpoll_judge.kernel.rows import Row
from longpoll_judge.read.schema import are_named, coded, coded_texts, integers_of, lists_of, spread

SENDS: Final = "sends"
NOTE_UNASKED: Final = "acknowledgements whose sends are not in the history"
LISTED_MAX: Final = 10
"""The maximum number of message ids of one send that a finding lists."""
FINDINGS_MAX: Final = 50
"""The maximum number of findings of one clause that are listed; the others are counted."""

OWN_TOPICS: Final = ("%", "RMQ_SYS_", "rmq_sys_", "SCHEDULE_TOPIC_", "TRANS_CHECK_")
"""Prefixes of the topics in which a broker itself stores messages: retries, delayed messages and half messages."""


@frozen(eq=False)
class Messages:
    """The sends of a window, their messages, and the pulls that got these messages."""

    sends: Gathered
    acknowledged: Gathered
    refused: Gathered
    appended: Gathered
    delivered: Gathered
    copied: Gathered
    """Messages that pops got from the retry topic."""
    sent: Gathered
    """The messages of the sends that record their messages' identities, each as a row."""
    unlisted: Gathered
    """Reads that record the ids or bodies of only some of their messages."""
    ended: Gathered
    moved: Gathered
    again: Integers
    """The requests, of any kind, whose identifier was received more than once."""


def gather_messages(table: pa.Table) -> Messages:
    """Gather the events of a table that the rules of sends and messages use."""
    named = have_request(table)
    topics, topic_names = coded_texts(table, "topic")
    # An event without topic and queue is damaged, and no rule uses it.
    placed = are_named(topic_names)[topics] & (integers_of(table, "queue") >= 0)
    moved = rows_where(table, "make_visible") & placed & (integers_of(table, "visible_end") >= 0)
    # Only events about visible ends have no offset of a message; all other gathered events need an offset.
    known = placed & (integers_of(table, "queue_offset") >= 0)
    told = np.flatnonzero(rows_where(table, "message_acknowledged") & known)
    is_own = np.array([name.startswith(OWN_TOPICS) for name in topic_names.to_pylist()], dtype=np.bool_)
    flags = {"is_moved": is_own[topics[told]].astype(np.int64), "is_named": named[told].astype(np.int64)}
    code, lowest = integers_of(table, "code"), integers_of(table, "offset_min")
    is_answer = rows_where(table, "answer_sent")
    # A send without an identifier cannot be matched with its acknowledgement.
    is_send = rows_where(table, "request_received") & named & is_one_of(code, SEND_CODES)
    bounds, values = lists_of(table, "offsets")
    # An answer without the queue's bounds is not the answer to a pull, whatever else it contains.
    found = np.flatnonzero(is_answer & (lowest >= 0) & (code == 0))
    owner, places = spread(bounds, found)
    got, nth = found[owner], places - bounds[found][owner]
    offsets = {"queue_offset": values[places]}
    ids = ids_of(table)
    sent, ended = _identities(table, ids)
    acknowledged = gather(table, told, ("queue_offset",), flags | identity(table, ids, told, np.zeros_like(told)))
    delivered = gather(table, got, (), offsets | identity(table, ids, got, nth))
    # A message from the retry topic is a copy, whose offset is in that topic.
    is_copy = are_of(*coded(table, "cause"), {RETRIED})
    more, copied = (
        gather(table, rows, ("queue_offset",), identity(table, ids, rows, np.zeros_like(rows)))
        for rows in (
            np.flatnonzero(rows_where(table, "message_popped") & named & known & own) for own in (~is_copy, is_copy)
        )
    )
    copied.values["logged"] = np.full(len(copied), -1, dtype=np.int64)
    delivered = together((delivered, more), ("queue_offset", *IDENTITY))
    appended = gather(table, np.flatnonzero(rows_where(table, "append") & known), ("queue_offset",))
    identified(sent, acknowledged, delivered, copied)
    located(acknowledged, delivered, appended)
    return Messages(
        sends=gather(table, np.flatnonzero(is_send)),
        acknowledged=acknowledged,
        # The answer to a read has the queue's bounds. An answer without bounds refuses the send, or answers a different
        # kind of request.
        refused=gather(table, np.flatnonzero(is_answer & named & (lowest < 0)), ("code",)),
        appended=appended,
        delivered=delivered,
        copied=copied,
        sent=sent,
        unlisted=gather(table, found[are_unlisted(table, found)]),
        ended=ended,
        moved=gather(table, np.flatnonzero(moved), ("visible_end",)),
        again=received_again(table),
    )


def _identities(table: pa.Table, ids: tuple[Integers, Integers]) -> tuple[Gathered, Gathered]:
    counts = np.diff(ids[0])
    asked = np.flatnonzero(rows_where(table, "request_received") & (counts > 0))
    code, transaction = integers_of(table, "code")[asked], outcomes(table, asked)
    ends = asked[code == END_TRANSACTION]
    told = identity(table, ids, ends, np.zeros_like(ends)) | {"transaction": transaction[code == END_TRANSACTION]}
    is_send = is_one_of(code, SEND_CODES)
    owner, places = spread(ids[0], asked[is_send])
    rows = asked[is_send][owner]
    sent = identity(table, ids, rows, places - ids[0][rows]) | {"transaction": transaction[is_send][owner]}
    return gather(table, rows, ("delay_ms", "delay_level"), sent), gather(table, ends, (), told)


def _sent_alone(table: pa.Table, sent: Gathered) -> Gathered:
    """Returns the messages of sends, except sends to topics to which consumers send messages back (36).

    If a request to send a message back fails or is answered late, Java's client also sends the message to this topic
    itself, with the same id.
    """
    names = [name for name in coded_texts(table, "topic")[1] if str(name).startswith(SENT_BACK)]
    return sent.take(~sent.are("topic", names))


def judge_sends(
    table: pa.Table, context: Context, native: Booleans, *, most: int = FINDINGS_MAX
) -> tuple[list[Finding], list[Row]]:
    """Judge all sends; `native` marks the rows whose queues are complete in this window.

    Returns at most `most` findings of each kind, and rows that count the other findings, the sends and the refusals.
    """
    messages = gather_messages(table)
    sends, told, refused = messages.sends, messages.acknowledged, messages.refused
    send = first_of(told.request, sends.request)
    # If requests of any kind share an identifier, it is unknown which request an acknowledgement answers.
    sure = np.where(are_among(told.request, messages.again), -1, send)
    view = View(
        table, context, sent=_sent_alone(table, messages.sent), ended=messages.ended, told=told,
        delivered=messages.delivered, copied=messages.copied, appended=messages.appended,
        refused=_not_stored(messages, told), unplaced=_unplaced(messages, told),
    )  # fmt: skip
    breaches = [
        breach.only(native)
        for breach in (
            *_joined(sends, told, sure, context),
            *_coded(messages, sends),
            *_torn(messages, told, sure, context),
            *_misnamed(table, messages, told, sure),
            *_as_answers(messages, sends, told, sure, context),
            *_unanswered(sends, told, refused, context),
            *_late(sends, told, sure, context),
            *_delivered(table, messages, told, sure, context),
            _foretold(view, messages, told, sure),
            *_stored(told, _since_ns(sends, send), messages.appended, context),
            *_shown(told, messages.appended, messages.moved, context),
            *breaches_of((sent_later, as_sent, *OF_MESSAGES.values()), view),
        )
    ]
    findings = list(findings_of(table, breaches, context, most))
    left_out = sum(
        max(len(breach.members) - most, 0) for breach in breaches if CLAUSE[breach.clause].verdict != "observed"
    )
    own, mine = native[sends.row], native[told.row]
    asked = _own_requests(together((sends, told.take(told.values["is_named"] == 1)), ()), native)
    acknowledged = are_among(asked, sends.request) & are_among(asked, told.request)
    nameless = mine & (send < 0)
    # Skip sources that record no sends, because such a source cannot show that a send is missing.
    unasked = nameless & (told.values["is_named"] == 1) & are_among(told.source, sends.source)
    is_refused = are_among(refused.request, sends.request[own]) & ~is_one_of(refused.values["code"], SEND_STORED)
    return findings, [
        ("left_out_beside", 0, left_out, ""),
        ("share", 0, int(np.count_nonzero(acknowledged)), SENDS),
        ("share_of", 0, len(asked), SENDS),
        ("note", 0, int(np.count_nonzero(unasked)), NOTE_UNASKED),
        ("refused", 0, int(np.count_nonzero(is_refused)), SENDS),
        ("asked", 0, int(np.count_nonzero(own)), SENDS),
    ]


def _own_requests(events: Gathered, native: Booleans) -> Integers:
    """Returns the requests of these events without duplicates.

    If the events of a request name several queues, the request belongs to the queue of its first event.
    """
    is_own = native[events.row]
    mine = distinct(events.request[is_own])
    first = earliest(events, np.arange(len(events)), events.request, distinct(events.request[~is_own]))
    return mine[~are_among(mine, events.request[first[~is_own[first]]])]


def _joined(sends: Gathered, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    mine = np.flatnonzero(send >= 0)
    asked, answered = sends.take(send[mine]), told.take(mine)
    every = np.arange(len(mine))
    # A violation is certain only if the whole interval of one event lies before the other event's interval.
    early = np.flatnonzero(answered.before_ns < asked.after_ns)
    pair = ((answered, every), (asked, every))
    yield Breach("send.acknowledged.after_request", early, pair, "a message was acknowledged before its send came")
    # 0 means no name. An observer that records no connections cannot show that two connections differ.
    both = (answered.connection != 0) & (asked.connection != 0)
    elsewhere = np.flatnonzero(both & (answered.connection != asked.connection))
    why = "a message was acknowledged on another connection than its send came on"
    yield Breach("send.acknowledged.same_connection", elsewhere, pair, why)
    lives = generations(answered, asked, context)
    life, message = (with_life((numbers, lives))[0] for numbers in (answered.place, answered.values["at"]))
    offset = answered.values["queue_offset"]
    # Take the highest offset among the messages of this generation that were certainly acknowledged before this send.
    before = highest_before(life, answered.before_ns, offset, life, asked.after_ns)
    inverted = np.flatnonzero((before >= 0) & (offset[np.maximum(before, 0)] > offset))
    # If several messages have that offset, take the message whose acknowledgement ended first, which was also before
    # this send.
    before[inverted] = earliest(answered, every, message, message[before[inverted]])
    # One message with an offset that is too high contradicts all later messages, so report it only once.
    inverted = once(answered, inverted, before)
    why = "a message that was sent after another one was acknowledged has the lower queue offset"
    events = ((answered, every), (asked, every), (answered, before), (asked, before))
    yield Breach("send.sequential", inverted, events, why)
    yield from _across_sources(asked, answered, context)


def _across_sources(asked: Gathered, answered: Gathered, context: Context) -> Iterator[Breach]:
    """Compare the sends of two sources whose clocks order both sends, and which recorded the broker at both times."""
    mine = (answered.broker != 0) & ~answered.are("broker", context.unsteady_brokers)
    mine &= answered.are("source", [name for name, facts in context.sources.items() if facts.is_steady])
    # Select brokers that several sources recorded, because only they can show such a violation.
    first = least_of(answered.broker[mine], answered.broker, answered.source[mine], 0)
    last = -least_of(answered.broker[mine], answered.broker, -answered.source[mine], 0)
    mine = np.flatnonzero(mine & (first != last))
    if not len(mine):
        return
    asked, answered = asked.take(mine), answered.take(mine)
    first_ns, last_ns = (np.zeros(len(mine), dtype=np.int64) for _ in range(2))
    for name, facts in context.sources.items():
        of_source = answered.are("source", [name])
        first_ns[of_source], last_ns[of_source] = facts.first_ns, facts.last_ns
    (life,) = with_life((answered.whole_queue, generations(answered, asked, context)))
    offset = answered.values["queue_offset"]
    found, causes = [], np.full(len(mine), -1, dtype=np.int64)
    for source in distinct(answered.source):
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
    yield Breach("send.sequential", inverted, events, why)


def _coded(messages: Messages, sends: Gathered) -> Iterator[Breach]:
    """Yields answers to sends with codes that no broker returns."""
    refused = messages.refused
    send = first_of(refused.request, sends.request)
    code = refused.values["code"]
    strange = (send >= 0) & (code >= 0) & ~is_one_of(code, SEND_ANSWERS)
    strange &= ~are_among(refused.request, messages.again)
    pair = ((refused, np.arange(len(refused))), (sends, send))
    why = "a send was answered with a code that no broker gives to it"
    yield Breach("send.code.known", np.flatnonzero(strange), pair, why)


def _not_stored(messages: Messages, told: Gathered) -> Integers:
    """Returns the requests with a unique identifier whose answer code means that nothing was stored."""
    refused = messages.refused
    mine = refused.request[is_one_of(refused.values["code"], SEND_NOT_STORED)]
    return mine[~are_among(mine, np.concatenate((messages.again, told.request)))]


def _unplaced(messages: Messages, told: Gathered) -> Gathered:
    """Returns the answers to sends with a unique identifier that report a stored message without an offset."""
    refused = messages.refused
    is_stored = is_one_of(refused.values["code"], SEND_STORED) & are_among(refused.request, messages.sends.request)
    return refused.take(is_stored & ~are_among(refused.request, np.concatenate((messages.again, told.request))))


def _torn(messages: Messages, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    """Yields batches whose messages have offsets with gaps or in another order, or of which only a part was stored."""
    sends, sent = messages.sends, messages.sent
    known = np.flatnonzero(send >= 0)
    (key,) = numbered((told.request, told.place))
    order = known[order_by(key[known], told.values["queue_offset"][known])]
    offset = told.values["queue_offset"][order]
    own, other = numbered(*((each.request, each.values["id"]) for each in (told, sent)))
    # Find the position of a message in its send's list, if the list has its id exactly once.
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
        yield Breach("send.batch.gapless", members, ((told, every), (told, before), (sends, send)), why, weak)
    is_short = (send >= 0) & (count_of(told.request, told.request) < count_of(sent.request, told.request))
    members = once(told, np.flatnonzero(is_short), send)
    why = "a batch was acknowledged without some of its messages"
    yield Breach("send.batch.gapless", members, ((told, every), (sends, send)), why, weak)


def _misnamed(table: pa.Table, messages: Messages, told: Gathered, send: Integers) -> Iterator[Breach]:
    """Yields acknowledgements and reads with messages that the send does not contain."""
    sent = messages.sent
    own, other = numbered(*((each.request, each.values["id"]) for each in (told, sent)))
    mine = (send >= 0) & (told.values["id"] != 0) & (told.values["is_moved"] == 0)
    is_whole = are_among(told.request, sent.request)
    is_whole &= ~are_among(told.request, sent.request[sent.values["id"] == 0])
    is_listed = are_among(own, other)
    body, sent_body = told.values["body"], sent.values["body"]
    # An id is usually unique in its send, so first compare each body only with the first message of its id, and compare
    # the remaining bodies with all messages of their id.
    is_same = (body == -1) | (body == np.append(sent_body, -1)[first_of(own, other)])
    rest = np.flatnonzero(~is_same)
    bodies, sent_bodies = numbered((own[rest], body[rest]), (other, sent_body))
    is_same[rest] = are_among(bodies, sent_bodies) | are_among(own[rest], other[sent_body == -1])
    members = once(told, np.flatnonzero(mine & is_whole & ~(is_listed & is_same)), send)
    why = "a message was acknowledged with an id or a body that its send does not list"
    pair = ((told, np.arange(len(told))), (messages.sends, send))

    def who(member: int) -> str:
        listed = sent.values["id"][sent.request == told.request[member]][:LISTED_MAX]
        own, *others = real_ids(table, [told.values["id"][member], *listed])
        return f"id {own}, body {told.values['body'][member]}; listed are the ids {others}"

    yield Breach("send.acknowledged.identity", members, pair, why, told=who)
    answers = messages.unlisted
    asked = requests_of(table, answers)
    pair = ((answers, np.arange(len(answers))), (asked, first_of(answers.request, asked.request)))
    why = "an answer lists ids or bodies of some of its messages"
    yield Breach("pull.found.identified", np.arange(len(answers)), pair, why)


def _late(sends: Gathered, told: Gathered, send: Integers, context: Context) -> Iterator[Breach]:
    """Yields sends that were acknowledged too late, although no message was lost."""
    mine = np.flatnonzero(send >= 0)
    late = mine[told.after_ns[mine] - sends.before_ns[send[mine]] > SEND_MS * MS]
    unread = np.zeros(len(late), dtype=np.bool_)
    for (source, connection), holes in context.blocked.items():
        own = told.take(late).are_on(source, connection)
        unread |= own & holes.touch(sends.after_ns[send[late]], told.before_ns[late])
    late = once(told, late[~unread], send)
    pair = ((told, np.arange(len(told))), (sends, send))
    why = f"a send was acknowledged later than {SEND_MS} ms after it came"
    yield Breach("send.answered", late, pair, why, np.ones(len(told), dtype=np.bool_))


def _as_answers(
    messages: Messages, sends: Gathered, told: Gathered, send: Integers, context: Context
) -> Iterator[Breach]:
    """Yields acknowledgements that are repeated, come after the close, or name another queue than their send."""
    refused = messages.refused
    mine = np.flatnonzero(send >= 0)
    asked, answered = sends.take(send[mine]), told.take(mine)
    every = np.arange(len(mine))
    pair = ((answered, every), (asked, every))
    why = "a message was acknowledged on a connection that was closed before"
    members = np.flatnonzero(are_closed(answered, asked.after_ns, answered.after_ns, context))
    yield Breach("send.acknowledged.open_connection", members, pair, why)
    order = np.argsort(answered.before_ns, kind="stable")
    first = order[first_of(answered.request, answered.request[order])]
    # The send certainly had another acknowledgement before this one.
    again = answered.before_ns[first] < answered.after_ns
    refusal = first_of(answered.request, refused.request)
    twice = np.flatnonzero(again | (refusal >= 0))
    requests = answered.request[twice]
    first[twice] = earliest(answered, every, answered.request, requests)
    refusal[twice] = earliest(refused, np.arange(len(refused)), refused.request, requests)
    events = (*pair, (answered, np.where(again, first, -1)), (refused, refusal))
    twice = once(answered, twice, first)
    yield Breach("send.acknowledged.once", twice, events, "a send was answered once more after it was answered")
    elsewhere = (asked.topic != answered.topic) | ((asked.queue != answered.queue) & (asked.queue >= 0))
    # A send may leave its topic or queue to the broker, and a broker stores retries, delays and half messages
    # elsewhere.
    elsewhere &= (asked.topic != 0) & (answered.values["is_moved"] == 0)
    why = "a message was acknowledged in another queue than it was sent to"
    yield Breach("send.acknowledged.place", np.flatnonzero(elsewhere), pair, why)


def _unanswered(sends: Gathered, told: Gathered, refused: Gathered, context: Context) -> Iterator[Breach]:
    """Yields sends without an answer although their connection and their source continued for long enough.

    Sources whose acknowledgements do not name their send are skipped.
    """
    due_ns = sends.before_ns + SEND_MS * MS
    # Late sends were neither acknowledged nor refused, their connection was open until the limit, and their source
    # records which sends it acknowledges.
    late = ~are_among(sends.request, told.request) & ~are_among(sends.request, refused.request)
    late &= ~are_among(sends.source, told.source[told.values["is_named"] == 0])
    closed_after_ns, closed_ns = closes_of(sends, context)
    late &= (closed_after_ns > due_ns) | (closed_ns < sends.after_ns)
    goes_on, weak = (np.zeros(len(sends), dtype=np.bool_) for _ in range(2))
    for name, facts in context.sources.items():
        mine = sends.are("source", [name])
        # If a source ended before the answer was due, or has a gap before the answer was due, it cannot show that the
        # answer is missing.
        goes_on |= mine & (due_ns < facts.last_ns)
        weak |= mine & (facts.holes.touch(sends.after_ns, due_ns) | (name in context.settable))
    for (source, connection), holes in context.blocked.items():
        mine = sends.are_on(source, connection)
        weak |= mine & holes.touch(sends.after_ns, due_ns)
    for (source, connection), closes in context.closed_often.items():
        mine = sends.are_on(source, connection)
        for after_ns, before_ns in closes:
            # If the connection was closed before the answer was due, the broker could not send the answer.
            late &= ~(mine & (before_ns >= sends.after_ns) & (after_ns <= due_ns))
    members = np.flatnonzero(late & goes_on)
    why = f"a send was neither acknowledged nor refused within {SEND_MS} ms"
    yield Breach("send.answered", members, ((sends, np.arange(len(sends))),), why, weak)


def _delivered(
    table: pa.Table, messages: Messages, told: Gathered, send: Integers, context: Context
) -> Iterator[Breach]:
    """Yields messages that were delivered before their send was received, by the clock of one source or of two.

    The finding is uncertain if the delivery and the send are from different sources, which may have recorded two
    brokers of the same name.
    """
    sends, delivered = messages.sends, messages.delivered
    known = np.flatnonzero(send >= 0)
    known = known[np.argsort(sends.after_ns[send[known]], kind="stable")]
    steady = [name for name, facts in context.sources.items() if facts.is_steady]
    is_ordered = delivered.are("source", steady) & (delivered.broker != 0)
    is_ordered &= ~delivered.are("broker", context.unsteady_brokers)
    for name, mine, saw in (
        ("at", known, "its send came"),
        ("logged", known[told.take(known).are("source", steady)], "another source saw its send come"),
    ):
        keys, wanted, is_elsewhere = told.values[name], delivered.values[name], name == "logged"
        acknowledgement = np.append(mine, -1)[first_of(wanted, keys[mine])]
        sent_ns = np.append(sends.after_ns, BEGINNING)[np.append(send, -1)[acknowledgement]]
        is_early = (acknowledgement >= 0) & (delivered.before_ns < sent_ns)
        if is_elsewhere:
            is_early &= is_ordered & (np.append(told.source, 0)[acknowledgement] != delivered.source)
        early = np.flatnonzero(is_early)
        if not is_elsewhere:
            # If several messages have that offset, take the message whose send was received first, and then the first
            # recorded one.
            alike = in_order(told, mine[are_among(keys[mine], wanted[early])])
            alike = alike[np.argsort(sends.after_ns[send[alike]], kind="stable")]
            acknowledgement[early] = np.append(alike, -1)[first_of(wanted[early], keys[alike])]
        early = _of_one_queue(table, early, delivered, told.take(acknowledgement[early]), context)
        early = once(delivered, early, acknowledgement)
        events = (
            (delivered, np.arange(len(delivered))),
            (told, acknowledgement),
            (sends, np.append(send, -1)[acknowledgement]),
        )
        weak = np.full(len(delivered), is_elsewhere)
        yield Breach("send.delivered.after_request", early, events, f"a message was delivered before {saw}", weak)


def _foretold(view: View, messages: Messages, told: Gathered, send: Integers) -> Breach:
    """Returns messages that an `offset_max` or a greater popped offset showed to exist before their sends came."""
    mine = np.flatnonzero(send >= 0)
    answered, sent = told.take(mine), messages.sends.take(send[mine])
    asked, answers = reads_of(view, answered)
    # If a source records the visible end, `pull.max.most` compares it with each answer.
    sure = ~are_among(answers.request, messages.again) & ~answers.are_in(view.context.shown)
    asked, answers = asked.take(sure), answers.take(sure)
    # `_delivered` reports a message that was itself popped, so only greater popped offsets count here.
    given = messages.delivered
    popped = given.take(rows_where(view.table, "message_popped")[given.row] & ~given.are_in(view.context.shown))
    last = np.append(popped.values["queue_offset"], answers.values["offset_max"])
    asked, answers = (together((popped, each), ()) for each in (asked, answers))
    own, other = with_life(
        (answered.place, generations(sent, answered, view.context)),
        (answers.place, generations(asked, answers, view.context)),
    )
    before = highest_before(other, answers.before_ns, last, own, sent.after_ns)
    shown = np.append(last, 0)[before]
    early = once(answered, np.flatnonzero((before >= 0) & (shown > answered.values["queue_offset"])), before)
    every = np.arange(len(answered))
    why = "before its send came, an answer had an offset_max past this message, or a pop got a message past it"
    events = ((answered, every), (sent, every), (answers, before), (asked, before))
    return Breach("send.delivered.after_request", early, events, why)


def _of_one_queue(table: pa.Table, early: Integers, delivered: Gathered, until: Gathered, context: Context) -> Integers:
    """Returns early deliveries whose queue certainly had one generation until the acknowledgement (`until`).

    If a new generation began, two messages may have the offset, and the delivered message may be the older one.
    """
    since = delivered.take(early)
    anew = np.zeros(len(early), dtype=np.bool_)
    for about, holes in changes_of(since, context):
        anew |= about & holes.touch(since.after_ns, until.before_ns)
    early = early[~anew]
    return early[~_asked_elsewhere(table, delivered.take(early))]


def _asked_elsewhere(table: pa.Table, answers: Gathered) -> Booleans:
    """Returns answers to pulls whose queue differs from their request's queue. No rule uses these answers."""
    asked = requests_of(table, answers)
    request = first_of(answers.request, asked.request)
    found: Booleans = (request >= 0) & (np.append(asked.place, 0)[request] != answers.place)
    # Exclude pops, because the request of a pop may name all queues.
    return found & rows_where(table, "answer_sent")[answers.row]


def _since_ns(sends: Gathered, send: Integers) -> Integers:
    """Returns the earliest possible time of each acknowledged message's append: the receipt of its send, if known.

    If the send's identifier was received twice, it is unknown which send the message belongs to.
    """
    is_single = count_of(sends.request, sends.request) == 1
    return np.append(np.where(is_single, sends.after_ns, BEGINNING), BEGINNING)[send]


def _stored(told: Gathered, since_ns: Integers, appended: Gathered, context: Context) -> Iterator[Breach]:
    """Yields acknowledged messages that differ from the appended messages.

    Only sources that record appends are compared.
    """
    inside = told.are("source", context.writers)
    if not inside.any():
        return
    by_time = np.argsort(appended.after_ns, kind="stable")
    own, logged = told.values["at"], appended.values["at"]
    append = np.append(by_time, -1)[first_of(own, logged[by_time])]
    # The message was certainly appended only after it was acknowledged.
    late = (append >= 0) & (np.append(appended.after_ns, NEVER)[append] > told.before_ns)
    missing = np.flatnonzero(inside & ((append < 0) | late))
    append[missing] = earliest(appended, by_time, logged, own[missing])
    every = np.arange(len(told))
    weak = _are_holed(told, since_ns, context)
    why = "a message was acknowledged with a place at which none was appended"
    yield Breach("send.acknowledged.appended", missing, ((told, every), (appended, append)), why, weak)
    # If the append was not recorded, the message may belong to a generation of the queue that the record does not show.
    (own_life, is_doubtful), (life, is_vague) = (numbered_generations(each, each, context) for each in (told, appended))
    own, logged = with_life((own, own_life), (logged, life))
    sure = np.flatnonzero(~is_vague)
    append = np.append(sure, -1)[first_of(own, logged[sure])]
    has_tag = are_among(*numbered((own, told.tag), (logged[sure], appended.tag[sure])))
    # Compare the tags only if both generations are known and the append was recorded.
    other = np.flatnonzero(inside & ~is_doubtful & (append >= 0) & ~late & ~has_tag)
    why = "a message was acknowledged with another tag than was appended"
    yield Breach("send.acknowledged.tag", other, ((told, every), (appended, append)), why)


def _shown(told: Gathered, appended: Gathered, moved: Gathered, context: Context) -> Iterator[Breach]:
    """Yields messages that never became visible. An unacknowledged message may not have been stored completely."""
    late, end = not_shown(told, moved, context)
    missing = first_of(told.values["at"][late], appended.values["at"])
    shown = (told, placed_at(len(told), late, late)), (moved, placed_at(len(told), late, end))
    three = (*shown, (appended, placed_at(len(told), late, missing)))
    why = f"a message was acknowledged, and not visible {SHOWN_MS} ms later"
    yield Breach("send.shown", late, three, why, are_doubted(told, context))
    other, end = not_shown(appended, moved, context)
    # Skip queues that already have a finding about an acknowledged message that never became visible.
    is_new = ~are_among(appended.place[other], told.place[late])
    other, end = other[is_new], end[is_new]
    pair = ((appended, placed_at(len(appended), other, other)), (moved, placed_at(len(appended), other, end)))
    why = f"a message was appended, and not visible {SHOWN_MS} ms later"
    yield Breach("send.shown", other, pair, why, np.ones(len(appended), dtype=np.bool_))


def _are_holed(told: Gathered, since_ns: Integers, context: Context) -> Booleans:
    """Returns the messages whose append may be missing, because the record has a gap before the acknowledgement."""
    found = np.zeros(len(told), dtype=np.bool_)
    for name, facts in context.sources.items():
        if len(facts.holes):
            found |= told.are("source", [name]) & facts.holes.touch(since_ns, told.before_ns)
    return found
