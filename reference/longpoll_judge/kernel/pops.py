"""pop_is_kept: judges when pops and notifications are answered, and which messages a pop gets.

A pop of all queues concerns a whole topic, so all pops of a topic are judged together, in the window with the topic's
queue -1. Other events come to this window by the keys of their requests and messages (`run.buckets`).

A message is identified by its unique id within a group and topic. After a message's invisible time, RocketMQ copies the
message into the retry topic, with the same id at another offset. An id with two offsets outside the retry topic was
sent twice and is not judged.

Source: `PopMessageProcessor`, `PopLongPollingService`, `PopReviveService` of 5.5.0. The clauses are in `contract.pops`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, evolve, frozen

from longpoll_judge.columns.expression import parse
from longpoll_judge.columns.lookup import (
    BEGINNING,
    NEVER,
    Booleans,
    Integers,
    count_of,
    first_of,
    is_one_of,
    numbered,
    suffix_min,
)
from longpoll_judge.contract.clause import STOPPING_MS, UNHELD_MS
from longpoll_judge.contract.pops import (
    ACK_MS,
    ACKNOWLEDGE,
    AGAIN_MOST,
    AGAIN_MS,
    CHANGE,
    NOTIFICATION,
    POLLING_TIMEOUT,
    POP,
    POP_ANSWERS,
    POP_CODES,
    POP_EARLY_MS,
    POP_READS,
    RETRIED,
)
from longpoll_judge.contract.result import POP_IS_KEPT, Finding
from longpoll_judge.evidence.survey import UNSEEN, Context
from longpoll_judge.kernel.commits import RESETS
from longpoll_judge.kernel.gathered import (
    Breach,
    Gathered,
    changes_of,
    closes_from,
    findings_of,
    gather,
    have_request,
    names_of,
    received_again,
    request_numbers,
    rows_where,
)
from longpoll_judge.kernel.pulls import MS, TIMEOUT_MS_MAX
from longpoll_judge.kernel.rows import Row
from longpoll_judge.read.schema import coded, has_column, integers_of, lists_of
from longpoll_protocol.properties import java_hash

POPS: Final = "pops"
POP_WAKES: Final = "pop.wake.prompt"
"""The clause about late wakes. Result rows of kind `woken` count the pops that a message woke or should have woken."""
FINDINGS_MAX: Final = 50
"""The maximum number of findings that are listed for one clause; further findings are only counted."""
NOTE_POP_ELSEWHERE: Final = "requests about pops whose answers name another broker, topic or queue"
ORDERLY: Final = "orderly"
Home = Callable[[pa.Table], Booleans]
"""A function that returns a mask of the rows of a table whose queues this window judges."""


@define(eq=False, slots=False)
class _Pops:
    """The requests about pops with their first answers, and the messages that pops got."""

    table: pa.Table
    context: Context
    asked: Gathered
    answered: Gathered
    """For each request, its first answer; any row if the request has no answer."""
    popped: Gathered
    owner: Integers
    again: Gathered
    """The messages that the only answer to a pop contains a second time, except messages from the retry topic."""
    reset_ns: Integers
    """The times of requests that may change the offsets of a group."""
    elsewhere_count: int
    """The number of requests that are not judged, because their answers name another broker, topic or queue."""
    sent_ns: dict[int, int] | None = None

    @cached_property
    def is_answered(self) -> Booleans:
        return self.asked.values["answer"] >= 0

    @cached_property
    def code(self) -> Integers:
        """For each request, the code of its answer; -1 if it has no answer."""
        return np.where(self.is_answered, self.answered.values["code"], -1)

    @cached_property
    def is_held(self) -> Booleans:
        """Which requests may be held until a deadline."""
        return self._flags("may_hold", self.asked) & is_one_of(self.asked.values["code"], (POP, NOTIFICATION))

    @cached_property
    def is_plain(self) -> Booleans:
        return ~_are(self.asked, "cause", ORDERLY)

    @cached_property
    def timeout_ns(self) -> Integers:
        """For each request, how long the broker may hold it, in nanoseconds."""
        return np.clip(self.asked.values["timeout_ms"], 0, TIMEOUT_MS_MAX) * MS

    @cached_property
    def waiting(self) -> tuple[Integers, Integers]:
        """For each request, the time until which it certainly waited, and the latest time of the request's answer."""
        codes, names = coded(self.table, "source")
        last_ns = np.array([self.context.sources.get(name, UNSEEN).last_ns for name in names])[codes[self.asked.row]]
        closed_ns = closes_from(self.asked, self.asked.after_ns, self.context)[0]
        open_ns = np.minimum(last_ns, closed_ns)
        until_ns = np.where(self.is_answered, self.answered.after_ns, open_ns)
        latest_ns = np.where(self.is_answered, self.answered.before_ns, open_ns)
        return until_ns, latest_ns

    @cached_property
    def scope(self) -> Integers:
        """For each request, a number that is equal for requests with the same broker, topic and group."""
        return numbered((self.asked.broker, self.asked.topic, names_of(self.table, "group", self.asked.row)))[0]

    @cached_property
    def is_retried(self) -> Booleans:
        return _are(self.popped, "cause", RETRIED)

    @cached_property
    def messages(self) -> tuple[Integers, Integers]:
        """The judged deliveries and their numbers, one for each message and group; sorted by number, then by time."""
        code, ids = self.asked.values["code"][self.owner], self.popped.values["id"]
        is_judged = (code == POP) & (ids != 0) & self.is_plain[self.owner]
        is_judged &= (self.popped.topic == self.asked.topic[self.owner]) & self.is_answered[self.owner]
        offset = self.popped.values["queue_offset"]
        (key,) = numbered((self.scope[self.owner], ids))
        sent = np.flatnonzero(is_judged & ~self.is_retried)
        places = np.unique(np.stack((key[sent], self.popped.queue[sent], offset[sent])), axis=1)[0]
        again, counts = np.unique(places, return_counts=True)
        rows = np.flatnonzero(is_judged & ~np.isin(key, again[counts > 1]))
        moments = self.answered.before_ns[self.owner[rows]], self.answered.after_ns[self.owner[rows]]
        rows = rows[np.lexsort((*moments, key[rows]))]
        return rows, key[rows]

    @cached_property
    def takes(self) -> Sequence[tuple[Integers, Callable[[Integers], Booleans], bool]]:
        """For each tag subscription: its requests, a function that matches tag hashes, and whether all match."""
        found = []
        pairs = np.stack([names_of(self.table, name, self.asked.row) for name in ("expression_type", "expression")])
        for pair in np.unique(pairs, axis=1).T:
            rows = np.flatnonzero((pairs == pair[:, None]).all(axis=0))
            kind, text = (
                coded(self.table, name)[1][coded(self.table, name)[0][self.asked.row[rows[0]]]]
                for name in ("expression_type", "expression")
            )
            wanted = parse(kind, text)
            if wanted is not None:
                found.append((rows, wanted.matches, wanted.takes_everything))
        return found

    @cached_property
    def tag(self) -> Integers:
        codes, names = coded(self.table, "tag")
        return np.array([java_hash(name) for name in names], dtype=np.int64)[codes[self.popped.row]]

    def _flags(self, name: str, events: Gathered) -> Booleans:
        if not has_column(self.table, name):
            return np.zeros(len(events), dtype=np.bool_)
        flags: Booleans = self.table[name].fill_null(False).to_numpy(zero_copy_only=False)[events.row]
        return flags

    def doubted(self, rows: Integers, first_ns: Integers, last_ns: Integers, *, measured: bool = True) -> Booleans:
        """Returns the requests whose record has a gap between two times, or whose connection was not read then."""
        found = np.zeros(len(self.asked), dtype=np.bool_)
        mine = self.asked.take(rows)
        for name in {*self.context.sources, *(source for source, _connection in self.context.blocked)}:
            theirs = mine.are("source", [name])
            unsure = self.context.holes(name).touch(first_ns[rows], last_ns[rows])
            unsure |= measured and name in self.context.settable
            found[rows[theirs & unsure]] = True
        for (source, connection), holes in self.context.blocked.items():
            theirs = mine.are_on(source, connection)
            found[rows[theirs & holes.touch(first_ns[rows], last_ns[rows])]] = True
        return found


def judge_pops(table: pa.Table, context: Context, home: Home | None) -> tuple[list[Finding], list[Row]]:
    """Judge the pops of the topics whose queue -1 this window judges; also returns rows that count the pops."""
    pops = _gather(table, context, home)
    if not len(pops.asked):
        return [], [("note", 0, pops.elsewhere_count, NOTE_POP_ELSEWHERE)]
    late, woken = _wakes(pops)
    breaches = [*_codes(pops), *_found(pops), late, *_deadlines(pops), *_early(pops), *_again(pops)]
    left_out = sum(max(len(breach.members) - FINDINGS_MAX, 0) for breach in breaches)
    is_pop = is_one_of(pops.asked.values["code"], (POP, NOTIFICATION))
    is_read = is_pop & is_one_of(pops.code, POP_READS)
    counts = {"share_of": is_pop, "share": is_read, "asked": is_pop & pops.is_answered}
    counts["refused"] = is_pop & pops.is_answered & ~is_read
    rows = [(kind, 0, int(np.count_nonzero(flags)), POPS) for kind, flags in counts.items()]
    rows.append(("note", 0, pops.elsewhere_count, NOTE_POP_ELSEWHERE))
    rows += [("judged", 0, int(np.count_nonzero(is_read)), POP_IS_KEPT), ("left_out_beside", 0, left_out, "")]
    rows += [("woken", 0, woken, ""), ("unwoken", 0, int(np.count_nonzero(~late.weak)), "")]
    return list(findings_of(table, breaches, context, FINDINGS_MAX)), rows


def _gather(table: pa.Table, context: Context, home: Home | None) -> _Pops:
    code, named = integers_of(table, "code"), have_request(table)
    rows = np.flatnonzero(rows_where(table, "request_received") & named & is_one_of(code, POP_CODES))
    rows = rows[~np.isin(request_numbers(table, rows), received_again(table))]
    rows = rows[_are_home(table, rows, home)]
    rows = rows[np.lexsort((integers_of(table, "sequence")[rows], integers_of(table, "after_ns")[rows]))]
    told = np.flatnonzero(rows_where(table, "answer_sent") & named & (code >= 0))
    told = told[np.lexsort([integers_of(table, name)[told] for name in ("sequence", "before_ns", "after_ns")])]
    at = first_of(request_numbers(table, rows), request_numbers(table, told))
    answer = np.append(told, -1)[at]
    is_other = _names_another(gather(table, rows), gather(table, np.maximum(answer, 0))) & (answer >= 0)
    rows, answer = rows[~is_other], answer[~is_other]
    asked = gather(table, rows, ("code", "count_max", "timeout_ms", "delay_ms", "queue_offset"), {"answer": answer})
    is_placed = (names_of(table, "topic", np.arange(len(table))) != 0) & (integers_of(table, "queue_offset") >= 0)
    is_placed &= integers_of(table, "queue") >= 0
    got = np.flatnonzero(rows_where(table, "message_popped") & named & is_placed)
    got = got[np.argsort(integers_of(table, "sequence")[got], kind="stable")]
    owner = first_of(request_numbers(table, got), asked.request)
    got, owner = got[owner >= 0], owner[owner >= 0]
    # Use first answers only, because a second answer to a pop repeats the pop's messages.
    places = [integers_of(table, name)[got] for name in ("queue", "queue_offset")]
    places += [names_of(table, name, got) for name in ("topic", "cause")]
    firsts, number = np.unique(np.stack((owner, *places)), axis=1, return_index=True, return_inverse=True)[1:]
    is_again = count_of(request_numbers(table, told), request_numbers(table, got)) == 1
    is_again &= ~np.isin(np.arange(len(got)), firsts)
    earlier = got[firsts[number.ravel()]]
    again = gather(table, got, ("queue_offset",), {"owner": owner, "first": earlier}).take(is_again)
    again = again.take(~_are(again, "cause", RETRIED))
    got, owner = got[firsts], owner[firsts]
    bounds, ids = lists_of(table, "ids")
    id_of = np.where(np.diff(bounds)[got] == 1, np.append(ids, 0)[np.minimum(bounds[got], len(ids))], 0)
    popped = gather(table, got, ("queue_offset", "delay_ms"), {"id": id_of})
    resets = integers_of(table, "after_ns")[rows_where(table, "request_received") & is_one_of(code, RESETS)]
    answered = gather(table, np.maximum(answer, 0), ("code",))
    return _Pops(table, context, asked, answered, popped, owner, again, resets, int(np.count_nonzero(is_other)))


def _names_another(asked: Gathered, answered: Gathered) -> Booleans:
    """Returns answers whose broker, topic or queue differs from their request's; the rules ignore these answers."""
    found: Booleans = (answered.queue >= 0) & (answered.queue != asked.queue)
    for one, other in ((answered.broker, asked.broker), (answered.topic, asked.topic)):
        found |= (one != 0) & (other != 0) & (one != other)
    return found


def _are_home(table: pa.Table, rows: Integers, home: Home | None) -> Booleans:
    """Returns which requests concern topics that this window judges."""
    if home is None or not len(rows):
        return np.ones(len(rows), dtype=np.bool_)
    (topic,) = numbered((names_of(table, "broker", rows), names_of(table, "topic", rows)))
    _topics, firsts, at = np.unique(topic, return_index=True, return_inverse=True)
    names = [name for name in table.column_names if name in {"broker", "topic"}]
    topics = table.select(names).take(pa.array(rows[firsts]))
    found: Booleans = home(topics.append_column("queue", pa.array(np.full(len(firsts), -1, dtype=np.int64))))[at]
    return found


def _are(events: Gathered, name: str, text: str) -> Booleans:
    codes, names = coded(events.table, name)
    found: Booleans = codes[events.row] == (names.index(text) if text in names else -1)
    return found


def _every(pops: _Pops) -> tuple[tuple[Gathered, Integers], tuple[Gathered, Integers]]:
    every = np.arange(len(pops.asked))
    return (pops.asked, every), (pops.answered, np.where(pops.is_answered, every, -1))


def _codes(pops: _Pops) -> Iterator[Breach]:
    strange = np.flatnonzero(pops.is_answered & ~is_one_of(pops.code, POP_ANSWERS))
    yield Breach("pop.code.known", strange, _every(pops), "a request about pops was answered with an unknown code")


def _found(pops: _Pops) -> Iterator[Breach]:
    """Yield answers to pops that should have messages but have none, have too many, or have wrong messages."""
    popped, owner, asked = pops.popped, pops.owner, pops.asked
    count = np.bincount(owner, minlength=len(asked))
    is_found = (asked.values["code"] == POP) & (pops.code == 0)
    _until_ns, latest_ns = pops.waiting
    empty = np.flatnonzero(is_found & (count == 0))
    weak = pops.doubted(empty, asked.after_ns, latest_ns, measured=False)
    yield Breach("pop.found.some", empty, _every(pops), "a pop was answered 0 without a message", weak)
    again, of = pops.again, pops.again.values["owner"]
    every, first = np.arange(len(again)), gather(pops.table, again.values["first"])
    events = ((again, every), (first, every), (asked, of), (pops.answered, of))
    weak = pops.doubted(of, asked.after_ns, latest_ns, measured=False)[of]
    yield Breach(
        "pop.found.once", np.flatnonzero(asked.values["code"][of] == POP), events, "a pop got a message twice", weak
    )
    most = asked.values["count_max"]
    many = np.flatnonzero(is_found & (most >= 0) & (count > np.maximum(most, 1)))
    # The finding shows all needed messages, so each of them gets a column.
    order = np.argsort(owner, kind="stable")
    firsts = np.cumsum(count) - count
    nth = range(int(np.maximum(most[many], 1).max(initial=0)) + 1)
    got = [(popped, np.where(n < count, np.append(order, -1)[np.minimum(firsts + n, len(order))], -1)) for n in nth]
    yield Breach(
        "pop.found.at_most", many, (*_every(pops), *got), "a pop got more messages than it asked for",
        told=lambda row: f"{count[row]}, asked were at most {most[row]}",
    )  # fmt: skip
    every = np.arange(len(popped))
    shown = (popped, every), (asked, owner), (pops.answered, owner)
    other = ~pops.is_retried & (asked.queue[owner] >= 0) & (popped.queue != asked.queue[owner])
    other |= popped.topic != asked.topic[owner]
    yield Breach("pop.found.asked", np.flatnonzero(other), shown, "a pop got a message of another topic or queue")
    wrong = np.zeros(len(popped), dtype=np.bool_)
    for rows, matches, _is_all in pops.takes:
        wrong |= ~pops.is_retried & np.isin(owner, rows) & ~matches(pops.tag)
    yield Breach("pop.found.tag", np.flatnonzero(wrong & ~other), shown, "a pop got a message whose tag does not match")


@frozen(eq=False)
class _Waiting:
    """Messages that were acknowledged to their producer before a pop got them. Each message is a row."""

    row: Integers
    acknowledged: Gathered
    told: Integers
    since_ns: Integers
    """The time by which each message was certainly acknowledged."""
    until_ns: Integers
    """The time until which the group had certainly not received each message."""


def _waiting(pops: _Pops) -> _Waiting:
    """Returns the messages whose first delivery is not from the retry topic, with their acknowledgements."""
    rows, key = pops.messages
    first = rows[np.append(True, key[1:] != key[:-1])[: len(rows)]]
    first = first[~pops.is_retried[first]]
    told = np.flatnonzero(rows_where(pops.table, "message_acknowledged"))
    bounds, ids = lists_of(pops.table, "ids")
    told = told[np.diff(bounds)[told] == 1]
    acknowledged = gather(pops.table, told, ("queue_offset",), {"id": ids[bounds[told]]})
    mine, theirs = numbered(
        *(
            (each.log, each.values["queue_offset"], each.values["id"])
            for each in (pops.popped.take(first), acknowledged)
        )
    )
    at = first_of(mine, theirs)
    first, at = first[at >= 0], at[at >= 0]
    until_ns = pops.answered.after_ns[pops.owner[first]]
    return _Waiting(first, acknowledged, at, acknowledged.before_ns[at], until_ns)


def _wakes(pops: _Pops) -> tuple[Breach, int]:
    """Returns the requests that waited although a message for them was available, and how many pops a message woke."""
    messages, asked = _waiting(pops), pops.asked
    until_ns, latest_ns = pops.waiting
    waits = pops.is_held & pops.is_plain & (until_ns - asked.before_ns > pops.context.wake_ns)
    late = np.flatnonzero(messages.until_ns - messages.since_ns > pops.context.wake_ns)
    scope, queue = pops.scope[pops.owner[messages.row]], pops.popped.queue[messages.row]
    pairs = [np.empty((2, 0), dtype=np.int64)]
    for rows, matches, _is_all in pops.takes:
        mine = rows[waits[rows]]
        for place in np.unique(np.stack((pops.scope[mine], asked.queue[mine])), axis=1).T:
            held = mine[(pops.scope[mine] == place[0]) & (asked.queue[mine] == place[1])]
            theirs = late[(scope[late] == place[0]) & ((place[1] < 0) | (queue[late] == place[1]))]
            theirs = theirs[matches(pops.tag[messages.row[theirs]])]
            pairs.append(_met(pops, held, messages, theirs))
    request, message = np.concatenate(pairs, axis=1)
    # Report each message once, with the earliest request.
    order = np.lexsort((asked.before_ns[request], message))
    order = order[np.unique(message[order], return_index=True)[1]]
    request, message = request[order], message[order]
    since_ns = np.maximum(asked.before_ns[request], messages.since_ns[message])
    waited_ms = (np.minimum(until_ns[request], messages.until_ns[message]) - since_ns) / MS
    owner = pops.owner[messages.row[message]]
    shown = (
        (asked, request),
        (pops.answered, np.where(pops.is_answered[request], request, -1)),
        (messages.acknowledged, messages.told[message]),
        (pops.popped, messages.row[message]),
        (asked, owner),
        (pops.answered, owner),
    )
    weak = pops.doubted(request, asked.after_ns, latest_ns)[request]
    breach = Breach(
        POP_WAKES, np.arange(len(request)), shown, "a request about pops waited although a message was there", weak,
        told=lambda row: f"for {waited_ms[row]:.3f} ms (allowed {pops.context.wake_ns / MS:.3f} ms)",
    )  # fmt: skip
    getter = pops.owner[messages.row]
    woken = pops.is_held[getter] & (messages.since_ns >= asked.after_ns[getter])
    return breach, len(np.unique(getter[woken]))


def _met(pops: _Pops, held: Integers, messages: _Waiting, late: Integers) -> Integers:
    """Returns, for each request, a message of its queues for which it waited too long; -1 if no message was late."""
    wake_ns, slow_ns = pops.context.wake_ns, max(UNHELD_MS * MS, pops.context.wake_ns)
    since_ns, until_ns = messages.since_ns[late], messages.until_ns[late]
    after_ns, before_ns, answered_ns = pops.asked.after_ns[held], pops.asked.before_ns[held], pops.waiting[0][held]
    found = np.full(len(held), -1, dtype=np.int64)
    # First look for a message that arrived in time for the request's read, or after it.
    order = np.argsort(since_ns, kind="stable")
    first, border = (np.searchsorted(since_ns[order], edge) for edge in (before_ns, after_ns - wake_ns))
    is_late = np.append(since_ns[order], NEVER)[first] < answered_ns - wake_ns
    found[is_late] = order[first[is_late]]
    for row in np.flatnonzero(border < first).tolist():
        near = order[border[row] : first[row]]
        found[row] = next(iter(near[until_ns[near] > before_ns[row] + wake_ns].tolist()), found[row])
    # Then look for the first message that was available long before, and that stayed available for long enough.
    slow = np.flatnonzero(until_ns - since_ns > slow_ns)
    slow = slow[np.argsort(until_ns[slow], kind="stable")]
    by_since = np.argsort(since_ns[slow], kind="stable")
    rank = np.empty(len(slow), dtype=np.int64)
    rank[by_since] = np.arange(len(slow))
    least = suffix_min(np.zeros(len(slow), dtype=np.int64), rank)
    at = np.searchsorted(until_ns[slow], before_ns + slow_ns, side="right")
    best = np.append(slow[by_since[least]], -1)[at]
    is_slow = (best >= 0) & (np.append(since_ns, NEVER)[best] < answered_ns - slow_ns) & (found < 0)
    found[is_slow] = best[is_slow]
    return np.stack((held[found >= 0], late[found[found >= 0]]))


def _deadlines(pops: _Pops) -> Iterator[Breach]:
    asked, late_ns = pops.asked, pops.context.late_ns
    until_ns, latest_ns = pops.waiting
    late = np.flatnonzero(pops.is_held & pops.is_answered & (until_ns - asked.before_ns - pops.timeout_ns > late_ns))
    late_by_ns = until_ns - asked.before_ns - pops.timeout_ns
    yield Breach(
        "pop.deadline.met", late, _every(pops), "a request was answered after its deadline",
        pops.doubted(late, asked.after_ns, latest_ns),
        told=lambda row: f"{late_by_ns[row] / MS:.3f} ms (allowed {late_ns / MS:.3f} ms)",
    )  # fmt: skip
    is_told = pops.table["may_hold"].is_valid().to_numpy()[asked.row] if has_column(pops.table, "may_hold") else False
    grace_ns = np.where(pops.is_held, pops.timeout_ns, UNHELD_MS * MS)
    is_asked = (is_told | is_one_of(asked.values["code"], (ACKNOWLEDGE, CHANGE))) & pops.is_plain
    never = np.flatnonzero(is_asked & ~pops.is_answered & (until_ns - asked.before_ns - grace_ns > late_ns))
    weak = pops.doubted(never, asked.after_ns, latest_ns)
    yield Breach("pop.answered", never, _every(pops), "a request was never answered", weak)


def _early(pops: _Pops) -> Iterator[Breach]:
    """Yields held requests that were answered before their deadline without a message."""
    asked, answered = pops.asked, pops.answered
    is_empty = (asked.values["code"] == POP) & (pops.code == POLLING_TIMEOUT)
    is_empty |= (asked.values["code"] == NOTIFICATION) & (pops.code == 0) & _are(answered, "cause", "expired")
    early_ns = asked.after_ns + pops.timeout_ns - answered.before_ns
    early = np.flatnonzero(pops.is_held & pops.is_answered & is_empty & (early_ns > POP_EARLY_MS * MS))
    closed_ns = closes_from(asked, answered.after_ns, pops.context)[0]
    weak = pops.doubted(early, asked.after_ns, answered.before_ns)
    weak |= closed_ns - answered.before_ns < STOPPING_MS * MS
    yield Breach(
        "pop.hold.not_early", early, _every(pops), "a held request got nothing before its deadline", weak,
        told=lambda row: f"{early_ns[row] / MS:.3f} ms before it",
    )  # fmt: skip


@frozen
class _Delivery:
    row: int
    since_ns: int
    """The earliest time of the pop, in nanoseconds."""
    after_ns: int
    """The earliest time of the pop's answer; `before_ns` is the latest time."""
    before_ns: int
    hidden_ns: int
    """The invisible time of the delivered message, in nanoseconds."""
    changes: tuple[int, ...]
    """The rows of requests that change the invisible time."""
    acknowledgements: tuple[int, ...]


def _again(pops: _Pops) -> Iterator[Breach]:
    """Yields messages that a group got again too early or after an acknowledgement, or that it never got again."""
    rows, key = pops.messages
    starts = np.flatnonzero(np.append(True, key[1:] != key[:-1])[: len(rows)])
    counts = np.diff(np.append(starts, len(rows)))
    about, place, of_message = _about(pops)
    acknowledged = set(place[pops.asked.values["code"][about] == ACKNOWLEDGE].tolist())
    is_done = np.isin(of_message[rows], list(acknowledged))
    done = np.logical_or.reduceat(is_done, starts) if len(starts) else is_done
    last_empty = _last_empty(pops)
    breaches: dict[str, list[tuple[int, int, int, int]]] = {name: [] for name in ("kept", "final", "again")}
    asked_of: dict[int, list[int]] = {}
    for request, at in zip(about.tolist(), place.tolist(), strict=True):
        asked_of.setdefault(at, []).append(request)
    for start, count, is_over in zip(starts.tolist(), counts.tolist(), done.tolist(), strict=True):
        if count == 1 and is_over:
            continue
        several = [_delivery(pops, row, asked_of.get(int(of_message[row]), [])) for row in rows[start : start + count]]
        before, end_ns = -1, BEGINNING
        for one, other in pairwise(several):
            # A copy that comes again was not there before the invisible time of the delivery before it was over.
            is_hidden = end_ns > one.since_ns and of_message[one.row] == of_message[other.row]
            is_hidden = is_hidden and not _is_unsure(pops, before, int(pops.owner[one.row]))
            known, hidden = (evolve(one, since_ns=end_ns), before) if is_hidden else (one, -1)
            breach, request, end_ns = _too_early(pops, known, other)
            before, end_ns = one.row, BEGINNING if breach else end_ns
            if breach:
                breaches[breach].append((one.row, other.row, request, hidden))
        missed = -1 if is_over or count >= AGAIN_MOST else _missed(pops, several[-1], last_empty)
        if missed >= 0:
            breaches["again"].append((several[-1].row, -1, missed, -1))
    yield _told_again(pops, "pop.invisible.kept", breaches["kept"], "a message was delivered again too early")
    yield _told_again(
        pops, "pop.acknowledged.final", breaches["final"], "a message was delivered after its acknowledgement"
    )
    yield _told_again(pops, "pop.delivered.again", breaches["again"], "a message was not delivered again")


def _about(pops: _Pops) -> tuple[Integers, Integers, Integers]:
    """Returns the requests about popped messages, and numbers for the offset that each request and message names."""
    about = np.flatnonzero(is_one_of(pops.asked.values["code"], (ACKNOWLEDGE, CHANGE)))
    asked = pops.asked.take(about)
    own = pops.scope[about], asked.queue, asked.values["queue_offset"], _are(asked, "cause", RETRIED).astype(np.int64)
    popped = pops.popped.queue, pops.popped.values["queue_offset"], pops.is_retried.astype(np.int64)
    place, of_message = numbered(own, (pops.scope[pops.owner], *popped))
    return about, place, of_message


def _delivery(pops: _Pops, row: int, about: list[int]) -> _Delivery:
    owner, code = int(pops.owner[row]), pops.asked.values["code"]
    return _Delivery(
        row=row,
        since_ns=max(
            int(pops.asked.after_ns[owner]), _sent_ns(pops).get(int(pops.popped.values["id"][row]), BEGINNING)
        ),
        after_ns=int(pops.answered.after_ns[owner]),
        before_ns=int(pops.answered.before_ns[owner]),
        hidden_ns=max(int(pops.popped.values["delay_ms"][row]), 0) * MS,
        changes=tuple(each for each in about if code[each] == CHANGE),
        acknowledgements=tuple(each for each in about if code[each] == ACKNOWLEDGE),
    )


def _sent_ns(pops: _Pops) -> dict[int, int]:
    """Returns, by message id, when the message's send was received; the first time if it was sent several times."""
    if pops.sent_ns is None:
        bounds, ids = lists_of(pops.table, "ids")
        is_sent = rows_where(pops.table, "request_received") & (np.diff(bounds) > 0)
        after_ns = integers_of(pops.table, "after_ns")
        rows = np.flatnonzero(is_sent)[np.argsort(-after_ns[is_sent], kind="stable")].tolist()
        pops.sent_ns = {one: int(after_ns[row]) for row in rows for one in ids[bounds[row] : bounds[row + 1]].tolist()}
    return pops.sent_ns


def _too_early(pops: _Pops, one: _Delivery, other: _Delivery) -> tuple[str, int, int]:
    """Returns the clause that the second delivery violates, the request that shows it, or -1, and the first one's end.

    The end is the earliest end of its invisible time.
    """
    end_ns, asked, answered = one.since_ns + one.hidden_ns, pops.asked, pops.answered
    shown = -1
    for change in one.changes:
        if asked.after_ns[change] > other.before_ns:
            continue
        changed_ns = int(asked.after_ns[change]) + max(int(asked.values["delay_ms"][change]), 0) * MS
        is_certain = pops.code[change] == 0 and answered.before_ns[change] < end_ns and len(one.changes) == 1
        shown = change if is_certain or changed_ns < end_ns else shown
        end_ns = changed_ns if is_certain else min(end_ns, changed_ns)
    for request in one.acknowledgements if not one.changes else ():
        done_ns = int(answered.before_ns[request])
        if pops.code[request] == 0 and done_ns + ACK_MS * MS < end_ns and other.after_ns > done_ns:
            return "final", request, end_ns
    return ("kept" if other.before_ns < end_ns else ""), shown, end_ns


def _last_empty(pops: _Pops) -> dict[int, int]:
    """Returns, by scope, the last pop of all messages that got no message."""
    found: dict[int, int] = {}
    is_empty = (pops.asked.values["code"] == POP) & (pops.code == POLLING_TIMEOUT) & pops.is_plain
    for rows, _matches, is_all in pops.takes:
        for row in rows[is_empty[rows]].tolist() if is_all else ():
            scope = int(pops.scope[row])
            if scope not in found or pops.answered.after_ns[found[scope]] < pops.answered.after_ns[row]:
                found[scope] = row
    return found


def _missed(pops: _Pops, last: _Delivery, last_empty: dict[int, int]) -> int:
    """Returns the pop that should have got a message again after its last delivery; -1 if there is no such pop."""
    empty = last_empty.get(int(pops.scope[pops.owner[last.row]]), -1)
    if empty < 0 or any(not pops.is_answered[change] for change in last.changes):
        return -1
    ends = [
        int(pops.answered.before_ns[change]) + max(int(pops.asked.values["delay_ms"][change]), 0) * MS
        for change in last.changes
    ]
    due_ns = max([last.before_ns + last.hidden_ns, *ends]) + AGAIN_MS * MS + pops.context.wake_ns
    return empty if pops.answered.after_ns[empty] > due_ns and not _is_unsure(pops, last.row, empty) else -1


def _is_unsure(pops: _Pops, row: int, last_request: int) -> bool:
    """Whether a restart, or a change of offsets or topics, may lie between a delivery and an answer."""
    one = pops.popped.take(np.array([row]))
    bounds = (
        np.array([int(pops.asked.after_ns[pops.owner[row]])]),
        np.array([int(pops.answered.before_ns[last_request])]),
    )
    codes, names = coded(pops.table, "broker")
    broker = names[codes[one.row[0]]]
    if bool(pops.context.log_holes(broker).touch(*bounds)[0]):
        return True
    if any(mine[0] and holes.touch(*bounds)[0] for mine, holes in changes_of(one, pops.context)):
        return True
    return bool(
        (pops.reset_ns <= bounds[1][0]).any() and (pops.reset_ns[pops.reset_ns <= bounds[1][0]] >= bounds[0][0]).any()
    )


def _told_again(pops: _Pops, clause: str, found: list[tuple[int, int, int, int]], why: str) -> Breach:
    """Returns a breach about pairs: two deliveries of a message, or a delivery and a pop that did not get it.

    Each pair also has a request about the message, and a delivery that came before.
    """
    first, second, request, before = np.array(found, dtype=np.int64).reshape(-1, 4).T
    owner = np.append(pops.owner, -1)[before]
    is_pair = second >= 0
    later = np.where(is_pair, pops.owner[np.maximum(second, 0)] if len(pops.owner) else second, request)
    earlier = pops.owner[first]
    weak = np.zeros(len(first), dtype=np.bool_)
    for place, (row, last) in enumerate(zip(first.tolist(), later.tolist(), strict=True)):
        weak[place] = _is_unsure(pops, row, last)
    weak |= pops.doubted(later, pops.asked.after_ns, pops.answered.before_ns)[later]
    shown = (
        (pops.popped, np.where(is_pair, second, first)),
        (pops.asked, later),
        (pops.answered, later),
        (pops.asked, earlier),
        (pops.answered, earlier),
        (pops.popped, first),
        (pops.asked, np.where(is_pair, request, -1)),
        (pops.answered, np.where(is_pair, request, -1)),
        (pops.asked, owner),
        (pops.answered, owner),
        (pops.popped, before),
    )
    return Breach(clause, np.arange(len(first)), shown, why, weak)
