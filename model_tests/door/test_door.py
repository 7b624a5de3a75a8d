"""`import longpoll`: what it gives is there, typed and light, and leaves nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import pytest
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.raw_client import RawClient

import longpoll
from longpoll.options.values import address_of
from longpoll_protocol.codes import RequestCode, ResponseCode

PAGE = Path(__file__).parents[2] / "docs" / "embedding.md"
SNIPPETS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
HEAVY = ("numpy", "z3", "pyspark", "pyarrow", "hypothesis", "pytest", "msgspec", "click", "longpoll_broker", "socket")


def left() -> tuple[int, int, list[str]]:
    stores = sorted(path.name for path in Path(tempfile.gettempdir()).glob("longpoll-store-*"))
    return threading.active_count(), len(list(Path("/proc/self/fd").iterdir())), stores


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_snippets_of_the_page_run(capsys: pytest.CaptureFixture[str]) -> None:
    for snippet in SNIPPETS:
        exec(compile(snippet, str(PAGE), "exec"), {})  # noqa: S102 - our own page
    printed = capsys.readouterr().out

    assert len(SNIPPETS) == 3
    assert "stored at 0 by 127.0.0.1:" in printed
    assert "unknown []" in printed
    assert "violated after" in printed
    assert "PullRequestHoldService" in printed


def test_every_name_is_there_and_nothing_else() -> None:
    assert set(longpoll.__all__) <= set(dir(longpoll))
    assert all(getattr(longpoll, name) is not None for name in longpoll.__all__)
    assert issubclass(longpoll.UserError, longpoll.LongpollError)
    with pytest.raises(AttributeError, match="'longpoll' has no attribute 'brokr'"):
        getattr(longpoll, "brokr")  # noqa: B009 - what a user's slip does


def test_the_door_is_light() -> None:
    """Nothing heavy is imported before it is asked for; an import that is planted is seen."""
    script = "import sys, longpoll{}; print([name for name in {!r} if name in sys.modules])"
    for planted, found in (("", []), ("; longpoll.Broker", ["msgspec", "longpoll_broker", "socket"])):
        made = script.format(planted, HEAVY)
        done = subprocess.run([sys.executable, "-c", made], capture_output=True, text=True, check=True, timeout=60)
        assert done.stdout.strip() == str(found)


def test_nothing_is_left_of_a_broker() -> None:
    """No thread, descriptor or store, however often it is closed; what was sent was there until then."""
    with longpoll.Broker(store_config=SMALL_STORE):
        pass  # what a process opens once stays open
    before = left()
    with longpoll.Broker(store_config=SMALL_STORE) as broker:
        with longpoll.Producer(broker.name_server) as producer:
            assert producer.send("T", b"hello").queue_offset == 0
        assert left() > before
    broker.close()

    wait_until(lambda: left() == before)
    assert broker.record_trouble == ""


def test_a_name_server_stands_alone() -> None:
    """It knows no topic until a broker registers, forgets it with its connection, and leaves nothing behind."""
    with longpoll.NameServer():
        pass  # what a process opens once stays open
    before = left()
    with longpoll.NameServer() as server:
        with RawClient(address_of(server.address)) as client, RawClient(address_of(server.address)) as broker:
            question = RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}
            assert client.call(*question).code == ResponseCode.TOPIC_NOT_EXIST
            fields = {"brokerName": "b", "brokerAddr": "127.0.0.1:1", "clusterName": "C", "brokerId": "0"}
            topics = {"T": {"topicName": "T", "readQueueNums": 1, "writeQueueNums": 1, "perm": 6}}
            table = {"topicConfigSerializeWrapper": {"topicConfigTable": topics, "dataVersion": {"counter": 1}}}
            registered = broker.call(
                RequestCode.REGISTER_BROKER, fields | {"haServerAddr": ""}, json.dumps(table).encode()
            )
            assert registered.code == ResponseCode.SUCCESS
            assert client.call(*question).code == ResponseCode.SUCCESS
            assert json.loads(bytes(client.call(RequestCode.GET_BROKER_CLUSTER_INFO).body))["clusterAddrTable"] == {
                "C": ["b"]
            }
            broker.close()
            wait_until(lambda: client.call(*question).code == ResponseCode.TOPIC_NOT_EXIST)
        with pytest.raises(longpoll.UserError, match="cannot listen"):
            longpoll.NameServer(port=int(server.address.rpartition(":")[2]))
    server.close()
    wait_until(lambda: left() == before)


def test_a_store_of_ones_own_stays(tmp_path: Path) -> None:
    for offset in range(2):
        with (
            longpoll.Broker(tmp_path / "store", policy="rocketmq-4.9", store_config=SMALL_STORE) as broker,
            longpoll.Producer(broker.name_server) as producer,
        ):
            assert producer.send("T", b"hello", queue_id=0).queue_offset == offset


def test_a_mistake_leaves_nothing_either(tmp_path: Path) -> None:
    """A port that is taken, a policy that is none, a store that is in use: each in a sentence."""
    with longpoll.Broker(tmp_path / "store", store_config=SMALL_STORE) as broker:
        before = left()
        port = int(broker.address.rpartition(":")[2])
        for wrong, said in (
            (partial(longpoll.Broker, port=port), "cannot listen on 127.0.0.1"),
            (partial(longpoll.Broker, policy="stirct"), "unknown policy 'stirct'"),
            (partial(longpoll.Broker, tmp_path / "store"), "in use"),
        ):
            with pytest.raises(longpoll.UserError, match=said):
                wrong(store_config=SMALL_STORE)
            assert left() == before


def test_what_was_recorded_is_judged(tmp_path: Path) -> None:
    """A held pull that was answered in time makes a history valid, seen from inside and by the proxy."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    with (
        longpoll.Broker(store_config=SMALL_STORE, record=inside) as broker,
        longpoll.observe(record=outside, name_server=broker.name_server) as observer,
    ):
        assert observer.name_server_address is not None
        served = "{}:{}".format(*observer.name_server_address)
        with longpoll.Producer(served) as producer:
            producer.send("T", b"first")
        with longpoll.PullConsumer(served, group="group", topics="T") as consumer:
            assert [message.body for message in consumer.poll(timeout_s=30)] == [b"first"]

    assert longpoll.judge(inside).verdict == "valid"
    assert longpoll.judge(outside).verdict in {"valid", "unknown"}


def test_the_law_is_asked() -> None:
    found = longpoll.check("strict", properties=["answered_once", "no_lost_wakeup"])
    broken = longpoll.check("strict+recheck_after_hold=none", properties=["no_lost_wakeup"])
    assert broken.verdicts[0].verdict == "violated"

    assert {verdict.verdict for verdict in found.verdicts} == {"holds"}
    assert longpoll.prove("strict", requests=1, properties=["answered_once"]).whole == "proved"
    for wrong in (
        lambda: longpoll.check("stirct"),
        lambda: longpoll.check(properties=["nope"]),
        lambda: longpoll.check(bounds="huge"),
        lambda: longpoll.prove(properties=["nope"]),
        lambda: longpoll.explain("lp1.nonsense"),
        lambda: longpoll.judge("/nowhere/at/all"),
        lambda: longpoll.observe(record="/nowhere/at/all"),
    ):
        with pytest.raises(longpoll.UserError):
            wrong()
