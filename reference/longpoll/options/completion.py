"""Shell completion of option values: policies, knobs, bounds, features, engines, worlds and properties.

Each function is the `shell_complete` of an option. Click passes it the context with the earlier options, the option,
and the typed letters; it returns the possible values. It never fails: it ignores an invalid earlier option. Topics
and groups are not completed, because that would need a request to the broker.

Click itself provides the shells' scripts and completes options; `cli` completes commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from longpoll_spec.bounds import ASPECTS, NAMES, Bounds
from longpoll_spec.errors import UserError
from longpoll_spec.policy import (
    PRESET_SENTENCES,
    REDUNDANT,
    STRICT,
    Policy,
    knob_sentences,
    knob_values,
    preset,
    with_knob,
)

Item: TypeAlias = "CompletionItem[str]"
"""A string, because click 8.1's CompletionItem takes no type."""

ASKED: Final = ("source", "complete")
"""The requests of a shell: its script, or completions."""
SHELLS: Final = ("bash", "zsh", "fish")
WORLD_NAMES: Final = ("plain", "bare", "uncut", "whole")
"""The names of `longpoll_spec.engines.smt.configurations.WORLDS`, without waiting for z3."""
WHOLE: Final = Bounds("whole", messages=2, queues=2, tags=3, aspects=frozenset(ASPECTS))
WORLDS: Final = (
    Bounds("plain"),
    WHOLE,
    Bounds("uncut", messages=2, queues=2, tags=3, aspects=frozenset(ASPECTS) - {"truncate"}),
)
"""These bounds together cover all properties of a policy."""


def policies(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching presets, each with its sentence."""
    return [CompletionItem(name, help=said) for name, said in PRESET_SENTENCES.items() if name.startswith(incomplete)]


def own_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching presets that `ablate` accepts."""
    return [each for each in policies(ctx, param, incomplete) if each.value in {name for name, _ in REDUNDANT}]


def knobs(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching settings NAME=VALUE, each with its knob's sentence."""
    sentences = knob_sentences()
    return [
        CompletionItem(setting, help=sentences[knob])
        for knob, values in knob_values().items()
        for value in values
        if (setting := f"{knob}={str(value).lower()}").startswith(incomplete)
    ]


def bounds(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching names of bounds."""
    return _beginning(incomplete, NAMES)


def aspects(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching features, each with its sentence."""
    return [CompletionItem(name, help=said) for name, said in ASPECTS.items() if name.startswith(incomplete)]


def engines(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching engines."""
    from longpoll_spec.engines import ENGINES  # noqa: PLC0415 - a slow import

    return _beginning(incomplete, ENGINES)


def worlds(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching worlds of a proof."""
    return _beginning(incomplete, WORLD_NAMES)


def properties(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching properties of the policy in the earlier options; of `strict` by default."""
    return _properties(ctx, incomplete, ("always", "inductive", "sometimes"))


def provable(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The matching properties that can be proved, those of kind `always`."""
    return _properties(ctx, incomplete, ("always",))


def _properties(ctx: click.Context, incomplete: str, kinds: Sequence[str]) -> list[Item]:
    from longpoll_spec.specification import properties_of, specification_of  # noqa: PLC0415 - a slow import

    chosen = _policy_before(ctx)
    stated = {
        item.name: item.sentence
        for world in WORLDS
        for item in properties_of(specification_of(chosen, world))
        if item.kind in kinds
    }
    return [CompletionItem(name, help=said) for name, said in stated.items() if name.startswith(incomplete)]


def _policy_before(ctx: click.Context) -> Policy:
    chosen = STRICT
    with suppress(UserError):
        chosen = preset(ctx.params.get("policy_name") or STRICT.name)
        for setting in ctx.params.get("knobs") or ():
            chosen = with_knob(chosen, setting)
    return chosen


def _beginning(incomplete: str, names: Iterable[str]) -> list[Item]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


class Bash(BashComplete):
    """Like click's, for words with `=`: bash passes NAME=VALUE as three words and completes only the last."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the completed one, and that one, each joined again as typed."""
        args, incomplete = super().get_completion_args()
        whole: list[str] = []
        for word in (*args, incomplete):
            joins = whole and (word.startswith("=") or whole[-1].endswith("="))
            whole[-1:] = [whole[-1] + word] if joins else [*whole[-1:], word]
        return whole[:-1], whole[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[Item]:
        """The texts with which bash replaces the part after the last `=`."""
        typed = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
        there = typed.rfind("=") + 1
        found = super().get_completions(args, incomplete)
        return [CompletionItem(each.value[there:], each.type, each.help) for each in found]


add_completion_class(Bash)


def check_request(asked: str) -> None:
    """Check the request of a shell's script; raises click's UsageError."""
    shell, _, what = asked.partition("_")
    if get_completion_class(shell) is None or what not in ASKED:
        known = ", ".join(f"{each}_source" for each in SHELLS)
        raise click.UsageError(f"cannot complete {asked!r}; to get a shell's script, use one of: {known}")
    number = os.environ.get("COMP_CWORD", "")
    is_placed = shell == "fish" or (number.isdecimal() and len(number) < 10)
    if what == "complete" and not ("COMP_WORDS" in os.environ and is_placed):
        raise click.UsageError(f"only the script that {shell}_source prints can use {asked}; load that script")
