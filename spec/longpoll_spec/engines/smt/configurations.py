"""The worlds of a proof for any number of requests: which ones are enough, and the proof in each.

A feature that adds behaviour may also weaken a promise: less is promised of a truncated queue. So no single world
covers everything, and the theorem is proved in several. Each is also explored, and no proof may hold vacuously: each
world must show its `vacuity`. The proof itself: `any_number`.

A question asks whether a step of one action preserves one statement, or whether a step that breaks it is possible. A
question contains a feature if one of its terms is another where the feature is on: the guard, a new value of a variable
that the statement reads, the statement, or the condition of a step. This is seen by building the text with the
feature and without it, so nothing has to be declared.

`CONFIGURATIONS` are the worlds without features, with one, with each two, with all, and with all but truncation. So
every exploration of `check` is one of them, and in the presets every three features of a question are taken.
`not_taken` names the combinations that are left. Purely restrictive features, such as a limit on held requests, are
parameters that a proof leaves open (`variables.SWITCHES`). So every world but the first two takes both.
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
"""Everything that the specification can branch on. A world has one or two queues, and one or three tags: two with
different hashes, and two with the same one.
"""
QUEUES_ALONE: Final = 3
"""The number of queues where they are the only feature: a third one next to other features is not proved."""
REQUESTS: Final = 2
"""The number of requests for which the terms are built: one that acts and another."""


def world_with(features: Iterable[str]) -> Bounds:
    """The world with these features and the purely restrictive ones, which the proof leaves open."""
    on = frozenset(features)
    return attrs.evolve(
        PLAIN,
        queues=2 if "queues" in on else 1,
        tags=3 if "tags" in on else 1,
        aspects=(on - {"queues", "tags"}) | frozenset(SWITCHES),
    )


def features_of(world: Bounds) -> Features:
    """The features that are on in a world."""
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
"""The named worlds. Any other is named by its features, such as `crash+queues`.

`bare` has three queues and no other feature. `no-truncate` is the whole one without truncation of queues: for
truncated queues the specification promises less.
"""


def _subsets(names: Iterable[str], most: int | None = None) -> Iterator[Features]:
    every = list(names)
    sizes = range((len(every) if most is None else most) + 1)
    return (frozenset(on) for size in sizes for on in combinations(every, size))


CONFIGURATIONS: Final[Mapping[str, Bounds]] = MappingProxyType(
    dict(WORLDS)
    | {"+".join(sorted(on or SWITCHES)): world_with(on) for on in _subsets(FEATURES, 2) if on != {"queues"}}
)
"""The worlds of a proof, by name; `bare` is the one with several queues alone."""


def configurations_of(policy: Policy) -> Mapping[str, Bounds]:
    """The worlds in which a policy is proved. The core has no features, so a file from it has at most two worlds."""
    own = policy.extension
    if own is None or not own.is_alone:
        return CONFIGURATIONS
    return {name: WORLDS[name] for name in ("plain", *(["bare"] if own.queues_max is None else ()))}


@frozen
class Question:
    """An action and a statement, with the features that their terms contain."""

    action: str
    statement: str
    features: Features
    assumed: bool = True
    """Whether the proof of another statement may assume this one: it is about states."""


@frozen
class NotTaken:
    """A feature combination that proof obligations need but no configuration has."""

    features: tuple[str, ...]
    """The features that the questions contain."""
    on: tuple[str, ...]
    """Those of them that are on."""
    questions: tuple[str, ...]
    """`action: statement` of each question."""


def questions_of(make: ModelOf) -> tuple[Question, ...]:
    """Every question of a proof, in any world, with its features; `make` gives the model under bounds."""
    return _Reader(make).questions()


def not_taken(
    questions: Iterable[Question], worlds: Iterable[Bounds], names: Collection[str] = ()
) -> tuple[NotTaken, ...]:
    """The combinations of all features of a question that no world covers.

    With `names`, only the questions that the proof of these properties rests on count: their own, and those of every
    statement that an induction assumes.
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
"""The place of a term: `guard` and an action, `value` and an action and a variable, `says` and a statement, or `breaks`
and an action and a statement.
"""


@define
class _Reader:
    """Builds the terms with each feature on and off. Invariant: `texts` keeps every model, so equal terms stay one."""

    make: ModelOf
    texts: dict[Features, Mapping[Place, frozenset[object]]] = field(factory=dict)
    kept: list[Statements] = field(factory=list)
    read_by: dict[str, set[str]] = field(factory=dict)
    """Statement -> names of the variables it reads, without the numbers of requests and queues."""

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
                # `in_range` is split into one statement per variable.
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
    """The proof in one world, and the situations that occur in it."""

    name: str
    world: Bounds
    found: AnyProof
    situations: tuple[Situation, ...]

    @property
    def in_vain(self) -> tuple[Situation, ...]:
        """The required situations that were not observed."""
        return tuple(each for each in self.situations if each.found != "reached")

    @property
    def whole(self) -> Answer:
        """The proof's verdict; unknown if a required situation never occurs."""
        verdict = self.found.proof.whole
        return "unknown" if verdict == "proved" and self.in_vain else verdict


def chosen(names: Sequence[str], *, any_number: bool, changes: Mapping[str, Any]) -> Mapping[str, Bounds]:
    """The worlds of these names; with `changes` to a world's bounds, one world called `own`.

    Without names and changes: the plain one for a given number of requests; for any number none, which leaves the
    choice to `prove_worlds`. Raises `UnknownWorldError`, also if several worlds are named where only one is possible.
    """
    named = {name: world_named(name) for name in names}
    if len(named) > 1 and (changes or not any_number):
        raise UnknownWorldError("name one world: only `--requests any` without changed bounds accepts several")
    if changes:
        begins = next(iter(named.values())) if named else WORLDS["whole" if any_number else "plain"]
        return {"own": attrs.evolve(begins, **changes)}
    return named or ({} if any_number else {"plain": WORLDS["plain"]})


def world_named(name: str) -> Bounds:
    """The world of a name, such as `whole`, or of its features, such as `crash+queues`; raises `UnknownWorldError`."""
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
    """As `any_number.prove_any`, in each of the worlds. A named property is proved wherever it is stated.

    By default these are its `configurations_of`. With several processes `record` cannot be used. Raises
    `UnknownPropertyError` for a property that no world states.
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
    # The dearest come first, so that no process is left alone with one at the end.
    dearest = sorted(asked, key=lambda name: (-worlds[name].queues, -len(worlds[name].aspects)))
    found = in_processes({name: partial(proved, name) for name in dearest}, processes, report or (lambda _text: None))
    return [found[name] for name in asked]


def _refuted(found: Verdict) -> Obligation:
    return Obligation(found.name, "bounded", "refuted", 0.0, found.token, found.depth)


def worst(proofs: Sequence[WorldProof]) -> Answer:
    """The verdict over all worlds: refuted if refuted in one, proved only if proved in each."""
    found = {each.whole for each in proofs}
    return "refuted" if "refuted" in found else "unknown" if "unknown" in found else "proved"


def headline(
    proofs: Sequence[WorldProof],
    untried: Sequence[NotTaken],
    *,
    named: bool = False,
    explored: Sequence[str] = (),
) -> str:
    """The verdict in words: plainly `proved` only if no combination of features and no property is left.

    If the user has `named` the worlds, the proof is about these. `explored` are properties that are not proved at all.
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
    """The end of a verdict that does not include these properties."""
    return f", except {', '.join(explored)}, only explored" if explored else ""


_NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def verdicts(proofs: Sequence[WorldProof]) -> Mapping[str, Answer]:
    """Property -> its worst verdict in the worlds that state it; unknown if a required situation never occurs."""
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
    """World -> the properties that it does not state, or that hold vacuously there, although other worlds state them.

    Such a property is not proved in this world.
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
