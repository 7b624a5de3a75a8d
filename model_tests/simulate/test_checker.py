"""The oracle of the whole-broker simulation: each promise is broken at its limit and kept just inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import pytest
from attrs import frozen
from model_tests.simulate.test_network import send_all
from model_tests.support.simulation.checker import PROMISES, Asked, BrokenError, Checker, Sent, checker_of
from model_tests.support.simulation.client import SimulatedClient
from model_tests.support.simulation.network import Network, SimulatedSocket
from model_tests.support.simulation.plan import Act, Pull, Send, Wait
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import RandomWalk

from longpoll_protocol.codes import ResponseCode
from longpoll_protocol.frames import Command, Connection, encode
from longpoll_protocol.log_record import Record
from longpoll_simulation.world import World
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT

SLACK_MS: Final = 3.0 + 2 * 5.0
"""Allowance of an account with delays of up to 5 ms: both ways, and rounding of clocks."""
ADDRESS: Final = ("127.0.0.1", 10911)
FOUND: Final = ResponseCode.SUCCESS
NOTHING: Final = ResponseCode.PULL_NOT_FOUND


def asked(sent_ms: float = 0.0, *, hold_ms: int = 100, offset: int = 0, queue: int = 0, life: int = 0) -> Asked:
    """Create a pull of queue 0."""
    return Asked("peer", queue, offset, hold_ms, sent_ms, life)


def record(body: bytes = b"m", *, offset: int = 0, queue: int = 0) -> Record:
    """Create a received message."""
    return Record(0, 0, 0, queue, 0, offset, 0, 0, 0, b"", 0, b"", 0, 0, memoryview(body), "T", b"")


def send(
    account: Checker, body: bytes = b"m", *, at_ms: float = 0.0, offset: int | None = 0, code: int = FOUND
) -> None:
    """Send a message to queue 0, answered at once."""
    sent = Sent(0, body, at_ms)
    account.sent.append(sent)
    account.acknowledged(sent, code, offset, at_ms)


def told(account: Checker, records: Sequence[Record], at_ms: float = 0.0, **which: Any) -> int:
    """Report a pull that found records."""
    return account.pulled(asked(**which), FOUND, records, 0, at_ms)


def nothing(account: Checker, at_ms: float, **which: Any) -> int:
    """Report a pull that found nothing."""
    return account.pulled(asked(**which), NOTHING, (), 0, at_ms)


@frozen
class Case:
    """One limit of one promise."""

    promise: str
    tell: Callable[[Checker, Any], object]
    broken: Any
    """A value that just breaks it."""
    kept: Any
    """A value that just keeps it."""


def woken(account: Checker, at_ms: float) -> None:
    """A message at 10 ms answers the waiting pull."""
    send(account, at_ms=10.0)
    told(account, [record()], at_ms)


def woken_by_late_ask(account: Checker, at_ms: float) -> None:
    """The message arrives before the pull."""
    send(account, at_ms=10.0)
    told(account, [record()], at_ms, sent_ms=50.0)


def never_answered(account: Checker, at_ms: float) -> None:
    """No answer arrives, and the peer gives up."""
    account.unanswered(asked(), at_ms)


def told_nothing(account: Checker, offset: int) -> None:
    """Below the end there is something to return."""
    send(account, at_ms=10.0)
    nothing(account, 11.0, sent_ms=11.0, hold_ms=0, offset=offset)


def refused(account: Checker, how: tuple[int, bool]) -> None:
    """A refused send."""
    code, stops = how
    if stops:
        account.stopping(0.0)
    send(account, code=code)


def pull_refused(account: Checker, code: int) -> None:
    """A pull refused by a stopping broker."""
    account.stopping(0.0)
    account.pulled(asked(), code, (), 0, 1.0)


def in_order(account: Checker, sent_ms: float) -> None:
    """Offset 5 is acknowledged at 10 ms; another send gets offset 4."""
    send(account, b"a", offset=5, at_ms=10.0)
    sent = Sent(0, b"b", sent_ms)
    account.sent.append(sent)
    account.acknowledged(sent, FOUND, 4, 20.0)


def one_offset(account: Checker, body: bytes) -> None:
    """Two consumers get the same offset."""
    send(account, b"a")
    account.sent.append(Sent(0, b"b", 0.0))
    told(account, [record(body)])


def right_place(account: Checker, second: Record) -> None:
    """Two messages in one answer."""
    send(account, b"a")
    send(account, b"b", offset=1)
    told(account, [record(b"a"), second])


def invented(account: Checker, queue: int) -> None:
    """A body that was sent to another queue."""
    account.sent.append(Sent(queue, b"m", 0.0))
    told(account, [record()])


def moved(account: Checker, lag_ms: float) -> None:
    """A pull redirected to another offset."""
    account.lag_ms = lag_ms
    account.pulled(asked(), ResponseCode.PULL_OFFSET_MOVED, (), 7, 0.0)


def kept_whole(account: Checker, end: int) -> None:
    """A message was only received, and the queue is read to its end."""
    account.sent.append(Sent(0, b"m", 0.0))
    told(account, [record()])
    account.read_whole(0, end)


def stopped(account: Checker, sent_ms: float) -> None:
    """The broker stops at 100 ms, and a connection ends with an unanswered pull."""
    account.stopping(100.0, answers=True)
    account.left_alone(asked(sent_ms), 0)


def told_before_asked(account: Checker, at_ms: float) -> None:
    """A message is received at a given time."""
    account.sent.append(Sent(0, b"m", 0.0))
    told(account, [record()], at_ms, sent_ms=10.0)


def deleted(account: Checker, at_ms: float) -> None:
    """The topic is deleted at 10 ms, and its waiting pull is answered."""
    account.is_deleting = True
    account.deleted(FOUND, 10.0)
    account.pulled(asked(), ResponseCode.TOPIC_NOT_EXIST, (), 0, at_ms)


CASES: Final = (
    Case("late", nothing, 100 + SLACK_MS + 0.01, 100 + SLACK_MS),
    Case("late", never_answered, 100 + SLACK_MS + 0.01, 100 + SLACK_MS),
    Case("lost wakeup", woken, 10 + SLACK_MS + 0.01, 10 + SLACK_MS),
    Case("lost wakeup", woken_by_late_ask, 50 + SLACK_MS + 0.01, 50 + SLACK_MS),
    Case("early", nothing, 99.99, 100.0),
    Case("early", told_before_asked, 9.99, 10.0),
    Case("told nothing", told_nothing, 0, 1),
    Case("acknowledged without an offset", lambda account, offset: send(account, offset=offset), None, 0),
    Case("refused", refused, (ResponseCode.SYSTEM_BUSY, False), (ResponseCode.SYSTEM_BUSY, True)),
    Case("refused", refused, (ResponseCode.SYSTEM_ERROR, True), (ResponseCode.SERVICE_NOT_AVAILABLE, True)),
    Case("refused", pull_refused, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.SYSTEM_BUSY),
    Case("order", in_order, 10.01, 10.0),
    Case("two at one offset", one_offset, b"b", b"a"),
    Case("wrong message", right_place, record(b"b", offset=2), record(b"b", offset=1)),
    Case("wrong message", right_place, record(b"b", offset=1, queue=1), record(b"b", offset=1)),
    Case("found nothing", told, (), (record(),)),
    Case("invented", invented, 1, 0),
    Case("moved", moved, 0.0, 1.0),
    Case("lost", kept_whole, 0, 1),
    Case("deleted", deleted, 10 + SLACK_MS + 0.01, 10 + SLACK_MS),
    Case("left without a word", stopped, 100 - SLACK_MS - 0.01, 100 - SLACK_MS),
)


NAMES: Final = [f"{number}: {case.promise}" for number, case in enumerate(CASES)]


def account_now() -> Checker:
    """Create an account of strict with delays of up to 5 ms."""
    return checker_of(STRICT, 5.0, may_cut=False)


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_an_edge_breaks_its_promise(case: Case) -> None:
    """The error names the promise."""
    account = account_now()
    with pytest.raises(BrokenError) as broken:
        case.tell(account, case.broken)
    assert broken.value.kind == case.promise


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_just_inside_it_is_kept(case: Case) -> None:
    """The answer is counted."""
    account = account_now()
    if case.promise == "found nothing":
        account.sent.append(Sent(0, b"m", 0.0))
    case.tell(account, case.kept)
    is_answer = case.tell not in {never_answered, stopped}
    assert bool(account.answered) == is_answer


def spends(account: Checker) -> None:
    """The run's own points and pauses took 10 ms."""
    account.spent_ms = lambda: 10.0


EXCUSES: Final[dict[str, tuple[Callable[[Checker], object], Callable[[Checker], object]]]] = {
    "a scan": (lambda account: setattr(account, "late_ms", 1.0), lambda account: nothing(account, 114.0)),
    "a poll": (lambda account: setattr(account, "lag_ms", 1.0), lambda account: woken(account, 24.0)),
    "time that the run took": (spends, lambda account: nothing(account, 114.0)),
    "a stop": (lambda account: account.stopping(0.0), lambda account: woken(account, 24.0)),
    "a kill": (Checker.ended, lambda account: nothing(account, 114.0)),
    "a kill's short answer": (Checker.ended, lambda account: nothing(account, 99.0)),
    "a cut": (lambda account: setattr(account, "may_cut", True), lambda account: stopped(account, 0.0)),
}


@pytest.mark.parametrize("excuse", EXCUSES)
def test_what_excuses(excuse: str) -> None:
    """A circumstance under which no promise is broken."""
    excused, tell = EXCUSES[excuse]
    account = account_now()
    excused(account)
    tell(account)
    with pytest.raises(BrokenError):
        tell(account_now())


def test_a_policy_is_held_to_what_it_promises() -> None:
    """Strict has no allowance; a scan and a polling dispatcher have their periods."""
    strict, polling = account_now(), checker_of(ROCKETMQ_4_9, 5.0, may_cut=False)
    assert (strict.late_ms, strict.lag_ms) == (0.0, 0.0)
    assert polling.late_ms == 5_000.0
    assert 1.0 <= polling.lag_ms < 10.0


def test_a_broker_that_runs_again_owes_what_it_is_asked_then() -> None:
    """The allowance of a stop ends with the next start."""
    account = account_now()
    account.stopping(50.0)
    account.ended()
    account.started()
    with pytest.raises(BrokenError, match="late"):
        nothing(account, 1_000.0, life=1)


Answer = Callable[[World, SimulatedSocket, Command], None]


def answer(world: World, sock: SimulatedSocket, request: Command, count: int = 1) -> None:
    """Acknowledge a send `count` times."""
    reply = Command(FOUND, request.opaque, flag=1, ext_fields={"queueOffset": "0"})
    send_all(world, sock, b"".join(encode(reply)) * count)


def spoken_to(act: Act, does: Answer | None, *, prepare: Callable[[Checker], None] = lambda _account: None) -> Checker:
    """Run a peer that does one act and waits; the broker answers by `does`, or None does not listen."""
    world = World(RandomWalk(1))
    network = Network(world)
    runtime = SimulatedRuntime(network, process="peer")
    account = checker_of(STRICT, 0.0, may_cut=False)
    prepare(account)

    def main() -> None:
        if does is not None:
            listener = network.bind("broker", *ADDRESS)
            listener.listen()
            runtime.spawn("broker", partial(serve, world, listener, does))
        SimulatedClient("peer", runtime, partial(network.connect, "peer", *ADDRESS), account).live((act, Wait()))()

    world.run(main)
    return account


def serve(world: World, listener: Any, does: Answer) -> None:
    """Accept a connection and answer its first request."""
    connection, buffer = Connection(), bytearray(4096)
    while True:
        try:
            sock, _address = listener.accept()
            break
        except BlockingIOError:
            world.wait([], "a connection", 0.001)
    while not isinstance(request := connection.next_event(), Command):
        assert sock.wait_readable(10)
        connection.receive_data(bytes(buffer[: sock.recv_into(buffer)]))
    does(world, sock, request)


def silent(_world: World, _sock: SimulatedSocket, _request: Command) -> None:
    """Do not answer."""


SPOKEN: Final[dict[str, tuple[Act, Answer | None, Callable[[Checker], None]]]] = {
    "answered twice": (Send(0, 1), partial(answer, count=2), lambda _account: None),
    "closed": (Send(0, 1), lambda _world, sock, _request: sock.close(), lambda _account: None),
    "gone": (Send(0, 1), None, lambda _account: None),
    "unacknowledged": (Send(0, 1), silent, lambda _account: None),
    "unanswered": (Pull(0, 20), silent, lambda account: account.stopping(0.0)),
    "late": (Pull(0, 20), silent, lambda _account: None),
}


@pytest.mark.parametrize("promise", SPOKEN)
def test_a_peer_notes_what_it_is_not_told(promise: str) -> None:
    """On one connection: closed, silent, answered twice, or absent."""
    act, does, prepare = SPOKEN[promise]
    with pytest.raises(BrokenError) as broken:
        spoken_to(act, does, prepare=prepare)
    assert broken.value.kind == promise


def test_a_peer_that_is_answered_notes_that() -> None:
    """The same broker, with one answer."""
    assert spoken_to(Send(0, 1), answer).by_offset.keys() == {(0, 0)}


def test_every_promise_has_an_edge() -> None:
    """The other promises belong to a run, and have injected faults in `test_whole_broker`."""
    assert {case.promise for case in CASES} | SPOKEN.keys() | {"left behind", "logged"} == PROMISES.keys()
