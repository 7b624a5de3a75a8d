"""A dispatcher whose walk throws has not gone on: it announces the same message again, as `doReput` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import pytest
from attrs import define, field

from longpoll_broker.service.io.channel import Outbox
from longpoll_broker.service.pull.dispatch_service import ANNOUNCED_MAX, BATCH, DispatchService
from longpoll_broker.service.pull.hold_service import HoldService
from longpoll_broker.service.pull.pull_events import PullEvents
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.messages import Arrival
from longpoll_runtime.real import RealRuntime


@define
class Throwing:
    """A hold service whose first walks throw. Invariant: `told` has every announcement in order."""

    throws: int
    told: list[tuple[tuple[str, int], int]] = field(factory=list)

    def notify(self, key: tuple[str, int], visible_end: int, _tags_code: int | None, _outbox: Outbox) -> None:
        """Note it, and throw."""
        self.told.append((key, visible_end))
        if len(self.told) <= self.throws:
            raise RuntimeError("a filter fails")


@define
class OneMessage:
    """A store with one message to make visible."""

    dispatchable_end: int = 100
    dispatched_end: int = 0
    log_end: int = 100

    def waiting(self) -> Sequence[Arrival]:
        """It was appended, and is not visible yet."""
        return [Arrival("T", 3, 8, 0, 0, 0, 100)]

    def visible_end(self, _topic: str, _queue_id: int) -> int:
        """Without it."""
        return 7

    def dispatch(self, _count_max: int) -> Sequence[Arrival]:
        """Make it visible."""
        self.dispatched_end = self.dispatchable_end
        return [Arrival("T", 3, 8, 0, 0, 0, 100)]


def _announced(throws: int) -> list[tuple[tuple[str, int], int]]:
    service = Throwing(throws)
    dispatcher = DispatchService(
        RealRuntime(), cast("MessageStore", OneMessage()), cast("HoldService", service), PullEvents(), notifies=True
    )
    dispatcher.run(Outbox())
    return service.told


@pytest.mark.parametrize("throws", [0, 1, 3])
def test_a_message_is_announced_again_after_a_walk_that_threw(throws: int) -> None:
    """The same message, with the same end, until a walk ends well."""
    assert _announced(throws) == [(("T", 3), 8)] * (throws + 1)


def test_walks_that_always_throw_do_not_stop_the_dispatcher() -> None:
    """Java announces for ever; here the dispatcher goes on some time."""
    assert len(_announced(10_000)) == ANNOUNCED_MAX


def _told_at_the_end_of_a_pass(store: OneMessage, **settings: bool) -> list[tuple[tuple[str, int], int]]:
    service = Throwing(0)
    dispatcher = DispatchService(
        RealRuntime(),
        cast("MessageStore", store),
        cast("HoldService", service),
        PullEvents(),
        notifies=True,
        **settings,
    )
    dispatcher.pass_ended(Outbox())
    return service.told


def test_what_a_pass_appended_is_visible_and_announced_at_its_end() -> None:
    """Unless a thread of its own polls for it."""
    store = OneMessage()
    assert _told_at_the_end_of_a_pass(store, polls=True) == []
    assert store.dispatched_end == 0
    assert _told_at_the_end_of_a_pass(store) == [(("T", 3), 8)]
    assert store.dispatched_end == store.dispatchable_end


def test_what_may_not_be_seen_yet_is_not_announced_at_the_end_of_a_pass() -> None:
    """Nothing is dispatchable while the message is not durable; passes that end before its sync announce nothing."""
    assert _told_at_the_end_of_a_pass(OneMessage(dispatchable_end=0), before_visible=True) == []
    assert _told_at_the_end_of_a_pass(OneMessage(), before_visible=True) == [(("T", 3), 7)]


@define
class Burst:
    """A store in which some hundred messages of several queues wait."""

    waiting: list[int]
    dispatched_end: int = 0
    dispatchable_end: int = field(init=False)
    shown: Callable[[], None] = lambda: None
    """Called when some were made visible."""

    def __attrs_post_init__(self) -> None:
        self.dispatchable_end = len(self.waiting)

    def dispatch(self, count_max: int) -> Sequence[Arrival]:
        """Make up to so many visible."""
        begin = self.dispatched_end
        queues = self.waiting[begin : begin + count_max]
        self.dispatched_end += len(queues)
        self.shown()
        return [Arrival("T", queue, 1, 0, 0, begin + at, 1) for at, queue in enumerate(queues)]


def dispatcher_of(store: Burst, service: Any, *, passes_idle: bool = False) -> DispatchService:
    """A dispatcher of these."""
    return DispatchService(
        RealRuntime(), cast("MessageStore", store), service, PullEvents(), notifies=True, passes_idle=passes_idle
    )


def test_a_burst_is_announced_to_its_end() -> None:
    """More than is made visible at once, and each message."""
    service, store = Throwing(0), Burst(list(range(3 * BATCH + 1)))
    dispatcher_of(store, service).run(Outbox())

    assert store.dispatched_end == store.dispatchable_end
    assert [queue for (_topic, queue), _end in service.told] == store.waiting


def test_who_comes_while_messages_are_made_visible_is_told() -> None:
    """Whether anybody waits is looked at after that: who came before it has looked for the messages in vain."""

    class Filling(Throwing):
        held = 0

        def __len__(self) -> int:
            return self.held

    service = Filling(0)

    def hold() -> None:
        service.held = 1

    dispatcher_of(Burst([0], shown=hold), service, passes_idle=True).run(Outbox())

    assert service.told == [(("T", 0), 1)]
