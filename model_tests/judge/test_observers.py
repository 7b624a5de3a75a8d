"""Each wrong begin or end of a source is a gap with its own sentence."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pytest
from model_tests.judge.second.compare import judge_it
from model_tests.judge.second.smallest import acknowledged, pull, strictly, watched

from longpoll_judge.columns.lookup import NEVER
from longpoll_judge.evidence.observers import (
    Observers,
    Seen,
    answers_on_stop,
    are_own,
    attend,
    field_gaps,
    keeps_role,
    observer_gaps,
    stops_silently,
)
from longpoll_judge.evidence.source_survey import Run, SourceSurvey, merged
from longpoll_judge.evidence.survey import Survey
from longpoll_judge.read.schema import fill
from longpoll_judge.read.source import History
from longpoll_spec.history import Law


def found(*, laws: dict[str, tuple[str, Law]] | None = None, declared: frozenset[str] = frozenset({"b"})) -> History:
    return History([], [], declared, frozenset(), frozenset(), laws or {}, {}, {}, {})


@pytest.mark.parametrize(
    ("starts", "stops", "said"),
    [
        ([0], [5], []),
        ([], [5], ["does not begin with source_started"]),
        ([0, 3], [5], ["has source_started 2 times"]),
        ([2], [5], ["has source_started with sequence 2, not as its first event"]),
        ([0], [], ["breaks off without source_stopped"]),
        ([0], [4, 5], ["has source_stopped 2 times"]),
        ([0], [4], ["has source_stopped with sequence 4, and events up to 5"]),
        ([], [], ["does not begin with source_started", "breaks off without source_stopped"]),
    ],
)
def test_a_source_begins_once_and_ends_once(starts: list[int], stops: list[int], said: list[str]) -> None:
    gaps = observer_gaps(Observers({"b": Seen(starts, stops, last=5)}), found(), ())

    assert [text in gap.why for text, gap in zip(said, gaps, strict=True)] == [True] * len(said)
    assert [gap.kind for gap in gaps] == [
        "source start" if "start" in text or "begin" in text else "source end" for text in said
    ]
    assert all(gap.why.startswith("source 'b' ") for gap in gaps)


def attended(*events: Mapping[str, object]) -> Observers:
    moments = [{"after_ns": number, "before_ns": number, "sequence": number} for number in range(len(events))]
    columns = {name: None for event in events for name in event}
    rows = [columns | moment | dict(event) for moment, event in zip(moments, events, strict=True)]
    return attend(fill(pa.Table.from_pylist(rows)), {})


def test_each_source_has_its_own_counts() -> None:
    kinds = ("source_started", "request_received", "append", "make_visible", "append", "message_acknowledged")
    told = attended(
        *({"event": kind, "source": source} for source in "bc" for kind in kinds[: 6 if source == "b" else 3])
    )

    assert {name: (seen.inside, seen.requests, seen.last) for name, seen in told.sources.items()} == {
        "b": (3, 1, 5),
        "c": (1, 1, 8),
    }
    assert (told.appended, told.moved, told.acknowledged) == (3, 1, 1)
    assert [seen.starts for seen in told.sources.values()] == [[0], [6]]


def test_answers_without_a_minimum_do_not_count() -> None:
    answers = [{"event": "answer_sent", "source": "b", "offset_min": told} for told in (-1, 7, 3, 5)]
    some, none = attended(*answers), attended(*answers[:1])

    assert (some.min_least, some.min_most) == (3, 7)
    assert (none.min_least, none.min_most) == (NEVER, -1)


def test_a_source_with_a_specification_needs_no_start_and_stop() -> None:
    declared = found(laws={"b": ("strict", Law(requests=1))})
    everyone = Observers({"b": Seen(last=5), "c": Seen(last=5)})

    assert [gap.where for gap in observer_gaps(everyone, declared, ())] == ["c", "c"]
    lacks = Observers({name: Seen(missing={"hold without request": 2}) for name in ("b", "c")})
    assert [gap.why for gap in field_gaps(lacks, declared.laws)] == ["2 events: hold without request"]
    assert [gap.why for gap in field_gaps(lacks, ())] == ["4 events: hold without request"]


def test_a_declared_source_without_events_is_a_gap() -> None:
    gaps = observer_gaps(Observers({"b": Seen([0], [5], 5)}), found(declared=frozenset({"b", "c"})), ("strict", "x"))

    assert [(gap.kind, gap.where) for gap in gaps] == [("source silent", "c"), ("unknown policy", "x")]


def test_surveys_of_splits_are_merged() -> None:
    first = Observers({"b": Seen([0], [], 5, 1, 2, {"x": 1})}, 1, 2, 3, 4, 5, 6, 7)
    second = Observers({"b": Seen([], [7], 7, 1, 2, {"x": 1, "y": 1}), "c": Seen([0])}, 1, 2, 3, 2, 9, 6, 8)
    both = merged([first, second])

    assert both.sources == {"b": Seen([0], [7], 7, 2, 4, {"x": 2, "y": 1}), "c": Seen([0])}
    assert (both.sends, both.acknowledged, both.appended) == (2, 4, 6)
    assert (both.identified, both.min_least, both.min_most, both.moved) == (15, 2, 9, 12)
    runs, others = [Run(0, 3)], [Run(5, 9)]
    one = SourceSurvey(runs, 10, 20, None, disorder_ns=4, brokers={"a"}, is_inverted=True)
    other = SourceSurvey(others, 5, 15, 15, disorder_ns=3, brokers={"b"})
    together = SourceSurvey(runs + others, 5, 20, 15, disorder_ns=4, brokers={"a", "b"}, is_inverted=True)
    assert merged([one, other]) == together
    assert merged([Survey(removed={"q": 3, "r": 1}), Survey(removed={"q": 2})]).removed == {"q": 3, "r": 1}


@pytest.mark.parametrize(
    ("policies", "answers"),
    [
        ((), (False, False, False, False)),
        (("strict",), (True, False, False, True)),
        (("strict-clone+recheck_after_keep=false",), (True, False, False, True)),
        (("rocketmq-4.9",), (False, True, True, False)),
        (("strict", "rocketmq-4.9"), (False, False, False, False)),
        (("strict", "x"), (False, False, False, False)),
    ],
)
def test_a_policy_applies_if_all_sources_are_inside(policies: tuple[str, ...], answers: tuple[bool, ...]) -> None:
    asked = (are_own, stops_silently, keeps_role, answers_on_stop)

    assert tuple(question(policies) for question in asked) == answers


@pytest.mark.parametrize(
    ("dropped", "said"),
    [
        (None, ""),
        ("source_started", "does not begin with source_started"),
        ("source_stopped", "breaks off without source_stopped"),
    ],
)
def test_a_record_without_an_end_is_not_valid(dropped: str | None, said: str, tmp_path: Path) -> None:
    told = watched(10, 900, acknowledged(50, 0), pull(100, "1-1", 0, 0, end=1))
    judged = judge_it(strictly([one for one in told if one["event"] != dropped], policy=""), tmp_path)

    assert judged.verdict == ("unknown" if dropped else "valid")
    assert said in " ".join(judged.reasons)
