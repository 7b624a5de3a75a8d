"""One connection and the routes of a client as plain values: no socket, no clock, no thread."""

from __future__ import annotations

import pytest

from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError, NoRouteError, RefusedError
from longpoll_client.link.calls import Answer
from longpoll_client.link.exchange import FRAME_S, OUTPUT_BYTES_MAX, PENDING_COUNT_MAX, Exchange, Output, replied
from longpoll_client.link.routes import ROUTE_AGE_S_MAX, ROUTE_RETRY_S, Routes
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.errors import LocalProtocolError
from longpoll_protocol.frames.command import Command, encode, reply

S = 1_000_000_000


def wire(*commands: Command) -> bytes:
    """Commands as they are received."""
    return b"".join(b"".join(encode(command)) for command in commands)


def raising(_answer: Answer) -> None:
    """A callback with a mistake."""
    raise ValueError("mistake")


def begun(exchange: Exchange, told: list[Answer], now_ns: int = 0, timeout_s: float = 3.0) -> int:
    """A pull that waits."""
    return exchange.begin(RequestCode.PULL_MESSAGE, told.append, now_ns, timeout_s)


def test_answers_find_their_calls_and_cancelled_ones_nobody() -> None:
    """In pieces, in any order; a request of the peer's is no answer, and nothing is kept of what has ended."""
    exchange, told = Exchange("b:1"), list[Answer]()
    first, second, third = (begun(exchange, told) for _ in range(3))
    exchange.cancel(second)
    stream = wire(*(reply(Command(11, opaque=opaque), 0, body=b"%d" % opaque) for opaque in (third, second, first)))
    stream += wire(Command(40, opaque=first))
    others = []
    for at in range(0, len(stream), 7):
        exchange.receive(stream[at : at + 7], 1)
        while (command := exchange.next_command()) is not None:
            if not command.is_response:
                others.append(command.code)
            elif (call := exchange.answered(command)) is not None:
                exchange.tell(call, command)
    assert [bytes(answer.body) for answer in told if isinstance(answer, Command)] == [b"%d" % third, b"%d" % first]
    assert others == [40]
    assert exchange.calls.pending == {}


def test_an_unreadable_peer_is_lost() -> None:
    """Nobody knows where its next frame begins."""
    exchange = Exchange("b:1")
    exchange.receive(b"\xff" * 8, 1)
    with pytest.raises(ConnectionLostError, match="b:1 violates the protocol"):
        exchange.next_command()


def test_a_silent_connection_is_given_up_and_a_slow_answer_is_waited_for() -> None:
    """With the first call that ends after a second of silence, before it is told; not where others were answered."""
    exchange, told = Exchange("b:1"), list[Answer]()
    begun(exchange, told, timeout_s=2.0)
    assert exchange.calls.due_ns == 2 * S
    assert exchange.expire(2 * S - 1) == []
    exchange.receive(b"", int(1.5 * S))
    ((call, error),) = exchange.expire(2 * S)
    assert isinstance(error, AnswerTimeoutError)
    assert (call.code, exchange.failure) == (RequestCode.PULL_MESSAGE, None)
    begun(exchange, told, now_ns=2 * S, timeout_s=0.4)
    assert len(exchange.expire(int(2.4 * S))) == 1
    assert exchange.failure is None
    begun(exchange, told, now_ns=int(2.4 * S), timeout_s=0.2)
    assert len(exchange.expire(int(2.6 * S))) == 1
    assert "silent" in str(exchange.failure)
    with pytest.raises(ConnectionLostError, match="PULL_MESSAGE to b:1: b:1 is silent"):
        begun(exchange, told)


def test_a_connection_that_never_ends_a_frame_is_given_up() -> None:
    """With the first call that ends once the frame has come for so long; one that has ended is of no account."""
    exchange, told, frame = Exchange("b:1"), list[Answer](), wire(Command(40, opaque=7))

    def feed(data: bytes, now_ns: int) -> None:
        exchange.receive(data, now_ns)
        while exchange.next_command() is not None:
            pass

    def failure_by(now_ns: int) -> ClientError | None:
        feed(b"", now_ns)
        begun(exchange, told, now_ns=now_ns, timeout_s=0.0)
        assert len(exchange.expire(now_ns)) == 1
        return exchange.failure

    for number in range(len(frame) - 1):
        feed(frame[number : number + 1], number * S)
    end_ns, most_ns = len(frame) * S, int(FRAME_S * S)
    assert end_ns > most_ns
    feed(frame[-1:] + frame[:2], end_ns)
    assert failure_by(end_ns + 1) is None
    feed(frame[2:], end_ns + 2)
    assert failure_by(end_ns + most_ns) is None
    feed(frame + frame[:2], 2 * end_ns)
    for number in range(2, 9):
        feed(frame[number : number + 1], 2 * end_ns + number * S)
    assert failure_by(2 * end_ns + most_ns - 1) is None
    assert "b:1 has begun a frame 30 s ago and not ended it" in str(failure_by(2 * end_ns + most_ns))


@pytest.mark.parametrize("asked_ns", [0, 1])
def test_a_frame_that_somebody_may_have_asked_for_is_waited_for(asked_ns: int) -> None:
    """As long as that call waits: an answer of megabytes on a slow line is no fault. It begins at the time 1."""
    exchange, told, frame = Exchange("b:1"), list[Answer](), wire(reply(Command(11, opaque=0), 0, body=b"big"))
    begun(exchange, told, now_ns=asked_ns, timeout_s=3 * FRAME_S)
    exchange.receive(frame[:9], 1)
    assert exchange.next_command() is None
    begun(exchange, told, now_ns=2, timeout_s=3 * FRAME_S)
    late_ns = int(2 * FRAME_S * S)
    exchange.receive(frame[9:10], late_ns)
    assert exchange.next_command() is None
    begun(exchange, told, now_ns=late_ns - 1, timeout_s=0.0)
    assert len(exchange.expire(late_ns)) == 1
    assert exchange.failure is None
    exchange.receive(frame[10:], late_ns + 1)
    answer = exchange.next_command()
    assert answer is not None
    assert exchange.answered(answer) is not None


def test_calls_that_are_abandoned_tell_of_silence_too() -> None:
    """Unless anything was received meanwhile; one that has been answered by then tells nothing."""
    exchange, told = Exchange("b:1"), list[Answer]()
    exchange.abandon(begun(exchange, told), S - 1)
    assert exchange.failure is None
    exchange.receive(b"", S)
    exchange.abandon(begun(exchange, told, now_ns=S), 2 * S - 1)
    answered = begun(exchange, told, now_ns=2 * S - 1)
    assert exchange.answered(reply(Command(11, opaque=answered), 0)) is not None
    exchange.abandon(answered, 9 * S)
    assert exchange.failure is None
    late = begun(exchange, told, now_ns=2 * S)
    exchange.abandon(late, 2 * S)
    assert "silent" in str(exchange.failure)
    assert (told, exchange.calls.pending) == ([], {})


def test_a_lost_connection_ends_every_call_and_takes_no_other() -> None:
    """Each is told why, with its own name."""
    exchange, told = Exchange("b:1"), list[Answer]()
    begun(exchange, told)
    exchange.begin(RequestCode.HEART_BEAT, told.append, 0, 1.0)
    lost = exchange.lose(ConnectionLostError("broke"))
    assert [str(error) for _call, error in lost] == ["PULL_MESSAGE to b:1: broke", "HEART_BEAT to b:1: broke"]
    assert exchange.calls.pending == {}
    with pytest.raises(ConnectionLostError, match="broke"):
        exchange.one_way_opaque(10)


def test_each_call_ends_at_its_deadline_and_the_first_first() -> None:
    """However they were begun: none before its deadline, none forgotten, and an answered one is of no account."""
    exchange, told = Exchange("b:1"), list[Answer]()
    opaques = {s: begun(exchange, told, timeout_s=float(s)) for s in (5, 2, 9, 3, 7)}
    exchange.cancel(opaques[2])
    ended, looks = [], 0
    # Also at 2 s, for what was answered, and never before a deadline.
    while (due_ns := exchange.calls.due_ns) is not None and looks < 10:
        assert exchange.expire(due_ns - 1) == []
        ended += [(call.deadline_ns // S, due_ns // S) for call, _error in exchange.expire(due_ns)]
        looks += 1
    assert (ended, looks) == ([(3, 3), (5, 5), (7, 7), (9, 9)], 5)
    exchange = Exchange("b:1")
    for s in (5, 2, 9):
        begun(exchange, told, timeout_s=float(s))
    assert [call.deadline_ns // S for call, _error in exchange.expire(10 * S)] == [2, 5, 9]
    assert exchange.calls.due_ns is None


def test_looking_at_the_calls_that_wait_has_a_share_of_the_time_alone() -> None:
    """However short the time-outs of those that are added; each is noticed a microsecond later a call that waits."""
    exchange, told = Exchange("b:1"), list[Answer]()
    for _number in range(10_000):
        begun(exchange, told, timeout_s=1_000.0)
    ended, looks = list[int](), 0
    for now_ns in range(0, 100_000_000, 100_000):
        begun(exchange, told, now_ns=now_ns, timeout_s=0.0)
        if (due_ns := exchange.calls.due_ns) is not None and due_ns <= now_ns:
            ended += [now_ns - call.deadline_ns for call, _error in exchange.expire(now_ns)]
            looks += 1
    assert 9 <= looks <= 10
    assert len(ended) > 900
    assert max(ended) <= 10_200_000


def test_what_waits_has_limits(caplog: pytest.LogCaptureFixture) -> None:
    """Calls and bytes; calls that ended leave nothing behind; a callback that raises is told of and harms nobody."""
    exchange, told = Exchange("b:1"), list[Answer]()
    for number in range(20_000):
        exchange.cancel(begun(exchange, told, now_ns=number))
    assert exchange.calls.pending == {}
    last = [begun(exchange, told) for _number in range(PENDING_COUNT_MAX)][-1]
    with pytest.raises(LocalProtocolError, match="already waiting for answers"):
        begun(exchange, told)
    output = Output("b:1")
    assert output.add([b"abc", b"defg"])
    assert not output.add([b"h"])
    output.sent(4)
    assert (b"".join(output.first(9)), output.size) == (b"efgh", 4)
    with pytest.raises(LocalProtocolError, match="4 bytes are waiting"):
        output.add([bytes(OUTPUT_BYTES_MAX)])
    call = exchange.answered(reply(Command(11, opaque=last), 0))
    assert call is not None
    exchange.tell(type(call)(11, 0, 0, raising), Command(0))
    assert "the callback of PULL_MESSAGE to b:1 failed" in caplog.text


def test_requests_without_an_answer_get_none() -> None:
    """And others an answer with their opaque."""
    assert replied(Command(40, flag=int(CommandFlag.ONE_WAY)), 0, None, b"x") == []
    assert len(replied(Command(40), 0, None, b"x")) == 2


def route_answer(address: str = "a:1", topic_known: bool = True) -> Command:
    """What a name server says."""
    data = TopicRouteData(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: address})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=8, write_queue_nums=8, perm=6)],
    )
    return Command(0, body=data.encode()) if topic_known else Command(ResponseCode.TOPIC_NOT_EXIST)


def test_a_route_is_kept_until_a_better_one_comes() -> None:
    """It grows old, it is doubted, and what is no route takes nobody's place."""
    routes = Routes()
    with pytest.raises(NoRouteError, match="not in any route"):
        routes.address("a")
    with pytest.raises(ClientError, match="down"):
        routes.fall_back("T", ClientError("down"), 0)
    assert len(routes.learn("T", route_answer(), None, 0).writable) == 8
    old_ns = int(ROUTE_AGE_S_MAX * S)
    assert routes.fresh("T", old_ns - 1) is not None
    assert routes.fresh("T", old_ns) is None
    with pytest.raises(NoRouteError, match="unknown to the name server"):
        routes.learn("T", route_answer(topic_known=False), None, old_ns)
    with pytest.raises(RefusedError):
        routes.learn("T", Command(1), None, old_ns)
    kept = routes.fall_back("T", ClientError("down"), old_ns)
    assert kept.addresses == {"a": "a:1"}
    assert routes.fresh("T", old_ns + int(ROUTE_RETRY_S * S) - 1) is not None
    assert routes.fresh("T", old_ns + int(ROUTE_RETRY_S * S)) is None
    routes.learn("T", route_answer("b:2"), None, old_ns)
    routes.doubt("T", old_ns)
    assert routes.fresh("T", old_ns) is None
    assert (routes.address("a"), routes.addresses()) == ("b:2", ["b:2"])


def test_a_borrowed_route_is_asked_for_again() -> None:
    """It has as many queues as the topic will have, and is not fresh."""
    routes = Routes()
    borrowed = routes.learn("T", route_answer(), 4, 0)
    assert ([queue.topic for queue in borrowed.writable], routes.fresh("T", 0)) == (["T"] * 4, None)
    routes.forget("T")
    assert routes.known("T") is None
