"""A push consumer whose listener misbehaves, and what its locks and threads do then."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from attrs import define, field

from longpoll_broker.broker import Broker
from longpoll_broker.testing.brokers import SMALL_STORE, wait_until
from longpoll_broker.testing.client_scenarios import new_topic
from longpoll_client import (
    ConsumerConfig,
    ConsumeStatus,
    Later,
    MessageModel,
    MessageQueue,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartAt,
    allocate_by_circle,
)
from longpoll_client.consume import concurrent
from longpoll_client.consume.concurrent import ConcurrentListening
from longpoll_client.consume.consumer import GroupMember
from longpoll_client.consume.membership import BrokerLocks
from longpoll_client.consume.statistics import Statistics
from longpoll_client.consume.workers import Answer, Listener
from longpoll_client.errors import RefusedError
from longpoll_runtime.real import RealRuntime
from longpoll_spec.errors import ConfigError

PATIENCE_S = 10.0
RUNTIME = RealRuntime()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """An embedded broker."""
    with Broker.start(RUNTIME, str(tmp_path / "store"), store_config=SMALL_STORE) as started:
        yield started


@pytest.fixture
def name_server(broker: Broker) -> str:
    """Its name server."""
    return "{}:{}".format(*broker.name_server_address)


def listening(
    name_server: str, topic: str, listener: Listener, *, is_orderly: bool = False, **options: Any
) -> PushConsumer:
    """A started consumer of the topic's first message on."""
    config = ConsumerConfig("G", start_at=StartAt.FIRST, **options)
    consumer = PushConsumer(RUNTIME, name_server, config, listener, is_orderly=is_orderly)
    consumer.subscribe(topic)
    consumer.start()
    return consumer


def send(name_server: str, topic: str, *bodies: bytes) -> None:
    """Send to queue 0."""
    with Producer(RUNTIME, name_server) as producer:
        for body in bodies:
            producer.send(topic, body, queue_id=0)


def test_a_listener_that_raises_has_its_message_sent_back(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """One line says what it raised and where; the thread goes on with the next message."""
    got = threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        if messages[0].body == b"bad":
            raise ZeroDivisionError("the listener's own fault")
        got.set()
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"bad", b"good")
        with listening(name_server, topic, listen, thread_count=1) as consumer:
            assert got.wait(PATIENCE_S)
            wait_until(lambda: consumer.statistics[topic].consumed_count == 1)
            counts = consumer.statistics[topic]
        assert (counts.later_count, counts.sent_back_count, counts.message_count) == (1, 1, 2)
    (line,) = [record.message for record in caplog.records if "raised" in record.message]
    assert "the listener's own fault" in line
    assert f"{topic} queue 0 offset 0" in line


def test_a_listener_that_answers_nothing_has_put_its_message_off(
    name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Forgetting to answer must not lose a message."""

    def forgetful(_messages: Sequence[ReceivedMessage]) -> Answer:
        return cast("Answer", None)

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"x")
        with listening(name_server, topic, forgetful) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].sent_back_count == 1)
    assert "answered None" in caplog.text


def test_a_listener_that_hangs_is_told_of_and_its_message_comes_again(
    name_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After its time the message is sent back once, and closing does not wait for ever."""
    going_on = threading.Event()

    def hang(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        going_on.wait(PATIENCE_S)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"x")
        options: dict[str, Any] = {"consume_timeout_s": 0.2, "close_timeout_s": 0.05}
        with listening(name_server, topic, hang, thread_count=1, **options) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].sent_back_count == 1)
        going_on.set()
    assert "has not answered for 0.2 s" in caplog.text
    assert "left behind" in caplog.text
    assert caplog.text.count("has not answered") == 1


@define(slots=False)
class Watched(RealRuntime):
    """A runtime whose clock stands still, but for who looks for listeners that hang: half an hour later.

    It looks at the `look_at`-th reading of the clock; the first is that of the listener's begin, the second of its end.
    """

    look_at: int = 0
    look: Callable[[], None] = lambda: None
    now_ns: int = field(default=10**12, init=False)
    read_count: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        super().__init__()
        self.monotonic_ns = self.read

    def read(self) -> int:
        """The time."""
        self.read_count += 1
        found = self.now_ns
        if self.read_count == self.look_at:
            self.late()
        return found

    def late(self) -> None:
        """Half an hour passes, and somebody looks."""
        self.now_ns += 1800 * 10**9
        self.look()


def consumed_at(runtime: Watched, listener: Listener) -> tuple[list[object], list[object]]:
    """Give a listener one message; what its queue was told to be consumed, and what was sent back."""
    listening = ConcurrentListening(runtime, ConsumerConfig("G"), listener)
    runtime.look = listening._look_for_hanging
    done: list[object] = []
    back: list[object] = []
    member: Any = SimpleNamespace(
        retry_topic="%RETRY%G",
        statistics=Statistics(runtime),
        send_back=lambda message, _queue, _level: back.append(message),
    )
    listening.belong_to(member)
    puller: Any = SimpleNamespace(
        queue=MessageQueue(topic="T", broker_name="b", queue_id=0), is_open=True, is_dropped=False, done=done.extend
    )
    message: Any = SimpleNamespace(topic="T", queue_id=0, queue_offset=0)
    listening._consume_again(puller, (message,), 0)
    assert member.statistics.snapshot()["T"].consumed_count == 1 - len(back)
    return done, back


def test_a_call_that_has_ended_in_time_is_not_found_to_hang() -> None:
    """However late who looks for hanging ones comes, and whoever was kept from going on in between."""
    runtime = Watched(look_at=2)
    done, back = consumed_at(runtime, lambda _messages: ConsumeStatus.SUCCESS)
    assert runtime.read_count == 3, "nobody has looked"
    assert (len(done), back) == (1, [])


def test_the_answer_of_one_that_was_found_to_hang_is_of_no_account() -> None:
    """Its message was sent back once, and is not put off once more."""
    runtime = Watched()

    def listen(_messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        runtime.late()
        return ConsumeStatus.LATER

    done, back = consumed_at(runtime, listen)
    assert done == back
    assert len(back) == 1


def test_an_orderly_listener_that_hangs_holds_its_queue_up(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """The line says so once, nothing overtakes, and everything comes when it goes on."""
    going_on = threading.Event()
    seen: list[bytes] = []

    def hang(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        assert going_on.wait(PATIENCE_S)
        seen.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"1", b"2")
        with listening(name_server, topic, hang, is_orderly=True, consume_timeout_s=0.1):
            wait_until(lambda: "the queue waits for it" in caplog.text)
            assert seen == []
            going_on.set()
            wait_until(lambda: seen == [b"1", b"2"])


def test_what_cannot_be_sent_back_is_given_again_from_here(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With one more try counted, although the broker knows nothing of it."""
    monkeypatch.setattr(concurrent, "LOCAL_RETRY_S", 0.01)

    def refuse(_self: GroupMember, _message: ReceivedMessage, _queue: MessageQueue, _level: int) -> None:
        raise RefusedError("CONSUMER_SEND_MSG_BACK", 1, "planted")

    monkeypatch.setattr(GroupMember, "send_back", refuse)
    tries: list[int] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Answer:
        tries.append(messages[0].reconsume_times)
        return ConsumeStatus.SUCCESS if len(tries) == 3 else Later()

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, b"x")
        with listening(name_server, topic, listen) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 1)
    assert tries == [0, 1, 2]


def test_an_orderly_message_is_a_dead_letter_after_its_tries(broker: Broker, name_server: str) -> None:
    """It holds its queue up for two more tries and then lets the next one pass."""
    seen: list[tuple[bytes, int]] = []

    def listen(messages: Sequence[ReceivedMessage]) -> Answer:
        (message,) = messages
        seen.append((message.body, message.reconsume_times))
        return ConsumeStatus.LATER if message.body == b"poison" else ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, b"poison", b"next")
        with listening(name_server, topic, listen, is_orderly=True, suspend_s=0.01, reconsume_count_max=2):
            wait_until(lambda: len(seen) == 4)
    assert seen == [(b"poison", 0), (b"poison", 1), (b"poison", 2), (b"next", 0)]
    assert broker.store.visible_end("%DLQ%G", 0) == 1


def test_a_queue_that_another_member_has_locked_is_left_alone(name_server: str) -> None:
    """An orderly member waits for the lock of one that has the queue, although the share says that it is its own."""
    seen: list[bytes] = []

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        seen.extend(message.body for message in messages)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, b"x")
        with Producer(RUNTIME, name_server) as stranger:
            locks = BrokerLocks(GroupMember(RUNTIME, name_server, ConsumerConfig("G"), _Nowhere())._instance, "G")
            locks._instance.route(topic)
            (queue,) = stranger._instance.route(topic).readable
            assert locks.lock([queue], _fail) == ({queue}, set())
            with listening(name_server, topic, listen, is_orderly=True) as consumer:
                assert queue not in consumer.queues
                assert seen == []
                locks.unlock([queue], _fail)
                consumer._member._sharing.rebalance()
                wait_until(lambda: seen == [b"x"])
                # Else the timer's thread may have taken the queue again before it is looked.
                with consumer._member._sharing.rebalancing:
                    consumer._member._sharing._lose([queue])
                    assert queue not in consumer.queues
            locks._instance.close()


@pytest.mark.parametrize(
    ("is_orderly", "has_run_out", "stored"), [(False, False, 3), (True, False, 3), (True, True, 0)]
)
def test_a_member_whose_lock_has_run_out_stores_nothing(
    broker: Broker, name_server: str, is_orderly: bool, has_run_out: bool, stored: int
) -> None:
    """Not when it is closed either: another one may have the queue, and be further. Who needs no lock has none."""
    has_them, goes_on = threading.Event(), threading.Event()

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        assert len(messages) == 3
        has_them.set()
        assert goes_on.wait(PATIENCE_S)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, b"0", b"1", b"2")
        with listening(name_server, topic, listen, is_orderly=is_orderly, consume_count_max=3) as consumer:
            pullers = consumer._member._queues.pullers
            wait_until(
                lambda: any(queue.topic == topic and each.cached_count == 3 for queue, each in pullers().items())
            )
            (puller,) = (each for queue, each in pullers().items() if queue.topic == topic)
            # From now on its pulls have nothing to commit: the next one is on its way while the listener waits.
            wait_until(lambda: puller._is_pulling)
            # Without its lock nothing is given to a listener that has nothing yet.
            assert has_them.wait(PATIENCE_S)
            assert (puller.locked_until_ns is None) is not is_orderly
            if has_run_out:
                puller.locked_until_ns = 1
            goes_on.set()
            wait_until(lambda: puller.offset_done == 3)
        assert broker.offsets.query(topic, "G", 0) == stored


def _fail(broker_name: str, error: Exception) -> None:
    pytest.fail(f"{broker_name}: {error}")


class _Nowhere:
    """A delivery that takes nothing."""

    def deliver(self, _batch: object) -> None:
        """Never called."""
        pytest.fail("a message came")

    def is_busy(self, _puller: object) -> bool:
        """Never."""
        return False


def test_nothing_is_left_running(name_server: str) -> None:
    """Closing ends every thread, orderly or not."""
    with new_topic(name_server, 2) as topic:
        before = threading.active_count()
        for is_orderly in (False, True):
            with listening(name_server, topic, lambda _messages: ConsumeStatus.SUCCESS, is_orderly=is_orderly):
                assert threading.active_count() > before
            assert threading.active_count() == before


def test_a_circle_deals_queues_out_one_by_one() -> None:
    """Each queue has one owner, and a stranger has none."""
    queues = [MessageQueue(topic="T", broker_name="b", queue_id=number) for number in range(7)]
    shares = [[queue.queue_id for queue in allocate_by_circle(name, "yxz", reversed(queues))] for name in "xyz"]
    assert shares == [[0, 3, 6], [1, 4], [2, 5]]
    assert allocate_by_circle("stranger", "xyz", queues) == ()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"group": "G", "thread_count": 0}, "thread_count is 0"),
        ({"group": "G", "cached_count_max": 0}, "cached_count_max is 0"),
        ({"group": "G", "offsets_file": "here.json"}, "not an absolute path"),
        ({"group": " "}, "not allowed"),
    ],
)
def test_a_config_that_could_never_work_is_refused(options: dict[str, Any], words: str) -> None:
    """The user's mistake is told at once."""
    with pytest.raises(ConfigError, match=words):
        ConsumerConfig(**options)


def test_a_consumer_that_wants_nothing_is_told_so(name_server: str) -> None:
    """Starting without a subscription is a mistake."""
    config = ConsumerConfig("G")
    with (
        PushConsumer(RUNTIME, name_server, config, lambda _messages: ConsumeStatus.SUCCESS) as consumer,
        pytest.raises(ConfigError, match="call subscribe"),
    ):
        consumer.start()


@pytest.mark.parametrize("content", [b"", b"{}", b'[{"topic":1}]', b"\xff", b"[" * 10_000])
def test_a_damaged_file_of_offsets_is_named(tmp_path: Path, name_server: str, content: bytes) -> None:
    """It is not overwritten: its offsets may be mended."""
    file = tmp_path / "offsets.json"
    file.write_bytes(content)
    config = ConsumerConfig("G", message_model=MessageModel.BROADCASTING, offsets_file=str(file))
    with pytest.raises(ConfigError, match="offsets file"):
        PushConsumer(RUNTIME, name_server, config, lambda _messages: ConsumeStatus.SUCCESS)
    assert file.read_bytes() == content


def test_a_listener_may_empty_the_list_that_it_is_given(name_server: str, caplog: pytest.LogCaptureFixture) -> None:
    """What raised after that is put off all the same, and the line says where it was."""

    def greedy(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        assert isinstance(messages, list)
        taken = messages.pop()
        if taken.body == b"bad":
            raise ZeroDivisionError("the listener's own fault")
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic, caplog.at_level(logging.WARNING):
        send(name_server, topic, b"bad", b"good")
        with listening(name_server, topic, greedy, thread_count=1) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 1)
            counts = consumer.statistics[topic]
    assert (counts.later_count, counts.sent_back_count) == (1, 1)
    assert f"{topic} queue 0 offset 0" in caplog.text


def test_a_batch_is_shared_among_threads_whose_listener_waits(name_server: str) -> None:
    """Each message once, in lots of the size that was asked for, as many at a time as there are threads."""
    got: list[list[bytes]] = []
    all_wait, at_once = threading.Barrier(3, timeout=PATIENCE_S), threading.Lock()

    def slow(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        with at_once:
            got.append([message.body for message in messages])
            is_first = len(got) <= 3
        if is_first:
            all_wait.wait()
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, *(b"%d" % number for number in range(10)))
        with listening(name_server, topic, slow, thread_count=3, consume_count_max=3) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 10)
    assert sorted(body for lot in got for body in lot) == [b"%d" % number for number in range(10)]
    assert max(map(len, got)) == 3


def test_a_batch_ends_with_its_consumer(name_server: str) -> None:
    """Who closes waits for what the listener has, and not for all that was pulled."""
    got: list[bytes] = []

    def listen(messages: Sequence[ReceivedMessage]) -> ConsumeStatus:
        closing.start()
        got.extend(message.body for message in messages)
        wait_until(lambda: workers.is_stopping)
        return ConsumeStatus.SUCCESS

    with new_topic(name_server, 1) as topic:
        send(name_server, topic, *(b"%d" % number for number in range(10)))
        config = ConsumerConfig("G", start_at=StartAt.FIRST, thread_count=1)
        consumer = PushConsumer(RUNTIME, name_server, config, listen)
        assert isinstance(consumer._listening, concurrent.ConcurrentListening)
        workers = consumer._listening._workers
        closing = threading.Thread(target=consumer.close)
        consumer.subscribe(topic)
        consumer.start()
        wait_until(lambda: bool(got))
        closing.join(PATIENCE_S)
    assert got == [b"0"]


def test_what_one_thread_fails_at_costs_no_other_message(name_server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours, not the listener's: the rest of the batch is given by another thread."""
    honest = concurrent.ConcurrentListening._consume
    failures = [ZeroDivisionError("planted")]

    def consume(self: concurrent.ConcurrentListening, *arguments: Any) -> None:
        if failures:
            raise failures.pop()
        honest(self, *arguments)

    monkeypatch.setattr(concurrent.ConcurrentListening, "_consume", consume)
    with new_topic(name_server, 1) as topic:
        send(name_server, topic, *(b"%d" % number for number in range(10)))
        with listening(name_server, topic, lambda _messages: ConsumeStatus.SUCCESS, thread_count=1) as consumer:
            wait_until(lambda: topic in consumer.statistics and consumer.statistics[topic].consumed_count == 9)
    assert failures == []
