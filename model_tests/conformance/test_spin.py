"""SPIN on the exported specification finds the states, transitions, depth and verdicts of our engines."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.spin import EVERY_PROPERTY, SpinRun, as_told, compile_spin, run_spin, why_no_spin

from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.custom import policy_from
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.engines.packed.search import explore
from longpoll_spec.policy import PRESETS, policy_named
from longpoll_spec.render.export.promela import promela_of
from longpoll_spec.specification import properties_of, specification_of

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(why_no_spin() is not None, reason=f"SPIN NOT TRIED: {why_no_spin()}"),
]
PINNED = pinned()
TINY = [entry for entry in PINNED if entry.bounds == "tiny"]
SMALL = [entry for entry in PINNED if entry.bounds == "small"]
ASPECTS = [entry for entry in PINNED if entry.bounds in EXPLORATIONS]
QUICK_POLICIES = ("strict", "rocketmq-4.9")
"""The policies that `make test-peers` compares at small too; `make nightly` compares all, with every feature."""


def _exported(policy: str, bounds: str = "tiny") -> str:
    chosen = policy_named(policy)
    model = specification_of(chosen, named(bounds, chosen))
    return promela_of(model, properties_of(model))


def _run(text: str, directory: Path) -> SpinRun:
    return run_spin(compile_spin(text, directory, select=EVERY_PROPERTY), "-w22")


def _facts(run: SpinRun | Entry) -> dict[str, object]:
    """Return the facts that a run of SPIN and an entry of the manifest share."""
    return {
        "distinct_states": run.distinct_states,
        "transitions": as_told(run.transitions) if isinstance(run, Entry) else run.transitions,
        "depth": run.depth,
        "violated": run.violated,
        "reached": run.reached,
    }


def _case(entry: Entry) -> ParameterSet:
    quick = entry.bounds == "tiny" or (entry.bounds == "small" and entry.policy in QUICK_POLICIES)
    return pytest.param(entry, marks=() if quick else pytest.mark.long, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.parametrize("entry", [_case(entry) for entry in (*TINY, *SMALL, *ASPECTS)])
def test_spin_finds_the_pinned_numbers(entry: Entry, tmp_path: Path) -> None:
    assert _facts(_run(_exported(entry.policy, entry.bounds), tmp_path)) == _facts(entry)


def test_every_preset_and_every_feature_is_compared() -> None:
    """The comparison has every preset and every feature, also in tests that use the bounds `tiny`."""
    assert {entry.policy for entry in TINY} == {entry.policy for entry in SMALL} == set(PRESETS)
    assert {(entry.policy, entry.bounds) for entry in ASPECTS} == {
        (policy, aspect) for policy in PRESETS for aspect in EXPLORATIONS
    }
    assert all(_case(entry).marks == () for entry in TINY)


@pytest.mark.parametrize(
    "policy",
    [
        "strict-clone+heap_entry=one_shot+tick=free",
        pytest.param("strict+recheck_after_hold=in_lock", marks=pytest.mark.long),
        pytest.param("strict-clone+on_throw=keep_rest", marks=pytest.mark.long),
        pytest.param("rocketmq-4.9+recheck_after_hold=before_lock", marks=pytest.mark.long),
        "strict-pop",
        "rocketmq-5-pop",
        "rocketmq-5-notification",
        pytest.param("strict-notification", marks=pytest.mark.long),
    ],
)
def test_spin_agrees_on_policies_with_knobs(policy: str, tmp_path: Path) -> None:
    chosen = policy_from(policy)
    model = specification_of(chosen, named("tiny", chosen))
    ours = explore(model, properties_of(model))
    lengths = {verdict.name: verdict.depth for verdict in ours.verdicts if verdict.depth is not None}
    theirs = _run(promela_of(model, properties_of(model)), tmp_path)

    assert (theirs.distinct_states, theirs.transitions, theirs.depth) == (
        ours.distinct_states,
        ours.transitions,
        ours.depth,
    )
    assert {**theirs.violated, **theirs.reached} == lengths


SLIPS = {
    "a guard forgets the lock": (r"#define can_hold_0 .*", "#define can_hold_0 (phase_0 == PHASE_MISSED)"),
    "a guard forgets that the broker stopped": (r"#define can_append \(running && ", "#define can_append ("),
    "an effect forgets a copy": (r"(?s)(d_step { can_run_0 -> .*?)\n +copies_0 = [^;]*;", r"\1"),
    "a walk starts when it may not": (r"#define can_notify_start \(", "#define can_notify_start (true || "),
    "time does not wait": (r"#define can_tick \(", "#define can_tick (true || "),
    "an assignment comes too early": (
        r"(?s)(d_step { can_recheck_0 -> [^\n]*)\n( +copies_0 = [^;]*;)\n( +phase_0 = [^;]*;)",
        r"\1\n\3\n\2",
    ),
}


@pytest.mark.parametrize("slip", quick_if(SLIPS, lambda slip: slip.startswith("an ")))
def test_a_mutant_of_the_exported_text_is_detected(slip: str, tmp_path: Path) -> None:
    """A mutation in a guard, in an effect or in the order of assignments changes SPIN's counts or verdicts."""
    pattern, replacement = SLIPS[slip]
    text = _exported("strict")
    slipped, count = re.subn(pattern, replacement, text, count=1)
    assert count == 1
    assert slipped != text

    entry = next(entry for entry in TINY if entry.policy == "strict")
    assert _facts(_run(slipped, tmp_path)) != _facts(entry)


def test_invalid_promela_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="syntax error"):
        compile_spin("active proctype law( { }", tmp_path)
