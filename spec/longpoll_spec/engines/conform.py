"""Whether the steps that an observer saw are a run of the law: a set of possible states, one where nothing is in doubt.

A step's moment is an interval. Where no two intervals overlap one state follows upon the other; where some do, every
order is tried at once, and orders that come to the same are one. Actions that the observer cannot see may happen
anywhere between. The steps are a run if one order of them is; if none is, what was possible last is kept, since it
tells what is wrong.

Leaves out where the steps come from. TLC judges the same by `render.export.tla_traces`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from attrs import define, field, frozen

from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.python.compile import Packed, StepFunction, step_of
from longpoll_spec.errors import EngineLimitError
from longpoll_spec.model import Action, Model, Order, SeenStep, TraceStep, order_of
from longpoll_spec.terms import Bool

POSSIBLE_MAX: Final = 100_000
"""Most possibilities that are followed at once."""
REMEMBERED_MAX: Final = 50_000
"""Most states of which is remembered where hidden actions lead."""


@frozen
class Possibility:
    """Where the run may be: the first `count` steps have happened, and of those after them the ones in `ahead`."""

    count: int
    ahead: int
    """Bit n stands for step `count + n`; bit 0 is never set."""
    state: Packed


@frozen
class Refusal:
    """Why one step cannot come next in one possible state."""

    step: int
    """Its number in the order."""
    action: str
    """The label of the action that it would be; empty where the law has no such action."""
    state: Packed
    false: tuple[Bool, ...] = ()
    """The parts of the guard that are false in the state."""
    contradicted: tuple[tuple[str, int, int], ...] = ()
    """(variable, its value after the step, what the observer saw instead)."""


@frozen
class Conformance:
    """What came of a run."""

    order: Order
    placed: int
    """Most steps that any order of the law can begin with; all of them where the run is one of the law."""
    certain: int
    """Steps after which, last, one possibility alone was left: what is wrong lies between this number and `placed`."""
    possible: tuple[Possibility, ...]
    """Where the run may be after `placed` steps, before anything unseen."""
    refusals: tuple[Refusal, ...] = ()
    """Each step that could come next by its moment, and why it cannot; none where the run is one of the law."""
    undecided: bool = False
    """More was possible at once than is followed, so nothing is said of the steps from `placed` on."""

    @property
    def conforms(self) -> bool:
        """Whether the steps are a run of the law."""
        return self.placed == len(self.order.steps) and not self.undecided


Level: TypeAlias = Mapping[Possibility, None]
"""A set in the order in which it was found, so that equal input gives equal output."""


@define
class Checker:
    """The law, ready to follow runs. Invariant: `_functions` has the actions that were asked for."""

    model: Model
    hidden: frozenset[str] = frozenset()
    """Names of actions, or labels of instances, that may happen unseen."""
    possible_max: int = POSSIBLE_MAX
    _actions: dict[str, Action] = field(init=False)
    unseen: tuple[str, ...] = field(init=False)
    """Labels of what may happen unseen."""
    _places: dict[str, int] = field(init=False)
    _functions: dict[str, StepFunction] = field(factory=dict)
    _unseen_after: dict[Packed, tuple[Packed, ...]] = field(factory=dict)
    """State -> where its hidden actions lead, of the states that came last."""

    def __attrs_post_init__(self) -> None:
        """Look the actions and variables up."""
        self._actions = {action.label: action for action in self.model.actions}
        self.unseen = tuple(
            action.label for action in self.model.actions if not self.hidden.isdisjoint((action.name, action.label))
        )
        self._places = {variable.name: place for place, variable in enumerate(self.model.variables)}

    def check(self, steps: Iterable[SeenStep]) -> Conformance:
        """Follow one run, whose steps may come in any order."""
        order = order_of(steps)
        level: Level = {Possibility(0, 0, self.model.initial): None}
        certain = 0
        for placed in range(len(order.steps)):
            if len(level) == 1 and not next(iter(level)).ahead:
                certain = placed
            reached = self.with_unseen(level)
            if any(here.count >= len(order.open_at) for here in level):
                return Conformance(order, placed, certain, tuple(level), undecided=True)
            following = {after: None for here in reached for after in self._successors(order, here)}
            if len(following) > self.possible_max or len(reached) > self.possible_max:
                return Conformance(order, placed, certain, tuple(level), undecided=True)
            if not following:
                refusals = {refusal: None for here in reached for refusal in self.refusals(order, here)}
                return Conformance(order, placed, certain, tuple(level), tuple(refusals))
            level = following
        return Conformance(order, len(order.steps), certain, tuple(level))

    def with_unseen(self, level: Level) -> Level:
        """What may be after any number of hidden actions."""
        if not self.unseen:
            return level
        reached = dict(level)
        pending = list(level)
        while pending and len(reached) <= self.possible_max:
            here = pending.pop()
            for label in self.unseen:
                after = self.step_function(label)(here.state)
                if after is not None:
                    moved = Possibility(here.count, here.ahead, after)
                    if moved not in reached:
                        reached[moved] = None
                        pending.append(moved)
        return reached

    def states_with_unseen(self, states: Iterable[Packed]) -> dict[Packed, None]:
        """The same of states alone, in the same order: where steps come one by one nothing else is told apart.

        What a hidden action leads to is remembered by state: it is asked for again at every step.
        """
        functions = [self.step_function(label) for label in self.unseen]
        reached = dict.fromkeys(states)
        pending = list(reached)
        while pending and len(reached) <= self.possible_max:
            state = pending.pop()
            following = self._unseen_after.get(state)
            if following is None:
                if len(self._unseen_after) >= REMEMBERED_MAX:
                    self._unseen_after.clear()
                following = tuple(after for function in functions if (after := function(state)) is not None)
                self._unseen_after[state] = following
            for after in following:
                if after not in reached:
                    reached[after] = None
                    pending.append(after)
        return reached

    def _successors(self, order: Order, here: Possibility) -> Iterator[Possibility]:
        return (_placed(here, number, after) for number, _label, after in self.taken(order, here))

    def taken(self, order: Order, here: Possibility) -> Iterator[tuple[int, str, Packed]]:
        """What may come next: which step, as which action, and the state after it."""
        for number in _next(order, here):
            step = order.steps[number]
            for label in step.actions:
                after = self.step_function(label)(here.state)
                if after is not None and not self.contradictions(step, after):
                    yield number, label, after

    def refusals(self, order: Order, here: Possibility) -> Iterator[Refusal]:
        """Why none of the steps that may come next by their moments can come."""
        for number in _next(order, here):
            step = order.steps[number]
            if not step.actions:
                yield Refusal(number, "", here.state)
            for label in step.actions:
                after = self.step_function(label)(here.state)
                if after is None:
                    false = false_parts(self.model, self._actions[label], here.state)
                    yield Refusal(number, label, here.state, false=false)
                else:
                    yield Refusal(number, label, here.state, contradicted=tuple(self.contradictions(step, after)))

    def contradictions(self, step: SeenStep, after: Packed) -> Sequence[tuple[str, int, int]]:
        """What was seen after the step and is not so."""
        known = ((name, after[self._places[name]], value) for name, value in step.known)
        return [(name, value, seen) for name, value, seen in known if value != seen]

    def step_function(self, label: str) -> StepFunction:
        """What gives the state after the action of this label, None where it cannot come."""
        if label not in self._functions:
            self._functions[label] = step_of(self.model, self._actions[label])
        return self._functions[label]


_Way: TypeAlias = "tuple[_Way, str, Packed] | None"
"""A run backwards: what came before, the label of its last action, and the state after it."""


def fitting(checker: Checker, steps: Iterable[SeenStep]) -> list[TraceStep]:
    """One run of the law, with what was hidden, that fits what was seen; of several the one found first.

    It ends where the law has no step that fits, and where more is possible at once than is followed.
    """
    order = order_of(steps)
    level: dict[Possibility, _Way] = {Possibility(0, 0, checker.model.initial): None}
    for _ in order.steps:
        came = _with_ways(checker, level)
        if any(here.count >= len(order.open_at) for here in level) or len(came) > checker.possible_max:
            break
        following: dict[Possibility, _Way] = {}
        for here, way in came.items():
            for number, label, after in checker.taken(order, here):
                following.setdefault(_placed(here, number, after), (way, label, after))
        if not following:
            break
        level = following
    return _forwards(checker.model, next(iter(level.values())))


def _with_ways(checker: Checker, level: Mapping[Possibility, _Way]) -> dict[Possibility, _Way]:
    """What may be after any number of hidden actions, each with one way to it."""
    came = dict(level)
    pending = list(level)
    while pending and len(came) <= checker.possible_max:
        here = pending.pop()
        for label in checker.unseen:
            after = checker.step_function(label)(here.state)
            if after is not None:
                moved = Possibility(here.count, here.ahead, after)
                if moved not in came:
                    came[moved] = (came[here], label, after)
                    pending.append(moved)
    return came


def _forwards(model: Model, way: _Way) -> list[TraceStep]:
    actions = {action.label: action for action in model.actions}
    steps = []
    while way is not None:
        way, label, state = way
        steps.append(TraceStep(actions[label], state))
    return [TraceStep(None, model.initial), *reversed(steps)]


@define
class Follower:
    """The law beside one run whose steps come one after another, each certainly after the one before.

    Invariant: `possible` has every state in which the run may be, before anything unseen, and no other; it is never
    empty, since a step that fits in none of them is refused and leaves it as it is.
    """

    checker: Checker
    possible: dict[Packed, None] = field(init=False)
    taken: tuple[tuple[str, Packed], ...] = ()
    """What the last step may have been: labels, each with the state before it."""
    between: Iterable[Packed] = ()
    """The states in which the run may have been between the last two steps."""

    def __attrs_post_init__(self) -> None:
        """Begin in the law's first state."""
        self.possible = {self.checker.model.initial: None}

    def did(self, step: SeenStep) -> tuple[Refusal, ...]:
        """Take a step, or say of each state why it does not fit: nothing if it does.

        Raises `EngineLimitError` where more is possible at once than is followed; the run is then lost.
        """
        following: dict[Packed, None] = {}
        taken: list[tuple[str, Packed]] = []
        reached = self.reached()
        for label in step.actions:
            function = self.checker.step_function(label)
            for state in reached:
                after = function(state)
                if after is not None and not (step.known and self.checker.contradictions(step, after)):
                    following[after] = None
                    taken.append((label, state))
        self._look_at_number(len(following))
        if following:
            self.possible, self.taken, self.between = following, tuple(taken), reached
            return ()
        alone = Order((step,), ((0,),))
        refusals = (each for state in reached for each in self.checker.refusals(alone, Possibility(0, 0, state)))
        return tuple(dict.fromkeys(refusals))

    def may(self) -> tuple[str, ...]:
        """The labels of the actions that may come next in one of the possible states, in the law's order."""
        reached = list(self.reached())
        labels = (action.label for action in self.checker.model.actions)
        return tuple(label for label in labels if any(map(self._is_step(label), reached)))

    def _is_step(self, label: str) -> Callable[[Packed], bool]:
        function = self.checker.step_function(label)
        return lambda state: function(state) is not None

    def reached(self) -> Iterable[Packed]:
        """The possible states, and those that unseen actions lead to.

        Raises `EngineLimitError` where these are more than are followed.
        """
        if not self.checker.unseen:
            return self.possible
        reached = self.checker.states_with_unseen(self.possible)
        self._look_at_number(len(reached))
        return reached

    def _look_at_number(self, count: int) -> None:
        if count > self.checker.possible_max:
            raise EngineLimitError(
                f"more than {self.checker.possible_max} states are possible at once; hide fewer actions"
            )


def _next(order: Order, here: Possibility) -> Iterator[int]:
    """The steps that may come next by their moments."""
    return (number for number in order.open_at[here.count] if not here.ahead >> (number - here.count) & 1)


def _placed(here: Possibility, number: int, after: Packed) -> Possibility:
    count, ahead = here.count, here.ahead | 1 << (number - here.count)
    while ahead & 1:
        count, ahead = count + 1, ahead >> 1
    return Possibility(count, ahead, after)


def false_parts(model: Model, action: Action, state: Packed) -> tuple[Bool, ...]:
    """The parts of the action's guard that are false in the state."""
    values = values_of(model, state)
    parts = action.guard.args if action.guard.op == "and" else (action.guard,)
    return tuple(part for part in parts if not evaluate(part, values))
