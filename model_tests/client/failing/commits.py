"""What a broker must have of each group's offsets when it has stopped in order, by the record of its life.

An offset that a group has stored, and was told so (15), is what the broker has until another one is stored. Any that
may have come after it is allowed instead: one that was not answered, such as a one-way, or that a pull carried, whose
broker takes it when it likes (finding h). So a group is judged only where it has stored one with an answer.

Leaves out asking the broker (`servers`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TypeAlias

from attrs import frozen

from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_spec.history import Event

Place: TypeAlias = tuple[str, str, int]
"""A group, a topic and a queue."""


@frozen
class _Commit:
    """An offset that a request has carried."""

    offset: int
    begun_ns: int
    ended_ns: int | None
    """When it had certainly taken effect; None: nobody knows that it has, nor until when it may."""


def kept(events: Iterable[Event]) -> Mapping[Place, frozenset[int]]:
    """By place the offsets of which the broker has one, if it kept what it was told to store."""
    asked: list[Event] = []
    answered: dict[str, Event] = {}
    for event in events:
        if event.event == "request_received" and event.commit_offset >= 0:
            asked.append(event)
        elif event.event == "answer_sent" and event.request:
            answered[event.request] = event
    commits: dict[Place, list[_Commit]] = defaultdict(list)
    for event in asked:
        # A one-way has no identifier, and no answer: there are many such, and each may have been stored.
        answer = answered.get(event.request)
        is_stored = (
            event.code == RequestCode.UPDATE_CONSUMER_OFFSET
            and answer is not None
            and answer.code == ResponseCode.SUCCESS
        )
        ended_ns = answer.before_ns if is_stored and answer is not None else None
        commits[event.group, event.topic, event.queue].append(_Commit(event.commit_offset, event.after_ns, ended_ns))
    return {place: _last(found) for place, found in commits.items() if any(each.ended_ns is not None for each in found)}


def _last(commits: Iterable[_Commit]) -> frozenset[int]:
    """Those after which no other one has certainly been stored."""
    found = list(commits)
    begun_last_ns = max(each.begun_ns for each in found if each.ended_ns is not None)
    return frozenset(each.offset for each in found if each.ended_ns is None or each.ended_ns >= begun_last_ns)
