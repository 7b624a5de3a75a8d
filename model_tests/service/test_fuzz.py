"""Random sequences of requests and wrong frames: the broker keeps serving others, and its store stays whole."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.test_bad_input import watching
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
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
from longpoll_protocol.frames import Command, Serialisation, encode
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import PRESETS, preset

Queues = dict[tuple[str, int], list[bytes]]
LIVES: Final = 2
SEQUENCE_LENGTH: Final = 250
SPOILED_SHARE: Final = 0.04
"""How many requests have wrong bytes; most of those end their connection."""
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
                request = self.script.for_name_server() if to_names else self.script.for_broker()
                if draw.random() < SPOILED_SHARE:
                    self._spoil(line, request, draw)
                else:
                    self._ask(line, request, draw)
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

    def _spoil(self, line: Line, request: Command, draw: random.Random) -> None:
        """Send a request with wrong bytes, whose length may be wrong, so that nothing may follow it."""
        content = spoiled(b"".join(encode(request)), draw)
        self.said.append(repr(content[:200]))
        with suppress(ConnectionError):
            line.client.send_bytes(content)
        line.reconnect()

    def _ask(self, line: Line, request: Command, draw: random.Random) -> None:
        self.said.append(f"{request.code} {request.ext_fields} {bytes(request.body)[:200]!r}")
        texts = (request.ext_fields or {}).values()
        is_short = request.code < 2**15 and all(len(text) < 2**15 for text in texts)
        kind = Serialisation.ROCKETMQ if is_short and draw.random() < 0.3 else Serialisation.JSON
        opaque = line.client.send(request.code, request.ext_fields, request.body, flag=request.flag, serialisation=kind)
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


def spoiled(content: bytes, draw: random.Random) -> bytes:
    """Change, cut or repeat some of the bytes."""
    changed = bytearray(content)
    for _ in range(draw.randint(1, 4)):
        at, how = draw.randrange(len(changed) + 1), draw.random()
        if how < 0.6:
            changed[at : at + 1] = draw.randbytes(1)
        elif how < 0.8:
            del changed[at:]
        else:
            changed[at:at] = changed[at : at + draw.randrange(1, 64)]
    return bytes(changed)


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
