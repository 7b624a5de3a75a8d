"""Identifiers that come again while a history grows: noticed however late, and then as a judgement of the whole has it.

Leaves out what is made of one whose requests are at hand together (`test_names_again`).
"""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st
from model_tests.judge.one_queue import asked, told
from model_tests.judge.test_growing import grown, simulated, written
from msgspec.structs import replace

from longpoll_judge.columns.keys import request_keys
from longpoll_judge.read.schema import PLAIN_SCHEMA, fill
from longpoll_judge.run.growing import asked as remembering
from longpoll_judge.run.growing.asked import CAME_AGAIN, TOO_MANY, Asked
from longpoll_judge.run.job import judge
from longpoll_judge.testing.recording import Recording

NAMES = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["", "7-", "a", "0", "7-0", "\n", "\u00e9"]), st.integers(0, 12)),
    st.sampled_from(["a", "7-", "9" * 25, "007", "x" * 300, "7-1 "]),
)


def table_of(names: list[str], source: str = "s") -> pa.Table:
    """Requests with these identifiers, one after the other."""
    rows = [asked(at, name, source=source) | {"sequence": at} for at, name in enumerate(names)]
    return fill(pa.Table.from_pylist(rows, schema=PLAIN_SCHEMA))


@given(pieces=st.lists(st.lists(st.tuples(st.sampled_from("st"), NAMES), max_size=12), max_size=6))
def test_what_is_remembered_is_the_set_of_identifiers(pieces: list[list[tuple[str, str]]]) -> None:
    """Of each source, whatever their names are; one that comes again is known from then on, and told once."""
    known = Asked()
    seen: set[tuple[str, str]] = set()
    again: set[tuple[str, str]] = set()
    for piece in pieces:
        table = pa.concat_tables([table_of([name], source) for source, name in piece] or [table_of([])])
        before = set(again)
        for one in piece:
            again |= {one} & seen
            seen.add(one)
        assert known.add(table).get(CAME_AGAIN, 0) == len(again - before)
        kept = known.without(table)
        left = list(zip(kept["source"].to_pylist(), kept["request"].to_pylist(), strict=True))
        assert left == [one for one in piece if one not in again]
    steps = np.flatnonzero(known.text[1:] == known.text[:-1])
    assert (known.first <= known.last).all()
    assert (known.last[steps] + 1 < known.first[steps + 1]).all()


def test_numbers_in_a_row_are_one_span() -> None:
    """In whatever order they come, on any number of connections."""
    known, dice = Asked(), random.Random(1)
    names = [f"{connection}-{number}" for connection in range(3) for number in range(1, 500)]
    dice.shuffle(names)
    for start in range(0, len(names), 100):
        assert known.add(table_of(names[start : start + 100])) == {}

    assert sorted(zip(known.first.tolist(), known.last.tolist(), strict=True)) == [(1, 499)] * 3


def test_too_many_to_remember_are_a_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Told once; none is remembered any more, and what came again before stays left out."""
    monkeypatch.setattr(remembering, "SPANS_MAX", 3)
    known = Asked()
    told = [known.add(table_of(names)) for names in (["a1", "b1", "a1"], ["c1", "d1"], ["e1", "a1"])]

    assert told == [{CAME_AGAIN: 1}, {TOO_MANY: 3}, {}]
    assert (len(known.first), len(known.again)) == (0, 1)
    assert known.without(table_of(["a1", "c1"]))["request"].to_pylist() == ["c1"]


def test_of_one_that_came_again_the_log_stays() -> None:
    """What is left out are the request, its answers and what was done with it."""
    known, rows = Asked(), [asked(0), told(1), asked(5), asked(6, "other")]
    rows.append(told(2) | {"event": "message_acknowledged", "queue_offset": 1})
    table = fill(pa.Table.from_pylist([row | {"sequence": 0} for row in rows], schema=PLAIN_SCHEMA))
    known.add(table)

    assert known.without(table)["event"].to_pylist() == ["request_received", "message_acknowledged"]
    assert known.again.tolist() == request_keys(table, np.array([0])).tolist()


def came_again(recording: Recording, *, is_other: bool) -> Recording:
    """The history with its first pull's identifier for one of its last too, which is answered wrongly.

    `is_other`: that is a pull of another queue, else of the same.
    """
    pulls = [event for event in recording.events if event.event == "request_received" and event.code == 11]
    answered = {event.request for event in recording.events if event.event == "answer_sent"}
    first = pulls[0]
    last = [one.request for one in pulls if one.request in answered and (one.queue != first.queue) == is_other][-5]
    changed = [replace(event, request=first.request) if event.request == last else event for event in recording.events]
    at = max(at for at, event in enumerate(changed) if (event.request, event.event) == (first.request, "answer_sent"))
    changed[at] = replace(changed[at], offset_next=changed[at].offset_next + 1_000)
    return evolve(recording, events=changed)


@pytest.mark.parametrize("pieces", [2, 6, 12])
def test_of_one_that_comes_again_while_it_is_open_nothing_is_told(pieces: int, tmp_path: Path) -> None:
    """The first is let go of too, wherever the history is cut: its answers are, and it would look unanswered."""
    recording = simulated(3)
    pulls = [event.request for event in recording.events if event.event == "request_received" and event.code == 11]
    names = dict(zip(pulls[1::2], pulls[::2], strict=False))
    changed = [replace(event, request=names.get(event.request, event.request)) for event in recording.events]
    result, _is_whole, found, _growing = grown(
        written(evolve(recording, events=changed), tmp_path / "history"), pieces, 3
    )

    assert found == {}
    assert any(CAME_AGAIN in gap["why"] for gap in result.gaps)


@pytest.mark.parametrize(("is_other", "verdict"), [(False, "unknown"), (True, "invalid")])
@pytest.mark.parametrize("pieces", [2, 12])
def test_of_one_that_comes_again_long_after_nothing_is_told(
    *, pieces: int, is_other: bool, verdict: str, tmp_path: Path
) -> None:
    """Its answer may be the first one's, unless it names another queue, which the whole tells: the sum is unknown."""
    recording = came_again(simulated(3), is_other=is_other)
    whole = judge([written(recording, tmp_path / "history")], engine="local")
    result, is_whole, found, _growing = grown(tmp_path / "history", pieces, 3)

    assert whole.verdict == verdict
    assert (result.verdict, found, is_whole) == ("unknown", {}, False)
    assert any(CAME_AGAIN in gap["why"] for gap in result.gaps)
