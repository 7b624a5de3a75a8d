"""Committed offsets."""

from __future__ import annotations

import pytest
from model_tests.support.service import in_turns, whole

from longpoll_broker.shared import offsets as offsets_module
from longpoll_broker.shared.offsets import Offsets


def test_the_last_commit_counts_even_if_it_is_lower() -> None:
    """RocketMQ 4.9 stores what it is told."""
    offsets = Offsets()
    assert offsets.query("T", "G", 0) is None
    offsets.commit("T", "G", 0, 9)
    offsets.commit("T", "G", 0, 4)
    offsets.commit("T", "H", 0, 1)
    assert offsets.query("T", "G", 0) == 4
    assert offsets.by_pair == {"T@G": {0: 4}, "T@H": {0: 1}}


def test_what_a_pull_carries_along_never_goes_back() -> None:
    """Forward only: an older one changes nothing, a newer one counts; a consumer's own word still may go back."""
    offsets = Offsets()
    assert offsets.commit("T", "G", 0, 5, forward_only=True)
    assert offsets.commit("T", "G", 0, 3, forward_only=True)
    assert offsets.query("T", "G", 0) == 5
    offsets.commit("T", "G", 0, 9, forward_only=True)
    offsets.commit("T", "G", 0, 2)
    assert offsets.query("T", "G", 0) == 2


def test_what_was_asked_for_is_forgotten_with_its_group_and_topic_only() -> None:
    """Looking at the offsets changes nothing."""
    offsets = Offsets(pulled=Offsets())
    assert offsets.pulled is not None
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G")):
        offsets.commit(topic, group, 0, 1)
        offsets.pulled.commit(topic, group, 0, 3)
    assert (whole(offsets.topics_of("G")), whole(offsets.groups_of("T"))) == (["T", "U"], ["G", "H"])
    assert offsets.pulled_to("T", "G", 0) == 3
    offsets.forget_group("G")
    assert [offsets.pulled_to(topic, "G", 0) for topic in ("T", "U")] == [None, None]
    assert offsets.pulled_to("T", "H", 0) == 3
    offsets.forget_topic("T")
    assert offsets.pulled_to("T", "H", 0) is None


def test_limits_bound_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new entry over a limit is refused; a known one may still change."""
    monkeypatch.setattr(offsets_module, "OFFSET_COUNT_MAX", 2)
    monkeypatch.setattr(offsets_module, "QUEUE_COUNT_MAX", 1)
    offsets = Offsets()
    assert offsets.commit("T", "G", 0, 1)
    assert offsets.commit("T", "H", 0, 1)
    assert not offsets.commit("T", "I", 0, 1)
    assert not offsets.commit("T", "G", 1, 1)
    assert offsets.commit("T", "G", 0, 2)
    monkeypatch.setattr(offsets_module, "QUEUE_COUNT_MAX", 9)
    assert not offsets.commit("T", "G", 1, 1), "each queue counts"
    offsets.forget_topic("T")
    offsets.lay_over({"T@G": {0: 1, 1: 1, 2: 1}, "T@H": {0: 1, 1: 1}})
    assert offsets.by_pair == {"T@H": {0: 1, 1: 1}}


def test_forgetting_a_topic_leaves_the_others() -> None:
    """A topic whose name begins alike is another topic."""
    offsets = Offsets()
    offsets.commit("T", "G", 0, 1)
    offsets.commit("T2", "G", 0, 1)
    offsets.changed = False
    offsets.forget_topic("none")
    assert not offsets.changed
    offsets.forget_topic("T")
    assert list(offsets.by_pair) == ["T2@G"]
    assert offsets.changed, "or the file would bring them back"


def test_a_light_group_has_one_queue() -> None:
    """With `enableLmq` only, and by the group's name, not the topic's."""
    offsets = Offsets(light=True)
    offsets.commit("T", "%LMQ%g", 4, 9)
    offsets.commit("%LMQ%t", "G", 4, 3)
    assert offsets.by_pair == {"T@%LMQ%g": {0: 9}, "%LMQ%t@G": {4: 3}}
    assert offsets.query("T", "%LMQ%g", 2) == 9
    assert (offsets.query("%LMQ%t", "G", 0), offsets.query("%LMQ%t", "G", 4)) == (None, 3)
    assert Offsets(by_pair={"T@%LMQ%g": {4: 9}}).query("T", "%LMQ%g", 4) == 9
    assert [offsets.is_light(pair) for pair in offsets.by_pair] == [True, False]
    assert not Offsets().is_light("T@%LMQ%g")


def stored() -> Offsets:
    """Two groups of two topics, one of which neither shares."""
    offsets = Offsets()
    for topic, group in (("T", "G"), ("T", "H"), ("U", "G"), ("TT", "GG")):
        offsets.commit(topic, group, 0, 1)
    offsets.changed = False
    return offsets


def test_who_has_offsets_of_what_is_told_by_whole_names() -> None:
    """A name that only ends or begins alike is another one's."""
    offsets = stored()
    assert whole(offsets.topics_of("G")) == ["T", "U"]
    assert whole(offsets.topics_of("none")) == []
    assert whole(offsets.groups_of("T")) == ["G", "H"]
    assert whole(offsets.groups_of("none")) == []


def test_forgetting_a_group_leaves_the_others() -> None:
    """Of every topic, and the file is written anew only where something went."""
    offsets = stored()
    offsets.forget_group("none")
    assert not offsets.changed
    offsets.forget_group("G")
    assert list(offsets.by_pair) == ["T@H", "TT@GG"]
    assert offsets.changed, "or the file would bring them back"


class Guard:
    """Notes how many pairs there are fewer each time that it is left; another thread has it before."""

    def __init__(self, offsets: Offsets, others: dict[str, dict[int, int]]) -> None:
        self.offsets, self.others = offsets, others
        self.dropped: list[int] = []

    def __enter__(self) -> None:
        self.offsets.by_pair |= self.others
        self.others = {}
        self.before = len(self.offsets.by_pair)

    def __exit__(self, *_told: object) -> None:
        self.dropped.append(self.before - len(self.offsets.by_pair))


def test_a_group_is_forgotten_with_what_was_committed_just_before() -> None:
    """Another thread may have had the guard until then; commits come in between while the table is gone through."""
    offsets = stored()
    guard = offsets.guard = Guard(offsets, {"V@G": {0: 1}, "V@H": {0: 1}})
    offsets.forget_group("G")
    assert list(offsets.by_pair) == ["T@H", "TT@GG", "V@H"]
    assert guard.dropped == [0, 1, 1, 1]


def test_a_large_table_is_gone_through_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn looks at more pairs, or at more marks in them, than its count."""
    offsets = Offsets()
    for number in range(10):
        offsets.commit(f"T{number}", "G@" * 4, 0, number)
    topics = [f"T{number}" for number in range(10)]
    monkeypatch.setattr(offsets_module, "TURN_COUNT", 5)
    assert in_turns(offsets.topics_of("G@" * 4)) == (topics, 1)
    assert in_turns(offsets.groups_of("T3")) == (["G@" * 4], 1)
    assert in_turns(offsets.topics_by_group(["G@" * 4])) == ({"G@" * 4: topics}, 10)
