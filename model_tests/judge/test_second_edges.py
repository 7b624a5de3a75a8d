"""Where an interval, a kind or a name decides: a history on each side, and both judges say the same of each.

Each is the smallest that tells a rule from the one that a slip of the pen makes of it: the other end of an interval,
another observer, `or` for `and`, a condition left out. The judge sees all of them as one history of many brokers, the
second judge each by itself. Leaves out gaps, which are of a whole history (`test_second_smallest`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from model_tests.judge.second.edges import Edge
from model_tests.judge.second.edges_offsets import OFFSETS
from model_tests.judge.second.edges_queues import QUEUES
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History, write

from longpoll_judge.contract.result import Finding
from longpoll_judge.run.job import judge

EDGES: Final[dict[str, Edge]] = {**OFFSETS, **QUEUES}


def findings_of(metas: Iterable[Mapping[str, Any]], events: Iterable[dict[str, Any]], directory: Path) -> list[Finding]:
    """What the judge finds in histories of different sources, taken together."""
    meta = {"format_version": 1, "policy": "", "sources": [source for one in metas for source in one["sources"]]}
    write(History(meta, tuple(events)), directory)
    return judge([directory], engine="local").findings


def name_of(finding: Finding) -> str:
    """The history that it is of."""
    name: str = finding.evidence[0]["source"].rpartition("#")[0]
    return name


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Finding]:
    """What the judge finds in all of the histories."""
    parts = [edge.history(name) for name, edge in EDGES.items()]
    events = (event for part in parts for event in part.events)
    return findings_of((part.meta for part in parts), events, tmp_path_factory.mktemp("edges") / "history")


@pytest.mark.parametrize("name", EDGES)
def test_each_is_judged_by_what_is_certain(name: str, found: list[Finding]) -> None:
    """The judge accuses where no moment within the intervals excuses, and only there; so does the second one."""
    edge = EDGES[name]
    told = [one for finding in found if name_of(finding) == name for one in finding.told()]
    assert Counter(one.clause + "?" * (one.verdict == "unknown") for one in told) == Counter(edge.says.split())
    history = edge.history(name)
    second = weigh(history.meta, history.events)
    assert second.violated >= {one.clause for one in told if one.verdict == "violated"}
    assert edge.says or not second.violated


@pytest.mark.parametrize("is_excerpt", [True, False], ids=["of a part", "of all"])
def test_the_evidence_of_each_convicts_by_itself(is_excerpt: bool, found: list[Finding], tmp_path: Path) -> None:
    """What a finding shows is enough to find it again; where events are left out, those that they are of are asked."""
    certain = [
        finding
        for finding in found
        if finding.verdict == "violated"
        and is_excerpt == any(event["event"] == "omitted" for event in finding.evidence)
    ]
    events = (event for finding in certain for event in finding.evidence)
    again = findings_of((finding.meta for finding in certain), events, tmp_path / "history")
    told = {(name_of(one), one.property) for one in again if one.verdict == "violated"}
    assert {(name_of(one), one.property) for one in certain} <= told
    assert len(certain) > 10


BESIDE: Final = {
    "woken late, and unread later": "blocked",
    "never answered, and closed late": "connection_closed",
    "never answered, and something lost later": "lost",
    "nothing new, its topic deleted later": "request_received",
    "nothing new, all topics deleted later": "request_received",
    "nothing new, its topic deleted later elsewhere": "request_received",
}


@pytest.mark.parametrize("name", BESIDE)
def test_what_might_excuse_stands_beside_the_evidence(name: str, found: list[Finding]) -> None:
    """Whoever reads it sees that it does not; and nothing of other brokers is there."""
    (finding,) = (each for each in found if name_of(each) == name)
    beside = [event for event in finding.evidence if event["event"] == BESIDE[name]]
    assert any(event.get("code", 215) == 215 for event in beside)
    sources = {event["source"] for event in finding.evidence}
    assert {source.rpartition("#")[0] for source in sources} == {name}
    for event in ("source_started", "source_stopped"):
        assert {each["source"] for each in finding.evidence if each["event"] == event} == sources
    if beside[0]["event"] == "request_received":
        assert [one["source"] for one in beside if one["code"] == 215] == [max(sources)]


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("told of more than is visible", 1),
        ("told of more than is perhaps visible", 2),
        ("given what is visible later", 1),
        ("held past the end", 0),
    ],
)
def test_the_end_that_is_shown_is_the_highest_that_there_may_have_been(
    name: str, end: int, found: list[Finding]
) -> None:
    """By the last moment of the read; or the first one after it, and the message with which the log begins."""
    (finding,) = (each for each in found if name_of(each) == name)
    assert [event["visible_end"] for event in finding.evidence if event["event"] == "make_visible"] == [end]
    assert [event["queue_offset"] for event in finding.evidence if event["event"] == "append"] == [0]
