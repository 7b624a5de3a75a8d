"""Clients of a name server are led through the proxy."""

from __future__ import annotations

import json
import logging
import struct
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from model_tests.service.observed import events_of
from model_tests.support.broker.brokers import Connect, StartBroker, wait_until
from model_tests.support.broker.raw_client import PATIENCE_S, send_message
from model_tests.support.broker.scripted_server import Peer, ScriptedServer
from model_tests.support.ports import closed_port

from longpoll_observe import Observer
from longpoll_observe.observer import UNCERTAINTY_NS_MIN, UNCERTAINTY_NS_UNMEASURED
from longpoll_observe.routes import RouteTap
from longpoll_protocol.bodies import TopicRouteData
from longpoll_protocol.codes import CommandFlag, RequestCode
from longpoll_protocol.frames.command import Command, decode_frame, encode
from longpoll_protocol.frames.frame import HEAD, LENGTH_SIZE, FrameReader
from longpoll_runtime import Socket
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import META_FILE, Meta

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC.value
# As fastjson writes it: bare integer keys.
FASTJSON = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",1:"10.0.0.2:10911"},"brokerName":"a","cluster":"c"}],'
    b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":4,"writeQueueNums":4}]}'
)


def answer(opaque: int, body: bytes = b"", code: int = 0) -> bytes:
    return b"".join(encode(Command(code, opaque, CommandFlag.RESPONSE, body=body)))


def asked(tap: RouteTap, opaque: int, code: int = ROUTE) -> None:
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
    tap = RouteTap(lambda address: f"proxy/{address}")
    asked(tap, 1)
    assert tap.rewrite(garbage) == garbage
    assert tap.rewrite(b"abc") == b"abc"
    assert tap.rewrite(answer(1, FASTJSON)) == answer(1, FASTJSON)
    assert len(caplog.records) == 1


def test_a_route_body_that_is_no_json_passes_unchanged(caplog: pytest.LogCaptureFixture) -> None:
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


ODD_BODY = (
    b' {"brokerDatas" : [ {"z":1.10,"brokerAddrs":{ 0 : "10.0.0.1:10911" , "1":"10.0.0.2:10911"},"a":"\\u00e9\\/",'
    b'"e":[],"brokerName":"\\"brokerAddrs\\":{\\"0\\":\\"10.0.0.1:1\\"}"}],\n\t"orderTopicConf":null,'
    b'"more":{"brokerAddrs":"10.0.0.1:10911","x":{"\\u0062rokerAddrs":{"0":"10.0.0.1:\\u00310911"}}} } '
)
JSON_HEADER = (
    b'{ "version":397,"zzz":[1.10,"\\u00e9", null],"flag":1,"code":0 ,"opaque":7,"extFields":{"b":"1","a":"\\/"},'
    b'"language":"JAVA","serializeTypeCurrentRPC":"JSON"}'
)


def framed(mark: int, header: bytes, body: bytes) -> bytes:
    """A frame as it goes over the wire."""
    return HEAD.pack(LENGTH_SIZE + len(header) + len(body), mark << 24 | len(header)) + header + body


def rocketmq_header() -> bytes:
    """In RocketMQ's own encoding, with a field of no value, which our reader leaves out."""
    fields = b"\0\1b\0\0\0\0" + b"\0\1a\0\0\0\x012"
    return struct.pack(">hbhiii", 0, 0, 397, 7, 1, 0) + struct.pack(">i", len(fields)) + fields


@pytest.mark.parametrize(
    ("mark", "header"), [(0, JSON_HEADER), (1, rocketmq_header())], ids=["JSON header", "ROCKETMQ header"]
)
def test_every_byte_but_the_addresses_is_as_it_came(mark: int, header: bytes) -> None:
    tap = RouteTap(lambda address: "[::1]:4" if address == "10.0.0.1:10911" else address)
    asked(tap, 7)
    told = tap.rewrite(framed(mark, header, ODD_BODY))
    expected = ODD_BODY.replace(b'0 : "10.0.0.1:10911"', b'0 : "[::1]:4"')
    expected = expected.replace(b'"10.0.0.1:\\u00310911"', b'"[::1]:4"')
    assert told == framed(mark, header, expected)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text() | st.just("h:1"),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text() | st.sampled_from(["brokerAddrs", "0"]), inner, max_size=4)
    ),
    max_leaves=20,
)


def replaced(value: Any, *, here: bool = False) -> Any:
    """The same with every text of an object of addresses replaced; slow and obvious."""
    if isinstance(value, list):
        return [replaced(item) for item in value]
    if isinstance(value, dict):
        return {
            key: "door:2" if here and isinstance(item, str) else replaced(item, here=key == "brokerAddrs")
            for key, item in value.items()
        }
    return value


@given(json_values, st.booleans())
def test_what_is_replaced_is_what_json_says(value: Any, spaced: bool) -> None:
    body = json.dumps(value, ensure_ascii=spaced, indent=1 if spaced else None).encode("utf-8", "surrogatepass")
    tap = RouteTap(lambda _address: "door:2")
    asked(tap, 7)
    told = tap.rewrite(framed(0, JSON_HEADER, body))
    assert json.loads(told[8 + len(JSON_HEADER) :]) == replaced(value)


class Unreachable(RealRuntime):
    """Connections that wait to be made are refused, but not before the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.refuses = threading.Event()

    def connect(self, host: str, port: int, timeout_s: float) -> Socket:
        self.refuses.wait(PATIENCE_S)
        raise TimeoutError(f"{host}:{port} does not answer within {timeout_s} s")


def test_brokers_that_do_not_answer_keep_nobody_waiting(connect: Connect, tmp_path: Path) -> None:
    """A route that names five of them passes while the first is still being measured."""
    addresses = b",".join(b'"%d":"10.0.0.1:%d"' % (number, 9000 + number) for number in range(5))
    runtime = Unreachable()

    def say(peer: Peer, command: Command) -> None:
        peer.answer(command, 0, body=b'{"brokerDatas":[{"brokerAddrs":{%s}}]}' % addresses)

    with (
        ScriptedServer(say) as server,
        Observer.start(
            runtime, brokers=[], name_server=(server.host, server.port), record_directory=str(tmp_path / "history")
        ) as proxy,
    ):
        assert proxy.name_server_address is not None
        reply = connect(proxy.name_server_address).call(ROUTE, {"topic": "T"})
        assert not runtime.refuses.is_set()
        assert len(proxy.doors) == 5
        assert b"10.0.0.1" not in bytes(reply.body)
        runtime.refuses.set()


def test_a_broker_that_a_route_names_is_measured(start_broker: StartBroker, connect: Connect, tmp_path: Path) -> None:
    broker, history = start_broker(), tmp_path / "history"
    with Observer.start(
        RealRuntime(), brokers=[], name_server=broker.name_server_address, record_directory=str(history)
    ) as proxy:
        assert proxy.name_server_address is not None
        send_message(connect(broker.address), "T")
        connect(proxy.name_server_address).call(ROUTE, {"topic": "T"})

        def uncertainty_ns() -> int:
            return msgspec.json.decode((history / META_FILE).read_bytes(), type=Meta).sources[0].uncertainty_ns

        wait_until(lambda: uncertainty_ns() != UNCERTAINTY_NS_UNMEASURED)
        assert uncertainty_ns() >= UNCERTAINTY_NS_MIN


def test_a_name_server_that_is_down(connect: Connect, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with (
        closed_port() as address,
        Observer.start(
            RealRuntime(), brokers=[], name_server=address, record_directory=str(tmp_path / "history")
        ) as proxy,
    ):
        assert proxy.name_server_address is not None
        for _ in range(2):
            assert connect(proxy.name_server_address).wait_closed()
    assert ["cannot be reached" in record.message for record in caplog.records] == [True]
