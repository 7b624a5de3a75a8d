"""Counts the queues that clients create by sending, because each queue needs files and 2 KiB of memory."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, KeysView
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Final

from attrs import define, field

from longpoll_broker.shared.quota import Quota
from longpoll_broker.shared.topics import LOADED_QUEUE_COUNT_MAX

QUEUES_IN_ALL_MAX: Final = 500_000
"""Maximum queues that sends may create, about 1 GB of memory. The broker's own messages may create more queues."""

Place = tuple[str, int]
"""Topic and queue id."""


@define(slots=True, eq=False)
class NewQueues:
    """Counts queues before a send creates them; callable from any thread."""

    is_stored: Callable[[str, int], bool]
    """Whether the store has a queue."""
    guard: AbstractContextManager[Any] = field(factory=nullcontext)
    """Protects the quota."""
    quota: Quota = field(factory=lambda: Quota("queues", QUEUES_IN_ALL_MAX), init=False)

    known: KeysView[Hashable] = field(init=False)
    """The queues that were counted, by topic and queue id."""

    def __attrs_post_init__(self) -> None:
        self.known = self.quota.keys

    def take(self, places: Iterable[Place], channel: Hashable = None) -> bool:
        """Count queues before a send creates them; returns false if there is not enough room."""
        for place in places:
            if place not in self.known:
                is_stored = self.is_stored(*place)
                with self.guard:
                    if not self.quota.take(place, None if is_stored else channel) and not is_stored:
                        return False
        return True

    def note_loaded(self, places: Iterable[Place]) -> None:
        """Count the queues that a loaded store contains."""
        for place in places:
            self.quota.take(place)

    def forget_topic(self, topic: str) -> None:
        """Called when a topic was deleted with its queues, so that these queues no longer count."""
        with self.guard:
            for queue_id in range(LOADED_QUEUE_COUNT_MAX):
                self.quota.release((topic, queue_id))
