from __future__ import annotations

from functools import cache
from itertools import permutations, product

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_spec.bounds import Bounds
from longpoll_spec.engines import explore
from longpoll_spec.engines.analysis.symmetry import Renaming
from longpoll_spec.engines.evaluate import evaluate, values_of
from longpoll_spec.engines.exploration import Exploration, Progress
from longpoll_spec.engines.manifest import Entry, entry_of, pinned
from longpoll_spec.engines.packed.orbits import Orbits, orbits_of
from longpoll_spec.engines.packed.words import key_of, words_of
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import EngineLimitError, SymmetryError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.testing.cases import quick_if
from longpoll_spec.testing.models import model_named
from longpoll_spec.testing.strategies import runs

VARIANTS = ["strict+recheck_after_hold=in_lock", "strict-clone+heap_entry=one_shot+tick=free"]


def _tokens(result: Exploration) -> dict[str, str]:
    return {verdict.name: verdict.token for verdict in result.verdicts if verdict.token is not None}


@pytest.mark.parametrize(
    "entry",
    quick_if(
        (each for each in pinned() if each.bounds in {"tiny", "small", "queues"}),
        lambda each: each.policy == "strict" or (each.policy, each.bounds) == ("rocketmq-5", "tiny"),
    ),
    ids=lambda each: f"{each.policy}-{each.bounds}",
)
def test_expanded_counts_are_the_plain_ones(entry: Entry) -> None:
    """States, transitions, depth and every verdict with its length are what the manifest pins for every state."""
    assert entry_of(explore(model_named(entry.policy, entry.bounds), symmetry=True)) == entry


@pytest.mark.parametrize("requests", quick_if([2, 3], lambda requests: requests == 2))
@pytest.mark.parametrize("name", quick_if([*PRESETS, *VARIANTS], lambda name: name == VARIANTS[-1]))
def test_every_token_runs_and_shows_what_it_says(name: str, requests: int) -> None:
    """A run is rebuilt with the requests that really act, has the shortest length, and ends where it should."""
    model = model_named(name, requests=requests)
    plain, folded = explore(model), explore(model, symmetry=True)
    broken = {item.name: item for item in properties_of(model)}

    assert entry_of(plain) == entry_of(folded)
    assert dict(plain.fired) == dict(folded.fired)
    for verdict in (each for each in folded.verdicts if each.token is not None):
        assert verdict.token is not None
        trace = replay(verdict.token)
        item = broken[verdict.name]
        # A step that breaks a property is the run's last; what is said is about the state before it.
        ends = [values_of(model, step.state) for step in trace.steps[-2:]]
        wanted = 1 if item.kind == "sometimes" else 0
        assert trace.depth == verdict.depth
        assert wanted in [evaluate(item.term, end) for end in ends]


@cache
def _orbits(name: str, queues: int) -> Orbits:
    return orbits_of(law_of(preset(name), Bounds("three", requests=3, messages=1, queues=queues)), [])


@pytest.mark.parametrize("name", quick_if(PRESETS, lambda name: name == "strict-clone"))
@given(data=st.data())
def test_every_arrangement_has_one_canonical_word(name: str, data: st.DataObject) -> None:
    """Renaming requests and queues changes neither what stands for a state nor how many states it stands for."""
    orbits = _orbits(name, data.draw(st.integers(1, 3)))
    model = orbits.model
    _, state = data.draw(runs(model))
    keys = {orbits.layout.pack(each) for each in _arrangements(model, state)}

    canonical = orbits.canonical(words_of(sorted(keys), orbits.layout.words))
    assert {key_of(canonical, column) for column in range(len(keys))} == {key_of(canonical, 0)}
    assert key_of(canonical, 0) in keys
    assert orbits.sizes(canonical[:, :1])[0] == len(keys)


def _arrangements(model: Model, state: tuple[int, ...]) -> list[tuple[int, ...]]:
    """The state under every renaming, made variable by variable."""
    values = values_of(model, state)
    made: list[tuple[int, ...]] = []
    numbers = [permutations(range(count)) for count in (model.bounds.requests, model.bounds.queues)]
    for requests, queues in product(*numbers):
        renaming = Renaming(dict(enumerate(requests)), dict(enumerate(queues)))
        renamed = {
            renaming.name(variable.name): (
                renaming.queues.get(values[variable.name], values[variable.name])
                if variable.numbers_queues
                else values[variable.name]
            )
            for variable in model.variables
        }
        made.append(tuple(renamed[variable.name] for variable in model.variables))
    return made


@pytest.mark.parametrize("symmetry", [False, True], ids=["plain", "symmetry"])
def test_queues_give_the_python_engines_counts(symmetry: bool) -> None:
    """Two queues and three requests, as far as they go: counts by instance are those of the plain engine."""
    model = law_of(preset("strict"), Bounds("queues", requests=3, messages=1, queues=2))
    judged = [item for item in properties_of(model) if item.kind == "always"]
    plain = explore(model, judged, engine="python", limit_states=5_000)
    fast = explore(model, judged, symmetry=symmetry, limit_states=5_000)

    assert (plain.distinct_states, plain.depth) == (fast.distinct_states, fast.depth)
    assert dict(plain.fired) == dict(fast.fired)


def test_more_queues_than_can_be_renamed_are_refused() -> None:
    """Five queues have 120 renamings: the error says how many can be folded."""
    model = law_of(preset("strict"), Bounds("five", requests=1, messages=1, queues=5))

    with pytest.raises(SymmetryError, match="5 queues have too many renamings; check at most 4 with --symmetry"):
        explore(model, [], symmetry=True, limit_states=10)


def test_what_tells_requests_apart_is_refused() -> None:
    """A property of request 0 alone, or an action that only request 1 lacks, is named: folding would be wrong."""
    model = model_named("strict")
    stated = properties_of(model)[0]
    partial = attrs.evolve(stated, name="first_only", term=model.state.requests[0].copies <= 1)
    lame = attrs.evolve(model, actions=tuple(each for each in model.actions if each.label != "expire(1)"))

    with pytest.raises(SymmetryError, match="first_only tells requests or queues apart"):
        explore(model, [stated, partial], symmetry=True)
    with pytest.raises(SymmetryError, match="the law tells requests or queues apart"):
        explore(lame, [stated], symmetry=True)


def test_an_interrupt_in_the_middle_of_a_level_keeps_whole_counts() -> None:
    """Ctrl-C gives counts of whole orbits so far."""

    def interrupt(progress: Progress) -> None:
        if progress.depth == 7:
            raise KeyboardInterrupt

    result = explore(model_named("strict", requests=3), symmetry=True, report=interrupt)
    assert not result.complete
    assert result.depth == 7
    assert result.fired["pull_read(0)"] == result.fired["pull_read(2)"]


def test_only_the_packed_engine_folds() -> None:
    """Another engine says so instead of exploring something else."""
    with pytest.raises(EngineLimitError, match="python engine has no symmetry; use --engine packed"):
        explore(model_named("strict"), engine="python", symmetry=True)
