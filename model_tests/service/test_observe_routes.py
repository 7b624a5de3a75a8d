"""Clients of a name server are led through the proxy."""

from __future__ import annotations

import logging
import socket
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.service.observed import events_of

from longpoll_broker.runtime.real import RealRuntime
from longpoll_broker.service.observe import Observer
from longpoll_broker.service.observe.routes import RouteTap
from longpoll_broker.testing.brokers import Connect, StartBroker
from longpoll_broker.testing.raw_client import send_message
from longpoll_broker.wire.bodies import TopicRouteData
from longpoll_broker.wire.codes import CommandFlag, RequestCode
from longpoll_broker.wire.command import Command, decode_frame, encode
from longpoll_broker.wire.frame import FrameReader

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC.value
# As fastjson writes it: bare integer keys.
FASTJSON = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
)


def answer(opaque: int, body: bytes = b"", code: int = 0) -> bytes:
    """The bytes of an answer."""
    return b"".join(encode(Command(code, opaque, CommandFlag.RESPONSE, body=body)))


def asked(tap: RouteTap, opaque: int, code: int = ROUTE) -> None:
    """A client's request passes."""
    tap.forwarded(b"".join(encode(Command(code, opaque, ext_fields={"topic": "T"}))), 0, 1)


def command_of(content: bytes) -> Command:
    """The one command of these bytes."""
    reader = FrameReader()
    reader.feed(content)
    frame = reader.next_frame()
    assert frame is not None
    return decode_frame(frame)


@given(st.data())
def test_only_addresses_of_route_answers_change(data: st.DataObject) -> None:
    """However the answers are cut: both brokers of the route move, and every other frame keeps its bytes."""
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    asked(tap, 2, RequestCode.HEART_BEAT)
    asked(tap, 3)
    before, after = answer(2, FASTJSON), answer(3, code=17)
    stream = before + answer(1, FASTJSON) + after + answer(1, FASTJSON)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[start:end] for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    told = b"".join(tap.rewrite(piece) for piece in pieces if piece)
    # The last one answers nothing that is open: it is not touched either.
    assert told.startswith(before)
    assert told.endswith(after + answer(1, FASTJSON))
    changed = command_of(told[len(before) : -len(after + answer(1, FASTJSON))])
    route = TopicRouteData.decode(changed.body)
    assert route.broker_datas[0].broker_addrs == {0: "proxy/10.0.0.1:10911", 1: "proxy/10.0.0.2:10911"}
    assert route.queue_datas[0].read_queue_nums == 4
    assert (changed.opaque, changed.code) == (1, 0)


@pytest.mark.parametrize("garbage", [b"\xff" * 40, b"\0\0\0\1aaaa"], ids=["too long", "too short"])
def test_a_stream_that_cannot_be_read_passes(garbage: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With one line, and nothing is held back from there on."""
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    assert tap.rewrite(garbage) == garbage
    assert tap.rewrite(b"abc") == b"abc"
    assert tap.rewrite(answer(1, FASTJSON)) == answer(1, FASTJSON)
    assert len(caplog.records) == 1


def test_a_route_body_that_is_no_json_passes_unchanged(caplog: pytest.LogCaptureFixture) -> None:
    """The client sees what the name server said, and the next answer is changed again."""
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    asked(tap, 2)
    assert tap.rewrite(answer(1, b"{nothing")) == answer(1, b"{nothing")
    assert b"proxy/10.0.0.1" in tap.rewrite(answer(2, FASTJSON))
    assert ["unchanged" in record.message for record in caplog.records] == [True]


def test_several_brokers_are_observed_through_one_name_server(
    start_broker: StartBroker, connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One named beforehand, another only by a route: each gets a door, and each has a source of its own."""
    caplog.set_level(logging.WARNING)
    named = start_broker(directory=str(tmp_path / "a"))
    routed = start_broker(directory=str(tmp_path / "b"))
    history = tmp_path / "history"
    with Observer.start(
        RealRuntime(), brokers=[named.address], name_server=routed.name_server_address, record_directory=str(history)
    ) as proxy:
        assert proxy.name_server_address is not None
        send_message(connect(proxy.doors["{}:{}".format(*named.address)]), "T")
        send_message(connect(routed.address), "T")
        asking = connect(proxy.name_server_address)
        found = [asking.call(ROUTE, {"topic": "T"}) for _ in range(2)]
        cluster = asking.call(RequestCode.GET_BROKER_CLUSTER_INFO)
        addresses = {TopicRouteData.decode(reply.body).broker_datas[0].broker_addrs[0] for reply in found}
        door = proxy.doors["{}:{}".format(*routed.address)]
        assert addresses == {"{}:{}".format(*door)}
        assert "{}:{}".format(*door) in str(msgspec.json.decode(cluster.body))
        assert send_message(connect(door), "T") == 1
    told = [event for event in events_of(history) if event.event == "message_acknowledged"]
    assert {(event.broker, event.queue_offset) for event in told} == {
        ("{}:{}".format(*named.address), 0),
        ("{}:{}".format(*routed.address), 1),
    }
    assert len({event.source for event in told}) == 2
    assert ["is observed at" in record.message for record in caplog.records] == [True]


def test_a_name_server_that_is_down_is_said_once(
    connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And its clients are closed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address: tuple[str, int] = taken.getsockname()
    with Observer.start(
        RealRuntime(), brokers=[], name_server=address, record_directory=str(tmp_path / "history")
    ) as proxy:
        assert proxy.name_server_address is not None
        for _ in range(2):
            assert connect(proxy.name_server_address).wait_closed()
    assert ["cannot be reached" in record.message for record in caplog.records] == [True]
