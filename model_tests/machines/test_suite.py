"""The property suite over the wire: what it takes for right, and what it asks again."""

from __future__ import annotations

import contextlib
import socket
from collections import Counter

import attrs
import pytest
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.suite import RemoteBroker
from model_tests.support.suite.brokers import expectations_of
from model_tests.support.suite.connection import Link
from model_tests.support.suite.model import WireMessage
from model_tests.support.suite.subject import RocketMQSubject

from longpoll_broker.config import BrokerConfig, StoreConfig
from longpoll_kit.errors import ViolationError
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command
from longpoll_runtime.real import RealRuntime
from longpoll_spec.policy import ROCKETMQ_5, STRICT


def busy_at_first(peer: Peer, request: Command) -> None:
    """Have no room for the first two tries of each request."""
    tries[request.opaque] += 1
    peer.answer(request, 2 if tries[request.opaque] < 3 else 0, {"offset": "0"})


tries: Counter[int] = Counter()


@pytest.mark.parametrize(
    ("sent", "delivered", "is_right"),
    [
        ({"WAIT": "false"}, {}, True),
        ({"WAIT": "false"}, {"WAIT": "false"}, True),
        ({"WAIT": "false"}, {"WAIT": "true"}, False),
        ({"empty": ""}, {}, True),
        ({"empty": ""}, {"empty": "x"}, False),
        ({"k": "v"}, {"k": "v", "CLUSTER": "c", "UNIQ_KEY": "1"}, True),
        ({"k": "v", "UNIQ_KEY": "2"}, {"k": "v", "UNIQ_KEY": "1"}, False),
        ({"k": "v"}, {"k": "v", "more": "x"}, False),
        ({"k": "v"}, {}, False),
    ],
    ids=str,
)
def test_a_kept_property_is_as_right_as_one_that_may_be_dropped(
    sent: dict[str, str], delivered: dict[str, str], is_right: bool
) -> None:
    """5.x keeps WAIT, 4.9 drops it; neither may change it or add a property."""
    assert WireMessage(0, b"", 0, properties=sent).is_given_back(delivered) == is_right


def test_who_is_told_that_there_is_no_room_asks_again() -> None:
    """Code 2 is not a refusal of a good request; a pull is not repeated, because its deadline would restart."""
    tries.clear()
    runtime = RealRuntime()
    with (
        ScriptedServer(busy_at_first) as server,
        contextlib.closing(Link(runtime, (server.host, server.port), 1)) as link,
    ):
        asked = link.wait(link.ask(RequestCode.GET_MAX_OFFSET))
        pulled = link.wait(link.ask(RequestCode.PULL_MESSAGE))

    assert asked is not None
    assert pulled is not None
    assert (asked.code, pulled.code) == (0, 2)
    assert sorted(tries.values()) == [1, 3]


def test_silence_after_garbage_violates_what_strict_promises_and_no_more() -> None:
    """5.x waits for the 12 bytes of a PROXY header; that others are served on is asked of every broker."""
    runtime = RealRuntime()
    with socket.create_server(("127.0.0.1", 0)) as server:  # it takes connections, and reads nothing
        for policy, is_violated in ((STRICT, True), (ROCKETMQ_5, False)):
            expectations = attrs.evolve(
                expectations_of(policy, BrokerConfig(), StoreConfig()), patience_ms=50, scan_period_ms=None
            )
            subject = RocketMQSubject(runtime, RemoteBroker(server.getsockname(), expectations))
            with pytest.raises(ViolationError, match="stays open") if is_violated else contextlib.nullcontext():
                subject.send_malformed("a JSON header that is a list")
