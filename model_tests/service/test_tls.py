"""TLS and plain connections on one port, with large answers, broken handshakes and certificates."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
import trustme
from click.testing import CliRunner
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.present import present
from model_tests.support.service import ShiftedRuntime

from longpoll.cli import main
from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.io import transport
from longpoll_client import (
    Admin,
    OutgoingMessage,
    Producer,
    PullConsumer,
)
from longpoll_client.errors import ConnectionLostError, UnreachableError
from longpoll_client.remoting import RemotingClient
from longpoll_client.settings import MemberConfig
from longpoll_protocol.codes import RequestCode
from longpoll_runtime import real
from longpoll_runtime.real import RealRuntime, ServerTls, client_context, server_context
from longpoll_spec.errors import ConfigError

PLAIN = RealRuntime()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    authority.cert_pem.write_to_path(str(directory / "authority.pem"))
    issued.cert_chain_pems[0].write_to_path(str(directory / "server.pem"))
    issued.private_key_pem.write_to_path(str(directory / "server.key"))
    return directory


@pytest.fixture
def broker(tmp_path: Path, certificates: Path) -> Iterator[Broker]:
    context = server_context(str(certificates / "server.pem"), str(certificates / "server.key"))
    runtime = RealRuntime(server_tls=context)
    with Broker.start(runtime, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@pytest.fixture
def secure(certificates: Path) -> RealRuntime:
    return RealRuntime(client_tls=client_context(str(certificates / "authority.pem")))


def name_server(broker: Broker) -> str:
    return "{}:{}".format(*broker.name_server_address)


def consume(runtime: RealRuntime, broker: Broker, count: int) -> list[bytes]:
    found: list[bytes] = []
    config = MemberConfig(group="G", start_at="first")
    with PullConsumer(name_server(broker), topics="T", **member_options(config), runtime=runtime) as consumer:
        while len(found) < count:
            messages = consumer.poll(PATIENCE_S)
            assert messages
            found += [message.body for message in messages]
    return found


def test_plain_and_tls_are_served_on_one_port(broker: Broker, secure: RealRuntime) -> None:
    with Producer(name_server(broker), runtime=secure) as hidden, Producer(name_server(broker), runtime=PLAIN) as open_:
        for number in range(20):
            (hidden if number % 2 else open_).send("T", b"%d" % number, queue_id=0)
    assert consume(PLAIN, broker, 20) == [b"%d" % number for number in range(20)]
    waiting: list[list[bytes]] = []
    thread = threading.Thread(target=lambda: waiting.append(consume(secure, broker, 21)))
    thread.start()
    with Producer(name_server(broker), runtime=PLAIN) as producer:
        producer.send("T", b"last", queue_id=0)
    thread.join(PATIENCE_S)
    assert waiting[0][-1] == b"last"


def test_large_bodies_pass_through_tls(broker: Broker, secure: RealRuntime) -> None:
    """Bodies larger than a TLS record and the kernel's buffers arrive whole."""
    bodies = [bytes([number]) * 200_000 for number in range(10)]
    with Admin(name_server(broker), runtime=secure) as admin, Producer(name_server(broker), runtime=secure) as producer:
        admin.create_topic("T", 1)
        producer.send_batch("T", [OutgoingMessage(body) for body in bodies])
    assert consume(secure, broker, 10) == bodies


def test_an_untrusted_certificate_is_reported(broker: Broker, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(str(other))
    runtime = RealRuntime(client_tls=client_context(str(other)))
    with (
        Producer(name_server(broker), runtime=runtime) as producer,
        pytest.raises(UnreachableError, match="cannot reach any name server"),
    ):
        producer.send("T", b"x")


def test_tls_to_a_plain_server_is_an_error(tmp_path: Path, secure: RealRuntime) -> None:
    with Broker.start(PLAIN, str(tmp_path / "store"), store_config=SMALL_STORE) as broker:
        with Producer(name_server(broker), runtime=secure) as producer, pytest.raises(UnreachableError):
            producer.send("T", b"x")
        with Producer(name_server(broker), runtime=PLAIN) as producer:
            assert producer.send("T", b"x").queue_offset == 0


@pytest.mark.parametrize("content", [b"\x16", b"\x16\x03\x01\x02\x00" + b"\x00" * 600, b"\x16" * 100_000])
def test_a_broken_handshake_affects_only_its_sender(broker: Broker, content: bytes) -> None:
    with socket.create_connection(broker.address, PATIENCE_S) as sick:
        sick.sendall(content)
        client = RemotingClient(PLAIN, *broker.address)
        answer = client.call(RequestCode.GET_MAX_OFFSET)
        client.close()
    assert answer.code == 1


def client_hello() -> bytes:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_endless_handshakes_are_ended_and_delay_no_other(
    share: float, certificates: Path, tmp_path: Path, secure: RealRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "IDLE_CHECK_S", 0.01)
    context = server_context(str(certificates / "server.pem"), str(certificates / "server.key"))
    hello = client_hello()
    with ExitStack() as stack:
        runtime = ShiftedRuntime(server_tls=context)
        broker = stack.enter_context(Broker.start(runtime, str(tmp_path / "s"), store_config=SMALL_STORE))
        peers = [stack.enter_context(socket.create_connection(broker.address)) for _ in range(50)]
        for peer in peers:
            peer.sendall(hello[: int(len(hello) * share)])
        for served in (PLAIN, secure):
            client = RemotingClient(served, *broker.address)
            stack.callback(client.close)
            assert client.call(RequestCode.GET_ALL_TOPIC_CONFIG).code == 0
        idle_ms = BrokerConfig().channel_idle_ms_max
        runtime.gone_ms = idle_ms - 1_000
        for peer in peers if share < 1 else ():
            peer.sendall(hello[-1:])
        runtime.gone_ms = idle_ms + 1_000
        for peer in peers:
            peer.settimeout(PATIENCE_S)
            with suppress(ConnectionResetError):
                while peer.recv(65_536):
                    pass


def test_tls_renegotiation_is_off(certificates: Path) -> None:
    context = server_context(str(certificates / "server.pem"), str(certificates / "server.key"))
    assert context.options & ssl.OP_NO_RENEGOTIATION


def test_unusable_tls_files_are_reported(certificates: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.key"
    trustme.CA().issue_cert("a.example").private_key_pem.write_to_path(str(other))
    server = str(certificates / "server.pem")
    for certificate, key in ((server, "/none.key"), (str(other), str(other)), (server, str(other))):
        with pytest.raises(ConfigError, match="use two PEM files"):
            server_context(certificate, key)
    with pytest.raises(ConfigError, match="use a file in PEM format"):
        client_context(str(tmp_path / "none.pem"))


@pytest.fixture
def strict(tmp_path: Path, certificates: Path, caplog: pytest.LogCaptureFixture) -> Iterator[Broker]:
    """A broker that accepts only TLS, from clients with a certificate."""
    server, key, authority = (str(certificates / name) for name in ("server.pem", "server.key", "authority.pem"))
    required = ServerTls(server_context(server, key, authority), is_required=True)
    with (
        caplog.at_level("INFO"),
        Broker.start(RealRuntime(server_tls=required), str(tmp_path / "store"), store_config=SMALL_STORE) as started,
    ):
        yield started


@pytest.mark.parametrize("to", ["address", "name_server_address"])
def test_a_plain_connection_is_refused_where_tls_is_required(
    strict: Broker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    with socket.create_connection(getattr(strict, to), PATIENCE_S) as plain:
        peer = "{}:{}".format(*plain.getsockname())
        plain.sendall(b"\x00")
        # The peer sees a reset if the broker closes the connection with an unread byte.
        with suppress(ConnectionResetError):
            assert plain.recv(1) == b""
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == [f"{peer}: a plain connection is refused, for TLS is required here"]
    client = RemotingClient(PLAIN, *getattr(strict, to))
    with pytest.raises(ConnectionLostError):
        client.call(RequestCode.GET_BROKER_CLUSTER_INFO)
    client.close()
    monkeypatch.setattr(real.DetectingSocket, "_refuse", lambda _: None)
    client = RemotingClient(PLAIN, *getattr(strict, to))
    assert client.call(RequestCode.GET_MAX_OFFSET).code in {1, 3}
    client.close()


def test_client_certificates(strict: Broker, secure: RealRuntime, certificates: Path, tmp_path: Path) -> None:
    other = trustme.CA().issue_cert("client.example")
    other.private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "other.pem"))
    authority, server = str(certificates / "authority.pem"), str(certificates / "server.pem")
    stranger = RealRuntime(client_tls=client_context(authority, str(tmp_path / "other.pem")))
    for without in (secure, stranger):
        with Producer(name_server(strict), runtime=without) as producer, pytest.raises(UnreachableError):
            producer.send("T", b"x")
    known = RealRuntime(client_tls=client_context(authority, server, str(certificates / "server.key")))
    with Producer(name_server(strict), runtime=known) as producer:
        assert producer.send("T", b"x").queue_offset == 0


def test_a_broker_shows_its_certificate(certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `--tls-client-authority` the broker shows its certificate to the name servers too."""
    runtimes: list[RealRuntime] = []

    def start(runtime: RealRuntime, *_given: object, **_options: object) -> None:
        runtimes.append(runtime)
        raise OSError("no broker")

    with monkeypatch.context() as patch:
        patch.setattr(Broker, "start", start)
        given = ["serve", "--store", str(tmp_path / "none"), "--tls-required"]
        for option, name in (
            ("certificate", "server.pem"),
            ("key", "server.key"),
            ("client-authority", "authority.pem"),
        ):
            given += [f"--tls-{option}", str(certificates / name)]
        CliRunner().invoke(main, given)
    (runtime,) = runtimes
    with Broker.start(runtime, str(tmp_path / "first"), store_config=SMALL_STORE) as first:
        config = BrokerConfig(broker_name="other", name_servers=name_server(first))
        with Broker.start(runtime, str(tmp_path / "second"), config=config, store_config=SMALL_STORE) as second:
            wait_until(lambda: present(second.registrar).registered_count > 0)
            assert second.registrar is not None


def test_unusable_client_certificates_are_reported(certificates: Path, tmp_path: Path) -> None:
    server, key, authority = (str(certificates / name) for name in ("server.pem", "server.key", "authority.pem"))
    with pytest.raises(ConfigError, match="use a file in PEM format"):
        server_context(server, key, str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match="use two PEM files"):
        client_context(authority, str(tmp_path / "none.pem"), key)
