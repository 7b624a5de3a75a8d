"""Makes the report's rows about the specification: engines agree, our design is proved, RocketMQ 4.9's races are found.

If a known race is not found, the row is a violation too, because the specification would be too weak.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from longpoll.verification.report import Outcome, Row
from longpoll_spec.bounds import named
from longpoll_spec.engines import python
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.packed import search as packed
from longpoll_spec.engines.smt.proof import prove
from longpoll_spec.engines.tokens import replay
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.render.pictures import lanes
from longpoll_spec.specification import properties_of, specification_of

OURS: Final = ("strict", "strict-clone")
HAZARDS: Final = {
    "lost_by_hold": "(a) a wakeup is lost between the read and the hold",
    "lost_by_keep": "(b) a wakeup is lost between a notifier's take and keep",
    "queued_by_deadline": "(c) a deadline is missed by up to a scan period",
}
"""The known violations of RocketMQ 4.9, by property."""
PROOF_REQUESTS: Final = 8


def engines_agree() -> Iterator[Row]:
    """Check that the plain and the packed engine give the same counts and verdicts for every preset at tiny bounds."""
    differing = []
    states = 0
    for policy in PRESETS.values():
        model = specification_of(policy, named("tiny", policy))
        properties = properties_of(model)
        plain, fast = python.explore(model, properties), packed.explore(model, properties)
        states += plain.distinct_states
        if _summary(plain) != _summary(fast):
            differing.append(policy.name)
    detail = f"differ on {', '.join(differing)}" if differing else f"{len(PRESETS)} policies, {states:,} states"
    yield Row("law", "engines agree (python, packed)", "violated" if differing else "ok", detail)


def _summary(exploration: Exploration) -> tuple[object, ...]:
    verdicts = tuple((verdict.name, verdict.verdict, verdict.depth) for verdict in exploration.verdicts)
    return exploration.distinct_states, exploration.transitions, exploration.depth, verdicts


def _explored(name: str) -> Exploration:
    policy = preset(name)
    model = specification_of(policy, named("small", policy))
    return packed.explore(model, properties_of(model))


def ours_holds() -> Iterator[Row]:
    """Check that every property of our own policies holds at small bounds, and that none holds vacuously."""
    for name in OURS:
        found = _explored(name)
        bad = [verdict for verdict in found.verdicts if verdict.verdict not in {"holds", "reached"}]
        always = sum(verdict.kind == "always" and not verdict.by_construction for verdict in found.verdicts)
        said = ", ".join(f"{verdict.name} {verdict.verdict}" for verdict in bad)
        said = said or f"{always} properties hold, none vacuously"
        folded = [] if bad else [verdict.name for verdict in found.verdicts if verdict.by_construction]
        detail = f"{found.distinct_states:,} states to depth {found.depth}: {said}{_folded(folded)}"
        verdicts = {verdict.verdict for verdict in bad}
        outcome: Outcome = "violated" if verdicts - {"unknown"} else "unknown" if bad else "ok"
        yield Row("law", f"{name} holds", outcome, detail, token=bad[0].token if bad else None)


def _folded(names: Sequence[str]) -> str:
    """Return the end of a sentence, which lists the properties that hold vacuously; empty if there are none."""
    return f"; vacuously true: {', '.join(names)}" if names else ""


def races_are_found() -> Iterator[Row]:
    """Check that each known finding about RocketMQ 4.9 has a shortest counterexample."""
    exploration = _explored("rocketmq-4.9")
    for name, sentence in HAZARDS.items():
        verdict, what = exploration.verdict(name), f"rocketmq-4.9: {sentence}"
        if verdict.verdict == "violated":
            yield Row("law", what, "ok", f"found, in {verdict.depth} steps", token=verdict.token)
        else:
            yield Row("law", what, "violated", f"not found: {verdict.verdict}")


def ours_is_proved() -> Iterator[Row]:
    """Prove our own policies for any number of messages, any timeout and any scan period."""
    outcomes: dict[str, Outcome] = {"proved": "ok", "refuted": "violated", "unknown": "unknown"}
    for name in OURS:
        proof = prove(preset(name), requests=PROOF_REQUESTS)
        open_names = [each for each in proof.needed if proof.verdict(each) != "proved"]
        shown = len(proof.needed) - len(proof.by_construction)
        detail = f"{shown} statements for {PROOF_REQUESTS} requests, unbounded messages and time"
        detail += f"; not proved: {', '.join(open_names)}" if open_names else ", all proved"
        token = next((row.token for row in proof.obligations if row.token is not None), None)
        yield Row(
            "proof", f"{name} is proved", outcomes[proof.whole], detail + _folded(proof.by_construction), 0, token
        )


def charts(rows: Sequence[Row]) -> Sequence[tuple[str, str]]:
    """(caption, SVG text) of each counterexample among the rows."""
    return [
        (f"{row.what}: longpoll explain {row.token}", lanes.render(replay(row.token)))
        for row in rows
        if row.token is not None
    ]
