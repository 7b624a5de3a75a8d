"""Where an interval, a kind or a name decides: a history on each side, and both judges say the same of each.

Each is the smallest that tells a rule from the one that a slip of the pen makes of it: the other end of an interval,
another observer, `or` for `and`, a condition left out. The judge sees all of them as one history of many brokers, the
second judge each by itself. Leaves out gaps, which are of a whole history (`test_second_smallest`).
"""

from __future__ import annotations

from collections import Counter
from typing import Final

import pytest
from model_tests.judge.second.edges import Edge
from model_tests.judge.second.edges_offsets import OFFSETS
from model_tests.judge.second.edges_queues import QUEUES
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History, write

from longpoll_judge.job import judge

EDGES: Final[dict[str, Edge]] = {**OFFSETS, **QUEUES}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Counter[str]]:
    """By history how often the judge finds each clause broken, with a `?` where only perhaps."""
    parts = [edge.history(name) for name, edge in EDGES.items()]
    sources = [source for part in parts for source in part.meta["sources"]]
    whole = History({**parts[0].meta, "sources": sources}, tuple(event for part in parts for event in part.events))
    directory = tmp_path_factory.mktemp("edges") / "history"
    write(whole, directory)
    found: dict[str, Counter[str]] = {name: Counter() for name in EDGES}
    for finding in judge([directory], engine="local").findings:
        name = finding.evidence[0]["source"].rpartition("#")[0]
        found[name].update(one.clause + "?" * (one.verdict == "unknown") for one in finding.told())
    return found


@pytest.mark.parametrize("name", EDGES)
def test_each_is_judged_by_what_is_certain(name: str, said: dict[str, Counter[str]]) -> None:
    """The judge accuses where no moment within the intervals excuses, and only there; so does the second one."""
    edge = EDGES[name]
    assert said[name] == ({edge.says: 1} if edge.says else {})
    history = edge.history(name)
    second = weigh(history.meta, history.events)
    assert second.violated >= {edge.says for _ in said[name] if not edge.says.endswith("?")}
    assert edge.says or not second.violated
