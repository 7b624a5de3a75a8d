"""The ids that producers give: laid out as Java's, and no two alike."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import Thread
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longpoll_client.produce.message_ids import MessageIds, month_of
from longpoll_runtime.real import RealRuntime

YEAR_MS = 366 * 86_400_000


class Decoded(NamedTuple):
    """What Java's tools read in an id."""

    ip: bytes
    process: int
    sent_ms: int


def decode(msg_id: str, now_ms: int) -> Decoded:
    """By the rules of `MessageClientIDSetter`, for an id of 16 bytes."""
    content = bytes.fromhex(msg_id)
    assert len(content) == 16
    assert msg_id == content.hex().upper()
    span_ms = int.from_bytes(content[10:14], "big")
    month = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)  # noqa: DTZ006
    if month.timestamp() * 1000 + span_ms >= now_ms:
        month = month.replace(year=month.year - (month.month == 1), month=(month.month - 2) % 12 + 1)
    return Decoded(content[:4], int.from_bytes(content[4:6], "big"), int(month.timestamp() * 1000) + span_ms)


class Set(RealRuntime):
    """A clock, a process and drawn bytes that a test sets."""

    def __init__(self, unix_ms: int) -> None:
        super().__init__()
        self.now_ms = unix_ms
        self.process = 70_000
        self.drawn = 0

    def unix_ms(self) -> int:
        """As set."""
        return self.now_ms

    def process_id(self) -> int:
        """As set."""
        return self.process

    def identity(self) -> bytes:
        """An address, and the number of the question."""
        self.drawn += 1
        return bytes([10, 1, 2, 3]) + self.drawn.to_bytes(4, "big")


@pytest.fixture(params=["UTC", "Asia/Shanghai", "America/New_York"])
def zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The sender's time zone."""
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_java_reads_when_and_where_a_message_was_sent() -> None:
    """By the machine's own clock, address and process."""
    runtime = RealRuntime()
    before_ms = runtime.unix_ms()
    (msg_id,) = MessageIds(runtime).new(1)
    after_ms = runtime.unix_ms()

    found = decode(msg_id, after_ms + 1)

    assert before_ms <= found.sent_ms <= after_ms
    assert found.process == os.getpid() % 65_536
    assert found.ip == runtime.identity()[:4]


def test_a_time_is_read_right_in_every_month_and_zone(zone: None) -> None:
    """An hour, a day and 27 days later, also where the month or the clocks of summer changed meanwhile."""
    begin_ms = int(datetime(2027, 12, 30, 23, 59, tzinfo=UTC).timestamp()) * 1000
    runtime = Set(begin_ms)
    ids = MessageIds(runtime)
    for sent_ms in range(begin_ms, begin_ms + YEAR_MS, 7_654_321):
        runtime.now_ms = sent_ms
        (msg_id,) = ids.new(1)
        for later_ms in (1, 3_600_000, 86_400_000, 27 * 86_400_000):
            assert decode(msg_id, sent_ms + later_ms) == (bytes([10, 1, 2, 3]), 70_000 - 65_536, sent_ms)


@given(st.integers(0, 4_000_000_000_000))
def test_a_month_holds_its_time_and_ends_where_the_next_begins(unix_ms: int) -> None:
    """So that the four bytes of milliseconds can hold every time of it."""
    begin_ms, end_ms = month_of(unix_ms)
    assert begin_ms <= unix_ms < end_ms
    assert 28 <= (end_ms - begin_ms) / 86_400_000 <= 31
    assert month_of(end_ms)[0] == end_ms


STEPS = st.one_of(
    st.tuples(st.just("count"), st.sampled_from([1, 2, 65_535, 65_536])),
    st.tuples(st.just("clock"), st.sampled_from([0, 1, 1000, -1, -1000, 31 * 86_400_000, -40 * 86_400_000])),
    st.tuples(st.just("fork"), st.just(0)),
)


@given(st.lists(STEPS, max_size=8))
@example([("clock", 1), ("count", 65_535), ("clock", -1)])
def test_no_two_ids_are_alike(steps: list[tuple[str, int]]) -> None:
    """However often the counter goes round, the clock is set, the month changes or the process forks."""
    runtime = Set(1_800_000_000_000)
    ids = MessageIds(runtime)
    made: list[str] = ids.new(1)
    for what, number in steps:
        if what == "count":
            made += ids.new(number)
        elif what == "clock":
            runtime.now_ms += number
        else:
            runtime.process += 65_536
    made += ids.new(1)
    assert len(set(made)) == len(made)


def test_threads_and_producers_make_ids_of_their_own() -> None:
    """Four threads with one producer's ids, and another producer in the same process at the same time."""
    runtime = RealRuntime()
    shared, other = MessageIds(runtime), MessageIds(runtime)
    made: list[str] = []
    threads = [Thread(target=lambda: made.extend(shared.new(1)[0] for _ in range(5000))) for _ in range(4)]
    for thread in threads:
        thread.start()
    made += [other.new(1)[0] for _ in range(5000)]
    for thread in threads:
        thread.join()
    assert len(set(made)) == len(made) == 25_000


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize("fork", [os.fork, ctypes.PyDLL(None).fork], ids=["by Python", "not by Python"])
def test_a_forked_process_makes_ids_of_its_own(fork: Callable[[], int]) -> None:
    """From the first one on, although it goes on from where its parent was, and whoever forked it."""
    runtime = RealRuntime()
    ids = MessageIds(runtime)
    ids.new(3)
    reading, writing = os.pipe()
    child = fork()
    if child == 0:  # pragma: no cover - another process
        os.write(writing, "".join(ids.new(100)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 10_000).decode()
    theirs = {text[at : at + 32] for at in range(0, len(text), 32)}
    assert len(theirs) == 100
    assert not theirs & set(ids.new(100))
    assert {decode(each, runtime.unix_ms() + 1).process for each in theirs} == {child % 65_536}
