"""A broker's start, stop and restart, its saved tables, its services by request code, and hooks around requests."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import attrs
import msgspec
import pytest
from attrs import define, field
from model_tests.support.broker.brokers import SMALL_STORE, Connect, StartBroker, one_by_one, wait_until
from model_tests.support.broker.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from model_tests.support.ports import closed_port
from model_tests.support.service import answer_of, served, served_two

from longpoll_broker.broker import Broker, ListenError
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.handler import CodeServedTwiceError, combine_processors
from longpoll_broker.io.processors import Processor, RequestAbortedError, Serving, serves
from longpoll_broker.shared.offsets import Offsets
from longpoll_broker.shared.timer_offsets import DelayOffsets
from longpoll_broker.shared.topics import Groups, TopicConfig, Topics
from longpoll_broker.store.message_store import MessageStore
from longpoll_broker.upkeep.config_files import GROUPS, OFFSETS, TOPICS, ConfigFiles
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError, UserError
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy, preset

PULL = RequestCode.PULL_MESSAGE
LONG_MS = 30_000


def test_messages_offsets_and_topics_survive_a_restart(
    broker: Broker, start_broker: StartBroker, client: RawClient, connect: Connect
) -> None:
    for number in range(10):
        send_message(client, "T", b"%d" % number, queue_id=1)
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "4"}
    assert client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit).code == 0
    broker.stop()
    again = connect(start_broker().address)
    assert again.call(RequestCode.QUERY_CONSUMER_OFFSET, commit).ext_fields == {"offset": "4"}
    reply = again.call(PULL, pull_fields("T", 0, queue_id=1))
    assert [bytes(record.body) for record in records_of(reply)] == [b"%d" % number for number in range(10)]
    assert send_message(again, "T", queue_id=1) == 10


def test_the_tables_have_rocketmqs_shape(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    broker = start_broker(config=BrokerConfig(default_topic_queue_count=6))
    client = connect(broker.address)
    send_message(client, "T")
    client.call(PULL, pull_fields("T", 0))
    commit = {"consumerGroup": "G", "topic": "T", "queueId": "1", "commitOffset": "4"}
    client.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    broker.stop()
    config = tmp_path / "store" / "config"
    topics = msgspec.json.decode((config / "topics.json").read_bytes())["topicConfigTable"]
    assert topics["T"] == {
        "topicName": "T",
        "readQueueNums": 4,
        "writeQueueNums": 4,
        "perm": 6,
        "topicFilterType": "SINGLE_TAG",
        "topicSysFlag": 0,
        "order": False,
    }
    assert topics["TBW102"]["readQueueNums"] == 6
    groups = msgspec.json.decode((config / "subscriptionGroup.json").read_bytes())["subscriptionGroupTable"]
    assert groups["G"]["consumeEnable"] is True
    assert msgspec.json.decode((config / "consumerOffset.json").read_bytes()) == {"offsetTable": {"T@G": {"1": 4}}}


def test_fastjsons_unquoted_keys_and_a_backup_are_read(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_text('{\n\t"offsetTable":{\n\t\t"T@G":{0:12,1:7}\n\t}\n}')
    (config / "topics.json").write_text("{")
    (config / "topics.json.bak").write_text(
        '{"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":2}}}'
    )
    client = connect(start_broker().address)
    asked = client.call(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": "1"})
    assert asked.ext_fields == {"offset": "0"}
    assert "group G was at 7 of T queue 1, which ends at 0" in caplog.text
    assert client.call(PULL, pull_fields("T", 0, queue_id=1)).code == 19
    assert client.call(PULL, pull_fields("T", 0, queue_id=2)).code == 1


def test_a_topic_whose_configuration_was_lost_is_known_by_its_queues(
    start_broker: StartBroker, connect: Connect, tmp_path: Path
) -> None:
    broker = start_broker()
    send_message(connect(broker.address), "T", queue_id=2)
    broker.stop()
    for file in (tmp_path / "store" / "config").iterdir():
        file.unlink()
    reply = connect(start_broker().address).call(PULL, pull_fields("T", 0, queue_id=2))
    assert len(records_of(reply)) == 1


def test_what_cannot_be_used_is_said_in_one_line(broker: Broker, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    with pytest.raises(ListenError, match="choose another address"):
        Broker.start(RealRuntime(), other, store_config=SMALL_STORE, listen=broker.address)
    assert not (tmp_path / "other").exists()
    with pytest.raises(StoreUserError, match="in use"):
        Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE)
    (tmp_path / "other" / "config").mkdir(parents=True)
    (tmp_path / "other" / "config" / "topics.json").write_text("{")
    with pytest.raises(ConfigError, match=r"topics\.json"):
        Broker.start(RealRuntime(), other, store_config=SMALL_STORE)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="record"):
        Broker.start(
            RealRuntime(), str(tmp_path / "third"), store_config=SMALL_STORE, record_directory=str(tmp_path / "file")
        )


def test_no_connection_waits_for_the_store_to_open(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects while a restarted broker recovers is refused, so it retries and is not kept waiting."""
    runtime, refused = RealRuntime(), list[Address]()
    open_store = MessageStore.open
    with closed_port() as address:

        def connect_first(*args: Any, **kwargs: Any) -> MessageStore:
            with pytest.raises(ConnectionRefusedError):
                runtime.connect(*address, timeout_s=5)
            refused.append(address)
            return open_store(*args, **kwargs)

        monkeypatch.setattr(MessageStore, "open", connect_first)
        assert start_broker(listen=address).address == address
    assert refused == [address]


def test_a_failed_start_leaves_nothing_behind(start_broker: StartBroker, tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    with closed_port() as address:
        with pytest.raises(ConfigError):
            Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE, listen=address)
        (config / "topics.json").unlink()
        assert start_broker(listen=address).address == address


@pytest.mark.parametrize("sync", [False, True], ids=["async", "sync"])
def test_what_is_acknowledged_is_visible(start_broker: StartBroker, connect: Connect, sync: bool) -> None:
    """Under the strict policy, before the answer leaves."""
    store_config = attrs.evolve(SMALL_STORE, flush_disk_sync=sync, flush_interval_ms=1_000_000)
    broker = start_broker(store_config=store_config)
    client = connect(broker.address)
    for number in range(3):
        assert (send_message(client, "T"), broker.store.visible_end("T", 0)) == (number, number + 1)


def test_a_stopped_broker_lets_go_of_its_log(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    """An answer to a woken pull must not keep slices of the log."""
    mapped = Path("/proc/self/maps")
    broker = start_broker()
    puller, sender = connect(broker.address), connect(broker.address)
    send_message(sender, "T")
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    send_message(sender, "T")
    assert puller.reply(opaque) is not None
    assert str(tmp_path) in mapped.read_text(encoding="utf-8")
    broker.stop()
    assert str(tmp_path) not in mapped.read_text(encoding="utf-8")


def test_a_stopped_broker_ends_its_threads(start_broker: StartBroker, connect: Connect) -> None:
    for policy in (STRICT, ROCKETMQ_4_9):
        before = set(threading.enumerate())
        broker = start_broker(policy=policy)
        with RawClient(broker.address) as client:
            send_message(client, "T")
        broker.stop()
        assert set(threading.enumerate()) <= before


def flags_of_answers(client: RawClient, broker: Broker) -> set[int]:
    """The flags of answers to requests with a flag of 12: sends, pulls, held ones, refusals, and nonsense."""
    topic = {"topic": "T", "queueId": "0"}
    told = [
        (RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x"),
        (RequestCode.SEND_MESSAGE_V2, send_fields("T", 99), b"x"),
        (PULL, pull_fields("T", 0), b""),
        (PULL, pull_fields("T", 9), b""),
        (PULL, pull_fields("no such topic", 0), b""),
        (RequestCode.GET_MAX_OFFSET, topic, b""),
        (RequestCode.GET_MAX_OFFSET, {}, b""),
        (70_000, {}, b""),
    ]
    found = [client.reply(client.send(code, fields, body, flag=12)) for code, fields, body in told]
    sends = [client._request(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x", flag=12) for _ in range(3)]
    client.send_bytes(b"".join(content for _opaque, content in sends))
    found += [client.reply(opaque) for opaque, _content in sends]
    held = [client.send(PULL, pull_fields("T", 4, timeout_ms=LONG_MS), flag=12) for _ in range(3)]
    wait_until(lambda: len(broker.hold_service) == len(held))
    send_message(client, "T")
    found += [client.reply(opaque) for opaque in held]
    return {-1 if answer is None else answer.flag for answer in found}


@pytest.mark.parametrize("prepare", [lambda broker: broker, one_by_one], ids=["bursts", "one by one"])
def test_every_answer_s_flag_is_1(
    start_broker: StartBroker, connect: Connect, prepare: Callable[[Broker], Broker]
) -> None:
    broker = prepare(start_broker())
    assert flags_of_answers(connect(broker.address), broker) == {1}


def tables(directory: Path) -> ConfigFiles:
    files = ConfigFiles(RealRuntime(), str(directory), Topics(), Groups(), Offsets(), DelayOffsets())
    files.load()
    return files


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A directory with every table saved twice, so that each has its backup."""
    files = tables(tmp_path)
    for number in (1, 2):
        files.topics.put(TopicConfig(f"T{number}"))
        files.groups.find(f"G{number}")
        files.offsets.commit("T", "G", 0, number)
        files.delays.by_level[3] = number
        files.delays.changed = True
        files.save()
    return tmp_path


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b'{"topicConfigTable":[]}', b"\xff", b"[" * 5000])
def test_a_table_that_cannot_be_read_is_taken_from_its_backup_and_repaired(saved: Path, damage: bytes) -> None:
    """The next save writes the table and keeps the backup."""
    backup = (saved / f"{TOPICS}.bak").read_bytes()
    (saved / TOPICS).write_bytes(damage)
    files = tables(saved)
    assert files.topics.get("T1") is not None
    assert files.topics.get("T2") is None
    files.save()
    assert (saved / f"{TOPICS}.bak").read_bytes() == backup
    (saved / f"{TOPICS}.bak").unlink()
    assert tables(saved).topics.get("T1") is not None


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            TOPICS,
            '{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":1000000000}}}',
            "1000000000 queues, 0 to 16384",
        ),
        (TOPICS, '{"topicConfigTable":{"T":{"topicName":"T","writeQueueNums":16385}}}', "16385 queues, 0 to 16384"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":9223372036854775808}}}', "cannot be used"),
        (OFFSETS, '{"offsetTable":{"T@G":{"0":"x"}}}', "cannot be used"),
    ],
)
def test_a_number_that_nobody_can_serve_is_refused(tmp_path: Path, name: str, content: str, said: str) -> None:
    """A topic of a billion queues would cost every client minutes and gigabytes."""
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError, match=said):
        tables(tmp_path)


def test_the_greatest_numbers_are_served(tmp_path: Path) -> None:
    (tmp_path / TOPICS).write_text('{"topicConfigTable":{"T":{"topicName":"T","readQueueNums":16384}}}')
    (tmp_path / OFFSETS).write_text('{"offsetTable":{"T@G":{"0":9223372036854775807}}}')
    files = tables(tmp_path)
    assert files.offsets.by_pair["T@G"] == {0: 2**63 - 1}
    assert files.topics.get("T") is not None


def test_a_disk_that_fails_while_a_table_is_repaired_loses_nothing(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (saved / OFFSETS).write_bytes(b"{")
    files = tables(saved)
    write_atomic = files.runtime.files.write_atomic

    def fails_in_the_end(path: str, content: bytes) -> None:
        if path.endswith(OFFSETS):
            raise OSError("planted")
        write_atomic(path, content)

    monkeypatch.setattr(files.runtime.files, "write_atomic", fails_in_the_end)
    with pytest.raises(OSError, match="planted"):
        files.save()
    assert tables(saved).offsets.query("T", "G", 0) == 1


def test_nothing_is_begun_without_a_table_that_was_there(saved: Path) -> None:
    for name in (GROUPS, f"{GROUPS}.bak"):
        (saved / name).write_bytes(b"{")
    with pytest.raises(ConfigError, match=r"subscriptionGroup\.json\.bak cannot be read"):
        tables(saved)
    assert (saved / GROUPS).read_bytes() == b"{"


def test_a_directory_without_tables_begins_empty(tmp_path: Path) -> None:
    """It saves nothing until something changes."""
    tables(tmp_path).save()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / TOPICS).write_bytes(b'{"dataVersion":{"counter":1},"topicConfigTable":null}')
    assert tables(tmp_path).topics.by_name == {}


def nothing(*_arguments: Any) -> None:
    pass


def other(*_arguments: Any) -> None:
    pass


def test_services_of_one_code_are_refused() -> None:
    first: dict[int, Processor] = {RequestCode.PULL_MESSAGE: nothing, RequestCode.HEART_BEAT: nothing}
    assert combine_processors([first, {RequestCode.SEND_MESSAGE: other}]) == first | {RequestCode.SEND_MESSAGE: other}
    with pytest.raises(CodeServedTwiceError, match=r"\[11\]"):
        combine_processors([first, {RequestCode.PULL_MESSAGE: other}])
    with pytest.raises(AssertionError, match="Stammerer serves 34 twice"):

        class Stammerer(Greeter):
            @serves(RequestCode.HEART_BEAT)
            def again(self, *_arguments: Any) -> None: ...


class Greeter(Serving):
    """Serves two codes by one method, and has another that serves none."""

    @serves(RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT)
    def greet(self, *_arguments: Any) -> None:
        pass

    def helps(self, *_arguments: Any) -> None:
        pass


class Louder(Greeter):
    """Overrides a method without a new mark."""

    def greet(self, *_arguments: Any) -> None:
        pass


@pytest.mark.parametrize("kind", [Greeter, Louder])
def test_a_service_serves_what_its_methods_are_marked_with(kind: type[Greeter]) -> None:
    greeter = kind()
    assert greeter.processors == {RequestCode.PULL_MESSAGE: greeter.greet, RequestCode.HEART_BEAT: greeter.greet}


@pytest.mark.parametrize(("policy", "more"), [("strict", set()), ("rocketmq-5", {361, 905})])
def test_a_room_serves_what_its_services_say(start_broker: StartBroker, policy: str, more: set[int]) -> None:
    broker = start_broker(policy=preset(policy))
    pulls, sends = broker.pulling.processors, broker.sending.processors
    assert set(sends) == {10, 310, 320, 36, 37, 370}
    assert {RequestCode.PULL_MESSAGE.value} <= set(pulls)
    assert more <= set(pulls)
    assert len(combine_processors([pulls, sends, broker.handler.administering.processors])) >= 26


SEND = RequestCode.SEND_MESSAGE_V2.value


@define
class Notes:
    """A hook that records its calls and can raise."""

    fails_before: BaseException | None = None
    fails_after: BaseException | None = None
    told: list[tuple[str, int, int | None]] = field(factory=list)
    """When, the request's code, and the answer's: None for none yet, and before."""
    peers: set[str] = field(factory=set)
    bodies: list[bytes] = field(factory=list)

    def before_request(self, peer: str, request: Command) -> None:
        self.peers.add(peer)
        self.told.append(("before", request.code, None))
        if self.fails_before is not None:
            raise self.fails_before

    def after_response(self, peer: str, request: Command, response: Command | None) -> None:
        self.peers.add(peer)
        self.told.append(("after", request.code, None if response is None else response.code))
        if response is not None:
            self.bodies.append(bytes(response.body))
        if self.fails_after is not None:
            raise self.fails_after


def make_known(broker: Broker) -> None:
    """Create the topic T, so that a send is answered at once."""
    broker.topics.put(TopicConfig("T"))
    broker.sending.commits.save_topics()


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_every_request_and_answer(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes()
    broker, client = served(start_broker, connect, policy=policy, hooks=[notes])
    make_known(broker)
    send_message(client, "T", b"body")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    reply = client.call(PULL, pull_fields("T", 0))
    assert [bytes(record.body) for record in records_of(reply)] == [b"body"]
    assert notes.told == [
        ("before", SEND, None),
        ("after", SEND, 0),
        ("before", PULL, None),
        ("after", PULL, 0),
    ]
    assert (notes.bodies[1], len(notes.peers)) == (bytes(reply.body), 1)
    assert next(iter(notes.peers)).startswith("127.0.0.1:")


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_no_answer_of_a_held_pull(policy: Policy, start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes()
    broker, puller, sender = served_two(start_broker, connect, policy=policy, hooks=[notes])
    send_message(sender, "T")
    wait_until(lambda: broker.store.visible_end("T", 0) == 1)
    notes.told.clear()
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(notes.told) == 2)
    assert notes.told == [("before", PULL, None), ("after", PULL, None)]
    send_message(sender, "T")
    reply = answer_of(puller, opaque)
    assert (reply.code, notes.told[2:]) == (0, [("before", SEND, None), ("after", SEND, 0)])


@pytest.mark.parametrize(
    ("hook", "code", "remark", "stored"),
    [
        (Notes(fails_before=RequestAbortedError(16, "not for you")), 16, "not for you", 0),
        (Notes(fails_after=RequestAbortedError(14, "too late for you")), 14, "too late for you", 1),
        (Notes(fails_before=ValueError("injected")), 1, "ValueError: injected", 0),
    ],
    ids=["before", "after", "a fault"],
)
def test_a_hook_may_end_a_request(
    hook: Notes, code: int, remark: str, stored: int, *, start_broker: StartBroker, connect: Connect
) -> None:
    second = Notes()
    broker, client = served(start_broker, connect, hooks=[hook, second])
    make_known(broker)
    reply = client.call(SEND, send_fields("T"), b"x")
    assert (reply.code, reply.remark) == (code, remark)
    assert len(second.told) == (0 if hook.fails_before else 1)
    wait_until(lambda: broker.store.visible_end("T", 0) == stored)
    hook.fails_before = hook.fails_after = None
    assert client.call(SEND, send_fields("T"), b"x").code == 0


def test_a_hook_that_fails_after_a_hold_causes_no_second_answer(start_broker: StartBroker, connect: Connect) -> None:
    """The hold table answers the pull."""
    broker = start_broker()
    send_message(connect(broker.address), "T")
    broker.stop()
    broker, puller, sender = served_two(
        start_broker, connect, hooks=[Notes(fails_after=RequestAbortedError(1, "planted"))]
    )
    opaque = puller.send(PULL, pull_fields("T", 1, timeout_ms=LONG_MS))
    wait_until(lambda: len(broker.hold_service) == 1)
    sender.send(SEND, send_fields("T"), b"x")
    reply = answer_of(puller, opaque)
    assert reply.code == 0


def test_what_no_processor_serves_has_no_hooks(start_broker: StartBroker, connect: Connect) -> None:
    notes = Notes()
    broker = start_broker(hooks=[notes])
    assert (connect(broker.address).call(9999, {}).code, notes.told) == (3, [])


ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/way-of-a-message.md"
PRODUCT: Final = (f"{ROOT}/reference/", f"{ROOT}/spec/")
ROW: Final = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
FILES: Final = {"send": 19, "pull": 16, "wake": 24}
"""Product files whose functions run in the pass of a request: that wakes nobody, finds a message, wakes a pull.

Lower a number when fewer files run; never raise one.
"""
Call = tuple[str, str]
"""A file below its root, and the qualified name of a function in it."""


@contextmanager
def traced() -> Iterator[list[tuple[str, CodeType]]]:
    """The calls of all threads that start in the block, each with the name of its thread."""
    calls: list[tuple[str, CodeType]] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call":
            calls.append((threading.current_thread().name, frame.f_code))

    threading.setprofile(note)
    try:
        yield calls
    finally:
        threading.setprofile(None)


def passes_of(calls: Iterable[tuple[str, CodeType]]) -> list[list[Call]]:
    """Product functions that each pass of the loop called."""
    passes: list[list[Call]] = [[]]
    for thread, code in calls:
        root = next(filter(code.co_filename.startswith, PRODUCT), None)
        if thread == "io-0" and root is not None:
            if code.co_qualname == "IoLoop._run_pass":
                passes.append([])
            passes[-1].append((code.co_filename.removeprefix(root), code.co_qualname))
    return passes


@pytest.fixture
def passes(start_broker: StartBroker, connect: Connect) -> dict[str, list[Call]]:
    """The calls of four passes: a send, a pull, a pull that is held, and the send that wakes it."""
    with traced() as calls:
        broker = start_broker()
        producer, consumer = connect(broker.address), connect(broker.address)
        for _ in range(2):  # The first ones make topic, group and files.
            send_message(producer, "T")
            consumer.call(RequestCode.PULL_MESSAGE, pull_fields("T", 0))
        held = consumer.send(RequestCode.PULL_MESSAGE, pull_fields("T", 2, timeout_ms=60_000))
        wait_until(lambda: len(broker.hold_service) == 1)
        send_message(producer, "T")
        assert consumer.answer(held).code == 0
        send_message(producer, "T")  # Its pass ends the one before; a stop would add to that.
        broker.stop()
    served = [
        each
        for each in passes_of(calls)
        if {"SendProcessor.receive", "PullProcessor.receive"} & {name for _, name in each}
    ]
    assert len(served) == 7
    return dict(zip(("send", "pull", "held", "wake"), served[2:6], strict=True))


def first_not_called(named: Iterable[Call], calls: Iterable[Call]) -> Call | None:
    left = iter(calls)
    return next((each for each in named if each not in left), None)


def test_the_page_names_what_is_called_in_its_order(passes: dict[str, list[Call]]) -> None:
    text = PAGE.read_text()
    named = [(f"longpoll_broker/{file}", name) for file, name in ROW.findall(text)]
    assert len(named) == text.count("\n| `") > 30
    assert len(re.findall(r"[^\s|]+", text)) <= 500
    assert first_not_called(named, passes["held"] + passes["wake"]) is None


def test_the_number_of_files_of_a_request_only_falls(passes: dict[str, list[Call]]) -> None:
    assert {name: len({file for file, _ in passes[name]}) for name in FILES} == FILES
