"""The heap of deadlines: in order, whatever the clock says by now."""

from __future__ import annotations

import pytest

from longpoll_broker.core.deadlines import Deadlines

DAY_MS = 24 * 60 * 60 * 1000


@pytest.mark.parametrize("now_ms", [0, 1 << 31, 1 << 32, 300 * DAY_MS], ids=["new", "31 bits", "32 bits", "300 days"])
def test_a_machine_that_has_long_been_up_has_the_same_order(now_ms: int) -> None:
    """A clock counts from the machine's start: 31 bits of milliseconds are 25 days."""
    deadlines = Deadlines[str]()
    for name, wait_ms in (("c", 30_000), ("a", 1), ("b", 15_000)):
        deadlines.add(name, now_ms + wait_ms)

    assert deadlines.next_ms() == now_ms + 1
    assert deadlines.pop_due(now_ms + 20_000) == ["a", "b"]
    assert deadlines.next_ms() == now_ms + 30_000


def test_what_is_left_when_stale_entries_are_thrown_away_is_in_order() -> None:
    """A thousand and more that were answered make the heap anew: the rest is due as before, the earliest first."""
    deadlines = Deadlines[int]()
    for deadline_ms in reversed(range(5_000)):
        deadlines.add(deadline_ms, deadline_ms)
    left = [*range(0, 5_000, 5), 4_999]
    for deadline_ms in set(range(5_000)) - set(left):
        deadlines.remove(deadline_ms, deadline_ms)

    assert deadlines.next_ms() == 0
    assert deadlines.pop_due(1_000) == list(range(0, 1_001, 5))
    assert deadlines.pop_due(5_000) == [*range(1_005, 5_000, 5), 4_999]


@pytest.mark.parametrize(("armed", "kept"), [(1_020, 9), (1_021, 10)])
def test_stale_entries_are_thrown_away_when_they_are_many_and_not_for_each(armed: int, kept: int) -> None:
    """Over a thousand more than twice what is still armed: a removal costs little, and memory is bounded."""
    deadlines = Deadlines[int]()
    for deadline_ms in range(armed):
        deadlines.add(deadline_ms, deadline_ms)
    sizes = []
    for deadline_ms in range(kept, armed):
        deadlines.remove(deadline_ms, deadline_ms)
        sizes.append(len(deadlines._heap))

    assert sizes == [armed] * (armed - kept - 1) + [kept]


def test_a_part_of_what_is_due_counts_what_earlier_times_gave() -> None:
    """Two of three that are due, of two times; the last stays armed."""
    deadlines = Deadlines[str]()
    for name, deadline_ms in (("a", 1), ("b", 2), ("c", 2), ("d", 2)):
        deadlines.add(name, deadline_ms)

    assert deadlines.pop_due(5, 2) == ["a", "b"]
    assert (list(deadlines), deadlines.next_ms()) == (["c", "d"], 2)
