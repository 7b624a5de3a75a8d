"""A policy's whole table: the bounds that were asked for, and every aspect after them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.survey import Survey, survey
from longpoll_spec.errors import UnknownPropertyError
from longpoll_spec.hazards import FACTS
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.testing.cases import quick_if

QUICK = ("rocketmq-4.9",)
"""Presets whose whole table is made in the quick tests; the pinned numbers hold the others to the facts."""


def _plainly(model: Model, judged: Sequence[Property], _asked: bool) -> Exploration:
    return explore(model, judged)


def _hastily(model: Model, judged: Sequence[Property], asked: bool) -> Exploration:
    return explore(model, judged, limit_states=50 if asked else None)


def _survey(name: str, *names: str, alone: bool = False) -> Survey:
    return survey(preset(name), named("tiny", preset(name)), _plainly, names=names, alone=alone)


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name in QUICK))
def test_the_table_is_whole(name: str) -> None:
    """Every property has one row, broken are those that the facts name, and all that is meant to be reached is."""
    found = _survey(name)
    rows = {row.verdict.name: row.verdict.verdict for row in found.rows}

    assert len(rows) == len(found.rows)
    assert {each for each, verdict in rows.items() if verdict == "violated"} == set(FACTS[name])
    assert set(rows.values()) <= {"violated", "holds", "reached"}
    assert [each.model.bounds.name for each in found.explorations] == ["tiny", *EXPLORATIONS, "timeout"]
    assert [bound.name for bound in found.response] == ["late", "woken"]


def test_a_named_property_is_looked_for_where_it_is_stated() -> None:
    """In the bounds that were asked for if they state it, and else in its aspect only."""
    base, aspect = _survey("rocketmq-lmq", "lost_by_hold"), _survey("rocketmq-lmq", "no_orphan")

    assert [each.model.bounds.name for each in base.explorations] == ["tiny"]
    assert [each.model.bounds.name for each in aspect.explorations] == ["tiny", "buckets"]
    assert [(row.verdict.name, row.verdict.verdict, row.bounds) for row in aspect.rows] == [
        ("no_orphan", "violated", "buckets")
    ]
    assert not aspect.response
    with pytest.raises(UnknownPropertyError, match="did you mean 'no_orphan'"):
        _survey("strict", "no_orphen")


def test_alone_is_alone() -> None:
    """Without the aspects there is one exploration, and a property of an aspect is not known."""
    assert len(_survey("strict", alone=True).explorations) == 1
    with pytest.raises(UnknownPropertyError):
        _survey("strict", "no_orphan", alone=True)


def test_an_exploration_that_ends_early_is_the_last() -> None:
    """What the first one left open is not covered up by what an aspect would say."""
    found = survey(preset("strict"), named("tiny", preset("strict")), _hastily, alone=False)

    assert len(found.explorations) == 1
    assert {row.verdict.verdict for row in found.rows if not row.verdict.by_construction} == {"unknown", "reached"}
    assert not found.response
