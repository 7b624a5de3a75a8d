"""Pins the steps of small explorations: `tiny`, each small feature, and each pair of features.

Counts of states and transitions miss a wrong step that keeps the counts. So the sum, modulo 2**64, of a hash of (state,
action, next state) over all steps is pinned too. It is independent of the search order.

`python -m model_tests.support.spec.edges` writes `edges.json` again. Properties: see `manifest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Final

import msgspec

from longpoll_spec.bounds import ASPECTS, Bounds, named
from longpoll_spec.engines import manifest
from longpoll_spec.engines.python import successors
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, Policy
from longpoll_spec.specification import specification_of
from longpoll_spec.tables import with_table

FEATURES: Final = ("queues", "tags", *(name for name in ASPECTS if name != "lateness"))
LARGE: Final = frozenset({"queues", "tags", "sql", "commits", "role"})
"""Features with which two requests are too many for the plain engine."""


def _pair(one: str, other: str) -> Bounds:
    pair = frozenset({one, other})
    return Bounds(
        f"{one}+{other}",
        requests=1 if pair & LARGE else 2,
        messages=1,
        queues=2 if "queues" in pair else 1,
        tags=2 if "tags" in pair else 1,
        aspects=pair - {"queues", "tags"},
    )


PAIRS: Final = {bounds.name: bounds for bounds in (_pair(*pair) for pair in combinations(FEATURES, 2))}
"""Name -> bounds with these two features."""
STATES_MAX: Final = 30_000
"""Maximum states of an exploration in the manifest whose steps are pinned."""
_FILE: Final = "edges.json"
_MODULUS: Final = 2**64


@with_table
class Edges(msgspec.Struct, frozen=True, kw_only=True):
    """The steps of one preset under one bounds."""

    policy: str
    bounds: str
    distinct_states: int
    transitions: int
    depth: int
    edges: str
    """The sum of the hashes of all steps, as 16 hexadecimal digits."""


def edges_of(model: Model) -> Edges:
    """Explore a model and sum its steps."""
    step = successors(model)
    labels = [action.label for action in model.actions]
    seen, level, depth, transitions, edges = {model.initial}, [model.initial], -1, 0, 0
    while level:
        depth += 1
        found = []
        for before in level:
            for index, after in step(before):
                transitions += 1
                edges += _hash(f"{before} {labels[index]} {after}")
                if after not in seen:
                    seen.add(after)
                    found.append(after)
        level = found
    return Edges(
        policy=model.policy.name,
        bounds=model.bounds.name,
        distinct_states=len(seen),
        transitions=transitions,
        depth=depth,
        edges=f"{edges % _MODULUS:016x}",
    )


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def pinned() -> list[Edges]:
    """Returns every pinned exploration."""
    text = Path(__file__).with_name(_FILE).read_text(encoding="utf-8")
    return msgspec.json.decode(text, type=list[Edges])


def bounds_of(policy: Policy) -> Iterator[Bounds]:
    """Iterate over the bounds under which the steps of a preset are pinned."""
    for entry in manifest.pinned():
        if entry.policy == policy.name and entry.distinct_states <= STATES_MAX:
            yield named(entry.bounds, policy)
    yield from PAIRS.values()


def main() -> None:
    """Write the pinned file again."""
    made = [edges_of(specification_of(each, bounds)) for each in PRESETS.values() for bounds in bounds_of(each)]
    Path(__file__).with_name(_FILE).write_text(manifest.text_of(made), encoding="utf-8")


if __name__ == "__main__":
    main()
