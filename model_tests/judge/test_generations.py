"""Queues that begin again after a deletion, a kill or an unseen change give no violation of a correct broker."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from model_tests.support.judge.faults import FAULTS
from model_tests.support.judge.generate import BROKER, SOURCE, START_NS, TOPIC, Load, simulate, simulated_meta
from model_tests.support.judge.histories import gap_kinds, violated
from model_tests.support.judge.histories import judged as judged_with
from model_tests.support.judge.recording import MS, Recording, change, moved, write

from longpoll_judge.contract.result import Result
from longpoll_judge.evidence.generations import DELETION_NS
from longpoll_judge.evidence.observers import DELETE_TOPIC
from longpoll_judge.run.pipeline import judge
from longpoll_spec.history import Event, Meta

PAUSE_NS = DELETION_NS + 1_000 * MS
INSIDE = ("append", "make_visible", "hold", "expire")


def one_life(seed: int, events: int = 700) -> list[Event]:
    return list(simulate(Load(events=events, queues=2, timeout_ms=60, seed=seed)))[1:-1]


def outside(events: list[Event]) -> list[Event]:
    named = [change(each, event="message_acknowledged") if each.event == "append" else each for each in events]
    return [each for each in named if each.event not in INSIDE]


def inside(events: list[Event]) -> list[Event]:
    return events


def later(events: list[Event], after: list[Event], pause_ns: int, name: str = "again-") -> list[Event]:
    delay_ns = max(event.before_ns for event in after) + pause_ns - START_NS
    return [moved(change(event, request=event.request and name + event.request), delay_ns) for event in events]


def told(event: str, moment_ns: int, **fields: object) -> Event:
    return change(
        Event(event=event, after_ns=moment_ns, before_ns=moment_ns + 1_000, source=SOURCE, sequence=0, broker=BROKER),
        **fields,
    )


def life_of(source: str, events: list[Event], *, is_whole: bool = True) -> list[Event]:
    first_ns, last_ns = events[0].after_ns - MS, max(event.before_ns for event in events) + MS
    ends = [told("source_started", first_ns), *events, told("source_stopped", last_ns)][: None if is_whole else -1]
    return [change(event, source=source, sequence=number) for number, event in enumerate(ends)]


def meta_of(*sources: str) -> Meta:
    meta = simulated_meta()
    named = [msgspec.structs.replace(meta.sources[0], name=source) for source in sources]
    return msgspec.structs.replace(meta, sources=named)


def test_generations_of_neighbouring_queues_are_separate(tmp_path: Path) -> None:
    place = {"topic": TOPIC, "connection": "c"}

    def sent(at_ms: int, queue: int, offset: int) -> list[Event]:
        asked = told("request_received", at_ms * MS, **place, queue=queue, request=f"s{at_ms}", code=10)
        kept = told("message_acknowledged", (at_ms + 1) * MS, **place, queue=queue, request=f"s{at_ms}")
        return [asked, change(kept, queue_offset=offset)]

    hole = told("lost", 1_000 * MS, lost_count=1)
    deletion = told("request_received", 20_000 * MS, topic=TOPIC, code=DELETE_TOPIC, connection="c")
    events = [hole, *sent(10_000, 1, 5), deletion, *sent(40_000, 0, 1)]
    result = judged(tmp_path / "history", life_of(SOURCE, events), SOURCE)

    assert result.findings == []


def judged(directory: Path, events: list[Event], *sources: str) -> Result:
    return judged_with(directory, events, meta_of(*sources))


Seen = Callable[[list[Event]], list[Event]]
SEEN = pytest.mark.parametrize("seen", [inside, outside], ids=["recorded by the broker", "seen by clients"])


def made_anew(seen: Seen, *, deleted: bool = True, pause_ns: int = PAUSE_NS) -> list[Event]:
    first = one_life(1)
    second = later(one_life(2), first, pause_ns)
    deletion = told(
        "request_received", max(event.before_ns for event in first) + MS, code=215, topic=TOPIC, connection="admin"
    )
    return seen([*first, *([deletion] if deleted else []), *second])


@SEEN
def test_a_recreated_topic_is_valid(tmp_path: Path, seen: Seen) -> None:
    result = judged(tmp_path / "history", life_of(SOURCE, made_anew(seen)), SOURCE)

    assert (result.verdict, result.findings) == ("valid", [])
    assert result.gaps == []


@SEEN
@pytest.mark.parametrize("name", ["message_missing", "next_wrong", "legal_called_illegal", "end_too_low"])
def test_each_generation_of_a_queue_is_judged(tmp_path: Path, seen: Seen, name: str) -> None:
    first = one_life(1)
    second = Recording(later(one_life(2), first, PAUSE_NS), simulated_meta())
    FAULTS[name].apply(second)
    deletion = told("request_received", max(event.before_ns for event in first) + MS, code=215, topic=TOPIC)
    events = life_of(SOURCE, seen([*first, deletion, *second.events]))
    write(tmp_path / "history", events, meta_of(SOURCE))
    allowed = judge([tmp_path / "history"], engine="local", wake_ms=20)

    assert allowed.verdict == "invalid"
    assert len(violated(allowed)) == 1


@SEEN
def test_a_deletion_during_traffic_causes_no_violation(tmp_path: Path, seen: Seen) -> None:
    """The topic is created again at once. An answer near the deletion may belong to either queue generation."""
    result = judged(tmp_path / "history", life_of(SOURCE, made_anew(seen, pause_ns=2 * MS)), SOURCE)

    assert violated(result) == []


def test_an_unrecorded_deletion_is_reported(tmp_path: Path) -> None:
    """After an unseen deletion, offset 0 occurs twice. The queue may have begun again, so the verdict is unknown."""
    result = judged(tmp_path / "history", life_of(SOURCE, made_anew(outside, deleted=False)), SOURCE)

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert gap_kinds(result) == {"begun anew"}
    assert "its log may have begun anew" in result.gaps[0]["why"]


@pytest.mark.parametrize("survives", [False, True], ids=["last messages lost", "last messages kept"])
@pytest.mark.parametrize("untold", [1, 150])
@SEEN
def test_a_killed_broker_causes_no_violation(tmp_path: Path, seen: Seen, untold: int, survives: bool) -> None:
    first = one_life(1)
    recorded = seen(first)[:-untold]
    events = life_of("broker-a#1", recorded, is_whole=False) + life_of("broker-a#2", seen(restarted(first, survives)))
    result = judged(tmp_path / "history", events, "broker-a#1", "broker-a#2")

    assert (result.verdict, violated(result)) == ("unknown", [])
    assert "source end" in gap_kinds(result)


def restarted(first: list[Event], survives: bool) -> list[Event]:
    ends = {queue: sum(each.event == "append" and each.queue == queue for each in first) for queue in (0, 1)}
    if not survives:
        ends = {queue: end // 2 for queue, end in ends.items()}
    second = later(one_life(2), first, 500 * MS)
    shifted = []
    for event in second:
        end = ends[event.queue]
        fields: dict[str, object] = {
            name: getattr(event, name) + end
            for name in ("offset", "offset_next", "offset_max", "queue_offset", "visible_end")
            if getattr(event, name) >= 0
        }
        shifted.append(change(event, **fields, offsets=[offset + end for offset in event.offsets]))
    begun_ns = second[0].after_ns - MS // 2
    shown = [told("make_visible", begun_ns, topic=TOPIC, queue=queue, visible_end=end) for queue, end in ends.items()]
    return [*shown, *shifted]
