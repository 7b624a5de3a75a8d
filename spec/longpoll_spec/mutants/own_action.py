"""Replace an action by your own: report what it breaks, as a counterexample.

For lessons and for trying a change. There are no tokens: a run of a changed specification replays on no other.
"""

from __future__ import annotations

from longpoll_spec.actions import actions_of
from longpoll_spec.actions.family import instances
from longpoll_spec.bounds import named
from longpoll_spec.engines import explore
from longpoll_spec.engines.evaluate import trace_of
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.manifest import pinned
from longpoll_spec.engines.tokens import parse
from longpoll_spec.model import Family, Model, Trace
from longpoll_spec.policy import preset
from longpoll_spec.render.pictures.text import story_text
from longpoll_spec.render.story import story_of
from longpoll_spec.specification import assemble, properties_of
from longpoll_spec.state import State, state_of

LIMIT_STATES = 100_000
"""A change may make the state space infinite; violations appear long before this number of states."""


def rewritten(state: State, family: Family) -> Model:
    """The specification with this action in place of the one of the same name; raises `ValueError` if there is none."""
    kept = [action for action in actions_of(state) if action.name != family.name]
    before = [action for action in actions_of(state) if action.name == family.name]
    if not before:
        raise ValueError(f"{state.policy.name} has no action {family.name}; see docs/spec.md for those it has")
    return assemble(state, [*kept, *instances(family, state)])


def broken_by(model: Model) -> tuple[Exploration, list[Verdict]]:
    """The exploration, and the verdicts that are wrong, the shortest run first."""
    found = explore(model, properties_of(model), engine="python", limit_states=LIMIT_STATES)
    wrong = [verdict for verdict in found.verdicts if verdict.verdict in {"violated", "unreached"}]
    return found, sorted(wrong, key=lambda verdict: (verdict.depth is None, verdict.depth or 0))


def trace_in(model: Model, verdict: Verdict) -> Trace:
    """The run of a verdict, in the changed specification."""
    assert verdict.token is not None, verdict.name
    return trace_of(model, [model.actions[index] for index in parse(verdict.token).actions], verdict.name)


def report(family: Family, *, policy: str, bounds: str) -> str:
    """The properties that the change breaks, with the shortest run step by step, as text.

    Raises `UnknownPolicyError`, `BoundsError`, and `ValueError` for an action that the policy does not have.
    """
    chosen = preset(policy)
    model = rewritten(state_of(chosen, named(bounds, chosen)), family)
    found, wrong = broken_by(model)
    lines = [f"{policy} at {bounds} with your {family.name}: {found.distinct_states:,} states"]
    lines += [f"  {each.name} is {each.verdict}{_steps(each)}" for each in wrong]
    told = next((each for each in wrong if each.token is not None), None)
    if told is not None:
        return "\n".join([*lines, "", story_text(story_of(trace_in(model, told)))])
    if not wrong:
        lines.append(f"  nothing breaks, and the model has {_pinned(policy, bounds, found)}")
    return "\n".join(lines)


def _steps(verdict: Verdict) -> str:
    return "" if verdict.depth is None else f", in {verdict.depth} steps"


def _pinned(policy: str, bounds: str, found: Exploration) -> str:
    entry = next((each for each in pinned() if (each.policy, each.bounds) == (policy, bounds)), None)
    if entry is None:
        return "no numbers under these bounds to compare with"
    same = (found.distinct_states, found.transitions, found.depth) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )
    return (
        "the same states, transitions and depth" if same else f"{entry.distinct_states:,} states: your change is seen"
    )
