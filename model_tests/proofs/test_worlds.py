"""The configurations of a proof: each feature alone, combinations of features, and all features together."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from multiprocessing import active_children
from typing import Final

import attrs
import pytest
from model_tests.support.spec.cases import breaks_its_property, quick_if

from longpoll_spec.bounds import ASPECTS, Bounds
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.smt import any_number as smt_any
from longpoll_spec.engines.smt import configurations as smt_worlds
from longpoll_spec.engines.smt import vacuity
from longpoll_spec.engines.smt.any_number import (
    SAMPLE,
    AnyProof,
    Readers,
    Statements,
    prove_any,
    statements_of,
    worlds_within,
)
from longpoll_spec.engines.smt.configurations import (
    CONFIGURATIONS,
    WORLDS,
    NotTaken,
    Question,
    WorldProof,
    chosen,
    headline,
    not_taken,
    prove_worlds,
    questions_of,
    unstated,
    verdicts,
    world_with,
    worst,
)
from longpoll_spec.engines.smt.counterexamples import explored
from longpoll_spec.engines.smt.inductive import Answer, Induction, Lemmas, Outcome
from longpoll_spec.engines.smt.processes import in_processes
from longpoll_spec.engines.smt.proof import PLAIN, Obligation, Proof, StepName, prove_model
from longpoll_spec.engines.smt.quantifiers import NotUniformError, Rests
from longpoll_spec.engines.smt.vacuity import Found, Situation, situations_of
from longpoll_spec.engines.tokens import parse
from longpoll_spec.errors import EngineLimitError, MemoryShortError, UnknownPropertyError, UnknownWorldError
from longpoll_spec.model import Model, Property
from longpoll_spec.mutants.generated import mutated
from longpoll_spec.mutants.named import NAMED
from longpoll_spec.policy import PRESETS, STRICT, preset
from longpoll_spec.specification import properties_of, specification_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import FALSE, Term, const, nodes, rebuild

FIRST, SECOND = "answered_once", "no_lost_wakeup"
LAW: Final = partial(specification_of, STRICT)
Outcomes = Mapping[tuple[str, StepName], Outcome]


def stated(requests: int, world: Bounds = PLAIN) -> Statements:
    return statements_of(LAW, requests, world)


TWO: Final = stated(2)
BY_NAME: Final = {item.name: item for item in TWO.stated}


def rows_of(told: Mapping[str, Answer]) -> tuple[Obligation, ...]:
    steps: dict[Answer, StepName] = {"proved": "implies", "unknown": "bounded", "refuted": "bounded"}
    return tuple(
        Obligation(name, steps[verdict], verdict, 0, "token" if verdict == "refuted" else None)
        for name, verdict in told.items()
    )


def whole_of(told: Mapping[str, Answer], *more: Obligation) -> AnyProof:
    return AnyProof(Proof(TWO.model, tuple(BY_NAME[name] for name in told), 0, (*more, *rows_of(told)), {}), (1, 4))


def in_world(name: str, told: Mapping[str, Answer], found: Found = "reached") -> WorldProof:
    """Return the proof of a configuration with these verdicts, and with the result `found` for its situation."""
    return WorldProof(name, PLAIN, whole_of(told), (Situation("hold_fires", "", "reached"), Situation("s", "", found)))


# -- configurations ------------------------------------------------------------------------------------------------


def test_an_unreached_situation_leaves_a_proof_unknown() -> None:
    """A configuration whose required situation was not reached proves nothing, but a run still refutes."""
    vain, seen = in_world("plain", {FIRST: "proved"}, "not found"), in_world("plain", {FIRST: "proved"})
    refuted = in_world("plain", {FIRST: "refuted"}, "not found")

    assert (vain.whole, seen.whole, refuted.whole) == ("unknown", "proved", "refuted")
    assert ([each.name for each in vain.in_vain], seen.in_vain) == (["s"], ())
    assert (verdicts([vain]), verdicts([seen])) == ({FIRST: "unknown"}, {FIRST: "proved"})
    assert verdicts([refuted]) == {FIRST: "refuted"}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ("proved", "proved", "proved"),
        ("proved", "unknown", "unknown"),
        ("proved", "refuted", "refuted"),
        ("unknown", "refuted", "refuted"),
    ],
)
def test_the_worst_verdict_of_all_configurations_counts(one: Answer, other: Answer, both: Answer) -> None:
    """The worst verdict counts, in any order. The only configuration that states a property gives its verdict."""
    told: dict[str, Answer] = {FIRST: one, SECOND: "proved"}
    first, second = in_world("one", told), in_world("other", {FIRST: other})

    for proofs in ([first, second], [second, first]):
        assert worst(proofs) == both
        assert verdicts(proofs) == {FIRST: both, SECOND: "proved"}
        assert unstated(proofs) == {"one": [], "other": [SECOND]}


def test_only_a_proof_of_all_combinations_is_called_proved() -> None:
    """If combinations are unproved or the user chose the configurations, the headline `proved` says so."""
    good, bad = in_world("plain", {FIRST: "proved"}), in_world("bare", {FIRST: "refuted"})
    left = [NotTaken(("a", "b", "c", "d", "e"), (), ("q",)), NotTaken(("a", "b", "c", "d"), (), ("q",))]

    assert headline([good], []) == "proved"
    assert headline([good], left) == "proved, except 2 combinations of four or more features"
    assert headline([good], left, named=True) == "proved in plain alone"
    assert headline([good, bad], left) == headline([bad], [], named=True) == "refuted"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([FIRST, "moved_is_told"], {"plain": {FIRST}, "cut": {FIRST, "moved_is_told"}}),
        (["moved_is_told"], {"cut": {"moved_is_told"}}),
        ([], {"plain": set(), "cut": set()}),
    ],
    ids=["both", "of one world", "all"],
)
def test_each_configuration_is_checked_for_its_own_properties(
    names: list[str], expected: dict[str, set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = {"plain": PLAIN, "cut": attrs.evolve(PLAIN, aspects=frozenset({"truncate"}))}
    asked: list[tuple[Bounds, set[str], object]] = []
    looked: list[Bounds] = []

    def scripted(
        _policy: object, *, world: Bounds, names: Sequence[str], model_of: object, **_options: object
    ) -> AnyProof:
        asked.append((world, set(names), model_of))
        return whole_of({FIRST: "proved"})

    def seen(_make: object, world: Bounds, *_options: object) -> tuple[Situation, ...]:
        looked.append(world)
        return ()

    monkeypatch.setattr(smt_worlds, "prove_any", scripted)
    monkeypatch.setattr(smt_worlds, "situations_of", seen)
    done = prove_worlds(STRICT, worlds=worlds, names=names, model_of=LAW)

    assert asked == [(worlds[name], wanted, LAW) for name, wanted in expected.items()]
    assert looked == [each.world for each in done] == [worlds[name] for name in expected]
    assert [each.name for each in done] == list(expected)


def test_one_configuration_has_each_feature_that_another_leaves_out() -> None:
    """`whole` has all features except `lateness`. `no-truncate` has the same features except `truncate`."""
    whole, uncut, plain = (WORLDS[name].aspects for name in ("whole", "no-truncate", "plain"))

    assert set(WORLDS) == {"plain", "bare", "no-truncate", "whole"}
    assert (set(ASPECTS) - whole, set(whole - uncut), set(plain)) == ({"lateness"}, {"truncate"}, set[str]())


def test_several_processes_give_the_results_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smt_worlds, "prove_any", lambda *_all, **_options: whole_of({FIRST: "proved"}))
    monkeypatch.setattr(smt_worlds, "situations_of", lambda *_all: (Situation(str(os.getpid()), "", "reached"),))
    worlds = {name: WORLDS[name] for name in ("plain", "whole", "bare")}
    one, two = (prove_worlds(STRICT, worlds=worlds, processes=count) for count in (1, 2))

    assert [each.name for each in two] == list(worlds)
    assert [each.found.proof.obligations for each in two] == [each.found.proof.obligations for each in one]
    for mine, theirs in zip(two[0].found.proof.stated, one[0].found.proof.stated, strict=True):
        assert mine.here is theirs.here
    assert {each.situations[0].name for each in one} == {str(os.getpid())}
    assert str(os.getpid()) not in {each.situations[0].name for each in two}


def _raises_limit() -> None:
    raise EngineLimitError("too large")


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (_raises_limit, EngineLimitError, "^too large$"),
        (lambda: 1 // 0, RuntimeError, "traceback is on standard error"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), MemoryShortError, "^signal 9 ended"),
    ],
    ids=["error", "bug", "killed"],
)
def test_a_process_that_fails_fails_the_call(
    end: Callable[[], object], error: type[Exception], text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The call raises a task's error, prints a bug's traceback, reports a killed process, and leaves no process."""
    before = set(active_children())
    with pytest.raises(error, match=text):
        in_processes({"good": lambda _report: 1, "bad": lambda _report: end()}, 2, lambda _text: None)

    assert set(active_children()) == before
    assert ("ZeroDivisionError" in capfd.readouterr().err) == (error is RuntimeError)


def test_a_short_run_that_is_improbable_is_found_without_other_tags() -> None:
    """160,000 random runs with all tags never have two notifiers at two queues, but a few thousand with one tag do."""
    world = world_with(("buckets", "queues", "role", "sql"))
    found = {each.name: each.found for each in situations_of(LAW, world)}

    assert found["queues_walked_at_once"] == "reached"


# -- situations ----------------------------------------------------------------------------------------------------


class ScriptedProver:
    """A prover that gives the same answer to every query, and records its assumptions."""

    def __init__(self, answer: Answer, assumed: list[str]) -> None:
        self.answer: Answer = answer
        self.assumed = assumed

    def assume(self, statements: Sequence[Property]) -> None:
        self.assumed += [item.name for item in statements]

    def state(self, _statement: object) -> Outcome:
        return Outcome(self.answer)


def test_a_situation_is_searched_with_and_without_a_restriction(monkeypatch: pytest.MonkeyPatch) -> None:
    """A situation that the feature `limit` excludes is found without it; one that needs `limit` is found with it."""
    asked: list[tuple[bool, bool]] = []

    def scripted(model: Model, sought: Sequence[Property], **_options: object) -> dict[str, object]:
        is_free = not model.bounds.aspects
        names = [item.name for item in sought]
        asked.append((is_free, "refused_alone" in names))
        return {name: is_free for name in names if is_free != (name == "hold_fires")}

    monkeypatch.setattr(vacuity, "TRIES", ((False, 1, 1),))
    monkeypatch.setattr(vacuity, "random_runs", scripted)
    monkeypatch.setattr(vacuity, "token_of", lambda _model, run, _name: f"run {run}")
    found = {each.name: each for each in situations_of(LAW, attrs.evolve(PLAIN, aspects=frozenset({"limit"})))}

    assert asked == [(True, True), (False, False)]
    assert (found["refused_alone"].token, found["hold_fires"].token) == ("run True", "run False")
    assert {found[name].found for name in ("refused_alone", "hold_fires")} == {"reached"}


# -- proofs for each number of requests ----------------------------------------------------------------------------


def test_the_worst_verdict_of_all_numbers_of_requests_counts() -> None:
    """The worst verdict over all numbers of requests counts, even if only one number has the obligation."""
    good, bad = Outcome("proved", 1), Outcome("refuted", 2)
    joined = smt_any._joined([{(FIRST, "initial"): good}, {(FIRST, "initial"): bad, (SECOND, "implies"): good}])
    again = smt_any._joined([{(FIRST, "initial"): bad}, {(FIRST, "initial"): good}])

    assert [(row.property_name, row.step, row.verdict, row.seconds) for row in joined] == [
        (FIRST, "initial", "refuted", 3),
        (SECOND, "implies", "proved", 1),
    ]
    assert [row.verdict for row in again] == ["refuted"]


def test_a_failure_for_one_number_of_requests_leaves_the_property_unproved(monkeypatch: pytest.MonkeyPatch) -> None:
    by_size: list[Outcomes] = [
        {(FIRST, "initial"): Outcome("proved"), (FIRST, "inductive"): Outcome("proved")},
        {(FIRST, "initial"): Outcome("unknown"), (FIRST, "inductive"): Outcome("proved")},
    ]
    sought: list[list[str]] = []

    def runs(_make: object, _world: object, names: Sequence[str], **_limits: object) -> Iterator[Obligation]:
        sought.append(list(names))
        yield from (Obligation(name, "bounded", "unknown", 0) for name in names)

    monkeypatch.setattr(smt_any, "_at_each", lambda *_all, **_options: (by_size, (1, 4)))
    monkeypatch.setattr(smt_any, "_runs", runs)
    found = prove_any(STRICT, world=PLAIN, names=[FIRST])

    assert found.proof.verdict(FIRST) == "unknown"
    assert sought == [[FIRST]]


def test_a_refused_specification_is_proved_for_no_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_all: object, **_options: object) -> tuple[list[Outcomes], tuple[int, ...]]:
        raise NotUniformError("one is spared")

    monkeypatch.setattr(smt_any, "_at_each", refused)
    monkeypatch.setattr(smt_any, "_runs", lambda _make, _world, names, **_l: rows_of(dict.fromkeys(names, "unknown")))
    found = prove_any(STRICT, world=PLAIN, names=[FIRST])

    assert (found.proof.verdict(FIRST), found.proved_at, found.cutoff) == ("unknown", (), None)
    assert found.why_not == "one is spared"
    assert set(found.proof.given_up) == {item.name for item in TWO.helping}


def test_a_violated_property_is_refuted_and_the_others_are_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refuted property is not tried for any number, and the proof of the other property does not assume it."""
    asked: list[Sequence[str]] = []

    def at_each(
        _make: object, _read: object, left: Sequence[str], **_options: object
    ) -> tuple[list[Outcomes], tuple[int, ...]]:
        asked.append(left)
        return [{(SECOND, "implies"): Outcome()}], (1, 4)

    monkeypatch.setattr(smt_any, "_at_each", at_each)
    (run,) = rows_of({FIRST: "refuted"})
    found = prove_any(STRICT, world=PLAIN, names=[FIRST, SECOND], broken={FIRST: run})

    assert asked == [[SECOND]]
    assert {name: found.proof.verdict(name) for name in (FIRST, SECOND)} == {FIRST: "refuted", SECOND: "proved"}


def test_the_same_statements_are_inductive_for_each_number_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a statement is dropped at the cutoff, the smaller numbers are checked again without it."""
    lost = TWO.candidates[0].name
    asked: list[tuple[int, bool]] = []
    compared: list[int] = []

    def at(law: Statements, wanted: set[str], *_given: object, **_options: object) -> tuple[Outcomes, set[str]]:
        requests = law.model.bounds.requests
        asked.append((requests, lost in wanted))
        return {(FIRST, "implies"): Outcome("proved", len(asked))}, wanted - ({lost} if requests == 3 else set[str]())

    def seen(_read: Statements, smaller: Statements, _rests: Rests) -> None:
        compared.append(smaller.model.bounds.requests)

    monkeypatch.setattr(smt_any, "numbers_of", lambda _read, kept, _rests: (1, 4 if lost in kept else 3))
    monkeypatch.setattr(smt_any, "_asked", at)
    monkeypatch.setattr(smt_any, "compare", seen)
    first, numbers = smt_any._at_each(LAW, stated(SAMPLE), [FIRST], timeout_s=1.0, lemmas=Lemmas(), readers=Readers())
    monkeypatch.setattr(smt_any, "numbers_of", lambda _read, _kept, _rests: (1, 3))
    asked_first, compared_first = list(asked), list(compared)
    asked.clear()
    second, _numbers = smt_any._at_each(LAW, stated(SAMPLE), [FIRST], timeout_s=1.0, lemmas=Lemmas(), readers=Readers())

    assert (asked_first, compared_first) == ([(1, True), (4, True)], [1, 2, 3])
    assert (len(first), numbers) == (2, (1, 4))
    assert asked == [(1, True), (3, True), (1, False), (3, False)]
    assert [outcome.seconds for outcomes in second for outcome in outcomes.values()] == [3, 4]


@pytest.mark.parametrize("is_lost", [True, False])
def test_only_inductive_statements_are_assumed_for_each_number_of_requests(
    is_lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only wanted statements are checked, and a property that is not inductive must follow from inductive ones."""
    first, lemma, other = BY_NAME[FIRST], *TWO.helping[:2]
    assumed: list[str] = []
    tried: list[list[str]] = []

    def induction(_prover: object, candidates: Sequence[Property]) -> Induction:
        tried.append([item.name for item in candidates])
        outcomes = {item.name: Outcome("unknown" if is_lost and item is first else "proved") for item in candidates}
        return Induction(
            tuple(item for item in candidates if outcomes[item.name].verdict == "proved"),
            {item.name: Outcome("proved", 1) for item in candidates},
            outcomes,
        )

    monkeypatch.setattr(smt_any, "prover_of", lambda *_all, **_options: ScriptedProver("proved", assumed))
    monkeypatch.setattr(smt_any, "induction", induction)
    monkeypatch.setattr(smt_any, "implied", lambda _prover, _item: Outcome("refuted"))
    law = Statements(TWO.model, (first,), (lemma, other))
    rows, kept = smt_any._asked(law, {FIRST, lemma.name}, [FIRST], timeout_s=1.0, lemmas=Lemmas())

    assert tried == [[FIRST, lemma.name]]
    assert kept == set(assumed) == ({lemma.name} if is_lost else {FIRST, lemma.name})
    assert {key: each.verdict for key, each in rows.items() if key[0] == FIRST} == (
        {(FIRST, "implies"): "refuted", (FIRST, "inductive"): "unknown"}
        if is_lost
        else {(FIRST, "initial"): "proved", (FIRST, "inductive"): "proved"}
    )
    assert {key[1] for key in rows if key[0] == lemma.name} == {"initial", "inductive"}
    assert {key[0] for key in rows} == {FIRST, lemma.name}


@pytest.mark.parametrize(("told", "expected"), [("proved", "unknown"), ("unknown", "unknown"), ("refuted", "refuted")])
def test_a_search_without_a_run_proves_nothing_for_any_number(
    told: Answer, expected: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search can only find a run. If a small configuration has a run, no larger configuration is searched."""
    asked: list[Bounds] = []

    def prove_small(model: Model, **_options: object) -> Proof:
        asked.append(model.bounds)
        return whole_of({FIRST: told}).proof

    world = attrs.evolve(PLAIN, aspects=frozenset({"buckets"}))
    monkeypatch.setattr(smt_any, "prove_model", prove_small)
    rows = list(smt_any._runs(LAW, world, [FIRST], timeout_s=1.0, depth_max=0, report=None))

    assert [(row.property_name, row.step, row.verdict) for row in rows] == [(FIRST, "bounded", expected)]
    assert (asked[0], len(asked) > 1) == (attrs.evolve(PLAIN, requests=2), told != "refuted")
    assert told == "refuted" or asked[-1] == attrs.evolve(world, requests=2)


OURS = ("strict", "strict-clone")
RESTRICTED_IN_VAIN = {
    "hold recheck_if_bucket_looked_empty": {"no_lost_wakeup", "lost_by_hold"},
    "executor_rejects drops_when_alone": {"nothing_dropped", "dropped_by_reject"},
}
"""Maps a mutant, which passes if a configuration excludes several holds or a single rejection, to the properties that
detect it."""


def _planted(policy: str, slip: str, bounds: Bounds) -> Model:
    name, change = NAMED[slip]
    return mutated(preset(policy), bounds, name, change)


@pytest.mark.parametrize(
    "case",
    quick_if(
        [(slip, world) for slip in RESTRICTED_IN_VAIN for world in WORLDS],
        lambda case: case == ("hold recheck_if_bucket_looked_empty", "plain"),
    ),
)
def test_a_restriction_hides_no_mutant(case: tuple[str, str]) -> None:
    """No configuration proves a policy whose recheck trusts an empty bucket, or whose lone rejection drops the pull."""
    slip, world = case
    told = RESTRICTED_IN_VAIN[slip]
    model = _planted("strict", slip, attrs.evolve(WORLDS[world], requests=2))
    proof = prove_model(model, names=told, depth_max=0)

    assert {name for name in told if proof.verdict(name) != "proved"} == told


@pytest.mark.long
@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("slip", RESTRICTED_IN_VAIN)
def test_the_mutants_are_refuted_for_any_number_in_every_configuration(slip: str, policy: str) -> None:
    told = RESTRICTED_IN_VAIN[slip]
    proofs = prove_worlds(preset(policy), worlds=WORLDS, names=told, model_of=partial(_planted, policy, slip))

    assert {each.name: each.whole for each in proofs} == dict.fromkeys(WORLDS, "refuted")
    assert {each.found.proof.verdict(name) for each in proofs for name in told} == {"refuted"}


def _broken_by_runs(policy: str, slip: str, world: str) -> dict[str, str]:
    """The violations, each with its run, in the first of the explored configurations, smallest first, that has any."""
    make = partial(_planted, policy, slip)
    for smaller in worlds_within(WORLDS[world]):
        names = [item.name for item in properties_of(make(attrs.evolve(smaller, requests=2))) if item.kind == "always"]
        found = explored(make, smaller, 2, names)
        if found:
            return {name: run.token for name, run in found.items() if run.token is not None}
    return {}


@cache
def _of_one_request(policy: str, world: str) -> Model:
    return specification_of(preset(policy), attrs.evolve(WORLDS[world], requests=1))


def _has(policy: str, slip: str, world: str) -> bool:
    return bool(_of_one_request(policy, world).named(NAMED[slip][0]))


NO_MISTAKE = {("notify_each renews_what_it_keeps", "plain")}
"""Every request that a dispatcher keeps in the plain configuration arrived in the same tick, so a renewed deadline is
the same deadline."""
IN_WORLDS = [
    (policy, slip, world)
    for policy in OURS
    for slip in NAMED
    for world in WORLDS
    if (slip, world) not in NO_MISTAKE and _has(policy, slip, world)
]


@pytest.mark.parametrize("case", quick_if(IN_WORLDS, lambda case: case == ("strict", "tick stops_at_one", "plain")))
def test_a_run_refutes_every_mutant_in_every_configuration(case: tuple[str, str, str]) -> None:
    policy, slip, _world = case
    found = _broken_by_runs(*case)

    assert found
    for name, token in found.items():
        named = parse(token)
        model = _planted(policy, slip, named.bounds)
        trace = trace_of(model, [model.actions[index] for index in named.actions], name)
        assert breaks_its_property(trace)


def test_no_run_violates_the_specification_itself() -> None:
    names = [item.name for item in properties_of(specification_of(STRICT, attrs.evolve(PLAIN, requests=2)))]

    assert explored(partial(specification_of, STRICT), PLAIN, 2, names) == {}


def _switched_off(term: Term) -> Term:
    off = {id(each) for each in SWITCHES.values()}
    made: dict[int, Term] = {}
    for node in nodes(term):
        parts = any(id(arg) in made for arg in node.args)
        again = rebuild(node.op, [made.get(id(arg), arg) for arg in node.args]) if parts else node
        made[id(node)] = const(0) if id(node) in off else again
    return made[id(term)]


def _as_without(policy: str) -> tuple[Model, Model]:
    world = attrs.evolve(WORLDS["whole"], requests=3)
    free = attrs.evolve(world, aspects=world.aspects - set(SWITCHES))
    return specification_of(preset(policy), world), specification_of(preset(policy), free)


@pytest.mark.parametrize("policy", OURS)
def test_a_switch_that_is_off_changes_no_term(policy: str) -> None:
    switched, free = _as_without(policy)

    assert [each.label for each in switched.actions] == [each.label for each in free.actions]
    for one, other in zip(switched.actions, free.actions, strict=True):
        assert _switched_off(one.guard) is other.guard, one.label
        assert {name: id(_switched_off(term)) for name, term in one.effect.items()} == {
            name: id(term) for name, term in other.effect.items()
        }


def test_features_that_only_restrict_change_the_actions() -> None:
    switched, free = _as_without("strict")
    differ = {
        one.name
        for one, other in zip(switched.actions, free.actions, strict=True)
        if one.guard is not other.guard or any(term is not other.effect[name] for name, term in one.effect.items())
    }

    assert {"hold", "executor_rejects"} <= differ


@pytest.mark.parametrize(
    "case",
    quick_if([(policy, world) for policy in PRESETS for world in WORLDS], lambda case: case == ("strict", "plain")),
)
def test_every_situation_is_reached_in_every_configuration(case: tuple[str, str]) -> None:
    policy, world = case
    found = situations_of(partial(specification_of, preset(policy)), WORLDS[world])
    plain = specification_of(preset(policy), attrs.evolve(PLAIN, requests=2, messages=1))
    wanted = {item.name for item in properties_of(plain) if item.kind == "sometimes"}

    assert [each.name for each in found if each.found != "reached"] == []
    assert wanted <= {each.name for each in found}
    assert {"inserted_beside_another", "refused_alone"} <= wanted


def _never_refuses(bounds: Bounds) -> Model:
    model = specification_of(STRICT, bounds)
    actions = [attrs.evolve(each, guard=FALSE) if each.name == "executor_rejects" else each for each in model.actions]
    return attrs.evolve(model, actions=tuple(actions))


def test_an_unreachable_situation_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuity, "TRIES", ((False, 4_096, 40),))

    found = {each.name: each for each in situations_of(_never_refuses, PLAIN)}

    assert found["executor_rejects_fires"].found == "not found"
    assert found["refused_alone"].found == "not found"
    assert found["refused_alone"].token is None
    assert found["hold_fires"].found == "reached"


@pytest.mark.long
def test_a_vacuous_property_is_unknown() -> None:
    """If the executor never refuses, properties about refusals hold vacuously and do not count as proved."""
    (found,) = prove_worlds(
        STRICT, worlds={"plain": PLAIN}, names=["dropped_by_reject", "answered_once"], model_of=_never_refuses
    )

    assert found.found.proof.whole == "proved"
    assert worst([found]) == "unknown"
    assert set(verdicts([found]).values()) == {"unknown"}


@pytest.mark.long
@pytest.mark.parametrize("policy", OURS)
def test_our_policies_are_proved_in_every_configuration(policy: str) -> None:
    proofs = prove_worlds(preset(policy))
    missing = unstated(proofs)

    assert [each.name for each in proofs] == list(CONFIGURATIONS)
    assert {each.whole for each in proofs} == {"proved"}
    assert {each.found.why_not for each in proofs} == {None}
    assert all(each.found.cutoff is not None and 2 < each.found.cutoff < smt_any.CUTOFF_MAX for each in proofs)
    assert "moved_is_told" in missing["no-truncate"]
    assert missing["whole"] == []


def _stated(world: Bounds) -> Mapping[str, Property]:
    model = specification_of(STRICT, attrs.evolve(world, requests=2))
    return {item.name: item for item in properties_of(model) if item.kind == "always"}


def test_every_property_is_stated_in_some_configuration() -> None:
    """Every configuration states the properties of the plain one, which include `not_answered_early`."""
    assert "not_answered_early" in _stated(PLAIN)
    assert "moved_is_told" in _stated(WORLDS["whole"])
    for world in WORLDS.values():
        assert set(_stated(PLAIN)) <= set(_stated(world))


def test_every_three_features_of_a_question_are_in_some_configuration() -> None:
    """Without any one configuration, a combination of three features of some question is reported as missing."""
    questions = questions_of(LAW)
    worlds = CONFIGURATIONS
    few = [each for each in questions if len(each.features) <= 3]
    named = {(each.action, each.statement): each.features for each in questions}

    assert named["make_visible", "visible_is_monotone"] == {"queues", "tags", "sql", "crash", "truncate"}
    assert named["stop", "answered_once"] == {"queues"}, "from the guard"
    assert named["hold", "hold_limit_kept"] == {"channels", "queues", "role"}, "from guard and step"
    assert named["stop", "in_range phase"] == {"queues"}, "from one variable"
    assert named["stop", "lists_have_owners"] == {"queues"}, "from a part of the statement"
    assert len(few) > len(questions) / 2
    assert not_taken(few, worlds.values()) == ()
    untaken = len(not_taken(questions, worlds.values()))
    for name in [each for each in worlds if each in {"crash+queues", "commits+truncate", "channels+role"}]:
        fewer = [world for other, world in worlds.items() if other != name]
        assert len(not_taken(questions, fewer)) > untaken, name
    (missed,) = not_taken([Question("hold", "answered_once", frozenset({"crash"}))], [PLAIN])
    assert (missed.features, missed.on, missed.questions) == (("crash",), ("crash",), ("hold: answered_once",))
    assert {each.statement for each in questions if not each.assumed} > {"lost_by_hold", "visible_is_monotone"}
    other = Question("hold", "lost_by_hold", frozenset({"crash"}), assumed=False)
    assert not_taken([other], [PLAIN], ["answered_once"]) == ()
    assert not_taken([other], [PLAIN], ["lost_by_hold"]) == not_taken([other], [PLAIN])


def test_a_vacuous_property_is_not_stated_in_its_configuration() -> None:
    """A property that holds vacuously in one configuration is stated only in configurations where it does not."""
    one_queue, several = stated(2), stated(2, WORLDS["bare"])
    proofs = [
        WorldProof(name, PLAIN, AnyProof(Proof(law.model, law.stated, 0, (), {}), (1,)), ())
        for name, law in {"plain": one_queue, "bare": several}.items()
    ]

    assert {item.name for item in one_queue.stated if item.by_construction} == {"offset_goes_on"}
    assert set(unstated(proofs)["plain"]) == {"offset_goes_on", "round_is_whole"}
    assert unstated(proofs)["bare"] == []


def test_configurations_are_chosen_by_name() -> None:
    """Users choose configurations by name or features, or get the default. An unknown name is refused."""
    assert chosen((), any_number=True, changes={}) == {}
    assert list(chosen((), any_number=False, changes={})) == ["plain"]
    assert chosen(("no-truncate",), any_number=True, changes={}) == {"no-truncate": WORLDS["no-truncate"]}
    assert chosen(("no-truncate",), any_number=True, changes={"tags": 1}) == {
        "own": attrs.evolve(WORLDS["no-truncate"], tags=1)
    }
    both = attrs.evolve(PLAIN, queues=2, aspects=frozenset({"crash", *SWITCHES}))
    assert chosen(("crash+queues",), any_number=True, changes={}) == {"crash+queues": both}
    with pytest.raises(UnknownWorldError, match="known: plain, bare, no-truncate, whole"):
        chosen(("nowhere",), any_number=True, changes={})
    with pytest.raises(UnknownWorldError, match="name one world"):
        chosen(("plain", "whole"), any_number=False, changes={})
    with pytest.raises(UnknownPropertyError):
        prove_worlds(STRICT, worlds=WORLDS, names=["made_up"])
