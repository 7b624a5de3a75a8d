"""The answers of one queue as columns, with the facts about its log that each needs. The rules: `rightness`."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from attrs import frozen

from longpoll_judge.columns.lookup import is_one_of
from longpoll_judge.columns.queue_log import NEVER, Integers
from longpoll_judge.contract.clause import PULL_RESULTS
from longpoll_judge.rules.queue_case import Booleans, Case

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
