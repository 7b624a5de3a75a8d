"""A check says in its own words what it checks: a mistake in what the effects share does not hide itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from click.testing import CliRunner

from longpoll.cli import main
from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.smt.any_number import prove_any
from longpoll_spec.engines.smt.proof import prove
from longpoll_spec.law import law_of, properties_of
from longpoll_spec.policy import preset
from longpoll_spec.state import Request, State
from longpoll_spec.terms import FALSE, TRUE, Bool, Int

OURS = ("strict", "strict-clone")


def _never_moves(_state: State, request: Request) -> Int:
    return request.offset


def _moves_too_far(state: State, request: Request) -> Int:
    return state.visible_end_of(request) + 1


def _forgets_the_beginning(_state: State, _request: Request) -> Bool:
    return FALSE


def _is_never_moved(_state: State, _request: Request) -> Bool:
    return FALSE


def _always_answers(_state: State, _request: Request) -> Bool:
    return TRUE


SHARED: dict[str, tuple[str, Callable[[State, Request], Any], str, str]] = {
    "a read never moves the offset": ("offset_after_read", _never_moves, "tiny", "answer_is_right"),
    "a read moves past the end": ("offset_after_read", _moves_too_far, "truncate", "answer_is_right"),
    "a read forgets the beginning": ("is_trimmed", _forgets_the_beginning, "truncate", "answer_is_right"),
    "a read answers whatever there is": ("is_answered_by_read", _always_answers, "tiny", "answer_is_right"),
    "no offset is ever gone": ("is_moved", _is_never_moved, "truncate", "moved_is_told"),
}
"""A mistake in a helper that effects and, once, properties shared: where it shows, and who says so."""


def _broken(policy: str, bounds: Bounds) -> set[str]:
    model = law_of(preset(policy), bounds)
    found = explore(model, [item for item in properties_of(model) if item.kind == "always"], limit_states=100_000)
    return {each.name for each in found.verdicts if each.verdict == "violated"}


@pytest.mark.parametrize("policy", OURS)
@pytest.mark.parametrize("slip", SHARED)
def test_a_mistake_in_a_shared_helper_is_caught_by_the_property(
    slip: str, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The property itself turns red, and not only the pinned numbers."""
    helper, wrong, bounds, name = SHARED[slip]
    monkeypatch.setattr(State, helper, wrong)

    assert name in _broken(policy, named(bounds, preset(policy)))


@pytest.mark.long
def test_a_read_that_never_moves_the_offset_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The provers say so too, for eight requests and for any number."""
    monkeypatch.setattr(State, "offset_after_read", _never_moves)
    wanted = ["answer_is_right"]

    assert prove(preset("strict"), names=wanted).verdict("answer_is_right") == "refuted"
    assert (
        prove_any(preset("strict"), world=Bounds("proof"), names=wanted).proof.verdict("answer_is_right") == "refuted"
    )


def test_what_cannot_be_broken_is_told_apart() -> None:
    """By the text alone: `no_orphan` says nothing of strict, and much where a bucket can be removed under a request."""
    bounds = EXPLORATIONS["buckets"]
    folded = {
        name: {item.name for item in properties_of(law_of(preset(name), bounds)) if item.by_construction}
        for name in ("strict", "rocketmq-lmq")
    }

    assert "no_orphan" in folded["strict"]
    assert "no_orphan" not in folded["rocketmq-lmq"]
    assert "no_lost_wakeup" not in folded["strict"]


def test_check_and_prove_say_what_is_true_by_construction() -> None:
    """Neither calls it held or proved to a person; in JSON the verdict stays and bears the mark."""
    check = ["check", "--policy", "strict", "--bounds", "buckets", "--property", "no_orphan", "--all"]
    proof = ["prove", "--policy", "strict", "--aspect", "buckets", "--requests", "2", "--property", "no_orphan"]
    told = [CliRunner().invoke(main, words) for words in (check, proof)]

    assert [done.exit_code for done in told] == [0, 0]
    for done in told:
        row = next(line for line in done.output.splitlines() if "no_orphan" in line)
        assert "by construction" in row
        assert "holds" not in row
        assert "proved" not in row
    as_json = [CliRunner().invoke(main, [*words, "--json"]).output for words in (check, proof)]
    assert '"by_construction":true' in as_json[0]
    assert '"by_construction":["no_orphan"]' in as_json[1]


def test_what_holds_for_a_reason_bears_no_mark() -> None:
    """The mark is not on everything: `no_lost_wakeup` holds in what was explored."""
    words = ["check", "--policy", "strict", "--bounds", "buckets", "--property", "no_lost_wakeup"]
    done = CliRunner().invoke(main, words)

    assert "by construction" not in done.output
    assert "holds" in done.output
