"""The kit and the judge with a real Redis server: `BLPOP`, and `XREAD BLOCK` through a `HistoryWriter`."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from attrs import frozen
from hypothesis import Phase, settings
from model_tests.kit.services import SERVER, Connection, RedisServer, RedisSubject
from model_tests.kit.test_kit import PATIENT, machine

import longpoll
from longpoll_judge.contract.result import Result
from longpoll_recorder.writer import RecordedPoll

pytestmark = [
    pytest.mark.peers,
    pytest.mark.skipif(SERVER is None, reason="redis-server is not here; install the Debian package redis-server"),
]


SOME: Final = settings(max_examples=12, stateful_step_count=15, database=None, phases=(Phase.generate,))


class PollsBehindTheKitsBack(RedisSubject):
    """A client that secretly pops a second message."""

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Connection, bytes]:
        """Take one first, of three and more."""
        if self.call(b"LLEN", queue.encode()) >= 3:
            self.call(b"LPOP", queue.encode())
        return super().start_poll(queue, position, timeout_ms)


class NewestFirst(RedisSubject):
    """Messages are pushed at the wrong end."""

    def publish(self, queue: str, body: bytes) -> None:
        self.call(b"LPUSH", queue.encode(), body)


class NeverCancels(RedisSubject):
    """A client that forgets to tell Redis that it has lost interest."""

    def cancel(self, handle: tuple[Connection, bytes]) -> None:
        """Tell nobody."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server of the test's own."""
    server = RedisServer(tmp_path)
    yield server
    server.stop()


def test_redis_is_valid(server: RedisServer) -> None:
    """Polls held, woken, cancelled, left to their deadlines and restarted."""
    report = machine(lambda: RedisSubject(server), **PATIENT).exercise(SOME, 14)

    assert report.verdict == "valid", report
    assert report.left_out == ("acknowledge", "answered_again")


@pytest.mark.parametrize(
    ("subject", "properties"),
    [
        (PollsBehindTheKitsBack, {"nothing_lost"}),
        (NewestFirst, {"in_order"}),
        (NeverCancels, {"cancelled_is_over"}),
    ],
)
def test_a_wrong_use_of_redis_is_found(server: RedisServer, subject: type[RedisSubject], properties: set[str]) -> None:
    """A message taken by another client, the wrong end, a cancel without effect."""
    report = machine(lambda: subject(server), wake_ms=300, long_ms=1_000).exercise(SOME, 14)

    assert report.verdict == "invalid", report
    assert report.property in properties, report


TIMEOUT_MS = 600


LOOK_S = 0.02


@frozen
class Streams:
    """Blocking reads of streams, each told to a history from outside the server."""

    history: longpoll.HistoryWriter
    server: RedisServer
    start: bytes = b""
    """Where every read begins, whatever was asked: a planted fault."""

    def publish(self, stream: str, offset: int) -> None:
        """Add message `offset`, and acknowledge it."""
        since_ns = self.history.now_ns()
        connection = Connection(self.server.path)
        connection.call(b"XADD", stream.encode(), b"%d-0" % (offset + 1), b"body", b"x")
        connection.close()
        self.history.published(stream, offset, since_ns=since_ns)

    def poll(self, stream: str, offset: int) -> tuple[Connection, RecordedPoll]:
        since_ns = self.history.now_ns()
        connection = Connection(self.server.path)
        after = self.start or b"%d-0" % offset
        connection.send(b"XREAD", b"BLOCK", b"%d" % TIMEOUT_MS, b"STREAMS", stream.encode(), after)
        return connection, self.history.polled(stream, offset, TIMEOUT_MS, since_ns=since_ns)

    def finish(self, begun: tuple[Connection, RecordedPoll], since_ns: int) -> list[int]:
        """Wait for the answer, which was not there at `since_ns`; the offsets that it has."""
        connection, poll = begun
        looked_ns = since_ns
        while not select.select([connection.socket], [], [], LOOK_S)[0]:
            since_ns, looked_ns = looked_ns, self.history.now_ns()
        reply = connection.reply()
        connection.close()
        messages = [] if reply is None else reply[0][1]
        offsets = [int(message[0].split(b"-")[0]) - 1 for message in messages]
        self.history.answered(poll, offsets, since_ns=since_ns)
        return offsets


def judged(server: RedisServer, directory: Path, limit_ms: float, start: bytes = b"") -> tuple[list[list[int]], Result]:
    """Polls that find something, that are woken, and that wait to their deadline; what they got, and the verdict."""
    with longpoll.HistoryWriter(longpoll.RealRuntime(), directory, service="redis") as history:
        streams = Streams(history, server, start)
        streams.publish("jobs", 0)
        begun_ns = history.now_ns()
        found = streams.poll("jobs", 0)
        got = [streams.finish(found, begun_ns)]
        woken = streams.poll("jobs", 1)
        since_ns = history.now_ns()
        streams.publish("jobs", 1)
        got.append(streams.finish(woken, since_ns))
        begun_ns = history.now_ns()
        empty = streams.poll("jobs", 2)
        got.append(streams.finish(empty, begun_ns))
    return got, longpoll.judge(directory, wake_ms=limit_ms, late_ms=limit_ms)


def test_redis_streams_are_valid(server: RedisServer, tmp_path: Path) -> None:
    """All three kinds of polls were judged; a busy machine may delay an answer for long."""
    got, result = judged(server, tmp_path / "history", 60_000)
    assert (got, result.verdict, result.requests) == ([[0], [1], []], "valid", 3)


def test_a_read_that_passes_over_a_message_is_found(server: RedisServer, tmp_path: Path) -> None:
    """A planted fault: every read begins at what is new, as `$` says."""
    got, result = judged(server, tmp_path / "history", 250, b"$")
    assert (got[0], result.verdict) == ([], "invalid")
