"""Sharing queues: disjoint, complete, even, and the same on every client."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longpoll_client import rebalance
from longpoll_client.rebalance import allocate_averagely
from longpoll_protocol.bodies import MessageQueue

clients = st.sets(st.text(min_size=1, max_size=5), min_size=1, max_size=12)
queues = st.sets(
    st.builds(MessageQueue, topic=st.just("T"), broker_name=st.sampled_from(["a", "b"]), queue_id=st.integers(0, 40)),
    max_size=40,
)


@given(clients, queues, st.randoms())
def test_the_shares_are_a_partition(names: set[str], found: set[MessageQueue], chance: random.Random) -> None:
    """Each queue has one owner, shares differ by one at most, and nobody's view depends on the order of the lists."""
    shares = []
    for name in names:
        shuffled_names, shuffled_queues = list(names), list(found)
        chance.shuffle(shuffled_names)
        chance.shuffle(shuffled_queues)
        shares.append(allocate_averagely(name, shuffled_names, shuffled_queues))
    assert sorted(queue for share in shares for queue in share) == sorted(found)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_a_share_as_java_gives_it() -> None:
    """Ten queues over three clients: neighbours, the first client one more."""
    found = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(10)]
    shares = [[queue.queue_id for queue in allocate_averagely(name, "zxy", found)] for name in "xyz"]
    assert shares == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9]]


def test_a_stranger_gets_nothing() -> None:
    """A client that the group does not know yet waits for the next rebalance."""
    assert allocate_averagely("me", ["you"], [MessageQueue(topic="T", broker_name="b", queue_id=0)]) == ()


def test_planted_a_share_without_the_remainder_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forgetting the queues left over breaks the partition."""

    def forgetful(name: str, names: list[str], found: list[MessageQueue]) -> tuple[MessageQueue, ...]:
        size = len(found) // len(names)
        position = sorted(names).index(name)
        return tuple(sorted(found)[position * size : (position + 1) * size])

    monkeypatch.setitem(globals(), "allocate_averagely", forgetful)
    with pytest.raises((AssertionError, ExceptionGroup)):
        test_the_shares_are_a_partition()
    assert rebalance.allocate_averagely is not forgetful
