"""The command group `longpoll`, which imports a command's module only when that command runs.

The commands are in `commands/`, one module per family. The process starts in `entry`.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from longpoll import exit_codes, extras
from longpoll.exit_codes import printable
from longpoll_spec.errors import not_known

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    "check": ("longpoll.commands.specification", "Explore a policy's state space and check its properties."),
    "prove": ("longpoll.commands.specification", "Prove a policy's properties with z3, for any number of messages."),
    "explain": ("longpoll.commands.explain", "Explain the run of a token, or replay it on a broker."),
    "export": ("longpoll.commands.export", "Export the specification to SPIN (Promela) or TLC (TLA+)."),
    "oracle": ("longpoll.commands.oracle.command", "Check a program's steps against the specification, one by one."),
    "policies": ("longpoll.commands.specification", "List the policies, their knobs and their properties."),
    "serve": ("longpoll.commands.serve", "Run the broker and its name server."),
    "send": ("longpoll.commands.client", "Send messages to a topic."),
    "consume": ("longpoll.commands.client", "Consume messages as a member of a consumer group."),
    "store": ("longpoll.commands.store", "Verify a store directory without writing to it."),
    "observe": ("longpoll.commands.observe", "Record a history of any broker with a proxy in front of it."),
    "judge": ("longpoll.commands.judge", "Judge a recorded history."),
    "conform": ("longpoll.commands.conform", "Test any broker that speaks RocketMQ's protocol."),
    "kit": ("longpoll.commands.kit", "Test the long polling of Redis, an HTTP service, or another, by its URL."),
    "dojo": ("longpoll.commands.dojo", "Test your own hold table, in any language, in every order of messages."),
    "lesson": ("longpoll.commands.lesson.command", "Show the exercises of the lessons and check your answers."),
    "verify": ("longpoll.commands.verify", "Do everything: explore, prove, serve, load, record, judge, report."),
}
"""Each command's module and its one-line help, so that `longpoll --help` imports no command."""

HEADINGS: Final[dict[str, tuple[str, ...]]] = {
    "Test a broker or a service": ("kit", "verify", "conform", "dojo", "oracle", "observe", "judge"),
    "Run a broker": ("serve", "send", "consume", "store"),
    "The specification": ("check", "prove", "explain", "export", "policies"),
    "Learn": ("lesson",),
}
"""The headings of `longpoll --help`, each with its commands in display order."""

COMPLETING: Final = "_LONGPOLL_COMPLETE"
"""The environment variable with which a shell asks click for completions or for the completion script."""
SHELLS: Final = ("bash", "zsh", "fish")


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is first used."""

    def main(self, args: Sequence[str] | None = None, *more: Any, **extra: Any) -> Any:
        """Run a command and raise SystemExit with one of our exit codes; click itself would exit 1 for most errors."""
        words = sys.argv[1:] if args is None else list(args)
        run = super().main

        def command() -> Any:
            shell, _, what = os.environ.get(COMPLETING, "").partition("_")
            if shell and not (shell in SHELLS and (what == "source" or "COMP_WORDS" in os.environ)):
                known = ", ".join(f"{each}_source" for each in SHELLS)
                raise click.UsageError(f"to get a shell's script for completion, set {COMPLETING} to one of: {known}")
            return run(words, *more, **(extra | {"standalone_mode": False}))

        code = exit_codes.ended(command, words)
        raise SystemExit(code if isinstance(code, int) else exit_codes.OK)

    def make_context(self, *words: Any, **extra: Any) -> click.Context:
        """Call click's `make_context`, except that a closed pipe does not lead to exit code 1."""
        with exit_codes.readers():
            return super().make_context(*words, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        """Call click's `invoke`, except that a closed pipe does not lead to exit code 1."""
        with exit_codes.readers():
            return super().invoke(ctx)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """All commands, in the order of `HEADINGS`."""
        return [name for names in HEADINGS.values() for name in names]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command of this name, or return None if the name is unknown.

        Also returns None while a shell completes a line, if the command's extra is missing. For a removed command,
        returns a command that prints its replacement.
        """
        if cmd_name not in COMMANDS:
            from longpoll.commands import gone  # noqa: PLC0415 - only a former command needs it

            return gone.answer(cmd_name)
        try:
            with exit_codes.whole_imports():
                module = importlib.import_module(COMMANDS[cmd_name][0])
        except ModuleNotFoundError as error:
            needed = extras.missing(error, cmd_name)
            if needed is None:
                raise
            return None if ctx.resilient_parsing else _not_installed(cmd_name, needed, error)
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        command.epilog = extras.lacking(cmd_name) or command.epilog
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does, but suggest the nearest command in the error."""
        is_word = args and not args[0].startswith("-") and not ctx.resilient_parsing
        if is_word and args[0] not in COMMANDS and self.get_command(ctx, args[0]) is None:
            said = not_known("command", args[0], COMMANDS).removeprefix("unknown command ")
            raise click.UsageError(f"No such command {printable(said)}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """Complete as click does, but without importing the commands."""
        from click.shell_completion import CompletionItem  # noqa: PLC0415 - only a shell that completes needs it

        named = [CompletionItem(name, help=said) for name, (_, said) in COMMANDS.items() if name.startswith(incomplete)]
        return [*named, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the same
        """Write the list of commands without importing them."""
        for heading, names in HEADINGS.items():
            with formatter.section(heading):
                formatter.write_dl([(name, COMMANDS[name][1]) for name in names])


def _not_installed(name: str, needed: str, error: ModuleNotFoundError) -> click.Command:
    """Return a command whose help says what to install, and which fails when it is run."""

    def fail() -> None:
        raise error

    return click.Command(
        name,
        callback=fail,
        help=f"{COMMANDS[name][1]}\n\nIts options are listed once its extra is installed: {needed}",
        context_settings={
            "help_option_names": ["-h", "--help"],
            "ignore_unknown_options": True,
            "allow_extra_args": True,
        },
    )


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="longpoll")
def main() -> None:
    """Check, run and test broker long polling: a specification, a reference broker, and a judge of histories.

    \b
    Examples:
      longpoll verify                                run everything, end to end
      longpoll check --policy rocketmq-4.9           find the races of RocketMQ 4.9
      longpoll prove --policy strict --requests 8    prove that our own design has none
      longpoll serve --store /tmp/store              run a broker that RocketMQ clients can use

    \b
    Exit codes:
      0   success
      1   a property is violated, or a history is invalid
      2   a mistake in the command line or the input
      3   unknown: Ctrl-C, a full disk, out of memory, a closed pipe, or an internal error
      70  a thread crashed, so the process exited at once
    """
