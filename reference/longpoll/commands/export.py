"""`longpoll export`: the law as text for another checker, or a run of it as files for Java alone.

So nobody has to trust our engines. Leaves out the text (`longpoll_spec.render.export`, `longpoll_java.exported`), and
running the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click

from longpoll.options.law import aspect_option, bounds_option, knob_option, policy_option, size_options
from longpoll.output import emit_json, json_option, out, user_mistakes
from longpoll_java.exported import files_of
from longpoll_java.jars import JAVA, NAMES, VERSIONS
from longpoll_java.promises import shown_by
from longpoll_java.schedule import schedule_of, with_after
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import OutputError, UserError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import Policy, preset, with_knobs
from longpoll_spec.render.export.jani import jani_of
from longpoll_spec.render.export.promela import promela_of
from longpoll_spec.render.export.tla import tla_configuration_of, tla_of
from longpoll_spec.render.notation import name_of
from longpoll_spec.render.pictures.text import who
from longpoll_spec.render.places import gates_of, presets_of
from longpoll_spec.render.story.story import story_of
from longpoll_spec.testing.explorer import explorer_of
from longpoll_spec.testing.zoo import slips_by_label

Render: TypeAlias = Callable[[Model, Sequence[Property]], str]
FORMATS: Final[Mapping[str, Mapping[str, Render]]] = {
    "promela": {"pml": promela_of},
    "tla": {"tla": tla_of, "cfg": tla_configuration_of},
    "jani": {"jani": lambda model, properties: jani_of(model, properties, slips_by_label(model))},
}
"""Format -> the ending of each of its files, with what writes it."""

BYTEMAN: Final = "byteman"
EXPLORER: Final = "explorer"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="[TOKEN] DIR", nargs=-1, required=True)
@click.option("--to", "target", type=click.Choice([*FORMATS, EXPLORER, BYTEMAN]), required=True, help="What to write.")
@click.option(
    "--on",
    type=click.Choice(NAMES),
    help="Of byteman: the broker that is to follow. [default: the newest that the token's policy is about]",
)
@policy_option()
@bounds_option("tiny")
@size_options(
    queues="Queues that share one dispatcher and one scanner.",
    tags="Tags that a message can have and a pull can want.",
)
@aspect_option("Switch this aspect on; repeatable.")
@knob_option()
@click.option("--force", is_flag=True, help="Write over files that are there and say something else.")
@json_option
@user_mistakes
def export(
    *,
    words: Sequence[str],
    target: str,
    on: str | None,
    policy_name: str,
    bounds_name: str,
    sizes: Mapping[str, int | None],
    aspects: Sequence[str],
    knobs: Sequence[str],
    force: bool,
    as_json: bool,
) -> None:
    """Write the law of a policy under bounds, with every property, for SPIN (promela), TLC (tla) or Storm (jani).

    All three checkers find the states, transitions and verdicts that `longpoll check` finds. A file of promela or tla
    begins with the command that runs it; JANI is JSON, which a small interpreter in any language runs (docs/jani.md).

    To explorer a page is written that runs the law in a browser: one clicks steps, searches for what may go wrong, and
    plants mistakes; no server or network is needed (docs/explorer.md).

    To byteman a TOKEN of `longpoll check` is written: files that make an unchanged Java broker follow the run with Java
    and Maven alone, with a README that says what is to be seen (docs/java.md).

    \b
    Examples:
      longpoll export --to promela --policy rocketmq-4.9 out
      longpoll export --to tla --policy strict --bounds small out
      longpoll export --to promela --policy rocketmq-4.9 --bounds queues out
      longpoll export --to jani --policy strict out
      longpoll export --to explorer --policy rocketmq-4.9 out
      longpoll export --to promela --policy strict --queues 2 --tags 2 out
      longpoll export --to tla --policy strict --knob recheck_after_hold=none --requests 3 out --json
      longpoll export --to byteman lp1.lqxyb2NrZXRt... out
      longpoll export --to byteman lp1.lqxyb2NrZXRt... out --on java-5.5.0
    """
    if target == BYTEMAN:
        if len(words) != 2:
            raise UserError("--to byteman needs a token of `longpoll check` and a directory")
        made, told = _to_byteman(words[0], Path(words[1]), on)
        _write(Path(words[1]), made, force=force)
        _say(made, told, as_json=as_json)
        return
    if len(words) != 1 or on is not None:
        raise UserError(f"--to {target} needs one directory; a token and --on go with --to {BYTEMAN}")
    directory = Path(words[0])
    policy = with_knobs(preset(policy_name), knobs)

    def bounds_of(each: Policy) -> Bounds:
        return named(bounds_name, each, **sizes, aspects=aspects)

    model = law_of(policy, bounds_of(policy))
    name = name_of(model)
    if target == EXPLORER:
        made = {directory / f"{name}.html": explorer_of(policy, bounds_of)}
    else:
        properties = properties_of(model)
        made = {directory / f"{name}.{end}": render(model, properties) for end, render in FORMATS[target].items()}
    _write(directory, made, force=force)
    _say(made, {"policy": policy.name, "bounds": model.bounds.name, "to": target}, as_json=as_json)


def _say(made: Mapping[Path, str], told: Mapping[str, str], *, as_json: bool) -> None:
    if as_json:
        emit_json({**told, "files": list(map(str, made))})
        return
    for path in made:
        out.print(str(path), soft_wrap=True)


def _to_byteman(token: str, directory: Path, on: str | None) -> tuple[dict[Path, str], dict[str, str]]:
    trace = replay(token)
    policy = trace.model.policy.name
    version = on.removeprefix(JAVA) if on else next((each for each in VERSIONS[::-1] if policy in presets_of(each)), "")
    if policy not in presets_of(version):
        whose = f"the policy of {version} is {presets_of(version)[0]}" if version else "no shipped broker is like that"
        raise UserError(
            f"the token is a run of {policy}, and {whose}: take one of `longpoll check --policy rocketmq-4.9`"
        )
    gates = gates_of(version, lmq=policy == "rocketmq-lmq")
    schedule = with_after(schedule_of(trace, gates), shown_by(trace))
    story = story_of(trace)
    texts = files_of(
        schedule,
        gates,
        version,
        title=story.title,
        sentences=[f"{who(each)} {each.sentence}".strip() for each in story.scenes],
        wrong=story.wrong,
    )
    told = {"policy": policy, "on": f"{JAVA}{version}", "to": BYTEMAN}
    return {directory / name: text for name, text in texts.items()}, told


def _write(directory: Path, made: Mapping[Path, str], *, force: bool) -> None:
    """Write all the files or, where one would be lost, none."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not force:
            for path, text in made.items():
                if path.exists() and path.read_bytes() != text.encode():
                    raise OutputError(f"{path} is there and says something else; give --force or another directory")
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {error.filename or directory}: {error.strerror}") from error
