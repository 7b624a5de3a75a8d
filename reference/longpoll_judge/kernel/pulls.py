"""The pulls of a window, each joined with its first answer and with facts about its connection and source.

The module `window` orders the events, and `logs` contains the logs.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from longpoll_judge.columns.expression import Expression, parse
from longpoll_judge.columns.lookup import NEVER, Integers, is_one_of
from longpoll_judge.evidence.survey import UNSEEN, Context, SourceFacts
from longpoll_judge.kernel.gathered import closes_from, gather
from longpoll_judge.kernel.lives import Lives
from longpoll_judge.kernel.logs import Logs
from longpoll_judge.kernel.window import Window

PULL_CODES: Final = (11, 361)
"""The request codes of PULL_MESSAGE and LITE_PULL_MESSAGE."""
STEPS: Final = ("take", "keep", "expire", "run", "stop")
"""The steps of a held pull, except for a recheck, because a recheck may follow the answer."""
TIMEOUT_MS_MAX: Final = 10**9
"""Longer timeouts are reduced to this value (eleven days), so that deadlines fit in an int64."""
MS: Final = 1_000_000


@frozen(eq=False)
class Pulls:
    """The pulls of a window, each as a row with its first answer. `answer_row` is -1 for an unanswered pull."""

    row: Integers
    log: Integers
    """The number of the log that each pull reads: the log of the generation of its queue in which the pull lies
    (`lives`)."""
    received_after_ns: Integers
    received_before_ns: Integers
    offset: Integers
    count_max: Integers
    may_hold: NDArray[np.bool_]
    was_held: NDArray[np.bool_]
    """Whether the pull has a `hold` event; in a record from outside the broker, whether the pull may be held."""
    timeout_ns: Integers
    expression: Integers
    """The index of each pull's subscription in `expressions`."""
    expressions: list[Expression | None]
    answer_row: Integers
    answered_after_ns: Integers
    """The earliest time of each answer; for an unanswered pull, the last time at which the observer watched for the
    answer."""
    answered_before_ns: Integers
    """The latest time of each answer; `NEVER` if the pull has no answer."""
    missing_until_ns: Integers
    """For an unanswered pull, the time until which it was certainly not answered; for other pulls, `answered_after_ns`.
    """
    is_closed: NDArray[np.bool_]
    """Whether the pull has no answer and its connection was closed."""
    source_facts: list[SourceFacts]
    source: NDArray[np.int32]
    """The index of each pull's source in `source_facts`."""
    hold_is_told: NDArray[np.bool_]
    """Whether the record shows if the pull may be held. If the record does not, `may_hold` is False, and no rule about
    holds applies."""

    def __len__(self) -> int:
        return len(self.row)

    @cached_property
    def last_ns(self) -> Integers:
        """The time until which each pull's source certainly recorded events."""
        return np.array([facts.last_ns for facts in self.source_facts], dtype=np.int64)[self.source]

    @cached_property
    def is_answered(self) -> NDArray[np.bool_]:
        """Whether each pull has an answer."""
        return self.answer_row >= 0


def make_pulls(events: Window, context: Context, lives: Lives, logs: Logs) -> Pulls:
    """Join every pull with its first answer and with facts about its connection and source.

    The result excludes pulls whose answer names another queue, because it is unclear which queue was read. It also
    excludes pulls that share an identifier, because it is unclear which pull was held and which was answered.
    """
    received = events.rows("request_received")
    received = received[events.request_key[received] >= 0]
    if events.has_repeated("request_received"):
        keys = events.request_key[received]
        received = received[np.bincount(keys)[keys] == 1]
    row = received[is_one_of(events.integers("code", received), PULL_CODES)]
    answer_row = events.answer_to(events.request_key[row], "answer_sent")
    # Pulls without an answer in this queue, whose request has an answer in another queue.
    elsewhere = answer_row < 0
    elsewhere[elsewhere] = events.is_told_anywhere(row[elsewhere], "answer_sent")
    if elsewhere.any():
        row, answer_row = row[~elsewhere], answer_row[~elsewhere]
    source, names = events.codes("source", row)
    facts = [context.sources.get(name, UNSEEN) for name in names]
    answered_after_ns, answered_before_ns = (events.integers(name, answer_row) for name in ("after_ns", "before_ns"))
    # A pull without an answer waits until its source has certainly ended, or its connection was certainly closed.
    waiting = np.flatnonzero(answer_row < 0)
    last_ns = np.array([fact.last_ns for fact in facts], dtype=np.int64)[source[waiting]]
    asked = gather(events.table, row[waiting])
    closed_after_ns, _before_ns = closes_from(asked, asked.after_ns, context)
    answered_after_ns[waiting] = np.minimum(last_ns, closed_after_ns)
    answered_before_ns[waiting] = NEVER
    is_closed = np.zeros(len(row), dtype=np.bool_)
    is_closed[waiting] = closed_after_ns < NEVER
    missing_until_ns = answered_after_ns.copy()
    received_after_ns = events.integers("after_ns", row)
    for number, fact in enumerate(facts if len(waiting) else []):
        mine = waiting[source[waiting] == number]
        whole_ns = fact.holes_of_open.begin_from(received_after_ns[mine])
        missing_until_ns[mine] = np.minimum(missing_until_ns[mine], whole_ns)
    may_hold = events.flags("may_hold", row)
    held = events.answer_to(events.request_key[row], "hold") >= 0
    expression, expressions = _expressions(events, row)
    timeout_ms = np.clip(events.integers("timeout_ms", row), 0, TIMEOUT_MS_MAX)
    log = lives.of_requests[row]
    return Pulls(
        row=row,
        log=log,
        received_after_ns=received_after_ns,
        received_before_ns=events.integers("before_ns", row),
        offset=events.integers("offset", row),
        count_max=events.integers("count_max", row),
        may_hold=may_hold,
        was_held=np.where(logs.is_white_box[log], held, may_hold),
        timeout_ns=timeout_ms * MS,
        expression=expression,
        expressions=expressions,
        answer_row=answer_row,
        answered_after_ns=answered_after_ns,
        answered_before_ns=answered_before_ns,
        missing_until_ns=missing_until_ns,
        is_closed=is_closed,
        source_facts=facts,
        source=source,
        hold_is_told=events.are_told("may_hold", row),
    )


def _expressions(events: Window, row: Integers) -> tuple[Integers, list[Expression | None]]:
    """Returns the distinct expressions, and the index of each pull's expression among them."""
    kinds, kind_names = events.codes("expression_type", row)
    texts, text_names = events.codes("expression", row)
    pair = kinds.astype(np.int64) * max(len(text_names), 1) + texts
    found = np.flatnonzero(np.bincount(pair)) if len(pair) else pair
    pairs = [divmod(code, max(len(text_names), 1)) for code in found.tolist()]
    return np.searchsorted(found, pair), [parse(kind_names[kind], text_names[text]) for kind, text in pairs]
