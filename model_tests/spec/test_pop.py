"""The specification of pops: pinned counts, a finding for each knob of RocketMQ, proofs, mutants and commands."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from click.testing import CliRunner, Result

from longpoll.cli import main
from longpoll_spec.bounds import named
from longpoll_spec.custom import load, policy_from
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.smt.proof import prove_model
from longpoll_spec.engines.survey import progress_of, runs_of
from longpoll_spec.engines.tokens import parse, replay, token_of
from longpoll_spec.errors import TokenError
from longpoll_spec.model import Model
from longpoll_spec.mutants.generated import mutants_of
from longpoll_spec.policy import POP_KNOBS, POP_SENTENCES
from longpoll_spec.specification import properties_of, specification_of

OURS: Final = ("strict-pop", "strict-notification")
FOUND: Final = "asks_q0, popped, refuses, retry, visible_end"
"""The variables that tell whether a request finds a message."""
LOST: Final = ("no_lost_wakeup", "no_lost_retry", "wake_finds_its_taker")
ROCKETMQ: Final = {
    **dict(zip(LOST, (5, 9, 7), strict=True)),
    "nothing_dropped": 4,
    "limit_kept": 9,
    "full_means_full": 9,
    "no_closed_one_waits": 4,
    "count_is_right": 6,
}
FACTS: Final[dict[str, tuple[int, tuple[int, int, int], dict[str, int]]]] = {
    "strict-pop": (2, (297519, 1645074, 31), {}),
    "rocketmq-5-pop": (
        2,
        (215744, 1058322, 32),
        ROCKETMQ,
    ),
    "strict-pop+second_look=false": (1, (2529, 7724, 19), dict(zip(LOST, (5, 9, 7), strict=True))),
    "strict-pop+order=by_expiry": (2, (295563, 1634036, 31), {}),
    "strict-pop+scan=take": (1, (4587, 16478, 20), dict(zip(LOST, (7, 11, 10), strict=True))),
    "strict-pop+hand_over=false": (2, (253150, 1391434, 29), dict(zip(LOST, (11, 14, 13), strict=True))),
    "strict-pop+when_rejected=drop": (1, (4119, 13733, 22), {"nothing_dropped": 6}),
    "strict-pop+rest_wakes=own_key": (2, (297519, 1645074, 31), {}),
    "strict-pop+retry_wakes=all_queues": (1, (3738, 12551, 21), dict(zip(LOST[1:], (10, 12), strict=True))),
    "strict-pop+retry_wakes=no_key": (1, (3549, 11780, 21), dict(zip(LOST[1:], (9, 11), strict=True))),
    "strict-pop+when_closed=ignore": (2, (359808, 1876745, 31), {"full_means_full": 8, "no_closed_one_waits": 4}),
    "strict-pop+limit=before_insert": (2, (428941, 2424024, 36), {"limit_kept": 9}),
    "strict-pop+count=drifts": (1, (3963, 13466, 20), {}),
    "strict-pop+when_closed=ignore+count=drifts": (
        1,
        (9036, 33826, 27),
        {"no_closed_one_waits": 4, "count_is_right": 6},
    ),
    "strict-pop+evicts=true": (1, (4104, 14264, 20), {"nothing_dropped": 4}),
    "strict-notification": (2, (934089, 5139565, 36), {}),
    "rocketmq-5-notification": (2, (501075, 2426392, 36), ROCKETMQ | {"all_are_notified": 5}),
    "strict-notification+second_look=false": (
        1,
        (5259, 16303, 22),
        dict(zip(LOST, (5, 10, 7), strict=True)) | {"all_are_notified": 5},
    ),
    "strict-notification+scan=take": (
        1,
        (9405, 33997, 23),
        dict(zip(LOST, (7, 12, 10), strict=True)) | {"all_are_notified": 7},
    ),
    "strict-notification+retry_wakes=all_queues": (
        1,
        (7689, 25969, 25),
        dict(zip(LOST[1:], (10, 13), strict=True)) | {"all_are_notified": 10},
    ),
    "strict-notification+wakes=one": (
        2,
        (928991, 5108531, 36),
        dict(zip(LOST, (12, 17, 14), strict=True)) | {"all_are_notified": 9},
    ),
    "strict-notification+refused=back": (
        2,
        (935641, 5147589, 36),
        dict(zip(LOST[::2], (10, 13), strict=True)) | {"all_are_notified": 10},
    ),
}


def _model(name: str, requests: int = 2) -> Model:
    policy = policy_from(name)
    return specification_of(policy, named("tiny", policy, requests=requests))


@cache
def _found(name: str) -> Exploration:
    """The engine's result for a policy of the table, computed once for all tests."""
    return explore(_model(name, FACTS[name][0]))


def _run(*words: str) -> Result:
    return CliRunner().invoke(main, words, env={"COLUMNS": "140"})


def _counts(found: Exploration) -> tuple[int, int, int]:
    return found.distinct_states, found.transitions, found.depth


def _violated(found: Exploration) -> dict[str, int | None]:
    return {each.name: each.depth for each in found.verdicts if each.verdict == "violated"}


# -- verdicts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FACTS)
def test_each_knob_of_rocketmq_has_the_findings_that_are_pinned(name: str) -> None:
    requests, counts, violated = FACTS[name]
    found = _found(name)

    assert _counts(found) == counts
    assert _violated(found) == violated
    assert requests == 1 or not [each.name for each in found.verdicts if each.verdict == "unreached"]


def test_every_knob_of_rocketmq_is_in_the_table() -> None:
    pops, notifications = POP_KNOBS["rocketmq-5-pop"], POP_KNOBS["rocketmq-5-notification"]
    own = set(notifications) - {*pops, *POP_KNOBS["strict-notification"]}
    assert {f"strict-pop+{each}" for each in pops} | {f"strict-notification+{each}" for each in own} <= set(FACTS)
    assert list(POP_KNOBS) == list(POP_SENTENCES)


@pytest.mark.parametrize("name", POP_KNOBS)
def test_the_engines_agree(name: str) -> None:
    model = _model(name, 1)
    whole = _model(name)
    found = [explore(model, properties_of(model), engine="python"), explore(model)]

    assert _counts(found[0]) == _counts(found[1])
    assert _violated(found[0]) == _violated(found[1])
    assert _counts(explore(whole, symmetry=True)) == FACTS[name][1]


def test_endless_runs_are_found() -> None:
    """If a broker drops a rejected or evicted request, its pop is never answered; our own policy answers every pop."""
    found = {
        name: [row.verdict.name for row in progress_of(policy, runs_of(policy)) if row.verdict.verdict != "holds"]
        for name in ("strict-pop", "strict-pop+when_rejected=drop", "strict-pop+evicts=true")
        for policy in [policy_from(name)]
    }

    assert list(found.values()) == [[], ["every_pop_is_answered"], ["every_pop_is_answered"]]


# -- proofs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OURS)
def test_our_own_policy_is_proved(name: str) -> None:
    done = _run("prove", "--policy", name, "--requests", "3", "--json")
    made = json.loads(done.stdout)

    assert done.exit_code == 4, done.output  # `every_pop_is_answered` is checked by exploration only.
    assert set(made["verdicts"].values()) <= {"proved", "by construction"}, made["verdicts"]
    assert {each["verdict"] for each in made["explored_only"]} == {"holds"}


@pytest.mark.long
@pytest.mark.parametrize("name", OURS)
def test_our_own_policy_is_proved_for_any_number_of_requests_with_one_queue_and_with_three(name: str) -> None:
    done = _run("prove", "--policy", name, "--requests", "any")

    assert done.output.splitlines()[0] == "verdict: proved, except every_pop_is_answered, only explored"
    assert "the proof for 1, 2 and 17 requests is a proof for any number" in done.output


MUTANTS: Final = (
    ("strict-pop", "pop_all", "forgets to write deadline", "whole_time_for_all"),
    ("strict-pop", "pop_queue", "forgets to write deadline", "whole_time_for_one"),
    ("strict-pop", "read_finds", "forgets to write deadline", "idle_is_new"),
    ("strict-pop", "read_finds_retry", "forgets what its guard says of retry", "retries_what_is_there"),
    ("strict-pop", "insert", "forgets to write rechecks", "no_lost_wakeup"),
    ("strict-pop", "times_out", "forgets what its guard says of deadline", "not_answered_early"),
    ("strict-notification", "insert", "forgets to write rechecks", "all_are_notified"),
    ("strict-notification", "read_notifies", f"forgets what its guard says of {FOUND}", "notified_of_something"),
    ("strict-notification", "read_notifies", "forgets to write notified", "one_key"),
    ("strict-notification", "read_finds", "forgets what its guard says of notified", "takes_as_asked"),
    ("strict-notification", "set_filter", "forgets to write refuses", "some_filter_waits"),
)


@pytest.mark.parametrize(("name", "action", "what", "seen_by"), MUTANTS)
def test_a_mutant_violates_a_property_and_is_not_proved(name: str, action: str, what: str, seen_by: str) -> None:
    policy = policy_from(name)
    bounds = named("tiny", policy, requests=1)
    (mutant,) = (each for each in mutants_of(policy, bounds) if (each.action, each.what) == (action, what))
    found = explore(mutant.planted(policy, bounds))
    unbounded = mutant.planted(policy, attrs.evolve(bounds, messages=None))
    proof = prove_model(unbounded, depth_max=0, timeout_s=5)

    assert seen_by in {each.name for each in found.verdicts if each.verdict in {"violated", "unreached"}}
    assert {row.verdict for row in proof.obligations if row.property_name == seen_by} != {"proved"}


# -- the commands ------------------------------------------------------------------------------------------------------


def test_a_token_names_its_policy_and_replays_without_a_file() -> None:
    model = _model("strict-pop+scan=take", 1)
    token = explore(model).verdict("no_lost_wakeup").token
    assert token is not None
    named_policy = parse(token).policy

    assert named_policy.name == "strict-pop+scan=take"
    assert (
        token_of(replay(token).model, [step.action for step in replay(token).steps if step.action], "no_lost_wakeup")
        == token
    )
    with pytest.raises(TokenError, match=r"not of table\.py"):
        parse(token, load("docs/examples/table.py"))


@pytest.mark.parametrize("setting", [each for each, (_, _, broken) in FACTS.items() if broken and "+" in each])
def test_each_finding_is_explained(setting: str) -> None:
    found = _found(setting)
    for each in found.verdicts:
        if each.verdict == "violated":
            assert each.token is not None
            told = _run("explain", each.token).output
            assert f"This breaks the property {each.name} (pop.py:" in " ".join(told.split())
            assert len(re.findall(r"^ +\d+\. ", told, re.MULTILINE)) == each.depth
            assert "Java:" not in told


def test_the_commands_take_the_policies(tmp_path: Path) -> None:
    checked = _run("check", "--policy", "rocketmq-5-pop", "--bounds", "tiny", "--requests", "1")
    listed = _run("policies").output
    compared = _run("policies", "strict-pop", "rocketmq-5-pop").output
    stated = _run("policies", "strict-pop", "--properties").output
    made: dict[str, Any] = json.loads(_run("policies", "--json").stdout)
    exported = [_run("export", "--policy", "strict-pop", "--to", to, str(tmp_path)) for to in ("promela", "tla")]

    assert checked.exit_code == 1
    assert "next: longpoll explain lp1." in checked.output
    assert all(name in listed and sentence[:40] in listed for name, sentence in POP_SENTENCES.items())
    assert all(setting.partition("=")[0] in compared for setting in POP_KNOBS["rocketmq-5-pop"])
    assert "no_lost_retry" in stated
    assert [each["name"] for each in made["pop_policies"]] == list(POP_KNOBS)
    assert made["pop_policies"][1]["knobs"]["scan"] == "take"
    assert [each.exit_code for each in exported] == [0, 0], exported[0].output + exported[1].output


@pytest.mark.long
def test_the_explorer_has_the_mistakes_of_the_file_only(tmp_path: Path) -> None:
    """The page works although actions of pulls that have mutants share their names with actions of the file."""
    done = _run("export", "--policy", "strict-pop", "--to", "explorer", "--bounds", "tiny", str(tmp_path))

    assert done.exit_code == 0, done.output
    assert "drops when alone" not in next(tmp_path.iterdir()).read_text("utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "--policy", "strict-pap"), "did you mean 'strict-pop'?"),
        (("check", "--policy", "strict-pop", "--knob", "scan=look"), "knob scan cannot be 'look'"),
        (("check", "--policy", "strict-pop", "--feature", "crash"), "strict-pop starts from the core"),
        (("serve", "--policy", "strict-pop"), "only check, prove, explain, export and policies take it"),
        (("policies", "strict-pop", "strict"), "hold different requests"),
    ],
)
def test_a_mistake_in_the_call_is_reported(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = _run(*(str(tmp_path) if word == "DIR" else word for word in words))

    assert done.exit_code == 2
    assert said in " ".join(done.output.split())
