"""What the smallest histories are that both judges weigh, and what both say of them.

Leaves out the events of which they are made (`edges`).
"""

from __future__ import annotations

from pathlib import Path

from model_tests.judge.second.compare import judge_it
from model_tests.judge.second.edges import MONOTONIC, history
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History
from model_tests.judge.second.parts import Told


def watched(begin: float, end: float, *events: list[Told]) -> list[Told]:
    """All that one source tells, with its beginning and its end."""
    inner = [one for several in events for one in several]
    return [{"at": begin, "event": "source_started"}, *inner, {"at": end, "event": "source_stopped"}]


def shown(at: float, end: int) -> list[Told]:
    """A message was appended and made visible."""
    return [
        {"at": at, "event": "append", "topic": "T", "queue": 0, "queue_offset": end - 1},
        {"at": at, "event": "make_visible", "topic": "T", "queue": 0, "visible_end": end},
    ]


def acknowledged(at: float, offset: int, request: str = "") -> list[Told]:
    """A message was acknowledged; on which connection is not told."""
    place = {"topic": "T", "queue": 0, "queue_offset": offset}
    return [{"at": at, "event": "message_acknowledged", **place, **({"request": request} if request else {})}]


def strictly(*sources: list[Told], clock: str = MONOTONIC, policy: str = "strict") -> History:
    """A history of a broker that keeps to this policy."""
    return history(*sources, clock=clock, policy=policy)


def agreed(one: History, directory: Path) -> str:
    """What both judges say."""
    first, second = judge_it(one, directory), weigh(one.meta, one.events)
    assert first.verdict == second.verdict, (first, second)
    assert first.violated <= second.violated, (first, second)
    return first.verdict
