"""Whatever is asked in whatever order, broker and name server go on to serve; and again after a restart.

A case is a seed: a policy, settings, and some hundred requests in each of two lives of one store. In between and at
the end a stranger sends, pulls and asks for routes; no thread has ended, and nothing was raised that is no answer of
its own.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.sequences import BROKER_CODES, KINDS, NAME_SERVER_CODES, Script
from model_tests.service.test_bad_input import watching
from model_tests.support.broker.brokers import SMALL_STORE
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient, pull_fields, records_of, send_fields
from model_tests.support.service import answer_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.hold.hold_table import Pull
from longpoll_broker.hold.pull_processor import PullProcessor
from longpoll_broker.io.channel import Channel
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import PRESETS, preset

LIVES: Final = 2
REQUESTS: Final = 150
"""In each life."""
NAME_SERVER_SHARE: Final = 0.15
SOON_S: Final = 0.2
ROOT: Final = Path(__file__).parents[2]


@define
class World:
    """A broker under a script. Invariant: `died` are the threads that have ended by an exception."""

    script: Script
    died: list[str] = field(factory=list)
    said: list[str] = field(factory=list)
    """The requests, for whoever looks at a failure."""

    def live(self, directory: str, draw: random.Random) -> None:
        runtime = RealRuntime(thread_died=lambda name, error: self.died.append(f"{name}: {error!r}"))
        store = attrs.evolve(SMALL_STORE, multi_dispatch=draw.random() < 0.5, light_queues=draw.random() < 0.5)
        policy = preset(draw.choice(sorted(PRESETS)))
        config = BrokerConfig(transaction_check_interval_ms=draw.choice((50, 60_000)))
        with (
            Broker.start(runtime, directory, policy=policy, config=config, store_config=store) as broker,
            lines_to(broker) as (client, names),
        ):
            for _request in range(REQUESTS):
                if self.died:
                    return
                to_names = draw.random() < NAME_SERVER_SHARE
                line = names if to_names else client
                self._ask(line, self.script.for_name_server() if to_names else self.script.for_broker())
            self._assert_serves(broker)

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
        """A stranger's message comes back, and routes are told."""
        if self.died:
            return
        with RawClient(broker.address) as stranger, RawClient(broker.name_server_address) as names:
            fields = {"topic": "SAFE", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
            assert stranger.call(RequestCode.UPDATE_AND_CREATE_TOPIC, fields).code == 0
            sent = stranger.call(RequestCode.SEND_MESSAGE_V2, send_fields("SAFE"), b"still there")
            assert sent.code in {0, 10, 11, 12}, sent.remark
            offset = int((sent.ext_fields or {})["queueOffset"])
            fields = pull_fields("SAFE", offset, timeout_ms=9_000, group="STRANGER")
            reply = answer_of(stranger, stranger.send(RequestCode.PULL_MESSAGE, fields))
            assert [bytes(record.body) for record in records_of(reply)] == [b"still there"]
            assert names.call(RequestCode.GET_BROKER_CLUSTER_INFO).code == 0
            assert names.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "SAFE"}).code == 0


@define
class Line:
    """A connection that is made anew when the peer has closed it."""

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


def found(directory: Path, seed: int) -> list[str]:
    """What is wrong after a case, and the requests that led there."""
    world, draw = World(Script(seed)), random.Random(seed)
    with watching() as raised:
        for _life in range(LIVES):
            world.live(str(directory / str(seed)), draw)
    return [*world.died, *raised, *world.said[-5:]] if world.died or raised else []


def test_after_any_sequence_everyone_else_is_served(tmp_path: Path) -> None:
    assert {seed: wrong for seed in range(3) if (wrong := found(tmp_path, seed))} == {}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_after_many_sequences_everyone_else_is_served(tmp_path: Path) -> None:
    assert {seed: wrong for seed in range(1_000, 1_300) if (wrong := found(tmp_path, seed))} == {}


def test_every_code_is_asked_at_every_kind_of_number() -> None:
    script = Script(1)
    asked: dict[int, set[str]] = {}
    for _request in range(2_500):
        for command in (script.for_broker(), script.for_name_server()):
            asked.setdefault(command.code, set()).update(command.ext_fields or {})
    # What is served is read from the services' text: a move of theirs must not leave it unseen.
    assert len(BROKER_CODES) > 30
    assert len(NAME_SERVER_CODES) > 5
    for name in BROKER_CODES | NAME_SERVER_CODES:
        code = RequestCode[name]
        assert code in asked
        headers = [kind for kind in KINDS.get(code, ()) if kind.__name__.endswith("Header")]
        assert {one for kind in headers for one in kind.__struct_encode_fields__} <= asked[code]


def test_planted_a_processor_that_raises_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decode = PullProcessor._decode

    def fails(processor: PullProcessor, channel: Channel, command: Command) -> Pull:
        if (command.ext_fields or {}).get("topic") != "SAFE":
            struct.pack(">i", 2**31)
        return decode(processor, channel, command)

    monkeypatch.setattr(PullProcessor, "_decode", fails)
    assert any("'i' format" in line for line in found(tmp_path, 0))
