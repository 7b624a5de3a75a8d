"""Random sequences of requests and invalid frames: the broker serves other clients, and its store stays intact."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import attrs
import msgspec
import pytest
from attrs import define, field
from model_tests.service.test_bad_input import watching
from model_tests.support.broker.brokers import SMALL_STORE, wait_until
from model_tests.support.broker.protocol_page import served_by, services, shapes
from model_tests.support.broker.raw_client import PATIENCE_S, RawClient, pull_fields, send_fields
from model_tests.support.broker.stores import read_all
from model_tests.support.store import killed

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.rocketmq.name_server import name_server
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.store.verify import verify
from longpoll_protocol.bodies import Body
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, Serialisation, encode
from longpoll_protocol.headers import Header
from longpoll_protocol.names import LMQ_PREFIX
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import PRESETS, preset

EDGES: Final = (
    0, 1, -1, 2, 15, 16, 18, 19, 31, 32, 127, 128, 255, 256, 1023, 1024, 32767, 32768, 65535, 65536,
    2**31 - 2, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32 - 1, 2**32, 2**53, 2**60,
    2**63 - 2, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 2**64, 10**30,
)  # fmt: skip
ODD_NUMBERS: Final = (
    "", " 1", "+1", "007", "1.0", "1e3", "-0", "NaN", "0x1", "\u0663", "9" * 400, "true", "null",
)  # fmt: skip
TOPICS: Final = (
    "S0", "S1", "S2", "%RETRY%SG0", "%DLQ%SG0", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "TBW102", "",
    "a" * 128, "a[red]b", "\x1b[2J", "../x", "%LMQ%x",
)  # fmt: skip
GROUPS: Final = ("SG0", "SG1", "", "g" * 300, "%RETRY%SG0", "CID_RMQ_SYS_x")
TEXTS: Final = (
    "", "*", "a || b", "TAG", "SQL92", "i > 3", "true", "false", "\0", "\u202e", "é", "x" * 5_000, "127.0.0.1:1", "[]",
)  # fmt: skip
PROPERTIES: Final = (
    "", "TAGS\x01a\x02", "KEYS\x01k m\x02UNIQ_KEY\x01u\x02", "DELAY\x01{n}\x02", "DELAY\x011\x02",
    "WAIT\x01false\x02", "TRAN_MSG\x01true\x02PGROUP\x01SP\x02UNIQ_KEY\x01u\x02", "RETRY_TOPIC\x01S1\x02",
    "REAL_TOPIC\x01S2\x02REAL_QID\x01{n}\x02", "CONSUME_START_TIME\x01{n}\x02",
    "RECONSUME_TIME\x01{n}\x02MAX_RECONSUME_TIMES\x01{n}\x02", "INNER_MULTI_DISPATCH\x01%LMQ%x\x02",
    "TIMER_DELAY_SEC\x01{n}\x02", "CHECK_IMMUNITY_TIME_IN_SECONDS\x01{n}\x02",
    "__STARTDELIVERTIME\x01{n}\x02", "broken", "\x01\x02",
)  # fmt: skip
"""Properties of stored messages, where `{n}` becomes a number."""
PREPARED: Final = "TRAN_MSG\x01true\x02PGROUP\x01SP\x02UNIQ_KEY\x01u\x02"
ENDS: Final = ("0", "4", "8", "12")
"""Values of commitOrRollback: unknown, an invalid one, commit, and roll back."""
BROKER_CODES: Final = served_by(*services())
NAME_SERVER_CODES: Final = served_by(name_server)
COMMON: Final = ("topic", "group", "groupName", "consumerGroup", "producerGroup", "queueId", "offset", "timestamp",
                 "clientId", "clientID", "brokerName", "brokerId", "isForce", "cleanOffset")  # fmt: skip
"""Field names used in requests whose code has no header class."""

Wanted = Callable[[], Any]


@define
class Script:
    """An endless sequence of requests, determined by its seed and the broker's answers."""

    seed: int
    places: list[int] = field(factory=list)
    offsets: list[int] = field(factory=list)
    halves: list[tuple[int, int]] = field(factory=list)
    _draw: random.Random = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._draw = random.Random(self.seed)

    def told(self, request: Command, answer: Command) -> None:
        stored = answer.ext_fields or {}
        if "msgId" not in stored or "queueOffset" not in stored:
            return
        place = int(stored["msgId"].split(",")[0][16:], 16)
        offset = int(stored["queueOffset"])
        self.places.append(place)
        self.offsets.append(offset)
        if "TRAN_MSG" in (request.ext_fields or {}).get("i", ""):
            self.halves.append((place, offset))

    def for_broker(self) -> Command:
        scenes = (self._send, self._batch, self._send_back, self._end, self._pull, self._commit, self._topic)
        if self._draw.random() < 0.7:
            return self._draw.choice(scenes)()
        return self._any(BROKER_CODES)

    def for_name_server(self) -> Command:
        return self._any(NAME_SERVER_CODES)

    # -- requests that belong to each other --------------------------------------------------------------------------

    def _send(self) -> Command:
        prepared = self._draw.random() < 0.2
        fields = send_fields(
            self._draw.choice(TOPICS[:5]), self._draw.randrange(2), PREPARED if prepared else self._properties()
        )
        fields |= {"f": "4" if prepared else self._draw.choice(("0", "0", self._number())), "j": self._number()}
        return self._changed(RequestCode.SEND_MESSAGE_V2, fields, self._draw.randbytes(self._draw.choice((0, 1, 200))))

    def _batch(self) -> Command:
        body = b""
        for _message in range(self._draw.choice((0, 1, 2, 20))):
            properties = self._properties().encode()[:30_000]
            content = self._draw.randbytes(self._draw.randrange(4))
            body += struct.pack(">iiiii", 22 + len(properties) + len(content), 0, 0, 0, len(content)) + content
            body += struct.pack(">h", len(properties)) + properties
        return self._changed(RequestCode.SEND_BATCH_MESSAGE, send_fields("S0") | {"m": "true"}, body)

    def _send_back(self) -> Command:
        fields = {"offset": self._place(), "group": "SG0", "delayLevel": self._draw.choice(("0", self._number()))}
        if self._draw.random() < 0.5:
            fields["maxReconsumeTimes"] = self._number()
        return self._changed(RequestCode.CONSUMER_SEND_MSG_BACK, fields)

    def _end(self) -> Command:
        place, offset = self._draw.choice(self.halves or [(0, 0)])
        fields = {"producerGroup": "SP", "tranStateTableOffset": str(offset), "commitLogOffset": str(place)}
        return self._changed(RequestCode.END_TRANSACTION, fields | {"commitOrRollback": self._draw.choice(ENDS)})

    def _pull(self) -> Command:
        topic = self._draw.choice(TOPICS[:6])
        fields = pull_fields(topic, 0, timeout_ms=self._draw.choice((0, 0, 5)), group="SG0")
        return self._changed(RequestCode.PULL_MESSAGE, fields | {"queueOffset": self._offset(), "sysFlag": "7"})

    def _commit(self) -> Command:
        fields = {"consumerGroup": "SG0", "topic": "S0", "queueId": "0", "commitOffset": self._offset()}
        return self._changed(RequestCode.UPDATE_CONSUMER_OFFSET, fields)

    def _topic(self) -> Command:
        topic = {"topic": self._draw.choice(TOPICS[:5])}
        if self._draw.random() < 0.3:
            return Command(RequestCode.DELETE_TOPIC_IN_BROKER, ext_fields=topic)
        fields = topic | {"readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
        return self._changed(RequestCode.UPDATE_AND_CREATE_TOPIC, fields)

    def _changed(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        if self._draw.random() < 0.3:
            name = self._draw.choice(list(fields))
            fields |= {name: self._text(name)}
        if self._draw.random() < 0.05:
            del fields[self._draw.choice(list(fields))]
        return Command(code, ext_fields=fields, body=body)

    # -- random requests ---------------------------------------------------------------------------------------------

    def _any(self, names: frozenset[str]) -> Command:
        code = RequestCode[self._draw.choice(sorted(names))]
        fields = self._draw.sample(COMMON, 5)
        body: bytes = b""
        for kind in KINDS.get(code, ()):
            if issubclass(kind, Header):
                fields = list(kind.__struct_encode_fields__)
            else:
                body = json.dumps(self._value(kind, 0)).encode("utf-8", "replace")
        if not body and self._draw.random() < 0.3:
            body = json.dumps(self._value(Any, 0)).encode("utf-8", "replace")
        texts = {name: self._text(name) for name in fields if self._draw.random() < 0.9}
        flag = 2 if self._draw.random() < 0.05 else 0
        return Command(code, flag=flag, ext_fields=texts, body=body)

    def _number(self) -> str:
        if self._draw.random() < 0.1:
            return self._draw.choice(ODD_NUMBERS)
        return str(self._draw.choice((*EDGES, self._draw.choice(EDGES) + self._draw.choice((-1, 1)))))

    def _place(self) -> str:
        known = self._draw.random() < 0.85 and self.places
        return str(self._draw.choice(self.places) + self._draw.choice((0, 0, 0, 1, -1))) if known else self._number()

    def _offset(self) -> str:
        known = self._draw.random() < 0.6 and self.offsets
        return str(self._draw.choice(self.offsets)) if known else self._number()

    def _properties(self) -> str:
        return self._draw.choice(PROPERTIES).replace("{n}", self._number())

    def _text(self, name: str) -> str:
        lower = name.lower()
        if "topic" in lower or name == "b":
            return self._draw.choice(TOPICS)
        if "group" in lower or name == "a":
            return self._draw.choice(GROUPS)
        if name in {"properties", "i"}:
            return self._properties()
        number = self._place if "offset" in lower and self._draw.random() < 0.5 else self._number
        return self._draw.choice((number, number, lambda: self._draw.choice(TEXTS)))()

    def _value(self, kind: Any, depth: int) -> Any:
        if depth > 4 or self._draw.random() < 0.1:
            return self._draw.choice((None, [], {}, "", True, self._draw.choice(EDGES), 1.5, [None], {"": 0}))
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return {
                one.encode_name: self._value(one.type, depth + 1)
                for one in msgspec.structs.fields(kind)
                if self._draw.random() < 0.9
            }
        described = kind if isinstance(kind, msgspec.inspect.Type) else msgspec.inspect.type_info(kind)
        return self._described(described, depth)

    def _described(self, kind: msgspec.inspect.Type, depth: int) -> Any:
        draw = self._draw
        match kind:
            case msgspec.inspect.StructType():
                made: Any = self._value(kind.cls, depth)
            case msgspec.inspect.UnionType():
                made = self._value(draw.choice(kind.types), depth)
            case msgspec.inspect.ListType() | msgspec.inspect.SetType() | msgspec.inspect.VarTupleType():
                made = [self._value(kind.item_type, depth + 1) for _ in range(draw.randrange(3))]
            case msgspec.inspect.DictType():
                names = [draw.choice(TOPICS + GROUPS) for _ in range(draw.randrange(3))]
                made = {name: self._value(kind.value_type, depth + 1) for name in names}
            case msgspec.inspect.IntType():
                made = draw.choice(EDGES)
            case msgspec.inspect.BoolType():
                made = draw.random() < 0.5
            case _:
                made = draw.choice(TOPICS + GROUPS + TEXTS)
        return made


def _kinds() -> Iterator[tuple[int, type[Header | Body]]]:
    for shape in shapes():
        for code in sorted(shape.requests):
            yield code, shape.kind  # type: ignore[misc] # of these two kinds


KINDS: Final[dict[int, list[type[Header | Body]]]] = {}
"""Maps each request code to its header and body classes, if it has any."""
for _code, _kind in _kinds():
    KINDS.setdefault(_code, []).append(_kind)


Queues = dict[tuple[str, int], list[bytes]]
LIVES: Final = 2
SEQUENCE_LENGTH: Final = 250
SPOILED_SHARE: Final = 0.04
"""The share of requests with invalid bytes. Most of these requests end their connection."""
NAME_SERVER_SHARE: Final = 0.15
SOON_S: Final = 0.2


@define
class World:
    """A broker that serves a script, and the failures found.

    Invariant: `died` lists the threads that ended with an exception. `harm` lists damage to the store: queues that are
    missing when a copy of the store's files is opened after a simulated kill, and problems that `store verify` finds.
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
            # The queues are listed before the copy, because timers and transactions may add messages meanwhile.
            before = listed(broker.store)
            killed(directory, copied.name)
        with Broker.start(RealRuntime(), str(copied), policy=policy, config=config, store_config=store) as broker:
            after = listed(broker.store)
        # Without these settings light queues are not restored after a crash, and the broker logs a warning about it at
        # start.
        has_light_queues = store.multi_dispatch and store.light_queues
        sure = [queue for queue in before if has_light_queues or not queue[0].startswith(LMQ_PREFIX)]
        lost = [queue for queue in sure if after.get(queue, [])[: len(before[queue])] != before[queue]]
        self.harm += [f"{queue} is not what it was" for queue in lost]
        for store_directory in (directory, copied):
            found = verify(RealRuntime().files, str(store_directory)).problems
            self.harm += [f"{problem.file}: {problem.found}" for problem in found]

    def _spoil(self, line: Line, request: Command, draw: random.Random) -> None:
        """Send a request with invalid bytes. The length may be wrong, so no further request may use this connection."""
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
        # A send waits for its answer because it stores a message. Other requests are checked with the next send.
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
    address: tuple[str, int]
    client: RawClient = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.client = RawClient(self.address)

    def reconnect(self) -> None:
        self.client.close()
        self.client = RawClient(self.address)


@contextmanager
def lines_to(broker: Broker) -> Iterator[tuple[Line, Line]]:
    lines = Line(broker.address), Line(broker.name_server_address)
    try:
        yield lines
    finally:
        for line in lines:
            line.client.close()


def listed(store: MessageStore) -> Queues:
    return {(topic, queue_id): read_all(store, topic, queue_id) for topic, queue_id in store.queues()}


def found(directory: Path, seed: int) -> list[str]:
    world, draw = World(Script(seed)), random.Random(seed)
    with watching() as raised:
        try:
            for life in range(LIVES):
                world.live(directory / f"{seed}", directory / f"{seed}-killed-{life}", draw)
        except StoreUserError as error:
            world.harm.append(str(error))
    wrong = [*world.died, *raised, *world.harm]
    return [*wrong, *world.said[-5:]] if wrong else []


def test_other_clients_are_served_after_random_requests(tmp_path: Path) -> None:
    """This test runs two policies; `make nightly` tries hundreds of seeds."""
    assert found(tmp_path, 2) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_other_clients_are_served_after_many_random_requests(tmp_path: Path) -> None:
    assert {seed: wrong for seed in range(1_000, 1_300) if (wrong := found(tmp_path, seed))} == {}
