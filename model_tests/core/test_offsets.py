"""Committed offsets."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from longpoll_broker.core.tables import offsets as offsets_module
from longpoll_broker.core.tables.offsets import Offsets


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
    assert (offsets.topics_of("G"), offsets.groups_of("T")) == (["T", "U"], ["G", "H"])
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
    assert offsets.topics_of("G") == ["T", "U"]
    assert offsets.topics_of("none") == []
    assert offsets.groups_of("T") == ["G", "H"]
    assert offsets.groups_of("none") == []


def test_forgetting_a_group_leaves_the_others() -> None:
    """Of every topic, and the file is written anew only where something went."""
    offsets = stored()
    offsets.forget_group("none")
    assert not offsets.changed
    offsets.forget_group("G")
    assert list(offsets.by_pair) == ["T@H", "TT@GG"]
    assert offsets.changed, "or the file would bring them back"


def test_a_group_is_forgotten_with_what_was_committed_just_before() -> None:
    """Another thread may have had the guard until then."""
    offsets = stored()

    @contextmanager
    def after_another() -> Iterator[None]:
        offsets.by_pair |= {"V@G": {0: 1}, "V@H": {0: 1}}
        yield

    offsets.guard = after_another()
    offsets.forget_group("G")
    assert list(offsets.by_pair) == ["T@H", "TT@GG", "V@H"]
