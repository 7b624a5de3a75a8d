"""Check whether observed steps are a run of the specification, by following the set of possible states.

The time of a step is an interval. If no two intervals overlap, the order is known. Where some overlap, every order is
tried and equal results are merged. Hidden actions may happen anywhere between. The steps are a run if at least one
order of them is. If none is, the last possible states are kept, because they show what is wrong.
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
"""The number of possibilities followed at once, at most."""
REMEMBERED_MAX: Final = 50_000
"""The number of states for which the effects of hidden actions are cached."""


@frozen
class Possibility:
    """A possible position of the run: `count` steps have happened, and of the later steps those in `ahead`."""

    count: int
    ahead: int
    """Bit n is step `count + n`; bit 0 is never set."""
    state: Packed


@frozen
class Refusal:
    """Why one step cannot come next in one possible state."""

    step: int
    """Its number in the order."""
    action: str
    """The label of the action that it would be; empty if the spec has no such action."""
    state: Packed
    false: tuple[Bool, ...] = ()
    """The parts of the guard that are false in the state."""
    contradicted: tuple[tuple[str, int, int], ...] = ()
    """(variable, its value after the step, the value that the observer saw)."""


@frozen
class Conformance:
    """The result of checking one run."""

    order: Order
    placed: int
    """The greatest number of steps that the spec allows in some order; all steps if the run conforms."""
    certain: int
    """The last number of steps after which only one possibility was left: the error lies between this and `placed`."""
    possible: tuple[Possibility, ...]
    """The possible positions after `placed` steps, before any hidden action."""
    refusals: tuple[Refusal, ...] = ()
    """Each step that could come next by its time, and why it cannot; empty if the run conforms."""
    undecided: bool = False
    """There were more possibilities than are followed, so the steps from `placed` on are undecided."""

    @property
    def conforms(self) -> bool:
        """Whether the steps are a run of the spec."""
        return self.placed == len(self.order.steps) and not self.undecided


@define
class Checker:
    """Follows runs of the spec. Invariant: `_functions` caches the actions used so far."""

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
    """Cache: state -> the states that its hidden actions lead to."""

    def __attrs_post_init__(self) -> None:
        self._actions = {action.label: action for action in self.model.actions}
        self.unseen = tuple(
            action.label for action in self.model.actions if not self.hidden.isdisjoint((action.name, action.label))
        )
        self._places = {variable.name: place for place, variable in enumerate(self.model.variables)}

    def check(self, steps: Iterable[SeenStep]) -> Conformance:
        """Follow one run, whose steps may come in any order."""
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
        """The states after any number of hidden actions, in the order of `with_unseen`.

        For steps that come one by one, states are all that matters. Results are cached by state.
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
        """The possible next steps: the step, and the state after it."""
        for number in _next(order, here):
            step = order.steps[number]
            for label in step.actions:
                after = self.step_function(label)(here.state)
                if after is not None and not self.contradictions(step, after):
                    yield number, after

    def refusals(self, order: Order, here: Possibility) -> Iterator[Refusal]:
        """Why each step that may come next by its time is not possible."""
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
        """Where the observed values after the step differ from the state."""
        known = ((name, after[self._places[name]], value) for name, value in step.known)
        return [(name, value, seen) for name, value, seen in known if value != seen]

    def step_function(self, label: str) -> StepFunction:
        """The function from a state to the state after the action of this label, or None where it is disabled."""
        if label not in self._functions:
            self._functions[label] = step_of(self.model, self._actions[label])
        return self._functions[label]


@define
class Follower:
    """The spec next to one run whose steps come one after another, in a known order.

    Invariant: `possible` has exactly the states in which the run may be, before any hidden action. It is never empty: a
    step that fits in none of them is rejected and changes nothing.
    """

    checker: Checker
    possible: dict[Packed, None] = field(init=False)
    taken: tuple[tuple[str, Packed], ...] = ()
    """The possible last steps: labels, each with the state before it."""
    between: Iterable[Packed] = ()
    """The states in which the run may have been between the last two steps."""

    def __attrs_post_init__(self) -> None:
        self.possible = {self.checker.model.initial: None}

    def did(self, step: SeenStep) -> tuple[Refusal, ...]:
        """Take a step; return why it does not fit each possible state, empty if it fits.

        Raises `EngineLimitError` if there are more possibilities than are followed; the run is then lost.
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
        """The labels of the actions that may come next in one of the possible states, in the order of the spec."""
        reached = list(self.reached())
        labels = (action.label for action in self.checker.model.actions)
        return tuple(label for label in labels if any(map(self._is_step(label), reached)))

    def _is_step(self, label: str) -> Callable[[Packed], bool]:
        function = self.checker.step_function(label)
        return lambda state: function(state) is not None

    def reached(self) -> Iterable[Packed]:
        """The possible states, and the states that hidden actions lead to.

        Raises `EngineLimitError` if there are more than are followed.
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
    """The parts of the action's guard that are false in the state."""
    values = values_of(model, state)
    parts = action.guard.args if action.guard.op == "and" else (action.guard,)
    return tuple(part for part in parts if not evaluate(part, values))
