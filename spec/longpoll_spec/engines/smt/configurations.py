"""The configurations of a proof for any number of requests: which of them are enough, and the proof in each one.

The code calls a configuration a world: the bounds of a model, with the features that are on. A feature that adds
behaviour may also weaken a promise; for example, the specification promises less about a truncated queue. So no single
configuration covers everything, and the properties are proved in several configurations (`any_number` has the proof in
one). Each configuration is also explored, and must show the situations of `vacuity`, so that no proof holds vacuously.

A question of the proof asks whether a step of one action preserves one statement, or whether a forbidden step is
possible. A question contains a feature if the feature changes one of its terms: the guard, a new value of a variable
that the statement reads, the statement, or the condition of a forbidden step. `questions_of` finds the features of a
question by building its terms with each feature and without it, so a feature need not declare what it changes.

`CONFIGURATIONS` has a configuration without features, one for each feature and each pair of features, one with all, and
one with all except truncation. These configurations include every exploration of `longpoll check`, and for the presets
they cover all combinations of three features in a question. `not_taken` returns the combinations that no configuration
covers. A feature that only restricts behaviour, such as a limit on held requests, is a parameter that a proof leaves
open (`variables.SWITCHES`). So every configuration except `plain` and `bare` covers a restricting feature both on and
off.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import attrs
from attrs import define, field, frozen

from longpoll_spec.bounds import ASPECTS, Bounds
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.smt.any_number import (
    WORLD,
    AnyProof,
    Found,
    ModelOf,
    Readers,
    Statements,
    prove_any,
    statements_of,
)
from longpoll_spec.engines.smt.inductive import Answer, Lemmas, Record, parts_of
from longpoll_spec.engines.smt.processes import in_processes
from longpoll_spec.engines.smt.proof import DEPTH_MAX, PLAIN, TIMEOUT_S, Obligation, Report
from longpoll_spec.engines.smt.vacuity import Situation, seen_in, situations_of
from longpoll_spec.errors import UnknownWorldError, not_known
from longpoll_spec.model import select
from longpoll_spec.policy import Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import variables_of

Features: TypeAlias = frozenset[str]
FEATURES: Final = ("queues", "tags", *(name for name in ASPECTS if name not in {*SWITCHES, "lateness"}))
"""The features on which the specification can branch. The feature `queues` gives two queues instead of one. The feature
`tags` gives three tags instead of one, two of which have the same hash."""
QUEUES_ALONE: Final = 3
"""The number of queues if they are the only feature. Three queues together with other features are not proved."""
REQUESTS: Final = 2
"""The number of requests for which terms are built to find features: an acting request and another one."""


def world_with(features: Iterable[str]) -> Bounds:
    """The configuration with these features and all those that only restrict, which the proof leaves open."""
    on = frozenset(features)
    return attrs.evolve(
        PLAIN,
        queues=2 if "queues" in on else 1,
        tags=3 if "tags" in on else 1,
        aspects=(on - {"queues", "tags"}) | frozenset(SWITCHES),
    )


def features_of(world: Bounds) -> Features:
    """The features that are on in a configuration."""
    several = {"queues": world.queues > 1, "tags": world.tags > 1}
    return frozenset(name for name in FEATURES if several.get(name) or name in world.aspects)


WORLDS: Final[Mapping[str, Bounds]] = MappingProxyType(
    {
        "plain": PLAIN,
        "bare": attrs.evolve(PLAIN, queues=QUEUES_ALONE),
        "no-truncate": attrs.evolve(WORLD, aspects=WORLD.aspects - {"truncate"}),
        "whole": WORLD,
    }
)
"""The configurations that have a name. Any other configuration is named by its features, such as `crash+queues`.

`bare` has three queues and no other feature. `no-truncate` has all features except truncation of queues, because the
specification promises less about truncated queues."""


def _subsets(names: Iterable[str], most: int | None = None) -> Iterator[Features]:
    every = list(names)
    sizes = range((len(every) if most is None else most) + 1)
    return (frozenset(on) for size in sizes for on in combinations(every, size))


CONFIGURATIONS: Final[Mapping[str, Bounds]] = MappingProxyType(
    dict(WORLDS)
    | {"+".join(sorted(on or SWITCHES)): world_with(on) for on in _subsets(FEATURES, 2) if on != {"queues"}}
)
"""Maps names to all configurations of a proof. The configuration with queues as its only feature is `bare`."""


def configurations_of(policy: Policy) -> Mapping[str, Bounds]:
    """The configurations in which a policy is proved.

    A file that is based on the core has no features, so it has at most two configurations.
    """
    own = policy.extension
    if own is None or not own.is_alone:
        return CONFIGURATIONS
    return {name: WORLDS[name] for name in ("plain", *(["bare"] if own.queues_max is None else ()))}


@frozen
class Question:
    """A question of the proof: an action, a statement, and the features that change their terms."""

    action: str
    statement: str
    features: Features
    assumed: bool = True
    """Whether the statement is about states, so that the proof of another statement may assume it."""


@frozen
class NotTaken:
    """A combination of features that occurs in questions of the proof but in no configuration."""

    features: tuple[str, ...]
    """The features that change the terms of these questions."""
    on: tuple[str, ...]
    """The subset of `features` that is on in the combination."""
    questions: tuple[str, ...]
    """The questions that contain the combination, each as `action: statement`."""


def questions_of(make: ModelOf) -> tuple[Question, ...]:
    """Every question of a proof, in any configuration, with its features. `make` returns the model for given bounds."""
    return _Reader(make).questions()


def not_taken(
    questions: Iterable[Question], worlds: Iterable[Bounds], names: Collection[str] = ()
) -> tuple[NotTaken, ...]:
    """The combinations of a question's features that no configuration covers.

    With `names`, only those questions count that the proof of these properties needs: their own questions, and those of
    every statement that the induction may assume.
    """
    taken = [features_of(world) for world in worlds]
    by_features: dict[Features, list[str]] = {}
    for each in questions:
        if names and not each.assumed and each.statement not in names:
            continue
        by_features.setdefault(each.features, []).append(f"{each.action}: {each.statement}")
    return tuple(
        NotTaken(tuple(sorted(features)), tuple(sorted(on)), tuple(asked))
        for features, asked in sorted(by_features.items(), key=lambda item: (len(item[0]), sorted(item[0])))
        for on in _subsets(sorted(features))
        if all(world & features != on for world in taken)
    )


Place: TypeAlias = tuple[str, ...]
"""Where a term occurs: (`guard`, action), (`value`, action, variable), (`says`, statement), or (`breaks`, action,
statement).
"""


@define
class _Reader:
    """Builds the terms with each feature on and off. Invariant: `kept` has every model, so ids stay unique."""

    make: ModelOf
    texts: dict[Features, Mapping[Place, frozenset[object]]] = field(factory=dict)
    kept: list[Statements] = field(factory=list)
    read_by: dict[str, set[str]] = field(factory=dict)
    """Maps a statement to the names of the variables that it reads. The names lack the number of the request or queue:
    `phase` instead of `phase_0`."""

    def questions(self) -> tuple[Question, ...]:
        features = self._features()
        guards = [place[1] for place in features if place[0] == "guard"]
        values: dict[str, dict[str, Features]] = {}
        for place, found in features.items():
            if place[0] == "value":
                values.setdefault(place[1], {})[place[2]] = found
        asked: dict[tuple[str, str], Features] = {}
        for action in guards:
            for statement, names in self.read_by.items():
                written = [found for name, found in values.get(action, {}).items() if name in names]
                if written:
                    here = features.get(("says", statement), frozenset())
                    asked[action, statement] = here.union(features["guard", action], *written)
        for place, found in features.items():
            if place[0] == "breaks":
                _, action, statement = place
                before = asked.get((action, statement), frozenset())
                asked[action, statement] = before | found | features["guard", action]
        of_steps = {place[2] for place in features if place[0] == "breaks"}
        return tuple(
            Question(action, statement, found, statement not in of_steps)
            for (action, statement), found in asked.items()
        )

    def _features(self) -> Mapping[Place, Features]:
        found: dict[Place, set[str]] = {}
        for base in map(features_of, WORLDS.values()):
            for name in FEATURES:
                one, other = self._text(base), self._text(base ^ {name})
                for place in {*one, *other}:
                    differ = one.get(place) != other.get(place)
                    found.setdefault(place, set()).update({name} if differ else ())
        return {place: frozenset(names) for place, names in found.items()}

    def _text(self, features: Features) -> Mapping[Place, frozenset[object]]:
        if features not in self.texts:
            law = statements_of(self.make, REQUESTS, world_with(features))
            self.kept.append(law)
            said: dict[Place, set[object]] = {}
            for place, text in self._said(law):
                said.setdefault(place, set()).add(text)
            self.texts[features] = {place: frozenset(texts) for place, texts in said.items()}
        return self.texts[features]

    def _said(self, law: Statements) -> Iterator[tuple[Place, object]]:
        for action in law.model.actions:
            yield ("guard", action.name), (action.label, id(action.guard))
            for name, term in action.effect.items():
                yield ("value", action.name, _without_number(name)), (action.label, name, id(term))
        for item in law.all:
            for part in parts_of(item.here):
                names = {_without_number(name) for name in variables_of(part)}
                # `in_range` is about every variable, so each of its parts counts as a statement about one variable.
                statement = f"{item.name} {next(iter(names))}" if item.name == "in_range" else item.name
                self.read_by.setdefault(statement, set()).update(names)
                yield ("says", statement), id(part)
            for label, condition in item.closing:
                yield ("breaks", label.partition("(")[0], item.name), (label, id(condition))


def _without_number(variable: str) -> str:
    stem, _, number = variable.rpartition("_")
    return stem if stem and number.removeprefix("q").isdigit() else variable


@frozen
class WorldProof:
    """The proof in one configuration, and the situations that must occur there."""

    name: str
    world: Bounds
    found: AnyProof
    situations: tuple[Situation, ...]

    @property
    def in_vain(self) -> tuple[Situation, ...]:
        """The required situations that no run was found for."""
        return tuple(each for each in self.situations if each.found != "reached")

    @property
    def whole(self) -> Answer:
        """The verdict of the proof; unknown instead of proved if a required situation was not found."""
        verdict = self.found.proof.whole
        return "unknown" if verdict == "proved" and self.in_vain else verdict


def chosen(names: Sequence[str], *, any_number: bool, changes: Mapping[str, Any]) -> Mapping[str, Bounds]:
    """The configurations with these names; with `changes`, one configuration `own` with changed bounds.

    Without names and changes, a proof for a given number of requests gets the plain configuration. A proof for any
    number gets an empty mapping, so that `prove_worlds` chooses. Raises `UnknownWorldError` for an unknown name, and
    for several names where only one is possible.
    """
    named = {name: world_named(name) for name in names}
    if len(named) > 1 and (changes or not any_number):
        raise UnknownWorldError("name one world: only `--requests any` without changed bounds accepts several")
    if changes:
        begins = next(iter(named.values())) if named else WORLDS["whole" if any_number else "plain"]
        return {"own": attrs.evolve(begins, **changes)}
    return named or ({} if any_number else {"plain": WORLDS["plain"]})


def world_named(name: str) -> Bounds:
    """The configuration with a name, such as `whole`, or with these features, such as `crash+queues`.

    Raises `UnknownWorldError` for an unknown name.
    """
    if name in WORLDS:
        return WORLDS[name]
    features = name.split("+")
    for each in features:
        if each not in FEATURES:
            raise UnknownWorldError(not_known("world", each, [*WORLDS, *FEATURES]))
    return world_with(features)


def prove_worlds(
    policy: Policy,
    *,
    worlds: Mapping[str, Bounds] | None = None,
    names: Iterable[str] = (),
    timeout_s: float = TIMEOUT_S,
    depth_max: int = DEPTH_MAX,
    report: Report | None = None,
    model_of: ModelOf | None = None,
    record: Record | None = None,
    processes: int = 1,
) -> list[WorldProof]:
    """Prove as `any_number.prove_any` does, in each configuration. A named property is proved wherever it is stated.

    By default `worlds` are `configurations_of` the policy. `record` needs a single process, because it numbers the
    queries. Raises `UnknownPropertyError` for a property that no configuration states.
    """
    wanted = list(names)
    make = model_of or (lambda bounds: specification_of(policy, bounds))
    worlds = worlds or configurations_of(policy)
    stated = {name: statements_of(make, 1, world).stated for name, world in worlds.items()}
    select([item for each in stated.values() for item in each], wanted)
    seen: Found = {}
    lemmas, readers = Lemmas(), Readers()

    def proved(name: str, report: Report | None) -> WorldProof:
        world = worlds[name]
        say = _in_world(name, report)
        explored = seen_in(make, world) if depth_max >= DEPTH_MAX else ()
        tokens = {each.name: each.token for each in explored if each.verdict == "reached" and each.token is not None}
        broken = {each.name: _refuted(each) for each in explored if each.verdict == "violated"}
        found = prove_any(
            policy,
            world=world,
            names=[item.name for item in stated[name] if item.name in wanted],
            timeout_s=timeout_s,
            depth_max=depth_max,
            report=say,
            model_of=model_of,
            seen=seen,
            broken=broken,
            record=record,
            lemmas=lemmas,
            readers=readers,
        )
        if say is not None:
            say("what comes about")
        return WorldProof(name, world, found, situations_of(make, world, tokens))

    asked = [name for name in worlds if not wanted or any(item.name in wanted for item in stated[name])]
    if processes == 1:
        return [proved(name, report) for name in asked]
    # The configurations that take longest come first, so that the processes end at about the same time.
    dearest = sorted(asked, key=lambda name: (-worlds[name].queues, -len(worlds[name].aspects)))
    found = in_processes({name: partial(proved, name) for name in dearest}, processes, report or (lambda _text: None))
    return [found[name] for name in asked]


def _refuted(found: Verdict) -> Obligation:
    return Obligation(found.name, "bounded", "refuted", 0.0, found.token, found.depth)


def worst(proofs: Sequence[WorldProof]) -> Answer:
    """The verdict over all configurations: refuted if it is refuted in one, and proved only if it is proved in each."""
    found = {each.whole for each in proofs}
    return "refuted" if "refuted" in found else "unknown" if "unknown" in found else "proved"


def headline(
    proofs: Sequence[WorldProof],
    untried: Sequence[NotTaken],
    *,
    named: bool = False,
    explored: Sequence[str] = (),
) -> str:
    """The verdict in words: just `proved` only if no combination of features and no property is left unproved.

    If the user has `named` the configurations, the verdict is about these configurations only. `explored` has the names
    of properties that are not proved but only explored.
    """
    verdict: str = worst(proofs)
    if verdict != "proved":
        return verdict
    if named:
        verdict = f"proved in {', '.join(each.name for each in proofs)} alone"
    elif untried:
        fewest = _NUMBERS[min(len(each.features) for each in untried)]
        verdict = f"proved, except {len(untried)} combinations of {fewest} or more features"
    return verdict + exception(explored)


def exception(explored: Sequence[str]) -> str:
    """The words that end a verdict and say that these properties are only explored; empty without properties."""
    return f", except {', '.join(explored)}, only explored" if explored else ""


_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def verdicts(proofs: Sequence[WorldProof]) -> Mapping[str, Answer]:
    """Map each property to its worst verdict in the configurations that state it.

    A proved property counts as unknown where a required situation was not found.
    """
    worse: Mapping[Answer, int] = {"proved": 0, "unknown": 1, "refuted": 2}
    found: dict[str, Answer] = {}
    for each in proofs:
        for name in each.found.proof.needed:
            shown = each.found.proof.verdict(name)
            here: Answer = "unknown" if shown == "proved" and each.in_vain else shown
            if worse[here] >= worse[found.get(name, "proved")]:
                found[name] = here
    return found


def unstated(proofs: Sequence[WorldProof]) -> Mapping[str, Sequence[str]]:
    """Map each configuration to the properties that it does not state, or that hold vacuously there but not elsewhere.

    The proof in this configuration says nothing about these properties.
    """
    says_something = {name for each in proofs for name in _says(each)}
    every = list(dict.fromkeys(name for each in proofs for name in each.found.proof.needed))
    return {
        each.name: [
            name
            for name in every
            if name not in each.found.proof.needed or (name in says_something and name not in _says(each))
        ]
        for each in proofs
    }


def _says(found: WorldProof) -> set[str]:
    return set(found.found.proof.needed) - set(found.found.proof.by_construction)


def _in_world(name: str, report: Report | None) -> Report | None:
    return None if report is None else lambda text: report(f"{name}: {text}")
