"""The group `longpoll`, whose commands are loaded only when they are asked for.

Leaves out every command's work: `commands/` has one module a family; and where a process begins (`entry`).
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from longpoll import extras, guard
from longpoll.guard import printable
from longpoll_spec.errors import not_known

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "check": ("longpoll.commands.law", "Explore a policy's state space and check its properties."),
    "prove": ("longpoll.commands.law", "Prove a policy's properties with z3, for any number of messages."),
    "explain": ("longpoll.commands.law", "Explain the run of a token step by step."),
    "coverage": ("longpoll.commands.coverage", "Tell what a list of tokens exercises of the law, and what not."),
    "export": ("longpoll.commands.export", "Write the law for SPIN (Promela), TLC (TLA+) or Storm (JANI)."),
    "oracle": ("longpoll.commands.oracle.command", "Answer step by step whether a program keeps to the law."),
    "ablate": ("longpoll.commands.ablate", "Change each knob of our own policies and report which properties break."),
    "policies": ("longpoll.commands.law", "List the policies and their knobs."),
    "properties": ("longpoll.commands.law", "List the properties, each with its sentence."),
    "serve": ("longpoll.commands.serve", "Run the broker and its name server."),
    "send": ("longpoll.commands.client", "Send messages to a topic."),
    "consume": ("longpoll.commands.client", "Consume a topic as a group."),
    "topics": ("longpoll.commands.admin", "List topics; make, change or remove one."),
    "groups": ("longpoll.commands.admin", "List consumer groups and their members."),
    "offsets": ("longpoll.commands.admin", "Show how far a group is, or have it go on elsewhere."),
    "store": ("longpoll.commands.store", "Show, verify or dump a store directory; never writes to it."),
    "observe": ("longpoll.commands.observe", "Record a history of any broker, as a proxy between it and its clients."),
    "judge": ("longpoll.commands.judge", "Judge a recorded history."),
    "history": ("longpoll.commands.history", "Convert a recorded history between formats."),
    "simulate-broker": ("longpoll.commands.simulate", "Run the whole broker in a simulated world, seed after seed."),
    "replay": ("longpoll.commands.replay", "Replay a token on the reference code or on a Java broker."),
    "soak": ("longpoll.commands.soak", "Ask, kill and stop a served broker, on a real disk, round after round."),
    "zoo": ("longpoll.commands.zoo", "List bugs of hold tables, and which method finds each in our own code."),
    "conform": ("longpoll.commands.conform", "Test any broker against the clauses of the pull path."),
    "dojo": ("longpoll.commands.dojo", "Drive a hold table of your own, in any language, through every order."),
    "lesson": ("longpoll.commands.lesson.command", "Say whether an answer to a lesson's exercise is right."),
    "verify": ("longpoll.commands.verify", "The main job: explore, prove, serve, drive, record, judge, report."),
}
"""Each command's module and its one-line help, so that `longpoll --help` loads nothing."""


COMPLETING: Final = "_LONGPOLL_COMPLETE"
"""The variable by which a shell's script asks for completions, or for itself: click's, of the program's name."""


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is first used."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> Any:
        """Run a command to its end, which is SystemExit with a code of ours; click's own would be 1 for most faults."""
        words = sys.argv[1:] if args is None else list(args)
        run = super().main

        def command() -> Any:
            _prepare_completion()
            return run(words, *more, **(extra | {"standalone_mode": False}))

        code = guard.ended(command, words)
        raise SystemExit(code if isinstance(code, int) else guard.OK)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """As click's, out of which no closed pipe leads to click's own exit code 1."""
        with guard.readers():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """The same."""
        with guard.readers():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Every command, in the order of the list above."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, imported now; None for none, and while one without its extra is completed."""
        if cmd_name not in COMMANDS:
            return None
        try:
            with guard.whole_imports():
                module = importlib.import_module(COMMANDS[cmd_name][0])
        except ModuleNotFoundError as error:
            if ctx.resilient_parsing and extras.missing(error, cmd_name) is not None:
                return None
            raise
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click's, which names no command that is near the one that was meant."""
        if args and args[0] not in COMMANDS and not args[0].startswith("-") and not ctx.resilient_parsing:
            said = not_known("command", args[0], COMMANDS).removeprefix("unknown command ")
            raise click.UsageError(f"No such command {printable(said)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """As click's, without importing the commands whose names it offers."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell that completes needs it

        named = [CompletionItem(name, help=said) for name, (_, said) in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """Write the list without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_module, text) in COMMANDS.items()])


def _prepare_completion() -> None:
    """Where a shell asks for completions: look whether it can have them, and make ours known to click."""
    asked = os.environ.get(COMPLETING)
    if asked:
        from longpoll.options.completion import check_request  # noqa: PLC0415 - only a shell that completes needs it

        check_request(asked)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="longpoll")
def main() -> None:
    """The law of broker long polling, a reference broker, and a judge of recorded histories.

    \b
    Examples:
      longpoll verify                                the whole idea, end to end
      longpoll check --policy rocketmq-4.9           the races of RocketMQ 4.9
      longpoll prove --policy strict --requests 8    the proof for our own design
      longpoll serve --store /tmp/store              a broker that RocketMQ clients can use

    Exit codes: 0 all as it should be, 1 violated or invalid and nothing else, 2 a mistake in the call, 3 unknown.
    Ctrl-C before the work is done, no room on the disk, a reader who is gone and a fault of longpoll itself leave
    what was asked unknown.
    70: a thread has died, and with it the process at once.
    """
