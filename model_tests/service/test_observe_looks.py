"""Which moments the relay's loop takes: of a look one before it, and of an acknowledgement one after it.

By the other end a byte would be bound by a moment after it was sent. What follows from looks: `test_observe_arrival`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from longpoll_observe.loop import BLOCKED_NS, LOOK_NS, RelayLoop
from longpoll_runtime.real import RealRuntime

STEP_NS = 10
"""What every call to the kernel takes here."""


class Part:
    """What stands in for a side or a link, as far as a test needs it; each is one of its own."""

    def __init__(self, **fields: object) -> None:
        self.__dict__.update(fields)


class Kernel:
    """A clock, and a broker's socket whose calls take time; `come` bytes have come and room is for `room` more."""

    def __init__(self, come: int, room: int) -> None:
        self.now_ns = 100
        self.come, self.room = come, room

    def acknowledge(self) -> None:
        self.now_ns += STEP_NS

    def arrived(self) -> tuple[int, int]:
        """How much has come, and for how much more there is room."""
        self.now_ns += STEP_NS
        return self.come, self.room


class Noted:
    """What is noted of a connection of which `read` bytes were read."""

    def __init__(self, read: int, since_ns: int = 0) -> None:
        self.read, self.since_ns = read, since_ns
        self.looks: list[tuple[int, int]] = []
        self.acknowledgements: list[tuple[int, int]] = []

    def looked(self, looked_ns: int, come: int) -> None:
        self.looks.append((looked_ns, come))

    def acknowledged(self, now_ns: int, permitted: int) -> None:
        self.acknowledgements.append((now_ns, permitted))


@pytest.fixture
def loop() -> Iterator[RelayLoop]:
    """A loop that does not run."""
    made = RelayLoop(RealRuntime())
    yield made
    made.stop()


@pytest.mark.parametrize(
    ("come", "looks", "acknowledgements"),
    [(50, [(100, 50)], [(100 + 2 * STEP_NS, 57)]), (60, [(100, 60)], []), (49, [], [])],
    ids=["all is read", "more has come", "the socket says less than was read"],
)
def test_a_look_was_before_and_an_acknowledgement_after(
    loop: RelayLoop, come: int, looks: object, acknowledgements: object
) -> None:
    """An acknowledgement counts where it was one of everything that had come."""
    kernel, noted = Kernel(come, 7), Noted(50)
    loop._now_ns = lambda: kernel.now_ns
    link: Any = Part(onward=kernel)
    arrivals: Any = noted
    loop._acknowledge(link, arrivals)
    assert (noted.looks, noted.acknowledgements) == (looks, acknowledgements)


@pytest.mark.parametrize(("passes_ago", "looks"), [(0, []), (1, []), (2, [(1_000, 50)])])
def test_only_a_poll_that_watched_a_side_and_did_not_report_it_has_seen_it_empty(
    loop: RelayLoop, passes_ago: int, looks: list[tuple[int, int]]
) -> None:
    """The last whole pass did neither report it nor read it."""
    loop._pass, loop._quiet_ns = 10, 1_000
    side: Any = Part(busy_pass=10 - passes_ago, look_ns=0, arrivals=Noted(50))
    loop._note_quiet(side)
    assert side.arrivals.looks == looks
    assert side.look_ns == (1_000 + LOOK_NS if looks else 0)


@pytest.mark.parametrize(("since_ns", "is_over"), [(0, False), (19, False), (20, True)])
def test_a_side_has_caught_up_when_what_came_meanwhile_is_seen(loop: RelayLoop, since_ns: int, is_over: bool) -> None:
    told: list[tuple[object, ...]] = []
    tap = Part(unblocked=lambda *what: told.append(what), blocked=lambda *what: told.append(what))
    side: Any = Part(stuck=(10, 20), stuck_told=True, out=b"")
    broker = Part(busy_pass=loop._pass, look_ns=0, arrivals=Noted(50, since_ns))
    side.link = Part(client=side, broker=broker, tap=tap)
    loop._stuck[side] = None
    loop._now_ns = lambda: 900
    loop._look_at_stuck()
    loop.untold.tell_all()
    assert told == ([("answers", 20, 900)] if is_over else [])
    assert (side in loop._stuck) == (not is_over)


@pytest.mark.parametrize(("for_ns", "is_told"), [(BLOCKED_NS, False), (BLOCKED_NS + 1, True)])
def test_a_side_that_has_not_caught_up_for_long_is_told_of_once(loop: RelayLoop, for_ns: int, is_told: bool) -> None:
    told: list[tuple[object, ...]] = []
    side: Any = Part(stuck=(10, 20), stuck_told=False, out=b"waits")
    tap = Part(blocked=lambda *what: told.append(what))
    side.link = Part(client=None, broker=side, tap=tap)
    loop._stuck[side] = None
    loop._now_ns = lambda: 20 + for_ns
    for _look in range(2):
        loop._look_at_stuck()
    loop.untold.tell_all()
    assert told == ([("requests", 10, 20)] if is_told else [])


def test_since_when_a_side_does_not_read_is_told_by_the_first_send(loop: RelayLoop) -> None:
    clock = Kernel(0, 0)
    loop._now_ns = lambda: clock.now_ns
    socket = Part(send=lambda _content: 1)
    side: Any = Part(socket=socket, out=b"waits", stuck=None)
    side.link = Part(client=side, broker=None)
    for now_ns in (100, 200):
        clock.now_ns = now_ns
        assert loop._send(side)
    assert (side.stuck, bytes(side.out), list(loop._stuck)) == ((100, 100), b"its", [side])


@pytest.mark.parametrize(("is_told", "for_ns", "said"), [(False, 1, 1), (False, 0, 0), (True, 1, 0)])
def test_a_connection_that_ends_unseen_was_perhaps_not_read(
    loop: RelayLoop, is_told: bool, for_ns: int, said: int
) -> None:
    told: list[tuple[object, ...]] = []
    broker = Part(busy_pass=loop._pass, look_ns=0, arrivals=Noted(50, 70))
    tap = Part(blocked=lambda *what: told.append(what))
    link: Any = Part(client=Part(stuck_told=is_told), broker=broker, tap=tap)
    now_ns = 70 + BLOCKED_NS + for_ns
    loop._now_ns = lambda: now_ns
    loop._tell_unseen(link)
    loop.untold.tell_all()
    assert told == [("answers", 70, now_ns)] * said
