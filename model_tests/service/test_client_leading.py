"""A caller that reads its own answer: nobody else notices, whatever comes, ends or interrupts it meanwhile."""

from __future__ import annotations

import errno
import math
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from model_tests.service import test_client_remoting as as_before
from model_tests.service.test_client_remoting import PATIENCE_S, Answers, echo, served

from longpoll_broker.testing.brokers import wait_until
from longpoll_broker.testing.scripted_server import Peer, ScriptedServer
from longpoll_client import remoting
from longpoll_client.errors import AnswerTimeoutError, ClientError, ConnectionLostError
from longpoll_client.instance import ClientInstance
from longpoll_client.link import leading
from longpoll_client.link.awake import AWAKE_NS_MAX, Awake
from longpoll_client.link.calls import Answer
from longpoll_client.link.exchange import Exchange
from longpoll_client.link.leading import Leading
from longpoll_client.remoting import ALONE_CALLS_MIN, RemotingClient
from longpoll_protocol.frames.command import Command
from longpoll_runtime.real import RealRuntime
from longpoll_runtime.sockets import RealPoller

STORIES = [
    as_before.test_many_threads_share_a_connection,
    as_before.test_a_call_without_an_answer_times_out_and_harms_no_other,
    as_before.test_requests_of_the_peer_are_handled_or_refused,
    as_before.test_what_is_left_to_the_reader_thread_is_sent_at_once,
    as_before.test_an_earlier_deadline_is_kept_also_after_calls_that_had_time,
]


@pytest.fixture(autouse=True)
def leads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every call that can leads, also the first."""
    monkeypatch.setattr(remoting, "ALONE_CALLS_MIN", 0)
    before = threading.active_count()
    yield
    wait_until(lambda: threading.active_count() <= before)


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that have received, in order."""
    names: list[str] = []
    honest = RemotingClient._receive

    def receive(client: RemotingClient) -> Any:
        names.append(threading.current_thread().name)
        return honest(client)

    monkeypatch.setattr(RemotingClient, "_receive", receive)
    return names


def led(client: RemotingClient) -> Callable[[], bool]:
    return lambda: client._leading.is_led


def call_beside(client: RemotingClient, code: int, timeout_s: float = 3600.0) -> tuple[threading.Thread, list[object]]:
    """A call on a thread of its own, which leads by now, and what comes of it."""
    outcomes: list[object] = []

    def call() -> None:
        try:
            outcomes.append(client.call(code, body=b"led", timeout_s=timeout_s))
        except ClientError as error:
            outcomes.append(error)

    thread = threading.Thread(target=call, name="caller")
    thread.start()
    wait_until(led(client))
    return thread, outcomes


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_holds_without_leaders_holds_with_them(story: Callable[[], None]) -> None:
    alone_count: int = remoting.ALONE_CALLS_MIN
    assert alone_count == 0
    story()


@pytest.fixture
def awake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Awake, "awake_ns", property(lambda _awake: AWAKE_NS_MAX))


@pytest.mark.usefixtures("awake")
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_what_holds_for_leaders_that_sleep_holds_for_those_awake(story: Callable[[], None]) -> None:
    assert Awake(lambda: None).awake_ns == AWAKE_NS_MAX
    story()


@pytest.mark.usefixtures("awake")
def test_one_that_waits_awake_sleeps_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float | None] = []
    asleep = threading.Event()
    honest = RealPoller.poll

    def poll(poller: RealPoller, timeout: float | None) -> list[tuple[object, bool, bool]]:
        if threading.current_thread().name == "caller":
            looks.append(timeout)
            if timeout:
                asleep.set()
        return honest(poller, timeout)

    def slow(peer: Peer, command: Command) -> None:
        if command.code == 11:
            assert asleep.wait(PATIENCE_S)
        peer.answer(command)

    with served(slow) as (_server, client):
        wait_until(lambda: not client._is_awake)
        monkeypatch.setattr(RealPoller, "poll", poll)
        codes: list[int] = []
        thread = threading.Thread(target=lambda: codes.append(client.call(11, timeout_s=3600.0).code), name="caller")
        thread.start()
        thread.join(PATIENCE_S)
    assert codes == [0]
    assert looks[0] == 0.0
    assert looks[-1]


def test_one_that_is_always_alone_reads_its_own_answers(readers: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """But not before it has been so for a while: who calls now and then has no poller of its own."""
    monkeypatch.setattr(remoting, "ALONE_CALLS_MIN", ALONE_CALLS_MIN)
    with served(echo) as (_server, client):
        for number in range(2 * ALONE_CALLS_MIN):
            assert bytes(client.call(10, body=b"%d" % number, timeout_s=PATIENCE_S).body) == b"%d" % number
    mine = [name == threading.current_thread().name for name in readers]
    assert mine[:ALONE_CALLS_MIN] == [False] * ALONE_CALLS_MIN
    assert any(mine[ALONE_CALLS_MIN:])


def test_callbacks_and_requests_stay_on_the_reader_thread(readers: list[str]) -> None:
    """What comes before, between and behind the leader's own answer, in one piece, and in pieces of any size."""
    held: list[Command] = []
    threads: list[tuple[object, str]] = []
    asked = threading.Event()

    def behind(peer: Peer, command: Command) -> None:
        held.append(command)
        if command.code == 10:
            pieces = [Command(code=40, flag=2), Command(code=41, flag=2)]
            peer.send(pieces[0])
            for request in held:
                peer.answer(request, body=bytes(request.body))
            peer.send(pieces[1])

    def known(command: Command) -> bool:
        threads.append((command.code, threading.current_thread().name))
        if command.code == 41:
            asked.set()
        return True

    with served(behind, on_request=known) as (_server, client):
        thread, outcomes = call_beside(client, 11)
        answers = Answers(1)

        def take(answer: Answer) -> None:
            threads.append(("callback", threading.current_thread().name))
            answers.take(answer)

        client.call_async(10, callback=take, timeout_s=PATIENCE_S)
        answers.wait()
        thread.join(PATIENCE_S)
        assert asked.wait(PATIENCE_S)
    assert [bytes(answer.body) for answer in outcomes if isinstance(answer, Command)] == [b"led"]
    assert {name for _what, name in threads} == {f"client-{client.address}"}
    assert [what for what, _name in threads] == [40, "callback", 41]
    assert "caller" in readers


@pytest.mark.parametrize("how", ["close", "garbage", "half", "client closes"])
def test_a_connection_that_ends_tells_its_leader(how: str) -> None:
    def end(peer: Peer, command: Command) -> None:
        if command.code == 12:
            if how == "garbage":
                peer.send_bytes(b"\x00" * 64)
            else:
                if how == "half":
                    peer.send_bytes(b"\x00\x00\x00\x40\x00")
                peer.close()

    with served(end) as (_server, client):
        thread, outcomes = call_beside(client, 11)
        answers = Answers(1)
        client.call_async(11 if how == "client closes" else 12, callback=answers.take, timeout_s=PATIENCE_S)
        if how == "client closes":
            client.close()
        thread.join(PATIENCE_S)
        assert isinstance(answers.wait()[0], ConnectionLostError)
        client.close()
        assert client._socket.fileno() == -1
    assert [type(outcome) for outcome in outcomes] == [ConnectionLostError]


def test_a_leader_that_gets_no_answer_gives_a_silent_connection_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exchange, "_ended_unanswered", gives_up(Exchange._ended_unanswered))
    with served(lambda _peer, _command: None) as (_server, client):
        with pytest.raises(AnswerTimeoutError):
            client.call(10, timeout_s=0.05)
        wait_until(lambda: not client.is_open)
        with pytest.raises(ConnectionLostError, match="is silent"):
            client.call(10, timeout_s=PATIENCE_S)


def test_a_leader_s_own_time_is_kept_where_the_connection_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remoting, "GRACE_S", 3600.0)
    with served(lambda _peer, _command: None) as (_server, client):
        thread, outcomes = call_beside(client, 10, timeout_s=0.5)
        thread.join(PATIENCE_S)
        assert [type(outcome) for outcome in outcomes] == [AnswerTimeoutError]
        assert client.is_open


def gives_up(honest: Callable[..., None]) -> Callable[..., None]:
    """With a silence that is over at once."""

    def ended(self: Any, calls: list[Any], now_ns: int) -> None:
        honest(self, calls, now_ns + 10**10)

    return ended


class Interrupting(RealPoller):
    """A poller that is interrupted instead of waiting."""

    def poll(self, timeout: float | None) -> list[tuple[object, bool, bool]]:
        raise KeyboardInterrupt


def test_one_that_is_interrupted_while_it_waits_costs_nothing() -> None:
    """Ctrl-C, most likely: the connection goes on, and the answer that was waited for is dropped when it comes."""
    with served(echo) as (_server, client):
        client.call(10, timeout_s=PATIENCE_S)
        wait_until(lambda: not client._is_awake)
        poller = client._leading._poller
        assert poller is not None
        client._leading._poller = Interrupting()
        with pytest.raises(KeyboardInterrupt):
            client.call(10, body=b"1", timeout_s=PATIENCE_S)
        client._leading._poller.close()
        client._leading._poller = poller
        assert bytes(client.call(10, body=b"2", timeout_s=PATIENCE_S).body) == b"2"
        assert client.is_open


def test_one_that_is_interrupted_while_it_reads_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it has received is lost, so that others would wait in vain, or read from the middle of a frame."""
    honest = RemotingClient._receive

    def receive(self: RemotingClient) -> Any:
        got = honest(self)
        if got[0] and threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        return got

    monkeypatch.setattr(RemotingClient, "_receive", receive)
    with served(echo) as (_server, client):
        with pytest.raises(KeyboardInterrupt):
            client.call(10, body=b"1", timeout_s=PATIENCE_S)
        wait_until(lambda: not client.is_open)
        with pytest.raises(ConnectionLostError, match="interrupted"):
            client.call(10, timeout_s=PATIENCE_S)


def test_a_request_that_does_not_fit_goes_while_somebody_leads() -> None:
    released = threading.Event()
    body = bytes(8 * 1024 * 1024)

    def slow(peer: Peer, command: Command) -> None:
        if command.code == 11:
            assert released.wait(PATIENCE_S)
        peer.answer(command, body=bytes(command.body[:10]))

    with served(slow) as (_server, client):
        thread, outcomes = call_beside(client, 11)
        answers = Answers(1)
        client.call_async(10, body=body, callback=answers.take, timeout_s=PATIENCE_S)
        wait_until(lambda: not client._leading.is_led)
        released.set()
        answer = answers.wait()[0]
        assert isinstance(answer, Command)
        assert bytes(answer.body) == body[:10]
        thread.join(PATIENCE_S)
        assert [bytes(answer.body) for answer in outcomes if isinstance(answer, Command)] == [b"led"]


def test_a_fault_in_what_the_peer_asks_ends_the_connection_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = RealRuntime(thread_died=lambda name, error: pytest.fail(f"{name} died of {error}"))

    def ask(peer: Peer, _command: Command) -> None:
        peer.send(Command(code=40, flag=0))

    def fails(_client: RemotingClient, _command: Command) -> None:
        raise KeyError("none")

    monkeypatch.setattr(RemotingClient, "_requested", fails)
    with ScriptedServer(ask) as server:
        client = RemotingClient(runtime, server.host, server.port)
        with pytest.raises(ConnectionLostError, match="could not be served: KeyError"):
            client.call(10, timeout_s=PATIENCE_S)
        client.close()


def test_who_comes_while_a_leader_leaves_does_not_lead_beside_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer is there, so nobody waits any more, and yet it has the socket."""
    honest = Leading._leave
    late: list[threading.Thread] = []
    outcomes: list[object] = []

    def call(client: RemotingClient) -> None:
        try:
            outcomes.append(bytes(client.call(10, body=b"late", timeout_s=PATIENCE_S).body))
        except (ClientError, OSError) as error:
            outcomes.append(error)

    def leave(leading: Leading, left: Any, opaque: int) -> Command | None:
        if not late:
            late.append(threading.Thread(target=call, args=(client,)))
            late[0].start()
            wait_until(lambda: bool(len(client._exchange.calls.pending) > 1 or outcomes))
        return honest(leading, left, opaque)

    with served(echo) as (_server, client):
        wait_until(lambda: not client._is_awake)
        monkeypatch.setattr(Leading, "_leave", leave)
        assert bytes(client.call(10, body=b"first", timeout_s=PATIENCE_S).body) == b"first"
        late[0].join(PATIENCE_S)
        assert outcomes == [b"late"]
        assert bytes(client.call(10, body=b"last", timeout_s=PATIENCE_S).body) == b"last"


def test_without_a_descriptor_for_a_poller_the_reader_thread_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    with served(echo) as (_server, client):
        wait_until(lambda: not client._is_awake)
        with monkeypatch.context() as nothing_left:
            nothing_left.setattr(RealRuntime, "poller", lambda _runtime: open_nothing())
            assert bytes(client.call(10, body=b"1", timeout_s=PATIENCE_S).body) == b"1"
        wait_until(lambda: not client._is_awake)
        assert bytes(client.call(10, body=b"2", timeout_s=PATIENCE_S).body) == b"2"
        assert client._leading._poller is not None


def open_nothing() -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def test_a_process_that_was_forked_connects_again() -> None:
    """It has the socket and the pollers of its parent, and would read the parent's answers."""
    runtime = RealRuntime()
    number = [1]
    runtime.process_id = lambda: number[0]
    with ScriptedServer(echo) as server:
        with ClientInstance(runtime, server.address) as instance:
            old = instance.client(server.address)
            assert bytes(old.call(10, body=b"1", timeout_s=PATIENCE_S).body) == b"1"
            number[0] = 2
            with pytest.raises(ConnectionLostError, match="before a fork"):
                old.call(10, timeout_s=PATIENCE_S)
            assert bytes(instance.client(server.address).call(10, body=b"2", timeout_s=PATIENCE_S).body) == b"2"
        assert [bytes(command.body) for command in server.received] == [b"1", b"2"]
        number[0] = 1
        old.close()  # the thread is the parent's


def test_a_leader_may_wait_without_end() -> None:
    with served(echo) as (_server, client):
        wait_until(lambda: not client._is_awake)
        assert bytes(client.call(10, body=b"1", timeout_s=math.inf).body) == b"1"
        assert client._leading._poller is not None


def test_the_socket_is_lent_from_one_leader_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    honest = RealPoller.register

    def register(poller: RealPoller, *key: Any, **how: Any) -> None:
        watched.append(threading.current_thread().name)
        honest(poller, *key, **how)

    asked = threading.Event()

    def known(_command: Command) -> bool:
        asked.set()
        return True

    def answer(peer: Peer, command: Command) -> None:
        peer.answer(command)
        if command.code == 11:
            peer.send(Command(code=40, flag=2))

    monkeypatch.setattr(leading, "LENT_S", PATIENCE_S)
    monkeypatch.setattr(RealPoller, "register", register)
    with served(answer, on_request=known) as (_server, client):
        wait_until(lambda: not client._is_awake)

        def leads_again_without_a_word() -> bool:
            watched.clear()
            return client.call(10, timeout_s=PATIENCE_S).code == 0 and not watched

        # Now and then the reader thread is awake, and takes the socket back.
        wait_until(leads_again_without_a_word)
        wait_until(lambda: client.call(10, timeout_s=PATIENCE_S).code == 0 and client._leading.is_lent)
        watched.clear()
        monkeypatch.setattr(leading, "LENT_S", 0.001)
        client._poller.wake()
        wait_until(lambda: not client._leading.is_lent)
        assert watched == [f"client-{client.address}"]
        client.call(11, timeout_s=PATIENCE_S)
        assert asked.wait(PATIENCE_S)


def test_a_lent_socket_is_taken_back_for_who_does_not_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leading, "LENT_S", 3600.0)
    with served(echo) as (_server, client):
        wait_until(lambda: not client._is_awake)
        client.call(10, timeout_s=PATIENCE_S)
        wait_until(lambda: not client._is_awake)
        assert client._leading.is_lent
        answers = Answers(1)
        client.call_async(10, body=b"1", callback=answers.take, timeout_s=PATIENCE_S)
        answer = answers.wait()[0]
        assert isinstance(answer, Command)
        assert bytes(answer.body) == b"1"


def test_one_that_leads_for_long_costs_no_looks_and_gives_the_socket_back(monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()
    looks: list[bool] = []
    honest = Leading.look

    def look(self: Leading) -> Any:
        left = honest(self)
        looks.append(self.is_led)
        return left

    def slow(peer: Peer, command: Command) -> None:
        if command.code == 11:
            assert released.wait(PATIENCE_S)
        peer.answer(command)

    monkeypatch.setattr(Leading, "look", look)
    with served(slow) as (_server, client):
        thread, outcomes = call_beside(client, 11)
        wait_until(lambda: client._leading._is_slow and not client._is_awake)
        count = len(looks)
        released.set()
        thread.join(PATIENCE_S)
        assert len(looks) == count
        assert not client._leading.is_lent
        assert [type(outcome) for outcome in outcomes] == [Command]


def test_who_is_asked_by_its_peer_leads_no_more() -> None:
    """Until it was alone for long again: nobody reads for a moment after a leader, and it is to hear at once."""

    def ask(peer: Peer, command: Command) -> None:
        peer.answer(command)
        peer.send(Command(code=40, flag=2))

    with served(ask, on_request=lambda _command: True) as (_server, client):
        client._alone_count = 7
        assert client.call(10, timeout_s=PATIENCE_S).code == 0
        wait_until(lambda: client._alone_count == 0)
