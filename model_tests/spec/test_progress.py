"""Every fair run answers every pull; with less than fairness, or with a fault in the law, some run leaves one open."""

from __future__ import annotations

from itertools import product
from typing import Final

import attrs
import pytest

from longpoll_spec.bounds import TIMEOUTS, Bounds, named
from longpoll_spec.engines.python.fair import STILL, Graph, _fair_parts, unanswered
from longpoll_spec.law import Fairness, fairness_of, law_of
from longpoll_spec.policy import preset
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.slips import forgetting, slipped, without

OURS: Final = ("strict", "strict-clone")
CUT: Final = frozenset({"truncate"})
TWO_TAGS: Final = Bounds("two-tags", requests=1, messages=1, tags=2, aspects=CUT)
TWO_QUEUES: Final = Bounds("two-queues", requests=1, messages=1, queues=2, aspects=CUT)
WORLDS: Final[dict[str, Bounds]] = {
    each.name: each
    for each in (
        named("tiny", preset("rocketmq-4.9")),
        named("truncate", preset("strict")),
        named("crash", preset("strict")),
        TIMEOUTS["timeout"],
        TWO_TAGS,
        TWO_QUEUES,
    )
}
QUICK: Final = {("strict", "two-tags"), ("strict-clone", "two-tags")}


@pytest.mark.parametrize("case", quick_if(product(OURS, WORLDS), lambda case: case in QUICK), ids="-".join)
def test_our_policies_answer_every_pull(case: tuple[str, str]) -> None:
    """No fair run of ours leaves a pull open for ever, whatever is appended, cut back or lost."""
    policy, world = case

    assert unanswered(law_of(preset(policy), WORLDS[world])) is None


def test_nothing_need_happen_without_fairness() -> None:
    """Where nothing is assumed a run may stop, and a pull is never answered though every deadline is kept."""
    found = unanswered(law_of(preset("strict"), WORLDS["truncate"]), Fairness((), time_passes=False))

    assert found is not None
    assert found.steps == ()


def test_weak_fairness_is_enough_for_one_pull_of_one_queue_without_tags() -> None:
    """Each urgent action and tick: then a queue that is cut back again and again keeps nobody waiting."""
    model = law_of(preset("strict"), attrs.evolve(WORLDS["truncate"], requests=1))

    assert unanswered(model, attrs.evolve(fairness_of(model), time_passes=False)) is None


@pytest.mark.parametrize(
    "world", [TWO_TAGS, TWO_QUEUES, *quick_if([WORLDS["truncate"]], lambda _: False)], ids=lambda world: world.name
)
def test_weak_fairness_is_not_enough_among_several(world: Bounds) -> None:
    """Messages for others can be appended, shown and cut back so densely that time never passes."""
    model = law_of(preset("strict"), world)
    found = unanswered(model, attrs.evolve(fairness_of(model), time_passes=False))

    assert found is not None
    assert {"append", "make_visible", "truncate"} <= {label.partition("(")[0] for label in found.steps}
    assert "tick" not in found.steps


def test_rocketmq_leaves_dropped_pulls_open() -> None:
    """What 4.9 drops nobody answers, however fair the run."""
    assert unanswered(law_of(preset("rocketmq-4.9"), WORLDS["tiny"])) is not None


PLAIN: Final = Bounds("plain", requests=1, messages=1)


def test_a_pull_that_is_held_for_ever_is_seen() -> None:
    """Planted: a tick that spares deadlines, and an executor that never runs."""
    strict = preset("strict")
    slips = [
        slipped(strict, PLAIN, "tick", forgetting("deadline")),
        without(strict, PLAIN, "run"),
    ]

    assert unanswered(law_of(strict, PLAIN)) is None
    assert [unanswered(slip) is not None for slip in slips] == [True, True]


@pytest.mark.parametrize(("leads_to", "is_fair"), [(2, False), (1, True)])
def test_a_step_that_leaves_a_part_is_not_taken_in_it(leads_to: int, is_fair: bool) -> None:
    """Where time changes nothing any more, what could always come about must come about there, or the run is unfair."""
    graph: Graph = {(1,): [(STILL, (1,)), ("a", (leads_to,))], (2,): []}
    parts = list(_fair_parts(graph, {(1,)}, Fairness(weak=("a",), time_passes=True)))
    assert parts == ([{(1,)}] if is_fair else [])
