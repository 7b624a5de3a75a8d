"""Whether a proof stands although a slip is planted: the questions that the slip changes, put to the solver again.

Without a slip the law is proved in each world, from all of its candidates at once. A slip changes a few actions, so
only the questions about these can come out otherwise. One that fails while every candidate is assumed fails with fewer
as well: the property it belongs to is proved no more, whatever else is given up, and no other need be asked. Where only
statements of the strengthening fail, the induction is made anew, for the properties may not need them.

A proof for any number of requests is one for a cutoff that is more than eight, so for fewer as well: it falls where the
one for two requests or the one for eight does. Where neither does, the proof is said to stand, and no more is asked: a
proof that is said to stand and does not accuses nobody. Leaves out runs: what is not proved is not refuted here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.analysis.symmetry import is_symmetric
from longpoll_spec.engines.smt.any_number import Statements, statements_of
from longpoll_spec.engines.smt.inductive import Outcome, Prover, prover_of
from longpoll_spec.engines.smt.proof import REQUESTS, prove_model
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.mutants.generated import Mutant, same_text
from longpoll_spec.policy import Policy
from longpoll_spec.properties import ALWAYS
from longpoll_spec.specification import specification_of
from longpoll_spec.terms import Bool

TIMEOUT_S: Final = 120.0
"""For one question: long enough for a machine that has much else to do."""
FEW: Final = 2


@frozen
class Standing:
    """What becomes of the two proofs: for each the first property, in the law's order, that is proved no more.

    None where the proof stands, so that nothing of it tells of the slip.
    """

    eight: str | None
    any_number: str | None


@frozen
class _Law:
    """The law without a slip for one number of requests. The prover assumes all of its candidates."""

    right: Statements
    prover: Prover
    reads_guards: frozenset[str]
    """The properties that say of a state what can happen in it."""

    def here(self, name: str) -> Bool | None:
        """What a statement says of states without the slip; None if it is not stated."""
        return next((item.here for item in self.right.all if item.name == name), None)


@frozen
class _Slipped:
    """The law with a slip beside the law without it."""

    law: _Law
    model: Model
    changed: Sequence[Action]

    @property
    def same_guards(self) -> bool:
        """Whether everything can happen where it could without the slip."""
        right = {action.label: action.guard for action in self.law.right.model.actions}
        return all(action.guard is right[action.label] for action in self.changed)

    def stated(self) -> Iterator[Property]:
        """The properties, of which those that speak of steps say what they say of the changed ones."""
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
        """Whether each question about the statement that the slip changes comes out as without it."""
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
    """The proofs of one policy in one world. Invariant: `laws` has the law for each number of requests asked so far."""

    policy: Policy
    world: Bounds
    laws: dict[int, _Law] = field(factory=dict)

    def of(self, slip: Mutant) -> Standing | None:
        """What becomes of the proofs for eight requests and for any number; None if the world lacks the slip."""
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
        """The first property that is no longer proved for `requests` requests; `suspect` if that is one of them."""
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
        """The first property that is not proved when all is tried anew."""
        again = prove_model(model, timeout_s=TIMEOUT_S, depth_max=0)
        return next((name for name in again.needed if again.verdict(name) != "proved"), None)
