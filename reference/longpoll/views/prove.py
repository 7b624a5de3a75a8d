"""The output of `longpoll prove`: one JSON object, or a table for people.

Other programs rely on the JSON keys (docs/model.md). The command line: `longpoll.commands.specification`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text

from longpoll.output import out, say, styled, table
from longpoll.views.check import BY_CONSTRUCTION, coloured, show_tokens, show_verdict
from longpoll_spec.bounds import Bounds
from longpoll_spec.engines.smt.any_number import AnyProof
from longpoll_spec.engines.smt.configurations import NotTaken, WorldProof, exception, headline, unstated, verdicts
from longpoll_spec.engines.smt.inductive import Counterexample
from longpoll_spec.engines.smt.proof import Obligation, Proof
from longpoll_spec.render.notation import state_text

WORDS: Final = {
    "initial": "true in the first state",
    "inductive": "inductive",
    "implies": "implied",
    "bounded": "true of all runs",
}
"""Maps a step of a proof to the word for a property that passes this step."""

DETAILED: Final = 4
"""If a proof has at most this many configurations, each one is shown in detail."""


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
        "obligations": [_obligation(each) for each in found.obligations],
        "given_up": sorted(found.given_up),
    }


def worlds(
    policy: str, found: Sequence[WorldProof], untried: Sequence[NotTaken], *, named: bool, explored: Sequence[str]
) -> dict[str, Any]:
    """The JSON object of a proof for any number of requests, in several configurations.

    Every obligation names its configuration. `untried` are the combinations of features that no configuration covers.
    `named` says that the user chose the configurations.
    """
    missing = unstated(found)
    return {
        "policy": policy,
        "requests": "any",
        "verdict": headline(found, untried, named=named, explored=explored),
        "seconds": round(sum(each.found.proof.seconds for each in found), 3),
        "verdicts": verdicts(found),
        "worlds": [
            {
                "world": each.name,
                "queues": each.world.queues,
                "tags": each.world.tags,
                "aspects": sorted(each.world.aspects),
                "seconds": round(each.found.proof.seconds, 3),
                "cutoff": each.found.cutoff,
                "proved_at": each.found.proved_at,
                "why_not": each.found.why_not,
                "verdict": each.whole,
                "verdicts": {
                    name: each.found.proof.verdict(name)
                    for name in each.found.proof.needed
                    if name not in missing[each.name]
                },
                "by_construction": [
                    name for name in each.found.proof.by_construction if name not in missing[each.name]
                ],
                "unstated": missing[each.name],
                "given_up": sorted(each.found.proof.given_up),
                "situations": {one.name: {"found": one.found, "token": one.token} for one in each.situations},
                "in_vain": [one.name for one in each.in_vain],
            }
            for each in found
        ],
        "not_taken": [
            {"features": each.features, "on": each.on, "obligations": len(each.questions)} for each in untried
        ],
        "obligations": [
            {"world": each.name, **_obligation(row)} for each in found for row in each.found.proof.obligations
        ],
    }


def _obligation(each: Obligation) -> dict[str, Any]:
    return {
        "property": each.property_name,
        "step": each.step,
        "verdict": each.verdict,
        "seconds": round(each.seconds, 4),
        "token": each.token,
        "depth": each.depth,
        "counterexample": None if each.counterexample is None else _counterexample(each.counterexample),
    }


def _counterexample(shown: Counterexample) -> dict[str, Any]:
    return {
        "state": dict(zip((each.name for each in shown.model.variables), shown.state, strict=True)),
        "parameters": shown.parameters,
        "action": None if shown.action is None else shown.action.label,
    }


def show_worlds(
    proofs: Sequence[WorldProof], untried: Sequence[NotTaken], *, named: bool, explored: Sequence[str]
) -> None:
    """Print the verdict and a line for each configuration, then the details of each configuration that is not proved.

    A few configurations are all shown in detail.
    """
    missing = unstated(proofs)
    show_verdict(headline(proofs, untried, named=named, explored=explored))
    if untried:
        say(f"no configuration has {len(untried)} combinations of features of one obligation; --json lists them")
    if len(proofs) > DETAILED:
        rows = (
            (each.name, each.whole, ", ".join(map(str, each.found.proved_at)), str(len(each.found.proof.obligations)))
            for each in proofs
        )
        table("Configurations", ("configuration", "verdict", "numbers of requests", "obligations"), rows)
    for each in proofs:
        if len(proofs) > DETAILED and each.whole == "proved":
            continue
        _show_head(each.found.proof, "any number of", f"configuration {each.name}: ")
        _show_cutoff(each.found)
        _show_rows(each.found.proof, f"Proof in configuration {each.name}")
        if missing[each.name]:
            say(f"not stated in configuration {each.name}: {', '.join(missing[each.name])}")
        _show_situations(each)


def show_proof(found: Proof, world: str, explored: Sequence[str]) -> None:
    """Print the proof for a given number of requests in one configuration."""
    left = exception(explored) if found.whole == "proved" else ""
    show_verdict(f"{found.whole} for {found.model.bounds.requests} requests in {world} alone{left}")
    _show_head(found, str(found.model.bounds.requests), "")
    _show_rows(found, "Proof")


def _show_head(found: Proof, requests: str, world: str) -> None:
    out.tell(
        f"{found.model.policy.name}: {requests} requests, any number of messages, any timeout and scan period, "
        f"{world}{_world(found.model.bounds)}; "
        f"{len(found.obligations)} obligations in {found.seconds:.1f} s",
    )


def _show_situations(found: WorldProof) -> None:
    """Print whether each situation that must occur does, so that no proof is vacuous."""
    seen = len(found.situations) - len(found.in_vain)
    say(f"situations that must occur: {seen} of {len(found.situations)} do in configuration {found.name}")
    for each in found.in_vain:
        say(f"  {each.name}: no run was found. {each.sentence}")


def _show_rows(found: Proof, title: str) -> None:
    names = dict.fromkeys(each.property_name for each in found.obligations)
    table(title, ("property", "verdict", "by"), ((name, *_by(found, name)) for name in names))
    tokens = ((each.property_name, each.token) for each in found.obligations if each.token is not None)
    show_tokens(found.model.policy, tokens)
    if found.given_up:
        say(f"statements that this policy does not need or does not keep: {', '.join(found.given_up)}")
    for name in found.needed:
        if found.verdict(name) == "unknown":
            _show_unknown(found, name)


def _world(bounds: Bounds) -> str:
    aspects = f", with {', '.join(sorted(bounds.aspects))}" if bounds.aspects else ""
    return f"{bounds.queues} queue(s), {bounds.tags} tag(s){aspects}"


def _show_cutoff(found: AnyProof) -> None:
    if found.cutoff is not None:
        numbers = ", ".join(str(each) for each in found.proved_at[:-1])
        out.print(f"the proof for {numbers} and {found.cutoff} requests is a proof for any number")
    elif found.why_not is not None:
        out.tell(styled("[yellow]no proof for any number: {}[/]", found.why_not))


def _by(found: Proof, name: str) -> tuple[Text, str]:
    rows = [each for each in found.obligations if each.property_name == name]
    how = ", ".join(f"{each.step} {each.seconds:.2f} s" for each in rows)
    return coloured(BY_CONSTRUCTION if name in found.by_construction else found.verdict(name)), how


def _show_unknown(found: Proof, name: str) -> None:
    """Print the state in which induction fails; this state may be unreachable."""
    shown = [(each.step, each.counterexample) for each in found.obligations if each.property_name == name]
    # Show only the last reason, which is that of the induction step, if there is one.
    for step, why in [(step, why) for step, why in shown if why is not None][-1:]:
        breaks = "is violated" if why.action is None else f"is violated by the step {why.action.label}"
        say(f"\n{name}: not {WORDS[step]}. In this state, which may be unreachable, it {breaks}:")
        say(state_text(why.model, why.state, why.parameters))
