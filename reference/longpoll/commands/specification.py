"""`longpoll check`, `prove` and `policies`: the specification on the command line.

The work is done in `longpoll_spec`; the output is in `longpoll.views`.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count, groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import click
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from longpoll import extras
from longpoll.options.engine import default_engine, engine_options, opened
from longpoll.options.specification import (
    aspect_option,
    bounds_option,
    chosen_policy,
    file_argument,
    knob_option,
    policy_option,
    property_option,
    size_options,
)
from longpoll.options.values import Amount, FilledPath
from longpoll.output import (
    Exit,
    cell_of,
    emit_json,
    err,
    fail,
    json_option,
    out,
    progress_bar,
    say,
    styled,
    table,
    user_mistakes,
)
from longpoll.views import check as law_shown
from longpoll_spec.bounds import REQUESTS_MAX, SIZES, named
from longpoll_spec.custom import policy_from
from longpoll_spec.engines import EXPLORERS, explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.exploration import Progress as Explored
from longpoll_spec.engines.survey import Survey, explorations_of, progress_of, runs_of, survey
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import OutputError, UserError
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import (
    POP_SENTENCES,
    PRESET_SENTENCES,
    PRESETS,
    Policy,
    knob_sentences,
    knob_values,
    other_settings,
    preset,
)
from longpoll_spec.render.differences import Difference, difference
from longpoll_spec.render.pictures.text import story_text
from longpoll_spec.render.story import story_of
from longpoll_spec.specification import leads_to_of, properties_of, specification_of

if TYPE_CHECKING:
    from longpoll_spec.engines.ablate import Row


if TYPE_CHECKING:
    _NumberOrAny = click.ParamType[int | None]
else:
    _NumberOrAny = click.ParamType  # In click 8.1, `ParamType` takes no type parameter.


class RequestsToProve(_NumberOrAny):
    """A number of requests, or None for `any`."""

    name = "N|any"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Parse the number, or `any`; fails with click's own error for any other text."""
        if value is None or value == "any":
            return None
        if not (str(value).isdecimal() and 1 <= int(value) <= REQUESTS_MAX):
            self.fail(f"{value!r} is neither a number of requests from 1 to {REQUESTS_MAX} nor any.", param, ctx)
        return int(value)


@click.command()
@file_argument
@policy_option()
@bounds_option("small")
@size_options(
    queues="Override the number of queues, which share one dispatcher, scanner and executor.",
    tags="Override the number of tags; the third has the hash of the first.",
)
@aspect_option()
@engine_options
@click.option("--max-states", type=click.IntRange(min=1), help="Stop after this number of states.")
@knob_option()
@property_option
@click.option("--all", "shows_all", is_flag=True, help="Print all properties, counts and counterexamples.")
@click.option(
    "--explain", "explains", is_flag=True, help="Also explain the worst violation's shortest run, step by step."
)
@click.option("--ablate", "ablates", is_flag=True, help="Change each knob of the policy in turn; report what breaks.")
@json_option
@user_mistakes
def check(
    *,
    file: str | None,
    policy_name: str,
    bounds_name: str,
    sizes: Mapping[str, int | None],
    aspects: Sequence[str],
    engine: str | None,
    max_states: int | None,
    knobs: Sequence[str],
    names: Sequence[str],
    shows_all: bool,
    explains: bool,
    ablates: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Explore every state that a policy can reach within bounds, and check its properties.

    The output is the verdict, the worst violations with one sentence each, and the next command. With --all, the
    output lists every property with its verdict, the counts, and a counterexample for each violation. A counterexample
    is a token of a shortest run.

    FILE is a specification file of your own, in place of --policy (docs/own-specification.md).

    The bounds tiny, small, wide and bench have no features. After them, the command explores each feature alone, such
    as several queues or offset commits. If you choose a size, a feature or another engine, it explores only your
    choice.

    The engine packed needs numpy. Without numpy the engine python explores bounds tiny and the features, which takes
    some minutes. Workers, symmetry, a memory limit and Spark change neither counts nor verdicts. Ctrl-C ends the search
    and prints the result so far.

    With --ablate, the command changes each knob of strict or strict-clone in turn, and reports which properties break.
    If none breaks, the knob is redundant in that policy, and the table gives the reason. Exploration finds the
    violations, and the other properties are proved.

    \b
    Examples:
      longpoll check --policy rocketmq-4.9
      longpoll check --policy rocketmq-4.9 --explain
      longpoll check --policy rocketmq-4.9 --all
      longpoll check --policy strict --bounds tiny --engine python
      longpoll check --policy rocketmq-lmq --property no_orphan
      longpoll check --policy rocketmq-4.9 --queues 2 --tags 2 --requests 1
      longpoll check --policy rocketmq-5 --bounds tiny --feature commits --feature buckets --requests 1
      longpoll check --policy strict --knob recheck_after_hold=none --property no_lost_wakeup
      longpoll check --policy strict-clone --requests 3 --messages 2 --json
      longpoll check --policy strict-clone --bounds wide --symmetry --workers 2
      longpoll check --policy strict --bounds bench --memory-mb 500
      longpoll check --policy strict --engine spark --master local[4] --checkpoint search
      longpoll check --policy strict-clone --ablate
      longpoll check table.py --bounds tiny

    Exit codes: 0 all properties hold, 1 a property is violated, 2 a mistake in the call, 3 unknown: the search ended
    early, or a situation that must occur does not occur within the bounds. With --ablate, 1 means that the reason of a
    change that breaks nothing is wrong or missing.
    """
    if ablates:
        _only("--ablate", {"policy_name", "ablates", "as_json"})
        _ablate(policy_name, as_json=as_json)
        return
    if explains and as_json:
        raise UserError("--explain prints text: leave it out, and pass the token of --json to longpoll explain --json")
    policy = chosen_policy(file, policy_name, knobs)
    if engine == "simulate":
        raise UserError("no engine tries random runs any more; use packed with --max-states or --symmetry")
    is_chosen = engine is not None
    engine = engine or default_engine()
    is_slow = not is_chosen and engine != EXPLORERS[0]
    if is_slow:
        bounds_name = _bounds_without_numpy(bounds_name)
    bounds = named(bounds_name, policy, **sizes, aspects=aspects)
    with opened(engine, options) as given, _spinner(f"exploring {policy.name} with {engine}") as say:
        limits: dict[str, Any] = {"limit_states": max_states, **given}

        def explored(model: Model, judged: Sequence[Property], asked: bool) -> Exploration:
            own = limits if asked else {}
            return explore(model, judged, engine=engine, report=_speed(say), **own)

        alone = bounds.name not in SIZES or (is_chosen and engine != EXPLORERS[0])
        found = survey(policy, bounds, explored, names=names, alone=alone)
    if as_json:
        emit_json(law_shown.survey(found))
    elif shows_all:
        law_shown.show_survey(found)
    else:
        law_shown.show_summary(found, f"longpoll check {law_shown.policy_words(policy)}")
    if explains:
        _explain_worst(found)
    sys.exit(_exit_of({row.verdict.verdict for row in found.rows}))


def _only(option: str, allowed: Collection[str]) -> None:
    """Raise `UserError` for an option that is not in `allowed`, because `option` excludes all other options."""
    context = click.get_current_context()
    given = [
        parameter.opts[-1]
        for parameter in context.command.params
        if parameter.name not in allowed
        and context.get_parameter_source(parameter.name or "") is click.core.ParameterSource.COMMANDLINE
    ]
    if given:
        raise UserError(f"{option} does not go with {', '.join(given)}")


def _bounds_without_numpy(chosen: str) -> str:
    """The bounds for the slow engine, with a note on stderr: tiny, unless the user chose other bounds."""
    source = click.get_current_context().get_parameter_source("bounds_name")
    is_default = source is click.core.ParameterSource.DEFAULT
    bounds = SIZES[0] if is_default else chosen
    err.print(
        f"longpoll: numpy is not installed, so the engine python explores bounds {bounds}, about 20 times slower; "
        f"for the fast engine: {extras.install('spec')}",
        soft_wrap=True,
    )
    return bounds


def _explain_worst(found: Survey) -> None:
    """Print the steps of the shortest run to the worst violation."""
    token = law_shown.worst_token(found)
    if token is None:
        say("nothing to explain: no property is violated")
    else:
        say(
            "\n"
            + story_text(story_of(replay(token, found.policy if found.policy.extension else None))).removesuffix("\n")
        )


@click.command()
@file_argument
@policy_option()
@click.option(
    "--requests",
    type=RequestsToProve(),
    default="8",
    show_default=True,
    help="Number of requests, or any: proves all numbers, and takes longer.",
)
@click.option(
    "--configuration",
    "--world",
    "world_names",
    multiple=True,
    metavar="NAME",
    help="Configuration to prove: plain, bare, no-truncate, whole, or features such as crash+queues; repeatable.  "
    "[default: plain; for any: chosen from the specification]",
)
@click.option("--queues", type=int, help="Override the number of queues in the configuration.")
@click.option("--tags", type=int, help="Override the number of tags in the configuration.")
@aspect_option("Replace the features of the configuration by these; repeatable.")
@click.option(
    "--timeout",
    "timeout_s",
    type=Amount(above_zero=True),
    default=10.0,
    show_default=True,
    help="Maximum seconds for one query to z3, and for the search for a run that violates one property.",
)
@click.option(
    "--depth",
    "depth_max",
    type=click.IntRange(min=0),
    default=13,
    show_default=True,
    help="Maximum steps of a run that z3 unrolls; a lower value than the default also skips the exploration before it.",
)
@click.option(
    "--smt",
    "smt_folder",
    type=FilledPath(file_okay=False),
    help="Also write each query of the induction into this folder as an SMT-LIB file, for another solver.",
)
@knob_option()
@property_option
@json_option
@user_mistakes
def prove(
    *,
    file: str | None,
    policy_name: str,
    requests: int | None,
    world_names: Sequence[str],
    queues: int | None,
    tags: int | None,
    aspects: Sequence[str],
    timeout_s: float,
    depth_max: int,
    smt_folder: Path | None,
    knobs: Sequence[str],
    names: Sequence[str],
    as_json: bool,
) -> None:
    """Prove a policy's properties with z3, for any number of messages, every timeout and every scan period.

    If a property is not inductive, the command looks for a run from the first state that violates it. Such a run is a
    token for `longpoll explain`. A refuted step without a token shows a state that may be unreachable.

    For any number of requests the command proves several configurations. Of these, plain has no features, and bare has
    three queues. The configuration whole has two queues, three tags and every feature. The configuration no-truncate is
    whole without the feature truncate, with which the policy promises fewer properties. Each feature and each two
    features have a configuration too, and every three features of one proof obligation occur in some configuration. If
    combinations of more features are left, the verdict counts them. --queues, --tags and --feature change a
    configuration. The command also explores each configuration, and looks for each situation that must occur: if one
    does not, the proof counts as unknown.

    Of a specification FILE of your own it proves the properties of states and steps, and explores those of runs. A file
    without a policy has at most two configurations, plain and bare.

    \b
    Examples:
      longpoll prove --policy strict --requests 8
      longpoll prove table.py --requests any
      longpoll prove --policy strict --requests any
      longpoll prove --policy strict --requests any --configuration plain
      longpoll prove --policy strict --requests 4 --queues 2 --tags 2 --feature crash --feature commits
      longpoll prove --policy strict-clone --knob recheck_after_keep=false
      longpoll prove --policy rocketmq-4.9 --property answered_once --json

    Exit codes: 0 all properties are proved, 1 a run refutes one, 2 a mistake in the call, 3 unknown, 4 proved, except
    combinations of features that no configuration has, or except a FILE's properties of runs. With --configuration,
    the verdict is about the named ones.
    """
    # Importing z3 takes a second, and only this command needs it.
    from longpoll.views import prove as proof_shown  # noqa: PLC0415
    from longpoll_spec.engines.smt import configurations as smt_worlds  # noqa: PLC0415
    from longpoll_spec.engines.smt import proof as smt  # noqa: PLC0415
    from longpoll_spec.engines.smt.configurations import not_taken, questions_of  # noqa: PLC0415

    policy = chosen_policy(file, policy_name, knobs)
    own: dict[str, Any] = {"queues": queues, "tags": tags, "aspects": frozenset(aspects) or None}
    changes = {key: value for key, value in own.items() if value is not None}
    chosen = smt_worlds.chosen(world_names, any_number=requests is None, changes=changes)
    record = None if smt_folder is None else _smt_writer(smt_folder)
    # With `record`, only one process runs, because it numbers the query files.
    processes = len(os.sched_getaffinity(0)) if record is None else 1
    limits: dict[str, Any] = {"names": names, "timeout_s": timeout_s, "depth_max": depth_max, "record": record}
    try:
        with _spinner(f"proving {policy.name} for {requests or 'any number of'} requests") as say:
            found = (
                smt_worlds.prove_worlds(policy, worlds=chosen, report=say, processes=processes, **limits)
                if requests is None
                else smt.prove(policy, requests=requests, world=next(iter(chosen.values())), report=say, **limits)
            )
    except KeyboardInterrupt:
        fail("stopped before the end of the proof: the result is unknown", Exit.UNKNOWN)
    of_runs = progress_of(policy, runs_of(policy))
    # `time_can_pass` is explored for every policy; the proof of a policy does not cover it.
    explored = [row.verdict.name for row in of_runs if row.verdict.name != "time_can_pass"]
    if isinstance(found, smt.Proof):
        made, code = proof_shown.proof(found), _exit_of({found.whole})
        show = partial(proof_shown.show_proof, found, next(iter(chosen)), explored)
    else:
        has_features = policy.extension is None or not policy.extension.is_alone
        asked = questions_of(partial(specification_of, policy)) if has_features else ()
        untried = not_taken(asked, (each.world for each in found), names)
        made = proof_shown.worlds(policy.name, found, untried, named=bool(chosen), explored=explored)
        code = _exit_of({smt_worlds.worst(found)})
        if code is Exit.OK and untried and not chosen:
            code = Exit.PARTLY
        show = partial(proof_shown.show_worlds, found, untried, named=bool(chosen), explored=explored)
    if code is Exit.OK and explored:
        code = Exit.PARTLY
    if as_json:
        emit_json(made | ({"explored_only": law_shown.rows(policy, of_runs)} if of_runs else {}))
    else:
        show()
        law_shown.show_runs(policy, of_runs)
    sys.exit(max(code, _exit_of({row.verdict.verdict for row in of_runs}), key=_severity))


def _severity(code: Exit) -> int:
    return (Exit.OK, Exit.PARTLY, Exit.UNKNOWN, Exit.VIOLATED).index(code)


def _smt_writer(folder: Path) -> Callable[[str], None]:
    """Write each query to a numbered file of the folder; raises `OutputError` for a folder that cannot be used."""
    numbers = count(1)

    def write(query: str) -> None:
        try:
            (folder / f"{next(numbers):05}.smt2").write_text(query, encoding="utf-8")
        except OSError as error:
            raise OutputError(f"cannot write to {folder}: {error.strerror}") from error

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise OutputError(f"{folder} is not empty: name a new folder for the SMT-LIB files")
    except OSError as error:
        raise OutputError(f"cannot write to {folder}: {error.strerror}") from error
    return write


@click.command()
@click.argument("names", metavar="[POLICY [POLICY]]", nargs=-1)
@click.option("--properties", "lists_properties", is_flag=True, help="List the properties that apply to one policy.")
@json_option
@user_mistakes
def policies(*, names: Sequence[str], lists_properties: bool, as_json: bool) -> None:
    """List the policies and their knobs, compare two policies action by action, or list the properties of one.

    A POLICY is a preset, with +KNOB=VALUE for each knob to override. With --properties it can be a specification file.

    \b
    Examples:
      longpoll policies
      longpoll policies --json
      longpoll policies rocketmq-4.9 rocketmq-pr7359
      longpoll policies strict strict+recheck_after_hold=none
      longpoll policies rocketmq-4.9 --properties
    """
    if lists_properties:
        if len(names) > 1:
            raise UserError(f"--properties takes one policy, not {len(names)}")
        _list_properties(policy_from(*(names or ["strict"])), as_json=as_json)
    elif len(names) == 2:
        _compare(difference(*map(policy_from, names)), as_json=as_json)
    elif names:
        raise UserError(f"name two policies to compare, or none to list all, not {len(names)}")
    else:
        _list_policies(as_json=as_json)


def _list_policies(*, as_json: bool) -> None:
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
                "pop_policies": [
                    {"name": name, "sentence": sentence, "knobs": dict(_own_knobs(policy_from(name)))}
                    for name, sentence in POP_SENTENCES.items()
                ],
            }
        )
        return
    table("Policies", ("name", "description"), (PRESET_SENTENCES | POP_SENTENCES).items())
    rows = ((knob, *(str(chosen[knob]).lower() for chosen in settings.values())) for knob in values)
    table("Knobs", ("knob", *settings), rows)
    choices = ((knob, " | ".join(str(value).lower() for value in values[knob]), sentences[knob]) for knob in values)
    table("Meaning of the knobs", ("knob", "values", "meaning"), choices)
    pops = [dict(_own_knobs(policy_from(name))) for name in POP_SENTENCES]
    rows = ((knob, *(str(each[knob]).lower() for each in pops)) for knob in pops[0])
    table("Knobs of the tables that hold pops and notifications (docs/pop.md)", ("knob", *POP_SENTENCES), rows)


def _own_knobs(policy: Policy) -> tuple[tuple[str, Any], ...]:
    return () if policy.extension is None else policy.extension.settings


def _list_properties(policy: Policy, *, as_json: bool) -> None:
    stated: dict[str, Property] = {}
    models = [specification_of(policy, bounds) for bounds in (named("tiny", policy), *explorations_of(policy))]
    for model in models:
        for item in properties_of(model):
            stated.setdefault(item.name, item)
    rows = [{"name": item.name, "kind": item.kind, "sentence": item.sentence} for item in stated.values()]
    of_runs = {said.name: said.sentence for said in leads_to_of(models[0])}
    rows += [{"name": name, "kind": "leads_to", "sentence": sentence} for name, sentence in of_runs.items()]
    if as_json:
        emit_json({"policy": policy.name, "properties": rows})
        return
    table(f"Properties of {policy.name}", ("name", "kind", "sentence"), (tuple(row.values()) for row in rows))


def _compare(found: Difference, *, as_json: bool) -> None:
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
    say("The lines that differ, by action; --json prints each action whole, with each feature.")
    for action, different in groupby(found.actions, lambda each: each.action):
        first, *others = different
        changed = [(one, other) for one, other in first.pairs if one != other]
        table(f"{action}, with {first.aspect}" if first.aspect else action, names, changed)
        if others:
            say(f"{action} also differs with {', '.join(each.aspect for each in others)}")


def _exit_of(verdicts: set[str]) -> Exit:
    if verdicts & {"violated", "refuted"}:
        return Exit.VIOLATED
    return Exit.UNKNOWN if verdicts & {"unknown", "unreached"} else Exit.OK


@contextmanager
def _spinner(title: str) -> Iterator[Callable[[str], None]]:
    """A progress line on stderr, shown only in a terminal."""
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


def _ablate(name: str, *, as_json: bool) -> None:
    # Importing z3 takes a second, and only `check --ablate` and `prove` need it.
    from longpoll_spec.engines import ablate as engine  # noqa: PLC0415

    preset(name)
    if name not in engine.POLICIES:
        fail(f"{name} is not one of our own policies: choose {' or '.join(engine.POLICIES)}")
    total = len(list(other_settings(PRESETS[name])))
    try:
        with _bar(total) as report:
            rows = engine.ablate(name, report=report)
    except KeyboardInterrupt:
        fail("stopped before every change was tried: the result is unknown", Exit.UNKNOWN)
    if as_json:
        emit_json({"rows": [_row(row) for row in rows]})
    else:
        table(f"{name}, with one knob changed", ("change", "violated properties"), ((r.knob, _said(r)) for r in rows))
        out.print("The number after a property is the length of its shortest run; --json has the tokens.")
    if any(row.problem for row in rows):
        sys.exit(Exit.VIOLATED)
    sys.exit(Exit.UNKNOWN if any(row.undecided and not row.violations for row in rows) else Exit.OK)


def _row(row: Row) -> dict[str, Any]:
    return {
        "policy": row.policy,
        "knob": row.knob,
        "violates": [verdict.name for verdict in row.violations],
        "depth": row.depth,
        "redundant_because": row.redundant_because,
        "undecided": row.undecided,
        "problem": row.problem,
        "tokens": {verdict.name: verdict.token for verdict in row.violations},
    }


def _said(row: Row) -> Text:
    parts: list[Text | str] = [", ".join(f"{verdict.name} ({verdict.depth})" for verdict in row.violations)]
    if row.undecided:
        parts.append(styled("[yellow]undecided: {}[/]", ", ".join(row.undecided)))
    if row.redundant_because:
        parts.append(styled("[green]redundant:[/] {}", row.redundant_because))
    if row.problem:
        parts.append(styled("[bold red]{}[/]", row.problem))
    return Text("\n").join(cell_of(part) for part in parts if part)


@contextmanager
def _bar(total: int) -> Iterator[Callable[[str], None]]:
    """A progress bar on stderr, in a terminal only. The yielded function announces each change before it is tried."""
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with progress_bar(*columns) as progress:
        task = progress.add_task("", total=total)
        begun = iter(range(total))
        yield lambda words: progress.update(task, description=words, completed=next(begun))
