"""`Case` holds the joined events of a window; `Suspects` holds possible violations with a function to explain each.

`promptness`, `answers` and `holding` contain the properties. `verdict` assembles the results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
from attrs import field, frozen

from longpoll_judge.columns.lookup import BEGINNING, NEVER, Booleans, Integers, is_one_of
from longpoll_judge.contract.clause import LOGGED, PULL_RESULTS, TIMELESS
from longpoll_judge.contract.result import (
    ANSWER_IS_RIGHT,
    ANSWERED_BY_DEADLINE,
    ANSWERED_ON_STOP,
    ANSWERED_ONCE,
    HELD_AS_ASKED,
    NO_LOST_WAKEUP,
    FindingVerdict,
)
from longpoll_judge.evidence.source_survey import NO_GAPS
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, Context, queue_text
from longpoll_judge.kernel.lives import Lives, make_lives
from longpoll_judge.kernel.logs import MESSAGES, Growth, Logs, Matching, make_logs
from longpoll_judge.kernel.pulls import MS, PULL_CODES, Pulls, make_pulls
from longpoll_judge.kernel.window import Window
from longpoll_spec.history import ABSENT

ENDS: Final = ("offset_next", "offset_min", "offset_max")
"""The offsets in an answer to a pull."""


@frozen
class Explanation:
    """Explains one suspect. The judge creates a finding from it."""

    clause: str
    """The clause that the suspect violates."""
    why: str
    """One sentence that says how the suspect violates the clause, with the numbers."""
    rows: list[int]
    """The rows of the requests' events that show the violation."""
    log_rows: list[int] = field(factory=list)
    """The rows of the log's events that show the violation."""
    messages: list[int] = field(factory=list)
    """Queue offsets of the messages that the finding is about, starting with the message at fault."""
    roots: list[int] | None = None
    """The `log_rows` that would cause the finding if the recorded events were wrong. None means all `log_rows`; an
    empty list means that only the answer is wrong."""


@frozen(eq=False)
class Suspects:
    """Requests or log events that violate, or may violate, one property."""

    property: str
    verdict: FindingVerdict
    members: Integers
    """Indices that `explain` accepts, in order of time."""
    rows: Integers
    """For each member, the row of the event whose time determines the member's position in `members`."""
    explain: Callable[[int], Explanation]
    timeless: Booleans
    """For each member, whether the violation is independent of timestamps."""


def suspects(
    name: str,
    violated: Booleans,
    unknown: Booleans,
    rows: Integers,
    explain: Callable[[int], Explanation],
    *,
    timeless: Booleans | bool = False,
) -> list[Suspects]:
    """Returns the violated and the unknown suspects of one property, each with its row, or an empty list."""
    kinds: tuple[tuple[FindingVerdict, Booleans], ...] = (("violated", violated), ("unknown", unknown))
    stands = np.broadcast_to(timeless, len(rows))
    return [
        Suspects(name, kind, members, rows[members], explain, stands[members])
        for kind, flags in kinds
        if len(members := np.flatnonzero(flags))
    ]


@frozen(eq=False)
class Case:
    """The events of a window, joined and sorted."""

    events: Window
    lives: Lives
    logs: Logs
    pulls: Pulls
    context: Context
    own: Booleans
    """For each row, whether this window judges the event; another window of the same queue judges the other events."""
    _told: dict[str, Integers] = field(factory=dict)

    @cached_property
    def matchings(self) -> list[Matching | None]:
        """For each expression of the pulls, the messages that match it; None if tags cannot decide this."""
        return [None if known is None else self.logs.matching(known) for known in self.pulls.expressions]

    @cached_property
    def is_decidable(self) -> Booleans:
        """Whether the tags decide which messages each pull gets."""
        known = np.array([matching is not None for matching in self.matchings], dtype=np.bool_)
        return known[self.pulls.expression] if len(known) else np.zeros(0, dtype=np.bool_)

    @cached_property
    def first_visible(self) -> tuple[Integers, Integers]:
        """For each pull, the interval in which its first message became visible; `NEVER` if undecidable."""
        after_ns, before_ns = self.by_expression(
            lambda matching, mine: matching.first_visible(self.pulls.log[mine], self.pulls.offset[mine])
        )
        return after_ns, before_ns

    @cached_property
    def deliveries(self) -> tuple[Growth, Integers]:
        """The queue ends that the delivered messages of outside sources prove, and the pull that shows each end."""
        pulls, (count, body, _owner) = self.pulls, self.bodies
        shows = (self.answer_code == FOUND) & (count > 0) & self.is_sound
        shows &= ~self.logs.is_white_box[pulls.log] & ~self.lives.is_neither[pulls.log]
        pull = np.flatnonzero(shows)
        end = body[np.cumsum(count)[pull] - 1] + 1
        # Ignore answers that contradict themselves, because they do not prove an end.
        is_right = (end > pulls.offset[pull]) & (end <= self.told("offset_max")[pull])
        told, pull_of = np.full((2, len(self.events)), -1, dtype=np.int64)
        answers = pulls.answer_row[pull[is_right]]
        told[answers], pull_of[answers] = end[is_right], pull[is_right]
        rows, log = self.lives.sure(answers)
        moments = self.events.integers("after_ns", rows), self.events.integers("before_ns", rows)
        return Growth(log, told[rows], *moments, self.lives.count), pull_of[rows]

    @cached_property
    def first_delivered(self) -> tuple[Integers, Integers]:
        """For each pull, when an answer of an outside source first showed its first message; `NEVER` if none did."""
        growth, _pull = self.deliveries
        after_ns, before_ns = self.by_expression(
            lambda matching, mine: matching.first_delivered(growth, self.pulls.log[mine], self.pulls.offset[mine])
        )
        return after_ns, before_ns

    def told(self, name: str) -> Integers:
        """For each pull, the value of the column `name` in its answer; -1 if the pull has no answer."""
        if name not in self._told:
            values = self.events.integers(name, self.pulls.answer_row)
            values[~self.pulls.is_answered] = -1
            self._told[name] = values
        return self._told[name]

    @property
    def answer_code(self) -> Integers:
        """The code of each pull's answer; -1 if the pull has no answer."""
        return self.told("code")

    @cached_property
    def bodies(self) -> tuple[Integers, Integers, Integers]:
        """How many messages each pull's answer delivers, their offsets concatenated, and the pull of each message."""
        answered = np.flatnonzero(self.pulls.is_answered)
        owner, body = self.events.bodies(self.pulls.answer_row[answered])
        owner = answered[owner]
        return np.bincount(owner, minlength=len(self.pulls)), body, owner

    @cached_property
    def _answers_tell_all(self) -> bool:
        """Whether every answer has its queue, its code and the three offsets, so that no answer is damaged."""
        if not self.is_placed[self.events.queue[self.events.rows("answer_sent")]].all():
            return False
        if any(self.events.has_negative("answer_sent", name) for name in ("code", *ENDS)):
            return False
        asked = self.events.integers("code", self.events.rows("request_received"))
        return not (asked == QUERY_CONSUMER_OFFSET).any()

    @cached_property
    def is_placed(self) -> Booleans:
        """For each queue number, whether it is a real queue; events without a queue have a number too."""
        return np.array([bool(name[1]) and name[2] >= 0 for name in self.events.names], dtype=np.bool_)

    @cached_property
    def missing(self) -> dict[str, Booleans]:
        """For each field, which pulls lack it although the record needs it (docs/contract.md).

        The field may belong to the pull's request or to its answer.
        """
        pulls, events, code = self.pulls, self.events, self.answer_code
        is_placed = self.is_placed[events.queue[pulls.row]]
        told = ("offset", "count_max", "timeout_ms")
        if (
            bool(is_placed.all())
            and self._answers_tell_all
            and not any(events.has_negative("request_received", name) for name in told)
        ):
            return {}
        is_read = (code == 0) | (code == 19) | (code == 20)
        has_ends = is_read | (code == 21)
        unplaced = is_read & ~is_placed
        found = {
            "request_received without topic or queue": unplaced,
            "request_received without offset": is_read & (pulls.offset < 0),
            "request_received without count_max": (code == 0) & (pulls.count_max == -1),
            "request_received without timeout_ms": pulls.may_hold & (events.integers("timeout_ms", pulls.row) == -1),
        }
        for name in ENDS:
            found[f"answer_sent without {name}"] = has_ends & (events.integers(name, pulls.answer_row) == ABSENT)
        return {name: flags for name, flags in found.items() if flags.any()}

    @cached_property
    def is_damaged(self) -> Booleans:
        """Which events are damaged answers, which no rule uses.

        A damaged answer lacks a field that its kind needs, or names no queue although requests of several queues have
        its identifier.
        """
        events = self.events
        found = np.zeros(len(events), dtype=np.bool_)
        if self._answers_tell_all:
            return found
        rows = events.rows("answer_sent")
        code = events.integers("code", rows)
        ends = [events.integers(name, rows) for name in ENDS]
        found[rows[code < 0]] = True
        unplaced = rows[np.array([name[2] < 0 for name in events.names], dtype=np.bool_)[events.queue[rows]]]
        if len(unplaced):
            found[unplaced[events.is_asked_in_several(unplaced)]] = True
        # An answer needs all three offsets. Only `ABSENT` means that an offset is missing; -1 is a number that the
        # broker sent.
        lacks = is_one_of(code, PULL_RESULTS) & (np.minimum.reduce(ends) == ABSENT)
        requests = events.integers("code", events.rows("request_received"))
        if (requests == QUERY_CONSUMER_OFFSET).any():
            lacks |= (code == 0) & (events.integers("offset", rows) < 0)
        rows, ends = rows[lacks], [end[lacks] for end in ends]
        is_named = events.request_key[rows] >= 0
        rows, is_endless = rows[is_named], np.minimum.reduce(ends)[is_named] == ABSENT
        asked = events.answer_to(events.request_key[rows], "request_received")
        asked_code = np.where(asked >= 0, events.integers("code", asked), -1)
        is_unsaid = (asked_code == QUERY_CONSUMER_OFFSET) & (events.integers("offset", rows) < 0)
        is_unsaid &= events.integers("code", rows) == 0
        found[rows[(is_one_of(asked_code, PULL_CODES) & is_endless) | is_unsaid]] = True
        return found

    @cached_property
    def is_answered(self) -> Booleans:
        """Which pulls have an answer that is not damaged, so that rules can use it."""
        if self._answers_tell_all:
            return self.pulls.is_answered
        found: Booleans = self.pulls.is_answered & ~self.is_damaged[self.pulls.answer_row]
        return found

    @cached_property
    def is_sound(self) -> Booleans:
        """Which pulls and their answers have all their fields; rules ignore the other pulls."""
        # Select the pulls whose answer is damaged.
        lacking = self.pulls.is_answered & ~self.is_answered
        for flags in self.missing.values():
            lacking |= flags
        return ~lacking

    def by_expression(self, question: Callable[[Matching, Integers], tuple[Integers, Integers]]) -> list[Integers]:
        """Call `question` with each matching and the indices of its pulls, and return its two results for each pull.

        Both results are `NEVER` for pulls whose messages cannot be decided by tags.
        """
        answers = [np.full(len(self.pulls), NEVER, dtype=np.int64) for _ in range(2)]
        for code, matching in enumerate(self.matchings):
            if matching is not None:
                mine = np.flatnonzero(self.pulls.expression == code)
                for column, values in zip(answers, question(matching, mine), strict=True):
                    column[mine] = values
        return answers

    def is_log_whole(self, rows: Integers, until_ns: Integers, since_ns: Integers | None = None) -> Booleans:
        """Whether each event's log was recorded without gaps from `since_ns`, or its beginning, to `until_ns`."""
        found = np.ones(len(rows), dtype=np.bool_)
        since_ns = np.full(len(until_ns), BEGINNING, dtype=np.int64) if since_ns is None else since_ns
        for name in {name[0] for name in self.events.names}:
            if len(holes := self.context.log_holes(name)):
                mine = self.are_of_broker(rows, name)
                found[mine] = ~holes.touch(since_ns[mine], until_ns[mine])
        return found

    def are_of_broker(self, rows: Integers, broker: str) -> Booleans:
        """Returns which of these rows are about queues of this broker."""
        theirs = np.array([name[0] == broker for name in self.events.names], dtype=np.bool_)
        found: Booleans = theirs[self.events.queue[rows]]
        return found

    def is_watched(self, first_ns: Integers, last_ns: Integers) -> Booleans:
        """Whether the record of each pull's source has no gap in [first, last]."""
        whole = np.ones(len(self.pulls), dtype=np.bool_)
        for number, facts in enumerate(self.pulls.source_facts):
            if len(facts.holes):
                mine = self.pulls.source == number
                whole[mine] = ~facts.holes.touch(first_ns[mine], last_ns[mine])
        return whole

    def is_unread(
        self, wanted: Booleans, first_ns: Integers, last_ns: Integers, since_ns: Integers | None = None
    ) -> Booleans:
        """Returns the wanted pulls whose connection was not read, in either direction, at some time in [first, last].

        While a connection is not read, the observer sees answers late or never, and sees requests before the broker
        receives them. If the observer is outside the broker, a gap in its record may hide that a connection was not
        read. Recorded times before `since_ns` do not count.
        """
        # Only an outside observer reads the connection. A gap in a record from inside the broker hides events, but
        # cannot hide that a connection was not read.
        holed = self.is_outside & ~self.is_watched(first_ns, last_ns)
        unread: Booleans = wanted & self.pulls.is_answered & holed
        first_ns = first_ns if since_ns is None else np.maximum(first_ns, since_ns)
        for pull in np.flatnonzero(wanted).tolist() if self.context.blocked else ():
            row = int(self.pulls.row[pull])
            name = self.events.text("source", row), self.events.text("connection", row)
            blocked = self.context.blocked.get(name, NO_GAPS)
            unread[pull] |= bool(blocked.touch(first_ns[pull : pull + 1], last_ns[pull : pull + 1])[0])
        return unread

    @cached_property
    def removed_end(self) -> Integers:
        """For each queue, the end of the messages that retention removed: the highest `offset_min` of any answer."""
        removed = self.context.removed
        return np.array([removed.get(queue_text(name), 0) if removed else 0 for name in self.events.names])

    def are_unordered(self, rows: Integers) -> Booleans:
        """Returns which events come from sources or brokers whose timestamps do not order events."""
        unsteady = {name for name, facts in self.context.sources.items() if not facts.is_steady}
        found = self.events.are("source", rows, unsteady)
        for broker in self.context.unsteady_brokers:
            found |= self.are_of_broker(rows, broker)
        return found

    @cached_property
    def may_follow(self) -> Booleans:
        """Which pulls may have gone to a slave that has the broker's name and lags behind its master."""
        return self._are_among(self.context.followers)

    @cached_property
    def may_be_sent_away(self) -> Booleans:
        """Which pulls got a 20 by which a slave may send them to its master, at their, a corrected or a reset offset.

        An answer that resets the offset has no bounds, so its `offset_max` is 0.
        """
        found: Booleans = (self.answer_code == NO_MATCHED_MSG) & self._are_among(self.context.readers)
        end = self.told("offset_max")
        found &= (self.told("offset_next") <= np.maximum(self.pulls.offset, end)) | (end == 0)
        return found

    def _are_among(self, pairs: Iterable[tuple[str, str]]) -> Booleans:
        """Returns which pulls have one of these pairs of a source and a broker."""
        found = np.zeros(len(self.pulls), dtype=np.bool_)
        for source, broker in pairs:
            found |= self.events.are("source", self.pulls.row, {source}) & self.are_of_broker(self.pulls.row, broker)
        return found

    def are_timeless(self, clause: str, rows: Integers) -> Booleans:
        """Whether a clause needs no timestamps. A clause about a log needs them unless the queue has one generation."""
        if clause not in TIMELESS or clause not in LOGGED:
            return np.full(len(rows), clause in TIMELESS)
        return self.lives.is_single[self.events.queue[rows]]

    @cached_property
    def has_rolled(self) -> Booleans:
        """Which pulls got an answer 19 that skips the rest of a missing file, as in RocketMQ (OFFSET_FOUND_NULL)."""
        asked, low, end = self.pulls.offset, self.told("offset_min"), self.told("offset_max")
        found: Booleans = (self.answer_code == NO_NEW_MSG) & (self.told("offset_next") > asked)
        found &= (asked >= low) & (asked < end) & self.is_outside & (not self.context.is_own)
        return found

    @cached_property
    def is_outside(self) -> Booleans:
        """Which pulls an observer outside their broker recorded."""
        return ~self.events.are("source", self.pulls.row, self.context.inside)

    def message_rows(self, log: int, offset: int) -> list[int]:
        """Returns the events that show a message of a log: its append or acknowledgement, and its first visibility."""
        events, white = self.events, bool(self.logs.is_white_box[log])
        moved = self._sure(log, "make_visible" if white else "message_acknowledged")
        moved = moved[events.integers("visible_end" if white else "queue_offset", moved) >= offset + white]
        first = moved[np.argsort(events.integers("before_ns", moved), kind="stable")[:1]]
        return list(dict.fromkeys([*self.appended_rows(log, offset), *first.tolist()]))

    def delivered_rows(self, log: int, offset: int) -> list[int]:
        """Returns the rows of the first answer that shows an end past an offset, and of its request."""
        growth, pull = self.deliveries
        shows = np.flatnonzero((growth.log == log) & (growth.end > offset))
        first = pull[shows[np.argsort(growth.before_ns[shows], kind="stable")[:1]]]
        rows: list[int] = np.concatenate((self.pulls.row[first], self.pulls.answer_row[first])).tolist()
        return rows

    def appended_rows(self, log: int, offset: int) -> list[int]:
        """Returns the event that shows a message and its tag: the append, or else the acknowledgement."""
        appended = np.concatenate([self._sure(log, name) for name in MESSAGES])
        found: list[int] = appended[self.events.integers("queue_offset", appended) == offset][:1].tolist()
        return found

    def _sure(self, log: int, event: str) -> Integers:
        rows = self.events.rows_of_queue(event, int(self.lives.queue[log]))
        return rows[self.lives.are_sure(rows, np.full(len(rows), log))]


def make_case(window: Window, context: Context, own: Booleans) -> Case:
    """Join the requests of a window."""
    lives = make_lives(window, context)
    logs = make_logs(window, lives, context.wake_ns)
    return Case(window, lives, logs, make_pulls(window, context, lives, logs), context, own)


def ms(duration_ns: int) -> str:
    """Format nanoseconds as milliseconds."""
    return f"{duration_ns / MS:.3f} ms"


FOLLOWS: Final = "; its source sees no send to this broker, and may stand before a slave of that name"
PULLS: Final = "pulls"


def judged_counts(case: Case, mine: Booleans) -> Iterator[tuple[str, int]]:
    """Yield the name of each property of requests, and to how many of the pulls in `mine` it applies."""
    pulls, events = case.pulls, case.events
    is_read = is_one_of(case.answer_code, PULL_RESULTS) & case.is_sound
    stopped = np.array([facts.stopped_ns is not None for facts in pulls.source_facts], dtype=np.bool_)
    asked = {
        PULLS: is_read & case.is_decidable,
        NO_LOST_WAKEUP: case.is_sound & case.is_decidable & pulls.was_held,
        ANSWERED_BY_DEADLINE: case.is_sound & pulls.may_hold,
        ANSWER_IS_RIGHT: is_read,
        HELD_AS_ASKED: pulls.is_answered,
    }
    if case.context.answers_on_stop and len(pulls):
        asked[ANSWERED_ON_STOP] = stopped[pulls.source]
    yield from ((name, int(np.count_nonzero(flags & mine))) for name, flags in asked.items())
    is_all = bool((mine == case.own[pulls.row]).all())
    yield ANSWERED_ONCE, int(np.count_nonzero(case.own[events.rows("answer_sent")] if is_all else mine))


FOUND: Final = 0
NO_NEW_MSG: Final = 19
NO_MATCHED_MSG: Final = 20
OFFSET_ILLEGAL: Final = 21


@frozen(eq=False)
class Answers:
    """Answers that carry a pull's result, each paired with its pull. Each answer is a row."""

    case: Case
    pull: Integers
    code: Integers
    next: Integers
    min: Integers
    max: Integers
    body_first: Integers
    """For each answer, where its messages begin in `body`: they are `body[body_first : body_first + body_count]`."""
    body_count: Integers
    body: Integers
    owner: Integers
    """For each element of `body`, the answer that delivers the message."""

    @cached_property
    def log(self) -> Integers:
        """The log of each answer."""
        return self.case.pulls.log[self.pull]

    @cached_property
    def asked(self) -> Integers:
        """The offset that each pull requested."""
        return self.case.pulls.offset[self.pull]

    @cached_property
    def last(self) -> Integers:
        """The last offset in the body; -1 if the body is empty."""
        return np.append(self.body, -1)[np.where(self.body_count > 0, self.body_first + self.body_count - 1, -1)]

    @cached_property
    def first(self) -> Integers:
        """The first offset in the body; -1 if the body is empty."""
        return np.append(self.body, -1)[np.where(self.body_count > 0, self.body_first, -1)]

    @cached_property
    def is_counted(self) -> Booleans:
        """Whether each pull's maximum count of messages was recorded; a count below 0 means that it was not."""
        return self.case.pulls.count_max[self.pull] >= 0

    @cached_property
    def count_max(self) -> Integers:
        """The maximum count of messages of each pull. A pull for 0 messages gets one message, as in RocketMQ."""
        return np.maximum(self.case.pulls.count_max[self.pull], 1)

    @cached_property
    def end_least(self) -> Integers:
        """The end that was certainly visible before each request was received."""
        return self.case.logs.end_at_least(self.log, self.received_after_ns)

    @cached_property
    def end_most(self) -> Integers:
        """The highest end that may have been visible when each answer was sent."""
        return self.case.logs.end_at_most(self.log, self.answered_before_ns)

    @cached_property
    def received_after_ns(self) -> Integers:
        """The earliest time at which the broker can have read the store for each answer."""
        return self.case.pulls.received_after_ns[self.pull]

    @cached_property
    def answered_before_ns(self) -> Integers:
        """The latest time at which the broker can have read the store for each answer."""
        return self.case.pulls.answered_before_ns[self.pull]

    @cached_property
    def matching_least(self) -> Integers:
        """For each answer, a lower bound of the number of matching messages in [asked offset, `offset_next`)."""
        return matching_counts(self, self.asked, np.maximum(self.next, self.asked))

    def any_in_body(self, flags: Booleans) -> Booleans:
        """Whether the flag of any message in each answer's body is set."""
        if not flags.any():
            return np.zeros(len(self.pull), dtype=np.bool_)
        return np.bincount(self.owner[flags], minlength=len(self.pull)) > 0


def pull_results(case: Case) -> Answers:
    """Returns the answers that carry a pull's result; excludes refusals, and damaged requests and answers."""
    pulls, code = case.pulls, case.answer_code
    # Skip refusals, because they show no read, and pulls or answers that lack a field.
    pull = np.flatnonzero(is_one_of(code, PULL_RESULTS) & pulls.is_answered & case.is_sound)
    count, body, owner = case.bodies
    if len(pull) < len(count):
        is_theirs = np.zeros(len(count), dtype=np.bool_)
        is_theirs[pull] = True
        count, body = count[pull], body[is_theirs[owner]]
        owner = np.repeat(np.arange(len(pull)), count)
    return Answers(
        case=case,
        pull=pull,
        code=code[pull],
        next=case.told("offset_next")[pull],
        min=case.told("offset_min")[pull],
        max=case.told("offset_max")[pull],
        body_first=np.cumsum(count) - count,
        body_count=count,
        body=body,
        owner=owner,
    )


def takes_everything(answers: Answers) -> Booleans:
    """Whether each answer's subscription matches every message."""
    flags = [known is not None and known.takes_everything for known in answers.case.pulls.expressions]
    return np.array(flags, dtype=np.bool_)[answers.case.pulls.expression[answers.pull]]


def wrong_tags(answers: Answers) -> Booleans:
    """Returns, for each element of `body`, whether its message certainly does not match the subscription."""
    logs, expressions = answers.case.logs, answers.case.pulls.expression[answers.pull][answers.owner]
    wrong = np.zeros(len(answers.body), dtype=np.bool_)
    place = logs.known.at(answers.log[answers.owner], answers.body)
    for code, expression in enumerate(answers.case.pulls.expressions):
        if expression is not None and not expression.takes_everything:
            mine = np.flatnonzero((expressions == code) & (place >= 0))
            wrong[mine] = ~expression.matches(logs.tag_codes[place[mine]])
    return wrong


def matching_counts(answers: Answers, first: Integers, end: Integers) -> Integers:
    """Returns the lowest number of messages in [first, end) that each answer's expression matches; 0 if undecidable."""
    least = np.zeros(len(first), dtype=np.int64)
    expressions = answers.case.pulls.expression[answers.pull]
    for code, matching in enumerate(answers.case.matchings):
        if matching is not None:
            mine = np.flatnonzero(expressions == code)
            least[mine] = matching.count(answers.log[mine], first[mine], end[mine])
    return least


def first_visible_before(answers: Answers) -> Integers:
    """Returns when the first matching message at or after each requested offset was certainly visible."""
    _after, before = answers.case.first_visible
    found: Integers = np.minimum(before[answers.pull] + answers.case.logs.slack_ns(answers.log), NEVER)
    return found
