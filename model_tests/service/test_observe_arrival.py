"""Since when bytes can have been sent: one case for each thing that a sender's kernel may do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longpoll_observe import arrival_time
from longpoll_observe.arrival_time import LARGE_FLIGHT, RECOVER_NS, SETTLE_NS, STEP, THIN_NS, ArrivalTimes
from longpoll_observe.relay_loop import BLOCKED_NS, LOOK_NS, RelayLoop
from longpoll_runtime.real import RealRuntime

SETTLE = 10

HELD_MAX = 4 * STEP


def arrivals() -> ArrivalTimes:
    """A connection opened at 100; clocks here go in single steps."""
    return ArrivalTimes(100, SETTLE, HELD_MAX)


LATER_NS = 200 + 3 * RECOVER_NS
FAR_NS = 3 * RECOVER_NS
WHOLE = LARGE_FLIGHT
Step = tuple[str, int] | tuple[str, int, int]
CASES: dict[str, list[Step]] = {
    "a connection that stays empty is bound by each look": [
        ("look", 109, 0), ("since", 100), ("look", 110, 0), ("since", 110),
    ],
    "empty after a read counts once the acknowledgement has settled": [
        ("read", 50), ("look", 120, 50), ("since", 100), ("permit", 121, 50), ("look", 130, 50), ("since", 100),
        ("look", 131, 50), ("since", 131),
    ],
    "an acknowledgement that was not used up binds": [
        ("read", 10), ("permit", 120, 1_000), ("read", 1_000), ("look", 130, 1_000), ("since", 120),
    ],
    "one that was used up does not": [
        ("read", 10), ("permit", 120, 1_000), ("read", 1_001), ("look", 130, 1_001), ("since", 100),
    ],
    "a sender that used up what it was permitted may take long to go on": [
        ("read", 1_000), ("permit", 120, 2_000), ("read", 3_000), ("look", 130, 3_000), ("permit", 131, 9_000),
        ("look", 131 + RECOVER_NS - 1, 3_000), ("since", 100),
        ("look", 131 + RECOVER_NS, 3_000), ("since", 131 + RECOVER_NS),
        ("permit", LATER_NS, 9_000), ("look", LATER_NS + SETTLE, 4_000), ("read", 4_000), ("since", LATER_NS),
    ],
    "a large flight settles quickly up to its limit": [
        ("permit", 120, 10 * WHOLE), ("read", WHOLE), ("look", 121, WHOLE), ("permit", 121, 10 * WHOLE),
        ("look", 120 + SETTLE, WHOLE), ("since", 100), ("look", 121 + SETTLE, WHOLE), ("since", 121 + SETTLE),
    ],
    "a larger one needs as long as a sender that recovers": [
        ("permit", 120, 10 * WHOLE), ("read", WHOLE + 1), ("look", 121, WHOLE + 1), ("permit", 121, 10 * WHOLE),
        ("look", 120 + RECOVER_NS, WHOLE + 1), ("since", 100),
        ("look", 121 + RECOVER_NS, WHOLE + 1), ("since", 121 + RECOVER_NS),
    ],
    "acknowledgements of a sender that recovers are kept until it has": [
        ("read", 3_000), ("permit", 120, 2_000), ("look", 130, 3_000),
        *(("permit", 131 + number * THIN_NS, 9_000) for number in range(RECOVER_NS // THIN_NS + 2)),
        ("look", 131 + RECOVER_NS + THIN_NS, 3_000), ("since", 131 + RECOVER_NS + THIN_NS),
    ],
    "a bound is never taken back": [
        ("permit", 120, 1_000), ("look", 200, 0), ("since", 200), ("look", 210, 60), ("read", 60), ("since", 200),
    ],
    "a look ahead binds what comes later and not what lies there": [
        ("permit", 120, 1_000), ("look", 130, 600), ("since", 100), ("read", 599), ("since", 100),
        ("read", 600), ("since", 120),
    ],
    "a sender that is always ahead is bound by what its kernel can hold": [
        *(step for at in range(10) for step in (("read", at * STEP), ("look", 1_000 + at, at * STEP))),
        ("since", 1_000 + 9 - HELD_MAX // STEP),
    ],
    "the end of the stream binds": [("read", 5), ("end", 200), ("since", 200)],
}  # fmt: skip
"""What the relay notes of a connection, and since when the next byte can have been sent."""


@pytest.mark.parametrize("name", CASES)
def test_since_when_bytes_can_have_been_sent(name: str) -> None:
    play(arrivals(), CASES[name])


def play(one: ArrivalTimes, steps: list[Step]) -> None:
    """Note what a case says, and check each bound."""
    for step in steps:
        match step:
            case ("read", size):
                one.read = size
            case ("look", now_ns, come):
                one.looked(now_ns, come)
            case ("permit", now_ns, permitted):
                one.acknowledged(now_ns, permitted)
            case ("end", now_ns):
                one.ended(now_ns)
            case ("since", since_ns):
                assert one.since_ns == since_ns, step


def test_a_sender_far_away_is_given_as_long_as_its_door_says() -> None:
    steps: list[Step] = [("read", 3_000), ("permit", 1_000, 2_000), ("look", 1_000, 3_000), ("permit", 1_001, 9_000)]
    play(ArrivalTimes(100, FAR_NS, HELD_MAX), [*steps, ("look", 1_001 + RECOVER_NS, 3_000), ("since", 100)])


def test_acknowledgements_close_to_each_other_do_not_put_off_the_bound() -> None:
    one = ArrivalTimes(100)
    step_ns = THIN_NS // 2
    for number in range(100):
        one.acknowledged(1_000 + number * step_ns, LARGE_FLIGHT)
    now_ns = 1_000 + 99 * step_ns
    one.looked(now_ns, 10)
    one.read = 10
    assert now_ns - SETTLE_NS - 2 * THIN_NS <= one.since_ns <= now_ns - SETTLE_NS


def test_looks_at_the_same_place_are_not_kept() -> None:
    one = arrivals()
    for number in range(10_000):
        one.looked(1_000 * number, 5)
    assert len(one._far) < 3


def test_what_nobody_looks_at_is_not_kept_for_ever() -> None:
    """A client that always sends: its connection is acknowledged again and again, and never seen empty."""
    one = arrivals()
    for number in range(10_000):
        one.acknowledged(1_000_000 * number, number)
    assert len(one._permits) < 100


Change = tuple[int, bool, int, int]

changes = st.lists(
    st.tuples(st.integers(1, 30), st.booleans(), st.integers(0, 80), st.integers(0, 60)), min_size=1, max_size=40
)


def sent_too_early(script: list[Change], make: Callable[[], ArrivalTimes]) -> list[tuple[int, int]]:
    """Play a sender whose kernel holds back by window and by Nagle; (bound, truth) of each byte that breaks its bound.

    Each change: some time passes, the sender sends or not, so many bytes; the reader reads up to so many. What an
    acknowledgement permits arrives `SETTLE` later at most.
    """
    one, now_ns, broken = make(), 200, []
    sent: list[int] = []
    come, window, released_ns = 0, 30, 0
    for passed_ns, sends, size, wanted in script:
        now_ns += passed_ns
        if sends:
            sent += [now_ns] * size
        # The kernel lets go up to the window, and nothing until the last acknowledgement has reached it.
        if now_ns >= released_ns:
            come = max(come, min(len(sent), window))
        one.looked(now_ns, come)
        since_ns = one.since_ns
        taken = min(wanted, come - one.read)
        broken += [(since_ns, sent_ns) for sent_ns in sent[one.read : one.read + taken] if sent_ns < since_ns]
        one.read += taken
        if taken and one.read == come:
            window = one.read + 30
            released_ns = now_ns + SETTLE
            one.acknowledged(now_ns, window - 1)
    return broken


@settings(max_examples=120)
@given(changes)
def test_no_byte_was_sent_before_its_bound(script: list[Change]) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(arrival_time, "RECOVER_NS", SETTLE)
        assert sent_too_early(script, arrivals) == []


class Trusting(ArrivalTimes):
    """Takes what had come for what had been sent."""

    __slots__ = ()

    def looked(self, looked_ns: int, come: int) -> None:
        self._mark(come, looked_ns)


def test_planted_what_had_come_is_not_what_had_been_sent() -> None:
    script = [(1, True, 40, 30), (1, False, 0, 0), (20, False, 0, 60)]
    assert sent_too_early(script, lambda: Trusting(100, SETTLE, HELD_MAX))
    assert not sent_too_early(script, arrivals)


CALL_NS = 10
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
        self.now_ns += CALL_NS

    def arrived(self) -> tuple[int, int]:
        """How much has come, and for how much more there is room."""
        self.now_ns += CALL_NS
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
    [(50, [(100, 50)], [(100 + 2 * CALL_NS, 57)]), (60, [(100, 60)], []), (49, [], [])],
    ids=["all is read", "more has come", "the socket says less than was read"],
)
def test_looks_and_acknowledgements(loop: RelayLoop, come: int, looks: object, acknowledgements: object) -> None:
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
def test_a_connection_that_ends_unseen(loop: RelayLoop, is_told: bool, for_ns: int, said: int) -> None:
    told: list[tuple[object, ...]] = []
    broker = Part(busy_pass=loop._pass, look_ns=0, arrivals=Noted(50, 70))
    tap = Part(blocked=lambda *what: told.append(what))
    link: Any = Part(client=Part(stuck_told=is_told), broker=broker, tap=tap)
    now_ns = 70 + BLOCKED_NS + for_ns
    loop._now_ns = lambda: now_ns
    loop._tell_unseen(link)
    loop.untold.tell_all()
    assert told == [("answers", 70, now_ns)] * said
