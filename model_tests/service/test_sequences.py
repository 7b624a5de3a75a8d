"""Whatever is asked in whatever order, broker and name server go on to serve; and again after a restart.

A case is a seed: a policy, settings, and some hundred requests in each of two lives of one store. In between and at
the end a stranger sends, pulls and asks for routes; no thread has ended, and nothing was raised that is no answer of
its own.
"""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import attrs
import pytest
from attrs import define, field
from model_tests.service.sequences import BROKER_CODES, KINDS, NAME_SERVER_CODES, Script
from model_tests.service.test_edges import watching
from model_tests.support.service_b import answer_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.testing.brokers import SMALL_STORE
from longpoll_broker.testing.raw_client import PATIENCE_S, RawClient, pull_fields, records_of, send_fields
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
    for _request in range(4_000):
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


PLANT: Final = """
import os, struct, sys
from pathlib import Path
from longpoll_broker.errors import BrokerError
from longpoll_broker.service import send_back
from model_tests.service import test_sequences
def packed(value):
    struct.pack(">i", value)
    return value
send_back.as_int32 = packed
for name, module in list(sys.modules.items()):
    if name.startswith("longpoll_broker.") and hasattr(module, "FAULTS"):
        module.FAULTS = (ArithmeticError, BrokerError, LookupError, OSError, RuntimeError, TypeError, ValueError)
def died(name, error):
    print(f"{name}: {error!r}", flush=True)
    os._exit(0)
start = test_sequences.RealRuntime
test_sequences.RealRuntime = lambda thread_died: start(thread_died=died)
for seed in range(13, 20):
    test_sequences.found(Path(sys.argv[1]), seed)
"""
"""A count of tries that does not go round, in a broker that answers what somebody thought of: no struct.error."""


@pytest.mark.long
def test_planted_a_list_of_faults_that_lacks_one_ends_a_thread(tmp_path: Path) -> None:
    """A send-back of a message that was stored before is among what is drawn, at the edge that ends the thread."""
    done = subprocess.run(
        [sys.executable, "-c", PLANT, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120
    )
    assert re.match(r"io-\d+: error\(.*'i' format requires", done.stdout), done.stdout + done.stderr[-2_000:]
