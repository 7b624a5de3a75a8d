"""The contract's clauses about the times of holds and answers, one function per clause."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from model_tests.judge.second.case import (
    Exchange,
    Said,
    absent,
    became_visible,
    certain_end,
    deleted_between,
    deliveries,
    exchanges,
    has_rolled,
    holds,
    is_inside,
    is_own,
    may_follow,
    policy_says,
    possible_end,
    read_answers,
    seen_inside,
    tags,
    takes,
    unknown,
    unless_stopping,
    unrecorded,
    violated,
)
from model_tests.judge.second.parts import MS
from model_tests.judge.second.reading import FAR, LATE_NS, WAKE_NS, Record, Seen, before, wanted

UNHELD_NS: Final = 2_000 * MS
SHORT_POLLING_NS: Final = 1_000 * MS
COLD_NS: Final = 10_000 * MS
"""A broker may delay the read of a message by this time if the message is at least as old as this time."""


def open_until(record: Record, request: Seen) -> Seen:
    closes = [
        one
        for one in record.of("connection_closed")
        if (one.source, one.connection) == (request.source, request.connection) and not before(one, request)
    ]
    return min([*closes, record.last(request.source)], key=lambda one: one.lo)


def over(
    record: Record, one: Exchange, begun: tuple[int, int], limit: int, why: str, *, read_from: int = -FAR
) -> Iterator[Said]:
    """Report that an answer, or its absence, is more than `limit` after a time within `begun`."""
    request = one.request
    end = one.answer if one.answer is not None else open_until(record, request)
    is_certain = request.source not in record.loose and not unread(record, one, end.hi, read_from)
    if end.lo - begun[1] <= limit or not is_certain:
        if (end.lo if one.answer is None else end.hi) - begun[0] > limit:
            yield unknown(request, why)
    elif one.answer is not None:
        yield violated(request, why)
    else:
        yield from absent(record, request, request.lo, begun[1] + limit, why)


def unread(record: Record, one: Exchange, hi: int, read_from: int = -FAR) -> bool:
    """Whether the client or the broker may have stopped reading the connection since the request was received.

    A gap in an outside record may hide this. Recorded times before `read_from` do not count.
    """
    request, lo = one.request, one.request.lo
    is_gap = one.answer is not None and not is_inside(record, request.source)
    is_gap = is_gap and not record.is_whole(request.source, lo, hi)
    return is_gap or is_blocked(record, request, max(lo, read_from), hi)


def is_blocked(record: Record, request: Seen, lo: int, hi: int) -> bool:
    mine = (request.source, request.connection)
    told = [one for one in record.of("blocked", "unblocked") if (one.source, one.connection) == mine]
    for direction in {one.direction for one in told}:
        since: int | None = None
        for one in sorted((one for one in told if one.direction == direction), key=lambda one: one.sequence):
            if one.event == "blocked":
                since = one.lo if since is None else since
            elif (-FAR if since is None else since) <= hi and lo <= one.hi:
                return True
            else:
                since = None
        if since is not None and since <= hi:
            return True
    return False


def wake_prompt(record: Record) -> Iterator[Said]:
    held = {one.about for one in holds(record)}
    for one in exchanges(record):
        request = one.request
        inside = seen_inside(record, request.place)
        is_held = (request.about in held if inside else request.may_hold) or one.answer is None
        if not is_held or one.code == 21 or isinstance(wanted(request), str):
            continue
        looked = [each for each in record.of("recheck") if each.about == request.about]
        end = one.answer if one.answer is not None else open_until(record, request)
        looked = looked[:1] if wanted(request) is None else []
        if any(each.visible_end > request.offset >= 0 and end.lo - each.hi > WAKE_NS for each in looked):
            yield unknown(request, f"{one.name} was held although a recheck saw more")
        shown = deliveries(record, request)
        taken = [
            offset
            for offset, told in tags(record, request).items()
            if offset >= request.offset and all(takes(request, tag) for tag in told)
        ]
        first = request.offset if wanted(request) is None else min(taken, default=FAR)
        told = [became_visible(record, request, offset) for offset in taken]
        moments = [moment for moment in told if moment is not None]
        # Other pulls received the message before its send was acknowledged.
        known_ns = min((lo for lo, _hi in moments), default=FAR)
        given = [answer for answer, end in shown if end > first and answer.hi < known_ns]
        if one.answer is None or not any(before(answer, request) for answer in given):
            moments += [(answer.lo, answer.hi) for answer in given]
        read_from = max(min((lo for lo, _hi in moments), default=0), request.lo) - UNHELD_NS
        for lo, hi in moments:
            if not inside and one.answer is not None and hi + WAKE_NS < request.lo:
                break  # The broker reads the pull at once and does not hold it.
            begun = (max(lo, request.lo), max(hi, request.hi))
            why = f"{one.name} was woken too late"
            for said in over(record, one, begun, WAKE_NS, why, read_from=read_from):
                yield unknown(request, said.why) if may_follow(record, request) else said


def _deadline(request: Seen) -> tuple[int, int]:
    timeout = max(request.timeout_ms, 0) * MS
    return request.lo + timeout, request.hi + timeout


def deadline_met(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        if one.answer is not None and one.request.may_hold:
            yield from over(record, one, _deadline(one.request), LATE_NS, f"{one.name} is answered late")


def answered(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        if one.answer is None:
            begun = one.request.lo + UNHELD_NS, one.request.hi + UNHELD_NS
            begun = _deadline(one.request) if one.request.may_hold else begun
            if one.request.may_hold is None:
                begun = (max(begun[0], _deadline(one.request)[0]), max(begun[1], _deadline(one.request)[1]))
            yield from over(record, one, begun, LATE_NS, f"{one.name} is never answered")


def stop_answered(record: Record) -> Iterator[Said]:
    if not policy_says(record, "on_stop", "answer", unnamed=False):
        return
    for one in exchanges(record):
        end = open_until(record, one.request)
        if one.answer is None and end.event == "source_stopped" and one.request.hi + LATE_NS < end.lo:
            why = f"{one.name} is not answered at the stop"
            if not unread(record, one, end.hi):
                yield from absent(record, one.request, one.request.lo, end.hi, why)


def unheld_prompt(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        if one.answer is not None and one.request.may_hold is False:
            begun = one.request.lo, one.request.hi
            for said in over(record, one, begun, UNHELD_NS + LATE_NS, f"{one.name} may not be held, and is"):
                yield unknown(one.request, said.why) if _may_be_cold(record, one.request, one.answer) else said
    for request, answer in read_answers(record):
        one, begun = Exchange(request, answer), (request.lo, request.hi)
        if request.may_hold and _is_never_held(record, request, answer):
            is_doubtful = has_rolled(record, request, answer) or _may_be_cold(record, request, answer)
            for said in over(record, one, begun, UNHELD_NS + LATE_NS, f"{one.name} is read slowly"):
                yield unknown(request, said.why) if is_doubtful else said
            if not seen_inside(record, request.place) and answer.lo - request.hi > WAKE_NS:
                yield unknown(request, f"{one.name} is read slowly")


def _may_be_cold(record: Record, request: Seen, answer: Seen) -> bool:
    """Whether RocketMQ 5 may have delayed the read of an old message."""
    shown = became_visible(record, request, request.offset)
    is_young = shown is not None and shown[0] > request.lo - COLD_NS
    is_outside = not is_inside(record, request.source) and not is_own(record)
    return is_outside and not is_young and answer.code in {0, 20} and answer.lo - request.hi <= COLD_NS


def _is_never_held(record: Record, request: Seen, answer: Seen) -> bool:
    """Whether the pull's first read certainly had another status than PULL_NOT_FOUND."""
    if seen_inside(record, request.place) and any(one.about == request.about for one in holds(record)):
        return False
    is_past = answer.code == 21 and request.offset > answer.offset_max
    is_past = is_past and not deleted_between(record, request.place, request, answer)
    return is_past or certain_end(record, request, delivered=True) > request.offset


def not_early(record: Record) -> Iterator[Said]:
    for request, answer in read_answers(record):
        early = answer.hi + LATE_NS < _deadline(request)[0]
        if answer.code != 19 or not request.may_hold or not early:
            continue
        if deleted_between(record, request.place, request, answer):
            continue
        why = f"{request.request} is told 19 before its deadline"
        is_short = not is_inside(record, request.source) and answer.hi - request.lo >= SHORT_POLLING_NS
        for said in unless_stopping(record, request, answer, why):
            yield unknown(request, why) if is_short or request.source in record.loose else said
    for one, step in _steps(record):
        in_time = not before(step, one.request) and (one.answer is None or not before(one.answer, step))
        early = step.event == "expire" and step.hi + LATE_NS < _deadline(one.request)[0]
        if early and in_time and one.request.may_hold and (one.answer is None or one.answer.code != 19):
            why = f"{one.name} expires before its deadline"
            yield unknown(step, why) if step.source in record.loose else violated(step, why)


def hold_allowed(record: Record) -> Iterator[Said]:
    held = {one.about for one in holds(record)}
    for one in exchanges(record):
        if one.request.about in held and one.request.may_hold is False:
            yield violated(one.request, f"{one.name} may not be held, and is")


def hold_once(record: Record) -> Iterator[Said]:
    first = {one.about: one for one in reversed(holds(record))}
    for one in holds(record):
        if one is not first[one.about]:
            yield violated(one, f"{one.request} is held twice")


def hold_after_request(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        for hold in holds(record):
            if hold.about == one.request.about and before(hold, one.request):
                yield violated(one.request, f"{one.name} is held before it came")


def hold_unanswered(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        for hold in holds(record):
            if hold.about == one.request.about and one.answer is not None and before(one.answer, hold):
                yield violated(one.request, f"{one.name} is held after its answer")


def hold_at_end(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        for hold in holds(record):
            if hold.about == one.request.about:
                moments = [hold] if one.answer is None else [hold, one.answer]
                first = min(moments, key=lambda moment: moment.hi)
                until = max(first.hi, one.request.lo)
                end = possible_end(record, one.request, Seen(first.fields, first.lo, until))
                if end is not None and one.request.offset > end:
                    yield from unrecorded(record, one.request, until, f"{one.name} is held past the end")


def hold_read(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        for hold in holds(record):
            is_stale = seen_inside(record, one.request.place) and hold.about == one.request.about
            if is_stale and 0 <= hold.visible_end < certain_end(record, one.request):
                yield violated(one.request, f"{one.name} is held with an old end")


STEPS: Final = ("take", "keep", "expire", "run", "stop")


def _steps(record: Record) -> Iterator[tuple[Exchange, Seen]]:
    for one in exchanges(record):
        for step in record.of(*STEPS):
            if step.about == one.request.about and step.place == one.request.place:
                yield one, step


def step_allowed(record: Record) -> Iterator[Said]:
    for one, step in _steps(record):
        if one.request.may_hold is False:
            yield violated(step, f"{one.name} may not be held, and has a {step.event}")


def step_after_request(record: Record) -> Iterator[Said]:
    for one, step in _steps(record):
        if before(step, one.request):
            yield violated(step, f"{one.name} has a {step.event} before it came")


def step_unanswered(record: Record) -> Iterator[Said]:
    for one, step in _steps(record):
        if one.answer is not None and before(one.answer, step):
            yield violated(step, f"{one.name} has a {step.event} after its answer")


def step_held(record: Record) -> Iterator[Said]:
    for one, step in _steps(record):
        own = [hold for hold in holds(record) if hold.about == one.request.about]
        is_elsewhere = step.event == "stop" or not one.request.may_hold or before(step, one.request)
        if one.answer is not None:
            is_elsewhere |= before(one.answer, step) or bool(own and all(before(one.answer, hold) for hold in own))
        if not is_elsewhere and all(before(step, hold) for hold in own):
            yield from absent(record, one.request, one.request.lo, step.hi, f"{one.name} has a {step.event} unheld")


def take_once(record: Record) -> Iterator[Said]:
    for one in exchanges(record):
        mine = [step for other, step in _steps(record) if other.request is one.request]
        # A step that is written twice counts once. Steps out of time violate another clause.
        mine = list({(step.source, step.sequence): step for step in mine if not before(step, one.request)}.values())
        steps = [step for step in mine if one.answer is None or not before(one.answer, step)]
        own = [hold for hold in holds(record) if hold.about == one.request.about]
        by = {name: [step for step in steps if step.event == name] for name in ("take", "keep", "expire", "run")}
        looks = [look for look in record.of("recheck") if look.about == one.request.about]
        wrong = len(by["expire"]) > len(own) + len(by["keep"]) or any(
            sum(step.hi <= at.hi for step in out) > count + sum(step.lo <= at.hi for step in into)
            for out, count, into in ((by["take"], len(own), by["keep"]), (by["keep"], 0, by["take"]))
            for at in out
        )
        out_hi = min((step.hi for step in by["expire"]), default=None)
        if out_hi is not None and all(keep.lo < out_hi for keep in by["keep"]):
            wrong |= any(take.lo > out_hi for take in by["take"])
        runs_on = len(by["run"]) > len(own) or any(before(run, keep) for run in by["run"] for keep in by["keep"])
        if own and (wrong or (runs_on and not looks)):
            hi = max(step.hi for step in steps)
            yield from absent(record, one.request, one.request.lo, hi, f"{one.name} is taken twice")


HELD: Final = "held_as_asked"
Clause = Callable[[Record], Iterator[Said]]
CLAUSES: Final[dict[str, tuple[str, Clause]]] = {
    "pull.wake.prompt": ("no_lost_wakeup", wake_prompt),
    "pull.deadline.met": ("answered_by_deadline", deadline_met),
    "pull.answered": ("answered_by_deadline", answered),
    "pull.stop.answered": ("answered_on_stop", stop_answered),
    "pull.unheld.prompt": (HELD, unheld_prompt),
    "pull.hold.not_early": (HELD, not_early),
    "pull.hold.allowed": (HELD, hold_allowed),
    "pull.hold.once": (HELD, hold_once),
    "pull.hold.after_request": (HELD, hold_after_request),
    "pull.hold.unanswered": (HELD, hold_unanswered),
    "pull.hold.at_end": (HELD, hold_at_end),
    "pull.hold.read": (HELD, hold_read),
    "pull.step.allowed": (HELD, step_allowed),
    "pull.step.after_request": (HELD, step_after_request),
    "pull.step.unanswered": (HELD, step_unanswered),
    "pull.step.held": (HELD, step_held),
    "pull.take.once": (HELD, take_once),
}
