"""Who watched: each way in which a source does not begin or end as it must is a gap, told in its own sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
from model_tests.judge.second.compare import judge_it
from model_tests.judge.second.edges import history, pull
from model_tests.judge.second.smallest import acknowledged, watched

from longpoll_judge.evidence.attendance import (
    Attendance,
    Seen,
    add,
    answers_on_stop,
    are_own,
    attendance_gaps,
    field_gaps,
    keeps_role,
    stops_silently,
)
from longpoll_judge.read.source import History
from longpoll_spec.history import Law


def found(*, laws: dict[str, tuple[str, Law]] | None = None, declared: frozenset[str] = frozenset({"b"})) -> History:
    """What the meta file of one source `b` says."""
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
    """With its first event and its last; what is otherwise is a gap of its kind."""
    gaps = attendance_gaps(Attendance({"b": Seen(starts, stops, last=5)}), found(), ())

    assert [text in gap.why for text, gap in zip(said, gaps, strict=True)] == [True] * len(said)
    assert [gap.kind for gap in gaps] == [
        "source start" if "start" in text or "begin" in text else "source end" for text in said
    ]
    assert all(gap.why.startswith("source 'b' ") for gap in gaps)


def test_a_source_that_declares_its_law_needs_no_ends() -> None:
    """It tells states instead; another one beside it does need them."""
    declared = found(laws={"b": ("strict", Law(requests=1))})
    everyone = Attendance({"b": Seen(last=5), "c": Seen(last=5)})

    assert [gap.where for gap in attendance_gaps(everyone, declared, ())] == ["c", "c"]
    lacks = Attendance({name: Seen(missing={"hold without request": 2}) for name in ("b", "c")})
    assert [gap.why for gap in field_gaps(lacks, declared.laws)] == ["2 events: hold without request"]
    assert [gap.why for gap in field_gaps(lacks, ())] == ["4 events: hold without request"]


def test_who_is_declared_and_silent_is_missed() -> None:
    """And so is the meaning of a policy that nobody knows."""
    gaps = attendance_gaps(Attendance({"b": Seen([0], [5], 5)}), found(declared=frozenset({"b", "c"})), ("strict", "x"))

    assert [(gap.kind, gap.where) for gap in gaps] == [("source silent", "c"), ("unknown policy", "x")]


def test_slices_are_put_together() -> None:
    """What one shows of a source that another shows as well is added, and the highest number counts."""
    first = Attendance({"b": Seen([0], [], 5, 1, 2, {"x": 1})}, [("b", "T", 1, 2)], 1, 2, 3, 4, 5, 6)
    second = Attendance({"b": Seen([], [7], 7, 1, 2, {"x": 1, "y": 1}), "c": Seen([0])}, [], 1, 2, 3, 2, 9, 6)
    add(first, second)

    assert first.sources == {"b": Seen([0], [7], 7, 2, 4, {"x": 2, "y": 1}), "c": Seen([0])}
    assert (first.deletions, first.sends, first.acknowledged, first.appended) == ([("b", "T", 1, 2)], 2, 4, 6)
    assert (first.min_least, first.min_most, first.moved) == (2, 9, 12)


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
def test_what_is_known_of_policies(policies: tuple[str, ...], answers: tuple[bool, ...]) -> None:
    """All that are named must be so, and one must be named."""
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
    """Whatever else there is in it is right."""
    told = watched(10, 900, acknowledged(50, 0), pull(100, "1-1", 0, 0, end=1))
    judged = judge_it(history([one for one in told if one["event"] != dropped]), tmp_path)

    assert judged.verdict == ("unknown" if dropped else "valid")
    assert said in " ".join(judged.reasons)
