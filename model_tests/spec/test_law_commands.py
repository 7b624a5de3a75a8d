"""The commands about the specification: check, prove, explain and policies, and their errors."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import attrs
import pytest
from click.testing import CliRunner, Result
from model_tests.support.spec.cases import breaks_its_property

from longpoll.cli import main
from longpoll.commands import specification
from longpoll.views import check
from longpoll.views.check import HARMS, PART_OF, worst
from longpoll_spec.bounds import EXPLORATIONS, TIMEOUTS, named
from longpoll_spec.engines import ablate as engine
from longpoll_spec.engines import explore
from longpoll_spec.engines.ablate import Row, row_of
from longpoll_spec.engines.exploration import Progress, Verdict
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.smt import configurations
from longpoll_spec.engines.smt.proof import Proof
from longpoll_spec.engines.tokens import replay
from longpoll_spec.model import Model
from longpoll_spec.policy import PRESETS, REDUNDANT, STRICT, knob_values, other_settings, preset
from longpoll_spec.specification import properties_of, specification_of


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


def test_check_explores_each_feature_after_the_sizes() -> None:
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


def test_check_takes_sizes_knobs_and_properties() -> None:
    words = ("--requests", "1", "--messages", "2", "--hold-ticks", "3", "--scan-ticks", "4", "--bounds", "tiny")
    made = _json("check", "--knob", "expiry=scan", *words, "--property", "queued_by_deadline", code=1)
    policy = preset(made["policy"].split("+")[0])

    assert policy.name == "strict"
    assert made["policy"] == "strict+expiry=scan"
    assert made["bounds"] == "tiny+requests=1+messages=2+hold_ticks=3+scan_ticks=4"
    assert [row["name"] for row in made["properties"]] == ["queued_by_deadline"]
    bounds = replay(made["properties"][0]["token"]).model.bounds
    assert (bounds.requests, bounds.messages, bounds.hold_ticks, bounds.scan_ticks) == (1, 2, 3, 4)


def test_an_interrupted_search_without_a_violation_is_unknown() -> None:
    made = _json("check", "--bounds", "tiny", "--max-states", "100", code=3)
    shown = _run("check", "--bounds", "tiny", "--max-states", "100")

    assert made["complete"] is False
    assert made["distinct_states"] < 2650
    assert "unknown" in {row["verdict"] for row in made["properties"]}
    assert "violated" not in {row["verdict"] for row in made["properties"]}
    assert "; stopped early" in shown.stdout
    assert "next: longpoll check --policy strict --max-states N" in shown.stdout
    assert "Stopped early" in _run("check", "--bounds", "tiny", "--max-states", "100", "--all").stdout


def test_bounds_that_do_not_reach_a_required_state_are_unknown() -> None:
    words = ("check", "--policy", "strict-clone", "--bounds", "tiny", "--property", "bucket_in_two_lists")
    alone = _json(*words, "--requests", "1", code=3)
    two = _json(*words, "--requests", "2", code=0)

    assert alone["properties"][0]["verdict"] == "unreached"
    assert two["properties"][0]["verdict"] == "reached"
    assert "verdict: unknown: bucket_in_two_lists\n" in _run(*words, "--requests", "1").stdout
    assert "these do not: bucket_in_two_lists" in _run(*words, "--requests", "1", "--all").stdout


def test_ctrl_c_in_a_proof_is_not_a_refutation(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_args: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("longpoll_spec.engines.smt.proof.prove", interrupted)
    done = _run("prove")

    assert done.exit_code == 3
    assert done.stderr == "longpoll: stopped before the end of the proof: the result is unknown\n"


def test_prove_proves_strict() -> None:
    made = _json("prove", "--policy", "strict", "--requests", "2", code=0)

    assert {"policy", "requests", "seconds", "obligations"} <= set(made)
    assert (made["policy"], made["requests"]) == ("strict", 2)
    assert {"property", "step", "verdict", "seconds", "token"} <= set(made["obligations"][0])
    assert {each["verdict"] for each in made["obligations"]} == {"proved"}
    assert {each["step"] for each in made["obligations"]} == {"initial", "inductive", "implies"}
    assert set(made["verdicts"].values()) == {"proved"}


def test_a_proof_of_the_chosen_configurations_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(configurations, "CONFIGURATIONS", {"plain": configurations.WORLDS["plain"]})
    monkeypatch.setattr(configurations, "questions_of", _one_question)
    for words, code, verdict in (("--configuration plain", 0, "proved in plain alone"), ("", 4, "proved, except ")):
        made = _json("prove", "--requests", "any", "--property", "answered_once", *words.split(), code=code)

        assert made["verdict"].startswith(verdict)
        assert made["not_taken"]
        assert made["verdicts"] == {"answered_once": "proved"}


def _one_question(make: partial[Model]) -> Sequence[configurations.Question]:
    """Return only one question of the proof, because finding all questions would take longer than the proof."""
    assert make.args == (STRICT,)
    return [configurations.Question("answer", "answered_once", frozenset({"crash"}))]


def test_prove_refutes_by_a_run() -> None:
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
    words = (
        "prove",
        "--requests",
        "2",
        "--knob",
        "recheck_after_hold=none",
        "--depth",
        "3",
        "--property",
        "no_lost_wakeup",
    )
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
    policy = preset("rocketmq-4.9")
    model = specification_of(policy, named("tiny", policy))
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
    file = tmp_path / "shown"
    shown = _run("explain", token, "--format", form)
    written = _run("explain", token, "--format", form, "--output", str(file))

    assert shown.exit_code == written.exit_code == 0
    assert shown.stdout.startswith(beginning)
    assert written.stdout == ""
    assert file.read_text(encoding="utf-8") == shown.stdout


def test_policies_lists_all() -> None:
    made = _json("policies", code=0)
    shown = _run("policies")

    assert [each["name"] for each in made["policies"]] == list(PRESETS)
    assert [each["name"] for each in made["knobs"]] == list(knob_values())
    assert all(each["sentence"].endswith(".") for each in (*made["policies"], *made["knobs"]))
    assert _by_name(made["policies"])["strict"]["knobs"]["take"] == "in_place"
    assert shown.exit_code == 0
    assert all(name in shown.stdout for name in PRESETS)


def test_policies_lists_the_properties() -> None:
    made = _json("policies", "strict-clone+expiry=scan", "--properties", code=0)
    rows = _by_name(made["properties"])

    assert made["policy"] == "strict-clone+expiry=scan"
    assert rows["no_lost_wakeup"]["kind"] == "always"
    assert rows["recheck_after_keep_rescues"]["kind"] == "sometimes"
    assert all(row["sentence"].endswith(".") for row in rows.values())
    assert "no_lost_deadline" not in rows
    assert "no_lost_deadline" in _run("policies", "--properties").stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("check", "--policy", "rabbit"), "unknown policy 'rabbit'"),
        (("check", "--property", "fast"), "unknown property 'fast'"),
        (("check", "--knob", "speed=9"), "unknown knob 'speed'; `longpoll policies` lists all"),
        (("check", "--knob", "expriy=scan"), "did you mean 'expiry'?"),
        (("check", "--knob", "tick"), "write tick=VALUE with one of: "),
        (("check", "--policy", "stirct"), "did you mean 'strict'? known: strict, "),
        (
            ("check", "--property", "no_lost_wakup"),
            "did you mean 'no_lost_wakeup'? `longpoll policies --properties`",
        ),
        (("check", "--bounds", "tinny"), "did you mean 'tiny'?"),
        (("prove", "--world", "plan"), "did you mean 'plain'?"),
        (("prove", "--policy", "strict+take=clone"), "known values: clone_and_clear, in_place"),
        (("check", "--knob", "expiry=never"), "knob expiry cannot be 'never'; known values: scan, own_deadline"),
        (("check", "--requests", "0"), "requests must be from 1 to 64"),
        (("check", "--aspect", "weather"), "unknown aspect 'weather'; known: buckets"),
        (("check", "--queues", "2", "--property", "no_orphan"), "unknown property 'no_orphan'"),
        (("check", "--engine", "abacus"), "unknown engine 'abacus'"),
        (("check", "--engine", "simulate"), "no engine tries random runs any more"),
        (("check", "--ablate", "--bounds", "tiny"), "--ablate does not go with --bounds"),
        (("policies", "strict", "strict-clone", "--properties"), "--properties takes one policy, not 2"),
        (("explain", "lp1.abc", "--on", "code", "--format", "svg"), "leave them out to replay it with --on"),
        (("prove", "--property", "append_fires"), "unknown property 'append_fires'"),
        (("explain", "lp9.abc"), "not a token of this version"),
        (("explain", "lp1.abc"), "the token is damaged"),
        (("explain", "lp1." + "A" * 9000), "at most 4096 are allowed"),
    ],
)
@pytest.mark.parametrize("as_json", [False, True])
def test_a_usage_error_is_one_line_with_exit_code_2(words: tuple[str, ...], says: str, as_json: bool) -> None:
    done = _run(*words, *(["--json"] if as_json else []))

    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.startswith("longpoll: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_file_that_cannot_be_written_is_reported(token: str, tmp_path: Path) -> None:
    done = _run("explain", token, "--output", str(tmp_path / "no" / "such" / "place"))

    assert done.exit_code == 2
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    "words",
    [["packed"], ["packed", "--workers", "2"], ["packed", "--memory-mb", "2000"], ["python"]],
    ids=" ".join,
)
def test_an_interrupt_prints_what_was_explored(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupting(_: Callable[[str], None]) -> Callable[[Progress], None]:
        def report(now: Progress) -> None:
            if now.depth == 6:
                signal.raise_signal(signal.SIGINT)

        return report

    monkeypatch.setattr(specification, "_speed", interrupting)
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", "--json", "--engine", *words])
    made = json.loads(done.stdout)

    assert done.exit_code == 3
    assert not made["complete"]
    assert made["depth"] == 6
    assert made["distinct_states"] > 10
    assert {"unknown", "reached"} == {row["verdict"] for row in made["properties"] if not row["by_construction"]}


@pytest.mark.parametrize(
    ("option", "said", "engine"),
    [("--workers=2", "has no workers", "packed"), ("--master=local", "does not run on Spark", "spark")],
)
def test_options_of_other_engines_are_refused(option: str, said: str, engine: str) -> None:
    done = CliRunner().invoke(main, ["check", "--bounds", "tiny", "--engine", "python", option])

    assert done.exit_code == 2
    assert f"the python engine {said}" in done.stderr
    assert f"--engine {engine}" in done.stderr


TINY = ("check", "--bounds", "tiny", "--max-states", "100000")
BROKEN = ("--policy", "strict", "--knob", "recheck_after_hold=none", "--requests", "1")


def run(*words: str) -> Result:
    return CliRunner().invoke(main, words)


@pytest.mark.parametrize(
    ("violated", "shown"),
    [
        (("closed_is_let_go", "no_lost_wakeup", "no_orphan"), ["no_lost_wakeup", "no_orphan", "closed_is_let_go"]),
        (("lost_by_hold", "no_lost_wakeup", "woken_within"), ["no_lost_wakeup"]),
        (("lost_by_keep", "lost_by_hold"), ["lost_by_hold", "lost_by_keep"]),
        (("buckets_are_swept", "seen_survives", "commit_never_regresses", "answered_by_deadline"),
         ["answered_by_deadline", "commit_never_regresses", "seen_survives"]),
        (("of_tomorrow", "table_is_tidy"), ["table_is_tidy", "of_tomorrow"]),
    ],
)  # fmt: skip
def test_violations_are_listed_from_the_worst(violated: Sequence[str], shown: Sequence[str]) -> None:
    """Lost wakeups come first, then late answers, then violations after a crash. Implied violations are left out."""
    assert worst(violated, 3) == shown
    assert worst(reversed(violated), 3) == shown


def test_every_property_has_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = [*EXPLORATIONS.values(), TIMEOUTS["timeout"]]
    stated = {
        item.name
        for policy in map(preset, ("strict-clone", "rocketmq-lmq"))
        for each in (named("tiny", policy), *bounds)
        for item in properties_of(specification_of(policy, each))
        if item.kind == "always"
    }
    assert {name for _kind, name, _sentence in HARMS} == stated
    assert {*PART_OF, *PART_OF.values()} <= stated
    assert [kind for kind, *_ in HARMS] == sorted((kind for kind, *_ in HARMS), key=get_args(check.Kind).index)
    monkeypatch.setattr(check, "HARMS", HARMS[1:])
    assert {name for _kind, name, _sentence in check.HARMS} != stated


def test_check_lists_three_violations_and_counts_the_others() -> None:
    words = (*TINY[:3], "--requests", "1", "--policy", "rocketmq-4.9")
    made = json.loads(run(*words, "--json").stdout)
    rows = {row["name"]: row for row in made["properties"] if row["verdict"] == "violated"}
    lines = run(*words).stdout.splitlines()

    assert len(rows) > 5
    assert len(lines) == 6
    assert lines[0].startswith(f"verdict: violated: {len(rows)} of ")
    assert [line.split(":")[0].strip() for line in lines[1:4]] == [each["name"] for each in made["worst"]]
    assert all(each["sentence"] in line for each, line in zip(made["worst"], lines[1:4], strict=True))
    assert lines[4].startswith(f"  and {len(rows) - 3} more: --all")
    assert lines[5] == f"next: longpoll explain {rows[made['worst'][0]['name']]['token']}"
    assert rows[made["worst"][0]["name"]]["token"] == made["worst"][0]["token"]


def test_check_all_prints_every_token() -> None:
    made = json.loads(run(*TINY, *BROKEN, "--json").stdout)
    shown = run(*TINY, *BROKEN, "--all")

    assert shown.exit_code == 1
    assert f"{made['distinct_states']:,} distinct states" in shown.stdout
    for row in made["properties"]:
        if row["verdict"] == "violated":
            assert f"{row['name']}: longpoll explain {row['token']}\n" in shown.stdout
        elif row["kind"] == "always":
            assert f"│ {row['name']} " in shown.stdout


@pytest.mark.long
def test_a_valid_policy_is_reported_with_counts_and_scope() -> None:
    done = run(*TINY[:3], "--policy", "strict")
    lines = done.stdout.splitlines()

    assert done.exit_code == 0
    assert lines[0].startswith("verdict: holds: all ")
    assert re.match(r"explored: [\d,]+ distinct states", lines[1])
    features = ", ".join([*EXPLORATIONS, "timeout"])
    assert f"covered: bounds tiny (requests 2, messages 1), and each of these alone: {features}\n" in done.stdout
    assert lines[-1] == "next: longpoll prove --policy strict"


def test_check_explain_prints_the_run_to_the_worst_violation() -> None:
    done, good = run(*TINY, *BROKEN, "--explain"), run(*TINY, "--policy", "strict", "--explain", "--requests", "1")
    token = done.stdout.split("longpoll explain ")[1].split()[0]

    assert (done.exit_code, good.exit_code) == (1, 0)
    assert done.stdout.endswith("\n" + run("explain", token).stdout)
    assert "nothing to explain: no property is violated" in good.stdout
    assert run(*TINY, *BROKEN, "--explain", "--json").exit_code == 2


def test_a_next_command_names_the_whole_policy() -> None:
    policy = attrs.evolve(preset("strict"), name="strict+tick=free+commit=monotone_max")

    assert check.policy_words(policy) == "--policy strict --knob tick=free --knob commit=monotone_max"


@pytest.mark.parametrize(
    ("words", "code", "said", "noted"),
    [
        (("--policy", "strict", "--property", "no_lost_wakeup"), 0, "verdict: holds: 1 property", "engine python"),
        (("--engine", "packed"), 2, "", "numpy is not installed"),
    ],
)
def test_without_numpy_the_plain_engine_explores(words: Sequence[str], code: int, said: str, noted: str) -> None:
    text = "import sys; sys.modules['numpy'] = None; from longpoll.entry import main; main()"
    command = [sys.executable, "-c", text, "check", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    assert done.returncode == code, done.stderr
    assert said in done.stdout
    assert noted in done.stderr


def test_every_other_value_of_every_knob_is_a_change() -> None:
    changes = list(other_settings(STRICT))

    assert len(changes) == len(set(changes)) == sum(len(values) - 1 for values in knob_values().values())
    assert "expiry=scan" in changes
    assert "expiry=own_deadline" not in changes


@pytest.mark.long
@pytest.mark.parametrize("name", engine.POLICIES)
def test_every_claim_of_redundancy_is_right(name: str) -> None:
    """Each change of a knob breaks a property in a run that replays, or is proved redundant as claimed."""
    done = CliRunner().invoke(main, ["check", "--ablate", "--policy", name, "--json"])
    rows = json.loads(done.stdout)["rows"]

    assert done.exit_code == 0, done.output
    assert [row["knob"] for row in rows] == list(other_settings(preset(name)))
    assert {row["knob"]: row["redundant_because"] for row in rows if not row["violates"]} == {
        knob: why for (policy, knob), why in REDUNDANT.items() if policy == name
    }
    for row in rows:
        assert (row["problem"], row["undecided"]) == (None, [])
        traces = {broken: replay(row["tokens"][broken]) for broken in row["violates"]}
        assert all(trace.property_name == broken for broken, trace in traces.items())
        assert all(breaks_its_property(trace) for trace in traces.values())
        assert min((trace.depth for trace in traces.values()), default=None) == row["depth"]


def test_every_claim_is_about_a_change_that_exists() -> None:
    assert set(REDUNDANT) <= {(name, change) for name in engine.POLICIES for change in other_settings(preset(name))}


@pytest.mark.parametrize(
    ("setting", "claims", "words"),
    [
        (
            "recheck_after_hold=none",
            {("strict", "recheck_after_hold=none"): "It is fast enough."},
            "breaks no_lost_wakeup",
        ),
        pytest.param("recheck_after_keep=true", {}, "no reason", marks=pytest.mark.long),
    ],
)
def test_a_wrong_or_missing_claim_of_redundancy_exits_with_1(
    monkeypatch: pytest.MonkeyPatch, setting: str, claims: Mapping[tuple[str, str], str], words: str
) -> None:
    """The exit code is 1 if a claim that a knob is redundant is false, or if a redundant knob has no claim."""
    row = row_of(STRICT, setting, claims=claims, requests=2)
    monkeypatch.setattr(engine, "ablate", lambda *_names, **_options: [row])
    done = CliRunner().invoke(main, ["check", "--ablate", "--policy", "strict"])

    assert row.redundant_because is None
    assert row.problem is not None
    assert words in row.problem
    assert done.exit_code == 1
    assert words in " ".join(done.output.split())


@pytest.mark.long
def test_what_is_not_proved_is_not_redundant(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Proof, "verdict", lambda _proof, name: "unknown" if name == "answered_once" else "proved")
    row = row_of(STRICT, "empty_shortcut=false", requests=2)
    monkeypatch.setattr(engine, "ablate", lambda *_names, **_options: [row])
    done = CliRunner().invoke(main, ["check", "--ablate", "--policy", "strict"])

    assert row.undecided == ("answered_once",)
    assert row.redundant_because is None
    assert done.exit_code == 3
    assert "undecided: answered_once" in done.output


def test_the_depth_of_a_row_is_its_shortest_run() -> None:
    runs = tuple(Verdict(name, "always", "violated", depth, "lp1.x") for name, depth in (("a", 7), ("b", 4)))

    assert Row("strict", "x=y", runs).depth == 4
    assert Row("strict", "x=y", ()).depth is None


@pytest.mark.parametrize("name", ["rocketmq-4.9", "stricter"])
def test_only_our_own_policies_are_ablated(name: str) -> None:
    done = CliRunner().invoke(main, ["check", "--ablate", "--policy", name])

    assert done.exit_code == 2
    assert name in done.stderr
    assert len(done.stderr.splitlines()) == 1
