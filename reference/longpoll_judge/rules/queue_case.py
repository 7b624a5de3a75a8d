"""The unit of judging, one queue, with its answers as columns; and suspects, each with a function that explains it.

The properties: `promptness`, `pull_answers`, `holding`. Their assembly: `queue_verdict`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Final

import numpy as np
from attrs import field, frozen

from longpoll_judge.columns.batch import Events, QueueName
from longpoll_judge.columns.lookup import Booleans, Integers, is_one_of
from longpoll_judge.columns.queue_log import BEGINNING, NEVER, Matching, Outlook, QueueLog
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
from longpoll_judge.evidence.generations import Generation, Generations
from longpoll_judge.evidence.source_survey import NO_GAPS
from longpoll_judge.evidence.survey import QUERY_CONSUMER_OFFSET, Context, queue_text
from longpoll_judge.rules.queue_columns import MESSAGES, MS, PULL_CODES, REQUEST_EVENTS, Pulls, pulls, queue_log
from longpoll_spec.history import ABSENT

ENDS: Final = ("offset_next", "offset_min", "offset_max")
"""The offsets in an answer to a pull."""


@frozen
class Explanation:
    """Why one suspect is one."""

    clause: str
    """The clause of the contract that it breaks."""
    why: str
    """One sentence with its numbers."""
    rows: list[int]
    """The requests' events that show it."""
    log_rows: list[int] = field(factory=list)
    """The log's events that show it."""
    messages: list[int] = field(factory=list)
    """Queue offsets of the messages that it is about, the one at fault first."""
    roots: list[int] | None = None
    """Those of `log_rows` that would be the cause if they told something wrong, as the messages would be; None for all,
    and none where the answer is wrong by itself."""


@frozen(eq=False)
class Suspects:
    """Some of a queue's requests that break, or may break, one property."""

    property: str
    verdict: FindingVerdict
    members: Integers
    """Indices that `explain` understands, in the order of time."""
    rows: Integers
    """The event that gives each member its place in this order."""
    explain: Callable[[int], Explanation]
    is_timeless: bool = False
    """They stand whatever the moments are."""


def suspects(
    name: str,
    violated: Booleans,
    unknown: Booleans,
    rows: Integers,
    explain: Callable[[int], Explanation],
    *,
    is_timeless: bool = False,
) -> list[Suspects]:
    """The violated and the unknown ones of one property, each with its row; nothing where there are none."""
    kinds: tuple[tuple[FindingVerdict, Booleans], ...] = (("violated", violated), ("unknown", unknown))
    found: list[Suspects] = []
    for kind, flags in kinds:
        if not flags.any():
            continue
        members = np.flatnonzero(flags)
        found.append(Suspects(name, kind, members, rows[members], explain, is_timeless))
    return found


@frozen(eq=False)
class Case:
    """One queue's history, joined and sorted."""

    name: QueueName
    events: Events
    """Those of its requests; the log's may be among them."""
    log_events: Events
    log: QueueLog
    pulls: Pulls
    context: Context
    life: Generation | None = None
    """The life of the queue that the requests lie in, where it has several."""
    _told: dict[str, Integers] = field(factory=dict)

    @cached_property
    def matchings(self) -> list[Matching | None]:
        """For each of the pulls' expressions the messages it takes; None where tags cannot decide."""
        return [None if known is None else self.log.matching(known) for known in self.pulls.expressions]

    @cached_property
    def is_decidable(self) -> Booleans:
        """Whether tags decide what each pull takes."""
        known = np.array([matching is not None for matching in self.matchings], dtype=np.bool_)
        return known[self.pulls.expression] if len(known) else np.zeros(0, dtype=np.bool_)

    @cached_property
    def first_visible(self) -> tuple[Integers, Integers]:
        """Between which moments the first message that each pull takes became visible; `NEVER` where undecidable."""
        after_ns, before_ns = self.by_expression(lambda matching, mine: matching.first_visible(self.pulls.offset[mine]))
        return after_ns, before_ns

    def told(self, name: str) -> Integers:
        """The answer's value for each pull, by column; -1 if there is no answer."""
        if name not in self._told:
            values = self.events.integers(name, self.pulls.answer_row)
            values[~self.pulls.is_answered] = -1
            self._told[name] = values
        return self._told[name]

    @property
    def answer_code(self) -> Integers:
        """The code of each pull's answer; -1 where there is none."""
        return self.told("code")

    @cached_property
    def bodies(self) -> tuple[Integers, Integers, Integers]:
        """How many messages each pull's answer carries, their offsets one behind the other, and the pull of each."""
        first, count, values = self.events.bodies(self.pulls.answer_row)
        if not self.pulls.is_answered.all():
            count = np.where(self.pulls.is_answered, count, 0)
        owner = np.repeat(np.arange(len(count)), count)
        return count, values[np.arange(len(owner)) + (first - np.cumsum(count) + count)[owner]], owner

    @cached_property
    def _answers_tell_all(self) -> bool:
        """Whether every answer that is at hand tells its queue, its code and the three offsets: none is damaged."""
        if self.name[2] < 0:
            return False
        if any(self.events.batch.has_negative("answer_sent", name) for name in ("code", *ENDS)):
            return False
        asked = self.events.integers("code", self.events.rows("request_received"))
        return not (asked == QUERY_CONSUMER_OFFSET).any()

    @cached_property
    def missing(self) -> dict[str, Booleans]:
        """By field, which pulls lack it in a record that needs it (docs/contract.md); it may be in their answer."""
        pulls, events, code = self.pulls, self.events, self.answer_code
        is_placed = bool(self.name[1]) and self.name[2] >= 0
        told = ("offset", "count_max", "timeout_ms")
        if (
            is_placed
            and self._answers_tell_all
            and not any(events.batch.has_negative("request_received", name) for name in told)
        ):
            return {}
        is_read = (code == 0) | (code == 19) | (code == 20)
        has_ends = is_read | (code == 21)
        unplaced = np.zeros_like(is_read) if is_placed else is_read
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
        """Which events are answers of which nothing is concluded.

        They lack what their kind needs; or they name no queue, and requests of several ones bear their identifier.
        """
        events = self.events
        found = np.zeros(len(events), dtype=np.bool_)
        if self._answers_tell_all:
            return found
        rows = events.rows("answer_sent")
        code = events.integers("code", rows)
        ends = [events.integers(name, rows) for name in ENDS]
        found[rows[code < 0]] = True
        if self.name[2] < 0 and len(rows):
            found[rows[events.is_asked_in_several(rows)]] = True
        # Each of the three counts; -1 is a number that the broker sent.
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
        """Which pulls have an answer from which something is concluded."""
        if self._answers_tell_all:
            return self.pulls.is_answered
        found: Booleans = self.pulls.is_answered & ~self.is_damaged[self.pulls.answer_row]
        return found

    @cached_property
    def is_sound(self) -> Booleans:
        """Which pulls lack no field, nor their answers; nothing is concluded from the others."""
        # Answered, and by an answer that is damaged.
        lacking = self.pulls.is_answered & ~self.is_answered
        for flags in self.missing.values():
            lacking |= flags
        return ~lacking

    def by_expression(self, question: Callable[[Matching, Integers], tuple[Integers, Integers]]) -> list[Integers]:
        """Ask each pull's own matching about its index; two answers a pull, `NEVER` where undecidable."""
        answers = [np.full(len(self.pulls), NEVER, dtype=np.int64) for _ in range(2)]
        for code, matching in enumerate(self.matchings):
            if matching is not None:
                mine = np.flatnonzero(self.pulls.expression == code)
                for column, values in zip(answers, question(matching, mine), strict=True):
                    column[mine] = values
        return answers

    def is_log_whole(self, until_ns: Integers) -> Booleans:
        """Whether the record of the queue's log is whole from its beginning until each moment."""
        first_ns = np.full(len(until_ns), BEGINNING, dtype=np.int64)
        return ~self.context.log_holes(self.name[0]).touch(first_ns, until_ns)

    def is_watched(self, first_ns: Integers, last_ns: Integers) -> Booleans:
        """Whether nothing that happened to each pull in [first, last] can be missing from its source's record."""
        whole = np.ones(len(self.pulls), dtype=np.bool_)
        for number, facts in enumerate(self.pulls.source_facts):
            if len(facts.holes):
                mine = self.pulls.source == number
                whole[mine] = ~facts.holes.touch(first_ns[mine], last_ns[mine])
        return whole

    def is_unread(self, wanted: Booleans, first_ns: Integers, last_ns: Integers) -> Booleans:
        """Of the wanted pulls those whose connection was not read, in either direction, at a moment of [first, last].

        Answers are seen there later than they were sent, or never, and requests are not received when they are seen.
        From outside a hole may hide that it was not read.
        """
        # Only an observer outside has to read the connection: inside, a hole hides events, and no pause of reading.
        holed = self.is_outside & ~self.is_watched(first_ns, last_ns)
        unread: Booleans = wanted & self.pulls.is_answered & holed
        for pull in np.flatnonzero(wanted).tolist() if self.context.blocked else ():
            row = int(self.pulls.row[pull])
            name = self.events.text("source", row), self.events.text("connection", row)
            blocked = self.context.blocked.get(name, NO_GAPS)
            unread[pull] |= bool(blocked.touch(first_ns[pull : pull + 1], last_ns[pull : pull + 1])[0])
        return unread

    @property
    def removed_end(self) -> int:
        """Up to where retention removed messages at some time, as the highest `offset_min` of any answer tells."""
        return self.context.removed.get(queue_text(self.name), 0)

    @cached_property
    def is_unordered(self) -> Booleans:
        """Which pulls' sources tell moments that order nothing."""
        sources, names = self.events.codes("source", self.pulls.row)
        orders = np.array([self.context.orders(name, self.name[0]) for name in names], dtype=np.bool_)
        found: Booleans = ~orders[sources]
        return found

    @cached_property
    def may_follow(self) -> Booleans:
        """Which pulls may have been made at a slave that has the broker's name, and lags behind it."""
        sources, names = self.events.codes("source", self.pulls.row)
        found: Booleans = np.array([(name, self.name[0]) in self.context.followers for name in names], dtype=np.bool_)[
            sources
        ]
        return found

    def is_timeless(self, clause: str) -> bool:
        """Whether a clause stands here whatever the moments are: those of a log only if it has one life."""
        return clause in TIMELESS and (self.life is None or clause not in LOGGED)

    @cached_property
    def is_outside(self) -> Booleans:
        """Which pulls were not recorded inside their broker."""
        sources, names = self.events.codes("source", self.pulls.row)
        outside: Booleans = np.array([name not in self.context.inside for name in names], dtype=np.bool_)[sources]
        return outside

    def message_rows(self, offset: int) -> list[int]:
        """The log's events that show one message: its append or acknowledgement, and what first made it visible."""
        log = self.log_events
        ends = "visible_end" if self.log.is_white_box else "queue_offset"
        moved = self._sure(log.rows("make_visible" if self.log.is_white_box else "message_acknowledged"))
        moved = moved[log.integers(ends, moved) >= offset + self.log.is_white_box]
        first = moved[np.argsort(log.integers("before_ns", moved), kind="stable")[:1]]
        return list(dict.fromkeys([*self.appended_rows(offset), *first.tolist()]))

    def appended_rows(self, offset: int) -> list[int]:
        """The log's event that shows a message and its tag: its append, or else its acknowledgement."""
        log = self.log_events
        appended = np.concatenate([log.rows(name) for name in MESSAGES])
        found: list[int] = self._sure(appended[log.integers("queue_offset", appended) == offset])[:1].tolist()
        return found

    def _sure(self, rows: Integers) -> Integers:
        """Those rows of the log's events that certainly belong to the life that is judged."""
        log = self.log_events
        if self.life is None:
            return rows
        return rows[self.life.sure(log.integers("after_ns", rows), log.integers("before_ns", rows))]


@frozen(eq=False)
class Log:
    """The data that one queue's cases share, however its requests are divided among them."""

    events: Events
    context: Context
    outlook: Outlook | None = None
    """A summary of the rest of the log, if the events are not all of it."""
    _known: dict[int | None, QueueLog] = field(factory=dict)

    def of(self, life: Generation | None) -> QueueLog:
        """The log, or that of one life of it, sorted out of the events."""
        number = None if life is None else life.number
        if number not in self._known:
            self._known[number] = queue_log(self.events, self.context.wake_ns, self.outlook, life)
        return self._known[number]


def make_log(events: Events, context: Context, outlook: Outlook | None = None) -> Log:
    """The log of one queue. If some events are missing, an outlook summarises the rest of the log."""
    return Log(events, context, outlook)


def make_cases(name: QueueName, events: Events, log: Log, context: Context) -> Iterator[Case]:
    """Join the requests of one queue, apart for each of its lives."""
    lives = context.lives(name)
    if lives is None:
        yield Case(name, events, log.events, log.of(None), pulls(events, context, log.of(None)), context)
        return
    numbers = _lives_of_requests(events, lives, context)
    for number in np.unique(numbers).tolist():
        part = events.only(np.flatnonzero(numbers == number))
        life = lives.life(number)
        yield Case(name, part, log.events, log.of(life), pulls(part, context, log.of(life)), context, life)


def _lives_of_requests(events: Events, lives: Generations, context: Context) -> Integers:
    """The life that the request of each event lies in as a whole: one without an answer goes on for ever."""
    every = np.arange(len(events))
    first_ns, last_ns = events.integers("after_ns", every), events.integers("before_ns", every)
    key = events.request_key
    mine = key >= 0
    # Any other event may bear a request too, as a message's acknowledgement does, or a recheck that comes too late.
    mine &= events.are_of(REQUEST_EVENTS)
    count = int(key.max(initial=-1)) + 1
    first_of, last_of = (np.full(count, none, dtype=np.int64) for none in (NEVER, BEGINNING))
    np.minimum.at(first_of, key[mine], first_ns[mine])
    np.maximum.at(last_of, key[mine], last_ns[mine])
    answered = np.zeros(count, dtype=np.bool_)
    answers = events.rows("answer_sent")
    answered[key[answers[mine[answers]]]] = True
    # Its answer may come in any later life, if its connection is open in one.
    last_of[~answered] = NEVER
    received = events.rows("request_received")
    for row in received[mine[received]].tolist() if context.restarts else ():
        if not answered[key[row]]:
            name = events.text("source", row), events.text("connection", row)
            last_of[key[row]] = context.closed_between(name, int(first_ns[row]))[1]
    first_ns[mine], last_ns[mine] = first_of[key[mine]], last_of[key[mine]]
    return lives.number(first_ns, last_ns)


def ms(duration_ns: int) -> str:
    """Nanoseconds as text in milliseconds."""
    return f"{duration_ns / MS:.3f} ms"


FOLLOWS: Final = "; its source sees no send to this broker, and may stand before a slave of that name"
PULLS: Final = "pulls"


def judged_counts(case: Case) -> Iterator[tuple[str, int]]:
    """For each property of requests how many of one queue it was asked of; and how many pulls were judged."""
    pulls, events = case.pulls, case.events
    is_read = is_one_of(case.answer_code, PULL_RESULTS) & case.is_sound
    stopped = np.array([facts.stopped_ns is not None for facts in pulls.source_facts], dtype=np.bool_)
    yield PULLS, int(np.count_nonzero(is_read & case.is_decidable))
    yield NO_LOST_WAKEUP, int(np.count_nonzero(case.is_sound & case.is_decidable & pulls.was_held))
    yield ANSWERED_BY_DEADLINE, int(np.count_nonzero(case.is_sound & pulls.may_hold))
    if case.context.answers_on_stop and len(pulls):
        yield ANSWERED_ON_STOP, int(np.count_nonzero(stopped[pulls.source]))
    yield ANSWERED_ONCE, len(events.rows("answer_sent"))
    yield ANSWER_IS_RIGHT, int(np.count_nonzero(is_read))
    yield HELD_AS_ASKED, int(np.count_nonzero(pulls.is_answered))


FOUND: Final = 0
NO_NEW_MSG: Final = 19
NO_MATCHED_MSG: Final = 20
OFFSET_ILLEGAL: Final = 21


@frozen(eq=False)
class Answers:
    """The answers of one queue that carry a pull result, one row each, with their pulls."""

    case: Case
    pull: Integers
    """Index of each answer's pull."""
    code: Integers
    next: Integers
    min: Integers
    max: Integers
    body_first: Integers
    """The body's offsets are `body[body_first : body_first + body_count]`."""
    body_count: Integers
    body: Integers
    owner: Integers
    """For each place of `body`, the answer it belongs to."""

    @cached_property
    def asked(self) -> Integers:
        """The offset each pull asked for."""
        return self.case.pulls.offset[self.pull]

    @cached_property
    def last(self) -> Integers:
        """The body's last offset; -1 when it is empty."""
        return np.append(self.body, -1)[np.where(self.body_count > 0, self.body_first + self.body_count - 1, -1)]

    @cached_property
    def first(self) -> Integers:
        """The body's first offset; -1 when it is empty."""
        return np.append(self.body, -1)[np.where(self.body_count > 0, self.body_first, -1)]

    @cached_property
    def received_after_ns(self) -> Integers:
        """The earliest moment of the read."""
        return self.case.pulls.received_after_ns[self.pull]

    @cached_property
    def answered_before_ns(self) -> Integers:
        """The latest moment of the read."""
        return self.case.pulls.answered_before_ns[self.pull]

    @cached_property
    def matching_least(self) -> Integers:
        """How many messages match, at the least, of those from the offset that was asked for to the next one."""
        return matching_counts(self, self.asked, np.maximum(self.next, self.asked))[0]

    def any_in_body(self, flags: Booleans) -> Booleans:
        """Whether any place of each answer's body is flagged."""
        if not flags.any():
            return np.zeros(len(self.pull), dtype=np.bool_)
        return np.bincount(self.owner[flags], minlength=len(self.pull)) > 0


def pull_results(case: Case) -> Answers:
    """The answers of the queue that carry a pull result; error codes are left out."""
    pulls, code = case.pulls, case.answer_code
    # Without refusals, which tell of no read, and without pulls or answers that lack a field.
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
    """Whether each answer's subscription takes every message."""
    flags = [known is not None and known.takes_everything for known in answers.case.pulls.expressions]
    return np.array(flags, dtype=np.bool_)[answers.case.pulls.expression[answers.pull]]


def wrong_tags(answers: Answers) -> Booleans:
    """For each place of the bodies, whether its message is known not to match."""
    log, expressions = answers.case.log, answers.case.pulls.expression[answers.pull][answers.owner]
    if not len(log.offsets):
        return np.zeros(len(answers.body), dtype=np.bool_)
    place = np.minimum(log.ranks.below(answers.body), len(log.offsets) - 1)
    wrong = np.zeros(len(answers.body), dtype=np.bool_)
    for code, expression in enumerate(answers.case.pulls.expressions):
        if expression is not None:
            mine = expressions == code
            # Places are cut to the log: of a message that it lacks the caller masks the answer (`is_known`).
            wrong[mine] = ~expression.matches(log.tag_codes[place[mine]])
    return wrong


def matching_counts(answers: Answers, first: Integers, end: Integers) -> tuple[Integers, Integers]:
    """How many messages in [first, end) each answer's expression takes, at least and at most; 0 where undecidable."""
    least, most = np.zeros(len(first), dtype=np.int64), np.zeros(len(first), dtype=np.int64)
    expressions = answers.case.pulls.expression[answers.pull]
    for code, matching in enumerate(answers.case.matchings):
        if matching is not None:
            mine = np.flatnonzero(expressions == code)
            least[mine], most[mine] = matching.count(first[mine], end[mine])
    return least, most


def first_visible_before(answers: Answers) -> Integers:
    """When the first matching message at or after each asked offset was visible at the latest, for certain."""
    slack_ns = answers.case.log.slack_ns
    _after, before = answers.case.first_visible
    return np.minimum(before[answers.pull] + slack_ns, NEVER)
