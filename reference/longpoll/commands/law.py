"""`longpoll check`, `prove`, `explain`, `policies` and `properties`: the law from the command line.

Leaves out exploring, proving and telling, which the spec does, and how their results are shown (`law_shown`).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import msgspec
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from longpoll.options.amounts import Amount
from longpoll.options.completion import worlds
from longpoll.options.engine import engine_options, opened
from longpoll.options.law import aspect_option, bounds_option, knob_option, policy_option, property_option, size_options
from longpoll.output import Exit, emit_json, fail, json_option, progress_bar, say, table, user_mistakes
from longpoll.shown import law_shown
from longpoll_spec.bounds import EXPLORATIONS, REQUESTS_MAX, SIZES, named
from longpoll_spec.engines import EXPLORERS, explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.exploration import Progress as Explored
from longpoll_spec.engines.minimise import minimised, shortest_token
from longpoll_spec.engines.survey import survey
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import OutputError, UserError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import (
    PRESET_SENTENCES,
    PRESETS,
    Policy,
    knob_sentences,
    knob_values,
    policy_named,
    preset,
    with_knobs,
)
from longpoll_spec.render.book.differences import Difference, difference
from longpoll_spec.render.export import itf
from longpoll_spec.render.pictures import html, lanes, machine, mermaid, text
from longpoll_spec.render.story.story import story_of

FORMATS: Final = ("text", "mermaid", "svg", "html", "itf", "json")


if TYPE_CHECKING:
    _NumberOrAny = click.ParamType[int | None]
else:
    _NumberOrAny = click.ParamType  # which takes no type in click 8.1


class RequestsToProve(_NumberOrAny):
    """A number of requests, or None for `any`."""

    name = "N|any"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """The number; click's own error for what is neither."""
        if value is None or value == "any":
            return None
        return int(click.IntRange(1, REQUESTS_MAX).convert(value, param, ctx))


@click.command()
@policy_option()
@bounds_option("small")
@size_options(
    queues="Queues that share one dispatcher, scanner and executor.",
    tags="Tags of messages; the third has the first one's hash.",
)
@aspect_option()
@engine_options
@click.option(
    "--max-states", type=click.IntRange(min=1), help="Give up past this number of states, with what is known then."
)
@knob_option()
@property_option()
@json_option
@user_mistakes
def check(
    *,
    policy_name: str,
    bounds_name: str,
    sizes: Mapping[str, int | None],
    aspects: Sequence[str],
    engine: str,
    max_states: int | None,
    knobs: Sequence[str],
    names: Sequence[str],
    as_json: bool,
    **options: Any,
) -> None:
    """Explore every state that a policy can reach under bounds, and judge its properties in all of them.

    Bounds by their name alone are followed by a small exploration of each aspect of the world, such as several queues
    or offset commits, and by the tight bounds on how late an answer is; so the table is the policy's whole one.
    A size, number or aspect set by hand, and an engine other than packed, explores just that.

    A property that is violated comes with a shortest run that shows it, as a token for `longpoll explain`: of the
    shortest ones that which changes least often from one thread to another. Ctrl-C ends the search and prints what was
    explored so far. Workers, symmetry, a limit on memory and Spark change no count and no verdict. The engine simulate
    tries random runs instead: it finds what is violated, never that something holds, and tells what its runs came to.

    \b
    Examples:
      longpoll check --policy rocketmq-4.9
      longpoll check --policy strict --bounds tiny --engine python
      longpoll check --policy rocketmq-lmq --property no_orphan
      longpoll check --policy rocketmq-4.9 --queues 2 --tags 2 --requests 1
      longpoll check --policy rocketmq-5 --bounds tiny --aspect commits --aspect buckets --requests 1
      longpoll check --policy strict --knob recheck_after_hold=none --property no_lost_wakeup
      longpoll check --policy strict-clone --requests 3 --messages 2 --json
      longpoll check --policy strict-clone --bounds wide --symmetry --workers 2
      longpoll check --policy strict --bounds bench --memory-mb 500
      longpoll check --policy strict --engine spark --master local[4] --checkpoint search
      longpoll check --policy rocketmq-4.9 --bounds wide --engine simulate --runs 100000 --seed 7

    Exit codes: 0 all hold, 1 one is violated, 2 a mistake in the call, 3 the search or the bounds ended too early to
    tell (so for a property that is meant to be reached and was not).
    """
    policy = _policy(policy_name, knobs)
    bounds = named(bounds_name, policy, **sizes, aspects=aspects)
    with opened(engine, options) as given, _spinner(f"exploring {policy.name} with {engine}") as say:
        limits: dict[str, Any] = {"limit_states": max_states, **given}

        def explored(model: Model, judged: Sequence[Property], asked: bool) -> Exploration:
            own = limits if asked else {}
            found = explore(model, judged, engine=engine, report=_speed(say), **own)
            if found.seen is not None:
                return found
            # Of a surveyed aspect the table shows no run to what is meant to be reached.
            return minimised(found, judged) if asked else minimised(found, judged, shown=["violated"])

        alone = bounds.name not in SIZES or engine != EXPLORERS[0]
        found = survey(policy, bounds, explored, names=names, alone=alone)
    if as_json:
        emit_json(law_shown.survey(found))
    else:
        law_shown.show_survey(found)
    sys.exit(_exit_of({row.verdict.verdict for row in found.rows}))


@click.command()
@policy_option()
@click.option(
    "--requests",
    type=RequestsToProve(),
    default="8",
    show_default=True,
    help="Requests to prove it for; any: for any number, which takes longer.",
)
@click.option(
    "--world",
    "world_names",
    multiple=True,
    metavar="NAME",
    help="Prove it in this world: plain, uncut or whole; repeatable.  [default: plain; for any: each of them]",
    shell_complete=worlds,
)
@click.option("--queues", type=int, help="Queues that share all threads, in a world of your own.")
@click.option("--tags", type=int, help="Tags that a pull can want, in a world of your own.")
@aspect_option("What a world of your own has, instead of the aspects of the world it begins as; repeatable.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Amount(above_zero=True),
    default=10.0,
    show_default=True,
    help="Seconds for one question to z3, and for the search for a run that breaks one property.",
)
@click.option(
    "--depth",
    "depth_max",
    type=click.IntRange(min=0),
    default=13,
    show_default=True,
    help="Steps of the longest run that z3 unrolls; less than usual leaves out the exploring before it, too.",
)
@knob_option()
@property_option(proved=True)
@json_option
@user_mistakes
def prove(
    *,
    policy_name: str,
    requests: int | None,
    world_names: Sequence[str],
    queues: int | None,
    tags: int | None,
    aspects: Sequence[str],
    timeout_s: float,
    depth_max: int,
    knobs: Sequence[str],
    names: Sequence[str],
    as_json: bool,
) -> None:
    """Prove a policy's properties with z3: for unbounded messages, and for every timeout and scan period.

    A property that cannot be proved by induction is looked for in runs from the first state; such a run is a token for
    `longpoll explain`. A step that is refuted without a token shows a state that no run need reach.

    For any number of requests the proof is made in each of three worlds: the plain one; the whole one, with two queues,
    two tags and every aspect; and the whole one without the aspect truncate, under which less is promised. A world of
    your own begins as the whole one, or as the one that is named. Everything that the law says must sometimes come
    about is looked for in each world: where it does not, what is proved is unknown.

    \b
    Examples:
      longpoll prove --policy strict --requests 8
      longpoll prove --policy strict --requests any
      longpoll prove --policy strict --requests any --world plain
      longpoll prove --policy strict --requests 4 --queues 2 --tags 2 --aspect crash --aspect commits
      longpoll prove --policy strict-clone --knob recheck_after_keep=false
      longpoll prove --policy rocketmq-4.9 --property answered_once --json

    Exit codes: 0 all are proved, 1 one is refuted by a run, 2 a mistake in the call, 3 one is neither.
    """
    # z3 takes its time, and only this command needs it.
    from longpoll.shown import proof_shown  # noqa: PLC0415
    from longpoll_spec.engines.smt import proof as smt  # noqa: PLC0415
    from longpoll_spec.engines.smt import worlds as smt_worlds  # noqa: PLC0415

    policy = _policy(policy_name, knobs)
    own: dict[str, Any] = {"queues": queues, "tags": tags, "aspects": frozenset(aspects) or None}
    changes = {key: value for key, value in own.items() if value is not None}
    chosen = smt_worlds.chosen(world_names, any_number=requests is None, changes=changes)
    limits: dict[str, Any] = {"names": names, "timeout_s": timeout_s, "depth_max": depth_max}
    try:
        with _spinner(f"proving {policy.name} for {requests or 'any number of'} requests") as say:
            found = (
                smt_worlds.prove_worlds(policy, worlds=chosen, report=say, **limits)
                if requests is None
                else smt.prove(policy, requests=requests, world=next(iter(chosen.values())), report=say, **limits)
            )
    except KeyboardInterrupt:
        fail("stopped before the proof was done: nothing is known", Exit.UNKNOWN)
    if isinstance(found, smt.Proof):
        made, show, whole = proof_shown.proof(found), partial(proof_shown.show_proof, found), found.whole
    else:
        made, whole = proof_shown.worlds(policy.name, found), smt_worlds.worst(found)
        show = partial(proof_shown.show_worlds, found)
    if as_json:
        emit_json(made)
    else:
        show()
    sys.exit(_exit_of({whole}))


@click.command()
@click.argument("token")
@click.option("--format", "form", type=click.Choice(FORMATS), default="text", show_default=True)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write to this file instead of stdout.",
)
@click.option("--shortest", is_flag=True, help="Show a shortest run that shows the same, with fewest thread changes.")
@json_option
@user_mistakes
def explain(*, token: str, form: str, output: Path | None, shortest: bool, as_json: bool) -> None:
    """Show a token's run as a sequence that a person can read, in RocketMQ's own terms.

    What `longpoll check` gives is a shortest run already; what random runs give is not.

    \b
    Examples:
      longpoll explain TOKEN
      longpoll explain TOKEN --shortest
      longpoll explain TOKEN --format mermaid
      longpoll explain TOKEN --format svg --output race.svg
      longpoll explain TOKEN --format html --output race.html
      longpoll explain TOKEN --format itf --output race.itf.json
      longpoll explain TOKEN --json
    """
    trace = replay(token)
    if shortest:
        token = shortest_token(trace)
        trace = replay(token)
    story = story_of(trace)
    if as_json or form == "json":
        _write(msgspec.json.encode(machine.render(trace, story, token)).decode() + "\n", output)
    elif form == "itf":
        _write(msgspec.json.encode(itf.render(trace, token)).decode() + "\n", output)
    elif form == "html":
        _write(html.render(story, token), output)
    elif form == "svg":
        _write(lanes.render(trace) + "\n", output)
    else:
        _write(mermaid.render(story) if form == "mermaid" else text.render(story), output)


@click.command()
@click.argument("two", metavar="[POLICY POLICY]", nargs=-1)
@json_option
@user_mistakes
def policies(*, two: Sequence[str], as_json: bool) -> None:
    """List the policies, and the knobs in which they differ; or tell two apart, action by action.

    A POLICY is a preset, and +KNOB=VALUE for each knob that is set otherwise.

    \b
    Examples:
      longpoll policies
      longpoll policies --json
      longpoll policies rocketmq-4.9 rocketmq-pr7359
      longpoll policies strict strict+recheck_after_hold=none
    """
    if len(two) not in {0, 2}:
        raise UserError(f"name two policies to tell them apart, or none to list all, not {len(two)}")
    if two:
        _tell_apart(difference(*map(policy_named, two)), as_json=as_json)
        return
    sentences, values = knob_sentences(), knob_values()
    settings = {name: attrs.asdict(policy) for name, policy in PRESETS.items()}
    if as_json:
        emit_json(
            {
                "policies": [
                    {"name": name, "sentence": PRESET_SENTENCES[name], "knobs": {knob: chosen[knob] for knob in values}}
                    for name, chosen in settings.items()
                ],
                "knobs": [{"name": knob, "values": values[knob], "sentence": sentences[knob]} for knob in values],
            }
        )
        return
    table("Policies", ("name", "what it is"), PRESET_SENTENCES.items())
    rows = ((knob, *(str(chosen[knob]).lower() for chosen in settings.values())) for knob in values)
    table("Knobs", ("knob", *settings), rows)
    choices = ((knob, " | ".join(str(value).lower() for value in values[knob]), sentences[knob]) for knob in values)
    table("What the knobs mean", ("knob", "values", "sentence"), choices)


def _tell_apart(found: Difference, *, as_json: bool) -> None:
    names = found.first.name, found.second.name
    if as_json:
        emit_json(
            {
                "policies": names,
                "knobs": [{"name": knob, "values": values} for knob, *values in found.knobs],
                "actions": [
                    {"name": each.action, "aspect": each.aspect, "lines": each.pairs} for each in found.actions
                ],
            }
        )
        return
    if not found.knobs:
        say(f"{names[0]} and {names[1]} are the same policy")
        return
    table("Knobs", ("knob", *names), found.knobs)
    for each in found.actions:
        title = f"{each.action}, with {each.aspect}" if each.aspect else each.action
        table(title, names, each.pairs)


@click.command()
@policy_option()
@knob_option()
@json_option
@user_mistakes
def properties(*, policy_name: str, knobs: Sequence[str], as_json: bool) -> None:
    """List the properties that make sense for a policy, each with its sentence.

    \b
    Examples:
      longpoll properties
      longpoll properties --policy rocketmq-4.9 --json
    """
    policy = _policy(policy_name, knobs)
    stated: dict[str, Property] = {}
    for bounds in (named("tiny", policy), *EXPLORATIONS.values()):
        for item in properties_of(law_of(policy, bounds)):
            stated.setdefault(item.name, item)
    rows = [{"name": item.name, "kind": item.kind, "sentence": item.sentence} for item in stated.values()]
    if as_json:
        emit_json({"policy": policy.name, "properties": rows})
        return
    table(f"Properties of {policy.name}", ("name", "kind", "sentence"), (tuple(row.values()) for row in rows))


def _write(made: str, output: Path | None) -> None:
    if output is None:
        say(made.removesuffix("\n"))
        return
    try:
        output.write_text(made, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error.strerror}") from error


def _policy(name: str, knobs: Sequence[str]) -> Policy:
    return with_knobs(preset(name), knobs)


def _exit_of(verdicts: set[str]) -> Exit:
    if verdicts & {"violated", "refuted"}:
        return Exit.VIOLATED
    return Exit.UNKNOWN if verdicts & {"unknown", "unreached"} else Exit.OK


@contextmanager
def _spinner(title: str) -> Iterator[Callable[[str], None]]:
    """A line on stderr that says what is being done; nothing where stderr is no terminal."""
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task(title, total=None)
        yield lambda words: progress.update(task, description=f"{title}: {words}")


def _speed(say: Callable[[str], None]) -> Callable[[Explored], None]:
    began = time.monotonic()

    def report(now: Explored) -> None:
        rate = now.distinct_states / max(time.monotonic() - began, 1e-3)
        say(f"{now.distinct_states:,} states, depth {now.depth}, {rate:,.0f} states/s")

    return report
