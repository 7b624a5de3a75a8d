"""Former commands and options print which command replaces them."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from longpoll.cli import COMMANDS, HEADINGS, main
from longpoll.commands.gone import GONE, OPTIONS, answer
from longpoll.output import Exit


@pytest.mark.parametrize("name", GONE)
@pytest.mark.parametrize("words", [(), ("--help",), ("TOPIC", "--json")])
def test_a_former_command_names_its_replacement(name: str, words: tuple[str, ...]) -> None:
    command = answer(name)

    assert command is not None
    assert command.hidden
    called = CliRunner().invoke(command, words)
    assert (called.exit_code, called.stdout) == (Exit.USER, "")
    assert called.stderr == f"longpoll: there is no command `longpoll {name}` any more: {GONE[name]}\n"


@pytest.mark.parametrize("former", OPTIONS)
@pytest.mark.parametrize("words", [(), ("1",)])
def test_a_former_option_names_its_replacement(former: str, words: tuple[str, ...]) -> None:
    """A former option, with or without a value, makes the command print one sentence and exit; `--help` omits it."""
    command, name = former.split()
    called = CliRunner().invoke(main, [command, name, *words])

    assert (called.exit_code, called.stdout) == (Exit.USER, "")
    assert called.stderr == f"longpoll: `longpoll {command}` has no option {name} any more: {OPTIONS[former]}\n"
    assert name not in CliRunner().invoke(main, [command, "--help"]).stdout


def test_help_lists_each_command_under_one_heading() -> None:
    listed = [name for names in HEADINGS.values() for name in names]
    shown = CliRunner().invoke(main, ["--help"]).stdout

    assert sorted(listed) == sorted(COMMANDS)
    assert len(listed) <= 18
    assert not COMMANDS.keys() & GONE.keys()
    assert [name for name in COMMANDS if f"\n  {name}  " not in shown] == []
    assert [heading for heading in HEADINGS if f"\n{heading}:\n" not in shown] == []
