"""Wrong or unusual calls get an error at once and stop no client."""

from __future__ import annotations

import asyncio
import inspect
import math
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import lru_cache, partial, wraps
from typing import Any
from unittest.mock import Mock, create_autospec

import attrs
import pytest
from model_tests.support.broker.brokers import wait_until
from model_tests.support.broker.client_scenarios import member_options
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import RUNTIME, Clients, Heard, Loop, OnLoop, consumed, from_first, send

import longpoll_client as client
from longpoll_client import (
    Admin,
    AnswerTimeoutError,
    AsyncProducer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConfigError,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    ReceivedMessage,
    Retry,
    SendResult,
    TransactionProducer,
    TransactionState,
)
from longpoll_client.checks import check_plain
from longpoll_client.consume.membership import Membership
from longpoll_client.consume.rebalance import check_seek
from longpoll_client.link.exchange import WAIT_S_MAX
from longpoll_client.link.steps import Steps
from longpoll_client.produce.transactions import state_of
from longpoll_client.settings import MemberConfig

NOWHERE = "127.0.0.1:1"
WHOLE = ("batch_count_max", "cached_count_max", "cached_size_max", "cached_span_max", "thread_count")
TIMES = ("rebalance_s", "heartbeat_s", "persist_s", "pull_timeout_s", "consume_timeout_s")
CONFIGS: list[tuple[dict[str, Any], str]] = [
    *(({name: wrong}, f"{name} is") for name in WHOLE for wrong in ("1", None, 1.5, True, -1)),
    *(
        ({name: wrong}, f"{name} is .* more than 0 seconds")
        for name in TIMES
        for wrong in ("1", None, 0, -1, float("nan"))
    ),
    *(({name: 0}, f"{name} is 0") for name in ("thread_count", "cached_count_max")),
    ({"suspend_s": -1}, "suspend_s"),
    ({"hold_s": -1}, "hold_s"),
    ({"offsets_file": "here.json"}, "not an absolute path; pass one"),
    ({"thread_count": 1001}, "at most 1000"),
    ({"max_attempts": "1"}, "max_attempts"),
    ({"start_at": "later"}, "start_at is .later.; pass .first., .last., .stored. or a datetime"),
    ({"message_model": "BROADCASTING"}, "message_model is .* MessageModel.BROADCASTING"),
    ({"unreadable": "skip"}, "pass one of Unreadable.DEAD_LETTER"),
    ({"allocate": None}, "allocate is None, which is not callable"),
    ({"on_unreadable": 5}, "on_unreadable is 5"),
    *(({"client_id": wrong}, "client_id .* is not allowed: pass text") for wrong in (5, "", "\ud800", "x" * 256)),
    ({"offsets_file": 5}, "offsets_file 5"),
    *(({"group": wrong}, "group") for wrong in (None, 5, "", " ", "a b", "ü", "x" * 256, ["x"], "\ud800")),
]


@pytest.mark.parametrize(("wrong", "words"), CONFIGS, ids=str)
def test_an_invalid_config_is_refused(wrong: dict[str, Any], words: str) -> None:
    """A text in place of an enum was once ignored, so a group began at the end instead of the beginning."""
    options: dict[str, Any] = {"group": "G"}
    with pytest.raises(ConfigError, match=words):
        MemberConfig(**options | wrong)


def test_an_extreme_config_is_accepted() -> None:
    whole = dict.fromkeys(WHOLE, 1)
    made = MemberConfig(group="x" * 255, **whole | dict.fromkeys(TIMES, WAIT_S_MAX), suspend_s=0, max_attempts=1)  # type: ignore[arg-type] # a test's
    assert made.thread_count == 1


async def coroutine(*_given: object) -> Retry | None:
    """A coroutine that does nothing."""
    return None


def closed(call: Callable[[Any], object], kind: type[Admin | Producer] = Producer) -> None:
    with kind(NOWHERE) as client_of_it:
        call(client_of_it)


class Half:
    """A hook with only one of its two methods overridden."""

    def before_send(self, sending: object) -> None:
        """Do nothing before a send."""

    async def after_send(self, sending: object, outcome: object, latency_s: float, address: str) -> None:
        """Do nothing after a send."""


TEXT: Any = NOWHERE
CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: Producer(NOWHERE, group=""), "group ''"),
    (lambda: AsyncProducer(NOWHERE, group=None), "group None is not allowed: pass text"),  # type: ignore[arg-type] # a mistake
    (lambda: PushConsumer(NOWHERE, group="G", topics=(), listener=None, start_at="stored"), "listener is None"),  # type: ignore[arg-type]
    (lambda: AsyncPushConsumer(NOWHERE, group="G", topics=(), listener=5, start_at="stored"), "listener is 5"),  # type: ignore[arg-type]
    (lambda: PullConsumer(NOWHERE, group="G", config=TEXT), "config is .* pass a ConsumerConfig"),
    (lambda: PullConsumer(NOWHERE, group="G", topics=5), "topics is 5; pass a topic, a list"),  # type: ignore[arg-type]
    (lambda: PullConsumer(NOWHERE, group="G", topics=b"T"), "topics is b'T'; pass a topic, a list"),  # type: ignore[arg-type]
    (lambda: Producer(NOWHERE, credentials=TEXT), "credentials is a str; pass Credentials"),
    (lambda: Producer(NOWHERE, runtime=TEXT), "str is not a runtime; leave runtime= out"),
    (lambda: Admin(NOWHERE, tls=TEXT), "tls is .* pass an SSLContext"),
    (lambda: Producer("http://127.0.0.1:9876"), "write HOST:PORT"),
    (lambda: closed(lambda admin: admin.create_topic("T", 0), Admin), "queue_count is 0: it must be at least 1"),
    (lambda: AsyncProducer(RUNTIME), "is not text; write HOST:PORT"),  # type: ignore[arg-type]
    (
        lambda: PushConsumer(NOWHERE, group="G", topics=(), listener=coroutine, start_at="stored"),
        "listener is a coroutine function",
    ),
    (lambda: MemberConfig(group="G", on_unreadable=coroutine), "on_unreadable is a coroutine function"),
    (lambda: MemberConfig(group="G", hooks=5), "hooks are 5; pass a list"),  # type: ignore[arg-type]
    (lambda: MemberConfig(group="G", hooks=[5]), "before_consume of a int among hooks is None"),  # type: ignore[list-item]
    (lambda: Producer(NOWHERE, hooks="ab"), "hooks are 'ab'"),  # type: ignore[arg-type]
    (lambda: MemberConfig(group="G", hooks=iter([])), "hooks are <list_iterator .* pass a list"),  # type: ignore[arg-type]
    (lambda: Producer(NOWHERE, hooks=[Half()]), "after_send of a Half among hooks is a coroutine"),
    (lambda: AsyncProducer(NOWHERE, hooks=[5]), "before_send of a int"),  # type: ignore[list-item]
    (lambda: Producer(NOWHERE, compression="zlib"), "compression is .zlib.; pass one of"),  # type: ignore[arg-type]
    (lambda: AsyncProducer(NOWHERE, compress_over_bytes=-1), "compress_over_bytes is -1"),
    (lambda: closed(lambda producer: producer.send_batch("T", iter([]))), "a list_iterator is not a batch"),
    (lambda: closed(lambda producer: producer.reply("T", b"x")), "a str is not a request"),
    (
        lambda: closed(lambda producer: producer.send_nowait("T", b"x", callback=coroutine)),
        "callback is a coroutine function",
    ),
    (lambda: TransactionProducer(NOWHERE, group="G", check_transaction=None), "check_transaction is None"),  # type: ignore[arg-type]
    (
        lambda: TransactionProducer(NOWHERE, group="G", check_transaction=coroutine),  # type: ignore[arg-type]
        "check_transaction is a coroutine function",
    ),
    (lambda: AsyncTransactionProducer(NOWHERE, group="G", check_transaction=5), "check_transaction is 5"),  # type: ignore[arg-type]
    (lambda: state_of(True), "True is not the state of a transaction; return a TransactionState"),
    (lambda: state_of(False), "False is not the state"),
    (lambda: state_of(None), "None is not the state"),
    (lambda: state_of(1), "1 is not the state"),
    (lambda: check_seek(MessageQueue(topic="T", broker_name="b", queue_id=0), 1.5, 0, 9), "offset is 1.5"),  # type: ignore[arg-type]
    (lambda: check_seek(MessageQueue(topic="T", broker_name="b", queue_id=0), None, 0, 9), "offset is None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _call, words in CALLS])
def test_an_invalid_call_is_refused(call: Callable[[], object], words: str) -> None:
    """A `consumed` callback of the wrong type once deferred every message for ever."""
    with pytest.raises(ConfigError, match=words):
        call()


PLAIN: list[Callable[..., object]] = [
    print, [].append, int, partial(int), partial(consumed, []), TEXT.encode, lambda _message: None, Mock(),
    Mock(spec=consumed), create_autospec(consumed), lru_cache(consumed), wraps(coroutine)(partial(consumed)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_any_callable_is_accepted(number: int) -> None:
    """A callable without a code object does not count as a coroutine function."""
    check_plain("consumed", PLAIN[number])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"topic": None}, "topic None is not allowed: pass text"),
        ({"topic": "a b"}, "topic 'a b' is not allowed"),
        ({"topic": "x" * 128}, "1 to 127 letters"),
        ({"expression": None}, "expression is None; pass text"),
    ],
    ids=str,
)
def test_an_invalid_subscription_is_refused(clients: Clients, wrong: dict[str, Any], words: str) -> None:
    """A subscription to an invalid topic once waited for ever."""
    with pytest.raises(ConfigError, match=words):
        clients.pull(MemberConfig(group="G")).subscribe(**{"topic": "T"} | wrong)


def test_a_dead_letter_topic_of_the_longest_group_is_a_topic(clients: Clients) -> None:
    consumer, topic = clients.pull(MemberConfig(group="G")), "%DLQ%" + "x" * 255
    consumer.subscribe(topic)
    assert set(clients.member(consumer).membership.subscriptions) == {topic}


@pytest.mark.parametrize(
    ("call", "options", "words"),
    [
        ("send_nowait", {"callback": 5}, "callback is 5"),
        ("request_nowait", {"callback": 5}, "callback is 5"),
        ("send", {"queue_selector": 5}, "queue_selector is 5"),
        ("send", {"properties": [1]}, "properties are"),
    ],
)
def test_an_invalid_send_is_refused(clients: Clients, call: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        getattr(clients.producer(), call)("T", b"x", **options)


def test_a_second_close_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """A producer that has waited for a reply leaves its group at the first close, and the second close is silent."""
    with Producer(NOWHERE) as producer:
        assert producer._requests is not None
        producer._requests.expect("1", 10.0, lambda _outcome: None)
        producer.close()
        caplog.clear()
    assert caplog.text == ""


ENDLESS = [math.inf, 1e12]
NO_TIMES: list[Any] = [math.nan, "3", None]


def one_thread(group: str) -> MemberConfig:
    """Return a configuration with one thread or task, which starts at the first message."""
    return MemberConfig(group=group, start_at="first", thread_count=1)


def test_endless_timeouts_are_accepted_and_invalid_ones_are_refused(clients: Clients, topic: str) -> None:
    """A timeout of a year means no limit, a negative one means zero, and invalid ones are refused at once."""
    producer, consumer = clients.producer(), clients.pull(one_thread(f"T-{topic}"))
    for timeout_s in ENDLESS:
        assert producer.send(topic, b"x", timeout_s=timeout_s).code == 0
    told: list[object] = []
    producer.send_nowait(topic, b"x", callback=told.append, timeout_s=math.inf)
    wait_until(lambda: len(told) == 1)
    assert isinstance(told[0], SendResult)
    for wrong in NO_TIMES:
        with pytest.raises(ConfigError, match="seconds"):
            producer.send(topic, b"x", timeout_s=wrong)
    consumer.subscribe(topic)
    consumer.start()
    assert [len(consumer.poll(timeout_s, 1)) for timeout_s in ENDLESS] == [1, 1]
    for count in (0, -1):
        with pytest.raises(ConfigError, match="at least 1"):
            consumer.poll(1.0, count)
    assert len(consumer.poll(math.inf)) == 1
    assert consumer.poll(-1.0) == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"body": "text"}, "pass bytes"),
    ({"body": None}, "pass bytes"),
    ({"keys": ["a", 5]}, "keys is"),
    ({"tag": 5}, "tag is"),
    ({"properties": {"a": 5}}, "property 'a'"),
    ({"properties": {"a": ""}}, "property 'a'"),
    ({"properties": {"": "a"}}, "property ''"),
    ({"delay_s": "2"}, "delay_s"),
    ({"delay_s": -1}, "delay_s"),
    ({"delay_s": True}, "delay_s"),
    ({"delay_s": 7201}, "delay_s is 7201; pass at most 7200 seconds"),
    ({"deliver_at": 5}, "deliver_at is 5; pass a datetime with a time zone"),
    ({"keys": ["a b"]}, "a key of a list cannot have spaces"),
    ({"tag": "red || blue"}, "one tag without"),
    ({"tag": " red"}, "one tag without"),
    ({"tag": "*"}, "one tag without"),
    ({"topic": 5}, "topic 5 is not allowed"),
    ({"queue_id": "0"}, "queue_id is '0': it must be a whole number"),
]


@pytest.mark.parametrize(("wrong", "words"), WRONG, ids=str)
def test_an_unsendable_message_is_refused_without_a_request(wrong: dict[str, Any], words: str) -> None:
    """A body as text, a key with a space and a property that brokers drop are refused without a request."""
    with Producer("127.0.0.1:1") as producer, pytest.raises(ConfigError, match=words):
        producer.send(**{"topic": "T", "body": b"x"} | wrong)
    with pytest.raises(ConfigError, match="is not text"):
        Producer(None)  # type: ignore[arg-type] # a mistake


def test_several_name_servers_have_semicolons() -> None:
    """Addresses are separated by semicolons; a comma is refused with a hint."""
    for wrong in ("127.0.0.1:1,127.0.0.1:2", "127.0.0.1:1, b"):
        with pytest.raises(ConfigError, match="a semicolon between several"):
            Producer(wrong)


def test_a_delay_without_a_level_is_rounded_up_or_refused() -> None:
    """A broker would use its longest delay for a delay that it does not have."""
    with pytest.raises(ConfigError, match="delay_s is 7201; pass at most 7200"):
        Retry(delay_s=7201)
    assert [Retry(seconds).level for seconds in (None, 0, 1, 1.5, 10, 61, 7200)] == [0, 1, 1, 2, 3, 6, 18]


def test_a_synchronous_call_in_a_callback_raises_at_once(name_server: str, topic: str) -> None:
    """A synchronous call in a callback would wait for its own thread, so it raises; the connection continues."""
    outcomes: list[object] = []
    told = threading.Event()

    with Producer(name_server) as producer:

        def send_more(_outcome: object) -> None:
            try:
                outcomes.append(producer.send(topic, b"inside"))
            except (ConfigError, AnswerTimeoutError) as error:
                outcomes.append(error)
            told.set()

        producer.send_nowait(topic, b"x", callback=send_more)
        assert told.wait(PATIENCE_S)
        assert "a callback cannot wait" in str(outcomes[0])
        assert producer.send(topic, b"after").code == 0


class Unusual(BaseException):
    """An exception that `except Exception` does not catch, as some packages have."""


EXITS: list[tuple[str, type[BaseException]]] = [
    *(("threads", kind) for kind in (SystemExit, KeyboardInterrupt, asyncio.CancelledError)),
    *((kind, exits) for kind in ("loop", "orderly on a loop") for exits in (SystemExit, Unusual)),
    ("loop", asyncio.CancelledError),
]


@pytest.mark.parametrize(("kind", "exits"), EXITS)
def test_a_listener_that_exits_ends_neither_its_thread_nor_the_process(
    name_server: str, topic: str, kind: str, exits: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """The message is deferred as after any other exception, and the next message is delivered."""

    def listen(message: ReceivedMessage) -> None:
        if message.body == b"bad" and message.attempt == 1:
            raise exits

    async def listen_on_loop(messages: Sequence[ReceivedMessage]) -> None:
        if exits is asyncio.CancelledError and messages[0].body == b"bad":
            work = asyncio.create_task(asyncio.sleep(3600))
            work.cancel()
            await work
        heard(messages)

    heard, options = Heard(listen), member_options(from_first("E", thread_count=1, suspend_s=0.01))
    send(name_server, topic, b"bad", b"good")
    with ExitStack() as stack:
        if kind == "threads":
            consumer: Any = PushConsumer(name_server, topics=topic, listener=heard, **options)
        else:
            consumer = OnLoop(
                stack.enter_context(Loop()),
                AsyncPushConsumer(
                    name_server, topics=topic, listener=listen_on_loop, orderly=kind != "loop", **options
                ),
            )
        stack.callback(consumer.close)
        consumer.start()
        wait_until(lambda: b"good" in heard.bodies and consumer.statistics[topic].consumed_count >= 1)
        counts = consumer.statistics[topic]
        assert (counts.later_count, counts.sent_back_count) == (1, int(kind != "orderly on a loop"))
    is_cancelled = exits is asyncio.CancelledError and kind == "loop"
    assert ("was cancelled at" if is_cancelled else exits.__name__) in caplog.text


def test_a_plain_function_may_listen_on_an_event_loop(name_server: str, topic: str) -> None:
    """A message counts as consumed when the function returns. An earlier version made the message a dead letter."""
    heard = Heard()
    send(name_server, topic, b"1")
    with Loop() as loop:
        listening = AsyncPushConsumer(name_server, topics=topic, listener=heard, **member_options(one_thread("P")))
        with OnLoop(loop, listening) as consumer:
            consumer.start()
            wait_until(lambda: bool(consumer.statistics) and consumer.statistics[topic].consumed_count == 1)
            assert consumer.statistics[topic].later_count == 0
    assert heard.bodies == [b"1"]


def test_a_member_that_its_brokers_refuse_logs_the_reason(
    clients: Clients, topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Brokers of 5.x refuse a group with an invalid name, so the member gets no queue and logs the reason."""

    def none(_membership: Membership, _route: object) -> Steps[list[str]]:
        yield from ()
        return []

    monkeypatch.setattr(Membership, "members", none)
    consumer = clients.pulling(topic, one_thread("unusual"))
    assert consumer.queues == ()
    assert f"no broker of topic {topic} has this member in group unusual" in caplog.text


def test_an_option_of_other_calls_is_refused() -> None:
    """A one-way send refuses a delay, and every client refuses an unknown option, because it would have no effect."""
    transactions = TransactionProducer(NOWHERE, group="G", check_transaction=lambda _message: TransactionState.COMMIT)
    with Producer(NOWHERE) as producer, transactions:
        calls: list[tuple[Callable[..., object], str]] = [
            (partial(PullConsumer, NOWHERE, group="G"), "max_attempts; pass it as config=ConsumerConfig.max_attempts="),
            (partial(producer.send_one_way, "T", b""), "tagg; the keyword options are keys, properties, tag"),
            (partial(producer.send, "T", b""), "tagg"),
            (partial(producer.send_one_way, "T", b""), "delay_s"),
            (partial(producer.request, "T", b""), "queue_id"),
            (partial(transactions.send, "T", b"", lambda: TransactionState.COMMIT), "delay_s"),
            (partial(Producer, NOWHERE), "config"),
            (partial(PullConsumer, NOWHERE, group="G"), "compression"),
            (partial(Admin, NOWHERE), "group"),
        ]
        for call, option in calls:
            with pytest.raises(TypeError, match=f"unknown option {option}"):
                call(**{option.split(";")[0]: 1})


def calls_of(kind: type) -> dict[str, set[str]]:
    """Return each public method, and the constructor, with the names of its options."""
    fields = {field.name for field in attrs.fields(kind)} if attrs.has(kind) else set()
    names = [name for name in dir(kind) if not name.startswith("_") and name not in fields]
    calls = {name: call for name in [*names, "__init__"] if callable(call := getattr(kind, name))}
    found = {name: inspect.signature(call).parameters.values() for name, call in calls.items()}
    return {
        name: {str(each) if each.kind is each.VAR_KEYWORD else each.name for each in parameters}
        for name, parameters in found.items()
    }


@pytest.mark.parametrize("name", ["Producer", "PullConsumer", "PushConsumer", "TransactionProducer"])
def test_both_clients_have_the_same_methods_and_options(name: str) -> None:
    threads, loop = calls_of(getattr(client, name)), calls_of(getattr(client, f"Async{name}"))
    assert threads == loop
    assert len(threads) > 3
