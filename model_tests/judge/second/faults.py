"""Faults in any event of a history, one per history: drop, duplicate, swap, move in time, or set a field."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from attrs import frozen
from model_tests.judge.second.observer import DEFAULTS, History
from model_tests.judge.second.parts import MS, US

from longpoll_spec.history import FIELD_TYPES

Event = dict[str, Any]
Events = list[Event]

MOVES_NS: Final = tuple(sign * size for size in (10 * US, 2 * MS, 70 * MS, 250 * MS, 7_000 * MS) for sign in (-1, 1))
HUGE: Final = (1 << 60) - 1
OTHER_TEXT: Final = "another"


@frozen
class Changed:
    history: History
    seed: int
    operation: str
    event: str
    place: int


def renumbered(events: Sequence[Event], source: str) -> Events:
    """Renumber one source's events in their present order, as if the observer had recorded them in this order."""
    numbers = itertools.count()
    return [one | {"sequence": next(numbers)} if one["source"] == source else one for one in events]


def drop(events: Events, place: int) -> Events:
    """Drop an event and renumber, as if it had not happened."""
    source = events[place]["source"]
    return renumbered(events[:place] + events[place + 1 :], source)


def forget(events: Events, place: int) -> Events:
    """Drop an event and keep the numbers, which show the gap."""
    return events[:place] + events[place + 1 :]


def duplicate(events: Events, place: int) -> Events:
    """Duplicate an event and renumber, as if it had happened twice."""
    return renumbered([*events[: place + 1], dict(events[place]), *events[place + 1 :]], events[place]["source"])


def write_twice(events: Events, place: int) -> Events:
    """Write an event twice with the same number."""
    return [*events[: place + 1], dict(events[place]), *events[place + 1 :]]


def swap(events: Events, place: int) -> Events:
    one = events[place]
    others = [at for at in range(place + 1, len(events)) if events[at]["source"] == one["source"]]
    if not others:
        return events
    at = others[0]
    when = ("after_ns", "before_ns", "sequence")
    changed = list(events)
    changed[place] = events[at] | {name: one[name] for name in when}
    changed[at] = one | {name: events[at][name] for name in when}
    return changed


def swap_contents(events: Events, place: int) -> Events:
    one = events[place]
    kept = ("event", "after_ns", "before_ns", "sequence", "source", "broker")
    others = [
        at
        for at in range(place + 1, len(events))
        if (events[at]["source"], events[at]["event"]) == (one["source"], one["event"])
    ]
    if not others:
        return events
    at = others[0]
    changed = list(events)
    changed[place] = {name: one[name] for name in kept} | {k: v for k, v in events[at].items() if k not in kept}
    changed[at] = {name: events[at][name] for name in kept} | {k: v for k, v in one.items() if k not in kept}
    return changed


def move(events: Events, place: int, by_ns: int) -> Events:
    """Move an event in time, together with its number."""
    one = events[place]
    moved = one | {"after_ns": one["after_ns"] + by_ns, "before_ns": one["before_ns"] + by_ns}
    rest = events[:place] + events[place + 1 :]
    source = one["source"]
    ends = ("source_started", "source_stopped")
    at = place
    while (
        at > 0
        and by_ns < 0
        and _may_pass(rest[at - 1], source, ends)
        and rest[at - 1]["before_ns"] > moved["before_ns"]
    ):
        at -= 1
    while (
        at < len(rest)
        and by_ns > 0
        and _may_pass(rest[at], source, ends)
        and rest[at]["before_ns"] < moved["before_ns"]
    ):
        at += 1
    return renumbered([*rest[:at], moved, *rest[at:]], source)


def _may_pass(one: Event, source: str, ends: tuple[str, ...]) -> bool:
    return bool(one["source"] == source) and one["event"] not in ends


def say_moved(events: Events, place: int, by_ns: int) -> Events:
    """Change the timestamp of an event and keep its number."""
    one = events[place]
    changed = list(events)
    changed[place] = one | {"after_ns": one["after_ns"] + by_ns, "before_ns": one["before_ns"] + by_ns}
    return changed


def widen(events: Events, place: int, by_ns: int) -> Events:
    one = events[place]
    changed = list(events)
    changed[place] = one | {"after_ns": one["after_ns"] - by_ns, "before_ns": one["before_ns"] + by_ns}
    return changed


VALUES: Final = ("default", "0", "-1", "less", "more", "other", "huge", "empty", "text")


def value_of(kind: str, name: str, events: Events, place: int, chance: random.Random) -> Any:
    old: Any = events[place].get(name, DEFAULTS.get(name))
    of_type = FIELD_TYPES[name]
    if kind == "other":
        known = [
            one[name] for one in events if one["event"] == events[place]["event"] and name in one and one[name] != old
        ] or [one[name] for one in events if name in one and one[name] != old]
        return chance.choice(known) if known else None
    if of_type is int:
        return {"0": 0, "-1": -1, "less": old - 1, "more": old + 1, "huge": HUGE}.get(kind)
    if of_type is str:
        return {"empty": "", "text": OTHER_TEXT}.get(kind)
    if of_type is bool:
        return {"more": not old}.get(kind)
    return {
        "empty": [],
        "less": old[:-1],
        "more": [*old, (old or [0])[-1] + 1],
        "0": [0, *old],
        "-1": old[::-1],
        "huge": [*old, HUGE],
    }.get(kind)


def set_field(events: Events, place: int, name: str, kind: str, chance: random.Random) -> Events:
    changed = list(events)
    one = dict(events[place])
    if kind == "default":
        one.pop(name, None)
    else:
        value = value_of(kind, name, events, place, chance)
        if value is None:
            return events
        one[name] = value
    changed[place] = one
    return changed


Operation = Callable[[Events, int], Events]
PLAIN: Final[dict[str, Operation]] = {
    "drop": drop,
    "forget": forget,
    "duplicate": duplicate,
    "write twice": write_twice,
    "swap": swap,
    "swap contents": swap_contents,
}
FIELDS: Final = tuple(name for name in FIELD_TYPES if name != "actors")
"""The fields to change. `actors` is not one of them, because it occurs only in histories of steps, which are judged
against the specification."""


def operations(event: Event) -> Iterator[str]:
    yield from PLAIN
    for by_ns in MOVES_NS:
        yield f"move {by_ns}"
        yield f"say-moved {by_ns}"
    yield from (f"widen {by_ns}" for by_ns in MOVES_NS if by_ns > 0)
    for name in FIELDS:
        # A field that the event's kind does not have is set too, but only to one class of values.
        kinds: tuple[str, ...] = VALUES if name in event else ("other",)
        yield from (f"set {name} {kind}" for kind in kinds)


def apply(events: Events, place: int, operation: str, chance: random.Random) -> Events:
    """Return the events with one fault, or the same list if the operation changes nothing."""
    if operation in PLAIN:
        return PLAIN[operation](events, place)
    verb, *rest = operation.split(" ")
    if verb == "set":
        return set_field(events, place, rest[0], rest[1], chance)
    return {"move": move, "say-moved": say_moved, "widen": widen}[verb](events, place, int(rest[0]))


def changed_histories(history: History, seed: int, count: int, used: Counter[tuple[str, str]]) -> Iterator[Changed]:
    """Yields changed histories, preferring operations that `used` has counted least for their kind of event."""
    chance = random.Random(f"{seed} changed")
    events = [dict(one) for one in history.events]
    given = 0
    for _attempt in range(count * 20):
        if given == count:
            return
        kind = chance.choice(sorted({one["event"] for one in events}))
        place = chance.choice([at for at, one in enumerate(events) if one["event"] == kind])
        possible = list(operations(events[place]))
        chance.shuffle(possible)
        operation = min(possible, key=lambda name: used[kind, name])
        used[kind, operation] += 1
        changed = apply(events, place, operation, chance)
        if changed != events:
            given += 1
            yield Changed(history.with_events(changed), seed, operation, kind, place)
