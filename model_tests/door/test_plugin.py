"""The pytest plugin in a separate pytest run: its fixtures in files that a newcomer would write."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.judge.faults import plant
from model_tests.support.judge.histories import simulated, written
from model_tests.support.spec.cases import quick_if

import longpoll
from longpoll.pytest_plugin import BrokerOfTest, HistoryOfTest
from longpoll_runtime.host_pauses import HostPauseWatch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "embedding.md"
(SHOWN,) = re.findall(r"```python test_mine.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
BROKEN = """
from model_tests.support.judge.faults import plant


def test_broken(rocketmq_broker, rocketmq_client, rocketmq_topic, rocketmq_history, tmp_path):
    consumer = rocketmq_client.consumer(rocketmq_topic)
    rocketmq_client.producer.send(rocketmq_topic, b"hello")
    assert consumer.poll(timeout_s=30)
    rocketmq_broker.close()
    plant(rocketmq_history.directory, "answer_duplicated", tmp_path / "planted")
    for part in rocketmq_history.directory.iterdir():
        part.unlink()
    for part in (tmp_path / "planted").iterdir():
        part.rename(rocketmq_history.directory / part.name)
"""
ALONE = """
def test_nothing(rocketmq_history):
    pass
"""
MANY = """
import time
import pytest

BEGUN = []


@pytest.mark.parametrize("number", range(5))
def test_each_has_its_own(number, rocketmq_broker, rocketmq_topic):
    BEGUN.append((rocketmq_broker.name_server, rocketmq_topic))
    assert len(set(BEGUN)) == len(BEGUN)
    assert "each_has_its_own" in rocketmq_topic
"""

WRONG_ORDER = """
import pytest
import longpoll

ENDS = []


@pytest.fixture
def producer(rocketmq_broker):
    with longpoll.Producer(rocketmq_broker.name_server) as producer:
        yield producer
        producer.send("After", b"the broker still serves")
    ENDS.append("producer")


def test_order(producer, rocketmq_history):
    pass


def test_other_order(rocketmq_history, producer):
    assert ENDS == ["producer"]
"""
SHARED = """
import asyncio
import longpoll_broker.config  # no fixture has a package's name
import pytest
import longpoll
from longpoll.pytest_plugin import broker_fixture

at_once = longpoll_broker.config.BrokerConfig(transaction_check_interval_ms=100, transaction_timeout_ms=0)
rocketmq_broker = broker_fixture("session", record=True, config=at_once)
SEEN = set()


@pytest.mark.parametrize("number", range(3))
def test_shared(number, rocketmq_broker, rocketmq_client, rocketmq_topic, rocketmq_history):
    SEEN.add(rocketmq_broker.name_server)
    assert len(SEEN) == 1

    async def told():
        async with rocketmq_client.async_producer() as producer:
            await producer.send(rocketmq_topic, b"hello")
        async with rocketmq_client.async_consumer(rocketmq_topic) as consumer:
            return [message.body for message in await consumer.poll(timeout_s=30)]

    assert asyncio.run(told()) == [b"hello"]


def test_transaction(rocketmq_broker, rocketmq_client, rocketmq_topic):
    states = longpoll.TransactionState
    with longpoll.TransactionProducer(
        rocketmq_broker.name_server, group="sellers", check_transaction=lambda message: states.COMMIT
    ) as producer:
        producer.send(rocketmq_topic, b"asked", lambda: states.UNKNOWN)
        assert rocketmq_client.consumer(rocketmq_topic).poll(timeout_s=30)[0].body == b"asked"
"""
FAULTS = """
import time

import pytest
import longpoll


def fails(producer, topic, timeout_s):
    with pytest.raises(longpoll.LongpollError) as caught:
        producer.send(topic, b"x", timeout_s=timeout_s)
    assert caught.value.retriable
    return caught.value


def test_faults(rocketmq_broker, rocketmq_topic, rocketmq_client):
    producer = rocketmq_client.producer
    producer.send(rocketmq_topic, b"before")
    rocketmq_broker.pause()
    assert isinstance(fails(producer, rocketmq_topic, 0.3), TimeoutError)
    rocketmq_broker.resume()
    producer.send(rocketmq_topic, b"resumed")
    rocketmq_broker.stop()
    assert isinstance(fails(producer, rocketmq_topic, 60), ConnectionError)
    rocketmq_broker.restart()
    after = producer.send(rocketmq_topic, b"after")
    assert after.queue_offset >= 2


def test_relay(rocketmq_broker, rocketmq_topic):
    with rocketmq_broker.relay() as relay, longpoll.Producer(relay.name_server) as producer:
        producer.send(rocketmq_topic, b"through")
        with pytest.raises(longpoll.UserError, match="delay_s is -1; pass 0 or more seconds"):
            relay.delay(-1)
        relay.delay(0.1)
        begun = time.monotonic()
        producer.send(rocketmq_topic, b"later")
        assert time.monotonic() - begun >= 0.2
        relay.black_hole()
        assert isinstance(fails(producer, rocketmq_topic, 0.3), TimeoutError)
        relay.heal()
        relay.cut()
        assert isinstance(fails(producer, rocketmq_topic, 60), ConnectionError)
        relay.heal()
        producer.send(rocketmq_topic, b"healed")
"""
PAUSED = """
import ctypes

from model_tests.support.broker.raw_client import RawClient, pull_fields


def test_paused(rocketmq_broker, rocketmq_client, rocketmq_topic, rocketmq_history):
    rocketmq_client.producer.send(rocketmq_topic, b"hello")
    host, _colon, port = rocketmq_broker.address.rpartition(":")
    with RawClient((host, int(port))) as client:
        opaque = client.send(11, pull_fields(rocketmq_topic, 1, timeout_ms=200))
        client.call(30, {"topic": rocketmq_topic, "queueId": "0"})  # answered after the pull is held
        # It keeps the interpreter: no thread of this process runs, as on a machine that stands still.
        ctypes.PyDLL(None).usleep(900_000)
        assert client.reply(opaque) is not None
"""
UNSEEN = """
from longpoll_runtime.host_pauses import HostPauseWatch

HostPauseWatch.stalled_ms = lambda *_times: 0.0
"""


def run(directory: Path, *sources: str, words: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    for number, source in enumerate(sources):
        (directory / f"test_mine_{number}.py").write_text(source)
    call = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", "-rA", *words, str(directory)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(call, cwd=directory, env=environment, capture_output=True, text=True, check=False)


def test_the_file_on_the_page_passes_and_a_test_without_a_pull_is_unknown(tmp_path: Path) -> None:
    """The page's ten lines start their own broker, whose history is valid. Without a pull the verdict is unknown."""
    done = run(tmp_path, SHOWN, ALONE)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "the history is valid: " in done.stdout
    assert "the history is unknown: " in done.stdout
    assert len([line for line in SHOWN.splitlines() if line.strip()]) <= 10


def test_brokers_that_run_elsewhere_are_used(tmp_path: Path) -> None:
    with longpoll.Broker(store_config=SMALL_STORE) as broker:
        done = run(tmp_path, SHOWN, words=[f"--longpoll-name-server={broker.name_server}"])
        with longpoll.Admin(broker.name_server) as admin:
            names = admin.topic_names()

    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search("the history is (valid|unknown): ", done.stdout)
    assert [name for name in names if name.startswith("test_held_pull")]


def test_a_violation_is_an_error_of_the_test(tmp_path: Path) -> None:
    done = run(tmp_path, BROKEN)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "ViolationError: the broker violated its promises:" in done.stdout
    assert "answered_once: " in done.stdout
    assert re.search(r"longpoll judge \S+longpoll-history", done.stdout)


@pytest.mark.parametrize(
    ("fault", "ends_before_ms", "verdict"),
    [
        ("wake_late", 0, "valid"),
        ("wake_late", 160, "invalid"),
        ("deadline_missed", 0, "valid"),
        ("deadline_missed", 70, "invalid"),
        ("answer_duplicated", 0, "invalid"),
    ],
)
def test_only_a_pause_after_the_deadline_counts(fault: str, ends_before_ms: int, verdict: str, tmp_path: Path) -> None:
    """A host pause of 200 ms excuses a late wake or answer only if it falls into the time after the deadline."""
    plant(written(simulated(1), tmp_path / "history"), fault, tmp_path / "late")
    late, *_more = longpoll.judge(tmp_path / "late").findings
    end_ns = int(late.window_end_ms * 1e6) - ends_before_ms * 1_000_000
    watch = HostPauseWatch()
    watch.note_sleep(end_ns - 200_000_000, end_ns)
    broker = BrokerOfTest("", longpoll.RealRuntime(), watch=watch)
    result = HistoryOfTest(tmp_path / "late", broker).judge()

    assert result.verdict == verdict
    assert (result.thresholds["wake_ms"] > 100) == (verdict == "valid")


def test_a_broker_may_be_late_on_a_machine_that_paused(tmp_path: Path) -> None:
    done = run(tmp_path, PAUSED)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the history is valid: " in done.stdout

    (tmp_path / "conftest.py").write_text(UNSEEN)
    done = run(tmp_path, PAUSED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "answered_by_deadline: " in done.stdout


@pytest.mark.parametrize("policy", quick_if(["strict", "rocketmq-4.9"], lambda policy: policy != "strict"))
def test_each_test_has_its_own_broker(policy: str, tmp_path: Path) -> None:
    done = run(tmp_path, MANY, words=[f"--longpoll-policy={policy}"])

    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_the_broker_ends_last_in_whichever_order_a_test_names_its_fixtures(tmp_path: Path) -> None:
    """The user's clients close before the history is judged, without a warning."""
    done = run(tmp_path, WRONG_ORDER)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert done.stdout.count("the history is unknown: ") == 2


def test_a_broker_is_shared_and_fails_on_request(tmp_path: Path) -> None:
    done = run(tmp_path, SHARED, FAULTS)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 passed" in done.stdout


def test_an_unknown_policy_is_reported(tmp_path: Path) -> None:
    done = run(tmp_path, MANY, words=["--longpoll-policy=stirct"])

    assert done.returncode == 1
    assert "did you mean 'strict'?" in done.stdout
