from __future__ import annotations

import pytest

from longpoll_spec.bounds import Bounds, named
from longpoll_spec.policy import PRESETS, STRICT, Policy, with_knob
from longpoll_spec.state import Tag, assign, down, phases_of, state_of
from longpoll_spec.state.parts import tags_of, wishes_of
from longpoll_spec.terms import FALSE, TRUE, const, int_variable


@pytest.mark.parametrize("policy", PRESETS.values(), ids=str)
def test_every_variable_is_told_in_words(policy: Policy) -> None:
    """Names are unique, first values are in range, and each variable has a sentence."""
    variables = state_of(policy, named("small", policy)).variables

    assert len({variable.name for variable in variables}) == len(variables)
    for variable in variables:
        assert variable.upper is not None
        assert variable.lower <= variable.initial <= variable.upper
        assert variable.sentence.endswith(".")
        assert not variable.labels or len(variable.labels) > variable.upper


def test_a_variable_exists_only_where_it_can_matter() -> None:
    """The heap entry's flag is there only for one-shot entries, the recheck's only after an insert."""
    plain = state_of(STRICT, named("tiny", STRICT))
    one_shot = with_knob(STRICT, "heap_entry=one_shot")
    no_recheck = with_knob(STRICT, "recheck_after_hold=none")

    assert plain.requests[0].armed is FALSE
    assert state_of(one_shot, named("tiny", one_shot)).requests[0].armed.op == "var"
    assert state_of(no_recheck, named("tiny", no_recheck)).requests[0].recheck_due is FALSE


def test_lists_are_shared_only_under_one_lock() -> None:
    """In place a taken request need not say by whom; with a clone it must."""
    assert "taken" in phases_of(STRICT)
    assert "taken_by_scanner" in phases_of(with_knob(STRICT, "take=clone_and_clear"))


def test_tags_are_compared_by_hash_and_sql_by_its_oracle() -> None:
    """The third tag passes for the first, not wanted; what the SQL filter lets through is wanted by who asks."""
    bounds = Bounds("tags", tags=3, aspects=frozenset({"sql"}))
    tags, (*_, sql) = tags_of(bounds), wishes_of(bounds)

    def wanted(tag: Tag, wish: int) -> tuple[bool, bool]:
        return tag.passes(const(wish)) is TRUE, tag.is_wanted(const(wish)) is TRUE

    assert [tag.name for tag in tags] == ["t0", "t1", "t2", "t0_sql", "t1_sql", "t2_sql"]
    assert [wanted(tags[2], wish) for wish in range(3)] == [(True, False), (False, False), (True, True)]
    assert [wanted(tag, sql.index) for tag in tags] == [(False, False)] * 3 + [(True, True)] * 3
    assert len(state_of(STRICT, bounds).tags) == 6


def test_queues_are_named_only_where_there_are_several() -> None:
    """The only queue's variables have no number; of two each has its own, and a slot names its queue or none."""
    one, two = (state_of(STRICT, named("tiny", STRICT, queues=queues)) for queues in (1, 2))
    names = {variable.name: variable for variable in two.variables}

    assert "log_end" in {variable.name for variable in one.variables}
    assert {"log_end_q0", "visible_end_q1", "unscanned_q0", "dispatcher_queue", "queue_1"} <= set(names)
    assert (names["queue_1"].numbers_queues, names["queue_1"].show(names["queue_1"].initial)) == (True, "none")
    assert two.lock_free(two.queues[0]) is not two.lock_free(two.queues[1])


def test_assigning_twice_is_our_own_mistake() -> None:
    """An effect gives a variable one value."""
    with pytest.raises(AssertionError, match="written twice"):
        assign((int_variable("x"), 1), (int_variable("x"), 2))


def test_what_the_policy_lacks_is_not_written() -> None:
    """A constant that stands for a missing variable is passed over."""
    effect = assign((FALSE, True), (int_variable("x"), 1))

    assert list(effect) == ["x"]
    assert effect["x"] is const(1)


def test_time_left_stops_at_none() -> None:
    """Time left counts down and stays passed; the term reads so."""
    assert down(const(2)) is const(1)
    assert down(const(0)) is const(0)
