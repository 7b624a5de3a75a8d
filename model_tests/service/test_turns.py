"""A request that takes long goes on in turns, and others are served between them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import pytest
from attrs import define
from model_tests.support.service_b import answer_of

from longpoll_broker.broker import Broker
from longpoll_broker.config import BrokerConfig
from longpoll_broker.handler import BrokerHandler
from longpoll_broker.opening import limits_of
from longpoll_broker.service.io import transport
from longpoll_broker.service.io.channel import Channel, Outbox
from longpoll_broker.service.io.transport import PASS_NS, QUEUED_SIZE_MAX, TURN_NS_MAX, TURN_NS_MIN, IoLoop
from longpoll_broker.store.index import index
from longpoll_broker.store.index.index_file import IndexFile
from longpoll_broker.testing.brokers import Connect, StartBroker, wait_until
from longpoll_broker.testing.raw_client import RawClient, pull_fields, records_of, send_fields, send_message
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames.command import Command
from longpoll_runtime import Poller
from longpoll_runtime.real import RealRuntime

BYSTANDER_COUNT = 3
TURN_COUNT_MAX = 100_000
"""A search that nobody interrupts ends after as many turns, so that a broker that serves nobody fails the test."""
WALKED_MAX = 4


@pytest.fixture
def unending(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Searches of the index go on until this list has something in it, or after far too many entries."""
    ended: list[bool] = []

    def find(self: IndexFile, hashed: int, begin_ms: int, end_ms: int) -> Iterator[int | None]:
        for _ in range(TURN_COUNT_MAX * WALKED_MAX):
            if ended:
                break
            yield None
        yield from original(self, hashed, begin_ms, end_ms)

    original = IndexFile.find
    monkeypatch.setattr(IndexFile, "find", find)
    monkeypatch.setattr(index, "WALKED_MAX", WALKED_MAX)
    return ended


def queried(client: RawClient) -> int:
    """Ask for the messages of a key; the request's opaque."""
    fields = {"topic": "T", "key": "k", "maxNum": "8", "beginTimestamp": "0", "endTimestamp": str(2**60)}
    return client.send(RequestCode.QUERY_MESSAGE, fields)


@pytest.mark.parametrize("count", [1, 20])
def test_others_are_served_during_a_long_query(
    count: int, unending: list[bool], start_broker: StartBroker, connect: Connect
) -> None:
    """A bystander's sends and pulls are answered while queries are under way, which then find their message.

    What the same connections asked after their queries is answered after those.
    """
    broker = start_broker()
    bystander = connect(broker.address)
    send_message(bystander, "T", properties="KEYS\x01k\x02")
    searching = [connect(broker.address) for _ in range(count)]
    asked = [(client, queried(client), client.send(RequestCode.SEND_MESSAGE_V2, send_fields("T"))) for client in searching]  # noqa: E501 - a triple a client  # fmt: skip
    for _ in range(BYSTANDER_COUNT):
        offset = send_message(bystander, "Other")
        assert len(records_of(bystander.call(RequestCode.PULL_MESSAGE, pull_fields("Other", offset)))) == 1
    assert searching[0].reply(asked[0][1], 0.0) is None
    assert searching[0].reply(asked[0][2], 0.0) is None
    unending.append(True)
    for client, query, send in asked:
        found = answer_of(client, query)
        assert len(records_of(found)) == 1
        sent = answer_of(client, send)
        assert sent.code == 0


def test_a_connection_that_goes_during_its_query_costs_nothing(
    unending: list[bool], start_broker: StartBroker, connect: Connect
) -> None:
    """The broker ends the search or drops it, and serves others."""
    broker = start_broker()
    bystander, leaving = connect(broker.address), connect(broker.address)
    send_message(bystander, "T", properties="KEYS\x01k\x02")
    queried(leaving)
    assert send_message(bystander, "Other") == 0
    leaving.close()
    unending.append(True)
    assert send_message(bystander, "Other") == 1


def passes_of(client: RawClient, broker: Broker) -> int:
    """How many passes of the loop it takes to answer one connection's 200 requests for a table."""
    count = [0]
    ended = broker.loops[0]._pass_ended

    def count_pass(outbox: Outbox) -> None:
        count[0] += 1
        ended(outbox)

    broker.loops[0]._pass_ended = count_pass
    opaques = client.send_burst(RequestCode.GET_ALL_TOPIC_CONFIG, [({}, b"")] * 200)
    answers = [client.reply(opaque) for opaque in opaques]
    sizes = {len(answer.body) for answer in answers if answer is not None}
    assert len(sizes) == 1
    return count[0] * QUEUED_SIZE_MAX // (200 * sizes.pop())


def test_a_connection_with_much_to_be_answered_gives_way(start_broker: StartBroker, connect: Connect) -> None:
    broker = start_broker()
    assert passes_of(connect(broker.address), broker) >= 1


LONG_FIELDS: Final = {
    RequestCode.GET_MAX_OFFSET: {"topic": "T", "queueId": "0"},
    # A delayed message is stored by itself, also where sends come side by side.
    RequestCode.SEND_MESSAGE_V2: send_fields("T", 0, "DELAY\x011\x02"),
    RequestCode.PULL_MESSAGE: pull_fields("T", 5),
}


def passes_of_slow_requests(
    client: RawClient,
    broker: Broker,
    monkeypatch: pytest.MonkeyPatch,
    code: RequestCode = RequestCode.GET_MAX_OFFSET,
) -> int:
    """How many passes it takes to answer 20 requests of one piece that take half a turn each, by a clock of our own."""
    clock_ns, count, ended = [0], [0], broker.loops[0]._pass_ended

    def serve(*arguments: object) -> None:
        clock_ns[0] += TURN_NS_MAX // 2
        original(*arguments)  # type: ignore[arg-type] # as it is called

    def count_pass(outbox: Outbox) -> None:
        count[0] += 1
        ended(outbox)

    original = broker.handler._serve
    monkeypatch.setattr(broker.handler, "_serve", serve)
    for bursts in (broker.handler.send_bursts, broker.handler.pull_bursts):
        monkeypatch.setattr(bursts, "serve_one", serve)
        monkeypatch.setattr(bursts, "now_ns", lambda: clock_ns[0])
    monkeypatch.setattr(broker.loops[0], "_pass_ended", count_pass)
    monkeypatch.setattr(broker.runtime, "monotonic_ns", lambda: clock_ns[0])
    opaques = client.send_burst(code, [(LONG_FIELDS[code], b"x")] * 20)
    assert all(client.reply(opaque) is not None for opaque in opaques)
    return count[0]


@pytest.mark.parametrize("code", LONG_FIELDS, ids=lambda code: code.name)
def test_a_connection_whose_requests_take_long_gives_way(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, code: RequestCode
) -> None:
    broker = start_broker()
    client = connect(broker.address)
    send_message(client, "T")
    assert passes_of_slow_requests(client, broker, monkeypatch, code) >= 6


LEAVING_COUNT = 40


def most_closed_in_a_pass(start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch) -> int:
    """Forty connections with held pulls end while the loop is busy; how many of them one pass closed at most."""
    broker = start_broker()
    loop, closed, most = broker.loops[0], BrokerHandler.closed, [0]
    goes_on, stands = broker.runtime.event(), broker.runtime.event()
    in_pass = [0]

    def count_closed(handler: BrokerHandler, channel: Channel) -> None:
        in_pass[0] += 1
        most[0] = max(most[0], in_pass[0])
        closed(handler, channel)

    def end_pass(outbox: Outbox) -> None:
        in_pass[0] = 0
        if stands.is_set() and not goes_on.is_set():
            goes_on.wait(60.0)
        ended(outbox)

    ended = loop._pass_ended
    clients = [RawClient(broker.address) for _ in range(LEAVING_COUNT)]
    send_message(clients[0], "T")
    for client in clients:
        client.send(RequestCode.PULL_MESSAGE, pull_fields("T", 1, timeout_ms=60_000))
    wait_until(lambda: len(broker.hold_service) == LEAVING_COUNT)
    monkeypatch.setattr(BrokerHandler, "closed", count_closed)
    monkeypatch.setattr(loop, "_pass_ended", end_pass)
    stands.set()
    for client in clients:
        client.close()
    goes_on.set()
    wait_until(lambda: loop.channel_count == 0 and not len(broker.hold_service))
    assert not loop._leaving
    return most[0]


def test_connections_that_end_at_once_are_closed_in_turns(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few a pass, and all of them, with what they hold, in the end."""
    monkeypatch.setattr(transport, "CLOSES_MAX", 4)
    assert 0 < most_closed_in_a_pass(start_broker, monkeypatch) <= 4


def test_a_loop_that_stops_closes_those_that_wait_for_it(
    start_broker: StartBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = start_broker()
    loop = broker.loops[0]
    clients = [RawClient(broker.address) for _ in range(5)]
    wait_until(lambda: loop.channel_count == len(clients))
    with monkeypatch.context() as patch:
        leave_waiting(loop, clients, patch)
    broker.stop()
    assert (loop.channel_count, len(loop._leaving)) == (0, 0)


def leave_waiting(loop: IoLoop, clients: list[RawClient], patch: pytest.MonkeyPatch) -> None:
    """End connections of a loop that closes none of them."""
    patch.setattr(loop, "_close_those_leaving", lambda: setattr(loop, "_closes_left", 0))
    for client in clients:
        client.close()
    wait_until(lambda: len(loop._leaving) == len(clients))
    assert all(channel.has_left and not channel.closed for channel in loop._channels)
    loop._stopping = True


@pytest.mark.parametrize(
    ("ready", "turn_ns"), [(0, TURN_NS_MAX), (4, PASS_NS // 5), (9, PASS_NS // 10), (10_000, TURN_NS_MIN)]
)
def test_turns_are_shorter_the_more_are_ready(ready: int, turn_ns: int) -> None:
    loop = IoLoop(RealRuntime(), "io", limits_of(BrokerConfig()), pass_ended=lambda _outbox: None)
    loop._run_pass([(object(), False, False)] * ready)
    assert loop._turn_ns == turn_ns
    loop.stop()


SLOW, QUICK = RequestCode.GET_MAX_OFFSET, RequestCode.GET_MIN_OFFSET


def served_in_passes(
    start_broker: StartBroker,
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
    slow_count: int,
    *,
    large: bytes | None = None,
) -> list[list[int]]:
    """The codes that each pass served: peers whose request takes a whole pass ask, and behind them one that is quick.

    All have asked the same before, and now they ask while the loop stands still; with a `large` body they have all been
    quick before, and that comes with what they ask now.
    """
    broker = start_broker()
    peers = [connect(broker.address) for _ in range(slow_count + 1)]
    send_message(peers[-1], "T")
    clock_ns, passes = [0], list[list[int]]()
    loop, goes_on = broker.loops[0], broker.runtime.event()
    stands, stood = broker.runtime.event(), broker.runtime.event()
    ended, original = loop._pass_ended, broker.handler._serve

    def serve(channel: Channel, command: Command, outbox: Outbox) -> None:
        passes[-1].append(command.code)
        clock_ns[0] += PASS_NS + 1 if command.code == SLOW else 1
        original(channel, command, outbox)

    def end_pass(outbox: Outbox) -> None:
        ended(outbox)
        outbox.flush()
        passes.append([])
        if stands.is_set():
            stood.set()
            goes_on.wait(60.0)

    def ask(code: int = SLOW, body: bytes = b"") -> list[tuple[RawClient, int]]:
        place = {"topic": "T", "queueId": "0"}
        return [
            (peer, peer.send(QUICK, place) if peer is peers[-1] else peer.send(code, place, body)) for peer in peers
        ]

    passes.append([])
    monkeypatch.setattr(broker.handler, "_serve", serve)
    monkeypatch.setattr(loop, "_pass_ended", end_pass)
    monkeypatch.setattr(broker.runtime, "monotonic_ns", lambda: clock_ns[0])
    assert all(peer.reply(opaque) is not None for peer, opaque in ask(SLOW if large is None else QUICK))
    stands.set()
    loop.wake()
    assert stood.wait(60.0)
    asked = ask(body=large or b"")
    goes_on.set()
    assert all(peer.reply(opaque) is not None for peer, opaque in asked)
    served = [each for each in passes if each]
    while sum(map(len, served)) > len(peers):
        served.pop(0)
    return served


def test_who_is_quick_is_served_before_those_that_take_long(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = served_in_passes(start_broker, connect, monkeypatch, 5)
    assert passes[0][0] == QUICK
    assert [each.count(SLOW) for each in passes if SLOW in each] == [1] * 5


def test_who_is_quick_is_served_before_what_is_large(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = served_in_passes(start_broker, connect, monkeypatch, 5, large=bytes(transport.LARGE_SIZE))
    assert passes[0][0] == QUICK
    assert [each.count(SLOW) for each in passes if SLOW in each] == [1] * 5


def read_in_passes(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch, new_count: int
) -> list[list[int]]:
    """For each pass the numbers of the connections that were read: new ones, whose reads take a whole pass, and a 0.

    That one is quick, and asks last while the loop stands still. The poller tells of all the other way round each time.
    """
    broker = start_broker()
    quick, *new = [connect(broker.address) for _ in range(new_count + 1)]
    clock_ns, passes = [0], list[list[int]]()
    loop, goes_on = broker.loops[0], broker.runtime.event()
    stands, stood = broker.runtime.event(), broker.runtime.event()
    ended, original, polled = loop._pass_ended, loop._receive, type(loop.poller).poll

    def poll(poller: Poller, timeout_s: float | None) -> list[tuple[object, bool, bool]]:
        return polled(poller, timeout_s)[:: 1 if len(passes) % 2 else -1]

    def receive(channel: Channel, now_ns: int) -> int:
        # As a TLS handshake takes its time.
        passes[-1].append(channel.number if channel.is_slow else 0)
        clock_ns[0] += PASS_NS + 1 if channel.is_slow else 1
        return original(channel, now_ns)

    def end_pass(outbox: Outbox) -> None:
        ended(outbox)
        passes.append([])
        if stands.is_set():
            stood.set()
            goes_on.wait(60.0)

    passes.append([])
    monkeypatch.setattr(broker.runtime, "monotonic_ns", lambda: clock_ns[0])
    send_message(quick, "T")
    send_message(quick, "T")
    wait_until(lambda: loop.channel_count == new_count + 1)
    monkeypatch.setattr(loop, "_receive", receive)
    monkeypatch.setattr(type(loop.poller), "poll", poll)
    monkeypatch.setattr(loop, "_pass_ended", end_pass)
    stands.set()
    loop.wake()
    assert stood.wait(60.0)
    asked = [(peer, peer.send(QUICK, {"topic": "T", "queueId": "0"})) for peer in (*new, quick)]
    goes_on.set()
    assert all(peer.reply(opaque) is not None for peer, opaque in asked)
    return [each for each in passes if each]


def test_new_connections_are_read_behind_quick_ones_and_a_pass_has_an_end(
    start_broker: StartBroker, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thousand handshakes at once are a second's work on the thread that serves everybody."""
    passes = read_in_passes(start_broker, connect, monkeypatch, 5)
    assert passes[0][0] == 0
    new = [[number for number in each if number] for each in passes]
    assert [len(each) for each in new if each] == [1] * 5
    # In the order in which they were first told of.
    read = [number for each in new for number in each]
    assert read in (sorted(read), sorted(read, reverse=True))


def passes_until_served(start_broker: StartBroker, connect: Connect, new_count: int) -> int:
    """How many passes begin until one is served that was slow once, beside so many that ask for the first time."""
    broker = start_broker()
    loop, goes_on, stood = broker.loops[0], broker.runtime.event(), broker.runtime.event()
    known = connect(broker.address)
    send_message(known, "T")
    (channel,) = loop._channels
    new = [connect(broker.address) for _ in range(new_count)]
    wait_until(lambda: loop.channel_count == new_count + 1)
    served: list[int] = []
    run_pass, serve = loop._run_pass, loop._serve

    def stand(ready: list[tuple[object, bool, bool]]) -> None:
        stood.set()
        assert goes_on.wait(60.0)
        served.append(0)
        run_pass(ready)

    def note(one: Channel) -> None:
        if one is channel:
            served.append(1)
        serve(one)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "_run_pass", stand)
        patch.setattr(loop, "_serve", note)
        loop.wake()
        assert stood.wait(60.0)
        asked = [(peer, peer.send(QUICK, {"topic": "T", "queueId": "0"})) for peer in (*new, known)]
        channel.is_slow = True
        goes_on.set()
        assert all(peer.reply(opaque) is not None for peer, opaque in asked)
    return served[: served.index(1)].count(0)


def test_who_was_slow_once_waits_for_no_flood_of_new_connections(start_broker: StartBroker, connect: Connect) -> None:
    assert passes_until_served(start_broker, connect, 10 * transport.RESTS_MAX) <= 3


@define(eq=False)
class Waiting:
    """What a loop asks of a channel whose requests may take long."""

    is_new: bool
    rest: None = None
    is_heavy: bool = True
    is_slow: bool = True
    closed: bool = False
    broken: bool = False


def test_who_always_takes_a_whole_pass_keeps_no_new_connection_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RealRuntime()
    clock_ns = [0]
    monkeypatch.setattr(runtime, "monotonic_ns", lambda: clock_ns[0])
    loop: Any = IoLoop(runtime, "io", limits_of(BrokerConfig()), pass_ended=lambda _outbox: None)
    known, new = Waiting(is_new=False), [Waiting(is_new=True) for _ in range(4)]
    served: list[str] = []

    def serve(channel: Waiting) -> None:
        served.append("new" if channel.is_new else "known")
        clock_ns[0] += PASS_NS + 1
        if channel is known:
            loop._unfinished[channel] = None

    monkeypatch.setattr(loop, "_serve", serve)
    loop._unfinished = dict.fromkeys((known, *new))
    for _ in range(8):
        waiting, loop._unfinished = loop._unfinished, {}
        loop._serve_unfinished(list(waiting))
    loop.stop()

    assert served in (["known", "new"] * 4, ["new", "known"] * 4)
