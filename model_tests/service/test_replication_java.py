"""One log on both sides of the HA protocol: ours behind a real Java master, a real Java slave behind ours.

Each copy is equal to the byte, tables come along, and the name server leads clients to both.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from model_tests.conformance.java_broker import JavaUnavailableError, free_port, resolve, running
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields
from model_tests.support.present import present

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Address
from longpoll_runtime.files import RealFiles
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, Policy

pytestmark = [pytest.mark.peers, pytest.mark.long]

FILE_SIZE: Final = 1024 * 1024
STORE: Final = StoreConfig(commit_log_file_size=FILE_SIZE, index_slot_count=4000, index_entry_count=1000)
SETTINGS: Final = f"mappedFileSizeCommitLog={FILE_SIZE}\nmaxMessageSize=524288\n"
POLICIES: Final[dict[str, Policy]] = {"4.9.7": ROCKETMQ_4_9, "5.5.0": ROCKETMQ_5}


@pytest.fixture(scope="module", params=POLICIES)
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def class_path(version: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The jars; the tests are skipped where they cannot be had."""
    try:
        return resolve(tmp_path_factory.mktemp("maven"), version)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA BROKER NOT TRIED: {error}")


def send(client: RawClient, count: int, size: int = 20_000) -> int:
    """Send messages to queue 0 of T; the last answer's code."""
    code = -1
    for number in range(count):
        code = client.call(RequestCode.SEND_MESSAGE_V2, send_fields("T"), number.to_bytes(4) + bytes(size)).code
    return code


def first_files_equal(one: Path, other: Path, end: int) -> bool:
    """Whether two logs are equal up to `end`, in the files that both have."""
    names = sorted({path.name for path in one.iterdir()} & {path.name for path in other.iterdir()})
    stop = [min(max(end - int(name), 0), FILE_SIZE) for name in names]
    pairs = zip(names, stop, strict=True)
    return all((one / name).read_bytes()[:size] == (other / name).read_bytes()[:size] for name, size in pairs)


def pulled(client: RawClient, offset: int) -> Command:
    return client.call(RequestCode.PULL_MESSAGE, pull_fields("T", offset))


def test_ours_behind_a_java_master(
    class_path: str, version: str, tmp_path: Path, start_broker: StartBroker, connect: Connect
) -> None:
    """Log, topics, groups and offsets are the master's."""
    (tmp_path / "java").mkdir()
    settings = f"{SETTINGS}brokerRole=SYNC_MASTER\ninSyncReplicas=2\n"
    with running(class_path, tmp_path / "java", settings=settings) as java:
        # 5.5 asks nobody whether there is a slave: it waits, and says that its time was over.
        client = connect(java.address)
        alone = send(client, 1)
        assert alone == (ResponseCode.SLAVE_NOT_AVAILABLE if version == "4.9.7" else ResponseCode.FLUSH_SLAVE_TIMEOUT)
        config = BrokerConfig(
            broker_name="java-broker",
            role="SLAVE",
            broker_id=1,
            slave_read=True,
            name_servers="{}:{}".format(*java.name_server),
        )
        slave = start_broker(
            directory=str(tmp_path / "ours"), policy=POLICIES[version], config=config, store_config=STORE
        )
        wait_until(lambda: slave.store.visible_end("T", 0) == 1)
        # 5.5 stores offsets only of groups that it knows.
        client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b'{"groupName":"G"}')
        client.call(
            RequestCode.UPDATE_CONSUMER_OFFSET,
            {"topic": "T", "consumerGroup": "G", "queueId": "0", "commitOffset": "7"},
        )
        assert send(client, 120) == ResponseCode.SUCCESS
        # A SYNC_MASTER answers when a slave has it.
        assert slave.store.log_end > 2 * FILE_SIZE
        wait_until(lambda: slave.store.visible_end("T", 0) == 121)
        tables = present(slave.replicating.tables)
        before = tables.round_count
        wait_until(lambda: tables.round_count > before and slave.offsets.query("T", "G", 0) == 7)
        assert slave.topics.get("T") is not None
        records = records_of(pulled(connect(slave.address), 100))
        assert [bytes(record.body) for record in records] == [
            bytes(record.body) for record in records_of(pulled(client, 100))
        ][: len(records)]
        assert records
        route = connect(java.name_server).call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert "{}:{}".format(*slave.address).encode() in bytes(route.body)
        end = slave.store.log_end
        slave.stop()
        assert first_files_equal(tmp_path / "java" / "store" / "commitlog", tmp_path / "ours" / "commitlog", end)
    assert verify(RealFiles(), str(tmp_path / "ours")).problems == []


@pytest.fixture
def master(version: str, tmp_path: Path, start_broker: StartBroker) -> Callable[..., Broker]:
    """Start ours as a master on a port that has a free one behind it."""

    def start(**settings: Any) -> Broker:
        port = free_port((-2, 1))
        return start_broker(
            directory=str(tmp_path / "ours"),
            policy=POLICIES[version],
            config=BrokerConfig(broker_name="both", **settings),
            store_config=attrs.evolve(STORE),
            listen=("127.0.0.1", port),
        )

    return start


def ends_of(client: RawClient, topic: str) -> int:
    found = client.call(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"})
    return int((found.ext_fields or {}).get("offset", -1))


def test_a_java_slave(class_path: str, tmp_path: Path, master: Callable[..., Broker], connect: Connect) -> None:
    ours = master(role="SYNC_MASTER", in_sync_replicas=2, slave_timeout_ms=30_000)
    client = connect(ours.address)
    ours.topics.make_for_send("T", "TBW102", 4)
    ours.offsets.commit("T", "G", 0, 3)
    (tmp_path / "java").mkdir()
    name_server: Address = ours.name_server_address
    settings = (
        f"{SETTINGS}brokerRole=SLAVE\nbrokerId=1\nbrokerName=both\nnamesrvAddr=127.0.0.1:{name_server[1]}\n"
        "slaveReadEnable=true\n"
    )
    with running(class_path, tmp_path / "java", settings=settings) as java:
        replicator = present(ours.replicating.replicator)
        wait_until(lambda: bool(replicator.behind_bytes))
        assert send(client, 120) == ResponseCode.SUCCESS
        wait_until(lambda: set(replicator.behind_bytes.values()) == {0})
        slave = connect(java.address)
        wait_until(lambda: ends_of(slave, "T") == 120)
        asked = {"topic": "T", "consumerGroup": "G", "queueId": "0"}
        query = RequestCode.QUERY_CONSUMER_OFFSET
        wait_until(lambda: slave.call(query, asked).ext_fields == {"offset": "3"})
        # Its table of topics is copied every ten seconds, and until then it knows none.
        wait_until(lambda: pulled(slave, 110).code == ResponseCode.SUCCESS)
        records = records_of(pulled(slave, 110))
        assert [bytes(record.body)[:4] for record in records][:1] == [(110).to_bytes(4)]
        route = connect(name_server).call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
        assert f":{java.address[1]}".encode() in bytes(route.body)
        end = ours.store.log_end
        assert end > 2 * FILE_SIZE
        assert first_files_equal(tmp_path / "ours" / "commitlog", tmp_path / "java" / "store" / "commitlog", end)
