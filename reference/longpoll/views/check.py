"""The output of `longpoll check`: a short summary, all tables, or one JSON object. Programs rely on the object's keys.

`HARMS` describes the harm of each violated property for a user, the worst harm first; `worst` uses this order to choose
what `longpoll check` prints by default. Harm without a fault comes before harm that needs a full executor, an exception
or a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, Literal

from rich.text import Text

from longpoll.output import out, say, styled, table
from longpoll_spec.engines.exploration import Exploration, Verdict
from longpoll_spec.engines.survey import BOUNDS as RESPONSE_BOUNDS
from longpoll_spec.engines.survey import Row, Survey
from longpoll_spec.findings import findings_of
from longpoll_spec.model import LeadsTo, Property
from longpoll_spec.policy import Policy
from longpoll_spec.specification import leads_to_of, properties_of

Kind = Literal["lost", "missed", "unanswered", "late", "repeated", "crash", "wasted"]
HARMS: Final[tuple[tuple[Kind, str, str], ...]] = (
    # A message does not reach a consumer, or an answer is wrong.
    ("lost", "nothing_skipped", "A consumer never gets a message that has its tag."),
    ("lost", "visible_is_monotone", "A message that was visible disappears without a crash."),
    ("lost", "offset_goes_on", "A consumer's next pull skips messages or asks for some again."),
    ("lost", "answer_is_right", "A pull gets an answer that does not match its queue."),
    # A message is there, but the pull that waits for it is not woken.
    ("missed", "no_lost_wakeup", "A pull keeps waiting although a message for it is there."),
    ("missed", "lost_by_hold", "A message that comes between a pull's read and its hold does not wake the pull."),
    ("missed", "lost_by_keep", "A message that comes while a notifier has the pull in its list wakes no pull."),
    ("missed", "woken_within", "A message is visible, and the pull that waits for it is answered ticks later."),
    # A consumer waits until its own timeout.
    ("unanswered", "no_orphan", "A held pull is lost in the table: no message, no scan and no deadline answers it."),
    ("unanswered", "nothing_dropped", "The broker drops a waiting pull and never answers it."),
    ("unanswered", "dropped_by_reject", "A pull that the executor rejects never gets an answer."),
    ("unanswered", "dropped_by_throw", "An exception in a notifier drops its pulls: they never get an answer."),
    ("unanswered", "time_can_pass", "The broker can reach a state in which it does nothing more."),
    # A message or an answer comes later than it should.
    ("late", "answered_by_deadline", "A pull is answered after its deadline."),
    ("late", "queued_by_deadline", "A held pull stays in the table past its deadline."),
    ("late", "no_lost_deadline", "A held pull that is past its deadline cannot expire."),
    ("late", "moved_is_told", "A pull waits on for an offset that was truncated or deleted."),
    ("late", "round_is_whole", "A scan stops at a queue whose store fails, and pulls on the other queues wait longer."),
    ("late", "return_is_whole", "When the master returns, some held pulls are not answered."),
    ("late", "told_of_role_change", "When a slave becomes master, held pulls are not answered."),
    ("late", "told_of_master_return", "When the master returns, pulls that its slave holds are not answered."),
    ("late", "answered_on_stop", "A broker that stops does not answer the pulls that it holds."),
    # A consumer does or gets something once too often.
    (
        "repeated",
        "commit_never_regresses",
        "A committed offset moves back: after a restart messages are consumed again.",
    ),
    ("repeated", "answered_once", "A pull is answered twice."),
    ("repeated", "not_answered_early", "A pull is answered as not found before its deadline."),
    ("repeated", "deadline_is_its_pulls", "A pull's deadline changes while it waits."),
    # These harms need a crash.
    ("crash", "seen_survives", "A crash removes a message that a consumer may already have seen."),
    ("crash", "commit_in_queue", "After a queue loses messages, a group skips some that come next."),
    ("crash", "only_disk_survives", "After a crash the broker is not in the state that is on disk."),
    # Wasted memory or work.
    ("wasted", "hold_limit_kept", "The broker holds more pulls than its limit allows."),
    ("wasted", "closed_is_let_go", "Pulls of a closed connection stay in memory."),
    ("wasted", "buckets_are_swept", "Empty buckets stay in the table."),
    ("wasted", "table_is_tidy", "Entries of answered pulls stay in memory."),
)
"""(kind of harm, property, sentence about the harm), the worst harm first."""
PART_OF: Final = {
    "dropped_by_reject": "nothing_dropped",
    "dropped_by_throw": "nothing_dropped",
    "lost_by_hold": "no_lost_wakeup",
    "lost_by_keep": "no_lost_wakeup",
    "woken_within": "no_lost_wakeup",
    "queued_by_deadline": "answered_by_deadline",
}
"""Maps a property to the more general property that is violated with it."""
SENTENCES: Final = {name: sentence for _kind, name, sentence in HARMS}
_RANK: Final = {name: place for place, (_kind, name, _sentence) in enumerate(HARMS)}


def worst(violated: Iterable[str], most: int) -> list[str]:
    """Return at most `most` of the violated properties, the worst first, without those that are part of another."""
    names = set(violated)
    whole = [name for name in names if PART_OF.get(name) not in names]
    return sorted(whole, key=lambda name: (_RANK.get(name, len(_RANK)), name))[:most]


SHOWN_MAX: Final = 3
"""The maximum number of violations that the summary explains; `--all` lists every violation."""
BY_CONSTRUCTION: Final = "by construction"
"""The verdict of a property that holds vacuously: the model has nothing that could violate it."""
COLOURS: Final = {
    BY_CONSTRUCTION: "cyan",
    "holds": "green",
    "proved": "green",
    "violated": "bold red",
    "refuted": "bold red",
    "unknown": "yellow",
}
"""Maps each verdict to its colour in a table."""


def survey(found: Survey) -> dict[str, Any]:
    """The object that `--json` prints; the counts are those of the exploration under the chosen bounds."""
    asked = found.asked
    tokens = _tokens(found)
    return {
        "policy": found.policy.name,
        "bounds": asked.model.bounds.name,
        "engine": asked.engine,
        **_counts(asked),
        "compile_seconds": round(asked.compile_seconds, 3),
        "complete": all(each.complete for each in found.explorations),
        "urgent": asked.urgent,
        "properties": rows(found.policy, found.rows),
        "explorations": [{"bounds": each.model.bounds.name, **_counts(each)} for each in found.explorations],
        "worst": [
            {"name": name, "sentence": SENTENCES.get(name), "token": tokens[name]} for name in worst(tokens, SHOWN_MAX)
        ],
        "bounds_found": {each.name: {"ticks": each.ticks, "token": each.token} for each in found.response},
    }


def rows(policy: Policy, of_runs: Iterable[Row]) -> list[dict[str, Any]]:
    """The rows of properties as `--json` prints them."""
    return [_row(policy.name, row) for row in of_runs]


def show_runs(policy: Policy, of_runs: Sequence[Row]) -> None:
    """Print what a proof leaves to exploration: the properties of runs, each with its verdict."""
    for row in of_runs:
        token = f"; {explain_call(policy, row.verdict.token)}" if row.verdict.token else ""
        say(f"{row.verdict.name}: {row.verdict.verdict} at bounds {row.bounds}: explored, not proved{token}")


def _counts(found: Exploration) -> dict[str, Any]:
    return {
        "distinct_states": found.distinct_states,
        "transitions": found.transitions,
        "depth": found.depth,
        "seconds": round(found.seconds, 3),
    }


def _row(policy: str, row: Row) -> dict[str, Any]:
    verdict = row.verdict
    return {
        "name": verdict.name,
        "kind": kind_of(verdict),
        "verdict": verdict.verdict,
        "by_construction": verdict.by_construction,
        "depth": verdict.depth,
        "token": verdict.token,
        "bounds": row.bounds,
        "hazards": findings_of(policy, verdict.name) if verdict.verdict == "violated" else (),
    }


def kind_of(verdict: Verdict) -> str:
    """Return the kind of a property; an `inductive` one, which only a proof needs, is shown as `always`."""
    return "always" if verdict.kind == "inductive" else verdict.kind


def worst_token(found: Survey) -> str | None:
    """The shortest run that violates the most important property; None if none is violated."""
    tokens = _tokens(found)
    return next((tokens[name] for name in worst(tokens, 1)), None)


def _tokens(found: Survey) -> dict[str, str | None]:
    """Return the token of the shortest run that violates each property; None for a property without a run."""
    return {row.verdict.name: row.verdict.token for row in found.rows if row.verdict.verdict == "violated"}


def show_summary(found: Survey, call: str) -> None:
    """Print the verdict, the worst violations with a sentence each, and one next command.

    Args:
        found: The result.
        call: The command line of this survey, to which the next command adds options.
    """
    show_verdict(verdict_of(found))
    tokens = _tokens(found)
    if tokens:
        shown = worst(tokens, SHOWN_MAX)
        for name in shown:
            out.tell(f"  {name}: {_sentence(found, name)}")
        if len(tokens) > len(shown):
            out.tell(f"  and {len(tokens) - len(shown)} more: --all lists all properties, counts and counterexamples")
        say(f"next: {explain_call(found.policy, tokens[shown[0]])}")
        return
    whole = all(each.complete for each in found.explorations)
    out.tell(_explored(found))
    out.tell(_covered(found))
    vacuous = [row.verdict.name for row in found.rows if row.verdict.by_construction]
    if vacuous:
        out.tell(f"vacuous: {', '.join(vacuous)} (nothing in the model could violate them)")
    if not whole:
        say(f"next: {call} --max-states N, with a larger N and without Ctrl-C, or --bounds tiny")
    elif "unreached" in {row.verdict.verdict for row in found.rows}:
        say(f"next: {call} --all")
    else:
        say(f"next: longpoll prove {policy_words(found.policy)}")


def _sentence(found: Survey, name: str) -> str:
    """The harm of a violated property, or the sentence that a specification file gives it."""
    model = found.asked.model
    said: list[Property | LeadsTo] = [*properties_of(model), *leads_to_of(model)]
    own = (f"{each.sentence} ({each.place})" for each in said if each.name == name and each.place)
    return next(own, SENTENCES.get(name) or "See `longpoll policies --properties`.")


def policy_words(policy: Policy) -> str:
    """The arguments that name a policy on a command line: the options, or its specification file."""
    preset, *knobs = policy.name.split("+")
    file = None if policy.extension is None else policy.extension.file
    return " ".join([file or f"--policy {preset}", *(f"--knob {knob}" for knob in knobs)])


def _explored(found: Survey) -> str:
    """The counts of all explorations in one line."""
    states = sum(each.distinct_states for each in found.explorations)
    steps = sum(each.transitions for each in found.explorations)
    seconds = sum(each.seconds for each in found.explorations)
    early = "" if all(each.complete for each in found.explorations) else "; stopped early"
    return (
        f"explored: {states:,} distinct states, {steps:,} transitions, {seconds:.1f} s with {found.asked.engine}{early}"
    )


def _covered(found: Survey) -> str:
    """Describe the bounds and features that the explorations cover."""
    bounds, others = found.asked.model.bounds, [each.model.bounds.name for each in found.explorations[1:]]
    alone = f", and each of these alone: {', '.join(others)}" if others else ""
    return f"covered: bounds {bounds.name} (requests {bounds.requests}, messages {bounds.messages}){alone}"


def show_survey(found: Survey) -> None:
    """Print everything: the verdict, the counts of each exploration, all properties and all counterexamples."""
    show_verdict(verdict_of(found))
    for each in found.explorations:
        _show_counts(each)
    asked = found.asked
    if not all(each.complete for each in found.explorations):
        out.print(styled("[yellow]Stopped early: unknown properties are not violated in the explored states.[/]"))
    out.tell(f"time waits for: {', '.join(asked.urgent) or 'nothing'}")
    for bound in found.response:
        ticks = "none" if bound.ticks is None else f"{bound.ticks} ticks"
        out.print(f"{bound.name}: tight bound {ticks} (scan period {RESPONSE_BOUNDS.scan_ticks} ticks)")
    stated = [row for row in found.rows if kind_of(row.verdict) == "always"]
    table("Always true", ("property", "verdict", "steps", "bounds", "finding"), map(_cells(found.policy.name), stated))
    of_runs = [row for row in found.rows if kind_of(row.verdict) == "leads_to"]
    if of_runs:
        table("In every fair run", ("property", "verdict", "steps", "bounds", ""), map(_cells(""), of_runs))
    meant = [row.verdict for row in found.rows if kind_of(row.verdict) == "sometimes"]
    missing = [verdict.name for verdict in meant if verdict.verdict != "reached"]
    if meant:
        out.print(f"situations that must occur: {len(meant) - len(missing)} of {len(meant)} do")
    if missing:
        out.tell(styled("[yellow]these do not: {}[/]", ", ".join(missing)))
    late = [(bound.name, bound.token) for bound in found.response if bound.token is not None]
    show_tokens(
        found.policy,
        [
            *late,
            *((row.verdict.name, row.verdict.token) for row in (*stated, *of_runs) if row.verdict.token is not None),
        ],
    )


def verdict_of(found: Survey) -> str:
    """The verdict on all properties together, in words; up to three of the deciding properties are named."""
    by_verdict: dict[str, list[str]] = {}
    for row in found.rows:
        by_verdict.setdefault(row.verdict.verdict, []).append(row.verdict.name)
    stated = sum(kind_of(row.verdict) != "sometimes" for row in found.rows)
    if "violated" in by_verdict:
        return f"violated: {_named(by_verdict['violated'], stated)}"
    open_ones = [*by_verdict.get("unknown", ()), *by_verdict.get("unreached", ())]
    if open_ones:
        return f"unknown: {_named(open_ones, len(found.rows))}"
    held, reached = len(by_verdict.get("holds", ())), len(by_verdict.get("reached", ()))
    more = f"; all {reached} situations that must occur do" if reached else ""
    return f"holds: {'all ' if held > 1 else ''}{held} {'properties' if held > 1 else 'property'}{more}"


def _named(names: list[str], stated: int) -> str:
    return ", ".join(names) if len(names) <= SHOWN_MAX else f"{len(names)} of {stated} properties"


def show_verdict(said: str) -> None:
    """Print the verdict as the first line of a command's output."""
    out.tell(styled("[bold]verdict: {}[/]", said))


def _show_counts(found: Exploration) -> None:
    bounds = found.model.bounds
    rate = found.distinct_states / max(found.seconds, 1e-3)
    more = [f"{bounds.queues} queues"] * (bounds.queues > 1) + [f"{bounds.tags} tags"] * (bounds.tags > 1)
    world = "".join(f", {each}" for each in (*more, *sorted(bounds.aspects)))
    out.tell(
        f"{found.model.policy.name}: requests {bounds.requests}, messages {bounds.messages}, hold {bounds.hold_ticks}, "
        f"scan {bounds.scan_ticks} ticks{world}; {found.engine}: {found.distinct_states:,} distinct states, "
        f"{found.transitions:,} transitions, depth {found.depth}, {found.seconds:.1f} s ({rate:,.0f} states/s)",
    )


def _cells(policy: str) -> Callable[[Row], tuple[object, ...]]:
    def cells(row: Row) -> tuple[object, ...]:
        verdict = row.verdict
        known = findings_of(policy, verdict.name) if verdict.verdict == "violated" else ()
        steps = "" if verdict.depth is None else verdict.depth
        told = coloured(BY_CONSTRUCTION if verdict.by_construction else verdict.verdict)
        return verdict.name, told, steps, row.bounds, ", ".join(known)

    return cells


def show_tokens(policy: Policy, tokens: Iterable[tuple[str, str | None]]) -> None:
    """Print the command that explains each counterexample, each on its own line."""
    for name, token in tokens:
        say(f"{name}: {explain_call(policy, token)}")


def explain_call(policy: Policy, token: str | None) -> str:
    """The command that explains a token; a run of a specification file needs the file too."""
    file = None if policy.extension is None else policy.extension.file
    return f"longpoll explain {token}" + (f" {file}" if file else "")


def coloured(verdict: str) -> Text:
    """Return a verdict as text in its colour."""
    return styled(f"[{COLOURS[verdict]}]{{}}[/]", verdict)
