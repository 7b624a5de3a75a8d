"""Refutation: it searches for runs that break a property, first by exploring small bounds and then by unrolling.

The packed engine explores a hundred thousand states in a second, and many violating runs are longer than the runs that
a solver can unroll in a minute. So the configuration of a proof is explored first, with at most two requests, one or
two messages and a timeout of one tick or three, up to a limit of states. If exploring reaches this limit, random runs
are tried. A run that breaks a property is reported as a token. If no run breaks the property, exploring decides
nothing.

After exploring, a solver unrolls runs of a given number of steps: bounded model checking (Biere and others, 1999) over
unbounded messages and any timeout and scan period not below those of the bounds. Lengths are tried in ascending order,
so the first run found is a shortest one; its token replays in every engine. Statements that were proved by induction
are asserted for every step, which changes no result and saves most of the time. A property without a counterexample up
to the greatest length is `unknown` here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
import z3
from attrs import define, field, frozen

from longpoll_spec.bounds import TICKS_MAX, Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.packed.random_runs import random_runs
from longpoll_spec.engines.smt.terms import Frame, becomes, check, frame_of, open_parameters, solver_of, value_in
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.model import Action, Model, Property
from longpoll_spec.specification import properties_of
from longpoll_spec.state.variables import SWITCHES
from longpoll_spec.terms import Bool

Report: TypeAlias = Callable[[str], None]


@frozen
class Refutation:
    """The result for one property.

    Without a token, no run of up to `depth` steps breaks the property; if not `exhausted`, the time ran out before
    longer runs were tried.
    """

    depth: int
    seconds: float
    token: str | None = None
    exhausted: bool = True


@define
class _Unrolling:
    """A run of growing length. Invariant: `choices[k][i]` means that step k + 1 is action i; one i is true."""

    model: Model
    lemmas: Sequence[Bool]
    solver: Any = field(factory=solver_of)
    parameters: Mapping[str, Any] = field(init=False)
    frames: list[Frame] = field(factory=list)
    choices: list[list[Any]] = field(factory=list)

    def __attrs_post_init__(self) -> None:
        # Switches keep their values, because the bounds in a token say whether the feature of a switch is on.
        switches = {each.args[0] for each in SWITCHES.values()}
        opened = open_parameters(self.model)
        self.parameters = {name: constant for name, constant in opened.items() if name not in switches}

    def start(self) -> None:
        self.solver.add(*(constant >= least for constant, least in self._least()))
        self.solver.add(*(constant <= TICKS_MAX for constant in self.parameters.values()))
        meaning = Frame({}, self.parameters).meaning
        self.frames.append(Frame({each.name: meaning(each.first) for each in self.model.variables}, self.parameters))

    def _least(self) -> Iterable[tuple[Any, int]]:
        bounds, state = self.model.bounds, self.model.state
        least = {state.hold_ticks.args[0]: bounds.hold_ticks, state.scan_ticks.args[0]: bounds.scan_ticks}
        return [(constant, least[name]) for name, constant in self.parameters.items()]

    def lengthen(self) -> None:
        moment = len(self.frames)
        before, after = self.frames[-1], frame_of(self.model, f"@{moment}", self.parameters)
        chosen = [z3.Bool(f"{action.label}@{moment}") for action in self.model.actions]
        for choice, action in zip(chosen, self.model.actions, strict=True):
            step = [before.meaning(action.guard), *becomes(self.model, action.effect, before, after)]
            self.solver.add(z3.Implies(choice, z3.And(*step)))
        self.solver.add(z3.Or(*chosen), z3.AtMost(*chosen, 1))
        self.solver.add(*(after.meaning(lemma) for lemma in self.lemmas))
        self.frames.append(after)
        self.choices.append(chosen)

    def breaking(self, item: Property) -> Any:
        """The constraint that the property is false in the last state, or that it forbids the last step."""
        bad = [self.frames[-1].meaning(~item.here)]
        if self.choices:
            chosen = {action.label: choice for action, choice in zip(self.model.actions, self.choices[-1], strict=True)}
            before = self.frames[-2]
            bad += [z3.And(chosen[label], before.meaning(condition)) for label, condition in item.closing]
        return z3.Or(*bad)

    def ask(self, item: Property, timeout_s: float) -> tuple[str, str | None]:
        """Ask for a run of exactly this length that breaks the property; returns z3's answer, and a token if `sat`."""
        self.solver.push()
        self.solver.set("timeout", max(1, round(timeout_s * 1000)))
        self.solver.add(self.breaking(item))
        answer = check(self.solver)
        token = self._token_in(self.solver.model(), item) if answer == "sat" else None
        self.solver.pop()
        return answer, token

    def _token_in(self, solution: Any, item: Property) -> str:
        state = self.model.state
        hold, scan = (
            value_in(solution, self.parameters[term.args[0]]) for term in (state.hold_ticks, state.scan_ticks)
        )
        bounds = attrs.evolve(self.model.bounds, hold_ticks=hold, scan_ticks=scan)
        return token_of(attrs.evolve(self.model, bounds=bounds), self._run_in(solution), item.name)

    def _run_in(self, solution: Any) -> list[Action]:
        return [
            action
            for chosen in self.choices
            for choice, action in zip(chosen, self.model.actions, strict=True)
            if z3.is_true(solution.eval(choice))
        ]


@define
class _Search:
    """The search for one property. Invariant: until it is decided, no run of `depth` steps breaks the property."""

    item: Property
    depth: int = -1
    seconds: float = 0.0
    decided: Refutation | None = None

    def go_on(self, unrolling: _Unrolling, timeout_s: float) -> None:
        began = time.perf_counter()
        left_s = timeout_s - self.seconds
        answer, token = unrolling.ask(self.item, left_s) if left_s > 0 else ("unknown", None)
        self.seconds += time.perf_counter() - began
        if answer == "sat":
            self.decided = Refutation(self.depth + 1, self.seconds, token)
        elif answer == "unknown":
            self.decided = Refutation(self.depth, self.seconds, exhausted=False)
        else:
            self.depth += 1


def refute(
    model: Model,
    properties: Iterable[Property],
    *,
    depth_max: int,
    timeout_s: float,
    lemmas: Sequence[Bool] = (),
    report: Report | None = None,
) -> Mapping[str, Refutation]:
    """For each property, search for a shortest run of at most `depth_max` steps that breaks it.

    `timeout_s` is the time per property, in seconds. `lemmas` must hold in every reachable state. `report` gets a text
    for each property and length before it is tried.
    """
    unrolling = _Unrolling(model, lemmas)
    unrolling.start()
    searches = [_Search(item) for item in properties]
    for depth in range(depth_max + 1):
        pending = [search for search in searches if search.decided is None]
        if not pending:
            break
        if depth:
            unrolling.lengthen()
        for search in pending:
            if report is not None:
                report(f"{search.item.name}: runs of {depth} steps")
            search.go_on(unrolling, timeout_s)
    return {search.item.name: search.decided or Refutation(search.depth, search.seconds) for search in searches}


ModelOf: TypeAlias = Callable[[Bounds], Model]
STATES: Final = 200_000
"""Exploring ends after the level in which it reaches this number of states."""
SIZES: Final = ((1, 1), (1, 3), (2, 1))
"""(messages, ticks of a timeout), tried in this order. A restarted deadline shows with three ticks, but not with one.
"""
RUNS: Final = 16_384
"""The number of random runs, if there are too many states to explore."""
STEPS: Final = 40


def explored(
    model_of: ModelOf, world: Bounds, requests: int, names: Sequence[str], report: Report | None = None
) -> Mapping[str, Refutation]:
    """Map each named property that a run breaks in this configuration to the first run found.

    `model_of` returns the model for given bounds. Names of properties that the model does not have are ignored.
    `report` gets a text for each search before it begins.
    """
    found: dict[str, Refutation] = {}
    for bounds in _small(world, requests):
        left = [name for name in names if name not in found]
        if left:
            found.update(_broken(model_of(bounds), left, report))
    return found


def _small(world: Bounds, requests: int) -> Iterator[Bounds]:
    for messages, hold_ticks in SIZES:
        yield attrs.evolve(world, requests=requests, messages=messages, hold_ticks=hold_ticks)


def _broken(model: Model, names: Sequence[str], report: Report | None) -> Iterator[tuple[str, Refutation]]:
    judged = [item for item in properties_of(model) if item.name in names]
    if not judged:
        return
    if report is not None:
        bounds = model.bounds
        report(f"exploring: {bounds.requests} requests, {bounds.messages} messages, timeout {bounds.hold_ticks}")
    searched = explore(model, judged, limit_states=STATES)
    for each in searched.verdicts:
        if each.verdict == "violated" and each.depth is not None:
            yield each.name, Refutation(each.depth, searched.seconds, each.token)
    left = [item for item in judged if searched.verdict(item.name).verdict == "unknown"]
    if left:
        began = time.perf_counter()
        for name, run in random_runs(model, left, runs=RUNS, steps=STEPS).items():
            yield name, Refutation(len(run), time.perf_counter() - began, token_of(model, run, name))
