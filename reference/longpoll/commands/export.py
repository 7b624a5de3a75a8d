"""`longpoll export`: the specification for another checker, or one run as files for Java.

With the export, a reader can check the results of our engines independently. The texts come from
`longpoll_spec.render.export` and `longpoll_java.exported`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import click

from longpoll.options.specification import (
    aspect_option,
    bounds_option,
    chosen_policy,
    knob_option,
    policy_option,
    size_options,
)
from longpoll.output import emit_json, json_option, out, user_mistakes
from longpoll_java.exported import files_of
from longpoll_java.jars import JAVA, NAMES, VERSIONS
from longpoll_java.schedule import schedule_of, with_after
from longpoll_java.violations import shown_by
from longpoll_spec.bounds import Bounds, named
from longpoll_spec.engines.tokens import replay
from longpoll_spec.errors import OutputError, UserError
from longpoll_spec.mutants.explorer import explorer_of
from longpoll_spec.policy import Policy
from longpoll_spec.render.export.promela import promela_of
from longpoll_spec.render.export.tla import tla_configuration_of, tla_name_of, tla_of
from longpoll_spec.render.java_breakpoints import breakpoints_of, presets_of
from longpoll_spec.render.notation import name_of
from longpoll_spec.render.pictures.text import who
from longpoll_spec.render.story import story_of
from longpoll_spec.specification import properties_of, specification_of

PROMELA: Final = "promela"
TLA: Final = "tla"
EXPLORER: Final = "explorer"
BYTEMAN: Final = "byteman"


class Target(click.Choice[str]):
    """The export formats. For the name of a removed format, the error names the replacement."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the format; an unknown format is a usage error, which names the replacement of a removed format."""
        if value == "jani":
            self.fail("jani is no longer written; use promela or tla, or `longpoll oracle` from a program", param, ctx)
        return super().convert(value, param, ctx)


def _no_parametric(_context: click.Context, param: click.Parameter, value: bool) -> None:
    if value:
        told = "--to tla always writes the parametric module, and sizes such as --requests are in its configuration"
        raise click.BadParameter(f"drop it: {told}", param=param)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="[FILE|TOKEN] DIR", nargs=-1, required=True)
@click.option("--to", "target", type=Target([PROMELA, TLA, EXPLORER, BYTEMAN]), required=True, help="What to write.")
@click.option(
    "--on",
    type=click.Choice(NAMES),
    help="byteman: the Java broker that follows the run. Default: the newest with the token's policy.",
)
@policy_option()
@bounds_option("tiny")
@size_options(queues="Queues that share one dispatcher and one scanner.", tags="Number of different tags.")
@aspect_option("Add this feature to the model; repeatable.")
@knob_option()
@click.option("--parametric", is_flag=True, hidden=True, expose_value=False, callback=_no_parametric)
@click.option("--force", is_flag=True, help="Overwrite existing files.")
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
    """Export the specification of a policy, with all its properties, into DIR.

    --to promela writes the model for SPIN, which finds the same states, transitions and verdicts as `longpoll check`.
    The file begins with the commands that run it.

    --to tla writes a module to read, and to check with TLC. The sizes are constants of its configuration. It has no
    `sometimes` properties and no `time_can_pass`.

    FILE is a specification file of your own, in place of --policy.

    --to explorer writes a web page that runs the specification in a browser, without a server. On it you can take
    steps, search for violations and inject faults (docs/explorer.md).

    --to byteman writes the run of a TOKEN from `longpoll check`. The files make an unchanged Java broker follow the
    run; they need only Java and Maven. Their README describes the expected result (docs/java.md).

    \b
    Examples:
      longpoll export --to promela --policy rocketmq-4.9 out
      longpoll export --to tla --policy strict out
      longpoll export --to promela --policy rocketmq-4.9 --bounds queues out
      longpoll export --to explorer --policy rocketmq-4.9 out
      longpoll export --to promela --policy strict --queues 2 --tags 2 out
      longpoll export --to tla table.py out
      longpoll export --to tla --policy strict --knob recheck_after_hold=none --requests 3 out --json
      longpoll export --to byteman lp1.lqxyb2NrZXRt... out
      longpoll export --to byteman lp1.lqxyb2NrZXRt... out --on java-5.5.0
    """
    if target == BYTEMAN:
        if len(words) != 2:
            raise UserError("--to byteman needs two arguments: a token from `longpoll check`, and a directory")
        made, told = _to_byteman(words[0], Path(words[1]), on)
        _write(Path(words[1]), made, force=force)
        _say(made, told, as_json=as_json)
        return
    *file, last = words
    if len(file) > 1 or on is not None or not all(each.endswith(".py") for each in file):
        raise UserError(
            f"--to {target} needs exactly one directory, after a specification file if you have one; "
            f"only --to {BYTEMAN} takes a token or --on"
        )
    directory = Path(last)
    policy = chosen_policy(file[0] if file else None, policy_name, knobs)

    def bounds_of(each: Policy) -> Bounds:
        return named(bounds_name, each, **sizes, aspects=aspects)

    model = specification_of(policy, bounds_of(policy))
    name = name_of(model)
    if target == EXPLORER:
        made = {directory / f"{name}.html": explorer_of(policy, bounds_of)}
    elif target == TLA:
        name = tla_name_of(model)
        made = {directory / f"{name}.tla": tla_of(model), directory / f"{name}.cfg": tla_configuration_of(model)}
    else:
        made = {directory / f"{name}.pml": promela_of(model, properties_of(model))}
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
        whose = f"the policy of {version} is {presets_of(version)[0]}" if version else "no Java broker has this policy"
        raise UserError(
            f"the token's policy is {policy}, but {whose}; use a token from `longpoll check --policy rocketmq-4.9`"
        )
    gates = breakpoints_of(version, lmq=policy == "rocketmq-lmq")
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
    """Write all files; if one would be overwritten without `force`, write none."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        if not force:
            for path, text in made.items():
                if path.exists() and path.read_bytes() != text.encode():
                    raise OutputError(f"{path} exists with other contents; use --force or another directory")
        for path, text in made.items():
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(f"cannot write {error.filename or directory}: {error.strerror}") from error
