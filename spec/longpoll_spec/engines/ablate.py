"""What each knob is for: our own policies with one knob at a time set otherwise, and what then breaks.

A changed policy is explored under small bounds and with each aspect of the world, which gives the shortest run for each
property that breaks, and every other property of the world without aspects is proved for any messages, timeout and scan
period. A change that breaks nothing makes its knob
redundant there, and must be claimed with a reason in `policy.REDUNDANT`; a claim that is wrong, and a redundancy that
nobody claims, are findings against the table itself.

Leaves out pairs of knobs: two changes may break what neither breaks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.smt.proof import REQUESTS, prove
from longpoll_spec.policy import REDUNDANT, Policy, knob_values, preset, with_knob
from longpoll_spec.specification import properties_of, specification_of

POLICIES: Final = ("strict", "strict-clone")
"""The policies that are our own design, so that each knob's value is meant."""
BOUNDS: Final = ("tiny", *(name for name in EXPLORATIONS if name != "queues"), "queues", "small")
"""Explored in this order, until something breaks: what is small first."""
Claims = Mapping[tuple[str, str], str]
"""(policy, knob setting) -> why the change breaks nothing."""
Report = Callable[[str], None]


@frozen
class Row:
    """One change of one knob, and what came of it."""

    policy: str
    knob: str
    """The change, such as `expiry=scan`."""
    violations: tuple[Verdict, ...]
    """The `always` properties that break, in the law's order, each with its shortest run."""
    undecided: tuple[str, ...] = field(default=())
    """Properties that no explored run breaks and that are not proved either."""
    claim: str | None = None
    """Why the change is said to break nothing."""

    @property
    def depth(self) -> int | None:
        """Steps of the shortest run that breaks something."""
        return min((verdict.depth for verdict in self.violations if verdict.depth is not None), default=None)

    @property
    def redundant_because(self) -> str | None:
        """The claim's reason, where the change indeed breaks nothing."""
        return None if self.violations or self.undecided else self.claim

    @property
    def problem(self) -> str | None:
        """What is wrong with what the table claims of this change; None where it is right, or not decided."""
        if self.violations:
            names = ", ".join(verdict.name for verdict in self.violations)
            return f"claimed to be redundant, yet it breaks {names}" if self.claim else None
        return None if self.claim or self.undecided else "it breaks nothing, and no reason is given"


def changes_of(policy: Policy) -> Iterator[str]:
    """Every setting of one knob that differs from the policy's own, in the order of the knobs."""
    for knob, values in knob_values().items():
        yield from (f"{knob}={str(value).lower()}" for value in values if value != getattr(policy, knob))


def ablate(names: Iterable[str] = POLICIES, *, claims: Claims = REDUNDANT, report: Report | None = None) -> list[Row]:
    """A row for every change of one knob of these policies. `report` hears of each change before it is tried.

    Raises `UnknownPolicyError`.
    """
    rows = []
    for name in names:
        policy = preset(name)
        for setting in changes_of(policy):
            if report is not None:
                report(f"{name} with {setting}")
            rows.append(row_of(policy, setting, claims=claims))
    return rows


def row_of(policy: Policy, setting: str, *, claims: Claims = REDUNDANT, requests: int = REQUESTS) -> Row:
    """What becomes of a policy with one knob set otherwise; `requests` is what the proof is for."""
    changed = with_knob(policy, setting)
    bounds, violations = _explored(changed)
    proof = prove(changed, requests=requests, depth_max=0)
    proved = {name for name in proof.needed if proof.verdict(name) == "proved"}
    broken = {verdict.name for verdict in violations}
    both = proved & broken if bounds.is_plain else set[str]()
    assert not both, f"{changed.name}: proved, and broken by a run: {sorted(both)}"
    undecided = tuple(name for name in proof.needed if name not in proved | broken)
    return Row(policy.name, setting, tuple(violations), undecided, claims.get((policy.name, setting)))


def _explored(policy: Policy) -> tuple[Bounds, Sequence[Verdict]]:
    """The first bounds under which any property breaks, and those that do; the last bounds where none does."""
    for name in BOUNDS:
        bounds = named(name, policy)
        model = specification_of(policy, bounds)
        judged = [item for item in properties_of(model) if item.kind == "always"]
        found = explore(model, judged, symmetry=True)
        assert found.complete, policy.name
        broken = [verdict for verdict in found.verdicts if verdict.verdict == "violated"]
        if broken:
            return bounds, broken
    return named(BOUNDS[-1], policy), ()
