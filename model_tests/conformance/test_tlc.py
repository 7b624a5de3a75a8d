"""TLC on the exported law, unchanged: the same states, transitions, depth and verdicts as our engines.

TLC is in no package registry: these tests run where `TLA2TOOLS` names its jar or class path, and are skipped loudly
elsewhere. What it must find stands in the manifest of the engines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from longpoll_spec.bounds import EXPLORATIONS, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.manifest import Entry, pinned
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Property
from longpoll_spec.policy import PRESETS, policy_named, preset
from longpoll_spec.render.export.tla import NEVER, tla_configuration_of, tla_of
from longpoll_spec.render.notation import name_of
from longpoll_spec.terms import TRUE
from longpoll_spec.testing.tlc import TlcRun, TlcViolation, only_invariants, run_tlc, why_no_tlc

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(why_no_tlc() is not None, reason=f"TLC NOT TRIED: {why_no_tlc()}"),
]
TINY = [entry for entry in pinned() if entry.bounds == "tiny"]
SMALL = [entry for entry in pinned() if entry.bounds == "small"]
ASPECTS = [entry for entry in pinned() if entry.bounds in EXPLORATIONS]
QUICK_STATES = 50_000
"""A space of more states takes TLC over 10 s with every property."""


class _Export:
    """The module and configuration of a pinned entry."""

    def __init__(self, entry: Entry) -> None:
        policy = preset(entry.policy)
        self.model = law_of(policy, named(entry.bounds, policy))
        self.properties = properties_of(self.model)
        self.name = name_of(self.model)
        self.module = tla_of(self.model, self.properties)
        self.configuration = tla_configuration_of(self.model, self.properties)

    def property(self, name: str) -> Property:
        return next(item for item in self.properties if item.name == name)

    def check(self, directory: Path, invariants: Iterable[str] | None = None) -> TlcRun | TlcViolation:
        """Run TLC on the export as it is, or with these invariants only."""
        chosen = self.configuration if invariants is None else only_invariants(self.configuration, invariants)
        return run_tlc(self.name, self.module, chosen, directory)


def _counts(entry: Entry) -> TlcRun:
    return TlcRun(entry.distinct_states, entry.transitions, entry.depth)


@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_runs_the_export_unchanged(entry: Entry, tmp_path: Path) -> None:
    """As exported a sound policy passes with the pinned counts, and a faulty one stops at a violated property."""
    found = _Export(entry).check(tmp_path)

    if entry.violated:
        assert isinstance(found, TlcViolation)
        assert found.invariant in entry.violated
    else:
        assert found == _counts(entry)


def _case(entry: Entry) -> ParameterSet:
    marks = () if entry.distinct_states <= QUICK_STATES else pytest.mark.long
    return pytest.param(entry, marks=marks, id=f"{entry.policy}-{entry.bounds}")


@pytest.mark.parametrize("entry", [_case(entry) for entry in (*TINY, *ASPECTS)])
def test_tlc_finds_the_pinned_counts(entry: Entry, tmp_path: Path) -> None:
    """With every property that holds TLC goes through all states, and counts what our engines count."""
    assert _Export(entry).check(tmp_path, ["TypeOK", *entry.holds]) == _counts(entry)


@pytest.mark.parametrize("policy", ["strict+recheck_after_hold=in_lock", "strict-clone+heap_entry=one_shot+tick=free"])
def test_tlc_agrees_on_policies_with_knobs(policy: str, tmp_path: Path) -> None:
    """Off the presets too TLC counts what the packed engine counts in the same law."""
    chosen = policy_named(policy)
    model = law_of(chosen, named("tiny", chosen))
    ours = explore(model)
    configuration = only_invariants(tla_configuration_of(model, ()), ["TypeOK"])

    assert run_tlc(name_of(model), tla_of(model, ()), configuration, tmp_path) == TlcRun(
        ours.distinct_states, ours.transitions, ours.depth
    )


@pytest.mark.long
@pytest.mark.parametrize("entry", SMALL, ids=lambda entry: entry.policy)
def test_tlc_finds_the_pinned_counts_at_small(entry: Entry, tmp_path: Path) -> None:
    """The same at small, where TLC looks at the types alone."""
    assert _Export(entry).check(tmp_path, ["TypeOK"]) == _counts(entry)


def _length(export: _Export, name: str, nearest: int) -> int:
    """TLC stops at a state from which a step breaks the property; our run ends with that step."""
    item = export.property(name)
    return nearest + (item.here is TRUE and bool(item.closing))


@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_finds_every_violation_at_its_shortest(entry: Entry, tmp_path: Path) -> None:
    """Each violated property alone: TLC's counterexample is as long as ours."""
    export = _Export(entry)
    lengths: dict[str, int] = {}
    for name in entry.violated:
        found = export.check(tmp_path, [name])
        assert isinstance(found, TlcViolation), name
        lengths[name] = _length(export, name, found.length)

    assert lengths == entry.violated


@pytest.mark.long
@pytest.mark.parametrize("entry", TINY, ids=lambda entry: entry.policy)
def test_tlc_reaches_what_must_be_reached(entry: Entry, tmp_path: Path) -> None:
    """Each `Never_` invariant alone is violated, after as many steps as our engines need."""
    export = _Export(entry)
    lengths: dict[str, int] = {}
    for name in entry.reached:
        found = export.check(tmp_path, [NEVER + name])
        assert isinstance(found, TlcViolation), name
        lengths[name] = _length(export, name, found.length)

    assert lengths == entry.reached


def test_every_preset_and_every_aspect_is_compared() -> None:
    """No preset is left out of the comparison, under no aspect."""
    assert {entry.policy for entry in TINY} == {entry.policy for entry in SMALL} == set(PRESETS)
    assert {(entry.policy, entry.bounds) for entry in ASPECTS} == {
        (policy, aspect) for policy in PRESETS for aspect in EXPLORATIONS
    }


@pytest.mark.parametrize(
    ("pattern", "replacement"),
    [
        (r"can_hold_0 ==\n  /\\ phase_0 = PHASE_MISSED\n.*\n", r"can_hold_0 == phase_0 = PHASE_MISSED\n"),
        (r"(can_notify_end ==\n  /\\ dispatcher = DISPATCHER_WALKING\n).*\n", r"\1"),
        (r"(?s)(\nrun_0 ==.*?copies_0' = )\(copies_0 - 1\)", r"\1copies_0"),
    ],
)
def test_a_slip_in_the_exported_module_is_seen(pattern: str, replacement: str, tmp_path: Path) -> None:
    """One slip in a guard or an effect changes what TLC counts or finds."""
    entry = next(entry for entry in TINY if entry.policy == "strict")
    export = _Export(entry)
    export.module, count = re.subn(pattern, replacement, export.module, count=1)

    assert count == 1
    assert export.check(tmp_path) != _counts(entry)


def test_a_module_that_tlc_cannot_read_is_no_result(tmp_path: Path) -> None:
    """What TLC says about a module that does not parse reaches the reader."""
    export = _Export(TINY[0])
    export.module = export.module.replace("Next ==", "Next =")

    with pytest.raises(RuntimeError, match="TLC did not finish"):
        export.check(tmp_path)
