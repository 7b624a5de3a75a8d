"""Connections, routes, retries and shared waits of a client, without sockets."""

from __future__ import annotations

import threading
from itertools import count
from queue import SimpleQueue

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from model_tests.support.broker.raw_client import PATIENCE_S
from model_tests.support.client import Machine

from longpoll_client import (
    AnswerTimeoutError,
    ClientError,
    ConfigError,
    ConnectionLostError,
    LocalProtocolError,
    MessageQueue,
    NoRouteError,
    OutgoingMessage,
    RefusedError,
    UnreachableError,
)
from longpoll_client.errors import RETRIED_CODES
from longpoll_client.link.exchange import (
    FRAME_S,
    OUTPUT_BYTES_MAX,
    PENDING_COUNT_MAX,
    Answer,
    Exchange,
    Output,
    replied,
)
from longpoll_client.link.routes import ROUTE_AGE_S_MAX, ROUTE_RETRY_S, Route, Routes
from longpoll_client.produce.attempts import ATTEMPT_COUNT, MS, SendAttempts, SlowBrokers, away_ms, is_lost, selector
from longpoll_client.produce.outgoing import Parcel, batch_parcel, single_parcel
from longpoll_client.timer import SingleFlight
from longpoll_protocol.bodies import BrokerData, QueueData, TopicRouteData
from longpoll_protocol.codes import SEND_SUCCESS_CODES, CommandFlag, RequestCode, ResponseCode
from longpoll_protocol.frames import Command, encode, reply
from longpoll_protocol.headers import SendMessageResponseHeader

S = 1_000_000_000


def wire(*commands: Command) -> bytes:
    return b"".join(b"".join(encode(command)) for command in commands)


def raising(_answer: Answer) -> None:
    """A callback that raises."""
    raise ValueError("mistake")


def begun(exchange: Exchange, told: list[Answer], now_ns: int = 0, timeout_s: float = 3.0) -> int:
    """Start a pull that waits for its answer; returns its opaque."""
    return exchange.begin(RequestCode.PULL_MESSAGE, told.append, now_ns, timeout_s)


def test_an_answer_ends_its_call_unless_the_call_was_cancelled() -> None:
    """Answers arrive in pieces and in any order. A request from the peer does not count as an answer."""
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


def test_an_unreadable_frame_closes_the_connection() -> None:
    """After an unreadable frame the connection is closed, because the start of the next frame is unknown."""
    exchange = Exchange("b:1")
    exchange.receive(b"\xff" * 8, 1)
    with pytest.raises(ConnectionLostError, match="b:1 violates the protocol"):
        exchange.next_command()


def test_a_silent_connection_is_closed_and_a_slow_one_is_kept() -> None:
    """The first call after a second of silence closes the connection before the call's own timeout."""
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


def test_a_connection_that_never_completes_a_frame_is_closed() -> None:
    """A call that times out after a frame was incomplete for `FRAME_S` closes the connection; other calls do not."""
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
def test_a_slow_frame_that_may_answer_a_call_is_waited_for(asked_ns: int) -> None:
    """A slow answer of megabytes is not a fault, so its frame may take long."""
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


def test_abandoned_calls_show_a_silent_connection_too() -> None:
    """An abandoned call is evidence of silence too, unless it was answered or other data was received meanwhile."""
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


def test_a_lost_connection_ends_every_call_and_accepts_no_other() -> None:
    exchange, told = Exchange("b:1"), list[Answer]()
    begun(exchange, told)
    exchange.begin(RequestCode.HEART_BEAT, told.append, 0, 1.0)
    lost = exchange.lose(ConnectionLostError("broke"))
    assert [str(error) for _call, error in lost] == ["PULL_MESSAGE to b:1: broke", "HEART_BEAT to b:1: broke"]
    assert exchange.calls.pending == {}
    with pytest.raises(ConnectionLostError, match="broke"):
        exchange.one_way_opaque(10)


def test_calls_end_in_the_order_of_their_deadlines() -> None:
    """No call ends before its deadline or is forgotten, in whatever order the calls began."""
    exchange, told = Exchange("b:1"), list[Answer]()
    opaques = {s: begun(exchange, told, timeout_s=float(s)) for s in (5, 2, 9, 3, 7)}
    exchange.cancel(opaques[2])
    ended, looks = [], 0
    # The clock also wakes at 2 s for the answered call, but no call ends before its deadline.
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


def test_checking_deadlines_takes_a_bounded_share_of_the_time() -> None:
    """However short the added timeouts are, each timeout is noticed within a microsecond per waiting call."""
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


def test_waiting_calls_are_limited(caplog: pytest.LogCaptureFixture) -> None:
    """The number and size of waiting calls are limited; ended calls leave nothing, and a raising callback is logged."""
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


def test_a_one_way_request_of_the_peer_is_not_answered() -> None:
    """A one-way request of the peer gets no answer, and any other request gets an answer with its opaque."""
    assert replied(Command(40, flag=int(CommandFlag.ONE_WAY)), 0, None, b"x") == []
    assert len(replied(Command(40), 0, None, b"x")) == 2


def route_answer(address: str = "a:1", topic_known: bool = True) -> Command:
    data = TopicRouteData(
        broker_datas=[BrokerData(broker_name="a", broker_addrs={0: address})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=8, write_queue_nums=8, perm=6)],
    )
    return Command(0, body=data.encode()) if topic_known else Command(ResponseCode.TOPIC_NOT_EXIST)


def test_a_route_is_kept_until_a_better_one_comes() -> None:
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


def test_a_borrowed_route_is_looked_up_again() -> None:
    """A borrowed route has as many queues as the topic will have, and counts as old."""
    routes = Routes()
    borrowed = routes.learn("T", route_answer(), 4, 0)
    assert ([queue.topic for queue in borrowed.writable], routes.fresh("T", 0)) == (["T"] * 4, None)
    routes.forget("T")
    assert routes.known("T") is None


def queue(name: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic="T", broker_name=name, queue_id=queue_id)


TWO = Route("T", (), tuple(queue(name, number) for name in "ab" for number in range(2)), {"a": "A:1", "b": "B:1"}, 0)
ONE = Route("T", (), (queue("a", 0), queue("a", 1)), {"a": "A:1"}, 0)


def parcel(messages: int = 1) -> Parcel:
    if messages == 1:
        return single_parcel("P", "T", OutgoingMessage(b"x"), "id-0", 0)
    ids = [f"id-{number}" for number in range(messages)]
    return batch_parcel("P", "T", [OutgoingMessage(b"x")] * messages, ids, 0)


def stored_at(msg_id: str = "broker-id", code: int = 0) -> Command:
    """Return a broker's answer that the message is in queue 1 at offset 7."""
    return Command(code, ext_fields=SendMessageResponseHeader(msg_id=msg_id, queue_id=1, queue_offset=7).encode())


def asked_of(tries: SendAttempts, route: Route, outcomes: list[Command | ClientError], step_ns: int = 0) -> list[str]:
    """Return the brokers that a send tries if its tries end with these outcomes and take `step_ns` each."""
    turns, now_ns, found = count(), 0, []
    for outcome in outcomes:
        attempt = tries.begin(route, turns.__next__, now_ns)
        found.append(f"{attempt.queue.broker_name}{attempt.queue.queue_id}")
        now_ns += step_ns
        if tries.ended(outcome, now_ns) is not None:
            break
    return found


def test_queues_take_turns_and_a_retry_goes_to_another_broker() -> None:
    lost = ConnectionLostError("gone")
    assert asked_of(SendAttempts(parcel(), None, 3 * S), TWO, [lost, lost, stored_at()]) == ["a0", "b1", "a0"]
    assert asked_of(SendAttempts(parcel(), None, 3 * S), ONE, [lost, stored_at()]) == ["a0", "a1"]


def test_a_selector_picks_the_queue_of_every_try() -> None:
    """A selector picks the queue of every try; an unknown queue, or a selector with a queue number, is an error."""
    lost = AnswerTimeoutError("late")
    assert asked_of(SendAttempts(parcel(), lambda queues: queues[-1], S), TWO, [lost, lost, stored_at()]) == ["b1"] * 3
    assert asked_of(SendAttempts(parcel(), selector("T", 1, None), S), TWO, [lost, stored_at()]) == ["a1", "a1"]
    with pytest.raises(ConfigError, match="has no queue 5"):
        SendAttempts(parcel(), selector("T", 5, None), S).begin(TWO, count().__next__, 0)
    with pytest.raises(ConfigError, match="not a writable queue"):
        SendAttempts(parcel(), lambda _queues: queue("c", 0), S).begin(TWO, count().__next__, 0)
    with pytest.raises(ConfigError, match="cannot be used together"):
        selector("T", 1, lambda queues: queues[0])
    with pytest.raises(NoRouteError, match="permission lacks W"):
        SendAttempts(parcel(), None, S).begin(Route("T", (), (), {}, 0), count().__next__, 0)


@pytest.mark.parametrize("code", sorted({1, 2, 13, 14, 15, 16, 17, 215, 1500}))
def test_only_failures_that_another_broker_may_not_have_are_retried(code: int) -> None:
    """Only codes that another broker may not give, and lost connections, are retried; codes are Java 5.5.0's."""
    assert {1, 2, 14, 16, 17, 1500} == RETRIED_CODES
    tries = SendAttempts(parcel(), None, S)
    if code in RETRIED_CODES:
        assert asked_of(tries, TWO, [Command(code), stored_at()]) == ["a0", "b1"]
    else:
        with pytest.raises(RefusedError) as refused:
            asked_of(tries, TWO, [Command(code, remark="no"), stored_at()])
        assert (refused.value.code, refused.value.remark, tries.count) == (code, "no", 1)


def test_a_send_ends_after_three_tries_or_at_its_timeout() -> None:
    """The last failure is raised; the first try is always made, and each try gets the remaining time."""
    failures: list[ClientError] = [UnreachableError("1"), ConnectionLostError("2"), AnswerTimeoutError("3")]
    tries = SendAttempts(parcel(), None, 10 * S)
    with pytest.raises(AnswerTimeoutError, match="3"):
        asked_of(tries, TWO, list(failures))
    assert tries.count == ATTEMPT_COUNT == 3
    tries = SendAttempts(parcel(), None, 2 * S)
    with pytest.raises(ConnectionLostError, match="2"):
        asked_of(tries, TWO, list(failures), step_ns=S)
    assert tries.count == 2
    tries = SendAttempts(parcel(), None, 0)
    assert tries.begin(TWO, count().__next__, S).timeout_s == -1.0
    assert tries.ended(stored_at(), S) is not None


def test_the_text_of_a_refusal() -> None:
    assert str(RefusedError("14 to b", ResponseCode.SYSTEM_ERROR, " full ")) == "14 to b: the broker says 1 (full)"
    assert "says 3; pass a name server's" in str(RefusedError("a", ResponseCode.REQUEST_CODE_NOT_SUPPORTED, None))


def test_which_failures_cast_doubt_on_a_route() -> None:
    """Only failures in which the broker sent no answer make the route doubtful."""
    assert all(is_lost(error) for error in (UnreachableError(""), ConnectionLostError(""), AnswerTimeoutError("")))
    assert not is_lost(RefusedError("", ResponseCode.SYSTEM_ERROR, None))
    assert not is_lost(ClientError(""))


@pytest.mark.parametrize("code", sorted(SEND_SUCCESS_CODES))
def test_results_have_each_messages_queue_and_offset(code: int) -> None:
    """The broker names the queue; a batch has an id for each message, or one shared id."""
    tries = SendAttempts(parcel(3), None, S)
    tries.begin(TWO, count().__next__, 0)
    found = tries.ended(stored_at("x,y,z", code), 0)
    assert found is not None
    assert [(one.msg_id, one.broker_msg_id, one.queue, one.queue_offset, one.code) for one in found] == [
        (f"id-{number}", "xyz"[number], queue("a", 1), 7 + number, code) for number in range(3)
    ]
    shared = tries.ended(stored_at("x"), 0)
    assert shared is not None
    assert [one.broker_msg_id for one in shared] == ["x"] * 3


def test_a_send_with_an_unreadable_answer_is_not_retried() -> None:
    """The message may be stored, so a second send would make a copy."""
    with pytest.raises(ClientError, match="cannot be read"):
        asked_of(SendAttempts(parcel(), None, S), TWO, [Command(0, ext_fields={"queueId": "x"}), stored_at()])


NAMES = "abc"
QUEUES = tuple(MessageQueue(topic="T", broker_name=name, queue_id=0) for name in NAMES)
ROUTE = Route("T", (), QUEUES, {name: f"{name}:1" for name in NAMES}, 0)
AT_ZERO = Command(0, ext_fields=SendMessageResponseHeader(msg_id="m", queue_id=0, queue_offset=0).encode())
LOST_AWAY_MS = 10_000


@pytest.mark.parametrize(
    ("latency_ms", "expected"),
    [(0, 0), (549.9, 0), (550, 2000), (1799, 2000), (1800, 5000), (3000, 6000), (5000, 10_000), (15_000, 30_000)],
)
def test_a_slower_broker_is_avoided_for_longer(latency_ms: float, expected: int) -> None:
    """The slower a broker was, the longer it is avoided, by the table of `MQFaultStrategy` in 5.x."""
    assert away_ms(latency_ms) == expected


EVENTS = st.tuples(
    st.sampled_from(NAMES), st.sampled_from(["served", "lost", "refused"]), st.integers(0, 20_000), st.integers(0, 3000)
)


@example([("a", "served", 15_000, 0), ("a", "served", 550, 0), ("a", "served", 0, 3000)], None)
@given(st.lists(EVENTS, max_size=20), st.sampled_from([None, *NAMES]))
def test_brokers_are_preferred_as_in_java(events: list[tuple[str, str, int, int]], avoided: str | None) -> None:
    """The chosen broker is that of a simple model which keeps a log of all results."""
    slow, now_ms = SlowBrokers(), 0
    account: list[tuple[str, str, int]] = []
    for name, kind, latency_ms, step_ms in events:
        now_ms += step_ms
        if kind == "served":
            slow.served(name, latency_ms * MS, now_ms * MS)
            account.append((name, kind, now_ms + away_ms(latency_ms)))
        else:
            slow.failed(name, now_ms * MS, is_refusal=kind == "refused")
            account.append((name, kind, now_ms + LOST_AWAY_MS))
        last = {name: kind for name, kind, _until in account}
        away = {name for name, _kind, until_ms in account if until_ms > now_ms}
        others = [name for name in NAMES if name != avoided]
        expected = [name for name in others if name not in away]
        expected = expected or [name for name in others if last.get(name) != "refused"] or list(NAMES)
        assert [queue.broker_name for queue in slow.preferred(QUEUES, avoided, now_ms * MS)] == expected
        assert slow.is_available(name, now_ms * MS) == (name not in away)


def brokers_asked(slow: SlowBrokers, outcome: object, took_ms: int, sends: int, *, queue_id: int | None = None) -> str:
    """Return the brokers that a number of sends use, 100 ms apart, if broker b ends every try in this way."""
    asked, turns, now_ns = "", count(), 0
    for number in range(sends):
        parcel = single_parcel("P", "T", OutgoingMessage(b"x"), f"{number:032X}", 0)
        tries = SendAttempts(parcel, selector("T", queue_id, None), now_ns + 60_000 * MS, slow)
        found = None
        while found is None:
            name = tries.begin(ROUTE, turns.__next__, now_ns).queue.broker_name
            asked += name
            now_ns += (took_ms if name == "b" else 1) * MS
            found = tries.ended(outcome if name == "b" else AT_ZERO, now_ns)  # type: ignore[arg-type] # as parametrized
        now_ns += 100 * MS
    return asked


@pytest.mark.parametrize(
    ("outcome", "took_ms"),
    [(AT_ZERO, 6000), (AnswerTimeoutError("late"), 600), (ConnectionLostError("gone"), 1), (Command(2), 1)],
)
def test_one_bad_broker_costs_one_send_in_ten_seconds(outcome: object, took_ms: int) -> None:
    """A slow, silent, gone or busy broker costs one send in ten seconds, and then it is tried again."""
    asked = brokers_asked(SlowBrokers(), outcome, took_ms, 90)
    assert asked.count("b") == 1
    again = brokers_asked(SlowBrokers(), outcome, took_ms, 200)
    assert 2 <= again.count("b") <= 3


def test_a_refused_message_does_not_make_its_broker_slow() -> None:
    """A quick refusal does not count as slow, and a send that names its queue even goes to a slow broker."""
    slow = SlowBrokers()
    tries = SendAttempts(single_parcel("P", "T", OutgoingMessage(b"x"), "0" * 32, 0), None, MS, slow)
    name = tries.begin(ROUTE, count().__next__, 0).queue.broker_name
    with pytest.raises(Exception, match="says 13"):
        tries.ended(Command(13), 1)
    assert slow.is_available(name, 1)
    assert brokers_asked(slow, AT_ZERO, 1, 6) == "abcabc"
    slow.failed("a", 0, is_refusal=True)
    assert brokers_asked(slow, AT_ZERO, 1, 2, queue_id=0) == "aa"


def outcomes(told: SimpleQueue[object], count: int) -> list[object]:
    return [told.get(timeout=PATIENCE_S) for _ in range(count)]


@pytest.mark.parametrize("count", [1, 3])
def test_without_a_thread_waiting_callers_get_an_error_at_once(count: int) -> None:
    runtime, told = Machine(threads_max=0), SimpleQueue[object]()
    waits = SingleFlight(runtime, "waits")
    for _ in range(count):
        waits.wait(("route", "T"), lambda: 7, told.put)
    text = "nothing can wait for route T: no thread can be started (can't start new thread)"
    assert [str(each) for each in outcomes(told, count)] == [text] * count
    assert told.empty()
    runtime.threads_max = 1
    waits.wait(("route", "T"), lambda: 7, told.put)
    assert outcomes(told, 1) == [7]
    waits.close()


def test_one_thread_does_all_work_if_no_other_can_be_started() -> None:
    """If no other thread can be started, one thread runs the waiting work in order."""
    waits, told, goes_on = SingleFlight(Machine(threads_max=1), "waits"), SimpleQueue[object](), threading.Event()
    waits.wait(("route", "T"), lambda: goes_on.wait(PATIENCE_S), told.put)
    waits.wait(("route", "U"), lambda: 8, told.put)
    assert told.empty()
    goes_on.set()
    assert outcomes(told, 2) == [True, 8]
    waits.close()
