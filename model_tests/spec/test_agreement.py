"""Every engine, in every mode, finds the same: the manifest's entries are explored by all of them.

Quick are our own policy's entries, by the plain engine and by the packed one in all its modes at once; `long` are all
entries in each mode by itself. Spark's are in `test_spark_engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pytest

from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import Entry, entry_of, pinned
from longpoll_spec.engines.packed import part as packed_part
from longpoll_spec.engines.packed import search as packed
from longpoll_spec.engines.packed.spill import Plan
from longpoll_spec.engines.packed.words import Words
from longpoll_spec.law import law_of
from longpoll_spec.policy import preset

QUICK_STATES: Final = 5_000
TOGETHER: Final[Mapping[str, Any]] = {"workers": 2, "symmetry": True, "memory_mb": 1}
MODES: Final[Mapping[str, Mapping[str, Any]]] = {
    "python": {"engine": "python"},
    "packed": {},
    "workers": {"workers": 2},
    "three workers": {"workers": 3},
    "symmetry": {"symmetry": True},
    "spill": {"memory_mb": 1},
    "together": TOGETHER,
}


@pytest.fixture(autouse=True)
def _tight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a search with a limit on memory be so short of it that every level goes to disk in several runs."""
    monkeypatch.setattr(packed, "plan_of", lambda *_: Plan(chunk_states=512, stretch_states=4_000, sorted_states=3_000))


def _explored(entry: Entry, options: Mapping[str, Any]) -> Exploration:
    policy = preset(entry.policy)
    return explore(law_of(policy, named(entry.bounds, policy)), **options)


def _name(entry: Entry) -> str:
    return f"{entry.policy}-{entry.bounds}"


OWN: Final = [entry for entry in pinned() if entry.policy == "strict" and entry.distinct_states <= QUICK_STATES]


@pytest.mark.parametrize("mode", ["python", "together"])
@pytest.mark.parametrize("entry", OWN, ids=_name)
def test_our_policy_is_the_same_to_every_engine(entry: Entry, mode: str) -> None:
    """States, transitions, depth and verdicts with their lengths, also with every aspect, are the pinned ones."""
    assert entry_of(_explored(entry, MODES[mode])) == entry


@pytest.mark.long
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("entry", pinned(), ids=_name)
def test_everything_pinned_is_the_same_in_every_mode(entry: Entry, mode: str) -> None:
    """All presets at tiny, at small and with every aspect."""
    assert entry_of(_explored(entry, MODES[mode])) == entry


@pytest.mark.parametrize("mode", ["packed", "workers", "symmetry", "spill"])
def test_a_lost_state_is_seen(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Were one state dropped on its way into the store, every mode would count less: the agreement can fail."""
    honest = packed_part.Part.take

    def lossy(self: packed_part.Part, words: Words) -> None:
        kept = np.ones(words.shape[1], dtype=bool)
        kept[5:6] = False
        honest(self, words.compress(kept, axis=1))

    monkeypatch.setattr(packed_part.Part, "take", lossy)
    entry = next(each for each in OWN if each.bounds == "tiny")

    assert _explored(entry, MODES[mode]).distinct_states < entry.distinct_states
