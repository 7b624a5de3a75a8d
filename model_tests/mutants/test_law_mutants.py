"""Mutants of the specification: each turns a property or the counts red, and no proof stands where a run breaks it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache

import attrs
import msgspec
import pytest
from model_tests.support.spec import slip_table
from model_tests.support.spec.cases import quick_if
from model_tests.support.spec.caught import NOBODY, Catch, catches
from model_tests.support.spec.slip_proofs import Proofs, Standing
from model_tests.support.spec.slip_table import (
    POLICIES,
    STANDS,
    Row,
    changes,
    contradictions,
    main,
    name_of,
    pinned,
    pinned_slips,
    rows_of,
    slips_in,
)

from longpoll_spec.bounds import EXPLORATIONS, Bounds, named
from longpoll_spec.engines import explore
from longpoll_spec.engines.exploration import Exploration
from longpoll_spec.engines.manifest import pinned_entry
from longpoll_spec.engines.smt.configurations import WORLDS
from longpoll_spec.mutants.generated import Mutant, mutants_of, reached
from longpoll_spec.mutants.named import NAMED
from longpoll_spec.policy import PRESETS, preset
from longpoll_spec.specification import specification_of

SAMPLE = 8
"""Of our own policy's slips one in so many is tried each time; all of them, of every preset and aspect, at length."""
AT_LEAST = 12


def _counts(result: Exploration) -> tuple[int, int, int]:
    return result.distinct_states, result.transitions, result.depth


@cache
def _right(policy: str, bounds: Bounds) -> Exploration:
    return explore(specification_of(preset(policy), bounds), engine="python")


def _missed(found: Sequence[Catch]) -> list[str]:
    return [f"{each.slip.action} {each.slip.what}" for each in found if each.by == NOBODY]


def test_slips_in_any_action_are_caught() -> None:
    """Some mutants of every action of our policy are tried; a property or the counts catch all."""
    found = list(catches(preset("strict"), named("tiny", preset("strict")), every=SAMPLE))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST
    assert len({each.by for each in found}) >= 5, "one property alone would catch by luck"


@pytest.mark.long
@pytest.mark.parametrize(
    ("policy", "bounds"), [*((policy, "tiny") for policy in PRESETS), *(("strict", aspect) for aspect in EXPLORATIONS)]
)
def test_every_slip_in_every_action_is_caught(policy: str, bounds: str) -> None:
    """All of them, in every preset, and in our own policy under every aspect, there with one request."""
    # With two, and by the properties alone, they are tried in `test_law_mutants`.
    requests = None if bounds in {"tiny", "queues", "limit", "capacity"} else 1
    found = list(catches(preset(policy), named(bounds, preset(policy), requests=requests)))

    assert _missed(found) == []
    assert len(found) >= AT_LEAST


@pytest.mark.parametrize("policy", quick_if(PRESETS, lambda name: name in {"strict", "rocketmq-4.9"}))
def test_the_comparison_begins_at_the_pinned_numbers(policy: str) -> None:
    entry = pinned_entry(policy, "tiny")

    assert _counts(_right(policy, named("tiny", preset(policy)))) == (
        entry.distinct_states,
        entry.transitions,
        entry.depth,
    )


def test_a_slip_that_acts_nowhere_is_no_slip() -> None:
    """The law itself differs from itself in no state, and a guard without a part in some."""
    policy, size = preset("strict"), named("tiny", preset("strict"))
    model = specification_of(policy, size)
    states = reached(model)
    forgets = next(slip for slip in mutants_of(policy, size) if (slip.action, slip.what[:6]) == ("hold", "forget"))

    assert forgets.shows(model, states)
    assert not attrs.evolve(forgets, change=lambda _, action: action).shows(model, states)


QUICK = ("hold recheck if bucket looked empty", "executor_rejects drops when alone", "stop first only")
"""Named slips that are tried each time, in the plain world."""
PINNED_AT_LEAST = 15
"""Slips by rule in the pinned table of each policy."""


def _only(names: Sequence[str], policy: str = "strict") -> list[Mutant]:
    return [slip for slip in pinned_slips(preset(policy)) if name_of(slip) in names]


def _in_plain(rows: Sequence[Row]) -> list[Row]:
    return [msgspec.structs.replace(row, worlds={"plain": row.worlds["plain"]}) for row in rows]


def test_named_slips_are_told_as_pinned() -> None:
    rows = [row for row, _ in rows_of(preset("strict"), _only(QUICK), ["plain"])]
    known = _in_plain([row for row in pinned() if (row.policy, row.slip) in {("strict", name) for name in QUICK}])

    assert [row.slip for row in rows] == list(QUICK)
    assert rows == known
    assert contradictions(rows) == []
    assert all(row.steps is not None for row in rows)


@pytest.mark.long
@pytest.mark.parametrize("policy", POLICIES)
def test_the_table_is_as_pinned(policy: str) -> None:
    rows = [row for row, _ in rows_of(preset(policy), pinned_slips(preset(policy)))]

    assert changes(rows, pinned()) == []
    assert contradictions(rows) == []


def test_no_pinned_proof_stands_where_a_run_breaks_the_law() -> None:
    """The whole table, including mutants by rule, for the current spec."""
    rows = pinned()

    assert contradictions(rows) == []
    for policy in POLICIES:
        mine = [row.slip for row in rows if row.policy == policy]
        assert mine == [name_of(slip) for slip in slips_in(preset(policy)) if name_of(slip) in mine]
        assert len(mine) >= len(NAMED) + PINNED_AT_LEAST


def test_every_named_slip_is_broken_by_a_run_and_stands_in_no_proof() -> None:
    """Each in both policies of ours: by a property, and proved in none of the worlds that have its action."""
    names = {name.replace("_", " ") for name in NAMED}
    rows = [row for row in pinned() if row.slip.replace("_", " ") in names]

    assert len(rows) == len(POLICIES) * len(NAMED)
    assert [row.slip for row in rows if row.steps is None] == []
    assert [row.slip for row in rows if any(STANDS in both for both in row.worlds.values())] == []


@pytest.mark.parametrize("how", [0, 1])
def test_a_proof_that_stands_against_a_run_is_told(how: int) -> None:
    """A proof that contradicts a run makes the table fail, for eight requests or any number."""
    row = next(
        row for row in pinned() if row.bounds == "tiny" and row.steps is not None and len(row.worlds) == len(WORLDS)
    )
    both = list(row.worlds["whole"])
    both[how] = STANDS
    false = msgspec.structs.replace(row, worlds={**row.worlds, "whole": both})

    (said,) = contradictions([false])
    assert f"proved for {('8', 'any')[how]} requests in the world whole" in said
    assert changes([false], pinned()) != []


def test_a_run_with_an_aspect_says_nothing_against_a_world_without_it() -> None:
    """A feature that only some configurations have cannot contradict the others' proofs."""
    row = Row(
        policy="strict",
        slip="a slip",
        bounds="truncate",
        broken="moved_is_told",
        steps=17,
        worlds={"plain": [STANDS, STANDS], "whole": ["moved_is_told", "moved_is_told"]},
    )

    assert contradictions([row]) == []


def test_the_command_tells_of_a_proof_that_stands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a prover that accepts everything the command exits 1 and names the contradicting run."""
    monkeypatch.setattr(Proofs, "of", lambda *_: Standing(None, None))

    assert main(["--policy", "strict", "--slip", "executor_rejects drops", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert [row["slip"] for row in told["rows"]] == ["executor_rejects drops when alone"]
    assert told["rows"][0]["token"].startswith("lp1.")
    assert any("nothing_dropped is broken in 7 steps (tiny)" in each for each in told["wrong"])


def test_a_mistake_in_the_call_is_the_users(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["--policy", "rocketmq-5"], ["--every", "0"], ["--every", "few"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == slip_table.MISTAKE
    assert "--every must be 1 or more, not 0" in capsys.readouterr().err
