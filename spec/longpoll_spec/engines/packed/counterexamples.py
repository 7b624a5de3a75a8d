"""Rebuild counterexamples backwards from the levels of a search, all at once.

A search without parent pointers keeps, for each level, the states first reached at that depth. From a witness's state
this finds the least state in the previous level that leads to it, and so on to the first state. One pass over the
levels serves every witness. The result does not depend on how workers shared the search.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from longpoll_spec.engines.exploration import Witness
from longpoll_spec.engines.packed.orbits import Orbits
from longpoll_spec.model import Action, Model

Sources: TypeAlias = Mapping[int, tuple[int, int]]
"""Key of a state -> (key of a state that leads to it, index of the action)."""
Before: TypeAlias = Callable[[Sequence[int], int], Sources]
"""(keys of states, depth) -> for each of them its least source in the level of this depth."""


def runs_backwards(
    model: Model, witnesses: Sequence[Witness], before: Before, orbits: Orbits | None = None
) -> list[list[Action]]:
    """The run to each witness, with its closing step; states of witnesses are keys."""
    wanted: dict[int, set[int]] = {}
    for witness in witnesses:
        wanted.setdefault(witness.depth, set()).add(_key(witness))
    sources: dict[tuple[int, int], tuple[int, int]] = {}
    for depth in range(max(wanted, default=0), 0, -1):
        keys = sorted(wanted[depth])
        found = before(keys, depth - 1)
        assert len(found) == len(keys), f"no state of level {depth - 1} leads to some state of the next"
        sources |= {(depth, key): source for key, source in found.items()}
        wanted.setdefault(depth - 1, set()).update(source for source, _ in found.values())
    return [_run_to(model, witness, sources, orbits) for witness in witnesses]


def _run_to(
    model: Model, witness: Witness, sources: Mapping[tuple[int, int], tuple[int, int]], orbits: Orbits | None
) -> list[Action]:
    last = None if witness.closing is None else model.actions[witness.closing]
    keys, actions = [_key(witness)], [] if last is None else [last]
    for depth in range(witness.depth, 0, -1):
        key, index = sources[depth, keys[-1]]
        keys.append(key)
        actions.append(model.actions[index])
    return actions[::-1] if orbits is None else orbits.run_through(keys[::-1], last)


def _key(witness: Witness) -> int:
    assert isinstance(witness.state, int), witness
    return witness.state
