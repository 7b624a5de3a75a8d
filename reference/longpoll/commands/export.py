"""`longpoll export`: the law as text for another checker, so that nobody has to trust our engines.

Leaves out the text (`longpoll_spec.render.export.promela`, `tla` and `jani`) and running the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeAlias

import click

from longpoll.options.law import aspect_option, bounds_option, knob_option, policy_option, size_options
from longpoll.output import emit_json, json_option, out, user_mistakes
from longpoll_spec.bounds import named
from longpoll_spec.errors import OutputError
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.model import Model, Property
from longpoll_spec.policy import preset, with_knobs
from longpoll_spec.render.export.jani import jani_of
from longpoll_spec.render.export.promela import promela_of
from longpoll_spec.render.export.tla import tla_configuration_of, tla_of
from longpoll_spec.render.notation import name_of
from longpoll_spec.testing.zoo import slips_by_label

Render: TypeAlias = Callable[[Model, Sequence[Property]], str]
FORMATS: Final[Mapping[str, Mapping[str, Render]]] = {
    "promela": {"pml": promela_of},
    "tla": {"tla": tla_of, "cfg": tla_configuration_of},
    "jani": {"jani": lambda model, properties: jani_of(model, properties, slips_by_label(model))},
}
"""Format -> the ending of each of its files, with what writes it."""


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("directory", metavar="DIR", type=click.Path(path_type=Path, file_okay=False))
@click.option("--to", "target", type=click.Choice(list(FORMATS)), required=True, help="What to write.")
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
    directory: Path,
    target: str,
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

    \b
    Examples:
      longpoll export --to promela --policy rocketmq-4.9 out
      longpoll export --to tla --policy strict --bounds small out
      longpoll export --to promela --policy rocketmq-4.9 --bounds queues out
      longpoll export --to jani --policy strict out
      longpoll export --to promela --policy strict --queues 2 --tags 2 out
      longpoll export --to tla --policy strict --knob recheck_after_hold=none --requests 3 out --json
    """
    policy = with_knobs(preset(policy_name), knobs)
    model = law_of(policy, named(bounds_name, policy, **sizes, aspects=aspects))
    properties = properties_of(model)
    name = name_of(model)
    made = {directory / f"{name}.{end}": render(model, properties) for end, render in FORMATS[target].items()}
    _write(directory, made, force=force)
    if as_json:
        emit_json({"policy": policy.name, "bounds": model.bounds.name, "to": target, "files": list(map(str, made))})
        return
    for path in made:
        out.print(str(path), soft_wrap=True)


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
