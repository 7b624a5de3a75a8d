"""A broker's start, stop and restart, its saved tables, its services by request code, and its hooks."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final

import msgspec
import pytest
from attrs import define, field
from model_tests.support.broker.brokers import SMALL_STORE, Brokers, one_by_one, wait_held, wait_until, wait_visible
from model_tests.support.broker.raw_client import (
    RawClient,
    bodies_of,
    pull_fields,
    records_of,
    send_fields,
    send_message,
)
from model_tests.support.ports import closed_port

from longpoll_broker.broker import Broker, ListenError
from longpoll_broker.config import BrokerConfig
from longpoll_broker.errors import StoreUserError
from longpoll_broker.handler import CodeServedTwiceError, combine_processors
from longpoll_broker.io.processors import Processor, RequestAbortedError, Serving, serves
from longpoll_broker.shared.topics import TopicConfig
from longpoll_broker.store.message_store import MessageStore
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError, UserError
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT, Policy

PULL = RequestCode.PULL_MESSAGE


def test_the_tables_have_rocketmqs_shape(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers.start(config=BrokerConfig(default_topic_queue_count=6))
    client = brokers.connect(broker)
    send_message(client, "T")
    client.pull("T")
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
    brokers: Brokers, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "consumerOffset.json").write_text('{\n\t"offsetTable":{\n\t\t"T@G":{0:12,1:7}\n\t}\n}')
    (config / "topics.json").write_text("{")
    (config / "topics.json.bak").write_text(
        '{"topicConfigTable":{"T":{"order":false,"perm":6,"readQueueNums":2,"topicFilterType":"SINGLE_TAG",'
        '"topicName":"T","topicSysFlag":0,"writeQueueNums":2}}}'
    )
    client = brokers.client()
    asked = client.call(RequestCode.QUERY_CONSUMER_OFFSET, {"consumerGroup": "G", "topic": "T", "queueId": "1"})
    assert asked.ext_fields == {"offset": "0"}
    assert "group G was at 7 of T queue 1, which ends at 0" in caplog.text
    assert client.pull("T", queue_id=1).code == 19
    assert client.pull("T", queue_id=2).code == 1


def test_a_topic_with_lost_configuration_is_found_by_its_queues(brokers: Brokers, tmp_path: Path) -> None:
    broker = brokers.start()
    send_message(brokers.connect(broker), "T", queue_id=2)
    broker.stop()
    for file in (tmp_path / "store" / "config").iterdir():
        file.unlink()
    reply = brokers.client().call(PULL, pull_fields("T", 0, queue_id=2))
    assert len(records_of(reply)) == 1


def test_an_unusable_address_or_store_is_reported_in_one_line(broker: Broker, tmp_path: Path) -> None:
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


def test_no_connection_waits_for_the_store_to_open(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that connects during the recovery is refused at once, so it can retry instead of waiting."""
    runtime, refused = RealRuntime(), list[Address]()
    open_store = MessageStore.open
    with closed_port() as address:

        def connect_first(*args: Any, **kwargs: Any) -> MessageStore:
            with pytest.raises(ConnectionRefusedError):
                runtime.connect(*address, timeout_s=5)
            refused.append(address)
            return open_store(*args, **kwargs)

        monkeypatch.setattr(MessageStore, "open", connect_first)
        assert brokers.start(listen=address).address == address
    assert refused == [address]


def test_a_failed_broker_start_leaves_no_resources(brokers: Brokers, tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    (config / "topics.json").write_text("{")
    with closed_port() as address:
        with pytest.raises(ConfigError):
            Broker.start(RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE, listen=address)
        (config / "topics.json").unlink()
        assert brokers.start(listen=address).address == address


def test_a_stopped_broker_releases_its_log(brokers: Brokers, tmp_path: Path) -> None:
    """After a stop, the answer to a woken pull must not keep slices of the log in memory."""
    mapped = Path("/proc/self/maps")
    broker = brokers.start()
    puller, sender = brokers.connect(broker), brokers.connect(broker)
    send_message(sender, "T")
    opaque = puller.hold("T", 1)
    wait_held(broker)
    send_message(sender, "T")
    assert puller.reply(opaque) is not None
    assert str(tmp_path) in mapped.read_text(encoding="utf-8")
    broker.stop()
    assert str(tmp_path) not in mapped.read_text(encoding="utf-8")


def test_a_stopped_broker_ends_its_threads(brokers: Brokers) -> None:
    for policy in (STRICT, ROCKETMQ_4_9):
        before = set(threading.enumerate())
        broker = brokers.start(policy=policy)
        with RawClient(broker.address) as client:
            send_message(client, "T")
        broker.stop()
        assert set(threading.enumerate()) <= before


def flags_of_answers(client: RawClient, broker: Broker) -> set[int]:
    """Returns the flags of the answers to sends, pulls, held pulls, refusals and invalid requests with flag 12."""
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
    held = [client.hold("T", 4, flag=12) for _ in range(3)]
    wait_held(broker, len(held))
    send_message(client, "T")
    found += [client.reply(opaque) for opaque in held]
    return {-1 if answer is None else answer.flag for answer in found}


@pytest.mark.parametrize("prepare", [lambda broker: broker, one_by_one], ids=["in bursts", "one by one"])
def test_every_answer_has_flag_1(brokers: Brokers, prepare: Callable[[Broker], Broker]) -> None:
    broker = prepare(brokers.start())
    assert flags_of_answers(brokers.connect(broker), broker) == {1}


def test_two_processors_of_one_code_are_refused() -> None:
    pulls: dict[int, Processor] = {RequestCode.PULL_MESSAGE: print}
    assert combine_processors([pulls, {RequestCode.HEART_BEAT: print}]) == pulls | {RequestCode.HEART_BEAT: print}
    with pytest.raises(CodeServedTwiceError, match=r"\[11\]"):
        combine_processors([pulls, pulls])
    with pytest.raises(AssertionError, match="Stammerer serves 34 twice"):

        class Stammerer(Serving):
            @serves(RequestCode.HEART_BEAT)
            def once(self, *_arguments: Any) -> None: ...

            @serves(RequestCode.HEART_BEAT)
            def again(self, *_arguments: Any) -> None: ...


SEND = RequestCode.SEND_MESSAGE_V2.value


@define
class Notes:
    fails_before: BaseException | None = None
    fails_after: BaseException | None = None
    told: list[tuple[str, int, int | None]] = field(factory=list)
    """Each call of a hook: "before" or "after", the request's code, and the answer's code (None if there is no answer).
    """
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
    """Create topic T, so that a later send to it is answered at once."""
    broker.topics.put(TopicConfig("T"))
    broker.sending.commits.save_topics()


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_every_request_and_answer(policy: Policy, brokers: Brokers) -> None:
    notes = Notes()
    broker, client = brokers.served(policy=policy, hooks=[notes])
    make_known(broker)
    send_message(client, "T", b"body")
    wait_visible(broker, "T", 1)
    reply = client.pull("T")
    assert bodies_of(reply) == [b"body"]
    assert notes.told == [
        ("before", SEND, None),
        ("after", SEND, 0),
        ("before", PULL, None),
        ("after", PULL, 0),
    ]
    assert (notes.bodies[1], len(notes.peers)) == (bytes(reply.body), 1)
    assert next(iter(notes.peers)).startswith("127.0.0.1:")


@pytest.mark.parametrize("policy", [STRICT, ROCKETMQ_4_9], ids=lambda policy: policy.name)
def test_a_hook_sees_no_answer_of_a_held_pull(policy: Policy, brokers: Brokers) -> None:
    notes = Notes()
    broker, puller, sender = brokers.served_two(policy=policy, hooks=[notes])
    send_message(sender, "T")
    wait_visible(broker, "T", 1)
    notes.told.clear()
    opaque = puller.hold("T", 1)
    wait_until(lambda: len(notes.told) == 2)
    assert notes.told == [("before", PULL, None), ("after", PULL, None)]
    send_message(sender, "T")
    reply = puller.answer(opaque)
    assert (reply.code, notes.told[2:]) == (0, [("before", SEND, None), ("after", SEND, 0)])


@pytest.mark.parametrize(
    ("hook", "code", "remark", "stored"),
    [
        (Notes(fails_before=RequestAbortedError(16, "not for you")), 16, "not for you", 0),
        (Notes(fails_after=RequestAbortedError(14, "too late for you")), 14, "too late for you", 1),
        (Notes(fails_before=ValueError("injected")), 1, "ValueError: injected", 0),
    ],
    ids=["refused before", "refused after", "exception before"],
)
def test_a_hook_may_end_a_request(hook: Notes, code: int, remark: str, stored: int, *, brokers: Brokers) -> None:
    second = Notes()
    broker, client = brokers.served(hooks=[hook, second])
    make_known(broker)
    reply = client.put("T")
    assert (reply.code, reply.remark) == (code, remark)
    assert len(second.told) == (0 if hook.fails_before else 1)
    wait_visible(broker, "T", stored)
    hook.fails_before = hook.fails_after = None
    assert client.put("T").code == 0


def test_a_hook_that_fails_after_a_hold_causes_no_second_answer(brokers: Brokers) -> None:
    """If a hook raises after the pull was held, the hold table still sends the only answer."""
    broker = brokers.start()
    send_message(brokers.connect(broker), "T")
    broker.stop()
    broker, puller, sender = brokers.served_two(hooks=[Notes(fails_after=RequestAbortedError(1, "planted"))])
    opaque = puller.hold("T", 1)
    wait_held(broker)
    sender.send(SEND, send_fields("T"), b"x")
    reply = puller.answer(opaque)
    assert reply.code == 0


def test_hooks_do_not_see_unknown_codes(brokers: Brokers) -> None:
    notes = Notes()
    broker = brokers.start(hooks=[notes])
    assert (brokers.connect(broker).call(9999, {}).code, notes.told) == (3, [])


ROOT: Final = Path(__file__).parents[2]
PAGE: Final = ROOT / "docs/way-of-a-message.md"
PRODUCT: Final = (f"{ROOT}/reference/", f"{ROOT}/spec/")
ROW: Final = re.compile(r"^\| `([\w/]+\.py)` \| `([\w.]+)` \|", re.MULTILINE)
FILES: Final = {"send": 19, "pull": 16, "wake": 24}
"""The number of product files whose functions run in a send, in a pull, and in a send that wakes a pull.

If fewer files run, lower the number; never raise it."""
Call = tuple[str, str]


@contextmanager
def traced() -> Iterator[list[tuple[str, CodeType]]]:
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
    passes: list[list[Call]] = [[]]
    for thread, code in calls:
        root = next(filter(code.co_filename.startswith, PRODUCT), None)
        if thread == "io-0" and root is not None:
            if code.co_qualname == "IoLoop._run_pass":
                passes.append([])
            passes[-1].append((code.co_filename.removeprefix(root), code.co_qualname))
    return passes


@pytest.fixture
def passes(brokers: Brokers) -> dict[str, list[Call]]:
    """Returns the calls made by a send, by a pull, by a held pull, and by the send that wakes the held pull."""
    with traced() as calls:
        broker = brokers.start()
        producer, consumer = brokers.connect(broker), brokers.connect(broker)
        for _ in range(2):  # The first messages create topic, group and files.
            send_message(producer, "T")
            consumer.pull("T")
        held = consumer.send_pull("T", 2, timeout_ms=60_000)
        wait_held(broker)
        send_message(producer, "T")
        assert consumer.answer(held).code == 0
        # A further message ends the measured pass, because a stop of the broker would add calls.
        send_message(producer, "T")
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


def test_the_page_lists_the_calls_in_order(passes: dict[str, list[Call]]) -> None:
    text = PAGE.read_text()
    named = [(f"longpoll_broker/{file}", name) for file, name in ROW.findall(text)]
    assert len(named) == text.count("\n| `") > 30
    assert len(re.findall(r"[^\s|]+", text)) <= 500
    assert first_not_called(named, passes["held"] + passes["wake"]) is None


def test_the_number_of_files_that_serve_a_request_does_not_grow(passes: dict[str, list[Call]]) -> None:
    assert {name: len({file for file, _ in passes[name]}) for name in FILES} == FILES


@pytest.mark.parametrize("is_taken", [False, True])
def test_the_vip_port_is_the_brokers_port_minus_two(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_taken: bool
) -> None:
    """The VIP port is two below the broker's port; if another program uses it, the broker logs that and continues."""
    with ExitStack() as stack:
        while True:
            host, port = stack.enter_context(closed_port())
            below = stack.enter_context(socket.socket())
            below.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                below.bind((host, port - 2))
                break
        if is_taken:
            below.listen()
        broker = Broker.start(
            RealRuntime(), str(tmp_path / "store"), store_config=SMALL_STORE, listen=(host, port), opens_vip_port=True
        )
        with broker, RawClient((host, port if is_taken else port - 2)) as client:
            assert send_message(client, "T") == 0
    assert (f"cannot listen on {host}:{port - 2}" in caplog.text) is is_taken
