"""What a shell offers for a value that is half written: policies, knobs, bounds, aspects, engines, worlds, properties.

Each function here is an option's `shell_complete`: click gives it the context with the options that stand before, the
option and the letters that are there, and gets back what the value may be. None of them fails: where what stands before
is wrong, they offer what they would offer without it. Topics and groups are the broker's, and nobody asks it here.

Leaves out the scripts that a shell reads, which are click's, and commands and options by themselves, which click
completes (`cli` for the commands).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeAlias

import click
from click.shell_completion import BashComplete, CompletionItem, add_completion_class, get_completion_class

from longpoll_spec.bounds import ASPECTS, NAMES, Bounds
from longpoll_spec.engines import ENGINES
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
"""As text, for a CompletionItem of click 8.1 takes no type."""

ASKED: Final = ("source", "complete")
"""What a script asks for: itself, or completions."""
SHELLS: Final = ("bash", "zsh", "fish")
WORLD_NAMES: Final = ("plain", "uncut", "whole")
"""The names of `longpoll_spec.engines.smt.worlds.WORLDS`, without waiting for z3."""
WHOLE: Final = Bounds("whole", messages=2, queues=2, tags=3, aspects=frozenset(ASPECTS))
WORLDS: Final = (
    Bounds("plain"),
    WHOLE,
    Bounds("uncut", messages=2, queues=2, tags=3, aspects=frozenset(ASPECTS) - {"truncate"}),
)
"""Under these bounds together a policy has every property that it has under any."""


def policies(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The presets that begin so, each with its sentence."""
    return [CompletionItem(name, help=said) for name, said in PRESET_SENTENCES.items() if name.startswith(incomplete)]


def own_policies(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Item]:
    """Those of our own design, whose knobs are there for a reason each."""
    return [each for each in policies(ctx, param, incomplete) if each.value in {name for name, _ in REDUNDANT}]


def knobs(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The settings NAME=VALUE that begin so, each with its knob's sentence."""
    sentences = knob_sentences()
    return [
        CompletionItem(setting, help=sentences[knob])
        for knob, values in knob_values().items()
        for value in values
        if (setting := f"{knob}={str(value).lower()}").startswith(incomplete)
    ]


def bounds(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The names of bounds that begin so."""
    return _beginning(incomplete, NAMES)


def aspects(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The aspects that begin so, each with what it brings into the world."""
    return [CompletionItem(name, help=said) for name, said in ASPECTS.items() if name.startswith(incomplete)]


def engines(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The engines that begin so."""
    return _beginning(incomplete, ENGINES)


def worlds(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The worlds of a proof that begin so."""
    return _beginning(incomplete, WORLD_NAMES)


def properties(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The properties of the policy that stands before which begin so; of `strict`, where none stands there."""
    return _properties(ctx, incomplete, ("always", "inductive", "sometimes"))


def provable(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[Item]:
    """The same, of those that can be proved: what must always be true."""
    return _properties(ctx, incomplete, ("always",))


def _properties(ctx: click.Context, incomplete: str, kinds: Sequence[str]) -> list[Item]:
    from longpoll_spec.law import law_of, properties_of  # noqa: PLC0415 - nobody waits for the law but who needs it

    chosen = _policy_before(ctx)
    stated = {
        item.name: item.sentence
        for world in WORLDS
        for item in properties_of(law_of(chosen, world))
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
    """Click's, for words with `=`: bash hands over NAME=VALUE as three words, and completes the last of them only."""

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one, as they were typed: put together again."""
        args, incomplete = super().get_completion_args()
        whole: list[str] = []
        for word in (*args, incomplete):
            joins = whole and (word.startswith("=") or whole[-1].endswith("="))
            whole[-1:] = [whole[-1] + word] if joins else [*whole[-1:], word]
        return whole[:-1], whole[-1]

    def get_completions(self, args: list[str], incomplete: str) -> list[Item]:
        """What bash is to put in place of what stands after the last `=`."""
        typed = incomplete.partition("=")[2] if incomplete.startswith("--") else incomplete
        there = typed.rfind("=") + 1
        found = super().get_completions(args, incomplete)
        return [CompletionItem(each.value[there:], each.type, each.help) for each in found]


add_completion_class(Bash)


def check_request(asked: str) -> None:
    """Look whether what a shell's script asks for is something there is; raises click's UsageError."""
    shell, _, what = asked.partition("_")
    if get_completion_class(shell) is None or what not in ASKED:
        known = ", ".join(f"{each}_source" for each in SHELLS)
        raise click.UsageError(f"there is no {asked!r} to complete with; for a shell's script ask for: {known}")
    number = os.environ.get("COMP_CWORD", "")
    is_placed = shell == "fish" or (number.isdecimal() and len(number) < 10)
    if what == "complete" and not ("COMP_WORDS" in os.environ and is_placed):
        raise click.UsageError(f"{asked} is asked for by the script that {shell}_source prints: load that one")
