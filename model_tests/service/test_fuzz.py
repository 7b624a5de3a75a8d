"""Random sequences of requests and wrong frames: the broker keeps serving others, and its store stays whole."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.test_bad_input import watching
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.fuzzing import Fuzzer
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient
from model_tests.support.broker.sequences import Script
from model_tests.support.broker.stores import read_all
from model_tests.support.store import killed

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import PRESETS, preset

SLOW_PATIENCE_S: Final = 60.0
TOGETHER: Final = 64
FRAMES: Final = 600
ANSWER_SIZE_MIN: Final = 50
"""Bytes answered for each frame sent, at least: a refusal has over a hundred, and some frames have no answer."""


def fuzz(address: Address, seed: int, count: int) -> int:
    """Send `count` frames, reading what comes; a connection that the broker closes is opened again. Bytes answered."""
    fuzzer = Fuzzer(seed)
    answered = 0
    left = count
    while left > 0:
        with socket.create_connection(address, SLOW_PATIENCE_S) as sock:
            is_open = True
            while left > 0 and is_open and not fuzzer.spoiled:
                now = min(left, TOGETHER)
                left -= now
                with suppress(ConnectionError):
                    sock.sendall(b"".join(fuzzer.frame() for _ in range(now)))
                got, is_open = drained(sock, 0.0)
                answered += got
            fuzzer.spoiled = False
            # When the peer has closed its side too, it has served all that was sent.
            with suppress(OSError):
                sock.shutdown(socket.SHUT_WR)
            answered += drained(sock, SLOW_PATIENCE_S)[0]
    return answered


def drained(sock: socket.socket, timeout_s: float) -> tuple[int, bool]:
    """Read until nothing more comes in time: how many bytes, and whether the peer is still there."""
    sock.settimeout(timeout_s)
    read = 0
    try:
        while got := len(sock.recv(1 << 20)):
            read += got
    except (BlockingIOError, TimeoutError):
        return read, True
    except ConnectionError:
        return read, False
    finally:
        sock.settimeout(SLOW_PATIENCE_S)
    return read, False


Queues = dict[tuple[str, int], list[bytes]]
LIVES: Final = 2
SEQUENCE_LENGTH: Final = 150
NAME_SERVER_SHARE: Final = 0.15
SOON_S: Final = 0.2


@define
class World:
    """A broker under a script, and what must not come to pass.

    Invariant: `died` are the threads that have ended by an exception. `harm` is damage to the store: queues of a life
    that a copy of it, taken as by a kill, does not have when it is opened again, and what `store verify` finds.
    """

    script: Script
    died: list[str] = field(factory=list)
    harm: list[str] = field(factory=list)
    said: list[str] = field(factory=list)

    def live(self, directory: Path, copied: Path, draw: random.Random) -> None:
        runtime = RealRuntime(thread_died=lambda name, error: self.died.append(f"{name}: {error!r}"))
        store = attrs.evolve(SMALL_STORE, multi_dispatch=draw.random() < 0.5, light_queues=draw.random() < 0.5)
        policy = preset(draw.choice(sorted(PRESETS)))
        config = BrokerConfig(transaction_check_interval_ms=draw.choice((50, 60_000)))
        with (
            Broker.start(runtime, str(directory), policy=policy, config=config, store_config=store) as broker,
            lines_to(broker) as (client, names),
        ):
            for _request in range(SEQUENCE_LENGTH):
                if self.died:
                    return
                to_names = draw.random() < NAME_SERVER_SHARE
                line = names if to_names else client
                self._ask(line, self.script.for_name_server() if to_names else self.script.for_broker())
            for topic in ("F0", "F1", "F2") if not self.died else ():
                client.client.create_topic(topic, 4)
            assert self.died or fuzz(broker.address, self.script.seed, FRAMES) > FRAMES * ANSWER_SIZE_MIN
            self._assert_serves(broker)
            wait_until(lambda: broker.store.dispatched_end == broker.store.log_end)
            # Listed first, because the timers' and the transactions' threads may add messages meanwhile.
            before = listed(broker.store)
            killed(directory, copied.name)
        with Broker.start(RealRuntime(), str(copied), policy=policy, config=config, store_config=store) as broker:
            after = listed(broker.store)
        lost = [queue for queue in before if after.get(queue, [])[: len(before[queue])] != before[queue]]
        self.harm += [f"{queue} is not what it was" for queue in lost]
        for store_directory in (directory, copied):
            found = verify(RealRuntime().files, str(store_directory)).problems
            self.harm += [f"{problem.file}: {problem.found}" for problem in found]

    def _ask(self, line: Line, request: Command) -> None:
        self.said.append(f"{request.code} {request.ext_fields} {bytes(request.body)[:200]!r}")
        opaque = line.client.send(request.code, request.ext_fields, request.body, flag=request.flag)
        # A send is waited for, because of what it stores; another request is only waited for by the next send.
        if request.code in {RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE} and not request.is_one_way:
            answer = self._answer(line, opaque)
            if answer is not None:
                self.script.told(request, answer)
        if line.client.closed:
            line.reconnect()

    def _answer(self, line: Line, opaque: int) -> Command | None:
        for _turn in range(int(PATIENCE_S / SOON_S)):
            answer = line.client.reply(opaque, SOON_S)
            if answer is not None or line.client.closed or self.died:
                return answer
        pytest.fail(f"no answer to {self.said[-1]}")

    def _assert_serves(self, broker: Broker) -> None:
        """An unrelated client's message comes back, and routes are answered."""
        if self.died:
            return
        with RawClient(broker.address) as stranger, RawClient(broker.name_server_address) as names:
            stranger.create_topic("SAFE")
            sent = stranger.put("SAFE", b"still there")
            assert sent.code in {0, 10, 11, 12}, sent.remark
            offset = int((sent.ext_fields or {})["queueOffset"])
            assert stranger.bodies("SAFE", offset, timeout_ms=9_000, group="STRANGER") == [b"still there"]
            assert names.call(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
            assert names.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="SAFE").code == 0


@define
class Line:
    """A connection that is opened again after the peer closed it."""

    address: tuple[str, int]
    client: RawClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.client = RawClient(self.address)

    def reconnect(self) -> None:
        self.client.close()
        self.client = RawClient(self.address)


@contextmanager
def lines_to(broker: Broker) -> Iterator[tuple[Line, Line]]:
    """One to the broker, one to the name server."""
    lines = Line(broker.address), Line(broker.name_server_address)
    try:
        yield lines
    finally:
        for line in lines:
            line.client.close()


def listed(store: MessageStore) -> Queues:
    return {(topic, queue_id): read_all(store, topic, queue_id) for topic, queue_id in store.queues()}


def found(directory: Path, seed: int) -> list[str]:
    """Problems after a case, with the requests before them."""
    world, draw = World(Script(seed)), random.Random(seed)
    with watching() as raised:
        try:
            for life in range(LIVES):
                world.live(directory / f"{seed}", directory / f"{seed}-killed-{life}", draw)
        except StoreUserError as error:
            world.harm.append(str(error))
    wrong = [*world.died, *raised, *world.harm]
    return [*wrong, *world.said[-5:]] if wrong else []


def test_after_any_sequence_everyone_else_is_served(tmp_path: Path) -> None:
    """By two policies; `make nightly` tries hundreds of seeds."""
    assert found(tmp_path, 2) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_after_many_sequences_everyone_else_is_served(tmp_path: Path) -> None:
    assert {seed: wrong for seed in range(1_000, 1_300) if (wrong := found(tmp_path, seed))} == {}
