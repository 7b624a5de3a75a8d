"""The player with a fake broker: it follows the schedule, and reports each difference."""

from __future__ import annotations

import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from model_tests.support.broker.scripted_server import Peer, ScriptedServer

from longpoll_java import replay as player
from longpoll_java.breakpoints import Arrival, Breakpoints
from longpoll_java.broker import JavaBroker
from longpoll_java.byteman_rules import GO, THROW
from longpoll_java.replay import Played, play
from longpoll_java.schedule import Move, Schedule, Step
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command

WITHIN_S = 10.0


def asked(port: int, gate: str, **told: object) -> str:
    """Send a request to the player as a rule does at a breakpoint, and wait for the answer."""
    said = "".join(f"&{name}={value}" for name, value in told.items() if name != "thread")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/{gate}?thread={told['thread']}{said}", timeout=20) as answer:
        return str(answer.read().decode())


class Asker:
    def __init__(self, port: int, gate: str, **told: object) -> None:
        self.answer = ""
        self._thread = threading.Thread(target=self._ask, args=(port, gate), kwargs=told)
        self._thread.start()

    def _ask(self, port: int, gate: str, **told: object) -> None:
        self.answer = asked(port, gate, **told)

    def join(self) -> str:
        self._thread.join(WITHIN_S)
        assert not self._thread.is_alive()
        return self.answer


def test_a_thread_waits_at_its_breakpoint() -> None:
    with Breakpoints() as stage:
        stage.stops = lambda arrival: arrival.gate == "hold"
        asker = Asker(stage.port, "hold", thread="T_1", topic="%LMQ%t", queue=3, request=7, suspends="true")
        assert stage.until(lambda: "T_1" in stage.standing, WITHIN_S)
        arrival = stage.standing["T_1"]
        assert (arrival.gate, arrival.topic, arrival.queue, arrival.request, arrival.suspends) == (
            "hold", "%LMQ%t", 3, 7, True,
        )  # fmt: skip
        assert not asker.answer
        stage.answer("T_1", THROW)
        assert asker.join() == THROW
        passing = Asker(stage.port, "done", thread="T_1")
        assert stage.until(lambda: len(stage.seen) == 2, WITHIN_S)
        assert passing.join() == GO


@pytest.mark.parametrize(
    "said",
    [b"", b"\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n", b"POST /hold?thread=a HTTP/1.1\r\n\r\n", b"\xff" * 9000,
     b"GET /hold?thread=a&queue=x HTTP/1.1\r\n\r\n", b"GET /../etc?a HTTP/1.1\r\n\r\n"],
)  # fmt: skip
def test_an_invalid_line_at_a_breakpoint_closes_the_connection(said: bytes) -> None:
    with Breakpoints() as stage:
        stage.stops = lambda _arrival: True
        with socket.create_connection(("127.0.0.1", stage.port), WITHIN_S) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            stranger.settimeout(0.01)
            heard: list[bytes] = []

            def ended() -> bool:
                try:
                    heard.append(stranger.recv(100))
                except TimeoutError:
                    return False
                except ConnectionError:
                    heard.append(b"")
                return True

            for _ in range(500):
                stage.until(lambda: False, 0.001)
                if ended():
                    break
        assert heard == [b""]
        assert not stage.seen
        assert not stage.standing


def test_the_end_of_a_replay_releases_all_threads() -> None:
    with Breakpoints() as stage:
        stage.stops = lambda _arrival: True
        asker = Asker(stage.port, "round", thread="PullRequestHoldService")
        assert stage.until(lambda: bool(stage.standing), WITHIN_S)
    assert asker.join() == GO


class Fake:
    """A broker with one thread per pull, which stops at `read` and returns the given answer."""

    def __init__(self, stage: Breakpoints, answers: Callable[[str], int | None]) -> None:
        self._stage, self._answers = stage, answers
        self._pulls: list[threading.Thread] = []
        self._server = ScriptedServer(self._do)
        self.address = (self._server.host, self._server.port)

    def _do(self, peer: Peer, command: Command) -> None:
        if command.code != RequestCode.PULL_MESSAGE:
            peer.answer(command, fields={"offset": "0"})
            return
        self._pulls.append(threading.Thread(target=self._pull, args=(peer, command)))
        self._pulls[-1].start()

    def _pull(self, peer: Peer, command: Command) -> None:
        told = {"thread": "Pull_1", "request": command.opaque, "suspends": "true", "queue": 0}
        told["topic"] = (command.ext_fields or {})["topic"]
        # The replay may have ended before this thread reached the breakpoint.
        with suppress(OSError):
            for gate in ("read", "hold", "put"):
                asked(self._stage.port, gate, **told)
                code = self._answers(gate)
                if code is not None:
                    peer.answer(command, code)
            asked(self._stage.port, "held", **told)

    def end(self) -> None:
        self._server.stop()
        for thread in self._pulls:
            thread.join(WITHIN_S)


@contextmanager
def fake(answers: Callable[[str], int | None]) -> Iterator[JavaBroker]:
    with Breakpoints() as stage:
        broker = Fake(stage, answers)
        try:
            yield cast(
                "JavaBroker",
                SimpleNamespace(
                    stage=stage,
                    address=broker.address,
                    sent_to=broker.address,
                    process_id=1,
                    is_running=True,
                    refused="",
                    master=SimpleNamespace(address=broker.address, copied_from=broker.address),
                ),
            )
        finally:
            stage.stops = lambda _arrival: False
            stage.let_go(lambda _arrival: True)
            ending = threading.Thread(target=broker.end)
            ending.start()
            while ending.is_alive():
                stage.until(lambda: not ending.is_alive(), 0.01)


def schedule(*steps: Step, after: tuple[Move, ...] = ()) -> Schedule:
    return Schedule(
        "lost_by_hold",
        1,
        1,
        2500,
        15000,
        lmq=False,
        slave=False,
        before=(Move("create", number=1),),
        steps=steps,
        after=after,
    )


PULL = Step("next_pull(0)", (Move("pull", slot=0, queue=0, number=0), Move("until", "pull 0", ("read",))), (True,))
READ = Step("pull_read(0)", (Move("go", "pull 0", ("read",)), Move("until", "pull 0", ("hold",))), (True,))
HOLD = Step(
    "hold(0)",
    (
        Move("go", "pull 0", ("hold",)), Move("until", "pull 0", ("put",)),
        Move("go", "pull 0", ("put",)), Move("until", "pull 0", ("held",)),
    ),
    (True,),
)  # fmt: skip


def played(answers: Callable[[str], int | None], *steps: Step, after: tuple[Move, ...] = ()) -> Played:
    """Return the player's report about a run with a fake broker."""
    with fake(answers) as broker:
        return play(broker, schedule(*steps, after=after))


def test_a_broker_that_follows_the_schedule_completes_it() -> None:
    done = played(lambda _gate: None, PULL, READ, HOLD, after=(Move("silent", slot=0),))
    assert done.is_whole
    assert done.broken
    assert (done.cannot, done.otherwise) == ("", "")
    assert [seen.said[-1] for seen in done.steps] == [
        "Pull_1 pauses at read",
        "Pull_1 pauses at hold",
        "Pull_1 passes held",
    ]
    assert done.shown == ("pull 0 is unanswered",)


def test_an_answer_outside_the_specification_is_reported() -> None:
    done = played(lambda gate: 19 if gate == "put" else None, PULL, READ, HOLD, after=(Move("silent", slot=0),))
    assert re.fullmatch(
        r"(step 3 \(hold\(0\)\)|after the last step): pull 0 is answered \(code 19\), "
        "but the specification leaves it unanswered",
        done.otherwise,
    )
    assert not done.broken


def test_a_wrong_answer_is_reported() -> None:
    read = Step("pull_read(0)", (Move("go", "pull 0", ("read",)), Move("answer", slot=0, word="found")), (False,))
    done = played(lambda _gate: 19, PULL, read)
    assert (
        done.otherwise == "step 2 (pull_read(0)): pull 0 is answered with code 19, but the specification expects found"
    )


def test_a_missing_thread_ends_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay ends without a hang. The report has the step, the missing thread, and each thread's breakpoint."""
    monkeypatch.setattr(player, "WITHIN_S", 0.2)
    lost = Step("notify_start", (Move("until", "dispatcher", ("taken", "done")),), (True,))
    done = played(lambda _gate: None, PULL, lost)
    assert len(done.steps) == 1
    assert done.cannot == (
        "step 2 (notify_start): dispatcher did not reach taken or done within 0.2 s; waiting threads: Pull_1 at read"
    )


def test_an_injected_exception_that_no_thread_reaches_ends_the_replay() -> None:
    """The report names the injected exception."""
    throws = Step("executor_rejects(0)", (Move("throw", "scanner", ("submit",)),), (True,))
    assert "scanner is not at submit" in played(lambda _gate: None, PULL, throws).cannot


@pytest.mark.parametrize(
    ("move", "said"),
    [
        (Move("offset", slot=0, number=3), "the group's offset is 0, but the specification expects 3"),
        (Move("untouched", slot=0), ""),
        (Move("unvisited", queue=0), ""),
    ],
)
def test_each_check_after_the_run_can_fail(move: Move, said: str) -> None:
    done = played(lambda _gate: None, PULL, READ, HOLD, after=(move,))
    assert done.otherwise == (f"after the last step: {said}" if said else "")
    assert done.broken is not bool(said)


def test_a_traversal_that_reaches_its_end_is_reported() -> None:
    """In the fake broker the traversal does not break off after the master's return, and the report says so."""
    told = Step("master_returns", (Move("returns"),), (True,))
    done = played(lambda _gate: None, told, after=(Move("broke_off"),))
    assert done.otherwise == "after the last step: the traversal after the master's return reaches its end"


def test_a_touched_pull_and_a_visited_queue_are_reported() -> None:
    """The checks `untouched` and `unvisited` fail if the pull is touched or the queue is visited."""
    arrivals = [
        Arrival("each", "PullRequestHoldService", "t", 0, 5, None, 0.0),
        Arrival("queue", "PullRequestHoldService", "t", 0, -1, None, 0.0),
    ]
    with fake(lambda _gate: None) as broker:
        one = cast("Any", player)._Player(broker, schedule(PULL))
        one.topic = "t"
        one.slots[0] = SimpleNamespace(opaque=5)
        broker.stage.seen.extend(arrivals)
        for move in (Move("untouched", slot=0), Move("unvisited", queue=0)):
            with pytest.raises(player.OtherwiseError):
                getattr(one, move.kind)(move)
        assert one.look(Move("look", slot=0))
        assert one.visit(Move("visit", queue=0))


def test_the_run_waits_for_the_end_of_the_current_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan that began earlier would take the run's pulls, so the run waits for the scan's end."""
    with fake(lambda _gate: None) as broker:
        stage = broker.stage
        begun = Asker(stage.port, "round", thread="PullRequestHoldService")
        assert stage.until(lambda: bool(stage.seen), WITHIN_S)
        assert begun.join() == GO
        ended: list[Asker] = []
        real = stage.until

        def until(is_so: Callable[[], bool], within_s: float) -> bool:
            assert not is_so()
            ended.append(Asker(stage.port, "rounded", thread="PullRequestHoldService"))
            return real(is_so, within_s)

        one = cast("Any", player)._Player(broker, schedule(PULL))
        monkeypatch.setattr(stage, "until", until)
        one._stop_all()
        monkeypatch.undo()
        assert ended[0].join() == GO
        assert stage.seen[-1].gate == "rounded"
