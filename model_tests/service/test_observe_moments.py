"""The proxy's intervals hold the true moments, which a broker on the same clock tells."""

from __future__ import annotations

import random
import socket
import threading
import time
from pathlib import Path

import pytest

from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.observe import Observer, tap
from longpoll_broker.testing.raw_client import PATIENCE_S, RawClient, pull_fields
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_broker.wire.codes import RequestCode
from longpoll_broker.wire.command import Command
from longpoll_judge.recording import load

ANSWER = {"suggestWhichBrokerId": "0", "nextBeginOffset": "7", "minOffset": "0", "maxOffset": "7"}
ROUNDS, IN_FLIGHT = 60, 5
STALL_S = 0.02
WAY_NS = 2_000_000
"""What a busy machine's kernel may take from one socket to the other; far less than a stall."""


def told_and_true(directory: Path, seed: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """For each answer the proxy's interval, and when the server's call that sent it began and ended."""
    true: dict[int, tuple[int, int]] = {}
    sequence = random.Random(seed)
    never = threading.Event()

    def stall() -> None:
        never.wait(STALL_S)

    def answer(peer: Peer, command: Command) -> None:
        # Without this the kernel keeps an answer back for up to 40 ms, and the call does not tell when it left.
        peer._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        never.wait(sequence.choice((0, 0.0005, 0.003)))
        begun_ns = time.monotonic_ns()
        peer.answer(command, 19, ANSWER)
        true[command.opaque] = (begun_ns, time.monotonic_ns())

    with (
        ScriptedServer(answer) as server,
        Observer.start(RealRuntime(), brokers=[(server.host, server.port)], record_directory=str(directory)) as proxy,
    ):
        (door,) = proxy.doors.values()
        with RawClient(door) as client:
            for number in range(ROUNDS):
                if number % 7 == 0:
                    proxy.loop._told.append(stall)
                opaques = [
                    client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 7, timeout_ms=100)) for _ in range(IN_FLIGHT)
                ]
                assert all(client.reply(opaque, PATIENCE_S) is not None for opaque in opaques)
    told = {
        int(event.request.split("-")[1]): (event.after_ns, event.before_ns)
        for event in load(directory).events
        if event.event == "answer_sent"
    }
    assert told.keys() == true.keys()
    return [(told[opaque], true[opaque]) for opaque in sorted(told)]


def outside(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> int:
    """How many true intervals do not meet the told ones."""
    return sum(told[0] - WAY_NS > true[1] or told[1] < true[0] for told, true in pairs)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_answer_was_sent_within_its_interval(tmp_path: Path, seed: int) -> None:
    """Also while the proxy's thread stands still now and then; and most intervals are short."""
    pairs = told_and_true(tmp_path / "history", seed)
    assert len(pairs) == ROUNDS * IN_FLIGHT
    assert outside(pairs) == 0, f"seed {seed}"
    widths = sorted(told[1] - told[0] for told, _true in pairs)
    assert widths[0] < STALL_S * 1e9


def test_the_moment_of_reading_is_not_the_moment_of_sending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy that took it for that is caught by the same comparison."""
    tell = tap.ConnectionTap.answered
    monkeypatch.setattr(
        tap.ConnectionTap,
        "answered",
        lambda self, content, _after_ns, before_ns: tell(self, content, before_ns, before_ns),
    )
    assert outside(told_and_true(tmp_path / "history", 1)) > 0
