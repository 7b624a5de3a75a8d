"""Observers of a simulated broker record histories as plain events, with clocks, intervals, gaps and cut ends."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
from attrs import frozen
from model_tests.judge.second.parts import DELETE_TOPIC, MS, US, Plan, Told
from model_tests.judge.second.world import World, worlds

from longpoll_spec.history import FORMAT_VERSION, META_FILE, WHITE_BOX, Event

SECOND: Final = 10**9
STEPS_NS: Final = (20 * MS, SECOND, 9 * SECOND, 50 * SECOND)
"""The largest changes of a clock. Some are shorter and some are longer than the silent times of a simulation (up to
nine seconds)."""
OUTSIDE_ONLY: Final = ("blocked", "unblocked")
DEFAULTS: Final = {
    field.name: field.default for field in msgspec.structs.fields(Event) if field.default is not msgspec.NODEFAULT
} | {"offsets": [], "ids": [], "bodies": []}


@frozen
class Sight:
    inside: bool = True
    tail_lost: int = 0
    """The largest number of last events that the recorder of a killed broker loses."""
    holes: int = 0
    """The number of gaps, each a run of unrecorded events that a `lost` event may report."""
    steps: int = 0
    """How often a source's clock is set forward or back, while it records or during a silence."""
    offset_is_wrong: bool = False
    """Whether `offset_ns` is wrong by as much as `uncertainty_ns` permits."""
    ends_early: bool = False
    """Whether a recorder is killed while its broker continues."""

    @property
    def is_whole(self) -> bool:
        return not (self.tail_lost or self.holes or self.steps or self.ends_early)


@frozen
class History:
    meta: dict[str, Any]
    events: tuple[dict[str, Any], ...]
    troubles: Mapping[str, int] = attrs.field(factory=dict)

    def with_events(self, events: Iterable[dict[str, Any]]) -> History:
        return attrs.evolve(self, events=tuple(events))


def observe(plan: Plan, sight: Sight) -> History:
    chance = random.Random(f"{plan.seed} seen")
    sources: list[dict[str, Any]] = []
    events: list[dict[str, Any]] = []
    troubles: Counter[str] = Counter()
    for world in worlds(plan):
        for life in world.lives:
            told = [one for one in world.told if one["life"] == life.number]
            source = _source(world, life.number, sight, chance, life.held_most)
            is_killed = life.ended_by == "kill"
            sources.append(source)
            events += _recorded(told, source, sight, chance, troubles, is_killed=is_killed)
            troubles["killed" if is_killed else "stopped"] += 1
        troubles["started again"] += len(world.lives) - 1
        troubles["deleted"] += sum(one.get("code") == DELETE_TOPIC for one in world.told)
        troubles["not read"] += sum(one["event"] == "blocked" for one in world.told)
    troubles["seen by several"] += len(sources) > 1
    meta = {"format_version": FORMAT_VERSION, "sources": sources, "policy": plan.policy}
    return History(meta, tuple(events), troubles)


def _source(world: World, number: int, sight: Sight, chance: random.Random, held_most: int) -> dict[str, Any]:
    source: dict[str, Any] = {
        "name": f"{world.broker}#{number}",
        "clock": "unix" if sight.steps else "monotonic",
        "offset_ns": chance.randrange(10**18),
        "uncertainty_ns": 0 if sight.inside and not sight.offset_is_wrong else chance.randrange(5 * MS),
    }
    if sight.inside and chance.random() < 0.3:
        source["hold_limit"] = held_most + chance.randrange(2)
    return source


def _recorded(
    told: list[Told],
    source: dict[str, Any],
    sight: Sight,
    chance: random.Random,
    troubles: Counter[str],
    *,
    is_killed: bool,
) -> list[dict[str, Any]]:
    hidden = OUTSIDE_ONLY if sight.inside else WHITE_BOX
    seen = [_seen(one, sight, chance) for one in told if one["event"] not in hidden]
    for earlier, later in itertools.pairwise(seen):
        # The recorder writes one event after the other.
        later["before_ns"] = max(later["before_ns"], earlier["before_ns"] + 1)
    if is_killed and sight.inside:
        seen = [one for one in seen if one["event"] != "connection_closed"]
    if sight.tail_lost and (is_killed or sight.ends_early):
        del seen[max(1, len(seen) - 1 - chance.randrange(sight.tail_lost)) :]
        troubles["cut"] += 1
    wrong = source["uncertainty_ns"] if sight.offset_is_wrong else 0
    error = chance.randint(-wrong, wrong) - source["offset_ns"]
    steps = [
        (one["before_ns"], chance.choice((-1, 1)) * chance.randrange(chance.choice(STEPS_NS)))
        for one in chance.sample(seen, min(sight.steps, len(seen)))
    ]
    for _at, by in steps:
        troubles["set forward" if by > 0 else "set back"] += 1
        troubles["set by less than a second"] += abs(by) < SECOND
    for one in seen:
        step = sum(by for at, by in steps if at <= one["before_ns"])
        one["after_ns"] += error + step
        one["before_ns"] += error + step
    for sequence, one in enumerate(seen):
        one |= {"source": source["name"], "sequence": sequence}
    troubles["hole"] += sight.holes
    for _ in range(sight.holes):
        seen = _with_hole(seen, chance)
    return seen


def _seen(one: Told, sight: Sight, chance: random.Random) -> dict[str, Any]:
    """Return the event as written: with an interval around its time, and without fields that have default values."""
    is_answer = one["event"] in {"answer_sent", "message_acknowledged", "connection_closed"}
    width = 40 * US if sight.inside else 4 * MS if is_answer else 200 * US
    fields = {
        name: value for name, value in one.items() if name not in {"at_ns", "life"} and value != DEFAULTS.get(name)
    }
    if not sight.inside:
        fields.pop("cause", None)
    is_end = one["event"] in {"source_started", "source_stopped"}
    return fields | {
        "after_ns": one["at_ns"] - (0 if is_end else chance.randrange(width)),
        "before_ns": one["at_ns"] + (0 if is_end else chance.randrange(width // 4)),
    }


def _with_hole(events: list[dict[str, Any]], chance: random.Random) -> list[dict[str, Any]]:
    """Drops a run of events. Either a `lost` event reports the gap, or only the numbers show it."""
    if len(events) < 6:
        return events
    first = chance.randrange(1, len(events) - 2)
    last = min(len(events) - 1, first + chance.choice((1, 1, 3, 20)))
    gone = events[first:last]
    if chance.random() < 0.5:
        return events[:first] + events[last:]
    lost = {
        "event": "lost",
        "after_ns": min(one["after_ns"] for one in gone),
        "before_ns": max(one["before_ns"] for one in gone),
        "source": gone[0]["source"],
        "sequence": gone[0]["sequence"],
        "broker": gone[0]["broker"],
        "lost_count": sum(one.get("lost_count", 1) for one in gone),
    }
    shift = len(gone) - 1
    later = [one | {"sequence": one["sequence"] - shift} for one in events[last:]]
    return [*events[:first], lost, *later]


def write(history: History, directory: Path) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    (directory / META_FILE).write_bytes(encoder.encode(history.meta) + b"\n")
    (directory / "part-000000.ndjson").write_bytes(encoder.encode_lines(history.events))
