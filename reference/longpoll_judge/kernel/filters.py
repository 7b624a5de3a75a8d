"""pull.filter.agrees: an answer must not pass over a message that a narrower subscription (fewer matches) received.

The rule needs no tags, because it compares the messages that answers deliver and pass over. `ends` gathers the answers.

Source: `ExpressionMessageFilter`, `DefaultMessageStore.getMessage`.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
from attrs import define, field

from longpoll_judge.columns.expression import parse
from longpoll_judge.columns.lookup import NEVER, Booleans, Integers, are_among, is_one_of, numbered
from longpoll_judge.contract.clauses import finding_of
from longpoll_judge.contract.result import Finding, FindingVerdict
from longpoll_judge.evidence.survey import UNSEEN, Context, queue_text
from longpoll_judge.kernel.case import FOUND, NO_MATCHED_MSG
from longpoll_judge.kernel.gathered import Gathered, events_at, generations
from longpoll_judge.read.schema import coded, lists_of, order_of, spread

NO_FILTER: Final = -1
Text = tuple[str, str]
"""A subscription: its type and its expression."""


@define
class Filters:
    """The subscriptions of pulls; each subscription has a number."""

    known: dict[Text, int] = field(factory=dict)

    def numbers(self, table: pa.Table, rows: Integers) -> Integers:
        """Returns the number of each pull's subscription; -1 if the pull names no subscription."""
        kinds, kind_names = coded(table, "expression_type")
        texts, text_names = coded(table, "expression")
        pair = kinds[rows].astype(np.int64) * max(len(text_names), 1) + texts[rows]
        found = np.full(len(rows), NO_FILTER, dtype=np.int64)
        for code in np.unique(pair).tolist():
            kind, text = divmod(code, max(len(text_names), 1))
            name = kind_names[kind], text_names[text]
            if all(name):
                found[pair == code] = self.known.setdefault(name, len(self.known))
        return found

    def narrower(self, number: int) -> list[int]:
        """Returns the numbers of this subscription and of all subscriptions that match a subset of its messages."""
        texts = {place: text for text, place in self.known.items()}
        own = parse(*texts[number])
        found = [number]
        for place, text in texts.items():
            other = parse(*text)
            if place == number or own is None:
                continue
            if own.takes_everything or (
                other is not None and not other.takes_everything and set(other.tag_codes) <= set(own.tag_codes)
            ):
                found.append(place)
        return found


def judge_filters(
    table: pa.Table,
    filters: Filters,
    exchanges: tuple[Gathered, Gathered],
    outside: Booleans,
    context: Context,
    *,
    most: int,
) -> tuple[list[Finding], int]:
    """Judge the answers marked in `outside`; returns at most `most` findings, and the number of further findings."""
    asked, answers = exchanges
    first, end = asked.values["offset"], answers.values["offset_next"]
    is_read = is_one_of(answers.values["code"], (FOUND, NO_MATCHED_MSG)) & (asked.values["filter"] >= 0) & outside
    passes = is_read & (answers.values["own"] == 1) & (first >= 0) & (end - first > answers.values["body_count"])
    if not passes.any():
        return [], 0
    (queue,) = numbered((asked.whole_queue, generations(asked, answers, context)))
    read = np.flatnonzero(is_read & are_among(queue, queue[passes]))
    owner, offset = _bodies(table, answers, read[answers.values["code"][read] == FOUND])
    found: list[tuple[int, int, int]] = []
    for number in np.unique(asked.values["filter"][read[passes[read]]]).tolist():
        mine = np.isin(asked.values["filter"][owner], filters.narrower(number))
        passing = read[passes[read] & (asked.values["filter"][read] == number)]
        found += _withheld(queue, passing, (first, end), (owner[mine], offset[mine]))
    found.sort(key=lambda one: (int(answers.after_ns[one[0]]), one))
    listed = [_finding(table, exchanges, one, context) for one in found[:most]]
    return [one for one in listed if one is not None], max(len(found) - most, 0)


def _bodies(table: pa.Table, answers: Gathered, rows: Integers) -> tuple[Integers, Integers]:
    bounds, values = lists_of(table, "offsets")
    owner, places = spread(bounds, answers.row[rows])
    return rows[owner], values[places]


def _withheld(
    queue: Integers, passing: Integers, bounds: tuple[Integers, Integers], given: tuple[Integers, Integers]
) -> list[tuple[int, int, int]]:
    """Returns triples: an answer that passes over a message, the message's offset, and an answer that delivers it."""
    owner, offset = given
    queues, number = np.unique(np.concatenate([queue[passing], queue[owner]]), return_inverse=True)
    own, of = number[: len(passing)], number[len(passing) :]
    order = np.lexsort((offset, of))
    keys = np.stack([of[order], offset[order]], axis=1)
    is_new = np.append(True, (keys[1:] != keys[:-1]).any(axis=1))[: len(keys)]
    at, value, giver = of[order][is_new], offset[order][is_new], owner[order][is_new]
    # Each pair of a queue and an offset gets one number. Histories whose offsets span too wide a range are not judged.
    low = min(int(value.min(initial=0)), int(bounds[0][passing].min(initial=0)))
    width = max(int(value.max(initial=0)), int(bounds[1][passing].max(initial=0))) - low + 2
    if width * (len(queues) + 1) >= NEVER:
        return []
    place = at * width + value - low
    begin, stop = (own * width + bound[passing] - low for bound in bounds)
    first, last = np.searchsorted(place, begin), np.searchsorted(place, stop)
    body_owner = np.bincount(owner, minlength=int(max(owner.max(initial=-1), passing.max(initial=-1))) + 1)
    found = []
    for one in np.flatnonzero(last - first > body_owner[passing]).tolist():
        answer = int(passing[one])
        carried = set(offset[owner == answer].tolist())
        for row in range(int(first[one]), int(last[one])):
            if int(value[row]) not in carried:
                found.append((answer, int(value[row]), int(giver[row])))
                break
    return found


def _finding(
    table: pa.Table, exchanges: tuple[Gathered, Gathered], one: tuple[int, int, int], context: Context
) -> Finding | None:
    answer, message, giver = one
    asked, answers = exchanges
    places = [int(kind.row[row]) for row in (giver, answer) for kind in exchanges]
    events = events_at(table, places)
    evidence = [events[place] for place in places]
    subject = evidence[3]
    name = evidence[2].get("broker", ""), evidence[2].get("topic", ""), evidence[2].get("queue", -1)
    may_be_removed = not context.is_own and not answers.before_ns[answer] < asked.after_ns[giver]
    is_prefix = all(offset > message for offset in subject.get("offsets", []))
    if may_be_removed and is_prefix and message < context.removed.get(queue_text(name), 0):
        return None
    is_steady = all(context.sources.get(each["source"], UNSEEN).is_steady for each in evidence)
    # The queue's minimum rises some time after retention removes messages, perhaps after the record ends. Retention
    # never removes the newest file.
    is_short = subject.get("offset_next", 0) < subject.get("offset_max", 0)
    may_be_removed &= is_prefix and bool(subject.get("offsets") or is_short)
    verdict: FindingVerdict = "violated" if is_steady and not may_be_removed else "unknown"
    shown = [f"{event.get('expression', '')[:80]!r}" for event in (evidence[2], evidence[0])]
    why = f"an answer passes over message {message} for {shown[0]}, which another answer delivers for {shown[1]}"
    evidence.sort(key=order_of)
    return finding_of(evidence, subject, clause="pull.filter.agrees", verdict=verdict, why=why, messages=[message])
