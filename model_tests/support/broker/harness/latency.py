"""Measures when a held pull is answered: after a message, among a thousand pulls, and at its deadline.

One process, one thread. The clock is read just before a write and just after a read, so every figure includes the
harness's share, which `round_trips` with the trivial server shows.
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
"""How long before its message a pull is sent, so that it is held by then, even by Java's pull threads."""
PROBE: Final = 2_000_000_000
"""The opaque of a pull that only causes an answer."""


def percentile(ascending: Sequence[float], share: float) -> float:
    """Returns the value that this share of the values does not exceed."""
    return ascending[min(len(ascending) - 1, int(share * len(ascending)))]


def round_trips(address: Address, topic: str, rounds: int) -> list[float]:
    """Returns the times of small requests with their answers, ms, ascending."""
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
    """Send a topic's first message and wait until it is visible; returns the size of its record."""
    expect_success(line.call(send_frame(topic, 0, BODY)), "a send")
    while True:
        found = line.call(PullTemplate(topic).frame(0, 0, PROBE))
        if found.code == ResponseCode.SUCCESS:
            return found.body_size


def _hold(lines: Sequence[Line], seconds: float) -> None:
    """Leave the lines' pulls time to be held; raises ClientError if one is answered already."""
    # A broker does not report that it holds a pull, so this is a paced load.
    if select.select([line.socket for line in lines], [], [], seconds)[0]:
        raise ClientError("a pull was answered before its message was sent")


def wakes(address: Address, topic: str, rounds: int, *, seed: int = 0) -> list[float]:
    """Returns the times from a send's write to the answer of its waiting pull, ms, ascending."""
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
    """Like `wakes`, each time just after the first message to every queue of a new topic on another connection.

    A first message creates its queue's files. Returns the times from the first write to the held pull's answer, ms,
    ascending.
    """
    sender, puller, other = Line(address), Line(address), Line(address)
    template, frame = PullTemplate(topic), send_frame(topic, 0, BODY)
    send_first(sender, topic)
    taken = []
    for number, new_topic in enumerate(new_topics):
        firsts = b"".join(send_frame(new_topic, queue, BODY) for queue in range(queue_count))
        puller.write(template.frame(0, number + 1, number, HOLD_MS) + template.frame(0, 0, PROBE))
        assert _next(puller).opaque == PROBE
        # A probe may overtake the pull in Java's pull threads.
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
    """Returns by how many ms pulls without messages are answered after their earliest deadline, ascending."""
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
    """One message to many pulls, ms from the send's write."""

    first_ms: float
    last_ms: float


def fan_outs(address: Address, topic: str, pull_count: int, line_count: int, rounds: int) -> list[FanOut]:
    """Hold `pull_count` pulls on one queue over `line_count` connections and send a message, `rounds` times."""
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
            # A probe may overtake the last pulls in Java's pull threads.
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
