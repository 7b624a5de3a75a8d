"""A batch is stored and acknowledged, or neither: its size in all, and how many ids an answer has room for."""

from __future__ import annotations

import struct
from typing import Final

import pytest
from attrs import evolve

from longpoll_broker.broker import Broker
from longpoll_broker.config import StoreConfig
from longpoll_broker.core.traits import STRICT_TRAITS, TRAITS_5
from longpoll_broker.service.send.batches import BatchLimits
from longpoll_broker.testing.brokers import SMALL_STORE, Connect, StartBroker
from longpoll_broker.testing.raw_client import RawClient, send_fields
from longpoll_protocol.codes import RequestCode, ResponseCode
from longpoll_protocol.errors import HeaderError, MessageRefusedError
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import HEADER_SIZE_MAX, Serialisation
from longpoll_spec.policy import preset

SYNC: Final = evolve(SMALL_STORE, flush_disk_sync=True)
SIZE_MAX: Final = SMALL_STORE.message_size_max
ONE_SIZE: Final = 22
COUNT_MAX: Final = 31_650
"""For an IPv4 broker, as docs/safety.md has it."""


def one(body_size: int = 0) -> bytes:
    """A message of a batch."""
    return struct.pack(">iiiii", ONE_SIZE + body_size, 0, 0, 0, body_size) + bytes(body_size) + struct.pack(">h", 0)


def sent(client: RawClient, body: bytes, serialisation: Serialisation = Serialisation.JSON) -> Command:
    """The answer to a batch."""
    return client.call(
        RequestCode.SEND_BATCH_MESSAGE, send_fields("T") | {"m": "true"}, body, serialisation=serialisation
    )


def assert_stored_iff_acknowledged(broker: Broker, reply: Command, before: int) -> int:
    """As many messages are there as there are ids in the answer; how many."""
    ids = (reply.ext_fields or {}).get("msgId", "")
    count = len(ids.split(",")) if reply.code == ResponseCode.SUCCESS else 0
    assert broker.store.visible_end("T", 0) - before == count
    return count


@pytest.mark.parametrize("config", [SMALL_STORE, SYNC], ids=["async", "sync"])
@pytest.mark.parametrize(
    ("body", "count"),
    [
        pytest.param(one(SIZE_MAX - ONE_SIZE), 1, id="all of the room"),
        pytest.param(one(SIZE_MAX - ONE_SIZE + 1), 0, id="a byte over it"),
        pytest.param(one(1_500_000) * 3, 0, id="three that would fit alone"),
        pytest.param(one() * COUNT_MAX, COUNT_MAX, id="as many as an answer names"),
        pytest.param(one() * (COUNT_MAX + 1), 0, id="one more"),
        pytest.param(one() * 65_536, 0, id="many more"),
    ],
)
def test_a_batch_is_stored_and_acknowledged_or_neither(
    start_broker: StartBroker, connect: Connect, config: StoreConfig, body: bytes, count: int
) -> None:
    """On both sides of each limit, whether the answer waits for the disk or not."""
    broker = start_broker(store_config=config)
    client = connect(broker.address)
    reply = sent(client, body)

    assert assert_stored_iff_acknowledged(broker, reply, 0) == count
    assert reply.code == (ResponseCode.SUCCESS if count else ResponseCode.MESSAGE_ILLEGAL), reply.remark
    assert assert_stored_iff_acknowledged(broker, sent(client, one() * 3), count) == 3


@pytest.mark.long
@pytest.mark.parametrize("policy", ["rocketmq-4.9", "rocketmq-5"])
def test_the_longest_answer_fits_in_both_serialisations(
    start_broker: StartBroker, connect: Connect, policy: str
) -> None:
    """And under 5.x, whose records and answers have more in them."""
    broker = start_broker(store_config=SYNC, policy=preset(policy))
    for kind in Serialisation:
        assert sent(connect(broker.address), one(1) * COUNT_MAX, kind).code == 0


def test_five_takes_a_batch_that_is_too_large_for_an_error() -> None:
    """Its encoder throws; how many ids fit depends on how long a broker's address is."""
    limits = [BatchLimits.of(100, size, traits) for size in (16, 40) for traits in (STRICT_TRAITS, TRAITS_5)]
    for limit, error in zip(limits, (MessageRefusedError, HeaderError) * 2, strict=True):
        assert len(list(limit.read(one(100 - ONE_SIZE)))) == 1
        with pytest.raises(error, match="at most 100"):
            limit.read(one(101 - ONE_SIZE))
    assert [limit.count_max for limit in limits] == [COUNT_MAX, COUNT_MAX, 18_324, 18_324]
    assert COUNT_MAX * 33 < HEADER_SIZE_MAX
