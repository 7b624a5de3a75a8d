"""Each lock is held where required, and a call without it is found in the first run that makes it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from model_tests.simulate.locksets import of_broker, of_stages, of_store, watching

from longpoll_broker.io.channel import Channel
from longpoll_broker.store.message_store import MessageStore

STAGES = 30


def some() -> Callable[[], bool]:
    """Returns a function that is true for this number of stages."""
    left = iter(range(STAGES))
    return lambda: next(left, None) is not None


def test_every_call_of_what_is_shared_has_its_lock() -> None:
    """In runs of the hold table, and in a serving broker."""
    with watching() as seen:
        assert of_stages(seen, some()) == STAGES
        assert of_broker(2) > 0
    assert seen == []


def test_every_call_of_what_a_store_shares_has_its_lock() -> None:
    """Every operation of a store, each part under its lock."""
    with watching() as seen:
        assert of_store() > 0
    assert seen == []


@pytest.mark.parametrize("name", ["_append_lock", "_deletion_lock"])
def test_planted_a_store_without_a_lock_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = MessageStore.__init__

    def unlocked(store: MessageStore, *words: Any) -> None:
        honest(store, *words)
        setattr(store, name, nullcontext())

    monkeypatch.setattr(MessageStore, "__init__", unlocked)
    with watching() as seen:
        of_store()
    assert seen


@pytest.mark.parametrize(("kind", "name"), [(Channel, "_lock"), (MessageStore, "_append_lock")])
def test_planted_a_broker_without_a_lock_is_seen(kind: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a connection, and of the log."""
    honest = kind.__init__

    def unlocked(shared: Any, *words: Any, **more: Any) -> None:
        honest(shared, *words, **more)
        setattr(shared, name, nullcontext())

    monkeypatch.setattr(kind, "__init__", unlocked)
    with watching() as seen:
        of_broker(3)
    assert f"{kind.__name__}" in " ".join(seen)
