"""What is none of what it is to be is told by its name at once, and not taken for something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial, wraps
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest

from longpoll_client import (
    Admin,
    AsyncProducer,
    AsyncPullConsumer,
    AsyncPushConsumer,
    AsyncTransactionProducer,
    ConsumerConfig,
    ConsumeStatus,
    MessageQueue,
    OutgoingMessage,
    Producer,
    PullConsumer,
    PushConsumer,
    Tracing,
    TransactionProducer,
)
from longpoll_client.checks import check_plain
from longpoll_client.consume.own_queues import check_seek
from longpoll_client.link.waits import WAIT_S_MAX
from longpoll_client.produce.transactions import state_of
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

RUNTIME = RealRuntime()
NOWHERE = "127.0.0.1:1"
WHOLE = ("batch_count_max", "cached_count_max", "cached_size_max", "cached_span_max", "thread_count", "hold_ms")
TIMES = ("rebalance_s", "heartbeat_s", "persist_s", "pull_timeout_s", "consume_timeout_s")
CONFIGS: list[tuple[dict[str, Any], str]] = [
    *(({name: wrong}, f"{name} is") for name in WHOLE for wrong in ("1", None, 1.5, True, -1)),
    *(
        ({name: wrong}, f"{name} is .* more than 0 seconds")
        for name in TIMES
        for wrong in ("1", None, 0, -1, float("nan"))
    ),
    ({"suspend_s": -1}, "suspend_s"),
    ({"thread_count": 1001}, "at most 1000"),
    ({"reconsume_count_max": "1"}, "reconsume_count_max"),
    ({"start_at": "first"}, "start_at is 'first'; pass one of StartAt.STORED, StartAt.FIRST"),
    ({"message_model": "BROADCASTING"}, "message_model is .* MessageModel.BROADCASTING"),
    ({"unreadable": "skip"}, "pass one of Unreadable.DEAD_LETTER"),
    ({"allocate": None}, "allocate is None, which is not callable"),
    ({"on_unreadable": 5}, "on_unreadable is 5"),
    ({"client_id": 5}, "client_id '5'"),
    ({"offsets_file": 5}, "offsets_file 5"),
    *(({"group": wrong}, "group") for wrong in (None, 5, "", " ", "x" * 256, ["x"], "\ud800")),
]


@pytest.mark.parametrize(("wrong", "words"), CONFIGS, ids=str)
def test_a_config(wrong: dict[str, Any], words: str) -> None:
    """Text of an enum once was taken for none of its members: a group began at the end instead of the beginning."""
    options: dict[str, Any] = {"group": "G"}
    with pytest.raises(ConfigError, match=words):
        ConsumerConfig(**options | wrong)


def test_a_config_may_be_extreme() -> None:
    """But right."""
    whole = dict.fromkeys(WHOLE, 1)
    made = ConsumerConfig("x" * 255, **whole | dict.fromkeys(TIMES, WAIT_S_MAX), suspend_s=0, reconsume_count_max=-1)  # type: ignore[arg-type] # a test's
    assert made.thread_count == 1


def listener(_messages: object) -> ConsumeStatus:
    """Consumes."""
    return ConsumeStatus.SUCCESS


async def coroutine(*_given: object) -> ConsumeStatus:
    """Does nothing where nobody awaits it."""
    return ConsumeStatus.SUCCESS


def closed(call: Callable[[Any], object]) -> None:
    """A call of a producer that is closed then."""
    with Producer(RUNTIME, NOWHERE) as producer:
        call(producer)


class Half:
    """A hook of which one half would do nothing."""

    def before_send(self, sending: object) -> None:
        """Told."""

    async def after_send(self, sending: object, outcome: object, latency_ns: int, address: str) -> None:
        """Not told."""


TEXT: Any = NOWHERE
NOT_CLIENTS: dict[str, Callable[[], object]] = {
    "Producer": lambda: Producer(TEXT, "G"),
    "AsyncProducer": lambda: AsyncProducer(TEXT, "G"),
    "PushConsumer": lambda: PushConsumer(TEXT, NOWHERE, ConsumerConfig("G"), listener),
    "AsyncPushConsumer": lambda: AsyncPushConsumer(TEXT, NOWHERE, ConsumerConfig("G"), listener),
    "PullConsumer": lambda: PullConsumer(TEXT, NOWHERE, ConsumerConfig("G")),
    "AsyncPullConsumer": lambda: AsyncPullConsumer(TEXT, NOWHERE, ConsumerConfig("G")),
    "TransactionProducer": lambda: TransactionProducer(TEXT, NOWHERE, "G", listener),  # type: ignore[arg-type] # never called
    "AsyncTransactionProducer": lambda: AsyncTransactionProducer(TEXT, NOWHERE, "G", listener),  # type: ignore[arg-type] # never called
    "Admin": lambda: Admin(TEXT, NOWHERE),
    "Tracing": lambda: Tracing(TEXT, NOWHERE),
}


@pytest.mark.parametrize("name", NOT_CLIENTS)
def test_a_client_without_a_runtime(name: str) -> None:
    """The first thing that one forgets: it is told how the client is written."""
    with pytest.raises(ConfigError, match=rf"str is not a runtime.* write {name}\(runtime, name_server"):
        NOT_CLIENTS[name]()


CALLS: list[tuple[Callable[[], object], str]] = [
    (lambda: Producer(RUNTIME, NOWHERE, ""), "group ''"),
    (lambda: AsyncProducer(RUNTIME, NOWHERE, None), "group 'None'"),  # type: ignore[arg-type] # a mistake
    (lambda: PushConsumer(RUNTIME, NOWHERE, ConsumerConfig("G"), None), "listener is None"),  # type: ignore[arg-type]
    (lambda: AsyncPushConsumer(RUNTIME, NOWHERE, ConsumerConfig("G"), 5), "listener is 5"),  # type: ignore[arg-type]
    (lambda: PushConsumer(RUNTIME, NOWHERE, TEXT, listener), r"config is .* write PushConsumer\(runtime"),
    (lambda: PullConsumer(RUNTIME, NOWHERE, TEXT), r"config is .* with a ConsumerConfig\(group\)"),
    (lambda: PushConsumer(RUNTIME, NOWHERE, ConsumerConfig("G"), coroutine), "listener is a coroutine function"),  # type: ignore[arg-type]
    (lambda: ConsumerConfig("G", on_unreadable=coroutine), "on_unreadable is a coroutine function"),
    (lambda: ConsumerConfig("G", hooks=5), "hooks are 5; pass a list"),  # type: ignore[arg-type]
    (lambda: ConsumerConfig("G", hooks=[5]), "before_consume of a int among hooks is None"),  # type: ignore[list-item]
    (lambda: Producer(RUNTIME, NOWHERE, hooks="ab"), "hooks are 'ab'"),  # type: ignore[arg-type]
    (lambda: ConsumerConfig("G", hooks=iter([])), "hooks are <list_iterator .* pass a list"),  # type: ignore[arg-type]
    (lambda: Producer(RUNTIME, NOWHERE, hooks=[Half()]), "after_send of a Half among hooks is a coroutine"),
    (lambda: AsyncProducer(RUNTIME, NOWHERE, hooks=[5]), "before_send of a int"),  # type: ignore[list-item]
    (lambda: Producer(RUNTIME, NOWHERE, compression="zlib"), "compression is .zlib.; pass one of"),  # type: ignore[arg-type]
    (lambda: AsyncProducer(RUNTIME, NOWHERE, compress_over_bytes=-1), "compress_over_bytes is -1"),
    (lambda: closed(lambda producer: producer.send_batch("T", iter([]))), "a list_iterator is not a batch"),
    (lambda: closed(lambda producer: producer.reply("T", b"x")), "a str is not a request"),
    (lambda: closed(lambda producer: producer.send_async("T", b"x", coroutine)), "told is a coroutine function"),
    (lambda: TransactionProducer(RUNTIME, NOWHERE, "G", None), "check is None"),  # type: ignore[arg-type]
    (lambda: TransactionProducer(RUNTIME, NOWHERE, "G", coroutine), "check is a coroutine function"),  # type: ignore[arg-type]
    (lambda: AsyncTransactionProducer(RUNTIME, NOWHERE, "G", 5), "check is 5"),  # type: ignore[arg-type]
    (lambda: state_of(True), "True is not the state of a transaction; return a TransactionState"),
    (lambda: state_of(False), "False is not the state"),
    (lambda: state_of(None), "None is not the state"),
    (lambda: state_of(1), "1 is not the state"),
    (lambda: check_seek(MessageQueue(topic="T", broker_name="b", queue_id=0), 1.5, 0, 9), "offset is 1.5"),  # type: ignore[arg-type]
    (lambda: check_seek(MessageQueue(topic="T", broker_name="b", queue_id=0), None, 0, 9), "offset is None"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[words for _call, words in CALLS])
def test_a_call(call: Callable[[], object], words: str) -> None:
    """A listener that cannot be called once put every message off, for good."""
    with pytest.raises(ConfigError, match=words):
        call()


PLAIN: list[Callable[..., object]] = [
    print, [].append, int, partial(int), partial(listener, []), TEXT.encode, lambda _message: None, Mock(),
    Mock(spec=listener), create_autospec(listener), lru_cache(listener), wraps(coroutine)(partial(listener)),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_what_can_be_called(number: int) -> None:
    """Whatever it is made of: what has no code of its own, or something else by that name, is no coroutine function."""
    check_plain("listener", PLAIN[number])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"topic": None}, "topic 'None' is not allowed"),
        ({"topic": "a b"}, "topic 'a b' is not allowed"),
        ({"topic": "x" * 128}, "1 to 127 letters"),
        ({"expression": None}, "expression is None; pass text"),
        ({"expression_type": 5}, "expression_type is 5; pass text"),
    ],
    ids=str,
)
def test_a_subscription(wrong: dict[str, Any], words: str) -> None:
    """A topic that cannot be was once waited for, for good."""
    with PullConsumer(RUNTIME, NOWHERE, ConsumerConfig("G")) as threads, pytest.raises(ConfigError, match=words):
        threads.subscribe(**{"topic": "T"} | wrong)

    async def story() -> None:
        loop = AsyncPullConsumer(RUNTIME, NOWHERE, ConsumerConfig("G"))
        loop.subscribe("%DLQ%" + "x" * 255)
        with pytest.raises(ConfigError, match=words):
            loop.subscribe(**{"topic": "T"} | wrong)
        await loop.close()

    asyncio.run(story())


def test_a_send() -> None:
    """What is to be called, and properties that are none, on both sides."""

    async def story() -> None:
        async with AsyncProducer(RUNTIME, NOWHERE) as loop:
            with Producer(RUNTIME, NOWHERE) as threads:
                for producer in (threads, loop):
                    with pytest.raises(ConfigError, match="told is None"):
                        producer.send_async("T", b"x", None)  # type: ignore[arg-type] # a mistake
                    with pytest.raises(ConfigError, match="on_reply is 5"):
                        producer.request_async("T", OutgoingMessage(b"x"), 5)  # type: ignore[arg-type] # a mistake
                with pytest.raises(ConfigError, match="select is 5"):
                    threads.send("T", b"x", select=5)  # type: ignore[arg-type] # a mistake
                with pytest.raises(ConfigError, match="properties are"):
                    await loop.send("T", b"x", properties=[1])  # type: ignore[arg-type] # a mistake

    asyncio.run(story())


def test_a_second_close_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Also of a producer that has waited for a reply, which leaves its group once."""
    with Producer(RUNTIME, NOWHERE) as producer:
        assert producer._requests is not None
        producer._requests.expect("1", 10.0, lambda _outcome: None)
        producer.close()
        caplog.clear()
    assert caplog.text == ""
