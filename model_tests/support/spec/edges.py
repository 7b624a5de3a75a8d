"""Pins the steps of explorations: those of the manifest, pairs of features, and knob values that no preset has.

Counts of states and transitions miss a wrong step that keeps the counts. So for each exploration the sum, modulo 2**64,
of a hash of (state, action, next state) over all steps is pinned too. The sum does not depend on the search order. The
packed engine makes the steps, and states are hashed in its packed form.

`python -m model_tests.support.spec.edges` writes `edges.json` again. Properties: see `manifest`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from attrs import define

from longpoll_spec.bounds import ASPECTS, Bounds, named
from longpoll_spec.engines import manifest
from longpoll_spec.engines.packed.compile import Expand, expand_of
from longpoll_spec.engines.packed.layout import layout_of
from longpoll_spec.engines.packed.partition import Part
from longpoll_spec.engines.packed.words import Rows, Words, distinct, mixed, words_of
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, Policy, knob_values, policy_named
from longpoll_spec.specification import specification_of
from longpoll_spec.tables import with_table

FEATURES: Final = ("queues", "tags", *(name for name in ASPECTS if name != "lateness"))
LARGE: Final = frozenset({"queues", "tags", "sql", "commits", "role"})
"""Features whose models have too many states with two requests, so they get one request."""


def _pair(one: str, other: str) -> Bounds:
    pair = frozenset({one, other})
    return Bounds(
        f"{one}+{other}",
        requests=1 if pair & LARGE else 2,
        messages=2,
        queues=2 if "queues" in pair else 1,
        tags=3 if "tags" in pair else 1,
        aspects=pair - {"queues", "tags"},
    )


PAIRS: Final = {bounds.name: bounds for bounds in (_pair(*pair) for pair in combinations(FEATURES, 2))}
"""Maps each name to bounds with a pair of features."""
OTHER_BOUNDS: Final = ("tiny", "limit", "tags", "timeout")
"""The bounds under which policies that are no presets are pinned."""
_FILE: Final = "edges.json"
_MODULUS: Final = 2**64


@with_table
class Edges(msgspec.Struct, frozen=True, kw_only=True):
    policy: str
    bounds: str
    distinct_states: int
    transitions: int
    depth: int
    edges: str
    """The sum of the hashes of all steps, as 16 hexadecimal digits."""


def edges_of(model: Model) -> Edges:
    """Explore a model, count its states and transitions, and sum the hashes of its steps."""
    layout = layout_of(model)
    steps = Steps(expand_of(model, layout, ()), [hash_of(action.label) for action in model.actions])
    part = Part(steps, layout.words, len(model.actions), 0, None)
    part.begin()
    part.take(distinct(mixed(words_of([layout.pack(model.initial)], part.words))))
    distinct_states, depth, transitions = 0, -1, 0
    while level := part.next_level():
        distinct_states, depth, over = distinct_states + level, depth + 1, False
        while not over:
            made, words = part.stretch([])
            part.take(words)
            transitions, over = transitions + sum(made.fired), made.over
    return Edges(
        policy=model.policy.name,
        bounds=model.bounds.name,
        distinct_states=distinct_states,
        transitions=transitions,
        depth=depth,
        edges=f"{steps.total % _MODULUS:016x}",
    )


@define
class Steps:
    """An `Expand` that sums the hashes of the steps that it makes."""

    expand: Expand
    labels: Sequence[int]
    total: int = 0

    def __call__(self, words: Words, *given: Any) -> None:
        still_open, weigh, make, fired, found = given
        steps: list[tuple[int, Rows, Words]] = []

        def kept(index: int, chunk: Words, rows: Rows) -> Words:
            made: Words = make(index, chunk, rows)
            steps.append((index, rows, made))
            return made

        self.expand(words, still_open, weigh, kept, fired, found)
        before = hashed(words)
        for index, rows, made in steps:
            each = stirred(before.take(rows) + np.uint64(self.labels[index]) - hashed(made))
            self.total += int(each.sum(dtype=np.uint64))


def hashed(words: Words) -> Any:
    """Returns a hash of each state, computed from all words of the state."""
    found = np.zeros(words.shape[1], dtype=np.uint64)
    for word in words:
        found = stirred(found ^ word)
    return found


def stirred(values: Any) -> Any:
    """Apply the finaliser of SplitMix64 to each value."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def hash_of(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def pinned() -> list[Edges]:
    """Returns every pinned exploration."""
    text = Path(__file__).with_name(_FILE).read_text(encoding="utf-8")
    return msgspec.json.decode(text, type=list[Edges])


def explorations() -> Iterator[tuple[Policy, Bounds]]:
    """Iterate over the policies and bounds whose steps are pinned."""
    pairs = list(PAIRS.values())
    for policy in PRESETS.values():
        yield from ((policy, named(each.bounds, policy)) for each in manifest.pinned() if each.policy == policy.name)
        yield from ((policy, bounds) for bounds in pairs)
    for name in (*(f"strict+{setting}" for setting in OTHERS), *TOGETHER):
        policy = policy_named(name)
        yield from ((policy, named(bounds, policy)) for bounds in OTHER_BOUNDS)


OTHERS: Final = tuple(
    f"{knob}={str(value).lower()}"
    for knob, values in knob_values().items()
    for value in values
    if all(getattr(policy, knob) != value for policy in PRESETS.values())
)
"""The knob settings that no preset has."""
TOGETHER: Final = ("strict+heap_entry=one_shot", "strict-clone+recheck_after_hold=in_lock")
"""Policies that combine two knob values as no preset does. One of the two has an effect only with the other."""


def main() -> None:
    """Write the pinned file again."""
    made = [edges_of(specification_of(*each)) for each in explorations()]
    Path(__file__).with_name(_FILE).write_text(manifest.text_of(made), encoding="utf-8")


if __name__ == "__main__":
    main()
