"""The C++ client gets each message of our broker, directly and through the recording proxy."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from model_tests.conformance.cpp_client import HOLD_MS, RealClientReport, make_report, run_real_client, why_missing
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.client_scenarios import new_topic
from model_tests.support.broker.commands import serving

from longpoll_broker.broker import Broker
from longpoll_judge.run.pipeline import judge
from longpoll_observe import Observer
from longpoll_runtime.real import RealRuntime

COUNT, SINGLE_COUNT = 10_000, 50

needs_client = pytest.mark.skipif(why_missing() is not None, reason=f"REAL CLIENT NOT TRIED: {why_missing()}")


@pytest.fixture(params=["strict", "rocketmq-4.9"])
def name_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The name server of a `longpoll serve` under each policy."""
    with serving("--store", str(tmp_path / "store"), "--policy", request.param) as ready:
        yield ready["name-server"]


@pytest.mark.peers
@needs_client
def test_the_real_client_gets_each_message_once_in_order_and_at_once(name_server: str) -> None:
    """10,000 messages with tags, keys and properties through 8 queues; 50 single ones long before their hold ends."""
    with new_topic(name_server, 8) as topic:
        report = run_real_client(name_server, topic=topic, count=COUNT, single_count=SINGLE_COUNT)
    print(f"single messages to a held consumer: {report.as_json()}")  # noqa: T201 - the figure that the test is run for
    assert report.is_right, report
    assert report.sent == report.received == COUNT + SINGLE_COUNT
    assert len(report.single_ms) == SINGLE_COUNT
    assert report.single_ms_max < HOLD_MS / 2


@pytest.mark.peers
@needs_client
def test_the_real_client_twice_with_one_topic_and_two_groups(name_server: str) -> None:
    """A second group begins at the first message too, so its run finds the first run's messages as well."""
    topic = f"twice-{uuid.uuid4().hex}"
    first = run_real_client(name_server, topic=topic, group="first", count=50, single_count=5)
    second = run_real_client(name_server, topic=topic, group="second", count=50, single_count=5)
    assert first.is_right
    assert not first.sent_again
    assert second.received == 2 * second.sent
    assert len(second.sent_again) == second.sent
    assert not second.repeated


def a_run() -> tuple[list[tuple[str, str, int]], list[tuple[str, str, int, int, int]]]:
    """A faultless run of four bulk messages and two single ones."""
    sent = [(f"m{number}", "red", number * 10_000_000) for number in range(6)]
    received = [(f"m{number}", "red", number % 2, number // 2, number * 10_000_000 + 1_500_000) for number in range(6)]
    return sent, received


def faults(report: RealClientReport) -> set[str]:
    """The names of what is not empty."""
    names = ("missing", "repeated", "stored_twice", "wrong_labels", "out_of_order")
    return {name for name in names if getattr(report, name)}


def test_a_faultless_run_is_right() -> None:
    sent, received = a_run()
    report = make_report(sent, received, 4)
    assert report.is_right
    assert (report.single_ms_median, report.single_ms_max, len(report.single_ms)) == (1.5, 1.5, 2)


def test_every_planted_fault_is_named() -> None:
    """A lost, a repeated, a wrongly tagged, a swapped and a late message each make the report wrong, by name."""
    sent, received = a_run()
    assert faults(make_report(sent, received[:-1], 4)) == {"missing"}
    assert faults(make_report(sent, [*received, received[5]], 4)) == {"repeated"}
    assert faults(make_report(sent, [("m0", "blue", 0, 0, 0), *received[1:]], 4)) == {"wrong_labels"}
    assert faults(make_report(sent, [received[2], received[1], received[0], *received[3:]], 4)) == {"out_of_order"}
    twice = [*received, ("m5", "red", 1, 3, 60_000_000)]
    assert faults(make_report(sent, twice, 4, [1, 2, 3, 4, 5, 6, 6])) == {"stored_twice"}
    late = (*received[5][:4], received[5][4] + HOLD_MS * 1_000_000)
    report = make_report(sent, [*received[:5], late], 4)
    assert faults(report) == set()
    assert not report.is_right


def test_a_machine_without_the_client_is_told_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    reason = why_missing()
    assert reason is not None
    assert "x86-64" in reason


OBSERVED_COUNT, OBSERVED_SINGLE_COUNT = 1000, 10
ALLOWED_MS = 1_000.0


@pytest.mark.peers
@pytest.mark.skipif(why_missing() is not None, reason=f"REAL CLIENT NOT TRIED: {why_missing()}")
def test_a_real_client_does_not_notice_and_is_seen(tmp_path: Path) -> None:
    """Only the name server's address is the proxy's; every message passes it once, and the verdict is valid."""
    history = tmp_path / "history"
    with (
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE) as broker,
        Observer.start(
            RealRuntime(), brokers=[], name_server=broker.name_server_address, record_directory=str(history)
        ) as proxy,
    ):
        assert proxy.name_server_address is not None
        report = run_real_client(
            "{}:{}".format(*proxy.name_server_address), count=OBSERVED_COUNT, single_count=OBSERVED_SINGLE_COUNT
        )
        (seen,) = proxy.totals.values()
        assert seen.unreadable == 0
    assert report.is_right, report
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=ALLOWED_MS)
    print(result.verdict, result.events, result.latency, result.gaps)  # noqa: T201 - the figures the test is run for
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    acknowledged = sum(part.read_bytes().count(b'"message_acknowledged"') for part in history.glob("part-*.ndjson"))
    assert acknowledged == OBSERVED_COUNT + OBSERVED_SINGLE_COUNT


@pytest.mark.parametrize(
    ("places", "born_ms", "is_right", "is_wrong"),
    [
        ([(0, 0), (0, 1)], [7, 8], True, False),
        ([(0, 0), (0, 0), (0, 1)], [7, 7, 8], False, False),
        ([(0, 0), (0, 1), (0, 2)], [7, 3_007, 8], True, False),
        ([(0, 0), (0, 1), (0, 2)], [7, 7, 8], False, True),
        ([(0, 0)], [7], False, True),
    ],
    ids=["once", "repeated", "sent again by the client", "stored twice", "missing"],
)
def test_each_message_comes_at_least_once(
    places: list[tuple[int, int]], born_ms: list[int], is_right: bool, is_wrong: bool
) -> None:
    """The client's own resends are not the broker's fault, and repeats from one place prove none."""
    bodies = ["m0", "m1"] if len(places) < 3 else ["m0", "m0", "m1"]
    received = [(body, "", *place, 1) for body, place in zip(bodies, places, strict=False)]
    report = make_report([("m0", "", 0), ("m1", "", 0)], received, 1, born_ms)
    assert (report.is_right, report.is_wrong) == (is_right, is_wrong)
