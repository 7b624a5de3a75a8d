"""What a shell offers for a half-written call is what the command then takes; bash is tried for real."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest
from click.shell_completion import BashComplete, ShellComplete, get_completion_class
from click.testing import CliRunner

from longpoll.cli import COMMANDS, COMPLETING, main
from longpoll.options import completion
from longpoll_spec.bounds import ASPECTS, EXPLORATIONS, NAMES, TIMEOUTS, named
from longpoll_spec.engines import ENGINES
from longpoll_spec.engines.ablate import POLICIES
from longpoll_spec.engines.smt.worlds import WORLDS
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, STRICT, knob_values, preset, with_knob

KNOBS: Final = [f"{name}={str(value).lower()}" for name, values in knob_values().items() for value in values]


def shell(name: str) -> ShellComplete:
    """Click's view of one shell, with ours for bash."""
    kind = get_completion_class(name)
    assert kind is not None
    return kind(main, {}, "longpoll", COMPLETING)


def offered(*words: str, by: str = "zsh") -> list[str]:
    """The values offered for the last of the words of a call."""
    return [each.value for each in shell(by).get_completions(list(words[:-1]), words[-1])]


OFFERS: Final[list[tuple[tuple[str, ...], Iterable[str]]]] = [
    (("",), COMMANDS),
    (("check", "--policy", ""), PRESETS),
    (("serve", "--policy", ""), PRESETS),
    (("ablate", "--policy", ""), POLICIES),
    (("check", "--knob", ""), KNOBS),
    (("prove", "--knob", "expiry="), ["expiry=scan", "expiry=own_deadline"]),
    (
        (
            "serve",
            "--knob=on_throw=k",
        ),
        ["on_throw=keep_rest"],
    ),
    (("check", "--bounds", ""), NAMES),
    (("export", "out", "--bounds", "ti"), [name for name in NAMES if name.startswith("ti")]),
    (("check", "--aspect", ""), ASPECTS),
    (("check", "--engine", ""), ENGINES),
    (("prove", "--world", ""), WORLDS),
    (("check", "--policy", "strict", "--prop"), ["--property"]),
    (("no-such", "--prop"), []),
    (("prove", "--policy", "no-such", "--property", "no_lost_w"), ["no_lost_wakeup"]),
]


def _named(case: object) -> str:
    return " ".join(case) if isinstance(case, tuple) else ""


@pytest.mark.parametrize(("words", "values"), OFFERS, ids=_named)
def test_each_value_is_offered_by_its_beginning(words: tuple[str, ...], values: Iterable[str]) -> None:
    """And nothing else is."""
    assert set(offered(*words)) == set(values)


@pytest.mark.parametrize("name", completion.SHELLS)
def test_each_shell_offers_the_same(name: str) -> None:
    """But that bash puts only what stands after the last `=`."""
    cut = "" if name == "bash" else "expiry="

    assert offered("check", "--policy", "strict", by=name) == ["strict", "strict-clone"]
    assert offered("check", "--knob", "expiry=o", by=name) == [f"{cut}own_deadline"]
    assert offered("check", "--knob=expiry=o", by=name) == [f"{cut}own_deadline"]


def test_what_is_offered_is_taken() -> None:
    """Every policy, knob and bounds by the law itself; a planted one is not."""
    for name in offered("check", "--policy", ""):
        assert preset(name).name == name
    for setting in offered("check", "--knob", ""):
        assert with_knob(STRICT, setting).name.endswith(setting)
    for name in offered("check", "--bounds", ""):
        assert named(name, STRICT).name == name
    assert len(offered("check", "--knob", "")) == len(KNOBS) > 40
    assert tuple(WORLDS) == completion.WORLD_NAMES


@pytest.mark.long
@pytest.mark.parametrize("policy", PRESETS)
def test_every_property_of_a_policy_is_offered(policy: str) -> None:
    """Those of all bounds that `check` explores, though three are looked at."""
    chosen = preset(policy)
    all_bounds = [named("tiny", chosen), *EXPLORATIONS.values(), *TIMEOUTS.values()]
    stated = {item.name: item.kind for bounds in all_bounds for item in properties_of(law_of(chosen, bounds))}

    assert set(offered("check", "--policy", policy, "--property", "")) == set(stated)
    always = {name for name, kind in stated.items() if kind == "always"}
    assert set(offered("prove", "--policy", policy, "--property", "")) == always


@pytest.mark.parametrize(
    ("asked", "environment", "said"),
    [
        ("ksh_source", {}, "use one of: bash_source, zsh_source, fish_source"),
        ("bash", {}, "use one of: bash_source"),
        ("bash_complete", {}, "the script that bash_source prints"),
        ("zsh_complete", {"COMP_WORDS": "longpoll", "COMP_CWORD": "first"}, "the script that zsh_source prints"),
        ("bash_complete", {"COMP_WORDS": "longpoll", "COMP_CWORD": "9" * 5000}, "the script that bash_source prints"),
    ],
)
def test_what_no_script_asks_for_is_one_clear_line(
    asked: str, environment: dict[str, str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, and no traceback."""
    monkeypatch.delenv("COMP_WORDS", raising=False)
    done = CliRunner().invoke(main, [], env={COMPLETING: asked, **environment}, prog_name="longpoll")

    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_command_without_its_extra_offers_nothing_and_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Called it says what it lacks; while a shell completes, that would stand in the middle of the user's line."""

    def lacking(name: str) -> object:
        raise ModuleNotFoundError(f"No module named 'pyarrow', for {name}", name="pyarrow")

    monkeypatch.setattr("longpoll.cli.importlib.import_module", lacking)

    assert offered("judge", "--eng") == []
    done = CliRunner().invoke(main, ["judge", "x"], prog_name="longpoll")
    assert done.exit_code == 2
    assert "pip install 'longpoll[judge]'" in done.stderr


BASH: Final = """
eval "$(_LONGPOLL_COMPLETE=bash_source longpoll)"
COMP_WORDS=(longpoll check --knob expiry = o); COMP_CWORD=5
_longpoll_completion longpoll
echo "${COMPREPLY[@]}"
"""


def test_bash_completes_what_stands_after_the_equals_sign() -> None:
    """With the words as bash splits them at `=`; click's own class offers nothing there."""
    folder = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "--norc", "-c", BASH],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": f"{folder}:/usr/bin:/bin"},
    )

    assert done.stdout == "own_deadline\n"
    assert done.stderr == ""
    own = BashComplete(main, {}, "longpoll", COMPLETING)
    assert own.get_completions(["check", "--knob", "expiry", "="], "o") == []
