"""Converts a trace to steps: the lines of each thread and the load's view; a torn trace gives no step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_java.byteman_rules import TRACED, tracing_of
from longpoll_java.recording import PullSeen, Seen, SendSeen, lines_of, steps_of, write_history
from longpoll_spec.actions import FAMILIES

LOST_BY_HOLD = """read 70 120 - - 7 true
hold 70 130 steps 0 7 -
dispatch 61d 140 steps 0 - -
notify 61d 150 steps 0 - -
done 61d 160 steps 0 - -
held 70 170 steps 0 7 -
served 70 180 - - 7 true
notify 62s 5000 steps 0 - -
taken 62s 5010 steps 0 - -
each 62s 5020 steps 0 7 -
done 62s 5040 steps 0 - -
read 71 5050 - - 7 false
served 71 5060 - - 7 false
"""
"""Finding (a) as the rules write it."""
SEEN = Seen("steps", 1, {7: PullSeen(0, 0, 0, sent_ns=100, answered_ns=5070, offset_next=1)}, [SendSeen(0, 90, 145, 0)])


def history(tmp_path: Path, trace: str, policy: str = "rocketmq-4.9") -> Path:
    """The history that a trace becomes."""
    (tmp_path / "trace.txt").write_text(trace)
    steps = steps_of(lines_of(tmp_path / "trace.txt", "steps"), SEEN)
    write_history(tmp_path / "history", steps, "steps", policy)
    return tmp_path / "history"


def judged(directory: Path) -> tuple[str, int]:
    """The verdict, and how many steps it is of."""
    done = CliRunner().invoke(main, ["judge", str(directory), "--engine", "local", "--json"])
    told = json.loads(done.stdout)
    return told["verdict"], told["judged"]["follows_the_law"]


def covered(*directories: Path) -> dict[str, Any]:
    """The output of `longpoll coverage` for the one spec of some histories."""
    done = CliRunner().invoke(main, ["coverage", *map(str, directories), "--json"])
    assert done.exit_code == 0, done.output
    (law,) = json.loads(done.stdout)["laws"]
    return dict(law)


def test_which_transitions_were_seen(tmp_path: Path) -> None:
    """Each step of the trace, with its class, occurs once; the scan's ticks are added."""
    law = covered(history(tmp_path, LOST_BY_HOLD))
    seen = {name: {word: times for word, times in words.items() if times} for name, words in law["transitions"].items()}
    assert (law["policy"], law["sources"], law["steps"], law["beyond"]) == ("rocketmq-4.9", 1, 11, {})
    assert seen["notify_start"] == {"dispatcher due -> walking; scanner idle; idle; missed": 1}
    assert seen["scan_each"] == {"dispatcher idle; scanner walking; *taken_by_scanner -> queued; idle": 1}
    assert (
        sum(times for words in seen.values() for times in words.values())
        == law["run"]
        == 11 + sum(seen["tick"].values())
    )
    assert sum(seen["tick"].values()) == 2
    assert not seen["stop"]


def test_a_history_without_steps_is_no_history_of_steps(tmp_path: Path) -> None:
    directory = history(tmp_path, LOST_BY_HOLD)
    meta = json.loads((directory / "meta.json").read_text())
    (directory / "meta.json").write_text(json.dumps({key: value for key, value in meta.items() if key != "law"}))
    done = CliRunner().invoke(main, ["coverage", str(directory)])
    assert done.exit_code == 2
    assert "not a history of steps" in done.stderr


def test_delays_are_drawn_at_every_place_from_the_seed() -> None:
    """Each traced place has its own draw, another seed another one, and without delays there is none."""
    one, other = (tracing_of("4.9.7", delayed_percent=10, seed=seed) for seed in (1, 2))
    assert one != other
    assert one.count("incrementCounter(") == one.count("delay(drawn % 100 < 10 ? 1 + drawn % 8 : 0)") == len(TRACED)
    assert "delay" not in tracing_of("4.9.7")


def test_a_trace_as_steps(tmp_path: Path) -> None:
    """Each with the moments that it certainly lies between, and what is known after it."""
    (tmp_path / "trace.txt").write_text(LOST_BY_HOLD)
    steps = steps_of(lines_of(tmp_path / "trace.txt", "steps"), SEEN)[0]
    told = {(step.name, step.actors): (step.after_ns, step.before_ns) for step in steps}
    assert told == {
        ("append", ""): (90, 140), ("next_pull", "0"): (100, 120), ("pull_read", "0"): (120, 130),
        ("make_visible", ""): (140, 150), ("notify_start", ""): (150, 160), ("notify_end", ""): (150, 160),
        ("hold", "0"): (130, 170), ("scan_start", ""): (5000, 5010), ("scan_each", "0"): (5020, 5040),
        ("scan_end", ""): (5020, 5040), ("run", "0"): (5050, 5060),
    }  # fmt: skip
    known = {step.name: (step.queue_offset, step.visible_end, step.offset) for step in steps}
    assert known["append"] == (0, -1, -1)
    assert known["make_visible"] == (-1, 1, -1)
    assert known["run"] == (-1, -1, 1)
    assert {step.name for step in steps} <= {family.name for family in FAMILIES}


def test_a_lost_wakeup_follows_the_law_that_loses_it(tmp_path: Path) -> None:
    """It is a run of rocketmq-4.9."""
    assert judged(history(tmp_path, LOST_BY_HOLD)) == ("valid", 11)


SCANNED_BEFORE = LOST_BY_HOLD.replace("hold 70 130", "hold 70 131").replace(
    "dispatch 61d", "notify 62s 132 steps 0 - -\ndone 62s 134 steps 0 - -\ndispatch 61d"
)
"""The same with a scan just before the hold, so that the next one is a period later."""


@pytest.mark.parametrize("knob", ["recheck_after_hold=after_insert", "recheck_after_keep=true"])
def test_it_follows_no_law_that_cannot(tmp_path: Path, knob: str) -> None:
    """A policy that looks again has no time pass before it has; here a period of the scan does."""
    assert judged(history(tmp_path, SCANNED_BEFORE)) == ("valid", 13)
    meta = tmp_path / "history" / "meta.json"
    meta.write_text(meta.read_text().replace("rocketmq-4.9", f"rocketmq-4.9+{knob}"))
    assert judged(tmp_path / "history")[0] == "invalid"


@pytest.mark.parametrize(
    ("planted", "instead"),
    [
        ("held 70 170 steps 0 7 -\n", ""),
        ("dispatch 61d 140 steps 0 - -\n", ""),
        ("read 71 5050 - - 7 false\n", "read 71 5050 - - 7 true\n"),
        ("taken 62s 5010 steps 0 - -\neach 62s 5020 steps 0 7 -\n", ""),
    ],
)
def test_a_broker_that_leaves_a_step_out_is_seen(tmp_path: Path, planted: str, instead: str) -> None:
    assert planted in LOST_BY_HOLD
    assert judged(history(tmp_path, LOST_BY_HOLD.replace(planted, instead)))[0] == "invalid"


def test_lines_of_others_and_torn_lines_are_passed_over(tmp_path: Path) -> None:
    """Other topics, pulls that are not the load's, and a line that a kill has cut."""
    trace = "dispatch 61d 10 other 0 - -\nread 90 20 - - 999 true\n" + LOST_BY_HOLD + "read 70 9"
    assert judged(history(tmp_path, trace)) == ("valid", 11)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_a_rule_writes_at_every_place(version: str) -> None:
    """One a gate, and none that waits or asks."""
    script = tracing_of(version)
    assert script.count("RULE ") == len(TRACED) + 1
    assert "URL" not in script
    assert script.count("traceln(") == len(TRACED)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--inside", "java-4.9.7", "--broker", "127.0.0.1:1"], "remove --broker"),
        (["--messages", "3", "--broker", "127.0.0.1:1"], "need --inside"),
        (["--inside", "java-1.0"], "java-4.9.7"),
        (["--inside", "java-4.9.7", "--messages", "0"], "--messages"),
    ],
)
def test_what_does_not_go_together(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["observe", *words, "--record", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "new").exists()


def test_a_directory_that_is_there_is_kept(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["observe", "--inside", "java-4.9.7", "--record", str(tmp_path)])
    assert done.exit_code == 2
    assert "new directory" in done.stderr
