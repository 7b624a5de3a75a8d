"""A connection of the client: matching of answers to requests, late and lost answers, and the end of the connection."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.client import bodies_of, name_server_of
from model_tests.support.ports import closed_port

from longpoll_broker.broker import Broker
from longpoll_client import Producer, PullConsumer, remoting
from longpoll_client.aio.connection import AsyncConnection
from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, UnreachableError
from longpoll_client.link.exchange import Answer
from longpoll_client.remoting import ALONE_COUNT_MAX, RemotingClient
from longpoll_protocol.frames import Command, CommandFlag
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError


def connect(server: ScriptedServer, **options: Any) -> RemotingClient:
    return RemotingClient(RealRuntime(), server.host, server.port, **options)


@contextmanager
def served(script: Callable[[Peer, Command], None], **options: Any) -> Iterator[tuple[ScriptedServer, RemotingClient]]:
    with ScriptedServer(script) as server:
        client = connect(server, **options)
        try:
            yield server, client
        finally:
            client.close()


def echo(peer: Peer, command: Command) -> None:
    peer.answer(command, body=bytes(command.body))


class Answers:
    def __init__(self, count: int) -> None:
        self.found: list[Answer] = []
        self._count = count
        self._all = threading.Event()

    def take(self, answer: Answer) -> None:
        self.found.append(answer)
        if len(self.found) == self._count:
            self._all.set()

    def wait(self) -> list[Answer]:
        assert self._all.wait(PATIENCE_S), f"{len(self.found)} of {self._count} answers came"
        return self.found


SENT = {"msgId": "7F00000100002A9F0000000000000000", "queueId": "3", "queueOffset": "41", "TRACE_ON": "true"}


def sent(peer: Peer, command: Command) -> None:
    peer.answer(command, fields=SENT)


def test_a_call_by_code_returns_a_sends_fields() -> None:
    """The answer to a send has typed fields and, on request, extension fields."""
    answers = Answers(1)

    async def on_a_loop(server: ScriptedServer) -> tuple[Command, Answer]:
        connection = await AsyncConnection.open(RealRuntime(), server.host, server.port)
        told: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        connection.call_async(310, callback=told.set_result)
        found = await connection.call(310), await told
        await connection.close()
        return found

    with served(sent) as (server, client):
        client.call_async(310, callback=answers.take)
        found = [client.call(310), *answers.wait(), *asyncio.run(on_a_loop(server))]
    assert [each.ext_fields for each in found if isinstance(each, Command)] == 4 * [SENT]


def test_many_threads_share_a_connection() -> None:
    wrong: list[tuple[bytes, bytes]] = []
    with served(echo) as (server, client):

        def call_all(name: int) -> None:
            for number in range(200):
                body = b"%d-%d" % (name, number)
                got = bytes(client.call(10, body=body, timeout_s=PATIENCE_S).body)
                if got != body:
                    wrong.append((body, got))

        threads = [threading.Thread(target=call_all, args=(name,)) for name in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        client.close()
        assert len(server.received) == 1600
    assert wrong == []


def test_a_timed_out_call_does_not_affect_others() -> None:
    """The client drops a late answer and keeps the connection for other calls."""
    silent: list[Command] = []

    def answer_even(peer: Peer, command: Command) -> None:
        if bytes(command.body) == b"silent":
            silent.append(command)
            return
        for late in silent:
            peer.answer(late, body=b"late")
        peer.answer(command, body=b"here")

    with served(answer_even) as (_server, client):
        answers = Answers(1)
        client.call_async(11, body=b"silent", callback=answers.take, timeout_s=PATIENCE_S)
        with pytest.raises(AnswerTimeoutError, match="PULL_MESSAGE to 127"):
            client.call(11, body=b"silent", timeout_s=0.05)
        assert bytes(client.call(11, body=b"x", timeout_s=PATIENCE_S).body) == b"here"
        late = answers.wait()[0]
        assert isinstance(late, Command)
        assert bytes(late.body) == b"late"


@pytest.mark.parametrize("how", ["close", "garbage", "half"])
def test_every_waiting_call_gets_the_connections_error(how: str) -> None:
    def end(peer: Peer, _command: Command) -> None:
        if len(server.received) < 3:
            return
        if how == "garbage":
            peer.send_bytes(b"\xff" * 20)
        elif how == "half":
            peer.send_bytes(b"\x00\x00\x00\x20half")
            peer.close()
        else:
            peer.close()

    with served(end) as (server, client):
        answers = Answers(3)
        for _number in range(3):
            client.call_async(10, callback=answers.take, timeout_s=PATIENCE_S)
        assert all(isinstance(answer, ConnectionLostError) for answer in answers.wait())
        with pytest.raises(ConnectionLostError):
            client.call(10)
        assert not client.is_open


def test_a_closed_client_fails_its_calls_and_leaves_no_thread() -> None:
    before = threading.active_count()
    with served(lambda _peer, _command: None) as (_server, client):
        answers = Answers(5)
        for _number in range(5):
            client.call_async(10, callback=answers.take, timeout_s=PATIENCE_S)
        client.close()
        assert all(isinstance(answer, ConnectionLostError) for answer in answers.wait())
    assert threading.active_count() == before
    with (
        closed_port() as (host, port),
        pytest.raises(UnreachableError, match=f"127.0.0.1:{port}: Connection refused"),
    ):
        RemotingClient(RealRuntime(), host, port)
    with served(echo) as (server, client):
        client.one_way(10, body=b"one way")
        assert bytes(client.call(10, body=b"both", timeout_s=PATIENCE_S).body) == b"both"
        client.close()
        assert [command.flag for command in server.received] == [CommandFlag.ONE_WAY, 0]


def test_requests_of_the_peer_are_handled_or_refused() -> None:
    """An unknown request of the peer gets code 3, unless it is one-way."""
    refused = threading.Event()
    handled: list[int] = []

    def ask_back(peer: Peer, command: Command) -> None:
        if command.is_response:
            assert command.code == 3
            refused.set()
            return
        peer.send(Command(code=40, flag=2), Command(code=220, opaque=9), Command(code=221, flag=2))
        peer.answer(command)

    def known(command: Command) -> bool:
        handled.append(command.code)
        return command.code == 40

    with served(ask_back, on_request=known) as (server, client):
        client.call(34, timeout_s=PATIENCE_S)
        assert refused.wait(PATIENCE_S)
        client.close()
        assert [command.opaque for command in server.received if command.is_response] == [9]
    assert handled == [40, 220, 221]


def test_a_large_request_is_sent_in_several_writes() -> None:
    bodies = [bytes([number]) * (4 * 1024 * 1024) for number in range(8)]
    with served(echo) as (_server, client):
        answers = Answers(8)
        for body in bodies:
            client.call_async(10, body=body, callback=answers.take, timeout_s=PATIENCE_S)
        found = [bytes(answer.body) for answer in answers.wait() if isinstance(answer, Command)]
    assert found == bodies


def test_the_reader_thread_sends_queued_requests_at_once() -> None:
    """While many calls wait, only the reader thread writes."""

    def some(peer: Peer, command: Command) -> None:
        if command.code == 10:
            echo(peer, command)

    with served(some) as (_server, client):
        silent = Answers(2 * ALONE_COUNT_MAX)
        for _number in range(2 * ALONE_COUNT_MAX):
            client.call_async(11, callback=silent.take, timeout_s=2 * PATIENCE_S)
        for number in range(50):
            assert bytes(client.call(10, body=b"%d" % number, timeout_s=PATIENCE_S).body) == b"%d" % number
        client.close()
        assert all(isinstance(answer, ConnectionLostError) for answer in silent.wait())


@pytest.mark.parametrize(
    ("count", "code", "is_awaited"), [(6, 310, False), (6, 310, True), (6, 11, False), (5, 310, False)]
)
def test_the_reader_thread_rests_while_many_sends_wait(count: int, code: int, is_awaited: bool) -> None:
    """After a burst of answers the reader thread pauses, so that the next requests are sent together."""
    held: list[tuple[Peer, Command]] = []
    rests: list[float] = []
    first, last = Answers(1), Answers(count)

    class Resting(RealRuntime):
        def sleep(self, seconds: float) -> None:
            rests.append(seconds)
            if len(rests) == 1:
                client.call_async(code, callback=last.take, timeout_s=PATIENCE_S)

    def answer(peer: Peer, command: Command) -> None:
        peer.answer(command, fields=SENT if code == 310 else {"nextBeginOffset": "1"})

    with ScriptedServer(lambda peer, command: held.append((peer, command))) as server:
        client = RemotingClient(Resting(), server.host, server.port)
        client.call_async(code, callback=first.take, timeout_s=PATIENCE_S)
        for _number in range(count - 1 - is_awaited):
            client.call_async(code, callback=last.take, timeout_s=PATIENCE_S)
        awaiting = threading.Thread(target=lambda: last.take(client.call(code, timeout_s=PATIENCE_S)))
        if is_awaited:
            wait_until(lambda: len(held) == count - 1)
            awaiting.start()
        wait_until(lambda: len(held) == count)
        answer(*held[0])
        first.wait()
        has_rested = count == 6 and code == 310 and not is_awaited
        wait_until(lambda: len(held) == count + has_rested)
        if not has_rested:
            client.call_async(code, callback=last.take, timeout_s=PATIENCE_S)
            wait_until(lambda: len(held) == count + 1)
        assert rests == [remoting.GATHER_S] * has_rested
        for peer, command in held[1:]:
            answer(peer, command)
        last.wait()
        if is_awaited:
            awaiting.join(PATIENCE_S)
        client.close()


def test_requests_of_a_closing_callback_are_sent() -> None:
    """The requests that a callback writes are sent before the callback closes the connection."""
    with served(echo) as (server, client):
        ended = threading.Event()

        def close(_answer: Answer) -> None:
            client.one_way(12, body=b"last words")
            client.close()
            ended.set()

        client.call_async(10, callback=close, timeout_s=PATIENCE_S)
        assert ended.wait(PATIENCE_S)
        wait_until(lambda: [command.code for command in server.received] == [10, 12])


def test_a_short_timeout_is_kept_after_calls_with_long_timeouts() -> None:

    def some(peer: Peer, command: Command) -> None:
        if command.code == 10:
            echo(peer, command)

    with served(some) as (_server, client):
        for _round in range(3):
            client.call(10, timeout_s=4 * PATIENCE_S)
            late = Answers(1)
            client.call_async(11, callback=late.take, timeout_s=0.01)
            assert isinstance(late.wait()[0], AnswerTimeoutError)


def test_the_client_compares_tags_exactly(broker: Broker) -> None:
    """The tags Aa and BB have the same hash, so the broker sends both and the client must filter."""
    with Producer(name_server_of(broker)) as producer:
        for tag in ("Aa", "BB", "C", "Aa"):
            producer.send("T", tag.encode(), tag=tag, queue_id=0)
    with PullConsumer(name_server_of(broker), topics={"T": "Aa || C"}, group="G", start_at="first") as consumer:
        assert bodies_of(consumer, 3) == [b"Aa", b"C", b"Aa"]
        assert consumer.poll(0.1) == []


@pytest.mark.parametrize(
    ("topic", "body", "properties", "words"),
    [
        ("../x", b"", {}, "not allowed"),
        ("", b"", {}, "not allowed"),
        ("t" * 128, b"", {}, "not allowed"),
        ("T", bytes(4 * 1024 * 1024 + 1), {}, "over the limit"),
        ("T", b"", {"TAGS": "x"}, "reserved for the client"),
        ("T", b"", {"a": "b\x01"}, "separate"),
        ("T", b"", {"a": "b" * 32_768}, "over the limit"),
    ],
)
def test_an_invalid_message_is_refused_before_the_send(
    topic: str, body: bytes, properties: dict[str, str], words: str
) -> None:
    with ScriptedServer(lambda _peer, _command: None) as server:
        with Producer(server.address) as producer, pytest.raises(ConfigError, match=words):
            producer.send(topic, body, properties=properties)
        assert server.received == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"brokerDatas":7,"queueDatas":[]}'])
def test_a_route_that_cannot_be_read_is_an_error_of_the_client(body: bytes) -> None:
    with (
        ScriptedServer(lambda peer, command: peer.answer(command, body=body)) as server,
        Producer(server.address) as producer,
        pytest.raises(ClientError, match="route of topic"),
    ):
        producer.send("T", b"x")
