"""The contract's clauses about committed offsets and the number of held pulls, one function per clause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

from attrs import frozen
from model_tests.judge.second.case import (
    Exchange,
    Said,
    absent,
    begun_anew,
    first_answers,
    lasts_until,
    outlives,
    restarts,
    unknown,
    violated,
)
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import FAR, LATE_NS, PULLS, QUERY, READS, RESETS, UPDATE, Record, Seen, before
from model_tests.judge.second.waits import over

DELETIONS: Final = (207, 215)
"""Requests after which a group has no offset: deletions of a group (207) and of a topic (215).

After any other kind of reset, the group may have any offset."""
UNANSWERED_NS: Final = 2_000 * MS
"""The longest time a request without a recorded answer may be in progress."""
ANSWER_NS: Final = UNANSWERED_NS + LATE_NS
CODES: Final = (0, 1, 2, 16, 17, 26, 29, 215, 501, 1500)


@frozen
class Commit:
    """An offset that is possibly committed once its request was received, and certainly once its answer was sent."""

    request: Seen
    answer: Seen | None
    """The answer; None if it is unknown whether the commit succeeded."""

    @property
    def offset(self) -> int:
        return int(self.request.commit_offset)


def _key(one: Seen) -> tuple[str, str, str, int]:
    return one.broker, one.group, one.topic, one.queue


def _answers(record: Record) -> dict[tuple[str, str], Seen | None]:
    times = Counter(one.about for one in record.of("request_received"))
    places = {one.about: one.place for one in record.of("request_received")}
    told: dict[tuple[str, str], Seen | None] = {
        about: one if one.place == places.get(about) and not one.is_nobodys else None
        for about, one in first_answers(record).items()
    }
    return told | {about: None for about, count in times.items() if count > 1}


def commits(record: Record, query: Seen) -> list[Commit]:
    """The commits that a query's group may have made in its queue, from any source of the broker."""
    answers = _answers(record)
    found = []
    for one in record.of("request_received"):
        if _key(one) != _key(query) or one.commit_offset < 0 or one.code not in {*PULLS, UPDATE}:
            continue
        answer = answers.get(one.about) if one.request else None
        is_done = answer is not None and answer.code in (READS if one.code in PULLS else (0,))
        if one.code in PULLS or answer is None or is_done:
            # A pull that finally got an error may have been read and held first, so its commit is possible.
            found.append(Commit(one, answer if is_done else None))
    return found


def is_lost(record: Record, done: Seen, query: Seen) -> bool:
    """Whether the broker may have been killed after it acknowledged an offset and before it saved the offset."""
    return not outlives(record, query.broker, done, query)


def reset_after(record: Record, one: Seen, query_answer: Seen) -> bool:
    for place, lo, hi in begun_anew(record):
        if place == one.place and hi >= one.lo and lo <= query_answer.hi:
            return True
    return any(_until(record, reset) >= one.lo for reset in _resets(record, one, query_answer))


def _resets(record: Record, query: Seen, answer: Seen) -> Iterator[Seen]:
    """Yield the requests before an answer that may have changed the group's offset without a known commit."""
    for one in record.of("request_received"):
        is_reset = one.code in RESETS and one.group in {"", query.group} and one.topic in {"", query.topic}
        is_unsaid = one.code == UPDATE and one.commit_offset < 0 and _key(one) == _key(query)
        if (is_reset or is_unsaid) and not before(answer, one):
            yield one


def _until(record: Record, reset: Seen) -> int:
    """Return the time until which a reset may take effect. A reset by the broker lasts until the group pulls."""
    return lasts_until(record, reset) if reset.code in {*DELETIONS, UPDATE} else FAR


def _may_be_set(record: Record, query: Seen, answer: Seen) -> bool:
    """Whether the group may have any offset, even one that no recorded request committed."""
    return any(one.code not in DELETIONS for one in _resets(record, query, answer))


def queries(record: Record) -> Iterator[tuple[Seen, Seen]]:
    answers = _answers(record)
    for one in record.of("request_received"):
        answer = answers.get(one.about)
        if one.code == QUERY and one.request and answer is not None:
            yield one, answer


def certain(record: Record, query: Seen, answer: Seen) -> list[Commit]:
    return [
        one
        for one in commits(record, query)
        if one.answer is not None
        and one.request.source == query.source
        and before(one.answer, query)
        and not reset_after(record, one.request, answer)
        and not is_lost(record, one.answer, query)
    ]


def elsewhere(record: Record, query: Seen, answer: Seen) -> list[Commit]:
    return [
        one
        for one in commits(record, query)
        if one.answer is not None
        and (one.request.source != query.source or is_lost(record, one.answer, query))
        and query.broker
        and (one.request.source == query.source or record.last(one.request.source).event == "source_stopped")
        and before(one.answer, query)
        and not reset_after(record, one.request, answer)
    ]


def _may_follow(other: Commit, one: Commit) -> bool:
    """Whether the client may have made `other` after `one`. A pull commits its offset when the broker receives it."""
    if other.request.code == UPDATE:
        return other.answer is None or not before(other.answer, one.request)
    return not before(other.request, one.request)


def told_least(record: Record) -> Iterator[Said]:
    for query, answer in queries(record):
        if answer.code != 0:
            continue
        known = certain(record, query, answer)
        for one in (*known, *elsewhere(record, query, answer)):
            put_back = any(
                other.offset <= answer.offset and not before(answer, other.request) and _may_follow(other, one)
                for other in commits(record, query)
            )
            if answer.offset < one.offset and not put_back:
                why = f"{query.request} is told {answer.offset}, not {one.offset}"
                if one not in known:
                    yield unknown(query, why)
                    continue
                yield from absent(record, query, one.request.lo - UNANSWERED_NS, answer.hi, why)


def told_most(record: Record) -> Iterator[Said]:
    for query, answer in queries(record):
        possible = [one for one in commits(record, query) if not before(answer, one.request)]
        if answer.code != 0 or answer.offset == 0 or any(one.offset >= answer.offset for one in possible):
            continue
        why = f"{query.request} is told {answer.offset}, which nobody committed"
        earlier = _earlier(record, query)
        lower = [
            asked
            for asked, told in earlier
            if (told.code == 22 or (told.code == 0 and told.offset < answer.offset))
            and not is_lost(record, told, query)
        ]
        since = [asked.lo for asked in lower if not reset_after(record, asked, answer)]
        if since:
            yield from absent(record, query, max(since) - UNANSWERED_NS, answer.hi, why)
        elif certain(record, query, answer):
            yield unknown(query, why)


def told_within(record: Record) -> Iterator[Said]:
    for query, answer in queries(record):
        about = (query.broker, query.topic, query.queue)
        shown = [one for one in record.of("answer_sent") if (one.broker, one.topic, one.queue) == about]
        ends = [one.offset_max for one in shown if one.offset_max >= 0]
        possible = [one for one in commits(record, query) if not before(answer, one.request)]
        is_committed = any(one.offset >= answer.offset for one in possible)
        is_explained = is_committed or _may_be_set(record, query, answer)
        if answer.code == 0 and ends and answer.offset > max(ends) and not is_explained:
            yield unknown(query, f"{query.request} is told {answer.offset}, past the queue's end")


def _earlier(record: Record, query: Seen) -> list[tuple[Seen, Seen]]:
    return [
        (asked, told)
        for asked, told in queries(record)
        if _key(asked) == _key(query) and asked.source == query.source and before(told, query)
    ]


def told_written(record: Record) -> Iterator[Said]:
    for query, answer in queries(record):
        if answer.code != 0:
            continue
        value = answer.offset
        deletions = [
            one.lo
            for one in record.of("request_received")
            if one.code in DELETIONS
            and one.group in {"", query.group}
            and one.topic in {"", query.topic}
            and _until(record, one) < query.lo
        ]
        put_by = [one.request.hi for one in commits(record, query) if one.offset == value]
        is_old = value > 0 and deletions and put_by and max(put_by) < max(deletions)
        if is_old and not _may_be_set(record, query, answer):
            yield unknown(query, f"{query.request} is told {value} of before a deletion")
        others = [
            asked.lo
            for asked, told in _earlier(record, query)
            if (told.code == 0 and told.offset != value) or (told.code == 22 and value > 0)
        ]
        put = [
            one.request.lo
            for one in commits(record, query)
            if one.request.code == UPDATE and one.answer is not None and one.offset != value
            if one.request.source == query.source and before(one.answer, query)
        ]
        if not others and not put:
            continue
        since = max((*others, *put))
        if _may_be(record, (query, answer), since):
            continue
        why = f"{query.request} is told {value}, which nobody committed"
        if others:
            yield from absent(record, query, (max(others) if put else since) - UNANSWERED_NS, answer.hi, why)
        else:
            yield unknown(query, why)


def _may_be(record: Record, told: tuple[Seen, Seen], since: int) -> bool:
    query, answer = told
    value = answer.offset
    for one in commits(record, query):
        ended = FAR if one.answer is None else one.answer.hi
        if one.offset == value and not before(answer, one.request) and ended >= since:
            return True
    for asked, said in queries(record):
        is_so = (said.code == 0 and said.offset == value) or (said.code == 22 and value == 0)
        if is_so and asked is not query and _key(asked) == _key(query) and asked.lo <= answer.hi and said.hi >= since:
            return True
    if any(hi >= since and lo <= answer.hi for lo, hi in restarts(record, query.broker)):
        return True
    return any(
        _until(record, reset) >= since and (value == 0 or reset.code not in DELETIONS)
        for reset in _resets(record, query, answer)
    )


def told_some(record: Record) -> Iterator[Said]:
    for query, answer in queries(record):
        there = [one.request.lo for one in certain(record, query, answer)]
        there += [
            asked.lo
            for asked, told in _earlier(record, query)
            if told.code == 0
            and told.offset > 0
            and not reset_after(record, asked, answer)
            and not is_lost(record, told, query)
        ]
        if answer.code == 22 and there:
            why = f"{query.request} is told that nothing was committed"
            yield from absent(record, query, max(there) - UNANSWERED_NS, answer.hi, why)
        elif answer.code == 22 and elsewhere(record, query, answer):
            yield unknown(query, f"{query.request} is told that nothing was committed")


def commit_answered(record: Record) -> Iterator[Said]:
    answers = _answers(record)
    for one in record.of("request_received"):
        is_judged = one.about not in answers or answers[one.about] is not None
        if one.code in {QUERY, UPDATE} and one.request and is_judged:
            exchange = Exchange(one, answers.get(one.about))
            yield from over(record, exchange, (one.lo, one.hi), ANSWER_NS, f"{one.request} is not answered in time")


def code_known(record: Record) -> Iterator[Said]:
    answers = _answers(record)
    for one in record.of("request_received"):
        answer = answers.get(one.about)
        if one.code in {QUERY, UPDATE} and one.request and answer is not None:
            code = answer.code
            if code not in CODES and not (code == 22 and one.code == QUERY):
                yield violated(one, f"{one.request} is answered {code}")


def limit_kept(record: Record) -> Iterator[Said]:
    for source, limit in record.limits.items():
        if limit < 0:
            continue
        spans = list(_held(record, source))
        for hold, begin, _end in spans:
            others = {one.about: one for one, since, until in spans if since <= begin < until}.values()
            if len(others) > limit:
                lo = min(one.lo for one in others)
                yield from absent(record, hold, lo, begin, f"{source} holds {len(others)}, and promises {limit}")


def _held(record: Record, source: str) -> Iterator[tuple[Seen, int, int]]:
    asked = {one.about: one for one in record.of("request_received")}
    for hold in record.of("hold", "keep"):
        if hold.source != source:
            continue
        ends = [
            one.lo
            for one in record.of("take", "expire", "run", "stop", "answer_sent")
            if one.about == hold.about and one.hi >= hold.lo
        ]
        ends += [
            one.lo
            for one in record.of("recheck")
            if one.about == hold.about and one.hi >= hold.lo
            if hold.event == "keep" or one.visible_end < 0 or one.visible_end != hold.visible_end
        ]
        request = asked.get(hold.about)
        ends += [
            one.lo
            for one in record.of("connection_closed")
            if request is not None and (one.source, one.connection) == (source, request.connection)
            if one.hi >= hold.lo
        ]
        ends.append(record.last(source).lo)
        begin = hold.hi if request is None else max(hold.hi, request.hi)
        if begin < min(ends):
            yield hold, begin, min(ends)


TOLD: Final = "commit_is_told"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "commit.told.kept": ("commit_never_regresses", told_least),
    "commit.told.most": (TOLD, told_most),
    "commit.told.some": (TOLD, told_some),
    "commit.told.written": (TOLD, told_written),
    "commit.told.within": (TOLD, told_within),
    "commit.answered": (TOLD, commit_answered),
    "commit.code.known": (TOLD, code_known),
    "hold.limit.kept": ("hold_limit_kept", limit_kept),
}
