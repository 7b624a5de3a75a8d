"""`longpoll oracle` checks steps one by one, continues after invalid input, and writes a history."""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll.commands.oracle import session as oracle_session
from longpoll.commands.oracle.command import Lines
from longpoll.commands.oracle.session import LINE_MAX, CompiledSpecification, Oracle
from longpoll_spec.engines.conform import Checker, Follower
from longpoll_spec.engines.evaluate import after_step, enabled_actions
from longpoll_spec.engines.python import successors
from longpoll_spec.errors import EngineLimitError, SpecUserError
from longpoll_spec.history import Law
from longpoll_spec.model import Model, SeenStep
from longpoll_spec.policy import policy_named

PAGE = Path(__file__).parents[2] / "docs" / "oracle.md"
LONGPOLL = [sys.executable, "-m", "longpoll"]
LOST = ("next_pull 0", "pull_read 0", "append", "make_visible", "notify_start", "notify_end", "hold 0")


def oracle_of(policy: str = "strict", histories: Path | None = None, **law: Any) -> Oracle:
    return Oracle(CompiledSpecification(policy_named(policy), Law(**{"requests": 2, **law})), histories)


def asked(oracle: Oracle, **request: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(oracle.answer(json.dumps(request).encode()))
    return found


def told(oracle: Oracle, steps: Iterable[str], **more: Any) -> list[dict[str, Any]]:
    words = (step.split() for step in steps)
    return [asked(oracle, do="did", step=name, actors=",".join(actors), **more) for name, *actors in words]


def walked(model: Model, seed: int, count: int) -> list[tuple[str, str]]:
    chance, step, state = random.Random(seed), successors(model), model.initial
    run = []
    for _ in range(count):
        index, state = chance.choice(step(state))
        action = model.actions[index]
        run.append((action.name, ",".join(map(str, action.actors))))
    return run


@pytest.mark.parametrize("policy", ["strict", "strict-clone", "rocketmq-4.9"])
def test_the_oracle_accepts_a_legal_run_and_lists_the_next_actions(policy: str) -> None:
    oracle = oracle_of(policy)
    model = oracle.beside.model
    state = model.initial
    for name, actors in walked(model, 7, 150):
        assert asked(oracle, do="may")["may"] == [action.label for action in enabled_actions(model, state)]
        action = next(each for each in model.actions if (each.name, ",".join(map(str, each.actors))) == (name, actors))
        state = after_step(model, action, state)
        assert asked(oracle, do="did", step=name, actors=actors)["legal"]
        (shown,) = asked(oracle, do="state")["states"]
        assert shown == {each.name: _shown(each, value) for each, value in zip(model.variables, state, strict=True)}


def _shown(variable: Any, value: int) -> Any:
    return bool(value) if variable.truth else variable.labels[value] if variable.labels else value


def test_the_oracle_refuses_an_illegal_step_with_the_false_part_of_its_guard() -> None:
    oracle = oracle_of()
    before = asked(oracle, do="state")
    refused = asked(oracle, do="did", step="hold", request=0, id=7)

    assert refused == {
        "legal": False,
        "possible": 1,
        "broken": [],
        "why": [{"action": "hold(0)", "false": ["phase_0 = missed (phase_0 is idle)"]}],
        "id": 7,
    }
    assert asked(oracle, do="state") == before
    assert [each["legal"] for each in told(oracle, ("next_pull 0", "pull_read 0", "hold 0"))] == [True] * 3


def test_the_oracle_reports_an_observed_value_that_differs() -> None:
    oracle = oracle_of()
    (found,) = told(oracle, ["append"], queue_offset=3)

    assert found["legal"] is False
    assert found["why"] == [{"action": "append", "false": [], "contradicted": ["log_end is 1, not 4"]}]
    assert told(oracle, ["append"], queue_offset=0)[0]["legal"]


def test_the_oracle_reports_a_lost_wakeup() -> None:
    lost, ours = oracle_of("rocketmq-4.9"), oracle_of("strict")

    assert [each["broken"] for each in told(lost, LOST)][-2:] == [[], ["lost_by_hold", "no_lost_wakeup"]]
    assert asked(lost, do="properties")["properties"]["no_lost_wakeup"] == "broken"
    same = [
        step for step in LOST if step != "notify_end"
    ]  # The policy strict skips a bucket that looks empty, so it has no `notify_end` here.
    assert all(each["legal"] and not each["broken"] for each in told(ours, [*same, "recheck 0"]))
    assert set(asked(ours, do="properties")["properties"].values()) == {"holds"}


def test_the_oracle_follows_every_possible_actor() -> None:
    oracle = oracle_of()
    first, second = told(oracle, ["next_pull ?", "pull_read 1"])

    assert (first["possible"], second["possible"]) == (2, 1)
    (state,) = asked(oracle, do="state")["states"]
    assert (state["phase_0"], state["phase_1"]) == ("idle", "missed")
    (refused,) = told(oracle, ["pull_read"])
    assert [each["action"] for each in refused["why"]] == ["pull_read(0)", "pull_read(1)"]


def test_a_violation_in_one_of_several_possible_runs_is_unknown() -> None:
    """A violation in only some of the possible runs is unknown, even if all runs reach the same correct state later."""
    hidden = ["notify_start", "notify_end", "tick"]
    oracle = oracle_of("rocketmq-4.9", hidden=hidden)
    answers = told(oracle, [*(step for step in LOST if step not in hidden), "scan_start", "scan_each 0"])

    assert all(each["legal"] and not each["broken"] for each in answers)
    assert asked(oracle, do="state")["states"]
    assert all(state["phase_0"] != "held" for state in asked(oracle, do="state")["states"])
    assert asked(oracle, do="properties")["properties"]["no_lost_wakeup"] == "unknown"


def test_after_a_refused_step_only_earlier_violations_are_known() -> None:
    oracle = oracle_of("rocketmq-4.9")
    told(oracle, LOST)
    (refused,) = told(oracle, ["hold 0"])
    found = asked(oracle, do="properties")["properties"]

    assert (refused["legal"], refused["broken"]) == (False, [])
    assert {name for name, word in found.items() if word == "broken"} == {"lost_by_hold", "no_lost_wakeup"}
    assert set(found.values()) == {"broken", "unknown"}


def test_hidden_steps_may_have_happened() -> None:
    steps = ("next_pull 0", "pull_read 0", "append", "hold 0")
    hides, tells = oracle_of("rocketmq-4.9", hidden=["make_visible", "notify_start", "notify_end"]), oracle_of()

    assert all(each["legal"] for each in told(hides, steps))
    assert asked(hides, do="may")["may"] != asked(tells, do="may")["may"]
    assert told(hides, ["notify_each 0"])[0]["legal"]
    assert told(tells, steps)[-1]["legal"]
    (refused,) = told(tells, ["notify_each 0"])
    assert any("dispatcher = walking" in part for part in refused["why"][0]["false"])


@pytest.mark.parametrize("hidden", [(), ("tick",), ("tick", "make_visible")])
@pytest.mark.parametrize("seed", range(4))
def test_following_steps_agrees_with_checking_a_whole_history(seed: int, hidden: tuple[str, ...]) -> None:
    checker = Checker(CompiledSpecification(policy_named("strict"), Law(requests=2)).model, frozenset(hidden))
    run = walked(checker.model, seed, 60)
    random.Random(seed).shuffle(run[40:])
    run = [run[(number + 7 * (number > 45)) % len(run)] for number in range(len(run))]
    labels = [f"{name}({actors})" if actors else name for name, actors in run if name not in hidden]
    steps = [SeenStep((label,), number, number) for number, label in enumerate(labels)]
    whole = checker.check(steps)
    follower = Follower(checker)
    followed = next((number for number, step in enumerate(steps) if follower.did(step)), len(steps))

    assert followed == whole.placed
    assert set(follower.possible) == {here.state for here in whole.possible}


def test_too_many_possible_states_are_reported() -> None:
    follower = Follower(Checker(oracle_of().beside.model, frozenset({"append", "tick"}), possible_max=3))

    with pytest.raises(EngineLimitError, match="hide fewer"):
        follower.did(SeenStep(("next_pull(0)",), 0, 0))


GARBAGE = [
    b"garbage",
    b"[]",
    b"null",
    b"{}",
    b'{"do": 3}',
    b'{"do": "fly"}',
    b'{"do": "did"}',
    b'{"do": "did", "step": "jump"}',
    b'{"do": "did", "step": "hold", "request": 0, "actors": "1"}',
    b'{"do": "did", "step": "hold", "actors": "' + b"0," * 200 + b'"}',
    b'{"do": "did", "step": "append", "queue_offset": 9999999999999999999}',
    b'{"do": "did", "step": "append", "queue_offset": 99999999999999999999999999}',
    b'{"do": "did", "step": "append", "queue": -2}',
    b'{"do": "may", "session": "../up"}',
    b'{"do": "may", "session": ""}',
    b'{"do": "may", "session": "' + b"x" * 65 + b'"}',
    b'{"do": "may", "colour": 1}',
    b"\xff\xfe",
    b"[" * 5_000,
    b'{"do": "may", "session": "\\u0000"}',
]


@pytest.mark.parametrize("line", GARBAGE, ids=range(len(GARBAGE)))
def test_invalid_input_gets_an_error_and_the_session_continues(line: bytes) -> None:
    oracle = oracle_of()
    told(oracle, ["next_pull 0"])
    found = json.loads(oracle.answer(line))

    assert list(found) == ["error"]
    assert found["error"]
    assert told(oracle, ["pull_read 0"])[0]["legal"]
    assert asked(oracle, do="close")["steps"] == 2


def test_sessions_are_independent_and_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle_session, "SESSIONS_MAX", 2)
    oracle = oracle_of()
    told(oracle, ["next_pull 0"], session="a")

    assert told(oracle, ["pull_read 0"], session="b")[0]["legal"] is False
    assert "2 open sessions" in asked(oracle, do="may", session="c")["error"]
    assert asked(oracle, do="close", session="a") == {"steps": 1, "refused": 0}
    assert asked(oracle, do="may", session="c")["may"]


def _answers(chunks: Sequence[bytes]) -> list[dict[str, Any]]:
    oracle, lines = oracle_of(), Lines()
    return [json.loads(answer) for chunk in chunks for answer in lines.answered(oracle, chunk)]


def test_lines_are_read_from_chunks_of_any_size() -> None:
    text = b'{"do": "may", "id": 1}\n\n  \r\n{"do": "may", "id": "x"}\r\n'
    whole = _answers([text])

    assert [each["id"] for each in whole] == [1, "x"]
    assert _answers([text[place : place + 1] for place in range(len(text))]) == whole
    oracle, lines = oracle_of(), Lines()
    assert not list(lines.answered(oracle, b'{"do": "may"}'))
    assert b"append" in lines.last(oracle)
    assert lines.last(oracle) == b""


@pytest.mark.parametrize("size", [LINE_MAX - 20, LINE_MAX + 1, 3 * LINE_MAX])
@pytest.mark.parametrize("chunk", [1 << 10, 1 << 16, 1 << 20])
def test_a_line_that_is_too_long_is_one_error(size: int, chunk: int) -> None:
    text = b'{"do": "' + b"x" * size + b'"}\n{"do": "may"}\n'
    found = _answers([text[place : place + chunk] for place in range(0, len(text), chunk)])

    assert len(found) == 2
    assert (f"at most {LINE_MAX} bytes" in found[0]["error"]) == (size > LINE_MAX)
    assert found[1]["may"]


def _judged(history: Path) -> dict[str, Any]:
    done = CliRunner().invoke(main, ["judge", str(history), "--engine", "local", "--json"])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("steps", [(), ("sweep 3",), ("hold 1",)])
def test_a_session_leaves_a_history_that_the_judge_judges(steps: tuple[str, ...], tmp_path: Path) -> None:
    """A legal run is valid for the judge; a refused step is a violation with the same part of its guard."""
    oracle = oracle_of("strict-clone", tmp_path, hidden=["tick"])
    if steps == ("sweep 3",):
        assert "unknown step" in told(oracle, steps)[0]["error"]
        steps = ()
    for name, actors in walked(oracle.beside.model, 3, 80):
        if name not in {"tick", "stop"}:
            asked(oracle, do="did", step=name, actors=actors)
    refused = told(oracle, steps)
    closed = asked(oracle, do="close")
    judged = _judged(Path(closed["history"]))

    assert judged["verdict"] == ("invalid" if steps else "valid"), judged
    assert closed["refused"] == len(refused)
    for each in refused:
        (finding,) = judged["findings"]
        assert finding["clause"] == "law.step"
        assert each["why"][0]["false"][0] in finding["why"]


def test_a_session_that_is_not_closed_has_a_history_too(tmp_path: Path) -> None:
    oracle = oracle_of(histories=tmp_path)
    told(oracle, ["append"], session="one")
    oracle.close()

    assert _judged(tmp_path / "one")["verdict"] == "valid"
    again = oracle_of(histories=tmp_path)
    assert "cannot write" in told(again, ["append"], session="one")[0]["error"]
    assert told(again, ["append"], session="two")[0]["legal"]
    again.close()


def test_an_action_that_cannot_be_hidden_is_a_mistake() -> None:
    with pytest.raises(SpecUserError, match="did you mean 'tick'"):
        oracle_of(hidden=["tik"])


def _run(*words: str, lines: Sequence[str]) -> subprocess.CompletedProcess[str]:
    text = "".join(f"{line}\n" for line in lines)
    return subprocess.run(  # noqa: PLW1510 - the code is looked at
        [*LONGPOLL, "oracle", *words], input=text, capture_output=True, text=True, timeout=60
    )


def _did(step: str, actors: str = "") -> str:
    return json.dumps({"do": "did", "step": step, "actors": actors})


def test_the_exit_code_says_whether_a_step_was_refused() -> None:
    well = _run("--policy", "strict", lines=[_did("append"), _did("make_visible")])
    wrong = _run("--json", lines=[_did("append"), _did("hold", "0")])

    assert (well.returncode, wrong.returncode) == (0, 1)
    assert well.stderr == "2 steps, 0 rejected; violated properties: none\n"
    told = json.loads(wrong.stderr)
    assert len(told.pop("unknown")) == len(oracle_of().beside.always)
    assert told == {"steps": 2, "refused": 1, "broken": [], "mistakes": 0}
    assert [json.loads(line)["legal"] for line in wrong.stdout.splitlines()] == [True, False]


@pytest.mark.parametrize(
    ("lines", "code"),
    [
        ([json.dumps({"do": "may"})], 3),
        ([_did("append"), "x" * (LINE_MAX + 1)], 3),
        ([_did("append"), "garbage", _did("hold", "0")], 1),
    ],
)
def test_the_exit_code_claims_no_more_than_the_answers(lines: list[str], code: int) -> None:
    done = _run("--json", lines=lines)
    assert done.returncode == code, done.stderr


def test_each_call_on_the_page_prints_its_output(tmp_path: Path) -> None:
    ran = 0
    for kind, title, text in re.findall(r"```(\w+)(?: title=(\S+))?\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL):
        call, _, expected = text.partition("\n")
        if title:
            (tmp_path / title).write_text(text)
        elif kind == "console" and call.startswith("$ longpoll"):
            assert _shell(call.removeprefix("$ "), tmp_path) == expected, call
            ran += 1

    assert ran >= 3


def _shell(line: str, directory: Path) -> str:
    words, _, given = line.partition(" <")
    command = [*LONGPOLL, *shlex.split(words)[1:]]
    environment = {**os.environ, "COLUMNS": "200"}
    with (directory / given).open() if given else Path(os.devnull).open() as source:
        done = subprocess.run(  # noqa: PLW1510 - some calls of the page end with 1
            command, stdin=source, cwd=directory, capture_output=True, text=True, timeout=60, env=environment
        )
    assert done.returncode in {0, 1}, done.stderr
    return done.stdout
