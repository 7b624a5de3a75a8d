"""Runs of the specification of pops become steps for a broker, and a real 5.5.0 follows each finding of docs/pop.md."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_java.breakpoints import Breakpoints
from longpoll_java.broker import JavaBroker, started
from longpoll_java.byteman_rules import refused_rule, rules_of
from longpoll_java.errors import JavaUnavailableError, NotOnJavaError
from longpoll_java.jars import Jars, resolved
from longpoll_java.pops import SENTENCES, SHIPPED, UNSHIPPED, is_of_pops, pops_of
from longpoll_java.replay import play
from longpoll_java.schedule import Schedule
from longpoll_simulation.refinement import under
from longpoll_spec.custom import policy_from
from longpoll_spec.engines.tokens import parse, replay
from longpoll_spec.render.java_breakpoints import POP_GATES, POP_VERSION

PAGE = Path(__file__).parents[2] / "docs" / "pop.md"
PRINTED = list(
    dict.fromkeys(re.findall(r"^longpoll explain (lp1\.\S+)", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
)
TOKENS = [each for each in PRINTED if is_of_pops(parse(each).policy)]
NOTIFICATION = next(each for each in PRINTED if each not in TOKENS)
SHOWN = {
    "second_look=false": "no_lost_wakeup",
    "scan=take": "no_lost_wakeup",
    "hand_over=false": "no_lost_wakeup",
    "when_rejected=drop": "nothing_dropped",
}
REFUSED = {
    "retry_wakes=all_queues": "retry_append, and replay does not wait for the revive",
    "evicts=true": r"evict\(0\), and the map of all sets drops a set only after 600 s",
    "limit=before_insert": r"limit_\w+, and replay changes no setting",
    "when_closed=ignore+count=drifts": r"discard\(0\), and replay has no moves for it",
}
"""Knob whose finding is not replayed -> the reason."""
DIVERGES = {"when_closed=ignore": "insert"}
"""Knob whose finding is not a run of the shipped policy -> the first action that the shipped policy does not allow."""
REJECTED = "lp1.lq5yb2NrZXRtcS01LXBvcJCUAgEBAqDOgOkD7JwDCxUEDBYBFyEYHgh3XHNz"
"""A run of the shipped policy in which the executor rejects a wake, so the dispatcher announces the message again."""


def knob_of(token: str) -> str:
    return replay(token).model.policy.name.partition("+")[2]


def schedule_of(token: str) -> Schedule:
    trace, cannot = under(policy_from(SHIPPED), replay(token), UNSHIPPED)
    assert cannot is None
    return pops_of(trace)


@pytest.mark.parametrize("token", TOKENS, ids=knob_of)
def test_every_finding_is_a_schedule_or_has_a_reason(token: str) -> None:
    knob = knob_of(token)
    if knob in DIVERGES:
        cannot = under(policy_from(SHIPPED), replay(token), UNSHIPPED)[1]
        assert cannot is not None
        assert cannot.name == DIVERGES[knob]
        return
    if knob in REFUSED:
        with pytest.raises(NotOnJavaError, match=rf"step \d+ of the run is {REFUSED[knob]}"):
            schedule_of(token)
        return
    made = schedule_of(token)
    assert made.property_name == SHOWN[knob]
    assert made.property_name in SENTENCES
    assert made.after
    assert "recheck" not in " ".join(step.label for step in made.steps)


def test_a_lost_wakeup_becomes_a_schedule() -> None:
    """The pop's thread stops before the insert, while the dispatcher finds the set of waiting pops empty."""
    made = schedule_of(next(each for each in TOKENS if knob_of(each) == "second_look=false"))
    assert [[str(move) for move in step.moves] for step in made.steps[3:]] == [
        ["go thread=dispatcher gates=notify", "until thread=dispatcher gates=notify"],
        ["go thread=pull0 gates=put", "until thread=pull0 gates=held"],
    ]
    assert [str(move) for move in made.after] == [
        "free gates=look,done", "until thread=dispatcher gates=done", "free", "expired slot=0", "look slot=0",
    ]  # fmt: skip
    assert made.steps[0].moves[0].queue == -1


def test_the_pop_that_is_woken_expires_first() -> None:
    """Java wakes the first pop of a set, so the first pop must expire before the run wakes the second one."""
    made = schedule_of(next(each for each in TOKENS if knob_of(each) == "hand_over=false"))
    pops = {move.slot: move.number for step in made.steps for move in step.moves if move.kind == "pop"}
    assert pops == {0: 1, 1: 0}


@pytest.mark.parametrize(
    ("token", "words", "said"),
    [
        (TOKENS[0], ("java-5.4.0",), "replay has gates for pops in 5.5.0 alone: use --on java-5.5.0"),
        (TOKENS[0], ("java-5.5.0", "--with-7359"), "--with-7359 changes the table of pulls"),
        (NOTIFICATION, ("java-5.5.0",), "replay has no gates for strict-notification+wakes=one"),
    ],
)
def test_a_mistake_in_the_call_is_reported(
    token: str, words: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "longpoll.commands.explain.chosen", lambda name, _folder: Jars(name.removeprefix("java-"), "", "")
    )
    done = CliRunner().invoke(main, ["explain", token, "--on", *words])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


# -- on a shipped 5.5.0 ------------------------------------------------------------------------------------------------


def jars() -> Jars:
    try:
        return resolved(POP_VERSION)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")


@pytest.fixture(scope="module")
def broker() -> Iterator[JavaBroker]:
    with Breakpoints() as stage, started(jars(), stage, pops=True) as running:
        yield running


@pytest.mark.peers
@pytest.mark.timeout(900)
def test_every_breakpoint_is_in_the_jars(tmp_path: Path) -> None:
    script = tmp_path / "gates.btm"
    script.write_text(rules_of(POP_GATES))
    assert refused_rule(jars(), script) == ""


@pytest.mark.peers
@pytest.mark.timeout(900)
@pytest.mark.parametrize("token", [each for each in TOKENS if knob_of(each) in SHOWN], ids=knob_of)
def test_findings_happen_on_a_shipped_broker(broker: JavaBroker, token: str) -> None:
    done = play(broker, schedule_of(token))
    assert (done.cannot, done.otherwise) == ("", "")
    assert done.is_whole
    assert done.broken


@pytest.mark.peers
@pytest.mark.timeout(900)
def test_a_wake_that_the_executor_rejects_is_repeated(broker: JavaBroker) -> None:
    """The dispatcher announces the message again, as specified, so the next pop gets it."""
    done = play(broker, schedule_of(REJECTED))
    assert (done.cannot, done.otherwise) == ("", "")
    assert done.is_whole
    assert not done.broken


@pytest.mark.peers
@pytest.mark.timeout(900)
def test_without_the_race_the_finding_is_not_reproduced(broker: JavaBroker) -> None:
    """If the pop is inserted before the message arrives, the dispatcher finds the pop and wakes it."""
    made = schedule_of(next(each for each in TOKENS if knob_of(each) == "second_look=false"))
    popped, missed, shown, nobody, inserted = made.steps
    done = play(broker, attrs.evolve(made, steps=(popped, missed, inserted, shown, nobody)))
    assert not done.broken
    assert done.cannot.startswith("step 5 (nobody_reads_all): dispatcher did not reach notify")
    assert "ReputMessageService at wake" in done.cannot
