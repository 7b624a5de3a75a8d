"""The law's commands: their keys and exit codes, and one clear line for every mistake of the user."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll_spec.bounds import named
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.python.search import explore
from longpoll_spec.engines.tokens import replay
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import PRESETS, knob_values, preset
from longpoll_spec.testing.traces import breaks_its_property


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "200"})


def _json(*words: str, code: int) -> dict[str, Any]:
    done = _run(*words, "--json")
    assert done.exit_code == code, done.output
    made: dict[str, Any] = json.loads(done.stdout)
    assert done.stdout.count("\n") == 1
    return made


def _by_name(rows: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in rows}


@pytest.mark.parametrize("engine", [pytest.param("packed", marks=pytest.mark.long), "python"])
def test_check_finds_the_race_of_rocketmq(engine: str) -> None:
    """rocketmq-4.9 loses a wakeup: exit 1, the contract's keys, and a token that replays and is explained."""
    made = _json("check", "--policy", "rocketmq-4.9", "--bounds", "tiny", "--engine", engine, code=1)
    entry = pinned_entry("rocketmq-4.9", "tiny")

    assert {
        "policy",
        "bounds",
        "engine",
        "distinct_states",
        "transitions",
        "depth",
        "seconds",
        "compile_seconds",
        "urgent",
        "properties",
    } <= set(made)
    assert (made["policy"], made["bounds"], made["engine"]) == ("rocketmq-4.9", "tiny", engine)
    counts = (made["distinct_states"], made["transitions"], made["depth"])
    assert counts == (entry.distinct_states, entry.transitions, entry.depth)
    rows = _by_name(made["properties"])
    assert {row["kind"] for row in rows.values()} == {"always", "sometimes"}
    broken = {name: row["depth"] for name, row in rows.items() if row["verdict"] == "violated"}
    assert {name: depth for name, depth in broken.items() if rows[name]["bounds"] == "tiny"} == entry.violated
    assert breaks_its_property(replay(rows["no_lost_wakeup"]["token"]))
    told = _run("explain", rows["no_lost_wakeup"]["token"])
    assert told.exit_code == 0
    assert "PullRequestHoldService.suspendPullRequest" in told.stdout
    assert "its wakeup is lost" in " ".join(told.stdout.split())


def test_check_goes_on_to_the_aspects() -> None:
    """A property of an aspect is decided there: its row says where, and by which name the hazard is known."""
    made = _json("check", "--policy", "rocketmq-5", "--bounds", "tiny", "--property", "commit_never_regresses", code=1)
    (row,) = made["properties"]
    alone = ("check", "--policy", "rocketmq-5", "--bounds", "tiny", "--requests", "1", "--aspect", "commits")
    asked = _json(*alone, "--property", "commit_never_regresses", code=1)

    assert (row["bounds"], row["verdict"], row["hazards"]) == ("commits", "violated", ["h"])
    assert [each["bounds"] for each in made["explorations"]] == ["tiny", "commits"]
    assert made["distinct_states"] == made["explorations"][0]["distinct_states"]
    assert asked["bounds"] == "tiny+requests=1+commits"
    assert [each["bounds"] for each in asked["explorations"]] == [asked["bounds"]]
    assert breaks_its_property(replay(row["token"]))


@pytest.mark.long
def test_check_finds_the_tight_bounds_on_answers() -> None:
    """The whole table ends with how late an answer is, with a run for whoever doubts it."""
    made = _json("check", "--policy", "rocketmq-4.9", "--bounds", "tiny", code=1)
    shown = _run("check", "--policy", "strict", "--bounds", "tiny").stdout

    assert {name: each["ticks"] for name, each in made["bounds_found"].items()} == {"late": 1, "woken": 2}
    assert replay(made["bounds_found"]["late"]["token"]).model.bounds.has("lateness")
    assert "late: tight bound 0 ticks" in shown


@pytest.mark.long
def test_strict_holds_over_many_states() -> None:
    """Strict holds in small, over at least 100,000 distinct states, and nothing in it is vacuous."""
    made = _json("check", "--policy", "strict", code=0)

    assert made["bounds"] == "small"
    assert made["distinct_states"] >= 100_000
    assert made["complete"] is True
    assert {row["verdict"] for row in made["properties"]} == {"holds", "reached"}


def test_check_for_people() -> None:
    """The table names verdicts and steps, and gives a command to copy for each counterexample."""
    names = ("--property", "no_lost_wakeup", "--property", "time_can_pass")
    done = _run("check", "--policy", "rocketmq-4.9", "--bounds", "tiny", "--all", *names)

    assert done.exit_code == 1
    assert "5,043 distinct states" in done.stdout
    assert "violated" in done.stdout
    assert "no_lost_wakeup: longpoll explain lp1." in done.stdout
    assert "time waits for: pull_read" in done.stdout


def test_check_takes_sizes_knobs_and_properties() -> None:
    """Sizes and knobs change what is explored, and named properties are judged alone."""
    words = ("--requests", "1", "--messages", "2", "--hold-ticks", "3", "--scan-ticks", "4", "--bounds", "tiny")
    made = _json("check", "--knob", "expiry=scan", *words, "--property", "queued_by_deadline", code=1)
    policy = preset(made["policy"].split("+")[0])

    assert policy.name == "strict"
    assert made["policy"] == "strict+expiry=scan"
    assert made["bounds"] == "tiny+requests=1+messages=2+hold_ticks=3+scan_ticks=4"
    assert [row["name"] for row in made["properties"]] == ["queued_by_deadline"]
    bounds = replay(made["properties"][0]["token"]).model.bounds
    assert (bounds.requests, bounds.messages, bounds.hold_ticks, bounds.scan_ticks) == (1, 2, 3, 4)


def test_what_is_not_found_in_time_is_unknown() -> None:
    """A search that is cut short says so, and exits 3 when nothing is violated by then."""
    made = _json("check", "--bounds", "tiny", "--max-states", "100", code=3)
    shown = _run("check", "--bounds", "tiny", "--max-states", "100")

    assert made["complete"] is False
    assert made["distinct_states"] < 2650
    assert "unknown" in {row["verdict"] for row in made["properties"]}
    assert "violated" not in {row["verdict"] for row in made["properties"]}
    assert "; stopped early" in shown.stdout
    assert "next: longpoll check --policy strict --max-states N" in shown.stdout
    assert "Stopped early" in _run("check", "--bounds", "tiny", "--max-states", "100", "--all").stdout


def test_what_the_bounds_cannot_reach_is_not_all_right() -> None:
    """A property that is meant to be reached and is not: the bounds are too small to tell, exit 3."""
    words = ("check", "--policy", "strict-clone", "--bounds", "tiny", "--property", "bucket_in_two_lists")
    alone = _json(*words, "--requests", "1", code=3)
    two = _json(*words, "--requests", "2", code=0)

    assert alone["properties"][0]["verdict"] == "unreached"
    assert two["properties"][0]["verdict"] == "reached"
    assert "verdict: unknown: bucket_in_two_lists\n" in _run(*words, "--requests", "1").stdout
    assert "these do not: bucket_in_two_lists" in _run(*words, "--requests", "1", "--all").stdout


def test_ctrl_c_prints_what_was_explored(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt in the middle leaves a result that is not complete, and exit 3."""

    def interrupted(_self: object, state: object, _following: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longpoll_spec.engines.python.search._Search._expand", interrupted)
    made = _json("check", "--bounds", "tiny", "--engine", "python", code=3)

    assert made["complete"] is False
    assert made["distinct_states"] == 1


def test_ctrl_c_in_a_proof_is_not_a_refutation(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted proof says so in one line and exits 3."""

    def interrupted(*_args: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longpoll_spec.engines.smt.proof.prove", interrupted)
    done = _run("prove")

    assert done.exit_code == 3
    assert done.stderr == "longpoll: stopped before the end of the proof: the result is unknown\n"


def test_prove_proves_strict() -> None:
    """Strict is proved for eight requests: the contract's keys, every obligation proved, exit 0."""
    made = _json("prove", "--policy", "strict", "--requests", "8", code=0)

    assert {"policy", "requests", "seconds", "obligations"} <= set(made)
    assert (made["policy"], made["requests"]) == ("strict", 8)
    assert {"property", "step", "verdict", "seconds", "token"} <= set(made["obligations"][0])
    assert {each["verdict"] for each in made["obligations"]} == {"proved"}
    assert {each["step"] for each in made["obligations"]} == {"initial", "inductive", "implies"}
    assert set(made["verdicts"].values()) == {"proved"}


def test_prove_refutes_by_a_run() -> None:
    """Without the recheck z3 finds the run that loses the wakeup: exit 1, a token that replays."""
    words = ("prove", "--requests", "2", "--knob", "recheck_after_hold=none", "--property", "no_lost_wakeup")
    made = _json(*words, code=1)
    last = made["obligations"][-1]
    shown = _run(*words)

    assert (last["property"], last["step"], last["verdict"], last["depth"]) == (
        "no_lost_wakeup",
        "bounded",
        "refuted",
        6,
    )
    assert breaks_its_property(replay(last["token"]))
    assert "refuted" in shown.stdout
    assert f"no_lost_wakeup: longpoll explain {last['token'][:6]}" in shown.stdout


def test_prove_shows_where_induction_fails() -> None:
    """With runs cut short the property is unknown, exit 3, and the state and step where induction fails are shown."""
    words = ("prove", "--requests", "2", "--knob", "recheck_after_hold=none", "--depth", "3")
    made = _json(*words, code=3)
    shown = _run(*words)
    failed = next(each for each in made["obligations"] if each["counterexample"] is not None)

    assert made["verdicts"]["no_lost_wakeup"] == "unknown"
    assert failed["counterexample"]["action"].startswith("hold")
    assert failed["counterexample"]["parameters"]["hold_ticks"] >= 1
    assert "no_lost_wakeup: not inductive. In this state, which may be unreachable, it is violated by" in shown.stdout
    assert "phase missed" in shown.stdout


@pytest.fixture(scope="module")
def token() -> str:
    """A token of the race of rocketmq-4.9."""
    policy = preset("rocketmq-4.9")
    model = law_of(policy, named("tiny", policy))
    made = explore(model, properties_of(model)).verdict("lost_by_hold").token
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("form", "beginning"),
    [
        ("text", "rocketmq-4.9: lost_by_hold is violated"),
        ("mermaid", "sequenceDiagram"),
        ("html", "<!doctype html>"),
        ("json", '{"token":"lp1.'),
    ],
)
def test_explain_in_every_format(token: str, form: str, beginning: str, tmp_path: Path) -> None:
    """Every format is printed, or written to a file."""
    file = tmp_path / "shown"
    shown = _run("explain", token, "--format", form)
    written = _run("explain", token, "--format", form, "--output", str(file))

    assert shown.exit_code == written.exit_code == 0
    assert shown.stdout.startswith(beginning)
    assert written.stdout == ""
    assert file.read_text(encoding="utf-8") == shown.stdout


def test_policies_lists_all() -> None:
    """Every preset and every knob is listed, each with its sentence."""
    made = _json("policies", code=0)
    shown = _run("policies")

    assert [each["name"] for each in made["policies"]] == list(PRESETS)
    assert [each["name"] for each in made["knobs"]] == list(knob_values())
    assert all(each["sentence"].endswith(".") for each in (*made["policies"], *made["knobs"]))
    assert _by_name(made["policies"])["strict"]["knobs"]["take"] == "in_place"
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in PRESETS)


def test_properties_lists_all() -> None:
    """Every property is listed with its kind and sentence, also those of a knob."""
    made = _json("properties", "--policy", "strict-clone", "--knob", "expiry=scan", code=0)
    rows = _by_name(made["properties"])

    assert made["policy"] == "strict-clone+expiry=scan"
    assert rows["no_lost_wakeup"]["kind"] == "always"
    assert rows["recheck_after_keep_rescues"]["kind"] == "sometimes"
    assert all(row["sentence"].endswith(".") for row in rows.values())
    assert "no_lost_deadline" not in rows
    assert "no_lost_deadline" in _run("properties").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "--policy", "rabbit"), "unknown policy 'rabbit'"),
        (("check", "--property", "fast"), "unknown property 'fast'"),
        (("check", "--knob", "speed=9"), "unknown knob 'speed'; known: recheck_after_hold"),
        (("check", "--knob", "expriy=scan"), "did you mean 'expiry'?"),
        (("check", "--knob", "tick"), "write NAME=VALUE"),
        (("check", "--policy", "stirct"), "did you mean 'strict'? known: strict, "),
        (("check", "--property", "no_lost_wakup"), "did you mean 'no_lost_wakeup'? `longpoll properties` lists all"),
        (("check", "--bounds", "tinny"), "did you mean 'tiny'?"),
        (("prove", "--world", "plan"), "did you mean 'plain'?"),
        (("check", "--knob", "expiry=never"), "knob expiry cannot be 'never'; known values: scan, own_deadline"),
        (("check", "--bounds", "huge"), "unknown bounds 'huge'"),
        (("check", "--requests", "0"), "requests must be from 1 to 64"),
        (("check", "--queues", "9"), "queues must be from 1 to 8"),
        (("check", "--tags", "0"), "tags must be from 1 to 3"),
        (("check", "--aspect", "weather"), "unknown aspect 'weather'; known: buckets"),
        (("check", "--queues", "2", "--property", "no_orphan"), "unknown property 'no_orphan'"),
        (("check", "--engine", "abacus"), "unknown engine 'abacus'"),
        (("prove", "--policy", "rabbit"), "unknown policy 'rabbit'"),
        (("prove", "--property", "append_fires"), "unknown property 'append_fires'"),
        (("properties", "--policy", "rabbit"), "unknown policy 'rabbit'"),
        (("explain", "lp9.abc"), "not a token of this version"),
        (("explain", "lp1.abc"), "the token is damaged"),
        (("explain", "lp1." + "A" * 9000), "at most 4096 are allowed"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_mistake_is_one_clear_line(words: tuple[str, ...], says: str, as_json: bool) -> None:
    """A user's mistake is one line on stderr and exit 2, with nothing on stdout and no traceback."""
    done = _run(*words, *(["--json"] if as_json else []))

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("longpoll: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_is_named(token: str, tmp_path: Path) -> None:
    """An output that cannot be written is the user's to mend."""
    done = _run("explain", token, "--output", str(tmp_path / "no" / "such" / "place"))

    assert done.exit_code == 2
    assert "cannot write" in done.stderr
