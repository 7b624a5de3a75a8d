"""Runs of the specification become steps for a broker, and traces of Java's threads become runs."""

from __future__ import annotations

import json
import re
from importlib.resources import files
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner
from model_tests.java.findings import SHOWN_4, Finding, findings, token_of

from longpoll.cli import main
from longpoll_java.byteman_rules import TRACED, rules_of, tracing_of
from longpoll_java.errors import NotOnJavaError
from longpoll_java.exported import files_of
from longpoll_java.recording import PullSeen, Seen, SendSeen, lines_of, steps_of, write_history
from longpoll_java.schedule import IMPOSSIBLE, Kind, schedule_of, with_after
from longpoll_java.violations import breaks, sentence_of, shown_by
from longpoll_spec.actions import FAMILIES
from longpoll_spec.engines.python import successors
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Model, Trace, TraceStep
from longpoll_spec.render.java_breakpoints import STEPS, breakpoints_of

GATES = breakpoints_of("4.9.7")
BY_DRIVER = {"append", "next_pull", "offset_commit", "channel_closes", "tick", "stop", "master_returns", "offset_reset"}


def test_every_action_has_a_breakpoint_a_driver_or_a_reason() -> None:
    names = {family.name for family in FAMILIES}
    walks = {"walk_each", "walk_end"}  # `walk_each` and `walk_end` never occur without walk_start.
    assert set(STEPS) | BY_DRIVER | set(IMPOSSIBLE) | walks == names
    assert not set(STEPS) & BY_DRIVER
    assert not (set(STEPS) | BY_DRIVER) & set(IMPOSSIBLE)


@pytest.mark.parametrize("lmq", [False, True])
@pytest.mark.parametrize("version", ["4.9.7", "5.4.0", "5.5.0"])
def test_every_breakpoint_of_a_step_has_a_rule(version: str, lmq: bool) -> None:
    gates = {gate.name: gate for gate in breakpoints_of(version, lmq=lmq)}
    assert len(gates) == len(breakpoints_of(version, lmq=lmq))
    wanted = {gate for name, pair in STEPS.items() for gate in pair if name not in {"sweep", "remove_bucket"} or lmq}
    assert wanted - set(gates) == ({"commit"} if version.startswith("5") else {"return", "take", "returned"})
    script = rules_of(gates.values())
    for gate in gates.values():
        assert f"RULE {gate.name}\nCLASS {gate.class_name}\nMETHOD {gate.method}\n{gate.place}\n" in script
        assert gate.words.split(",")[0].endswith(gate.method.partition("(")[0])
    assert script.count("throw new") == sum(1 for gate in gates.values() if gate.throws) == 3


def test_a_lost_wakeup_becomes_a_schedule() -> None:
    """In finding (a) the pull's thread stops before the hold while the dispatcher checks for held pulls."""
    trace = replay(token_of("rocketmq-4.9", "lost_by_hold"))
    schedule = with_after(schedule_of(trace, GATES), shown_by(trace))
    assert [step.label for step in schedule.steps] == [
        "append", "next_pull(0)", "pull_read(0)", "make_visible", "notify_start", "hold(0)",
    ]  # fmt: skip
    assert [str(move) for move in schedule.steps[2].moves] == [
        "go thread=pull0 gates=read", "until thread=pull0 gates=hold",
    ]  # fmt: skip
    assert [str(move) for move in schedule.steps[4].moves] == [
        "go thread=dispatcher gates=notify", "until thread=dispatcher gates=taken,done",
    ]  # fmt: skip
    assert all(step.open == (number > 0, False) for number, step in enumerate(schedule.steps))
    assert [str(move) for move in schedule.after] == [
        "free gates=round", "until thread=scanner gates=round", "silent slot=0", "go thread=scanner gates=round",
        "free", "answer slot=0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "finding", findings(), ids=lambda each: f"{each.policy}-{each.property_name}-{each.token[-6:]}"
)
def test_every_finding_is_a_schedule_or_has_a_reason(finding: Finding) -> None:
    """A schedule ends with the steps that show its finding. Without a schedule the error names the step to blame."""
    trace = finding.trace
    assert breaks(trace)
    gates = breakpoints_of("5.5.0" if finding.policy == "rocketmq-5" else "4.9.7", lmq=finding.policy == "rocketmq-lmq")
    if any(step.action is not None and step.action.name in IMPOSSIBLE for step in trace.steps) or (
        finding.property_name == "told_of_master_return"
    ):
        with pytest.raises(NotOnJavaError, match=r"step \d+ of the run is \w+"):
            schedule_of(trace, gates)
        assert finding.property_name not in SHOWN_4 or finding.policy != "rocketmq-4.9"
        return
    schedule = schedule_of(trace, gates)
    assert len(schedule.steps) == trace.depth
    assert shown_by(trace)
    assert sentence_of(finding.property_name)


def test_a_run_that_keeps_its_property_shows_nothing() -> None:
    """A counterexample without its last step breaks no property, so the report claims no finding."""
    whole = replay(token_of("rocketmq-4.9", "lost_by_hold"))
    short = Trace(whole.model, whole.steps[:-2], whole.property_name)
    assert not breaks(short)
    assert shown_by(short) == ()


def test_a_traversal_that_breaks_off_becomes_a_schedule() -> None:
    """In finding (m) the slave acts as master, a pull waits in each queue, and the traversal takes none of them."""
    trace = replay(token_of("rocketmq-5", "return_is_whole"))
    schedule = with_after(schedule_of(trace, breakpoints_of("5.5.0")), shown_by(trace))
    assert schedule.slave
    assert [str(move) for move in schedule.before] == [
        "create number=2", "acts",
        "pull word=prime slot=100 queue=0 number=0", "pull word=prime slot=101 queue=1 number=0",
        "answer word=nothing slot=100", "answer word=nothing slot=101", "ordered", "pull slot=201 queue=1 number=0",
        "until thread=pull201 gates=held slot=201",
    ]  # fmt: skip
    assert [[str(move) for move in step.moves] for step in schedule.steps[4:6] + schedule.steps[8:]] == [
        ["returns", "until thread=operator gates=return"],
        ["go thread=operator gates=return", "until thread=operator gates=take queue=0"],
        ["go thread=operator gates=take"],
    ]
    assert [str(move) for move in schedule.after] == [
        "broke_off", "untouched slot=201", "silent slot=201", "free", "send queue=1", "answer word=found slot=201",
    ]  # fmt: skip
    assert set(files_of(schedule, (), "5.5.0", title="", sentences=[""] * 9, wrong=())) >= {
        "master.conf",
        "broker.conf",
    }


def test_the_nth_sent_message_is_the_nth_visible_one() -> None:
    """If messages become visible in another order than they were appended, the first visible one is sent first."""
    model = replay(token_of("rocketmq-4.9", "round_is_whole")).model
    schedule = schedule_of(_walked(model, ["append(q0)", "append(q1)", "make_visible(q1)"]), GATES)
    assert [move.queue for step in schedule.steps for move in step.moves if move.kind == "send"] == [1, 0]


def _walked(model: Model, labels: list[str]) -> Trace:
    law, steps = successors(model), [TraceStep(None, model.initial)]
    for label in labels:
        index, after = next(each for each in law(steps[-1].state) if model.actions[each[0]].label == label)
        steps.append(TraceStep(model.actions[index], after))
    return Trace(model, tuple(steps))


def test_the_exported_driver_knows_every_step() -> None:
    text = files("longpoll_java.exported").joinpath("Replay.java").read_text(encoding="utf-8")
    body = text[text.index("String act(String kind") : text.index("String come(")]
    assert set(re.findall(r'case "(\w+)":', body)) == set(get_args(Kind)) - {"pop", "turn", "expired"}


def test_exported_files_hold_the_schedule() -> None:
    trace = replay(token_of("rocketmq-4.9", "lost_by_keep"))
    schedule = with_after(schedule_of(trace, GATES), shown_by(trace))
    sentences = [f"sentence {number}" for number in range(trace.depth)]
    made = files_of(schedule, GATES, "4.9.7", title="a title", sentences=sentences, wrong=("what is wrong",))
    assert set(made) == {"README.md", "pom.xml", "broker.conf", "gates.btm", "schedule.txt", "Replay.java"}
    lines = made["schedule.txt"].splitlines()
    moves = [str(move) for step in schedule.steps for move in step.moves]
    assert [line for line in lines if line in set(moves)][: len(moves)] == moves
    assert lines.count("silent slot=0") == sum(step.open[0] for step in schedule.steps) + 1
    assert all(sentence in made["README.md"] for sentence in [*sentences, "what is wrong", sentence_of("lost_by_keep")])
    assert "{" not in re.sub(r"\{(home|port)\}", "", made["broker.conf"])


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
SEEN = Seen("steps", 1, {7: PullSeen(0, 0, 0, sent_ns=100, answered_ns=5070, offset_next=1)}, [SendSeen(0, 90, 145, 0)])


def history(tmp_path: Path, trace: str, policy: str = "rocketmq-4.9") -> Path:
    (tmp_path / "trace.txt").write_text(trace)
    steps = steps_of(lines_of(tmp_path / "trace.txt", "steps"), SEEN)
    write_history(tmp_path / "history", steps, "steps", policy)
    return tmp_path / "history"


def judged(directory: Path) -> tuple[str, int]:
    done = CliRunner().invoke(main, ["judge", str(directory), "--engine", "local", "--json"])
    told = json.loads(done.stdout)
    return told["verdict"], told["judged"]["follows_the_law"]


def test_delays_at_every_breakpoint_are_drawn_from_the_seed() -> None:
    one, other = (tracing_of("4.9.7", delayed_percent=10, seed=seed) for seed in (1, 2))
    assert one != other
    assert one.count("incrementCounter(") == one.count("delay(drawn % 100 < 10 ? 1 + drawn % 8 : 0)") == len(TRACED)
    assert "delay" not in tracing_of("4.9.7")


def test_a_trace_becomes_steps(tmp_path: Path) -> None:
    """Each step has the interval in which it happened and the known state after it."""
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


SCANNED_BEFORE = LOST_BY_HOLD.replace("hold 70 130", "hold 70 131").replace(
    "dispatch 61d", "notify 62s 132 steps 0 - -\ndone 62s 134 steps 0 - -\ndispatch 61d"
)
"""Finding (a) with a scan just before the hold, so that the next scan comes a period later."""


@pytest.mark.parametrize("knob", ["recheck_after_hold=after_insert", "recheck_after_keep=true"])
def test_a_trace_contradicts_a_specification_with_a_recheck(tmp_path: Path, knob: str) -> None:
    """With the knob a recheck must come before time passes, but in this trace a scan's period passes first."""
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
def test_a_missing_step_of_a_broker_is_detected(tmp_path: Path, planted: str, instead: str) -> None:
    assert planted in LOST_BY_HOLD
    assert judged(history(tmp_path, LOST_BY_HOLD.replace(planted, instead)))[0] == "invalid"


def test_foreign_and_torn_lines_are_ignored(tmp_path: Path) -> None:
    """Lines of other topics, pulls outside of the load, and a line truncated by a kill are ignored."""
    trace = "dispatch 61d 10 other 0 - -\nread 90 20 - - 999 true\n" + LOST_BY_HOLD + "read 70 9"
    assert judged(history(tmp_path, trace)) == ("valid", 11)


@pytest.mark.parametrize("version", ["4.9.7", "5.5.0"])
def test_every_breakpoint_has_a_tracing_rule(version: str) -> None:
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
def test_contradicting_options_are_refused(tmp_path: Path, words: list[str], said: str) -> None:
    done = CliRunner().invoke(main, ["observe", *words, "--record", str(tmp_path / "new")])
    assert done.exit_code == 2
    assert said in done.stderr
    assert not (tmp_path / "new").exists()


def test_an_existing_directory_is_kept(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["observe", "--inside", "java-4.9.7", "--record", str(tmp_path)])
    assert done.exit_code == 2
    assert "new directory" in done.stderr
