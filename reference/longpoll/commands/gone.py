"""Removed commands and options, each with one sentence that names its replacement.

`longpoll NAME` prints the sentence and exits with 2, whatever arguments follow. `--help` does not list removed names.
An entry leaves these tables one release after its command was removed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NoReturn

import click

from longpoll.output import fail

GONE: Final = {
    "ablate": "`longpoll check --ablate` changes each knob of a policy and reports which properties break",
    "coverage": "`longpoll check --all` reports which situations a policy reaches, and explores each of its actions",
    "groups": "call `longpoll_client.Admin.groups`, or RocketMQ's `mqadmin consumerProgress`",
    "history": "`longpoll judge` reads every format that it could convert",
    "offsets": "call `longpoll_client.Admin.offsets` and `set_offset`, or RocketMQ's `mqadmin resetOffsetByTime`",
    "properties": "`longpoll policies --properties` lists them",
    "replay": "`longpoll explain TOKEN --on code`, `--on java-4.9.7` and `--on java-5.5.0` replay a token",
    "simulate-broker": "the simulation is part of the tests; run `make nightly` in a checkout",
    "soak": "the soak is part of the tests; run `make nightly` in a checkout",
    "store dump": "`longpoll store verify DIR` checks a store; `longpoll_broker.store.inspect` reads its records",
    "store show": "`longpoll store verify DIR --json` lists the queues; a broker on a copy of DIR serves the messages",
    "topics": "call `longpoll_client.Admin.create_topic` and `topic`, or RocketMQ's `mqadmin updateTopic`",
}
"""Maps a removed command, with its group if it had one, to the sentence about its replacement."""

OPTIONS: Final = {
    "judge --webhook": "--findings FILE appends each finding as a line of JSON, from which another program can post",
    "judge --windows": "--report FILE.html draws the events of each finding, and --evidence DIR writes them",
    "oracle --listen": "start `longpoll oracle` and write to its standard input; each session is a run of its own",
    "serve --ha": "brokers copy no logs; serve a copy of the store with brokerRole=SLAVE in the file of --config",
    "serve --plain": "the broker has one code path; leave the option out",
    "serve --slave-of": "brokers copy no logs; serve a copy of the store with brokerRole=SLAVE in the file of --config",
    "verify --late-ms": "`longpoll judge HISTORY --late-ms N` judges the recorded history by your own limit",
    "verify --record": "the history is in the directory of the report; --report DIR chooses another directory",
    "verify --wake-ms": "`longpoll judge HISTORY --wake-ms N` judges the recorded history by your own limit",
}
"""Maps a command and its removed option to the sentence about the replacement."""


def former_options(command: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add a command's removed options as hidden options; each prints its replacement."""

    def stop(_context: click.Context, option: click.Parameter, value: str | None) -> None:
        if value is not None:
            name = option.opts[0]
            fail(f"`longpoll {command}` has no option {name} any more: {OPTIONS[f'{command} {name}']}")

    def add(function: Callable[..., None]) -> Callable[..., None]:
        for former in OPTIONS:
            owner, name = former.rsplit(" ", 1)
            if owner == command:
                # Some removed options were flags, so each option is accepted with and without a value.
                option = click.option(
                    name, hidden=True, expose_value=False, flag_value="", is_flag=False, callback=stop
                )
                function = option(function)
        return function

    return add


def answer(name: str) -> click.Command | None:
    """Return a command that prints the replacement of the removed command `name`; None if there is no such name."""
    if name not in GONE:
        return None

    def gone() -> NoReturn:
        fail(f"there is no command `longpoll {name}` any more: {GONE[name]}")

    # The command accepts any arguments, even `--help`, so that every call of a removed command prints the same text.
    return click.Command(
        name,
        callback=gone,
        add_help_option=False,
        hidden=True,
        context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
    )
