"""Sends stay away from brokers that were slow, as Java's do, and never from all of them."""

from __future__ import annotations

from itertools import count

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_client.errors import AnswerTimeoutError, ConnectionLostError
from longpoll_client.link.routes import Route
from longpoll_client.produce.outgoing import OutgoingMessage, single_parcel
from longpoll_client.produce.slow_brokers import MS, SlowBrokers, away_ms
from longpoll_client.produce.tries import Tries, selector
from longpoll_protocol.bodies import MessageQueue
from longpoll_protocol.frames.command import Command
from longpoll_protocol.headers import SendMessageResponseHeader

NAMES = "abc"
QUEUES = tuple(MessageQueue(topic="T", broker_name=name, queue_id=0) for name in NAMES)
ROUTE = Route("T", (), QUEUES, {name: f"{name}:1" for name in NAMES}, 0)
STORED = Command(0, ext_fields=SendMessageResponseHeader(msg_id="m", queue_id=0, queue_offset=0).encode())
LOST_AWAY_MS = 10_000


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [(0, 0), (549.9, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)],
)
def test_the_slower_it_was_the_longer_it_is_left_alone(latency_ms: float, expected: int) -> None:
    """By the table of `MQFaultStrategy` 5.x."""
    assert away_ms(latency_ms) == expected


EVENTS = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(["served", "lost", "refused"]), st.integers(0, 20_000), st.integers(0, 3000)
)


@example([("a", "served", 15_000, 0), ("a", "served", 550, 0), ("a", "served", 0, 3000)], None)
@given(st.lists(EVENTS, max_size=20), st.sampled_from([None, *NAMES]))
def test_it_prefers_as_java_does(events: list[tuple[str, str, int, int]], avoided: str | None) -> None:
    """Who is available, then who did not refuse, then all: beside an account of all events, read anew each time."""
    slow, now_ms = SlowBrokers(), 0
    account: list[tuple[str, str, int]] = []
    for name, kind, latency_ms, step_ms in events:
        now_ms += step_ms
        if kind == "served":
            slow.served(name, latency_ms * MS, now_ms * MS)
            account.append((name, kind, now_ms + away_ms(latency_ms)))
        else:
            slow.failed(name, now_ms * MS, is_refusal=kind == "refused")
            account.append((name, kind, now_ms + LOST_AWAY_MS))
        last = {name: kind for name, kind, _until in account}
        away = {name for name, _kind, until_ms in account if until_ms > now_ms}
        others = [name for name in NAMES if name != avoided]
        expected = [name for name in others if name not in away]
        expected = expected or [name for name in others if last.get(name) != "refused"] or list(NAMES)
        assert [queue.broker_name for queue in slow.preferred(QUEUES, avoided, now_ms * MS)] == expected
        assert slow.is_available(name, now_ms * MS) == (name not in away)


def brokers_asked(slow: SlowBrokers, outcome: object, took_ms: int, sends: int, *, queue_id: int | None = None) -> str:
    """Which brokers so many sends go to, each 100 ms after the other, where broker b ends every try so."""
    asked, turns, now_ns = "", count(), 0
    for number in range(sends):
        parcel = single_parcel("P", "T", OutgoingMessage(b"x"), f"{number:032X}", 0)
        tries = Tries(parcel, selector("T", queue_id, None), now_ns + 60_000 * MS, slow)
        found = None
        while found is None:
            name = tries.begin(ROUTE, turns.__next__, now_ns).queue.broker_name
            asked += name
            now_ns += (took_ms if name == "b" else 1) * MS
            found = tries.ended(outcome if name == "b" else STORED, now_ns)  # type: ignore[arg-type] # as parametrized
        now_ns += 100 * MS
    return asked


@pytest.mark.parametrize(
    ("outcome", "took_ms"),
    [(STORED, 6000), (AnswerTimeoutError("late"), 600), (ConnectionLostError("gone"), 1), (Command(2), 1)],
)
def test_one_bad_broker_costs_one_send_in_ten_seconds(outcome: object, took_ms: int) -> None:
    """Whether it is slow, mute, gone or busy; then it is tried again."""
    asked = brokers_asked(SlowBrokers(), outcome, took_ms, 90)
    assert asked.count("b") == 1
    again = brokers_asked(SlowBrokers(), outcome, took_ms, 200)
    assert 2 <= again.count("b") <= 3


def test_a_message_that_nobody_takes_says_nothing_against_its_broker() -> None:
    """Nor does a quick answer; and a send that names its queue goes there, however slow."""
    slow = SlowBrokers()
    tries = Tries(single_parcel("P", "T", OutgoingMessage(b"x"), "0" * 32, 0), None, MS, slow)
    name = tries.begin(ROUTE, count().__next__, 0).queue.broker_name
    with pytest.raises(Exception, match="says 13"):
        tries.ended(Command(13), 1)
    assert slow.is_available(name, 1)
    assert brokers_asked(slow, STORED, 1, 6) == "abcabc"
    slow.failed("a", 0, is_refusal=True)
    assert brokers_asked(slow, STORED, 1, 2, queue_id=0) == "aa"
