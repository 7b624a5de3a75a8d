"""What is stored of a send: the properties, whose tag, and which topic a message of its kind goes to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from msgspec.structs import replace

from longpoll_broker.core.tables.topics import GroupConfig, Groups, TopicConfig, Topics
from longpoll_broker.core.traits import STRICT_TRAITS, TRAITS_5, Traits
from longpoll_broker.service.send.append import HALF_TOPIC, Appender
from longpoll_broker.service.send.inner_queues import SendRefusedError
from longpoll_broker.service.send.keepers import Keepers
from longpoll_broker.service.send.message_maker import MessageMaker
from longpoll_broker.service.send.send_events import SendEvents
from longpoll_broker.service.send.send_processor import SendProcessor
from longpoll_protocol.headers import SendMessageRequestHeader
from longpoll_protocol.log_record import SCHEDULE_TOPIC
from longpoll_protocol.message import read_handle
from longpoll_protocol.names import DEAD_PREFIX, RETRY_PREFIX, TIMER_TOPIC
from longpoll_protocol.properties import read_properties, write_properties
from longpoll_protocol.tags import java_hash
from longpoll_runtime.real import RealRuntime

CHANNEL: Any = SimpleNamespace(host_bytes=b"producer", peer_host=("127.0.0.1", 1))
HOST = bytes(range(1, 9))


def maker_of(traits: Traits = STRICT_TRAITS, inner_queues: Any = None) -> MessageMaker:
    """A maker of a broker with topic T, at a moment of 1 ms."""
    runtime = RealRuntime()
    runtime.unix_ms = lambda: 1  # type: ignore[method-assign]
    topics = Topics()
    topics.put(TopicConfig("T", 4, 4))
    return MessageMaker(runtime, "cluster", topics, Groups(auto_create=False), HOST, traits, inner_queues)


def header_of(
    topic: str = "T", text: str | None = None, *, max_reconsume: int | None = None, tried: int | None = 3
) -> Any:
    """A request to send."""
    return SendMessageRequestHeader(
        topic=topic, queue_id=2, sys_flag=13, born_timestamp=9, flag=6, properties=text, reconsume_times=tried,
        max_reconsume_times=max_reconsume,
    )  # fmt: skip


def made(maker: MessageMaker, header: Any, body: Any = b"body") -> Any:
    """The message of a request."""
    return maker.of_request(CHANNEL, header, 2, body, maker.properties(header))


def pairs(**properties: str) -> str:
    """Properties as a request has them."""
    return "".join(f"{name}\x01{value}\x02" for name, value in properties.items())


def test_a_message_is_as_it_was_asked_for() -> None:
    """With the hosts of both sides, and the number of tries, 0 if none is told."""
    message = made(maker_of(), header_of(text=pairs(TAGS="a")))
    assert (message.topic, message.queue_id, message.body, message.flag, message.sys_flag) == ("T", 2, b"body", 6, 13)
    assert (message.born_ms, message.born_host, message.store_host) == (9, b"producer", HOST)
    assert (message.reconsume_times, message.tags_code) == (3, java_hash("a"))
    assert read_properties(message.properties.decode()) == {"TAGS": "a", "CLUSTER": "cluster"}
    assert made(maker_of(), header_of(tried=None)).reconsume_times == 0


def test_a_body_is_bytes_or_a_view_of_them() -> None:
    """What may change under the store is copied."""
    changing = bytearray(b"body")
    view = memoryview(b"body")
    assert made(maker_of(), header_of(), view).body is view
    copied = made(maker_of(), header_of(), changing).body
    assert (type(copied), copied) == (bytes, b"body")


def test_a_message_without_properties_has_the_brokers() -> None:
    """Written once."""
    maker = maker_of()
    assert made(maker, header_of()).properties is maker.added_properties
    assert maker.added_properties == write_properties({"CLUSTER": "cluster"}, STRICT_TRAITS.properties_form)


def test_whether_the_wait_is_stored() -> None:
    """4.9 takes WAIT out, 5.x stores it, with the region and a key of the message's own."""
    stored = read_properties(made(maker_of(), header_of(text=pairs(WAIT="false", K="v"))).properties.decode())
    assert stored == {"K": "v", "CLUSTER": "cluster"}
    maker = maker_of(TRAITS_5)
    stored = read_properties(made(maker, header_of(text=pairs(WAIT="false", UNIQ_KEY="mine"))).properties.decode())
    assert stored == {
        "WAIT": "false", "UNIQ_KEY": "mine", "CLUSTER": "cluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    keys = [maker.properties(header_of())["UNIQ_KEY"] for _ in range(2)]
    assert keys == ["0102030405060708000000000001000" + str(number) for number in (0, 1)]


def test_a_key_has_thirty_two_digits_also_behind_a_long_address() -> None:
    """The end of the host, the time and the count tell messages apart."""
    maker = maker_of(TRAITS_5)
    maker.store_host = bytes(range(20))
    assert maker.properties(header_of())["UNIQ_KEY"] == "0C0D0E0F10111213" + "0000000000010000"


def test_offsets_in_further_queues_are_the_stores_alone_to_give() -> None:
    """Where there are such queues; the maker of those gets the message."""
    asked: list[dict[str, str]] = []

    class Inner:
        def named(self, message: Any, properties: dict[str, str]) -> Any:
            asked.append(properties)
            return "named"

    text = pairs(INNER_MULTI_QUEUE_OFFSET="7", INNER_MULTI_DISPATCH="%LMQ%a")
    assert made(maker_of(inner_queues=Inner()), header_of(text=text)) == "named"
    assert asked == [{"INNER_MULTI_DISPATCH": "%LMQ%a", "CLUSTER": "cluster"}]
    assert made(maker_of(inner_queues=Inner()), header_of()).topic == "T"
    stored = read_properties(made(maker_of(), header_of(text=text)).properties.decode())
    assert stored["INNER_MULTI_QUEUE_OFFSET"] == "7"


@pytest.mark.parametrize(("most", "tried", "dead"), [(3, 3, False), (2, 3, True), (None, 5, False), (None, 6, True)])
def test_a_message_tried_too_often_is_dead(most: int | None, tried: int, dead: bool) -> None:
    """More often than the request says, or else the group; 5.x marks it as no longer delayed."""
    for traits, delay in ((STRICT_TRAITS, "2"), (TRAITS_5, "-1")):
        maker = maker_of(traits)
        maker.groups.put(GroupConfig("G", retry_max_times=5))
        header = header_of(
            RETRY_PREFIX + "G", pairs(DELAY="2") if dead and delay == "-1" else None, max_reconsume=most, tried=tried
        )
        message = made(maker, header)
        if not dead:
            assert (message.topic, message.queue_id) == (RETRY_PREFIX + "G", 2)
        else:
            assert (message.topic, message.queue_id) == (DEAD_PREFIX + "G", 0)
            assert read_properties(message.properties.decode()).get("DELAY", "2") == delay
            assert maker.topics.get(DEAD_PREFIX + "G") == TopicConfig(DEAD_PREFIX + "G", 1, 1)


def test_a_message_tried_too_often_whose_group_or_dead_letters_cannot_be() -> None:
    """26 for an unknown group, 1 where the topic's name would be too long."""
    with pytest.raises(SendRefusedError) as error:
        made(maker_of(), header_of(RETRY_PREFIX + "G"))
    assert error.value.code == 26
    maker = maker_of()
    name = "G" * 127
    maker.groups.put(GroupConfig(name))
    with pytest.raises(SendRefusedError) as error:
        made(maker, header_of(RETRY_PREFIX + name, max_reconsume=0))
    assert error.value.code == 1


@pytest.mark.parametrize(
    ("properties", "topic", "queue_id"),
    [
        ({"DELAY": "1"}, SCHEDULE_TOPIC, 0),
        ({"DELAY": "3"}, SCHEDULE_TOPIC, 2),
        ({"DELAY": "0"}, "T", 2),
        ({"DELAY": "-3"}, "T", 2),
        ({"TRAN_MSG": "True"}, HALF_TOPIC, 0),
        ({"TRAN_MSG": "true", "DELAY": "3"}, HALF_TOPIC, 0),
        ({"TRAN_MSG": "no"}, "T", 2),
    ],
)
def test_where_a_message_of_its_kind_goes(properties: dict[str, str], topic: str, queue_id: int) -> None:
    """A prepared one loses the bits of its transaction there."""
    message = made(maker_of(), header_of(text=pairs(**properties)))
    assert (message.topic, message.queue_id) == (topic, queue_id)
    assert message.sys_flag == (13 & ~0xC if topic == HALF_TOPIC else 13)


def test_whether_a_transaction_bears_its_messages_key() -> None:
    """5.x notes it, if there is one."""
    text = pairs(TRAN_MSG="true", UNIQ_KEY="mine")
    for traits, name in ((STRICT_TRAITS, None), (TRAITS_5, "mine")):
        stored = read_properties(made(maker_of(traits), header_of(text=text)).properties.decode())
        assert stored.get("__transactionId__") == name
    keyless = attrs.evolve(TRAITS_5, stores_region=False)
    stored = read_properties(made(maker_of(keyless), header_of(text=pairs(TRAN_MSG="true"))).properties.decode())
    assert "__transactionId__" not in stored


def test_a_level_that_is_no_number_is_refused() -> None:
    """With 1; none is 0."""
    assert [MessageMaker.level(each) for each in ({}, {"DELAY": "+4"})] == [0, 4]
    with pytest.raises(SendRefusedError) as error:
        MessageMaker.level({"DELAY": "x"})
    assert error.value.code == 1


def test_the_broker_picks_among_the_queues_that_are_written() -> None:
    """One after the other; of a topic that has none left to write it picks the first."""
    maker = maker_of()
    store: Any = SimpleNamespace(message_size_max=1000)
    appender = Appender(maker.runtime, store, SendEvents())
    processor = SendProcessor(maker.topics, maker, appender, SendEvents(), Keepers(None, None))
    maker.topics.put(TopicConfig("R", 4, 0))
    for topic, picked in (("T", [0, 1, 2, 3, 0]), ("R", [0, 0, 0])):
        header = replace(header_of(topic), queue_id=-1)
        assert [processor._checked_queue(header, CHANNEL) for _ in picked] == picked


@pytest.mark.parametrize(
    ("properties", "traits", "topic"),
    [
        ({"TIMER_DELIVER_MS": "60000"}, TRAITS_5, TIMER_TOPIC),
        ({"TIMER_DELIVER_MS": "60000"}, STRICT_TRAITS, "T"),
        # A level wins, and the wish is forgotten.
        ({"TIMER_DELIVER_MS": "60000", "DELAY": "1"}, TRAITS_5, SCHEDULE_TOPIC),
        ({"DELAY": "0"}, TRAITS_5, "T"),
    ],
)
def test_a_message_waits_for_its_time_under_5_alone(properties: dict[str, str], traits: Traits, topic: str) -> None:
    """And is recalled by what is told of it there; one that waits for no time is told nothing."""
    maker = maker_of(traits)
    header = header_of(text=pairs(UNIQ_KEY="mine", **properties))
    put = maker.properties(header)
    message = maker.of_request(CHANNEL, header, 2, b"body", put)
    assert message.topic == topic
    assert ("TIMER_DELIVER_MS" in put) == ("TIMER_DELIVER_MS" in properties and topic != SCHEDULE_TOPIC)
    handle = maker.recall_handle(message, put)
    told = None if handle is None else read_handle(handle)
    assert (told and (told.topic, told.time, told.key)) == (("T", "59001", "mine") if topic == TIMER_TOPIC else None)


def test_a_message_that_is_tried_again_at_a_time_is_not_recalled() -> None:
    """Its producer is the consumer that failed."""
    maker = maker_of(TRAITS_5)
    message = replace(made(maker, header_of()), topic=TIMER_TOPIC)
    told = {"REAL_TOPIC": f"{RETRY_PREFIX}G", "TIMER_OUT_MS": "59999", "UNIQ_KEY": "mine"}
    assert maker.recall_handle(message, told) is None
    assert maker.recall_handle(message, told | {"REAL_TOPIC": "T"}) is not None
    assert maker.recall_handle(replace(message, topic="T"), told | {"REAL_TOPIC": "T"}) is None
