"""What waits of one queue, beside a plain list that counts it anew each time."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from longpoll_client.consume.process_queue import FlowLimits, ProcessQueue
from longpoll_client.messages import ReceivedMessage


def message(offset: int, size: int = 1) -> ReceivedMessage:
    """A message at an offset."""
    return ReceivedMessage("T", 0, offset, b"x" * size, {}, "id", 0, "", 0, "", 0, 0, 0, 0)


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=30), st.randoms())
def test_counts_are_those_of_a_plain_list(steps: list[tuple[int, int]], chance: object) -> None:
    """Number, size, span and the offset that is done with are right after every put and every done."""
    queue, plain, end = ProcessQueue(0), list[ReceivedMessage](), 0
    for gap, size in steps:
        found = message(end + gap - 1, size)
        end = found.queue_offset + 1
        queue.put([found], end)
        plain.append(found)
        if len(plain) % 3 == 0:
            chosen = plain[len(plain) // 2]
            queue.done([chosen, chosen, message(chosen.queue_offset)])
            plain.remove(chosen)
        assert queue.count == len(plain)
        assert queue.size == sum(len(one.body) for one in plain)
        assert queue.span == (end - plain[0].queue_offset if plain else 0)
        assert queue.offset_done == (plain[0].queue_offset if plain else end)
        assert queue.first(2) == plain[:2]
    queue.done(plain)
    assert (queue.count, queue.size, queue.offset_done) == (0, 0, end)


def test_each_limit_stops_by_its_name() -> None:
    """And none does when none is reached."""
    queue = ProcessQueue(0)
    queue.put([message(0, 10), message(9, 10)], 10)
    assert queue.stop(FlowLimits(2, 100, 100)) == "count"
    assert queue.stop(FlowLimits(3, 20, 100)) == "size"
    assert queue.stop(FlowLimits(3, 21, 10)) == "span"
    assert queue.stop(FlowLimits(3, 21, None)) is None
    queue.move(4)
    assert (queue.count, queue.offset_done) == (0, 4)
