"""Answers of our broker and of the Java broker to the same odd requests, each field but places and times."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest
from model_tests.conformance.java_broker import VERSIONS, JavaUnavailableError, resolve, running

from longpoll_broker.broker import Broker
from longpoll_broker.testing.raw_client import RawClient, pull_fields, send_fields
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_protocol.frames.frame import Serialisation
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_runtime import Address
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import preset

pytestmark = [pytest.mark.peers, pytest.mark.timeout(600)]

POLICIES: Final = {"4.9.7": "rocketmq-4.9", "5.5.0": "rocketmq-5"}
FLAGS: Final = (0, 4, 8, 1 << 30, -(2**31))
"""Of requests that are answered: no response, not one-way."""
DELAYS: Final = ("x", "", " 1", "1.0", "9999999999", "-", "0", "+1", "01", "99")

PLACES: Final = {"msgId", "queueOffset", "transactionId", "offset", "nextBeginOffset", "maxOffset"}
"""Fields that depend on what is stored, and on whether it is visible yet."""

Told = tuple[int, int, bool, dict[str, str] | None]
"""An answer's code and flag, whether it has a remark, and its fields."""


def told(reply: Command | None) -> Told:
    """What is compared of an answer."""
    assert reply is not None
    fields = reply.ext_fields
    if fields is not None:
        fields = {name: "" if name in PLACES else value for name, value in fields.items()}
    return reply.code, reply.flag, reply.remark is not None, fields


def flags_of(client: RawClient, topic: str) -> list[Told]:
    """The answers to requests of each flag: of an end, of a pull that finds nothing, of a send, of an unknown code."""
    asked: tuple[tuple[int, dict[str, str]], ...] = (
        (RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": "0"}),
        (RequestCode.PULL_MESSAGE, pull_fields(topic, 10_000)),
        (RequestCode.SEND_MESSAGE_V2, send_fields(topic)),
        (9_999, {}),
    )
    return [
        told(client.reply(client.send(code, fields, b"x", flag=flag, serialisation=kind)))
        for code, fields in asked
        for flag in FLAGS
        for kind in Serialisation
    ]


def delays_of(client: RawClient, topic: str) -> list[Told]:
    """The answers to sends, alone and in a batch, that wish for levels, some of which are none."""
    batch = encode_batch([BatchMessage(b"x", "")])
    return [
        told(client.call(code, send_fields(topic, properties=f"DELAY\x01{level}\x02") | more, body))
        for code, more, body in (
            (RequestCode.SEND_MESSAGE_V2, {}, b"x"),
            (RequestCode.SEND_BATCH_MESSAGE, {"m": "true"}, batch),
        )
        for level in DELAYS
    ]


def answers_of(address: Address) -> dict[str, list[Told]]:
    """All of it, of one broker."""
    with RawClient(address) as client:
        client.call(RequestCode.SEND_MESSAGE_V2, send_fields("ODD"), b"x")
        return {"flags": flags_of(client, "ODD"), "delays": delays_of(client, "ODD")}


@pytest.mark.parametrize("version", VERSIONS)
def test_odd_requests_are_answered_alike(version: str, tmp_path: Path) -> None:
    """Whatever a request's flag says, an answer's is 1; a level that is no number is told without the region."""
    try:
        class_path = resolve(tmp_path, version)
    except JavaUnavailableError as error:
        pytest.skip(f"JAVA NOT TRIED: {error}")
    with running(class_path, tmp_path / "home") as java:
        theirs = answers_of(java.address)
    with Broker.start(RealRuntime(), str(tmp_path / "store"), policy=preset(POLICIES[version])) as broker:
        ours = answers_of(broker.address)
    assert ours == theirs
    assert {flag for _code, flag, _remark, _fields in theirs["flags"]} == {1}
