"""commit_never_regresses and commit_is_told: the committed offset that a query returns.

A query must return an offset if the group has committed one. The offset must not be below an offset that the group had
certainly committed, and must be one that the group can have committed. Each query and each separate commit must be
answered.

A commit is part of a pull (`commit_offset`), or a request UPDATE_CONSUMER_OFFSET (15). A query is a request
QUERY_CONSUMER_OFFSET (14). RocketMQ keeps the commit that arrives last, so a client may lower its offset. A pull that
was sent earlier must not lower the offset, but pulls can overtake each other. Therefore an offset is wrong if a greater
offset was certainly committed before, unless a commit of at most this offset may have come after the commit of the
greater one.

An unanswered commit, such as a one-way commit, can only explain a lower offset. The same applies to a commit whose
answer is uncertain, because its identifier occurred twice or its answer names another queue. The evidence for a
violation comes from the query's own observer and from one generation of the queue, but any observer of the broker may
have recorded the commit that explains an offset.

Commits, queries and answers are held in memory. Earlier commits are ignored once a group or topic was deleted, or its
offsets were changed on the broker (`RESETS`). Slaves are not judged.

Source: `PullMessageProcessor` and `ConsumerOffsetManager.commitOffset` (4.9.8), the spec's property of this name.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from typing import Any, Final

import attrs
import numpy as np
import pyarrow as pa
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.columns.lookup import (
    NEVER,
    Booleans,
    Integers,
    are_among,
    first_of,
    highest_before,
    is_one_of,
    numbered,
    order_by,
    run_starts,
)
from longpoll_judge.columns.tables import queue_names, queue_numbers
from longpoll_judge.contract.clause import (
    PULL_RESULTS,
    QUERY_CODES,
    UNHELD_MS,
    UPDATE_CODES,
    restart_text,
)
from longpoll_judge.contract.clauses import CLAUSE
from longpoll_judge.contract.result import Finding
from longpoll_judge.evidence.generations import DELETION_NS, KEPT_NS
from longpoll_judge.evidence.source_survey import DISORDER_NS, NO_GAPS, gaps_of, union
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, UNSEEN, UPDATE_CONSUMER_OFFSET, Context
from longpoll_judge.kernel.gathered import NUMBER, have_request, received_again, request_numbers, rows_where
from longpoll_judge.kernel.pulls import MS, PULL_CODES
from longpoll_judge.kernel.rows import Row
from longpoll_judge.read.schema import REQUIRED, are_named, coded, coded_texts, compute, event_dict, fill, integers_of

COMMITS: Final = "commits"
OFFSETS: Final = "queries and updates of offsets"
RESETS: Final = (207, 215, 222, 314)
"""The codes of requests after which a group's committed offset may have changed, or may no longer exist."""
DELETIONS: Final = (207, 215)
"""The codes of requests that delete committed offsets."""
SUCCESS: Final = 0
QUERY_NOT_FOUND: Final = 22
OFFSET_CODES: Final = (QUERY_CONSUMER_OFFSET, UPDATE_CONSUMER_OFFSET)
COLUMNS: Final = (
    *(*REQUIRED, "broker", "topic", "queue", "request", "connection"),
    *("code", "group", "offset", "offset_max", "commit_offset", "cause"),
)
"""The fields that the rules read or that a finding shows as evidence."""
CODE_KNOWN: Final = "commit.code.known"
"""The clause that needs no timestamps and no complete record, so its findings are always violations."""
UNWATCHED: Final = "; another observer saw that, and the broker may have lost it in between"
Flags = NDArray[np.bool_]


def judge_exchanges(
    table: pa.Table, native: Booleans, own: Booleans, context: Context
) -> tuple[list[Finding], list[Row]]:
    """Judge the committed offsets that queries returned; also return rows of counts.

    The rows count queries, refusals and missing fields. `native` marks the rows whose queues belong to this window, and
    `own` marks the rows to judge. The table also contains events that concern all queues.
    """
    asked, answers = exchanges(table, native, own)
    twice = received_again(table)
    is_reset = compute.is_in(asked["code"], value_set=pa.array(RESETS, pa.int64()))
    is_unsaid = (integers_of(asked, "code") == UPDATE_CONSUMER_OFFSET) & (integers_of(asked, "commit_offset") < 0)
    changes = asked.filter(compute.or_(is_reset, pa.array(is_unsaid))).select(COLUMNS)
    resets = [_Reset.of(row, context) for row in changes.to_pylist()]
    resets += _unseen(context)
    asked = asked.filter(compute.invert(is_reset))
    lacks = {name: _lacks(asked, name) for name in ("topic", "group")}
    lacks["queue"] = is_one_of(integers_of(asked, "code"), OFFSET_CODES) & (integers_of(asked, "queue") < 0)
    native, own = (asked[name].to_numpy() for name in ("native", "own"))
    rows: list[Row] = [
        ("missing", 0, int(np.count_nonzero(flags & own)), f"request_received without {name}")
        for name, flags in lacks.items()
    ]
    context = _with_holes(context, asked, np.logical_or.reduce(list(lacks.values())))
    asked = asked.filter(pa.array(native))
    groups = list(_groups(asked, answers, twice))
    ends = _ends(table)
    rows.append(("missing", 0, sum(group.unsaid_count for group in groups), "answer_sent without offset"))
    for group in groups:
        refused, of = group.refused_counts
        rows += [("refused", 0, refused, OFFSETS), ("asked", 0, of, OFFSETS)]
        rows.append(("share", 0, group.answered_count, COMMITS))
    is_question = (integers_of(asked, "code") == QUERY_CONSUMER_OFFSET) & asked["own"].to_numpy()
    questions = int(np.count_nonzero(is_question))
    rows.append(("share_of", 0, questions, COMMITS))
    return [finding for group in groups for finding in group.findings(resets, ends, context)], rows


def _ends(table: pa.Table) -> dict[tuple[str, str, int], int]:
    queues, firsts = queue_numbers(table)
    end = integers_of(table, "offset_max")
    rows = np.flatnonzero(rows_where(table, "answer_sent") & (end >= 0))
    most = np.full(len(firsts), -1, dtype=np.int64)
    np.maximum.at(most, queues[rows], end[rows])
    told = np.flatnonzero(most >= 0)
    return dict(zip(queue_names(table, firsts[told]), most[told].tolist(), strict=True))


def _lacks(asked: pa.Table, name: str) -> Flags:
    codes, names = coded(asked, name)
    empty = np.array([not text for text in names], dtype=np.bool_)[codes]
    found: Flags = empty & is_one_of(integers_of(asked, "code"), OFFSET_CODES)
    return found


def _with_holes(context: Context, asked: pa.Table, damaged: Flags) -> Context:
    """Copy the context with a gap around each damaged request, because its group or queue is unknown."""
    holes = dict(context.broker_holes)
    for event in asked.filter(pa.array(damaged)).to_pylist():
        interval = event["after_ns"] - DISORDER_NS, event["before_ns"] + DISORDER_NS
        holes[event["broker"]] = union((holes.get(event["broker"], NO_GAPS), gaps_of([interval])))
    return attrs.evolve(context, broker_holes=holes)


@frozen
class _Reset:
    """An event after which offsets of a group or topic may have changed; an empty broker, group or topic means all."""

    broker: str
    group: str
    topic: str
    after_ns: int
    until_ns: int
    """The latest time at which the reset may take effect. If an administrator resets the offset on the broker (222),
    the broker returns the new offset until the group pulls."""
    deletes: bool
    """Whether the event deletes the offset and never sets another one."""
    queue: int = -1
    """The queue that the reset concerns; -1 means all queues."""
    is_restart: bool = False
    """Whether the broker may have been killed and may have lost the offsets that it had not saved yet (`KEPT_NS`)."""

    @classmethod
    def of(cls, event: dict[str, Any], context: Context) -> _Reset:
        deletes = event["code"] in DELETIONS
        is_update = event["code"] == UPDATE_CONSUMER_OFFSET
        is_bounded = (deletes or is_update) and event["source"] not in context.settable
        until_ns = event["before_ns"] + DELETION_NS if is_bounded else NEVER
        names = event["broker"], event["group"], event["topic"]
        return cls(*names, event["after_ns"], until_ns, deletes, queue=event["queue"] if is_update else -1)

    @property
    def sets_any(self) -> bool:
        """Whether the group may have any offset after this event."""
        return not self.deletes and not self.is_restart

    def is_about(self, event: dict[str, Any]) -> bool:
        """Whether this reset may change the offset that the event commits or queries."""
        if self.queue not in {-1, event["queue"]}:
            return False
        pairs = (self.broker, event["broker"]), (self.group, event["group"]), (self.topic, event["topic"])
        return all(own in {"", other} for own, other in pairs)


def _unseen(context: Context) -> Iterator[_Reset]:
    """Yield the resets that no source recorded: new generations of queues, and restarts of brokers.

    Commits for an earlier generation of a queue do not count in a new generation.
    """
    for (broker, topic, queue), holes in context.begun_anew.items():
        for after_ns, before_ns in holes:
            yield _Reset(broker, "", topic, after_ns, before_ns, deletes=True, queue=queue)
    for broker, holes in context.restarts.items():
        for after_ns, before_ns in holes:
            yield _Reset(broker, "", "", after_ns, before_ns, deletes=False, is_restart=True)


def exchanges(whole: pa.Table, native: Booleans, own: Booleans) -> tuple[pa.Table, pa.Table]:
    """Returns the requests that commit, query or reset an offset, in order, and their answers."""
    code = integers_of(whole, "code")
    about = (integers_of(whole, "commit_offset") >= 0) | is_one_of(code, (*OFFSET_CODES, *RESETS))
    rows = np.flatnonzero(rows_where(whole, "request_received") & about)
    sources, names = coded(whole, "source")
    rank = np.argsort(np.argsort(names))
    keys = [integers_of(whole, name)[rows] for name in ("sequence", "before_ns", "after_ns")]
    rows = rows[np.lexsort((keys[0], rank[sources[rows]], *keys[1:]))]
    answers = np.flatnonzero(rows_where(whole, "answer_sent"))
    answers = answers[are_among(request_numbers(whole, answers), request_numbers(whole, rows))]
    asked, told = (_with_columns(whole, each) for each in (rows, answers))
    return asked.append_column("native", pa.array(native[rows])).append_column("own", pa.array(own[rows])), told


def _with_columns(whole: pa.Table, rows: Integers) -> pa.Table:
    """Returns these rows with the columns that the rules of commits read, and the numbers of their requests."""
    names = [name for name in whole.column_names if name in COLUMNS]
    table = fill(whole.select(names).take(pa.array(rows)), COLUMNS)
    return table.append_column(NUMBER, pa.array(whole[NUMBER].to_numpy()[rows]))


def _answer_rows(asked: pa.Table, answers: pa.Table) -> Integers:
    own, told = (request_numbers(table, np.arange(len(table))) for table in (asked, answers))
    return np.where(have_request(asked), first_of(own, told), -1)


@frozen(eq=False)
class _Group:
    """The commits and queries of one group and queue, from all sources, in the order of the requests."""

    asked: pa.Table
    answers: pa.Table
    answer: Integers
    """For each request, the row of its answer; -1 if it has no answer."""
    told: dict[str, Integers]
    """Columns of the answers, by name; each column has a row for each request."""
    is_doubtful: Flags
    """For each request, whether its answer is uncertain; if so, `answer` is -1 and the request is not judged."""

    @property
    def own(self) -> Flags:
        flags: Flags = self.asked["own"].to_numpy()
        return flags

    @property
    def answered_count(self) -> int:
        is_question = (integers_of(self.asked, "code") == QUERY_CONSUMER_OFFSET) & self.own
        return int(np.count_nonzero(is_question & (self.answer >= 0)))

    @property
    def refused_counts(self) -> tuple[int, int]:
        """The number of queries and updates that were refused, and the number of those that were answered."""
        answered = is_one_of(integers_of(self.asked, "code"), OFFSET_CODES) & (self.answer >= 0) & self.own
        read = is_one_of(self.told["code"], (SUCCESS, QUERY_NOT_FOUND))
        return int(np.count_nonzero(answered & ~read)), int(np.count_nonzero(answered))

    @property
    def unsaid_count(self) -> int:
        is_asked = (integers_of(self.asked, "code") == QUERY_CONSUMER_OFFSET) & (self.answer >= 0) & self.own
        unsaid = (self.told["code"] == SUCCESS) & (self.told["offset"] < 0)
        return int(np.count_nonzero(is_asked & unsaid))

    def findings(
        self, resets: Iterable[_Reset], ends: Mapping[tuple[str, str, int], int], context: Context
    ) -> Iterator[Finding]:
        (place,) = self.asked.slice(0, 1).to_pylist()
        if not place["group"] or not place["topic"]:
            return
        mine = [reset for reset in resets if reset.is_about(place)]
        exchanges = self._joined()
        questions = np.flatnonzero((exchanges.code == QUERY_CONSUMER_OFFSET) & self.own)
        # Remove queries that are certainly right first, because each remaining query is compared with all requests of
        # the group.
        questions = questions if mine else questions[~_are_as_committed(exchanges, questions)]
        for question in questions.tolist():
            about = [reset for reset in mine if reset.after_ns <= exchanges.done_ns[question]]
            found = self._told(exchanges, question, about, context)
            end = ends.get((place["broker"], place["topic"], place["queue"]), NEVER)
            if not any(reset.sets_any for reset in about):
                found = itertools.chain(found, self._beyond(exchanges, question, end, context))
            yield from itertools.islice(found, 1)
        yield from self._unanswered(exchanges, context)

    def _joined(self) -> _Exchanges:
        code = integers_of(self.asked, "code")
        # Only pulls and updates commit an offset, even if another request contains one.
        commits = is_one_of(code, (*PULL_CODES, UPDATE_CONSUMER_OFFSET))
        value = np.where(commits, integers_of(self.asked, "commit_offset"), -1)
        is_answered = self.answer >= 0
        answer_code = np.where(is_answered, self.told["code"], -1)
        is_explicit = code == UPDATE_CONSUMER_OFFSET
        # An explicit commit took effect if it was answered SUCCESS. A pull's commit took effect if the pull was read.
        took = np.where(is_explicit, answer_code == SUCCESS, is_one_of(answer_code, PULL_RESULTS)) & (value >= 0)
        return _Exchanges(
            source=coded(self.asked, "source")[0],
            code=code,
            value=value,
            after_ns=integers_of(self.asked, "after_ns"),
            before_ns=integers_of(self.asked, "before_ns"),
            done_ns=np.where(is_answered, self.told["before_ns"], NEVER),
            answer_code=answer_code,
            told=np.where(is_answered & (answer_code == SUCCESS), self.told["offset"], -1),
            is_explicit=is_explicit,
            took=took,
            # A request without an answer may have taken effect, and a refused pull may have committed before it was
            # refused.
            may_take=took | ((~is_answered | ~is_explicit) & (value >= 0)),
        )

    def _told(self, all_: _Exchanges, question: int, resets: list[_Reset], context: Context) -> Iterator[Finding]:
        """Yield the finding about the answer to one query; `resets` contains resets that may precede the query."""
        since_ns = max((reset.until_ns for reset in resets if not reset.is_restart), default=-NEVER)
        # Select exchanges (requests with their answers) that certainly ended before the query was received, and that
        # the query's observer recorded, whose clock orders both.
        before = (all_.source == all_.source[question]) & (all_.done_ns < all_.after_ns[question])
        # The selected requests must also have been received after every reset had certainly taken effect.
        known = before & (all_.after_ns > since_ns)
        saved = np.ones_like(known)
        for reset in resets:
            if reset.is_restart:
                saved &= (all_.after_ns > reset.until_ns) | (all_.done_ns < reset.after_ns - KEPT_NS)
        lost, known = known & ~saved, known & saved
        killed = restart_text(max((reset.after_ns for reset in resets if reset.is_restart), default=0))
        # Select commits that another observer saw before its own end. After that end, their broker may have been killed
        # without a record, and may have lost the commits.
        ended = [context.sources.get(name, UNSEEN).stopped_ns is not None for name in coded(self.asked, "source")[1]]
        elsewhere = np.array(ended, dtype=np.bool_)[all_.source] & (all_.done_ns < all_.after_ns[question])
        elsewhere &= (all_.source != all_.source[question]) & (all_.after_ns > since_ns)
        elsewhere &= bool(self.asked["broker"][0].as_py())
        for others, doubt in ((known, ""), (elsewhere, UNWATCHED), (lost, killed)):
            if context.asks("commit.told.kept"):
                yield from self._too_little(all_, question, others, context, doubt)
            if context.asks("commit.told.some"):
                yield from self._none(all_, question, others, context, doubt)
        if context.asks("commit.told.most"):
            yield from self._too_much(all_, question, known, context)
        if context.asks("commit.told.written"):
            yield from self._unwritten(all_, question, before, resets, context)
            yield from self._outlived(all_, question, resets, context)

    def _too_little(
        self, all_: _Exchanges, question: int, known: Flags, context: Context, doubt: str
    ) -> Iterator[Finding]:
        told = int(all_.told[question])
        greater = np.flatnonzero(known & all_.took & (all_.value > told))
        if told < 0 or not len(greater):
            return
        commit = int(greater[np.argmax(all_.after_ns[greater])])
        # Select commits from any observer that may have lowered the offset by the time of the answer: an explicit
        # commit that was not certainly done before the greater commit was received, or a pull's commit that was not
        # certainly received before the greater commit.
        lower = (all_.value >= 0) & (all_.value <= told) & (all_.after_ns <= all_.done_ns[question])
        since_ns = all_.after_ns[commit]
        later = np.where(all_.is_explicit, all_.done_ns >= since_ns, all_.before_ns >= since_ns)
        if (lower & later).any():
            return
        why = (
            f"{self._name} was told offset {told}, although {all_.value[commit]} was committed before it "
            "asked, and nothing but a pull's older commit can have put that back"
        )
        yield self._finding("commit.told.kept", [commit, question], why + doubt, context, certain=not doubt)

    def _none(self, all_: _Exchanges, question: int, known: Flags, context: Context, doubt: str) -> Iterator[Finding]:
        had = np.flatnonzero(known & (all_.took | (all_.told > 0)))
        if all_.answer_code[question] != QUERY_NOT_FOUND or not len(had):
            return
        one = int(had[-1])
        what = f"{all_.value[one]} was committed" if all_.took[one] else f"it was told {all_.told[one]}"
        why = f"{self._name} was told that it has no offset, although {what} before"
        yield self._finding("commit.told.some", [one, question], why + doubt, context, certain=not doubt)

    def _too_much(self, all_: _Exchanges, question: int, known: Flags, context: Context) -> Iterator[Finding]:
        told = int(all_.told[question])
        # Any commit that may have taken effect before the answer counts, whichever observer recorded it, because the
        # broker keeps one committed offset per group and queue.
        possible = all_.may_take & (all_.after_ns <= all_.done_ns[question])
        if told <= 0 or (possible & (all_.value >= told)).any():
            return
        earlier = known & (all_.code == QUERY_CONSUMER_OFFSET)
        # At the time of an earlier query, the group had no offset or a lower one, so a higher offset can only have been
        # committed later.
        earlier &= (all_.answer_code == QUERY_NOT_FOUND) | ((all_.told >= 0) & (all_.told < told))
        most = int(all_.value[possible].max(initial=0))
        why = f"{self._name} was told offset {told}, and no more than {most} can have been committed"
        if earlier.any():
            asked_before = int(np.flatnonzero(earlier)[-1])
            why += f" since it was told {_offset(all_, asked_before)}"
            yield self._finding("commit.told.most", [asked_before, question], why, context)
        elif (known & all_.took).any():
            commit = int(np.flatnonzero(known & all_.took)[-1])
            why += ", but for what was committed before this record began"
            yield self._finding("commit.told.most", [commit, question], why, context, certain=False)

    def _beyond(self, all_: _Exchanges, question: int, end: int, context: Context) -> Iterator[Finding]:
        """Yields a finding if a query got an offset above every recorded end, which no known commit explains."""
        told = int(all_.told[question])
        possible = all_.may_take & (all_.after_ns <= all_.done_ns[question]) & (all_.value >= told)
        if told > end and not possible.any() and context.asks("commit.told.within"):
            why = f"{self._name} was told offset {told}, and no answer shows an end of the queue above {end}"
            why += ": a client may have committed it before this record began"
            yield self._finding("commit.told.within", [question], why, context, certain=False)

    def _unwritten(
        self, all_: _Exchanges, question: int, before: Flags, resets: list[_Reset], context: Context
    ) -> Iterator[Finding]:
        """Yields a finding if no commit explains the returned offset since the group certainly had another offset."""
        told, done_ns = int(all_.told[question]), int(all_.done_ns[question])
        if told < 0:
            return
        is_question = all_.code == QUERY_CONSUMER_OFFSET
        # An answer of 0 may mean that the group has no offset, so nothing was skipped.
        is_none = (all_.answer_code == QUERY_NOT_FOUND) & (told > 0)
        other = before & is_question & (is_none | ((all_.told >= 0) & (all_.told != told)))
        put = before & all_.is_explicit & all_.took & (all_.value != told)
        fixed = np.flatnonzero(other | put)
        if not len(fixed):
            return
        last = int(fixed[np.argmax(all_.after_ns[fixed])])
        since_ns = all_.after_ns[last]
        written = (all_.may_take & (all_.value == told)) | (is_question & (all_.told == told))
        written |= is_question & (all_.answer_code == QUERY_NOT_FOUND) & (told == 0)
        # Select commits that began before the query was answered, and that may have finished after the time when the
        # group last certainly had another offset.
        written &= (all_.after_ns <= done_ns) & (all_.done_ns >= since_ns)
        written[question] = False
        reset = any(one.until_ns >= since_ns and (told == 0 or not one.deletes) for one in resets)
        if written.any() or reset:
            return
        shown = [last, question]
        certain = bool(other.any())
        if put[last] and certain:
            # If an offset was reset before the record began, a query would return the reset offset until the group
            # pulls, whatever the group commits.
            shown.insert(0, int(np.flatnonzero(other)[-1]))
        since = f"{all_.value[last]} was committed" if put[last] else f"it was told {_offset(all_, last)}"
        why = f"{self._name} was told offset {told}, which nobody can have committed since {since}"
        why += "" if certain else ", but for a reset before this record began"
        yield self._finding("commit.told.written", shown, why, context, certain=certain)

    def _outlived(self, all_: _Exchanges, question: int, resets: list[_Reset], context: Context) -> Iterator[Finding]:
        """Yields a finding about an offset that survived the deletion of its queue, as it does in some brokers."""
        told = int(all_.told[question])
        ends = [reset.after_ns for reset in resets if reset.deletes and reset.until_ns < all_.after_ns[question]]
        written = all_.may_take & (all_.value == told) & (all_.after_ns <= all_.done_ns[question])
        is_set = any(reset.sets_any for reset in resets)
        if told <= 0 or is_set or not ends or not written.any() or not (all_.before_ns[written] < max(ends)).all():
            return
        commit = int(np.flatnonzero(written)[-1])
        why = f"{self._name} was told offset {told}, which it committed before its topic or the group was deleted"
        yield self._finding("commit.told.written", [commit, question], why, context, certain=False)

    @property
    def _name(self) -> str:
        return f"group {self.asked['group'][0].as_py()[:80]!r}"

    def _unanswered(self, all_: _Exchanges, context: Context) -> Iterator[Finding]:
        """Yields findings about requests for offsets that have no answer or an answer with an unknown code."""
        about = have_request(self.asked) & is_one_of(all_.code, OFFSET_CODES) & ~self.is_doubtful & self.own
        known = np.where(
            all_.code == QUERY_CONSUMER_OFFSET,
            is_one_of(all_.answer_code, QUERY_CODES),
            is_one_of(all_.answer_code, UPDATE_CODES),
        )
        for one in np.flatnonzero(about & (all_.answer_code >= 0) & ~known).tolist():
            why = f"a request of code {all_.code[one]} was answered with code {all_.answer_code[one]}"
            yield self._finding(CODE_KNOWN, [one], f"{why}, which no broker gives to it", context)
        allowed_ns = UNHELD_MS * MS + context.late_ns
        for one in np.flatnonzero(about & (all_.done_ns - all_.after_ns > allowed_ns)).tolist():
            yield from self._late(one, int(all_.code[one]), allowed_ns, context)

    def _late(self, one: int, code: int, allowed_ns: int, context: Context) -> Iterator[Finding]:
        """Yields a finding about a request that has no answer, or whose answer may be late."""
        events = self._events(one)
        asked, answer = events[0], events[1] if len(events) > 1 else None
        name = asked["source"], asked["connection"]
        facts = context.sources.get(asked["source"], UNSEEN)
        if answer is None:
            closed_ns = context.closed_from(name, asked["after_ns"])
            least_ns = most_ns = min(facts.last_ns, closed_ns)
        else:
            least_ns, most_ns = answer["after_ns"], answer["before_ns"]
        if answer is None and least_ns - asked["before_ns"] <= allowed_ns:
            return
        span = np.array([asked["after_ns"]]), np.array([most_ns])
        unread = bool(context.blocked.get(name, NO_GAPS).touch(*span)[0])
        unread |= answer is not None and name[0] not in context.inside and bool(facts.holes.touch(*span)[0])
        how_long = f"{(least_ns - asked['before_ns']) / MS:.3f} ms (allowed {allowed_ns / MS:.3f} ms)"
        came = f"never answered, although the history goes on for {how_long}"
        came = came if answer is None else f"answered after {how_long}"
        certain = not unread and least_ns - asked["before_ns"] > allowed_ns
        why = f"a request of code {code} was {came}"
        yield self._finding("commit.answered", [one], why, context, certain=certain)

    def _finding(
        self,
        clause: str,
        exchanges: list[int],
        why: str,
        context: Context,
        *,
        certain: bool = True,
    ) -> Finding:
        shown = [event_dict(row) for one in exchanges for row in self._events(one)]
        last: dict[str, Any] = event_dict(self.asked.select(COLUMNS).slice(exchanges[-1], 1).to_pylist()[0])
        facts = context.sources.get(last["source"], UNSEEN)
        # A request that was received before the record began may have taken effect later.
        before_ns = 0 if clause == "commit.answered" else UNHELD_MS * MS
        since_ns = np.array([shown[0]["after_ns"] - before_ns], dtype=np.int64)
        is_missing = clause == "commit.answered" and len(shown) == 1
        # After the time limit any answer is late, so a gap in the record after the limit does not matter.
        due_ns = shown[0]["before_ns"] + UNHELD_MS * MS + context.late_ns
        until_ns = np.array([due_ns if is_missing else shown[-1]["before_ns"]], dtype=np.int64)
        is_whole = not context.log_holes(last.get("broker", "")).touch(since_ns, until_ns)[0]
        is_ordered = facts.is_steady and (
            clause == "commit.answered" or last.get("broker", "") not in context.unsteady_brokers
        )
        certain &= not (clause == "commit.answered" and last["source"] in context.settable)
        return Finding(
            property=CLAUSE[clause].property,
            clause=clause,
            verdict="violated" if clause == CODE_KNOWN or (is_whole and is_ordered and certain) else "unknown",
            topic=last.get("topic", ""),
            queue=last.get("queue", -1),
            request=last.get("request", ""),
            window_start_ms=shown[0]["after_ns"] / MS,
            window_end_ms=shown[-1]["before_ns"] / MS,
            why=why,
            evidence=shown,
        )

    def _events(self, exchange: int) -> list[dict[str, Any]]:
        answer = int(self.answer[exchange])
        answers = self.answers.select(COLUMNS).slice(answer, 1).to_pylist() if answer >= 0 else []
        return [*self.asked.select(COLUMNS).slice(exchange, 1).to_pylist(), *answers]


@frozen(eq=False)
class _Exchanges:
    """The requests of one group and their answers as columns; each request is a row."""

    source: NDArray[np.int32]
    code: Integers
    value: Integers
    """The offset that the request commits; -1 if it commits none."""
    after_ns: Integers
    before_ns: Integers
    done_ns: Integers
    """The latest time at which the answer was sent; `NEVER` if the request has no answer."""
    answer_code: Integers
    told: Integers
    """The offset in the answer to each query; -1 if the answer has no offset."""
    is_explicit: Flags
    took: Flags
    may_take: Flags


def _are_as_committed(all_: _Exchanges, questions: Integers) -> Flags:
    """Returns queries whose offset certainly may be the last commit, provided that nothing reset the queue."""
    told, asked_ns, done_ns = all_.told[questions], all_.after_ns[questions], all_.done_ns[questions]
    # First condition: no greater offset was certainly committed before the query.
    is_enough = _most_before(all_.done_ns[all_.took], all_.value[all_.took], asked_ns) <= told
    # Second condition: this offset may have been committed after every exchange that shows a different offset.
    fixed = (all_.code == QUERY_CONSUMER_OFFSET) | all_.is_explicit
    since_ns = _most_before(all_.done_ns[fixed], all_.after_ns[fixed], asked_ns)
    may = np.flatnonzero(all_.may_take & np.isin(all_.value, told))
    value = all_.value[may]
    written = highest_before(value, all_.after_ns[may], all_.done_ns[may], told, done_ns + 1)
    is_written = (written >= 0) & (np.append(all_.done_ns[may], 0)[written] >= since_ns)
    found: Flags = (told >= 0) & is_enough & is_written
    return found


def _most_before(ended_ns: Integers, values: Integers, moments_ns: Integers) -> Integers:
    """Returns the highest value whose `ended_ns` lies before each time; `-NEVER` if there is no such value."""
    order = np.argsort(ended_ns, kind="stable")
    most = np.append(-NEVER, np.maximum.accumulate(values[order]))
    return most[np.searchsorted(ended_ns[order], moments_ns)]


def _offset(all_: _Exchanges, question: int) -> str:
    return "that it has none" if all_.told[question] < 0 else str(all_.told[question])


def _are_elsewhere(asked: pa.Table, answers: pa.Table, answer: Integers) -> Flags:
    """Returns the requests whose answer names another queue, or names no queue but another broker or topic.

    An answer that names no broker, topic or queue belongs to its request's queue.
    """
    has_queue = np.append(integers_of(answers, "queue") >= 0, False)[answer]
    told_queue = np.append(integers_of(answers, "queue"), -1)[answer]
    found: Flags = has_queue & (told_queue != integers_of(asked, "queue"))
    for name in ("broker", "topic"):
        # Both columns are from one table, so equal names have equal codes.
        (own, texts), (told, _texts) = coded_texts(asked, name), coded_texts(answers, name)
        none = np.append(~are_named(texts), True)
        told = np.append(told, -1)[answer]
        found |= (own != told) & ~none[told] & (has_queue | ~none[own])
    return found


def _groups(asked: pa.Table, answers: pa.Table, twice: Integers) -> Iterator[_Group]:
    """Yields the requests of each group and queue, if the group queries its offset or commits an offset separately."""
    answer = _answer_rows(asked, answers)
    is_doubtful = are_among(request_numbers(asked, np.arange(len(asked))), twice) | _are_elsewhere(
        asked, answers, answer
    )
    answer[is_doubtful] = -1
    told = {name: np.append(integers_of(answers, name), 0)[answer] for name in ("code", "offset", "before_ns")}
    queues, _firsts = queue_numbers(asked)
    groups, _names = coded_texts(asked, "group")
    (codes,) = numbered((queues.astype(np.int64), groups.astype(np.int64)))
    is_asked = np.zeros(int(codes.max(initial=-1)) + 1, dtype=np.bool_)
    is_asked[codes[is_one_of(integers_of(asked, "code"), OFFSET_CODES)]] = True
    order = order_by(codes, np.zeros(len(codes), dtype=np.int64))
    order = order[is_asked[codes[order]]]
    asked, starts = asked.take(pa.array(order)).combine_chunks(), run_starts(codes[order])
    for start, end in pairwise([*starts.tolist(), len(order)]):
        rows = order[start:end]
        yield _Group(
            asked.slice(start, end - start),
            answers,
            answer[rows],
            {name: column[rows] for name, column in told.items()},
            is_doubtful[rows],
        )
