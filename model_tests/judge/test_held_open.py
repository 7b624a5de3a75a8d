"""Which pulls stay at hand while a history grows, so that it is known how many are held at once; one pull at a time.

And the bound on how many those are. Moments are numbers of milliseconds. Leaves out what is counted
(`test_growing_holds`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa
import pytest

from longpoll_judge.read.schema import event_dicts, fill
from longpoll_judge.rules.steps import MS
from longpoll_judge.run.growing import held
from longpoll_judge.run.growing.held import Held
from longpoll_judge.testing.generate import BROKER, SOURCE

CLOSED_MS: Final = held.CLOSED_NS // MS
OPEN_MS: Final = held.OPEN_NS // MS
HELD: Final = (("request_received", 1), ("hold", 2))
STRANGE: Final = "a pull that is held, and whose request is not at hand"
LONG: Final = "a pull that is held for more than ten minutes"
FAR_MS: Final = 10 * OPEN_MS


def left(
    settled_ms: int, *told: tuple[str, int], closed: str = "c", own: str = "c"
) -> tuple[list[str], dict[str, int]]:
    """What is at hand after this moment of what was told of one pull, and what is said to be counted at the end only.

    All is told on its `own` connection, but closes: one of each of the connections that are `closed`, a letter each.
    """
    events: list[dict[str, Any]] = []
    for name, at_ms in told:
        moment = {"event": name, "after_ns": at_ms * MS, "before_ns": at_ms * MS}
        if name == "connection_closed":
            events += [{**moment, "connection": connection} for connection in closed or ("",)]
        else:
            events.append({**moment, "connection": own, "request": "r"})
    place = {"source": SOURCE, "broker": BROKER}
    table = fill(pa.Table.from_pylist([{**one, **place, "sequence": number} for number, one in enumerate(events)]))
    one = Held(events=table)
    doubts = one._forget(held._Pulls.of(one.events), settled_ms * MS)
    return [event["event"] for event in event_dicts(fill(one.events))], doubts


@pytest.mark.parametrize(
    ("settled_ms", "closed", "stays", "close_stays"),
    [
        (9, "c", True, True),
        (9 + CLOSED_MS, "c", True, True),
        (10 + CLOSED_MS, "c", False, False),
        (10 + CLOSED_MS, "abcdef", False, False),
        (10 + CLOSED_MS, "abde", True, False),
    ],
)
def test_a_pull_goes_a_while_after_its_connection(settled_ms: int, closed: str, stays: bool, close_stays: bool) -> None:
    """What was told of it while it was closed may still come; a close of another connection says nothing."""
    kinds, doubts = left(settled_ms, *HELD, ("connection_closed", 9), closed=closed)

    assert ("hold" in kinds, "request_received" in kinds, "connection_closed" in kinds) == (stays, stays, close_stays)
    assert not doubts


def test_a_connection_without_a_name_is_none() -> None:
    """So its close is that of no pull."""
    assert left(10 + CLOSED_MS, *HELD, ("connection_closed", 9), closed="", own="")[0] == ["request_received", "hold"]


@pytest.mark.parametrize(("name", "at_ms", "stays"), [("keep", 9, False), ("keep", 10, True), ("recheck", 10, False)])
def test_a_pull_that_was_held_again_on_a_connection_of_that_name_stays(name: str, at_ms: int, stays: bool) -> None:
    """After the close; names come again."""
    kinds, doubts = left(20 + CLOSED_MS, *HELD, ("connection_closed", 9), (name, at_ms))

    assert kinds == (["request_received", "hold", name] if stays else [])
    assert not doubts


def test_a_pull_stays_while_its_last_event_is_not_settled() -> None:
    """More of it may come, though its connection was closed long before."""
    kinds, _doubts = left(10 + CLOSED_MS, *HELD, ("connection_closed", 9), ("recheck", 10 + CLOSED_MS))

    assert kinds == ["request_received", "hold", "recheck"]


@pytest.mark.parametrize(
    ("told", "settled_ms", "kinds", "doubts"),
    [
        ((*HELD, ("expire", 3), ("answer_sent", 4)), 4, 4, {}),
        ((*HELD, ("expire", 3), ("answer_sent", 4)), 5, 0, {}),
        ((*HELD, ("expire", 3)), 5, 3, {}),
        (((*HELD, ("answer_sent", 4), ("keep", 5))), 6, 4, {}),
        (HELD, OPEN_MS + 2, 2, {}),
        (HELD, OPEN_MS + 3, 0, {LONG: 1}),
        ((("request_received", 1),), OPEN_MS + 2, 0, {}),
        ((("expire", 2),), 3, 1, {}),
        ((("hold", 2),), 2, 1, {}),
        ((("hold", 2),), 3, 0, {STRANGE: 1}),
        ((("hold", 2),), FAR_MS, 0, {STRANGE: 1}),
    ],
)
def test_a_pull_goes_when_nothing_can_matter_that_may_come_yet(
    told: tuple[tuple[str, int], ...], settled_ms: int, kinds: int, doubts: dict[str, int]
) -> None:
    """It was answered and is not held; or nothing was heard of it for long, or its request is not there: that is said.

    And not one nanosecond before that is settled.
    """
    found, said = left(settled_ms, *told)

    assert len(found) == kinds
    assert said == doubts


def test_too_many_are_let_go_and_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more than there may be."""
    monkeypatch.setattr(held, "EVENTS_MAX", 2)
    assert left(2, *HELD) == (["request_received", "hold"], {})
    kinds, doubts = left(2, *HELD, ("recheck", 3))
    assert not kinds
    assert list(doubts) == ["a limit that a source promises, with too many pulls open to count"]


END_MS: Final = 1_000
Told = tuple[str, str, int, int]


@pytest.mark.parametrize(
    ("told", "most"),
    [
        ([("a", "hold", 1, 2)], 1),
        ([("a", "hold", 1, 2), ("b", "hold", END_MS - 2, END_MS - 1)], 2),
        ([("a", "hold", 1, 2), ("b", "hold", END_MS, END_MS)], 1),
        ([("a", "hold", 1, 2), ("a", "expire", 5, 9), ("b", "hold", 3, 4)], 2),
        ([("a", "hold", 1, 2), ("a", "expire", 5, 9), ("b", "hold", 4, 5)], 1),
        ([("a", "hold", 1, 2), ("a", "expire", 5, 5), ("a", "answer_sent", 8, 8), ("b", "hold", 6, 6)], 1),
        ([("a", "hold", 1, 2), ("a", "take", 5, 5), ("a", "keep", 7, 7), ("b", "hold", 9, 9)], 2),
        ([("b", "hold", 9, 9), ("a", "take", 5, 5), ("a", "hold", 1, 2)], 1),
        ([("a", "hold", 5, 5), ("a", "expire", 5, 5), ("b", "hold", 5, 5)], 1),
    ],
)
def test_no_more_than_these_are_held_at_once(told: list[Told], most: int) -> None:
    """From the end of what puts a pull there to the beginning of what takes it out; to the end if nothing does."""
    events = [
        {"event": name, "after_ns": first_ms * MS, "before_ns": last_ms * MS, "sequence": number, "request": request}
        | {"source": SOURCE, "broker": BROKER}
        for number, (request, name, first_ms, last_ms) in enumerate(told)
    ]
    pulls = held._Pulls.of(fill(pa.Table.from_pylist(events)))

    assert pulls.most(np.ones(len(pulls.has_request), dtype=np.bool_), END_MS * MS) == most
