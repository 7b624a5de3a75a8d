"""The oracle of the whole-broker simulation: each promise is broken at its limit and kept just inside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, Self

import pytest
from model_tests.simulate.test_network import send_all
from model_tests.support.simulation.checker import PROMISES, Asked, BrokenError, Checker, Sent, checker_of
from model_tests.support.simulation.client import SimulatedClient
from model_tests.support.simulation.network import Network, SimulatedSocket
from model_tests.support.simulation.plan import Act, Pull, Send, Wait
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import RandomWalk

from longpoll_protocol.codes import ResponseCode as Code
from longpoll_protocol.frames import Command, Connection, encode
from longpoll_protocol.log_record import Record
from longpoll_simulation.world import World
from longpoll_spec.policy import ROCKETMQ_4_9, STRICT

SLACK_MS: Final = 3.0 + 2 * 5.0
"""Allowance of an account with delays of up to 5 ms: both ways, and rounding of clocks."""
ADDRESS: Final = ("127.0.0.1", 10911)


class Account(Checker):
    """An account of strict with delays of up to 5 ms; a pull is one of queue 0, from 0 for 100 ms, by default.

    Each method returns the account, for the next step.
    """

    def asked(self, sent_ms: float = 0.0, *, hold_ms: int = 100, offset: int = 0, life: int = 0) -> Asked:
        return Asked("peer", 0, offset, hold_ms, sent_ms, life)

    def sending(self, body: bytes = b"m", queue: int = 0) -> Self:
        """A message that is not acknowledged yet."""
        self.sent.append(Sent(queue, body, 0.0))
        return self

    def send(
        self, body: bytes = b"m", *, at_ms: float = 0.0, done_ms: float | None = None, offset: int | None = 0,
        code: int = Code.SUCCESS,
    ) -> Self:  # fmt: skip
        """A message for queue 0, acknowledged at once by default."""
        sent = Sent(0, body, at_ms)
        self.sent.append(sent)
        self.acknowledged(sent, code, offset, at_ms if done_ms is None else done_ms)
        return self

    def found(self, *records: tuple[bytes, int, int], at_ms: float = 0.0, **which: Any) -> Self:
        """The pull found these bodies, with their offsets and queues."""
        told = [
            Record(0, 0, 0, queue, 0, offset, 0, 0, 0, b"", 0, b"", 0, 0, memoryview(body), "T", b"")
            for body, offset, queue in records
        ]
        self.pulled(self.asked(**which), Code.SUCCESS, told, 0, at_ms)
        return self

    def answered_by(self, code: int, at_ms: float = 0.0, **which: Any) -> Self:
        """The pull was answered by another code, without messages."""
        self.pulled(self.asked(**which), code, (), 7, at_ms)
        return self

    def do(self, name: str, *words: object, **named: object) -> Self:
        """Call another method, or set a field."""
        if callable(found := getattr(self, name)) and name != "spent_ms":
            found(*words, **named)
        else:
            setattr(self, name, *words)
        return self


M: Final = (b"m", 0, 0)
AB: Final = ((b"a", 0, 0), (b"b", 1, 0))
NOTHING: Final = Code.PULL_NOT_FOUND
LATE_MS: Final = 100 + SLACK_MS
Steps = Callable[[Account, Any], object]
CASES: Final[Sequence[tuple[str, Steps, Any, Any]]] = (
    ("late", lambda a, ms: a.answered_by(NOTHING, ms), LATE_MS + 0.01, LATE_MS),
    ("late", lambda a, ms: a.do("unanswered", a.asked(), ms), LATE_MS + 0.01, LATE_MS),
    ("lost wakeup", lambda a, ms: a.send(at_ms=10).found(M, at_ms=ms), 10 + SLACK_MS + 0.01, 10 + SLACK_MS),
    ("lost wakeup", lambda a, ms: a.send(at_ms=10).found(M, at_ms=ms, sent_ms=50), 50 + SLACK_MS + 0.01, 50 + SLACK_MS),
    ("early", lambda a, ms: a.answered_by(NOTHING, ms), 99.99, 100.0),
    ("early", lambda a, ms: a.sending().found(M, at_ms=ms, sent_ms=10), 9.99, 10.0),
    ("told nothing", lambda a, at: a.send(at_ms=10).answered_by(NOTHING, 11, sent_ms=11, hold_ms=0, offset=at), 0, 1),
    ("acknowledged without an offset", lambda a, offset: a.send(offset=offset), None, 0),
    ("refused", lambda a, at_ms: a.do("stopping", at_ms).send(code=Code.SYSTEM_BUSY), float("inf"), 0),
    ("refused", lambda a, code: a.do("stopping", 0).send(code=code), Code.SYSTEM_ERROR, Code.SERVICE_NOT_AVAILABLE),
    ("refused", lambda a, code: a.do("stopping", 0).answered_by(code, 1), Code.TOPIC_NOT_EXIST, Code.SYSTEM_BUSY),
    ("order", lambda a, ms: a.send(offset=5, at_ms=10).send(b"b", offset=4, at_ms=ms, done_ms=20), 10.01, 10.0),
    ("two at one offset", lambda a, body: a.send(b"a").sending(b"b").found((body, 0, 0)), b"b", b"a"),
    ("wrong message", lambda a, b: a.send(b"a").send(b"b", offset=1).found(AB[0], b), (b"b", 2, 0), AB[1]),
    ("wrong message", lambda a, b: a.send(b"a").send(b"b", offset=1).found(AB[0], b), (b"b", 1, 1), AB[1]),
    ("found nothing", lambda a, told: a.send().found(*told), (), (M,)),
    ("invented", lambda a, queue: a.sending(queue=queue).found(M), 1, 0),
    ("moved", lambda a, ms: a.do("lag_ms", ms).answered_by(Code.PULL_OFFSET_MOVED), 0.0, 1.0),
    ("lost", lambda a, end: a.sending().found(M).do("read_whole", 0, end), 0, 1),
    (
        "deleted",
        lambda a, ms: a.do("is_deleting", True).do("deleted", 0, 10).answered_by(Code.TOPIC_NOT_EXIST, ms),
        10 + SLACK_MS + 0.01,
        10 + SLACK_MS,
    ),
    (
        "left without a word",
        lambda a, ms: a.do("stopping", 100, answers=True).do("left_alone", a.asked(ms), 0),
        100 - SLACK_MS - 0.01,
        100 - SLACK_MS,
    ),
)
"""A promise, what happens, and the values that just break and just keep it."""
EXCUSED: Final[dict[str, tuple[Steps, Steps]]] = {
    "a scan": (lambda a, _: a.do("late_ms", 1.0), lambda a, _: a.answered_by(NOTHING, 114)),
    "a poll": (lambda a, _: a.do("lag_ms", 1.0), lambda a, _: a.send(at_ms=10).found(M, at_ms=24)),
    "the run's time": (lambda a, _: a.do("spent_ms", lambda: 10.0), lambda a, _: a.answered_by(NOTHING, 114)),
    "a stop": (lambda a, _: a.do("stopping", 0), lambda a, _: a.send(at_ms=10).found(M, at_ms=24)),
    "a kill": (lambda a, _: a.do("ended"), lambda a, _: a.answered_by(NOTHING, 114)),
    "a kill's short answer": (lambda a, _: a.do("ended"), lambda a, _: a.answered_by(NOTHING, 99)),
    "a cut": (
        lambda a, _: a.do("may_cut", True),
        lambda a, _: a.do("stopping", 100, answers=True).do("left_alone", a.asked(), 0),
    ),
}


@pytest.mark.parametrize(("promise", "steps", "broken", "kept"), CASES, ids=range(len(CASES)))
def test_an_edge_breaks_its_promise_and_just_inside_it_is_kept(
    promise: str, steps: Steps, broken: object, kept: object
) -> None:
    with pytest.raises(BrokenError) as raised:
        steps(Account(5.0), broken)
    assert raised.value.kind == promise
    steps(Account(5.0), kept)


@pytest.mark.parametrize("excuse", EXCUSED)
def test_what_excuses(excuse: str) -> None:
    """A circumstance under which no promise is broken."""
    excused, steps = EXCUSED[excuse]
    account = Account(5.0)
    excused(account, None)
    steps(account, None)
    with pytest.raises(BrokenError):
        steps(Account(5.0), None)


def test_a_policy_is_held_to_what_it_promises() -> None:
    """Strict has no allowance; a scan and a polling dispatcher have their periods."""
    strict, polling = (checker_of(policy, 5.0, may_cut=False) for policy in (STRICT, ROCKETMQ_4_9))
    assert (strict.late_ms, strict.lag_ms, polling.late_ms) == (0.0, 0.0, 5_000.0)
    assert 1.0 <= polling.lag_ms < 10.0


def test_a_broker_that_runs_again_owes_what_it_is_asked_then() -> None:
    """The allowance of a stop ends with the next start."""
    account = Account(5.0)
    account.stopping(50.0)
    account.ended()
    account.started()
    with pytest.raises(BrokenError, match="late"):
        account.answered_by(NOTHING, 1_000.0, life=1)


Answer = Callable[[World, SimulatedSocket, Command], None]


def answer(world: World, sock: SimulatedSocket, request: Command, count: int) -> None:
    """Acknowledge a send `count` times."""
    reply = Command(0, request.opaque, flag=1, ext_fields={"queueOffset": "0"})
    send_all(world, sock, b"".join(encode(reply)) * count)


def spoken_to(act: Act, does: Answer | None, *, stops: bool) -> Checker:
    """Run a peer that does one act and waits; the broker answers by `does`, or None does not listen."""
    world = World(RandomWalk(1))
    network = Network(world)
    runtime = SimulatedRuntime(network, process="peer")
    account = checker_of(STRICT, 0.0, may_cut=False)
    if stops:
        account.stopping(0.0)

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


SPOKEN: Final[dict[str, tuple[Act, Answer | None, bool]]] = {
    "answered twice": (Send(0, 1), partial(answer, count=2), False),
    "closed": (Send(0, 1), lambda _world, sock, _request: sock.close(), False),
    "gone": (Send(0, 1), None, False),
    "unacknowledged": (Send(0, 1), silent, False),
    "unanswered": (Pull(0, 20), silent, True),
    "late": (Pull(0, 20), silent, False),
}


@pytest.mark.parametrize("promise", SPOKEN)
def test_a_peer_notes_what_it_is_not_told(promise: str) -> None:
    """On one connection: closed, silent, answered twice, or absent."""
    act, does, stops = SPOKEN[promise]
    with pytest.raises(BrokenError) as broken:
        spoken_to(act, does, stops=stops)
    assert broken.value.kind == promise
    assert spoken_to(Send(0, 1), partial(answer, count=1), stops=False).by_offset.keys() == {(0, 0)}


def test_every_promise_has_an_edge() -> None:
    """The other promises belong to a run, and have injected faults in `test_whole_broker`."""
    assert {promise for promise, *_steps in CASES} | SPOKEN.keys() | {"left behind", "logged"} == PROMISES.keys()
