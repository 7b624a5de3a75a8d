"""Checks whether a proof still holds with a mutant, by asking the solver the changed questions again.

The original is proved in each scope from all of its candidates at once. A mutant changes a few actions, so only
questions about these can change. A question that fails with all candidates assumed also fails with fewer, so its proof
is lost, and the other questions can be skipped. If only statements of the strengthening fail, the induction is
repeated, because the properties may not need them.

A proof for any number of requests is one for a cutoff above eight, and so for fewer too. So it fails if the one for two
or for eight requests fails. Otherwise it is assumed to hold: an error in this direction reports no false violation. An
unproved property may still hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.smt.any_number import Statements, statements_of
from longpoll_spec.engines.smt.inductive import Outcome, Prover, prover_of
from longpoll_spec.engines.smt.proof import REQUESTS, prove_model
from longpoll_spec.engines.symmetry import is_symmetric
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import Mutant, same_text
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS
from longpoll_spec.specification import specification_of
from longpoll_spec.terms import Bool

TIMEOUT_S: Final = 120.0
"""For one question: long enough for a busy machine."""
FEW: Final = 2


@frozen
class Standing:
    """The first property, in order, that each of the two proofs loses.

    None if the proof holds, so that it does not detect the mutant.
    """

    eight: str | None
    any_number: str | None


@frozen
class _Law:
    """The original model for one number of requests. The prover assumes all of its candidates."""

    right: Statements
    prover: Prover
    reads_guards: frozenset[str]
    """The properties about enabled actions."""

    def here(self, name: str) -> Bool | None:
        """Returns a statement's condition on states without the mutant; None if it is not stated."""
        return next((item.here for item in self.right.all if item.name == name), None)


@frozen
class _Slipped:
    """The mutant next to the original."""

    law: _Law
    model: Model
    changed: Sequence[Action]

    @property
    def same_guards(self) -> bool:
        """Whether all actions have the same guards as in the original."""
        right = {action.label: action.guard for action in self.law.right.model.actions}
        return all(action.guard is right[action.label] for action in self.changed)

    def stated(self) -> Iterator[Property]:
        """Iterate over the properties; those about steps restricted to the changed actions."""
        fewer = attrs.evolve(self.model, actions=tuple(self.changed))
        for text in ALWAYS:
            whole = text.__name__ in self.law.reads_guards and not self.same_guards
            item = text(self.model if whole else fewer)
            if item is not None:
                here = item.here if whole else self.law.here(item.name)
                assert here is not None, item.name
                touched = {action.label for action in self.changed}
                closing = tuple(each for each in item.closing if each[0] in touched)
                yield attrs.evolve(item, here=here, closing=closing)

    def is_kept(self, item: Property) -> bool:
        """Whether the answers to all changed questions about the statement stay the same."""
        return all(outcome.verdict == "proved" for outcome in self._asked(item))

    def _asked(self, item: Property) -> Iterator[Outcome]:
        prover, same = self.law.prover, item.here is self.law.here(item.name)
        if not same:
            yield prover.state(item.here)
        elif any(each.name == item.name for each in self.law.right.candidates):
            yield prover.steps(item.here, self.changed)
        by_label = {action.label: action for action in self.changed}
        for label, condition in item.closing:
            yield prover.no_step(by_label[label], condition)


@define
class Proofs:
    """One policy's proofs in one scope. Invariant: `laws` has the model for each number of requests asked so far."""

    policy: Policy
    world: Bounds
    laws: dict[int, _Law] = field(factory=dict)

    def of(self, slip: Mutant) -> Standing | None:
        """Returns the proofs' results for eight requests and for any number; None if the scope lacks the mutant."""
        if not slip.is_in(self.policy, self._bounds(FEW)):
            return None
        few = self._broken(slip, FEW)
        eight = self._broken(slip, REQUESTS, few)
        return Standing(eight, few or eight)

    def _bounds(self, requests: int) -> Bounds:
        return attrs.evolve(self.world, requests=requests)

    def _law(self, requests: int) -> _Law:
        if requests not in self.laws:
            right = statements_of(lambda bounds: specification_of(self.policy, bounds), requests, self.world)
            prover = prover_of(right.model, right.all, TIMEOUT_S, symmetric=False)
            prover.assume(right.candidates)
            still = attrs.evolve(right.model, actions=())
            apart = {text.__name__: item.here for text in ALWAYS if (item := text(still)) is not None}
            reads = frozenset(item.name for item in right.stated if item.here is not apart[item.name])
            self.laws[requests] = _Law(right, prover, reads)
        return self.laws[requests]

    def _broken(self, slip: Mutant, requests: int, suspect: str | None = None) -> str | None:
        """Returns the first property whose proof is lost for `requests` requests, or `suspect` if its proof is lost."""
        law = self._law(requests)
        model = slip.planted(self.policy, self._bounds(requests))
        right = {action.label: action for action in law.right.model.actions}
        changed = [action for action in model.actions if not same_text(action, right[action.label])]
        slipped = _Slipped(law, model, changed)
        law.prover.symmetric = is_symmetric(attrs.evolve(model, actions=tuple(changed)), ())
        assumed = {item.name for item in law.right.candidates}
        for item in sorted(slipped.stated(), key=lambda item: item.name != suspect) if suspect else slipped.stated():
            if item.name in assumed and item.here is not law.here(item.name):
                return self._again(model)  # what is assumed is another statement: nothing of the right proof is left
            if not slipped.is_kept(item):
                return item.name
        return None if all(map(slipped.is_kept, law.right.helping)) else self._again(model)

    def _again(self, model: Model) -> str | None:
        """Returns the first property that is not proved in a new induction."""
        again = prove_model(model, timeout_s=TIMEOUT_S, depth_max=0)
        return next((name for name in again.needed if again.verdict(name) != "proved"), None)
