"""A capture of the real Java broker's port and the proxy's record of the same minute: one verdict, the same pulls."""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
from model_tests.conformance.java_broker import JavaBroker, JavaUnavailableError, resolve, running
from model_tests.conformance.test_java_observed import QUEUES, judged, make_topic
from model_tests.service.observed import events_of

from longpoll_broker.testing.load import LoadPlan, LoadReport, drive
from longpoll_judge.contract.result import Result
from longpoll_observe import Observer
from longpoll_observe.capture import CaptureReport, read_captures
from longpoll_runtime.real import RealRuntime

BUFFER_KIB: Final = 64 * 1024
"""Of tcpdump: enough that it drops nothing on a busy machine."""
END_S: Final = 20.0
MESSAGES: Final = 3_000
LAST: Final = MESSAGES // QUEUES
"""The offset behind a queue's last message."""
TAKES: Final = 4
"""How often the minute is recorded where the machine was too busy for the capture's clock to be known."""
LATE_MS: Final = 1_000.0
"""Beyond what either observer cannot know, and well within the 5 s by which Java is late."""


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaBroker]:
    """A broker 4.9.7 whose port can be captured."""
    if shutil.which("tcpdump") is None or os.geteuid() != 0:
        pytest.skip("CAPTURES NOT TRIED: tcpdump is not installed, or this is not root")
    try:
        class_path = resolve(tmp_path_factory.mktemp("maven"))
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")
    with running(class_path, tmp_path_factory.mktemp("java") / "home") as broker:
        yield broker


@contextmanager
def capturing(port: int, file: Path) -> Iterator[None]:
    """Capture loopback, from when it listens; everything is written at the end."""
    words = [
        "tcpdump",
        "-i",
        "lo",
        "-U",
        "-Z",
        "root",
        "-B",
        str(BUFFER_KIB),
        "-w",
        str(file),
        "tcp",
        "port",
        str(port),
    ]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        assert "listening on" in said, said
        try:
            yield
            wait_until_written(port, file, process)
        finally:
            process.terminate()
            rest = process.stderr.read()
            process.wait(END_S)
    assert "\n0 packets dropped by kernel" in f"\n{rest}", rest


def wait_until_written(port: int, file: Path, process: subprocess.Popen[str]) -> None:
    """Return when a connection made now is in the file: what a stopped tcpdump has not read is lost, untold."""
    here = socket.inet_aton("127.0.0.1")
    with socket.create_connection(("127.0.0.1", port)) as last:
        packet = here + here + struct.pack(">HH", last.getsockname()[1], port)
    deadline_s = time.monotonic() + END_S
    while packet not in file.read_bytes():
        assert time.monotonic() < deadline_s, "the last connection is never in the file"
        with suppress(subprocess.TimeoutExpired):
            process.wait(0.05)
            raise AssertionError("tcpdump has ended")


def asked_and_told(history: Path) -> Counter[tuple[object, ...]]:
    """Every pull and what became of it, without moments and names of connections."""
    pulls = {
        event.request: (event.topic, event.queue, event.offset, event.group, event.expression)
        for event in events_of(history)
        if event.event == "request_received" and event.count_max >= 0
    }
    answers = {
        event.request: (event.code, event.offset_next, *event.offsets)
        for event in events_of(history)
        if event.event == "answer_sent"
    }
    return Counter((*asked, answers.get(request)) for request, asked in pulls.items())


def answered(told: Counter[tuple[object, ...]]) -> Counter[tuple[object, ...]]:
    """The pulls that have an answer."""
    return Counter({each: count for each, count in told.items() if each[-1] is not None})


def found(result: Result) -> Counter[tuple[object, ...]]:
    """What is violated, by property, queue and offset."""
    return Counter(
        (finding.property, finding.topic, finding.queue, finding.offsets.get("offset"))
        for finding in result.findings
        if finding.verdict == "violated"
    )


def recorded_twice(java: JavaBroker, by_proxy: Path, by_capture: Path, file: Path) -> tuple[LoadReport, CaptureReport]:
    """Record a load's minute by the proxy and by a capture of the broker's port."""
    with (
        capturing(java.address[1], file),
        Observer.start(RealRuntime(), brokers=[java.address], record_directory=str(by_proxy)) as proxy,
    ):
        (door,) = proxy.doors.values()
        make_topic(door, topic := f"captured-{uuid.uuid4().hex}")
        report = drive(RealRuntime(), door, LoadPlan(topic, message_count=MESSAGES, queue_count=QUEUES))
    assert list(report.problems) == []
    read = read_captures(RealRuntime(), [file], brokers=[java.address], record_directory=str(by_capture))
    print(read)  # noqa: T201
    return report, read


def places(directory: Path) -> Iterator[Path]:
    """A directory for each take."""
    for take in range(TAKES):
        place = directory / f"take-{take}"
        place.mkdir()
        yield place


@pytest.mark.peers
def test_a_capture_is_judged_as_the_proxys_record_of_the_same_minute(java: JavaBroker, tmp_path: Path) -> None:
    """The same pulls with the same answers, Java's late ones found in both, and nothing is missing."""
    takes = (
        (each, *recorded_twice(java, each / "proxy", each / "capture", each / "port.pcap")) for each in places(tmp_path)
    )
    # A machine that stands still for 25 ms between a sender and the capture looks like a clock that is set.
    even = next((take for take in takes if take[2].clock == "monotonic"), None)
    assert even is not None, f"the clock looked set in each of {TAKES} takes"
    place, report, read = even
    by_proxy, by_capture = place / "proxy", place / "capture"
    assert read.gaps == 0
    told, told_by_proxy = asked_and_told(by_capture), asked_and_told(by_proxy)
    assert answered(told) == answered(told_by_proxy)
    # Clients that end ask for what comes next, and hang up at once: not both need see that.
    assert {each[2] for each in (told - answered(told)) + (told_by_proxy - answered(told_by_proxy))} <= {LAST}
    verdicts = judged(by_proxy, LATE_MS), judged(by_capture, LATE_MS)
    assert [each.verdict for each in verdicts] == ["invalid", "invalid"]
    assert [each.gaps for each in verdicts] == [[], []]
    assert min(each.requests for each in verdicts) >= answered(told).total() >= report.pull_count
    # What is known less sharply convicts of no more.
    by_both = found(verdicts[0]) & found(verdicts[1])
    assert by_both == found(verdicts[1]) != Counter()
