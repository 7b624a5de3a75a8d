"""The judge behind the proxy, before a broker that is late by so much: nobody is accused falsely, none is missed."""

from __future__ import annotations

import socket
import threading
import time
from pathlib import Path
from typing import Final

import msgspec
import pytest
from attrs import frozen

from longpoll_broker.testing.raw_client import PATIENCE_S, RawClient, pull_fields
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_judge.contract.result import ANSWERED_BY_DEADLINE
from longpoll_judge.run.job import judge
from longpoll_judge.testing.recording import load
from longpoll_observe import Observer, tap
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import META_FILE, Event, Meta

LATENESS_MS: Final = (0, 40, 48, 56, 400)
"""How late the broker answers, by queue."""
ALLOWED_MS: Final = 50
TIMEOUT_MS: Final = 150
ROUNDS: Final = 2
EACH: Final = 4
"""Pulls at once of each queue."""
ANSWER: Final = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}
MS: Final = 1_000_000
Key = tuple[int, int]
"""Queue, and which of its requests."""


@frozen
class Truth:
    """When the client began to ask and the broker had it, and the call of the kernel that sent the answer."""

    asked_ns: int
    received_ns: int
    begun_ns: int
    ended_ns: int

    @property
    def late_at_least_ms(self) -> float:
        """The answer was certainly sent so long after its deadline."""
        return (self.begun_ns - self.received_ns) / MS - TIMEOUT_MS

    @property
    def late_at_most_ms(self) -> float:
        """It was certainly not sent longer after it."""
        return (self.ended_ns - self.asked_ns) / MS - TIMEOUT_MS


def run_late(history: Path, *, stalls: bool) -> dict[Key, Truth]:
    """Have late answers recorded; what really happened."""
    asked: dict[Key, int] = {}
    answered: dict[Key, tuple[int, int, int]] = {}
    timers: list[threading.Timer] = []
    never = threading.Event()

    def stall() -> None:
        never.wait(0.03)

    def answer(peer: Peer, command: Command, key: Key, received_ns: int) -> None:
        begun_ns = time.monotonic_ns()
        peer.answer(command, 19, ANSWER)
        answered[key] = (received_ns, begun_ns, time.monotonic_ns())

    def receive(peer: Peer, command: Command) -> None:
        received_ns = time.monotonic_ns()
        peer._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        queue = int((command.ext_fields or {})["queueId"])
        wait_s = (TIMEOUT_MS + LATENESS_MS[queue]) / 1e3
        timers.append(threading.Timer(wait_s, answer, (peer, command, (queue, command.opaque), received_ns)))
        timers[-1].start()

    with (
        ScriptedServer(receive) as server,
        Observer.start(RealRuntime(), brokers=[(server.host, server.port)], record_directory=str(history)) as proxy,
    ):
        (door,) = proxy.doors.values()
        clients = [RawClient(door) for _ in LATENESS_MS]
        for _ in range(ROUNDS):
            opaques = []
            for queue, client in enumerate(clients):
                fields = pull_fields("T", 7, queue_id=queue, timeout_ms=TIMEOUT_MS)
                for _ in range(EACH):
                    now_ns = time.monotonic_ns()
                    opaque = client.send(RequestCode.PULL_MESSAGE, fields)
                    asked[queue, opaque] = now_ns
                    opaques.append((client, opaque))
            for delay_s in (0.1, 0.05, 0.05) if stalls else ():
                never.wait(delay_s)
                proxy.loop.untold.add(stall)
            assert all(client.reply(opaque, PATIENCE_S) is not None for client, opaque in opaques)
        for client in clients:
            client.close()
        for timer in timers:
            timer.join()
    return {key: Truth(asked[key], *answered[key]) for key in answered}


@frozen
class Seen:
    """What the judge says of one request."""

    truth: Truth
    doubt_ms: float
    """By how much less than its lateness an answer may be judged: the widths of both intervals, and the ways."""
    is_accused: bool
    is_named: bool
    """Accused, or said to be unknown: where the proxy's own thread waited for a processor, nobody is accused."""


def judged(history: Path, truths: dict[Key, Truth]) -> list[Seen]:
    """Each request, with the truth and the judge's word."""
    result = judge([history], engine="local", late_ms=ALLOWED_MS)
    late = [finding for finding in result.findings if finding.property == ANSWERED_BY_DEADLINE]
    named = {finding.request for finding in late}
    accused = {finding.request for finding in late if finding.verdict == "violated"}
    uncertainty_ns = msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta).sources[0].uncertainty_ns
    asked: dict[str, Event] = {}
    seen = []
    for event in sorted(load(history).events, key=lambda each: each.sequence):
        if event.event == "request_received":
            asked[event.request] = event
        elif event.event == "answer_sent":
            request = asked[event.request]
            widths_ns = event.before_ns - event.after_ns + request.before_ns - request.after_ns + 4 * uncertainty_ns
            key = (request.queue, int(event.request.split("-")[1]))
            seen.append(Seen(truths[key], widths_ns / MS, event.request in accused, event.request in named))
    return seen


def falsely(seen: list[Seen]) -> list[Seen]:
    """Those accused although they were in time."""
    return [one for one in seen if one.is_accused and one.truth.late_at_most_ms <= ALLOWED_MS]


def missed(seen: list[Seen]) -> list[Seen]:
    """Those too late by more than the doubt, of which the judge says nothing."""
    return [one for one in seen if not one.is_named and one.truth.late_at_least_ms > ALLOWED_MS + one.doubt_ms]


@pytest.mark.parametrize("stalls", [False, True], ids=["undisturbed", "stalled"])
def test_no_answer_in_time_is_accused_and_none_that_was_late_is_missed(stalls: bool, tmp_path: Path) -> None:
    """Late by 0 to 400 ms where 50 are allowed, also while the proxy stands still now and then."""
    truths = run_late(tmp_path / "history", stalls=stalls)
    seen = judged(tmp_path / "history", truths)
    assert len(seen) == len(truths) == ROUNDS * EACH * len(LATENESS_MS)
    assert falsely(seen) == []
    assert missed(seen) == []
    if not stalls:
        assert any(one.is_accused for one in seen)


def test_planted_the_moment_of_reading_accuses_falsely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that stands still and takes it for the moment of sending."""
    tell = tap.ConnectionTap.answered
    monkeypatch.setattr(
        tap.ConnectionTap,
        "answered",
        lambda self, content, _after_ns, before_ns: tell(self, content, before_ns + 40 * MS, before_ns + 40 * MS),
    )
    truths = run_late(tmp_path / "history", stalls=False)
    assert falsely(judged(tmp_path / "history", truths)) != []
