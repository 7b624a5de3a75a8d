"""Shows the purpose of each knob: change one knob of our policies at a time and report which properties break.

Each changed policy is explored under small bounds and with each feature, which gives the shortest run for every broken
property. The other properties of the model without features are proved for any number of messages, any timeout and any
scan period. If a change breaks nothing, the knob is redundant in that policy, and the table `policy.REDUNDANT` must
have an entry with the reason. Missing and wrong entries are reported as problems.

Pairs of knobs are not tried, although two changes together may break a property that neither breaks alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Verdict
from longpoll_spec.engines.smt.proof import REQUESTS, prove
from longpoll_spec.policy import REDUNDANT, Policy, other_settings, preset, with_knob
from longpoll_spec.specification import properties_of, specification_of

POLICIES: Final = ("strict", "strict-clone")
"""The policies of our own design, in which every knob's value is chosen on purpose."""
BOUNDS: Final = ("tiny", *(name for name in EXPLORATIONS if name != "queues"), "queues", "small")
"""The bounds that are explored, in this order, until a property breaks."""
Claims = Mapping[tuple[str, str], str]
"""Maps (policy, knob setting) to the reason why this change breaks nothing."""
Report = Callable[[str], None]


@frozen
class Row:
    """The result of changing one knob of a policy."""

    policy: str
    knob: str
    """The changed knob with its new value, such as `expiry=scan`."""
    violations: tuple[Verdict, ...]
    """The `always` properties that break, in the order of the spec, each with its shortest run."""
    undecided: tuple[str, ...] = field(default=())
    """The names of properties that no explored run breaks and that are not proved either."""
    claim: str | None = None
    """The reason in the table why the change breaks nothing; None if the table does not list the change."""

    @property
    def depth(self) -> int | None:
        """The number of steps of the shortest run that breaks a property; None if no run does."""
        return min((verdict.depth for verdict in self.violations if verdict.depth is not None), default=None)

    @property
    def redundant_because(self) -> str | None:
        """The reason that the table gives, if the change indeed breaks nothing; otherwise None."""
        return None if self.violations or self.undecided else self.claim

    @property
    def problem(self) -> str | None:
        """The error in the table about this change; None if the table is right or the result is undecided."""
        if self.violations:
            names = ", ".join(verdict.name for verdict in self.violations)
            return f"claimed to be redundant, but it breaks {names}" if self.claim else None
        return None if self.claim or self.undecided else "it breaks nothing, but no reason is given"


def ablate(name: str, *, report: Report | None = None) -> list[Row]:
    """A row for every change of one knob of a policy. `report` gets each change before it is tried.

    Raises `UnknownPolicyError` for an unknown name.
    """
    policy = preset(name)
    rows = []
    for setting in other_settings(policy):
        if report is not None:
            report(f"{name} with {setting}")
        rows.append(row_of(policy, setting))
    return rows


def row_of(policy: Policy, setting: str, *, claims: Claims = REDUNDANT, requests: int = REQUESTS) -> Row:
    """Change one knob of a policy and return the result; the proof covers `requests` requests."""
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
    """The first bounds under which properties break, with these properties; the last bounds if no property breaks."""
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
