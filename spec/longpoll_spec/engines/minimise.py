"""Among the shortest runs to a property, find the one with the fewest context switches. Exact.

A breadth-first engine keeps one parent of a state, so it returns an arbitrary shortest run. This pass visits every edge
of the shortest-path graph once, level by level, and keeps the least number of switches for each (state, thread of the
last step). A run's switches are a sum over its edges, so the optimum follows from the optima of its prefixes. One pass
serves every property.

Longer runs with fewer switches are not considered.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import attrs
from attrs import define, field, frozen

from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.python import Packed, Question, Successors, questions, successors
from longpoll_spec.engines.tokens import token_of
from longpoll_spec.errors import TokenError
from longpoll_spec.model import Action, Model, Property, Trace
from longpoll_spec.specification import properties_of
from longpoll_spec.threads import thread_of

LIMIT_STATES: Final = 100_000
"""The pass ends past this number of states, after about a second; an undecided verdict keeps its run."""


class _Link(NamedTuple):
    """The best way into a state by a step of one thread. A tuple, because there are hundreds of thousands."""

    switches: int
    parent: Packed
    parent_thread: str | None
    action: int


@frozen
class _End:
    """The best run to a property so far: its last state, the thread that led there, and the closing step."""

    switches: int
    state: Packed
    thread: str | None
    closing: int | None


def switches_in(actions: Sequence[Action]) -> int:
    """The number of times that a step is by another thread than the one before."""
    return sum(thread_of(first) != thread_of(second) for first, second in pairwise(actions))


@define
class _Pass:
    """The pass over the levels. Invariant: every state of `level` has its best links, one for each last thread."""

    model: Model
    lengths: Mapping[int, int]
    """Property index -> steps of its shortest run."""
    successors: Successors
    threads: Sequence[str]
    here: Mapping[int, Question]
    closing: Mapping[int, Sequence[tuple[int, Question]]]
    links: dict[Packed, dict[str | None, _Link | None]] = field(factory=dict)
    ends: dict[int, _End] = field(factory=dict)

    def walk(self, limit_states: int) -> None:
        level = [self.model.initial]
        self.links[self.model.initial] = {None: None}
        depth_max = max(self.lengths.values(), default=0)
        for depth in range(depth_max):
            self._look(level, depth)
            if len(self.links) > limit_states:
                return
            level = self._expand(level, depth)
        self._look(level, depth_max)

    def _look(self, level: Sequence[Packed], depth: int) -> None:
        for item, ask in self.here.items():
            if self.lengths[item] == depth:
                for state in level:
                    if ask(state):
                        for thread, link in self.links[state].items():
                            self._note(item, _End(_switches(link), state, thread, None))

    def _expand(self, level: Sequence[Packed], depth: int) -> list[Packed]:
        following: dict[Packed, dict[str | None, _Link | None]] = {}
        due = self._closed_after(depth + 1)
        for state in level:
            ways = self.links[state]
            cheapest: dict[str, tuple[int, str | None]] = {}
            for index, after in self.successors(state):
                asked = due.get(index, ())
                if not asked and after in self.links:
                    continue
                thread = self.threads[index]
                if thread not in cheapest:
                    cheapest[thread] = _cheapest(ways, thread)
                switches, came = cheapest[thread]
                for item, ask in asked:
                    if ask(state):
                        self._note(item, _End(switches, state, came, index))
                if after not in self.links:
                    known = following.setdefault(after, {})
                    best = known.get(thread)
                    if best is None or switches < best.switches:
                        known[thread] = _Link(switches, state, came, index)
        self.links.update(following)
        return list(following)

    def _closed_after(self, steps: int) -> Mapping[int, Sequence[tuple[int, Question]]]:
        due = {
            index: [(item, ask) for item, ask in asked if self.lengths[item] == steps]
            for index, asked in self.closing.items()
        }
        return {index: asked for index, asked in due.items() if asked}

    def _note(self, item: int, end: _End) -> None:
        known = self.ends.get(item)
        if known is None or end.switches < known.switches:
            self.ends[item] = end

    def run_to(self, end: _End) -> list[Action]:
        """The actions that lead to an end."""
        chosen = [] if end.closing is None else [end.closing]
        state, thread = end.state, end.thread
        while (link := self.links[state][thread]) is not None:
            chosen.append(link.action)
            state, thread = link.parent, link.parent_thread
        return [self.model.actions[index] for index in reversed(chosen)]


def _cheapest(ways: Mapping[str | None, _Link | None], thread: str) -> tuple[int, str | None]:
    """The fewest switches with which a step of this thread can follow, and the thread of the step before it."""
    every = ((_switches(link) + (last not in {None, thread}), last) for last, link in ways.items())
    return min(every, key=lambda way: way[0])


def _switches(link: _Link | None) -> int:
    return 0 if link is None else link.switches


def fewest_switches(
    model: Model, lengths: Sequence[tuple[Property, int]], *, limit_states: int = LIMIT_STATES
) -> list[list[Action] | None]:
    """For each property with the length of its shortest run: the run with the fewest switches; None past the limit.

    A property is shown by a state or by its closing step. A length that is not the shortest gives None or a run of that
    length, never a wrong run.
    """
    here, closing = questions(model, [item for item, _ in lengths])
    walk = _Pass(
        model=model,
        lengths={number: length for number, (_, length) in enumerate(lengths)},
        successors=successors(model),
        threads=[thread_of(action) for action in model.actions],
        here=here,
        closing=closing,
    )
    walk.walk(limit_states)
    return [walk.run_to(walk.ends[number]) if number in walk.ends else None for number in range(len(lengths))]


def minimised(
    found: Exploration,
    properties: Sequence[Property],
    *,
    limit_states: int = LIMIT_STATES,
    shown: Collection[str] = ("violated", "reached"),
) -> Exploration:
    """The exploration with each run replaced by the one of the same length with the fewest switches, within the limit.

    `properties` are the decided ones, `shown` the verdicts whose runs are displayed. Excluding `sometimes` properties
    saves time: they are often reached late, and the pass goes as deep as the longest run. Ctrl-C keeps the runs as they
    are.
    """
    stated = {item.name: item for item in properties}
    decided = [verdict for verdict in found.verdicts if verdict.depth is not None and verdict.verdict in shown]
    lengths = [(stated[verdict.name], verdict.depth) for verdict in decided if verdict.depth is not None]
    try:
        runs = fewest_switches(found.model, lengths, limit_states=limit_states)
    except KeyboardInterrupt:
        return found
    tokens = {
        verdict.name: token_of(found.model, run, verdict.name)
        for verdict, run in zip(decided, runs, strict=True)
        if run is not None
    }
    verdicts = (attrs.evolve(verdict, token=tokens.get(verdict.name, verdict.token)) for verdict in found.verdicts)
    return attrs.evolve(found, verdicts=tuple(verdicts))


def shortest_token(trace: Trace) -> str:
    """The token of a shortest run that shows the same property as this trace, with the fewest context switches.

    A random run is long, and a run found under a limit need not be shortest. Raises `TokenError` for a run that names
    no property.
    """
    judged = [item for item in properties_of(trace.model) if item.name == trace.property_name]
    if not judged:
        raise TokenError("the token names no property, so its run cannot be shortened")
    (verdict,) = minimised(explore(trace.model, judged), judged).verdicts
    taken = [step.action for step in trace.steps if step.action is not None]
    return verdict.token or token_of(trace.model, taken, trace.property_name)
