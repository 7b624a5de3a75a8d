"""The smallest histories on which the two judges once differed. Now the judges agree on each of them.

Each line of `second/differences.txt` has the common result (a verdict, a clause, or `any`) and then a small history.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from model_tests.judge.second.compare import judge_it, shrunk
from model_tests.judge.second.faults import apply
from model_tests.judge.second.judge import weigh
from model_tests.judge.second.observer import History, Sight, observe
from model_tests.judge.second.parts import Plan
from model_tests.support.judge.stories import Story, stories

from longpoll_judge.read.schema import event_dict

BOTH: Final = list(stories(Path(__file__).parent / "second" / "differences.txt"))
DECLARED: Final[dict[str, dict[str, Any] | None]] = {
    "nothing": None,
    "a width below 0": {"uncertainty_ns": -1},
    "a width of 2^61": {"uncertainty_ns": 1 << 61},
}
KNOWN: Final = [one for one in BOTH if one.title.endswith("by a clock of which is declared: known")]


def history_of(one: Story) -> History:
    events = (event_dict(msgspec.structs.asdict(event)) for event in one.told())
    return History(msgspec.to_builtins(one.meta), tuple(events))


def agree(history: History, says: str, directory: Path) -> None:
    """Assert the same result from both judges; the second judge may report more clauses for an answer."""
    first, second = judge_it(history, directory), weigh(history.meta, history.events)
    assert first.violated <= second.violated, (first, second)
    assert bool(first.violated) == bool(second.violated), (first, second)
    if says == "any":
        return
    assert first.verdict == second.verdict, (first, second)
    if says in {"valid", "unknown", "invalid"}:
        assert says == first.verdict, first
        assert bool(first.violated) == (says == "invalid"), first
    else:
        assert first.violated == {says}, first


@pytest.mark.parametrize("one", [pytest.param(one, id=f"{number} {one.title}") for number, one in enumerate(BOTH)])
def test_both_judges_give_the_same_verdict(one: Story, tmp_path: Path) -> None:
    agree(history_of(one), one.text.partition(": ")[0], tmp_path)


@pytest.mark.parametrize("declares", DECLARED)
@pytest.mark.parametrize("one", [pytest.param(one, id=one.title.partition(" ")[0]) for one in KNOWN])
def test_a_clock_that_is_not_declared_well_measures_nothing(one: Story, declares: str, tmp_path: Path) -> None:
    """Without a validly declared clock, only a second answer to a request is reported as a violation."""
    history, declaration = history_of(one), DECLARED[declares]
    (source,) = history.meta["sources"]
    history.meta["sources"] = [] if declaration is None else [source | declaration]
    agree(history, "invalid" if one.title.startswith("Twice") else "unknown", tmp_path)


def test_a_history_is_shrunk_to_the_needed_events() -> None:
    history = observe(Plan(8, 200, jumps=0.5), Sight())
    places = [place for place, one in enumerate(history.events) if len(one.get("offsets", [])) > 1]
    changed = history.with_events(apply(list(history.events), places[0], "set offsets -1", random.Random(0)))
    small = shrunk(changed, lambda one: "pull.found.ordered" in weigh(one.meta, one.events).clauses)

    assert "pull.found.ordered" in weigh(small.meta, small.events).clauses
    assert [event["event"] for event in small.events] == ["request_received", "answer_sent"]
