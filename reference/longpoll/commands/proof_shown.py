"""How what `longpoll prove` found is shown: as one JSON object, and as a table for people.

The keys are a contract with whoever reads them (docs/law.md). Leaves out the command line (`law`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from rich.text import Text

from longpoll.commands.law_shown import BY_CONSTRUCTION, coloured, show_tokens
from longpoll.output import out, say, styled, table
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.smt import Obligation, Proof
from longpoll_spec.engines.smt_any import AnyProof
from longpoll_spec.engines.smt_inductive import Counterexample
from longpoll_spec.render import states

WORDS: Final = {
    "initial": "true at first",
    "inductive": "inductive",
    "implies": "implied",
    "bounded": "true of all runs",
}
"""Step -> what a property is that passes it."""


def proof(found: Proof) -> dict[str, Any]:
    """The result as the object that `--json` prints."""
    return {
        "policy": found.model.policy.name,
        "requests": found.model.bounds.requests,
        "queues": found.model.bounds.queues,
        "tags": found.model.bounds.tags,
        "aspects": sorted(found.model.bounds.aspects),
        "seconds": round(found.seconds, 3),
        "verdicts": {name: found.verdict(name) for name in found.needed},
        "by_construction": found.by_construction,
        "obligations": [_obligation(found, each) for each in found.obligations],
        "given_up": sorted(found.given_up),
    }


def cutoff(found: AnyProof) -> dict[str, Any]:
    """What replaces the number of requests in the object where a proof is for any number."""
    return {"requests": "any", "cutoff": found.cutoff, "why_not": found.why_not}


def _obligation(found: Proof, each: Obligation) -> dict[str, Any]:
    return {
        "property": each.property_name,
        "step": each.step,
        "verdict": each.verdict,
        "seconds": round(each.seconds, 4),
        "token": each.token,
        "depth": each.depth,
        "counterexample": None if each.counterexample is None else _counterexample(found, each.counterexample),
    }


def _counterexample(found: Proof, shown: Counterexample) -> dict[str, Any]:
    return {
        "state": dict(zip((each.name for each in found.model.variables), shown.state, strict=True)),
        "parameters": shown.parameters,
        "action": None if shown.action is None else shown.action.label,
    }


def show_proof(found: Proof, any_number: Mapping[str, Any]) -> None:
    """Print the result for a person; `any_number` is its `cutoff` if the proof is for any number of requests."""
    requests = "any number of" if any_number else found.model.bounds.requests
    out.print(
        f"{found.model.policy.name}: {requests} requests, any number of messages, any timeout and scan period, "
        f"{_world(found.model.bounds)}; "
        f"{len(found.obligations)} obligations in {found.seconds:.1f} s",
        soft_wrap=True,
    )
    if any_number:
        _show_cutoff(any_number)
    names = dict.fromkeys(each.property_name for each in found.obligations)
    table("Proof", ("property", "verdict", "by"), ((name, *_by(found, name)) for name in names))
    show_tokens((each.property_name, each.token) for each in found.obligations if each.token is not None)
    if found.given_up:
        say(f"not needed or not kept by this policy: {', '.join(found.given_up)}")
    for name in found.needed:
        if found.verdict(name) == "unknown":
            _show_unknown(found, name)


def _world(bounds: Bounds) -> str:
    """What is in the world of the proof."""
    aspects = f", with {', '.join(sorted(bounds.aspects))}" if bounds.aspects else ""
    return f"{bounds.queues} queue(s), {bounds.tags} tag(s){aspects}"


def _show_cutoff(any_number: Mapping[str, Any]) -> None:
    if any_number["cutoff"] is None:
        out.print(styled("[yellow]no proof for any number: {}[/]", any_number["why_not"]), soft_wrap=True)
    else:
        out.print(f"what is proved for 1 to {any_number['cutoff']} requests is proved for any number")


def _by(found: Proof, name: str) -> tuple[Text, str]:
    rows = [each for each in found.obligations if each.property_name == name]
    how = ", ".join(f"{each.step} {each.seconds:.2f} s" for each in rows)
    return coloured(BY_CONSTRUCTION if name in found.by_construction else found.verdict(name)), how


def _show_unknown(found: Proof, name: str) -> None:
    """Where induction fails, as a state: it may be one that no run reaches."""
    for each in found.obligations:
        shown = each.counterexample
        if each.property_name == name and shown is not None:
            step = "is broken" if shown.action is None else f"is broken by the step {shown.action.label}"
            say(f"\n{name}: not {WORDS[each.step]}. In this state, which no run need reach, it {step}:")
            say(states.render(found.model, shown.state, shown.parameters))
