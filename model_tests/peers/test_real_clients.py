"""The real Java, Go, Node and C++ clients work with our broker as with Java's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest
import trustme
from model_tests.peers.real_clients import CLIENTS, Client, ClientUnavailableError, Received, faults, play, refused
from model_tests.support.broker.client_scenarios import dead_letters, new_topic

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_client import Admin, Credentials, ReceivedMessage
from longpoll_judge.run.pipeline import judge
from longpoll_observe import Observer
from longpoll_runtime.real import RealRuntime, server_context
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

COUNT = 10_000
ALLOWED_MS = 1_000.0
RUNTIME = RealRuntime()


@pytest.fixture(scope="module")
def name_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    store = str(tmp_path_factory.mktemp("store"))
    with Broker.start(RUNTIME, store, config=BrokerConfig(property_filter=True)) as broker:
        yield "{}:{}".format(*broker.name_server_address)


_READY: dict[str, Client] = {}


def client_of(name: str, directory: Path) -> Client:
    """Return a client, built at its first use; a missing tool skips the test with the reason."""
    if name not in _READY:
        try:
            _READY[name] = CLIENTS[name](directory)
        except ClientUnavailableError as error:
            pytest.skip(f"REAL {name.upper()} CLIENT NOT TRIED: {error}")
    return _READY[name]


@pytest.fixture
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Client:
    return client_of(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", CLIENTS, indirect=True)
def test_ten_thousand_messages_come_exactly_once_in_queue_order(client: Client, name_server: str) -> None:
    with new_topic(name_server) as topic:
        received = play(client, name_server, topic, "bulk", COUNT)
    assert faults(received, range(COUNT)) == set()


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
@pytest.mark.parametrize("client", ["cpp"], indirect=True)
def test_a_consumer_behind_the_proxy_works_and_is_recorded(client: Client, policy: Policy, tmp_path: Path) -> None:
    """The client knows only the proxy's name server, every message wakes a held pull, and the verdict is valid."""
    history = tmp_path / "history"
    with (
        Broker.start(RUNTIME, str(tmp_path / "store"), policy=policy) as broker,
        Observer.start(
            RUNTIME, brokers=[], name_server=broker.name_server_address, record_directory=str(history)
        ) as proxy,
        new_topic("{}:{}".format(*broker.name_server_address)) as topic,
    ):
        assert proxy.name_server_address is not None
        received = play(client, "{}:{}".format(*proxy.name_server_address), topic, "single", 100)
        (seen,) = proxy.totals.values()
        assert seen.unreadable == 0
    assert faults(received, range(100)) == set()
    result = judge([history], engine="local", wake_ms=ALLOWED_MS, late_ms=6 * ALLOWED_MS)
    assert (result.verdict, result.findings, result.gaps) == ("valid", [], [])
    acknowledged = sum(part.read_bytes().count(b'"message_acknowledged"') for part in history.glob("part-*.ndjson"))
    assert acknowledged == 100


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["java", "go"], indirect=True)
def test_an_orderly_listener_gets_each_queue_in_order(client: Client, name_server: str) -> None:
    with new_topic(name_server) as topic:
        received = play(client, name_server, topic, "orderly", 800)
    assert faults(received, range(800)) == set()
    assert {message.queue_offset % 50 for message in received if message.reconsume_times} == {7}


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["java", "go"], indirect=True)
def test_an_sql_filter_delivers_the_matching_messages(client: Client, name_server: str) -> None:
    sql = "number BETWEEN 100 AND 149 AND TAGS = 'red'"
    wanted = [number for number in range(100, 150) if number % 3 == 0]
    with new_topic(name_server) as topic:
        received = play(client, name_server, topic, "sql", 400, expected=len(wanted), sql=sql)
    assert faults(received, wanted) == set()


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["java", "go"], indirect=True)
def test_a_failing_message_is_retried_and_becomes_a_dead_letter(client: Client, name_server: str) -> None:
    """The message is delivered twice more, at intervals of a second, and then our own client reads it from `%DLQ%`."""
    letters: list[ReceivedMessage] = []
    with new_topic(name_server) as topic:

        def read() -> None:
            letters.extend(dead_letters(name_server, f"{topic}-retry"))

        received = play(client, name_server, topic, "retry", 1, expected=3, then=read)
    assert [message.reconsume_times for message in received] == [0, 1, 2]
    (dead,) = letters
    assert (dead.body, dead.tag, dead.keys, dead.properties["number"]) == (b"message-0", "red", ("key-0",), "0")


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["java"], indirect=True)
def test_transactions_of_the_java_client_are_checked_and_ended(client: Client, tmp_path: Path) -> None:
    """Of thirty messages exactly those arrive that the Java client committed, either at once or after a check-back."""
    config = BrokerConfig(transaction_timeout_ms=2_000, transaction_check_interval_ms=500)
    wanted = [number for number in range(30) if number % 3 == 0 or (number % 3 == 2 and number % 9 != 8)]
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=config) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        with new_topic(name_server) as topic:
            received = play(client, name_server, topic, "transaction", 30, expected=len(wanted))
    assert {int(message.number) for message in received} == set(wanted)
    assert faults(received, wanted) <= {"repeated"}


ACCOUNTS = """
accounts:
  - accessKey: peers-key
    secretKey: peers-secret
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - guarded=PUB|SUB
      - TBW102=PUB|SUB
"""
ADMINISTRATOR = """
  - accessKey: administrator
    secretKey: 87654321
    admin: true
"""


@pytest.mark.peers
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["java", "go"], indirect=True)
def test_a_client_with_the_right_key_passes_and_one_with_a_wrong_one_is_refused(client: Client, tmp_path: Path) -> None:
    accounts = tmp_path / "plain_acl.yml"
    accounts.write_text(ACCOUNTS + ADMINISTRATOR)
    config = BrokerConfig(acl_file=str(accounts))
    with Broker.start(RUNTIME, str(tmp_path / "store"), config=config) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        with Admin(name_server, credentials=Credentials("administrator", "87654321")) as admin:
            admin.create_topic("guarded", 8)
        received = play(client, name_server, "guarded", "bulk", 400, account=("peers-key", "peers-secret"))
        assert faults(received, range(400)) == set()
        said = refused(client, name_server, "guarded", "peers-key", "another-secret")
    assert "Check signature failed for accessKey=peers-key" in said


@pytest.mark.peers
@pytest.mark.timeout(600)
def test_the_java_client_speaks_tls_to_our_broker(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "server.pem"))
    issued.private_key_pem.write_to_path(str(tmp_path / "server.key"))
    runtime = RealRuntime(server_tls=server_context(str(tmp_path / "server.pem"), str(tmp_path / "server.key")))
    client = client_of("java", tmp_path_factory.mktemp("java"))
    with Broker.start(runtime, str(tmp_path / "store")) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        with new_topic(name_server) as topic:
            received = play(client, name_server, topic, "bulk", 400, options=["-Dtls.enable=true"])
    assert faults(received, range(400)) == set()
    with Broker.start(RUNTIME, str(tmp_path / "plain")) as broker:
        name_server = "{}:{}".format(*broker.name_server_address)
        refused(client, name_server, "T", "-", "-", options=["-Dtls.enable=true"])


def a_run() -> list[Received]:
    tags = ("red", "green", "blue")
    return [
        Received(f"message-{number}", tags[number % 3], f"key-{number}", str(number), number % 8, number // 8, 0)
        for number in range(800)
    ]


def test_every_injected_fault_of_a_client_is_reported() -> None:
    run = a_run()
    assert faults(run, range(800)) == set()
    assert faults(run[:-1], range(800)) == {"lost or strange"}
    assert faults([*run, attrs.evolve(run[5], queue_offset=999)], range(800)) == {"repeated"}
    assert faults([attrs.evolve(run[0], key="other"), *run[1:]], range(800)) == {"changed"}
    assert faults([run[8], *run[:8], *run[9:]], range(800)) == {"out of order"}
    one_queue = [attrs.evolve(message, queue_id=0, queue_offset=number) for number, message in enumerate(run)]
    assert faults(one_queue, range(800)) == {"not through 8 queues"}
