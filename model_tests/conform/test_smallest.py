"""The smallest conversation shows what the whole one shows, and nothing that the whole one does not."""

from __future__ import annotations

from collections.abc import Sequence

from longpoll_conform.compare import Difference
from longpoll_conform.smallest import smallest
from longpoll_conform.vectors import Vector

EMPTY = Difference("response.body.empty", "nothing", "true")
CODE = Difference("response.code", "0", "17")
LATER = Difference("after[0].code", "0", "1")


def vector(*setup: str) -> Vector:
    """One with these steps before its request; one is a heartbeat."""
    steps = [{"code": 34 if name == "heartbeat" else 0, "name": name} for name in setup]
    return Vector("pull-062", "", "default", "5.5.0", {"setup": steps, "request": {"code": 11}, "response": None})


def names(less: Vector) -> list[str]:
    """The steps that are left."""
    return [step["name"] for step in less.case["setup"]]


def test_steps_that_do_not_matter_are_left_out() -> None:
    """One by one, as long as the same thing is answered otherwise."""

    def play(less: Vector) -> Sequence[Difference]:
        return [EMPTY] if "send" in names(less) else []

    less, left_out = smallest(vector("make", "look", "send"), [EMPTY, LATER], play)

    assert (names(less), left_out) == (["send"], 2)


def test_a_step_without_which_something_else_differs_is_needed() -> None:
    """The topic is not made any more, and so there is no message: that is no fault of who says so."""

    def play(less: Vector) -> Sequence[Difference]:
        return [EMPTY] if "make" in names(less) else [CODE, EMPTY]

    less, left_out = smallest(vector("make", "send"), [EMPTY], play)

    assert (names(less), left_out) == (["make"], 1)


def test_a_step_without_which_the_code_is_another_is_needed() -> None:
    """Both are wrong, and of different things."""
    other = Difference("response.code", "0", "24")

    def play(less: Vector) -> Sequence[Difference]:
        return [EMPTY, other if "make" in names(less) else CODE]

    less, left_out = smallest(vector("make", "send"), [EMPTY, other], play)

    assert (names(less), left_out) == (["make"], 1)


def test_a_heartbeat_is_needed_though_who_does_not_heed_it_answers_alike() -> None:
    """Without it 24 would be right."""
    less, left_out = smallest(vector("heartbeat", "look"), [CODE], lambda _less: [CODE])

    assert (names(less), left_out) == (["heartbeat"], 1)


def test_what_differs_of_a_step_alone_is_left_as_it_is() -> None:
    """Of a step the place would be another one in a shorter conversation."""
    whole = vector("make", "send")

    assert smallest(whole, [LATER], lambda _less: [LATER]) == (whole, 0)
