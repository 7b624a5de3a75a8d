"""Check whether observed steps are a run of the specification, by following the set of possible states.

The observer knows the time of a step only as an interval. Steps whose intervals do not overlap have a known order. For
steps whose intervals overlap, the check tries every order and merges equal results. Actions that the observer does not
see (hidden actions) may happen between any two steps. The steps conform if at least one order of them is a run of the
specification. If no order is a run, the result has the last possible states, because they show what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from attrs import define, field, frozen

from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.python import Packed, StepFunction, step_of
from longpoll_spec.errors import EngineLimitError
from longpoll_spec.model import Action, Model, Order, SeenStep, order_of
from longpoll_spec.terms import Bool

POSSIBLE_MAX: Final = 100_000
"""The greatest number of possibilities that a check follows at once; beyond it, the check is undecided."""
REMEMBERED_MAX: Final = 50_000
"""The greatest number of states for which a checker caches the effects of hidden actions."""


@frozen
class Possibility:
    """A possible position of the run: its first `count` steps have happened, and so have the later steps in `ahead`."""

    count: int
    ahead: int
    """A bit set: bit n is set if step `count + n` has happened. Bit 0 is never set, because `count` grows when that
    step happens."""
    state: Packed


@frozen
class Refusal:
    """Why one step cannot come next in one possible state."""

    step: int
    """The index of the step in `Order.steps`."""
    action: str
    """The label of the action that the step would be; empty if the specification has no such action."""
    state: Packed
    false: tuple[Bool, ...] = ()
    """The conjuncts of the action's guard that are false in the state."""
    contradicted: tuple[tuple[str, int, int], ...] = ()
    """(variable, its value in the model after the step, the value that the observer saw)."""


@frozen
class Conformance:
    """The result of checking one run."""

    order: Order
    placed: int
    """The greatest number of steps that the specification allows in some order; all steps if the run conforms."""
    certain: int
    """The greatest number of steps after which only one possibility was left; the error lies between here and `placed`.
    """
    possible: tuple[Possibility, ...]
    """The possible positions after `placed` steps, before any hidden action."""
    refusals: tuple[Refusal, ...] = ()
    """For each step whose time allows it to come next, why the specification forbids it; empty if the run conforms."""
    undecided: bool = False
    """Whether the check gave up at step `placed`, because there were more than `possible_max` possibilities."""

    @property
    def conforms(self) -> bool:
        """Whether the observed steps are a run of the specification."""
        return self.placed == len(self.order.steps) and not self.undecided


@define
class Checker:
    """Follows runs of the specification. `_functions` caches the compiled action of each label used so far."""

    model: Model
    hidden: frozenset[str] = frozenset()
    """Names of actions, or labels of instances, that may happen without being observed."""
    possible_max: int = POSSIBLE_MAX
    _actions: dict[str, Action] = field(init=False)
    unseen: tuple[str, ...] = field(init=False)
    """Labels of the hidden instances."""
    _places: dict[str, int] = field(init=False)
    _functions: dict[str, StepFunction] = field(factory=dict)
    _unseen_after: dict[Packed, tuple[Packed, ...]] = field(factory=dict)
    """Caches, for each state, the states that its hidden actions lead to."""

    def __attrs_post_init__(self) -> None:
        self._actions = {action.label: action for action in self.model.actions}
        self.unseen = tuple(
            action.label for action in self.model.actions if not self.hidden.isdisjoint((action.name, action.label))
        )
        self._places = {variable.name: place for place, variable in enumerate(self.model.variables)}

    def check(self, steps: Iterable[SeenStep]) -> Conformance:
        """Check the steps of one run, given in any order: their intervals of time decide which orders are possible."""
        order = order_of(steps)
        level: dict[Possibility, None] = {Possibility(0, 0, self.model.initial): None}
        certain = 0
        for placed in range(len(order.steps)):
            if len(level) == 1 and not next(iter(level)).ahead:
                certain = placed
            reached = self.with_unseen(level)
            if any(here.count >= len(order.open_at) for here in level):
                return Conformance(order, placed, certain, tuple(level), undecided=True)
            following: dict[Possibility, None] = {
                _placed(here, number, after): None for here in reached for number, after in self.taken(order, here)
            }
            if len(following) > self.possible_max or len(reached) > self.possible_max:
                return Conformance(order, placed, certain, tuple(level), undecided=True)
            if not following:
                refusals = {refusal: None for here in reached for refusal in self.refusals(order, here)}
                return Conformance(order, placed, certain, tuple(level), tuple(refusals))
            level = following
        return Conformance(order, len(order.steps), certain, tuple(level))

    def with_unseen(self, level: Iterable[Possibility]) -> dict[Possibility, None]:
        """The possibilities after any number of hidden actions."""
        came = dict.fromkeys(level)
        pending = list(came)
        while pending and len(came) <= self.possible_max:
            here = pending.pop()
            for label in self.unseen:
                after = self.step_function(label)(here.state)
                if after is not None:
                    moved = Possibility(here.count, here.ahead, after)
                    if moved not in came:
                        came[moved] = None
                        pending.append(moved)
        return came

    def states_with_unseen(self, states: Iterable[Packed]) -> dict[Packed, None]:
        """The states after any number of hidden actions, in the order of `with_unseen`, cached by state.

        Use this method for runs whose order is known, because then a possibility is just a state.
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

    def taken(self, order: Order, here: Possibility) -> Iterator[tuple[int, Packed]]:
        """Yield (index of the step, state after it) for each step that the specification allows next."""
        for number in _next(order, here):
            step = order.steps[number]
            for label in step.actions:
                after = self.step_function(label)(here.state)
                if after is not None and not self.contradictions(step, after):
                    yield number, after

    def refusals(self, order: Order, here: Possibility) -> Iterator[Refusal]:
        """Yield, for each step whose time allows it to come next, why the specification forbids it."""
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
        """(variable, its value after the step, observed value) for each observed value that differs from the state."""
        known = ((name, after[self._places[name]], value) for name, value in step.known)
        return [(name, value, seen) for name, value, seen in known if value != seen]

    def step_function(self, label: str) -> StepFunction:
        """The function from a state to the state after the action of this label, or None where it is disabled."""
        if label not in self._functions:
            self._functions[label] = step_of(self.model, self._actions[label])
        return self._functions[label]


@define
class Follower:
    """Follows one run whose steps arrive one after another, in a known order.

    Invariant: `possible` has exactly the states in which the run may be, before any hidden action. `possible` is never
    empty, because a step that no state in `possible` allows is rejected and changes nothing.
    """

    checker: Checker
    possible: dict[Packed, None] = field(init=False)
    taken: tuple[tuple[str, Packed], ...] = ()
    """The actions that the last step may have been: (label, state before the action)."""
    between: Iterable[Packed] = ()
    """The states in which the run may have been before the last step, hidden actions included."""

    def __attrs_post_init__(self) -> None:
        self.possible = {self.checker.model.initial: None}

    def did(self, step: SeenStep) -> tuple[Refusal, ...]:
        """Follow one step; returns for each possible state why it forbids the step, or an empty tuple if one allows it.

        Raises `EngineLimitError` if more than `possible_max` states are possible; the run cannot be followed further
        then.
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
        """The labels of the actions that are enabled in at least one possible state, in the specification's order."""
        reached = list(self.reached())
        labels = (action.label for action in self.checker.model.actions)
        return tuple(label for label in labels if any(map(self._is_step(label), reached)))

    def _is_step(self, label: str) -> Callable[[Packed], bool]:
        function = self.checker.step_function(label)
        return lambda state: function(state) is not None

    def reached(self) -> Iterable[Packed]:
        """The possible states, and the states that hidden actions lead to from them.

        Raises `EngineLimitError` if there are more than `possible_max` of all these states.
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
    return (number for number in order.open_at[here.count] if not here.ahead >> (number - here.count) & 1)


def _placed(here: Possibility, number: int, after: Packed) -> Possibility:
    count, ahead = here.count, here.ahead | 1 << (number - here.count)
    while ahead & 1:
        count, ahead = count + 1, ahead >> 1
    return Possibility(count, ahead, after)


def false_parts(model: Model, action: Action, state: Packed) -> tuple[Bool, ...]:
    """The conjuncts of the action's guard that are false in the state."""
    values = values_of(model, state)
    parts = action.guard.args if action.guard.op == "and" else (action.guard,)
    return tuple(part for part in parts if not evaluate(part, values))
