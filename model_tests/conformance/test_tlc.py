"""TLC agrees with our engines on the exported module: counts, violations and fairness."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs
import pytest
from model_tests.support.spec.tlc import TlcRun, TlcViolation, keeps, only_invariants, run_tlc, why_no_tlc

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.custom import policy_from
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.python import unanswered
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.export.tla import tla_configuration_of, tla_name_of, tla_of
from longpoll_spec.specification import fairness_of, properties_of, specification_of
from longpoll_spec.terms import TRUE

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}"),
]

FAIRNESS: Final = "Fairness"
TIME_PASSES: Final = "TimePasses"


def _model(policy: str, bounds: Bounds | None = None) -> Model:
    chosen = policy_from(policy)
    return specification_of(chosen, bounds or named("tiny", chosen))


def _check(model: Model, checked: Iterable[str], directory: Path) -> TlcRun | TlcViolation:
    """Run TLC on the module, with additional lines in its configuration."""
    configuration = tla_configuration_of(model)
    assert set(checked) <= set(configuration.splitlines())
    chosen = "\n".join([only_invariants(configuration, ["TypeOK"]), *checked, ""])
    return run_tlc(tla_name_of(model), tla_of(model), chosen, directory)


@pytest.mark.parametrize(
    ("policy", "requests", "queues"),
    [
        ("strict+recheck_after_hold=in_lock", 2, 1),
        ("strict-clone+heap_entry=one_shot+tick=free", 2, 1),
        ("strict-pop", 1, 2),
        ("rocketmq-5-notification", 1, 2),
        *(
            pytest.param(policy, *sizes, marks=pytest.mark.long)
            for policy in ("strict", "rocketmq-4.9")
            for sizes in [(2, 1), (3, 1), (2, 2)]
        ),
    ],
)
def test_tlc_finds_our_counts(policy: str, requests: int, queues: int, tmp_path: Path) -> None:
    """The module of a policy gives our counts for several numbers of requests and queues."""
    model = _model(policy, named("tiny", policy_from(policy), requests=requests, queues=queues))
    ours = explore(model)

    assert _check(model, [], tmp_path) == TlcRun(ours.distinct_states, ours.transitions, ours.depth)


@pytest.mark.parametrize(
    "policy",
    [pytest.param(name, marks=() if name in {"strict", "rocketmq-4.9"} else pytest.mark.long) for name in PRESETS],
)
def test_tlc_finds_our_verdicts(policy: str, tmp_path: Path) -> None:
    """TLC reports violations of exactly the properties that our engine finds violated, with runs of the same length."""
    entry = pinned_entry(policy, "tiny")
    model = _model(policy)
    lines = tla_configuration_of(model).splitlines()
    checked = {line.split()[1]: line for line in lines if line.startswith(("INVARIANT", "PROPERTY"))}
    assert set(entry.violated) < set(checked)

    kept = [line for name, line in checked.items() if name not in entry.violated and name != "TypeOK"]
    assert _check(model, kept, tmp_path) == TlcRun(entry.distinct_states, entry.transitions, entry.depth)
    for name, length in entry.violated.items():
        found = _check(model, [checked[name]], tmp_path)
        assert isinstance(found, TlcViolation), name
        item = next(each for each in properties_of(model) if each.name == name)
        # TLC's run ends in the state before the violating step, and our run ends with this step.
        ends_before = checked[name].startswith("INVARIANT") and item.here is TRUE and bool(item.closing)
        assert (found.invariant, found.length + ends_before) == (name, length)


def test_an_invalid_module_gives_no_result(tmp_path: Path) -> None:
    model = _model("strict")
    module = tla_of(model).replace("Next ==", "Next =")

    with pytest.raises(RuntimeError, match="TLC did not finish"):
        run_tlc(tla_name_of(model), module, tla_configuration_of(model), tmp_path)


ONE_QUEUE: Final = named("truncate", preset("strict"))
TWO_TAGS: Final = Bounds("two-tags", requests=1, messages=1, tags=2, aspects=frozenset({"truncate"}))


def _is_answered(model: Model, assumed: str, directory: Path) -> bool:
    """Whether TLC finds that every pull is answered under this fairness."""
    module = tla_of(model).replace("====\n", f"Tried == Spec /\\ {assumed}\n====\n")
    assert module.count("Tried ==") == 1
    return keeps(tla_name_of(model), module, tla_configuration_of(model), "Answered", directory)


@pytest.mark.parametrize(
    ("bounds", "assumed", "answered"),
    [
        (ONE_QUEUE, "WF_vars(Next)", False),
        (ONE_QUEUE, FAIRNESS, True),
        (TWO_TAGS, FAIRNESS, False),
        (TWO_TAGS, f"{FAIRNESS} /\\ {TIME_PASSES}", True),
    ],
    ids=["next", "each", "each-with-tags", "time-passes-with-tags"],
)
def test_tlc_finds_pulls_answered_under_the_exported_fairness(
    bounds: Bounds, assumed: str, answered: bool, tmp_path: Path
) -> None:
    """Fairness of `Next` is not enough; fairness of each urgent action and of tick is, if no filter is used."""
    assert _is_answered(_model("strict", bounds), assumed, tmp_path) == answered


@pytest.mark.parametrize("name", ["strict", "strict-clone", "rocketmq-4.9"])
@pytest.mark.parametrize("time_passes", [False, True])
def test_tlc_agrees_with_our_own_search(name: str, time_passes: bool, tmp_path: Path) -> None:
    model = _model(name, ONE_QUEUE)
    ours = unanswered(model, attrs.evolve(fairness_of(model), time_passes=time_passes))
    assumed = f"{FAIRNESS} /\\ {TIME_PASSES}" if time_passes else FAIRNESS

    assert _is_answered(model, assumed, tmp_path) == (ours is None)
