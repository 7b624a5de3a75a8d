"""What `longpoll check` prints by default: the verdict, the worst violations, one next command; and without numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence

import attrs
import pytest
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll.shown import harm, law_shown
from longpoll.shown.harm import HARMS, PART_OF, worst
from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, named
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, preset

TINY = ("check", "--bounds", "tiny", "--max-states", "100000")
BROKEN = ("--policy", "strict", "--knob", "recheck_after_hold=none", "--requests", "1")


def run(*words: str) -> Result:
    """The command, in this process."""
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("violated", "shown"),
    [
        (("closed_is_let_go", "no_lost_wakeup", "no_orphan"), ["no_orphan", "no_lost_wakeup", "closed_is_let_go"]),
        (("lost_by_hold", "no_lost_wakeup", "woken_within"), ["no_lost_wakeup"]),
        (("lost_by_keep", "lost_by_hold"), ["lost_by_hold", "lost_by_keep"]),
        (("buckets_are_swept", "seen_survives", "commit_never_regresses", "answered_by_deadline"),
         ["seen_survives", "answered_by_deadline", "commit_never_regresses"]),
        (("of_tomorrow", "table_is_tidy"), ["table_is_tidy", "of_tomorrow"]),
    ],
)  # fmt: skip
def test_the_worst_come_first(violated: Sequence[str], shown: Sequence[str]) -> None:
    """Lost and unanswered before late before wasted; a part of another violation is left out."""
    assert worst(violated, 3) == shown
    assert worst(reversed(violated), 3) == shown


def test_every_property_has_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each that some preset must always keep, and no other; a missing one is seen."""
    bounds = [*EXPLORATIONS.values(), TIMEOUTS["timeout"]]
    stated = {
        item.name
        for policy in PRESETS.values()
        for each in (named("tiny", policy), *bounds)
        for item in properties_of(law_of(policy, each))
        if item.kind == "always"
    }
    assert {name for _kind, name, _sentence in HARMS} == stated
    assert {*PART_OF, *PART_OF.values()} <= stated
    assert [kind for kind, *_ in HARMS] == sorted(
        (kind for kind, *_ in HARMS), key=["lost", "unanswered", "late", "repeated", "wasted"].index
    )
    monkeypatch.setattr(harm, "HARMS", HARMS[1:])
    assert {name for _kind, name, _sentence in harm.HARMS} != stated


def test_a_violation_is_a_few_lines() -> None:
    """RocketMQ's, of which there are many: at most three, the rest counted, and the command for the worst."""
    done = run(*TINY, "--policy", "rocketmq-4.9", "--json")
    made = json.loads(done.stdout)
    rows = {row["name"]: row for row in made["properties"] if row["verdict"] == "violated"}
    lines = run(*TINY, "--policy", "rocketmq-4.9").stdout.splitlines()

    assert len(rows) > 10
    assert len(lines) == 6
    assert lines[0].startswith(f"verdict: violated: {len(rows)} of ")
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [each["name"] for each in made["worst"]]
    assert all(each["sentence"] in line for each, line in zip(made["worst"], lines[1:4], strict=True))
    assert lines[4].startswith(f"  and {len(rows) - 3} more: --all")
    assert lines[5] == f"next: longpoll explain {rows[made['worst'][0]['name']]['token']}"
    assert rows[made["worst"][0]["name"]]["token"] == made["worst"][0]["token"]


def test_all_has_every_token() -> None:
    """With `--all`: the table, the counts and a command for each violation, as before."""
    made = json.loads(run(*TINY, *BROKEN, "--json").stdout)
    shown = run(*TINY, *BROKEN, "--all")

    assert shown.exit_code == 1
    assert f"{made['distinct_states']:,} distinct states" in shown.stdout
    for row in made["properties"]:
        if row["verdict"] == "violated":
            assert f"{row['name']}: longpoll explain {row['token']}\n" in shown.stdout
        elif row["kind"] == "always":
            assert f"│ {row['name']} " in shown.stdout


def test_a_policy_that_holds_says_what_was_covered() -> None:
    """The counts of all explorations in one line, what they cover, and the proof as the next command."""
    made = json.loads(run(*TINY[:3], "--policy", "strict", "--json").stdout)
    done = run(*TINY[:3], "--policy", "strict")
    lines = done.stdout.splitlines()

    assert done.exit_code == 0
    assert lines[0].startswith("verdict: holds: all ")
    states = sum(each["distinct_states"] for each in made["explorations"])
    assert lines[1].startswith(f"explored: {states:,} distinct states")
    features = ", ".join(each["bounds"] for each in made["explorations"][1:])
    assert f"covered: bounds tiny (requests 2, messages 1), and each of these alone: {features}\n" in done.stdout
    assert lines[-1] == "next: longpoll prove --policy strict"


def test_explain_tells_the_worst_at_once() -> None:
    """The story of the first violation after the verdict; without one it says so, and the exit code stays."""
    done, good = run(*TINY, *BROKEN, "--explain"), run(*TINY, "--policy", "strict", "--explain", "--requests", "1")
    token = done.stdout.split("longpoll explain ")[1].split()[0]

    assert (done.exit_code, good.exit_code) == (1, 0)
    assert done.stdout.endswith("\n" + run("explain", token).stdout)
    assert "nothing to explain: no property is violated" in good.stdout
    assert run(*TINY, *BROKEN, "--explain", "--json").exit_code == 2


def test_a_next_command_names_the_whole_policy() -> None:
    """With its knobs, so that it can be copied."""
    policy = attrs.evolve(preset("strict"), name="strict+tick=free+commit=monotone_max")

    assert law_shown.policy_words(policy) == "--policy strict --knob tick=free --knob commit=monotone_max"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--policy", "rocketmq-4.9", "--property", "lost_by_hold"), 1, "verdict: violated: lost_by_hold"),
        (("--policy", "strict", "--property", "no_lost_wakeup"), 0, "verdict: holds: 1 property"),
        (("--policy", "rocketmq-4.9", "--property", "closed_is_let_go"), 1, "verdict: violated: closed_is_let_go"),
        (("--policy", "strict", "--property", "no_lost_wakeup", "--max-states", "9"), 3, "verdict: unknown"),
    ],
)
def test_without_numpy_the_plain_engine_explores(words: Sequence[str], code: int, said: str) -> None:
    """Under bounds that end, with a note; a property of a feature is explored there."""
    text = "import sys; sys.modules['numpy'] = None; from longpoll.entry import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", text, "check", *words], capture_output=True, text=True, timeout=120, check=False
    )
    chosen = subprocess.run(
        [sys.executable, "-c", text, "check", *words, "--engine", "packed"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert "numpy is not installed, so the engine python explores bounds tiny" in done.stderr
    assert (chosen.returncode, "the package numpy is not installed" in chosen.stderr) == (2, True)
