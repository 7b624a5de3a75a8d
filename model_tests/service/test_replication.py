"""A slave behind its master, through real sockets: the same log and queues, whatever ends a connection or a process."""

from __future__ import annotations

import json
import logging
import shutil
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import attrs
import pytest
from model_tests.conformance.java_broker import free_port
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.broker.stores import read_all
from model_tests.support.ports import closed_port
from model_tests.support.present import present
from model_tests.support.service import ScriptedMaster, copies_of, reasons

from longpoll_broker.broker import ANY_PORT, Broker
from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_broker.rocketmq.replication import follower, table_sync
from longpoll_broker.rocketmq.replication.replicator import Replicator
from longpoll_broker.shared.topics import GroupConfig, TopicConfig
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_runtime import Address
from longpoll_spec.errors import ConfigError
from longpoll_spec.policy import ROCKETMQ_4_9, ROCKETMQ_5, STRICT, Policy

TINY: StoreConfig = attrs.evolve(SMALL_STORE, commit_log_file_size=64 * 1024, message_size_max=32 * 1024)
"""Files that a few dozen messages fill."""
LONG_MS: Final = 600_000
"""What no passing test waits for."""
POLICIES = pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9, ROCKETMQ_5], ids=lambda policy: policy.name)


class Cluster:
    """A master and its slaves, each in a separate directory."""

    def __init__(self, start_broker: StartBroker, directory: Path, connect: Connect) -> None:
        self._start = start_broker
        self.directory = directory
        self._connect = connect

    def master(
        self, *, policy: Policy = STRICT, store: StoreConfig = TINY, listen: Address = ANY_PORT, **settings: Any
    ) -> Broker:
        config = BrokerConfig(**{"ha_port": 0, **settings})
        directory = str(self.directory / "master")
        return self._start(directory=directory, policy=policy, config=config, store_config=store, listen=listen)

    def slave(
        self, ha: Address, *, policy: Policy = STRICT, name: str = "slave", store: StoreConfig = TINY, **settings: Any
    ) -> Broker:
        """A broker that follows a master at this address."""
        given = {"role": "SLAVE", "broker_id": 1, "ha_master": f"{ha[0]}:{ha[1]}", "slave_read": True}
        config = BrokerConfig(**{**given, **settings})
        directory = str(self.directory / name)
        return self._start(directory=directory, policy=policy, config=config, store_config=store)

    def fill(self, broker: Broker, count: int, size: int = 100) -> None:
        client = self._connect(broker.address)
        for number in range(count):
            send_message(client, "T", number.to_bytes(4) + bytes(size))


@pytest.fixture
def cluster(start_broker: StartBroker, tmp_path: Path, connect: Connect, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr(follower, "RETRY_MS", 20)
    return Cluster(start_broker, tmp_path, connect)


def replicator_of(broker: Broker) -> Replicator:
    assert broker.replicating.replicator is not None
    return broker.replicating.replicator


def ha_of(broker: Broker) -> Address:
    return replicator_of(broker).address


def caught_up(slave: Broker, master: Broker) -> bool:
    behind = replicator_of(master).behind_bytes
    ends = {slave.store.dispatched_end, master.store.dispatched_end, master.store.log_end}
    return len(ends) == 1 and set(behind.values()) == {0}


def check_equal(slave: Broker, master: Broker) -> None:
    """The same messages in the same queues."""
    wait_until(lambda: caught_up(slave, master))
    assert slave.store.queues() == master.store.queues()
    for queue in master.store.queues():
        assert read_all(slave.store, *queue) == read_all(master.store, *queue)


@POLICIES
def test_a_slave_has_what_its_master_has(cluster: Cluster, connect: Connect, policy: Policy) -> None:
    master = cluster.master(policy=policy)
    cluster.fill(master, 20)
    slave = cluster.slave(ha_of(master), policy=policy)
    # As in Java, a slave that connects later begins at the last file.
    wait_until(lambda: caught_up(slave, master))
    cluster.fill(master, 60, 3000)
    check_equal(slave, master)
    assert master.store.log_end > 2 * TINY.commit_log_file_size
    slave.topics.put(TopicConfig("T"))
    reply = connect(slave.address).call(RequestCode.PULL_MESSAGE, pull_fields("T", 78))
    assert [bytes(record.body)[:4] for record in records_of(reply)] == [(58).to_bytes(4), (59).to_bytes(4)]


def test_a_slave_goes_on_where_it_stopped(cluster: Cluster) -> None:
    with closed_port() as first, closed_port() as second:
        master = cluster.master(ha_port=first[1])
        slave = cluster.slave(first, ha_port=second[1])
        third = cluster.slave(second, name="third", broker_id=2)
        cluster.fill(master, 10)
        check_equal(slave, master)
        slave.stop()
        cluster.fill(master, 30, 3000)
        master.stop()
        slave = cluster.slave(first, ha_port=second[1])
        assert slave.store.visible_end("T", 0) == 10
        master = cluster.master(ha_port=first[1])
        cluster.fill(master, 1)
        check_equal(slave, master)
        check_equal(third, slave)


@pytest.mark.parametrize(
    ("is_longer", "event", "reason"),
    [(True, "slave_closed", "so they differ"), (False, "master_lost", "no record and no blank")],
    ids=["longer", "other"],
)
def test_a_slave_with_another_log_takes_nothing(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, is_longer: bool, event: str, reason: str
) -> None:
    if is_longer:
        master = cluster.master()
        cluster.fill(master, 5)
        master.stop()
        shutil.copytree(cluster.directory / "master", cluster.directory / "slave")
    other = cluster._start(directory=str(cluster.directory / "slave"), store_config=TINY)
    cluster.fill(other, 3, 120)
    ends = other.store.log_end, other.store.visible_end("T", 0)
    other.stop()
    with caplog.at_level(logging.INFO):
        master = cluster.master()
        cluster.fill(master, 0 if is_longer else 50)
        slave = cluster.slave(ha_of(master))
        wait_until(lambda: any(reason in each for each in reasons(caplog, event)))
    assert (slave.store.log_end, slave.store.visible_end("T", 0)) == ends


@pytest.mark.parametrize(
    ("allowed", "is_one"),
    [("127.0.0.1", True), ("10.0.0.0/8; 127.0.0.0/8", True), ("10.0.0.0/8; 127.0.0.2", False)],
)
def test_slave_addresses(cluster: Cluster, caplog: pytest.LogCaptureFixture, allowed: str, is_one: bool) -> None:
    master = cluster.master(slave_addresses=allowed)
    cluster.fill(master, 1)
    with socket.create_connection(ha_of(master)) as slave:
        slave.settimeout(20)
        told = b""
        with suppress(ConnectionError):
            slave.sendall(bytes(8))
            told = slave.recv(1)
        assert bool(told) == is_one
    assert reasons(caplog, "slave_refused") == ([] if is_one else ["slaveAddresses does not have it"])


def test_settings_that_cannot_be_are_told(cluster: Cluster) -> None:
    with pytest.raises(ConfigError, match="haTransferBatchSize"):
        cluster.master(transfer_size=0)
    with pytest.raises(ConfigError, match="only a slave can follow"):
        cluster.master(ha_master="127.0.0.1:1")
    for bad in ("localhost", "10.0.0.1/8", "127.0.0.1,127.0.0.2"):
        with pytest.raises(ConfigError, match=r"slaveAddresses: .*write addresses or networks"):
            cluster.master(slave_addresses=bad)
    with pytest.raises(ConfigError, match="write HOST:PORT"):
        cluster.slave(("127.0.0.1", 0))


def test_tables_are_copied_and_a_slave_is_found_by_the_name_server(cluster: Cluster, connect: Connect) -> None:
    master = cluster.master()
    cluster.fill(master, 3)
    master.groups.put(GroupConfig("G", retry_max_times=3))
    master.offsets.commit("T", "G", 0, 2)
    master.shared.delays.put(3, 7)
    at = "{}:{}".format(*master.name_server_address)
    slave = cluster.slave(ha_of(master), ha_master="", name_servers=at)
    check_equal(slave, master)
    tables = present(slave.replicating.tables)
    wait_until(lambda: tables.round_count > 0)
    assert slave.topics.by_name == master.topics.by_name
    assert slave.groups.by_name == master.groups.by_name
    assert (slave.offsets.by_pair, slave.shared.delays.by_level) == ({"T@G": {0: 2}}, {3: 7})
    client = connect(master.name_server_address)
    addresses = {"0": "{}:{}".format(*master.address), "1": "{}:{}".format(*slave.address)}
    assert addresses_of(client) == addresses
    route = brokers_of(client, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert [data["brokerAddrs"] for data in route["brokerDatas"]] == [addresses]
    slave.stop()
    wait_until(lambda: list(addresses_of(client)) == ["0"])


ACCOUNTS: Final = "accounts:\n  - {accessKey: administrator, secretKey: 87654321, admin: true}\n"


def test_a_slave_signs_what_it_asks(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    accounts = cluster.directory / "plain_acl.yml"
    accounts.write_text(ACCOUNTS)
    master = cluster.master(acl_file=str(accounts))
    master.groups.put(GroupConfig("G"))
    at: dict[str, Any] = {
        "master": "{}:{}".format(*master.address),
        "name_servers": "{}:{}".format(*master.name_server_address),
    }
    slave = cluster.slave(ha_of(master), **at, access_key="administrator", secret_key="87654321")  # noqa: S106 - no secret
    tables, registrar = slave.replicating.tables, slave.replicating.registrar
    assert tables is not None
    assert registrar is not None
    wait_until(lambda: tables.round_count > 0 and registrar.registered_count > 0)
    assert "G" in slave.groups.by_name
    assert not reasons(caplog, "table_not_copied")
    cluster.slave(ha_of(master), name="other", **at, access_key="administrator", secret_key="12345678")  # noqa: S106
    wait_until(lambda: len(reasons(caplog, "table_not_copied")) >= 5 and bool(reasons(caplog, "not_registered")))
    assert "12345678" not in caplog.text


def brokers_of(client: RawClient, code: int, fields: dict[str, str] | None = None) -> dict[str, Any]:
    return dict(json.loads(bytes(client.call(code, fields).body)))


def addresses_of(client: RawClient) -> dict[str, str]:
    found = brokers_of(client, RequestCode.GET_BROKER_CLUSTER_INFO)["brokerAddrTable"]["broker-a"]["brokerAddrs"]
    return dict(found)


def test_a_table_that_changes_is_copied_again(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_sync, "COPY_MS", 10)
    master = cluster.master()
    slave = cluster.slave(ha_of(master), master="{}:{}".format(*master.address))
    master.groups.put(GroupConfig("G"))
    wait_until(lambda: "G" in slave.groups.by_name)
    slave.groups.put(GroupConfig("own"))
    master.topics.put(TopicConfig("later"))
    master.groups.remove("G")
    wait_until(lambda: slave.groups.by_name == master.groups.by_name)
    wait_until(lambda: slave.topics.get("later") is not None)
    master.stop()
    slave.offsets.commit("T", "G", 0, 5)
    assert slave.offsets.query("T", "G", 0) == 5


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (RequestCode.GET_ALL_TOPIC_CONFIG, b"not json"),
        (RequestCode.GET_ALL_TOPIC_CONFIG, b'{"topicConfigTable":{"T":7}}'),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, b'{"offsetTable":[]}'),
        (RequestCode.GET_ALL_DELAY_OFFSET, b'{"offsetTable":{"x":1}}'),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, b'{"subscriptionGroupTable":{"G":{}}}'),
    ],
)
def test_a_table_that_cannot_be_read_changes_nothing(cluster: Cluster, code: int, body: bytes) -> None:
    slave = cluster.slave(("127.0.0.1", 1))
    slave.topics.put(TopicConfig("T"))
    before = slave.topics.by_name.copy()
    copies = copies_of(slave)
    answers: dict[int, bytes] = {
        RequestCode.GET_ALL_CONSUMER_OFFSET: b'{"offsetTable":{"T@G":{0:4}}}',
        RequestCode.GET_ALL_DELAY_OFFSET: b'{"offsetTable":{1:9}}',
    }
    copies.copy(ScriptedMaster({**answers, code: body}))
    assert (copies.round_count, slave.topics.by_name) == (0, before)
    assert slave.offsets.query("T", "G", 0) == (None if code == RequestCode.GET_ALL_CONSUMER_OFFSET else 4)
    assert slave.shared.delays.by_level == ({} if code == RequestCode.GET_ALL_DELAY_OFFSET else {1: 9})


def send_now(cluster: Cluster, broker: Broker, connect: Connect, properties: str = "") -> int:
    return connect(broker.address).call(RequestCode.SEND_MESSAGE_V2, send_fields("T", 0, properties), b"x").code


@pytest.mark.parametrize("flushes", [False, True])
def test_a_sync_master_answers_when_a_slave_has_it(cluster: Cluster, connect: Connect, flushes: bool) -> None:
    store = attrs.evolve(TINY, flush_disk_sync=flushes)
    master = cluster.master(role="SYNC_MASTER", store=store, slave_timeout_ms=LONG_MS)
    assert send_now(cluster, master, connect) == ResponseCode.SLAVE_NOT_AVAILABLE
    assert send_now(cluster, master, connect, "WAIT\x01false") == ResponseCode.SUCCESS
    slave = cluster.slave(ha_of(master), store=store)
    wait_until(lambda: caught_up(slave, master))
    for count in range(3, 6):
        assert send_now(cluster, master, connect) == ResponseCode.SUCCESS
        assert slave.store.log_end == master.store.log_end
        assert master.store.visible_end("T", 0) == count


def ha_status(connect: Connect, broker: Broker) -> dict[str, Any]:
    answer = connect(broker.address).call(RequestCode.GET_BROKER_HA_STATUS)
    assert answer.code == ResponseCode.SUCCESS
    told: dict[str, Any] = json.loads(bytes(answer.body))
    return told


def test_master_and_slave_tell_how_far_they_are(cluster: Cluster, connect: Connect) -> None:
    master = cluster.master(slave_behind_bytes_max=1_000, ha_heartbeat_ms=20)
    alone = ha_status(connect, master)
    assert (alone["master"], alone["haConnectionInfo"], alone["inSyncSlaveNums"]) == (True, [], 0)
    slave = cluster.slave(ha_of(master))
    cluster.fill(master, 20)
    wait_until(lambda: caught_up(slave, master))
    end = master.store.log_end
    silent = socket.create_connection(ha_of(master))
    wait_until(lambda: len(ha_status(connect, master)["haConnectionInfo"]) == 2)
    told = ha_status(connect, master)
    assert (told["masterCommitLogMaxOffset"], told["inSyncSlaveNums"]) == (end, 1)
    one, other = told["haConnectionInfo"]
    assert one["addr"].startswith("127.0.0.1:")
    assert (one["slaveAckOffset"], one["diff"], one["inSync"], one["transferFromWhere"]) == (end, 0, True, end)
    assert other["addr"] == "{}:{}".format(*silent.getsockname())
    assert (other["slaveAckOffset"], other["diff"], other["inSync"]) == (-1, end + 1, False)
    assert (other["transferFromWhere"], other["transferredByteInSecond"]) == (-1, 0)
    silent.close()
    followed = ha_status(connect, slave)
    client_side = followed["haClientRuntimeInfo"]
    assert (followed["master"], followed["haConnectionInfo"], client_side["maxOffset"]) == (False, [], end)
    assert client_side["masterAddr"] == "{}:{}".format(*ha_of(master))
    assert client_side["lastReadTimestamp"] > 0 < client_side["lastWriteTimestamp"]
    # Greetings go on, and are counted a second after another.
    wait_until(lambda: ha_status(connect, slave)["haClientRuntimeInfo"]["transferredByteInSecond"] > 0)
    wait_until(lambda: ha_status(connect, master)["haConnectionInfo"][0]["transferredByteInSecond"] > 0)
    slave.stop()
    slave = cluster.slave(("127.0.0.1", 1), ha_master="")
    assert ha_status(connect, slave)["haClientRuntimeInfo"]["masterAddr"] is None


def test_5_counts_brokers_and_asks_nobody_whether_they_are_there(cluster: Cluster, connect: Connect) -> None:
    master = cluster.master(role="SYNC_MASTER", policy=ROCKETMQ_5)
    assert send_now(cluster, master, connect) == ResponseCode.SUCCESS
    master.stop()
    master = cluster.master(role="SYNC_MASTER", policy=ROCKETMQ_5, in_sync_replicas=2, slave_timeout_ms=50)
    assert send_now(cluster, master, connect) == ResponseCode.FLUSH_SLAVE_TIMEOUT
    slave = cluster.slave(ha_of(master), policy=ROCKETMQ_5)
    wait_until(lambda: caught_up(slave, master))
    slave.stop()


def test_the_port_of_java_slaves(cluster: Cluster, connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    port = free_port((-2,))
    master = cluster.master(listen=("127.0.0.1", port))
    assert connect(("127.0.0.1", port - 2)).call(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
    master.stop()
    with socket.create_server(("127.0.0.1", port - 2)):
        master = cluster.master(listen=("127.0.0.1", port))
    assert connect(master.address).call(RequestCode.GET_ALL_TOPIC_CONFIG).code == ResponseCode.SUCCESS
    assert "Java slaves cannot copy the table of topics" in caplog.text


def test_a_send_wakes_the_replicator(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the send is answered; else slaves get the message only when the replicator polls."""
    ends: list[int] = []
    master = cluster.master()
    monkeypatch.setattr(Replicator, "appended", lambda _self: ends.append(master.store.dispatchable_end))
    cluster.fill(master, 1)
    assert ends[-1] == master.store.dispatchable_end > 0
