"""Mutants of the specification's text, tried on the proofs: none stands where exploring breaks the law."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

import attrs
import pytest
from model_tests.proofs.text_mutants import TextMutant, drawn
from model_tests.support.spec.cases import quick_if

from longpoll_spec.bounds import EXPLORATIONS, Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.configurations import WORLDS, features_of, questions_of, worlds_of
from longpoll_spec.engines.smt.proof import prove_model
from longpoll_spec.policy import STRICT
from longpoll_spec.specification import properties_of, specification_of

MUTANTS: Final[Mapping[str, TextMutant]] = {each.name: each for each in drawn()}
LIMIT_STATES: Final = 20_000
"""Mutants break properties early; if none breaks, the proofs are not checked."""
KNOWN: Final = {
    "State.fits: `(request.offset < self.visible_end)` for `self.has_more(request)`": "no_lost_wakeup",
    "next_pull: without parentheses `request.at(queue) & (request.wants.is_(wish.index) if state.filters else TRUE)`": (
        "answer_is_right"
    ),
    "State.end_to_show: `self.queues[0].log_end` for `queue.log_end`": "visible_is_monotone",
}
"""Mutants of `else` branches with several queues, which no configuration without the other features used to show."""


@pytest.mark.parametrize("name", quick_if(KNOWN, lambda name: name.startswith("next_pull")))
def test_an_else_branch_with_several_queues_is_in_the_bare_world(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The proof for two requests falls, and so does the one for any number, which includes it."""
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.function, "__code__", mutant.code)
    model = specification_of(STRICT, attrs.evolve(WORLDS["bare"], requests=2))

    assert prove_model(model, names=[KNOWN[name]], depth_max=0).whole == "unknown"


@pytest.mark.long
@pytest.mark.parametrize("name", MUTANTS)
def test_no_proof_stands_where_exploring_breaks_the_law(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A property that exploring breaks under a feature's bounds is not proved for two requests in every world."""
    mutant = MUTANTS[name]
    worlds = worlds_of(questions_of(partial(specification_of, STRICT)))
    monkeypatch.setattr(mutant.function, "__code__", mutant.code)
    for bounds in EXPLORATIONS.values():
        broken = _broken(bounds)
        if broken:
            near = sorted(worlds.values(), key=lambda world: len(features_of(world) ^ features_of(bounds)))
            proofs = (
                prove_model(specification_of(STRICT, attrs.evolve(each, requests=2)), depth_max=0) for each in near
            )
            assert any(proof.whole != "proved" for proof in proofs), f"{broken} ({bounds.name})"
            return


def _broken(bounds: Bounds) -> list[str]:
    model = specification_of(STRICT, bounds)
    always = [item for item in properties_of(model) if item.kind == "always"]
    found = explore(model, always, limit_states=LIMIT_STATES)
    return [each.name for each in found.verdicts if each.verdict == "violated"]
