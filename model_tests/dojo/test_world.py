"""A scripted program breaks each property within one schedule, and permitted behaviour breaks no property."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import msgspec
import pytest
from attrs import define, field
from hypothesis import given as drawn_from
from hypothesis import strategies as st

from longpoll_kit.errors import HINTS as KIT_HINTS
from longpoll_kit.model import Allowances
from longpoll_kit.programs.explore import ODD, Bounds, drawn, examined, orders
from longpoll_kit.programs.protocol import HINTS, Answer, At, Done, ProgramError, Reply, TokenError, reply_of
from longpoll_kit.programs.schedule import (
    STRICT,
    Played,
    allowances,
    given,
    play,
    steps_of,
    token_of,
    without,
)

Script = dict[int, Sequence[Sequence[Reply]]]
NOTHING: tuple[str, ...] = ()


@define
class Scripted:
    """A program that answers the n-th occurrence of each message by its script, and other messages with "done"."""

    script: Script
    heard: list[dict[str, object]] = field(factory=list)

    def turn(self, message: bytes) -> list[Reply]:
        said = msgspec.json.decode(message)
        place = sum(each["id"] == said["id"] for each in self.heard)
        self.heard.append(said)
        turns = self.script.get(said["id"], ())
        return [*turns[place]] if place < len(turns) else [Done(said["id"])]


def played(token: str, script: Script, limits: Allowances | None = None) -> str | None:
    done = play(Scripted(script), limits or STRICT, given(steps_of(f"dojo1.{token}")))
    return done.violation.property if done.violation else None


def answered(pull: int, messages: tuple[str, ...], following: int, by: int) -> list[Reply]:
    """Return the lines that answer a pull and then report that the current message is handled."""
    return [Answer(pull, messages, following), Done(by)]


BROKEN: dict[str, tuple[str, Script, str]] = {
    "a message and nobody wakes": ("p1a100.aa", {}, "no_lost_wakeup"),
    "a message that was there": ("aa.p1a100.td", {2: [[At("x", 2)]], 3: [answered(2, NOTHING, 0, 3)]}, "nothing_lost"),
    "nothing, at the deadline, though there is": (
        "p1a100.aa.td", {1: [[At("x", 1)]], 3: [answered(1, NOTHING, 0, 3)]}, "no_lost_wakeup",
    ),
    "never": ("p1a100", {}, "answered_by_deadline"),
    "early": ("p1a100.tb", {2: [answered(1, NOTHING, 0, 2)]}, "not_early"),
    "twice": ("p1a100.aa", {2: [[*answered(1, ("a0",), 1, 2)[:1], *answered(1, ("a0",), 1, 2)]]}, "answered_once"),
    "another queue's message": ("ab.p1a100", {2: [answered(2, ("b0",), 1, 2)]}, "right_messages"),
    "a gap": ("aa.aa.p1a100", {3: [answered(3, ("a1",), 1, 3)]}, "nothing_lost"),
    "a message to come": ("p1a100", {1: [answered(1, ("a0",), 1, 1)]}, "right_messages"),
    "an offset that stands": ("aa.p1a100", {2: [answered(2, ("a0",), 0, 2)]}, "offset_goes_on"),
    "for a closed connection": ("p1a100.c1.aa", {3: [answered(1, ("a0",), 1, 3)]}, "cancelled_is_over"),
    "at its close": ("p1a100.c1", {2: [answered(1, NOTHING, 0, 2)]}, "cancelled_is_over"),
    "unasked": ("aa", {1: [answered(1, ("a0",), 1, 1)]}, "speaks_the_protocol"),
    "another's end": ("aa", {1: [[Done(7)]]}, "speaks_the_protocol"),
    "a stopped reset": ("aa", {0: [[At("x", 0)]]}, "speaks_the_protocol"),
}  # fmt: skip
RIGHT: dict[str, tuple[str, Script]] = {
    "nothing, at the deadline, while an arrival is at work": (
        "p1a100.aa.td", {2: [[At("x", 2)], [Done(2)]], 3: [answered(1, NOTHING, 0, 3)]},
    ),
    "at once": ("aa.p1a100", {2: [answered(2, ("a0",), 1, 2)]}),
    "only the first of two": ("aa.aa.p1a100", {3: [answered(3, ("a0",), 1, 3)]}),
    "woken": ("p1a100.aa", {2: [answered(1, ("a0",), 1, 2)]}),
    "at the deadline": ("p1a100.td", {2: [answered(1, NOTHING, 0, 2)]}),
    "at the very moment of its deadline": ("p1a100.la", {2: [answered(1, NOTHING, 0, 2)]}),
    "a message that is still at work": ("p1a100.aa.g2", {2: [[At("x", 2)], answered(1, ("a0",), 1, 2)]}),
    "read while its arrival is at work": (
        "aa.p1a100", {1: [[At("x", 1)], [Done(1)]], 2: [answered(2, ("a0",), 1, 2)]},
    ),
    "a tick that another thread comes between": (
        "p1a100.td.ab.g2", {2: [[At("x", 2)], [Done(2)]], 4: [answered(1, NOTHING, 0, 4)]},
    ),
    "a thread that does not know of the close": (
        "p1a100.c1.g1", {1: [[At("x", 1)], answered(1, NOTHING, 0, 1)]},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_each_violation_is_detected(name: str) -> None:
    token, script, prop = BROKEN[name]

    found = played(token, script)
    assert found == prop


@pytest.mark.parametrize("name", RIGHT)
def test_permitted_behaviour_is_no_violation(name: str) -> None:
    """A paused thread need not answer yet. Exactly at the deadline, an answer with or without messages is right."""
    assert played(*RIGHT[name]) is None


@pytest.mark.parametrize(
    ("token", "script", "limits"),
    [
        ("p1a100.aa", {3: [answered(1, ("a0",), 1, 3)]}, allowances(200, 0)),
        ("p1a100", {3: [answered(1, NOTHING, 0, 3)]}, allowances(0, 50)),
    ],
)
def test_a_scan_may_be_allowed_its_time(token: str, script: Script, limits: Allowances) -> None:
    assert played(token, script) is not None
    assert played(token, script, limits) is None
    assert played(token, {}, limits) in {"no_lost_wakeup", "answered_by_deadline"}


def test_every_property_of_programs_has_a_violation() -> None:
    """A script breaks each property of one process. `test_programs` has the properties that compare two processes."""
    seen = {prop for _token, _script, prop in BROKEN.values()} | {"forgets_at_reset", "same_again"}
    assert seen >= HINTS.keys()
    assert seen - HINTS.keys() <= KIT_HINTS.keys()


@define
class Right:
    held: list[dict[str, object]] = field(factory=list)
    logs: dict[object, list[object]] = field(factory=dict)

    def turn(self, message: bytes) -> list[Reply]:
        said = msgspec.json.decode(message)
        match said["type"]:
            case "reset":
                self.held, self.logs = [], {}
            case "pull":
                self.held.append({**said, "deadline_ms": said["now_ms"] + said["wait_ms"]})
            case "arrive":
                self.logs.setdefault(said["queue"], []).append(said["message"])
            case "close":
                self.held = [pull for pull in self.held if pull["connection"] != said["connection"]]
        answers, left = [], []
        for pull in self.held:
            there = tuple(map(str, self.logs.get(pull["queue"], [])[int(str(pull["offset"])) :]))
            is_looked_at = said["type"] == "tick" or pull["queue"] == said.get("queue")
            if is_looked_at and (there or int(str(pull["deadline_ms"])) <= said["now_ms"]):
                answers.append(Answer(int(str(pull["id"])), there, int(str(pull["offset"])) + len(there)))
            else:
                left.append(pull)
        self.held = left
        return [*answers, Done(said["id"])]


def test_every_schedule_is_played_once() -> None:
    bounds = Bounds(moves=3)
    found = list(orders(Right(), bounds, STRICT, 3, plain=True))
    tokens = [token_of(each.steps) for each in found]

    assert len(set(tokens)) == len(tokens) > 100
    assert [each.violation for each in found if each.violation] == []
    seeds = (play(Right(), STRICT, drawn(random.Random(seed), bounds)) for seed in range(300))
    assert [each.violation for each in seeds if each.violation] == []
    for token in ("dojo1.p1a2070.p2a1530.aa", "dojo1.p1a2070.la.td", "dojo1.aa.p1a2070.p1b1530", "dojo1.p1a2070.w.td"):
        assert (token in tokens) == (token != "dojo1.p1a2070.la.td"), token  # noqa: S105 - an order


def test_tokens_are_read_as_they_are_written() -> None:
    token = "dojo1.p1a2070.aa.lb.tb.td.c1.w.g3"  # noqa: S105 - an order

    assert token_of(steps_of(token)) == token


@pytest.mark.parametrize(
    "token", ["", "dojo1", "dojo1.", "dojo1.x", "lp1.abc", "dojo1.p0a1", "dojo1.aa" * 9_000, "dojo1.g0"]
)
def test_an_invalid_token_is_reported(token: str) -> None:
    if token == "dojo1":  # noqa: S105 - the order without a move
        assert steps_of(token) == []
        return
    with pytest.raises(TokenError):
        steps_of(token)


@pytest.mark.parametrize("token", ["g1", "td", "tb", "c1", "p1a100.p1a100", "p1a1.c1.p1a1"])
def test_an_impossible_schedule_is_reported(token: str) -> None:
    with pytest.raises(TokenError, match="is impossible"):
        played(token, {})


def test_steps_are_removed_with_the_steps_that_depend_on_them() -> None:
    """If steps are removed, the steps that depend on them are removed too, and later messages get new numbers."""
    moves = steps_of("dojo1.p1a9.aa.g1.g2.w.g1.ab.g3")

    assert token_of(without(moves, 0)) == "dojo1.aa.g1.w.ab.g2"
    assert token_of(without(moves, 4)) == "dojo1.p1a9.aa.g1.g2.g1.ab.g3"
    assert token_of(without(moves, 6)) == "dojo1.p1a9.aa.g1.g2.w.g1"


@drawn_from(
    st.binary(max_size=60) | st.sampled_from([b'{"done":1}', b'{"at":"x","id":1}', b'{"at":null}', b"null", b"{}"])
)
def test_any_line_is_parsed_or_reported(line: bytes) -> None:
    try:
        said: object = reply_of(line)
    except ProgramError as error:
        said = str(error)

    assert isinstance(said, Answer | At | Done) or "it wrote" in str(said)


def test_equal_runs_are_equal() -> None:
    """Two runs are equal if the answers to each message are equal in any order, and otherwise they differ."""
    one = played_by({2: [[Answer(1, NOTHING, 0), Done(2)]]})

    assert one.is_alike(played_by({2: [[Answer(1, NOTHING, 0), Done(2)]]}))
    assert not one.is_alike(played_by({2: [[Answer(1, NOTHING, 1), Done(2)]]}))


def played_by(script: Script) -> Played:
    return play(Scripted(script), STRICT, given(steps_of("dojo1.p1a100.td")))


class Driven(Right):
    def complaint(self) -> str:
        return ""


def test_an_answer_that_depends_on_other_schedules_is_a_finding() -> None:
    """A program is reported if it answers a schedule differently after other schedules than it did at first."""
    steps = steps_of("dojo1.p1a100.aa")
    alone = play(Right(), STRICT, given(steps))

    def start() -> AbstractContextManager[Driven]:
        return nullcontext(Driven())

    assert examined(start, STRICT, steps, alone) is None
    found = examined(start, STRICT, steps, Played(alone.steps, alone.turns, ODD))
    assert found is not None
    assert found.violation.property == "forgets_at_reset"
