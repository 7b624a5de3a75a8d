"""Measures when a held pull is answered: after a message, among a thousand pulls, and at its deadline.

The harness uses one thread. The clock is read just before a write and just after a read, so every figure includes the
harness's own time, which `round_trips` shows with the trivial server.
"""

from __future__ import annotations

import random
import select
from collections.abc import Sequence
from contextlib import ExitStack
from time import monotonic_ns
from typing import Final

from attrs import frozen
from model_tests.support.broker.harness.frames import Answer, Line, PullTemplate, expect_success, send_frame

from longpoll_client.errors import ClientError
from longpoll_protocol.codes import ResponseCode
from longpoll_runtime import Address

BODY: Final = bytes(128)
HOLD_MS: Final = 30_000
STALL_S: Final = 40.0
"""A timeout in seconds, longer than anything that these functions measure."""
PAUSE_S: Final = (0.002, 0.006)
"""The range of seconds between a pull and its message. Even Java's pull threads hold the pull within this time."""
PROBE: Final = 2_000_000_000
"""The opaque of a pull that is sent only to get an answer."""


def percentile(ascending: Sequence[float], share: float) -> float:
    """Returns the value below which this share of the ascending values lies."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def round_trips(address: Address, topic: str, rounds: int) -> list[float]:
    """Returns the round-trip times of small requests, in ms, ascending."""
    line = Line(address)
    frame = PullTemplate(topic).frame(0, 0, PROBE)
    taken = []
    for _ in range(rounds):
        begun_ns = monotonic_ns()
        line.call(frame)
        taken.append((monotonic_ns() - begun_ns) / 1e6)
    line.close()
    return sorted(taken)


def send_first(line: Line, topic: str) -> int:
    """Send a topic's first message and wait until it is visible; returns the size of its record in bytes."""
    expect_success(line.call(send_frame(topic, 0, BODY)), "a send")
    while True:
        found = line.call(PullTemplate(topic).frame(0, 0, PROBE))
        if found.code == ResponseCode.SUCCESS:
            return found.body_size


def _hold(lines: Sequence[Line], seconds: float) -> None:
    """Wait until the broker holds the pulls of all lines; raises ClientError if it answers one."""
    # A broker does not report that it holds a pull, so the harness only waits for this time.
    if select.select([line.socket for line in lines], [], [], seconds)[0]:
        raise ClientError("a pull was answered before its message was sent")


def wakes(address: Address, topic: str, rounds: int, *, seed: int = 0) -> list[float]:
    """Returns the times in ms, ascending, from the write of a send to the answer of the held pull that it wakes."""
    sequence = random.Random(seed)
    sender, puller = Line(address), Line(address)
    template, frame = PullTemplate(topic), send_frame(topic, 0, BODY)
    send_first(sender, topic)
    taken = []
    for number in range(rounds):
        puller.write(template.frame(0, number + 1, number, HOLD_MS))
        _hold([puller], sequence.uniform(*PAUSE_S))
        begun_ns = monotonic_ns()
        sender.write(frame)
        found = _next(puller)
        taken.append((monotonic_ns() - begun_ns) / 1e6)
        expect_success(found, "a pull")
        expect_success(_next(sender), "a send")
    sender.close()
    puller.close()
    return sorted(taken)


def wakes_beside_new_queues(address: Address, topic: str, new_topics: Sequence[str], queue_count: int) -> list[float]:
    """Measure like `wakes`, but write the first message to every queue of a new topic just before each send.

    Another connection writes these first messages, which make the broker create files. Returns the times in ms,
    ascending, from their write to the held pull's answer.
    """
    sender, puller, other = Line(address), Line(address), Line(address)
    template, frame = PullTemplate(topic), send_frame(topic, 0, BODY)
    send_first(sender, topic)
    taken = []
    for number, new_topic in enumerate(new_topics):
        firsts = b"".join(send_frame(new_topic, queue, BODY) for queue in range(queue_count))
        puller.write(template.frame(0, number + 1, number, HOLD_MS) + template.frame(0, 0, PROBE))
        assert _next(puller).opaque == PROBE
        # Java's pull threads may answer the probe before they have held the pull.
        _hold([puller], PAUSE_S[1])
        begun_ns = monotonic_ns()
        other.write(firsts)
        sender.write(frame)
        found = _next(puller)
        taken.append((monotonic_ns() - begun_ns) / 1e6)
        expect_success(found, "a pull")
        expect_success(_next(sender), "a send")
        left = queue_count
        while left:
            left -= other.read_count()[0]
    for line in (sender, puller, other):
        line.close()
    return sorted(taken)


def overshoots(
    address: Address, topic: str, pull_count: int, span_ms: tuple[int, int], *, seed: int = 0
) -> list[float]:
    """Returns by how many ms the answers to pulls without messages are late, ascending.

    A pull's deadline counts from the time just before its write.
    """
    sequence = random.Random(seed)
    line = Line(address)
    send_first(line, topic)
    template = PullTemplate(topic)
    due_ns = []
    for number in range(pull_count):
        timeout_ms = sequence.randint(*span_ms)
        frame = template.frame(0, 1, number, timeout_ms)
        due_ns.append(monotonic_ns() + timeout_ms * 1_000_000)
        line.write(frame)
    late: list[float] = []
    while len(late) < pull_count:
        for answer in line.read():
            if answer.code != ResponseCode.PULL_NOT_FOUND:
                raise ClientError(f"a pull without news was answered with code {answer.code}")
            late.append((monotonic_ns() - due_ns[answer.opaque]) / 1e6)
    line.close()
    return sorted(late)


@frozen
class FanOut:
    """The times in ms from the write of one message to the first and the last answer of the pulls that it wakes."""

    first_ms: float
    last_ms: float


def fan_outs(address: Address, topic: str, pull_count: int, line_count: int, rounds: int) -> list[FanOut]:
    """Hold `pull_count` pulls on one queue over `line_count` connections and wake them by a message, `rounds` times."""
    template, frame = PullTemplate(topic), send_frame(topic, 0, BODY)
    found = []
    with ExitStack() as stack:
        lines = [Line(address) for _ in range(line_count + 1)]
        for line in lines:
            stack.callback(line.close)
        sender, *pullers = lines
        send_first(sender, topic)
        for number in range(rounds):
            offset = number + 1
            burst = b"".join(template.frame(0, offset, one, HOLD_MS) for one in range(pull_count // line_count))
            probe = template.frame(0, offset, PROBE)
            for puller in pullers:
                puller.write(burst + probe)
            for puller in pullers:
                assert _next(puller).opaque == PROBE
            # Java's pull threads may answer the probe before they have held the last pulls.
            _hold(pullers, 0.02)
            found.append(_fan_out(sender, pullers, frame, pull_count))
    return found


def _fan_out(sender: Line, pullers: Sequence[Line], frame: bytes, pull_count: int) -> FanOut:
    lines = {puller.socket.fileno(): puller for puller in pullers}
    poller = select.epoll()
    for descriptor in lines:
        poller.register(descriptor, select.EPOLLIN)
    begun_ns = monotonic_ns()
    sender.write(frame)
    first_ns = last_ns = 0
    left = pull_count
    while left:
        ready = poller.poll(STALL_S)
        if not ready:
            raise ClientError(f"{left} of {pull_count} pulls were not woken")
        for descriptor, _events in ready:
            count = lines[descriptor].read_count()[0]
            last_ns = monotonic_ns()
            if count and not first_ns:
                first_ns = last_ns
            left -= count
    poller.close()
    expect_success(_next(sender), "a send")
    return FanOut((first_ns - begun_ns) / 1e6, (last_ns - begun_ns) / 1e6)


def _next(line: Line) -> Answer:
    while True:
        found = line.read()
        if found:
            (answer,) = found
            return answer
