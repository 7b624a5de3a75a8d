"""Finds messages that were acknowledged or appended but not shown in time, though their source went on.

Only queues with a reported visible end are judged: from inside, a stopped dispatcher looks like a log without readers.
A pull's answer meanwhile: `rightness`. The findings: `sends`.

Source: `DefaultMessageStore.ReputMessageService`, which dispatches whatever is in the log.
"""

from __future__ import annotations

import numpy as np

from longpoll_judge.columns.keys import Keys
from longpoll_judge.columns.queue_log import BEGINNING, Integers
from longpoll_judge.contract.clause import SHOWN_MS
from longpoll_judge.evidence.survey import Context
from longpoll_judge.rules.cross_queue import WEIGHT, Booleans, Gathered, changes_of, first_of, hash_of, highest_before
from longpoll_judge.rules.queue_columns import MS


def not_shown(messages: Gathered, moved: Gathered, context: Context) -> tuple[Integers, Integers]:
    """The first message of each queue's generation that was not shown in time, and for each an end that was reported.

    Both are rows. A message that its topic's deletion may have removed is not included.
    """
    due_ns = messages.before_ns + SHOWN_MS * MS
    goes_on = np.zeros(len(messages), dtype=np.bool_)
    for name, facts in context.sources.items():
        # A law may take a queue's end back, and judges that itself.
        goes_on |= (name not in context.lawful) & (messages.source == hash_of(name)) & (due_ns < facts.last_ns)
    told = first_of(messages.place, moved.place)
    # Only of queues whose visible end some source tells, and while that source goes on.
    asked = np.flatnonzero(goes_on & (told >= 0))
    asked = asked[~_may_be_gone(messages.take(asked), due_ns[asked], context)]
    life = _lives(messages, messages.after_ns, context)
    # An end that touches a deletion may have been told in the life before it and in the one after it.
    ends = np.concatenate([_lives(moved, at_ns, context) for at_ns in (moved.after_ns, moved.before_ns)])
    value, begun_ns = np.tile(moved.values["visible_end"], 2), np.tile(moved.after_ns, 2)
    best = highest_before(ends, begun_ns, value, life[asked], due_ns[asked] + 1)
    # The highest end told by then does not cover the message; an end is the offset after the last visible one.
    is_late = (best < 0) | (np.append(value, -1)[best] <= messages.values["queue_offset"][asked])
    late, best = asked[is_late], best[is_late]
    order = np.argsort(messages.after_ns[late], kind="stable")
    late, best = late[order], best[order]
    # The first late message of a life: those behind it are late for the same reason.
    first = np.sort(np.unique(life[late], return_index=True)[1])
    late, best = late[first], best[first]
    return late, np.where(best >= 0, best % len(moved), told[late])


def are_doubted(messages: Gathered, context: Context) -> Booleans:
    """Of which messages it is not certain that they were late: the end may be in a hole, or the clock set forward."""
    found = np.zeros(len(messages), dtype=np.bool_)
    until_ns = messages.before_ns + SHOWN_MS * MS
    for name, facts in context.sources.items():
        first_ns = np.full(len(messages), BEGINNING, dtype=np.int64)
        weak = facts.holes.touch(first_ns, until_ns) | (name in context.settable)
        found |= (messages.source == hash_of(name)) & weak
    return found


def _may_be_gone(messages: Gathered, due_ns: Integers, context: Context) -> Booleans:
    found = np.zeros(len(messages), dtype=np.bool_)
    for mine, holes in changes_of(messages, context):
        found |= mine & holes.touch(messages.after_ns, due_ns)
    return found


def _lives(events: Gathered, at_ns: Integers, context: Context) -> Keys:
    """The queue's life that each event lies in at a moment, by the deletions that had begun by then."""
    number = np.zeros(len(events), dtype=np.uint64)
    for (broker, topic), holes in context.deleted.items():
        mine = events.broker == (hash_of(broker) if broker else np.uint64(0))
        mine &= (events.topic == hash_of(topic)) if topic else True
        number += np.where(mine, np.searchsorted(holes.starts, at_ns, side="right"), 0).astype(np.uint64)
    return events.place * WEIGHT + number
