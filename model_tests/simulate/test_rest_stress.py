"""A client's connection with a resting reader thread, and switches between any two bytecodes.

While the reader thread rests it counts as awake (`remoting._let_gather`), so a caller does not wake it, neither for
unsent bytes nor for an earlier deadline. No call may wait for the end of the reader's rest, so the reader must check
the bytes and the deadlines and fall asleep in one critical section. With two critical sections, a caller could add
bytes or a deadline between the sections without waking the reader, and the reader would then sleep until the next
answer or the old deadline.

A seed chooses the run. Two actors begin asynchronous calls, enough that the reader rests, and one actor waits for each
of its calls. A few calls have a short timeout and no answer; sometimes the connection closes. Time passes only when no
actor can continue, so a forgotten call uses up its whole timeout.
"""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from typing import Final

import pytest
from attrs import define, field
from model_tests.simulate.stress import first_fault
from model_tests.support.simulation.network import Network, SimulatedSocket
from model_tests.support.simulation.runtime import SimulatedRuntime, SimulatedThread
from model_tests.support.simulation.strategies import FewSwitches

from longpoll_client import remoting
from longpoll_client.errors import AnswerTimeoutError, ConnectionLostError
from longpoll_client.link import exchange
from longpoll_client.link.exchange import Answer
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, Connection, encode, reply
from longpoll_protocol.headers import SendMessageResponseHeader
from longpoll_simulation.world import LineTracing, World

FILES: Final = tuple(str(module.__file__) for module in (remoting, exchange))
HOST: Final = "127.0.0.1"
PORT: Final = 10_911
STORED: Final = SendMessageResponseHeader(msg_id="id", queue_id=0, queue_offset=7).encode()
LONG_S: Final = 2.0
"""Timeout in seconds of calls that get an answer. If a call takes this long, the reader has forgotten it."""
SHORT_S: Final = (0.05, 0.2)
PROMPT_S: Final = 0.03
"""Maximum delay of an answer or timeout, in seconds; each scheduling point takes a microsecond."""
PAUSES_S: Final = (0.0, 0.000_01, 0.000_04, 0.000_2, 0.01)
MUTE: Final = b"mute"
FIRST_COUNT: Final = 8
"""The number of calls that an actor begins at once. Two actors exceed `ALONE_COUNT_MAX`, so the reader rests."""
SWITCHED: Final = (500, 2_000, 6_000)
"""Each run draws one of these numbers, and its few switches occur within as many first scheduling points."""
CLOSE_SHARE: Final = 0.15


class Resting(SimulatedRuntime):
    is_resting = False

    def sleep(self, seconds: float) -> None:
        self.is_resting = True
        super().sleep(seconds)
        self.is_resting = False


def serve(accepted: SimulatedSocket) -> None:
    """Answer all received requests until the connection ends, except the requests that must stay unanswered."""
    connection, buffer = Connection(), bytearray(1 << 16)
    with suppress(BrokenPipeError, ConnectionResetError):
        while accepted.wait_readable() and (size := accepted.recv_into(buffer)):
            connection.receive_data(bytes(buffer[:size]))
            answers = b""
            while isinstance(command := connection.next_event(), Command):
                if bytes(command.body) != MUTE:
                    answers += b"".join(encode(reply(command, 0, ext_fields=STORED)))
            if answers:
                accepted.send(answers)
    accepted.close()


@define(eq=False)
class Stage:
    seed: int
    draw: random.Random = field(init=False)
    world: World = field(init=False)
    network: Network = field(init=False)
    runtime: Resting = field(init=False)
    client: RemotingClient = field(init=False)
    begun_ns: dict[str, tuple[int, float]] = field(factory=dict, init=False)
    told: dict[str, tuple[Answer, int]] = field(factory=dict, init=False)
    gathered_count: int = field(default=0, init=False)
    is_closing: bool = field(default=False, init=False)

    def __attrs_post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        self.world = World(FewSwitches(self.seed, SWITCHED))
        LineTracing.of(self.world, FILES, "access")
        self.network = Network(self.world)
        self.runtime = Resting(self.network, process="client")
        self.is_closing = self.draw.random() < CLOSE_SHARE

    # -- what each actor does ----------------------------------------------------------------------------------------

    def begin(self, name: str, timeout_s: float, body: bytes) -> None:
        self.begun_ns[name] = (self.world.now_ns, timeout_s)
        self.gathered_count += self.runtime.is_resting
        try:
            self.client.begin(
                RequestCode.SEND_MESSAGE_V2,
                self.client.writer(RequestCode.SEND_MESSAGE_V2, None, body),
                partial(self.tell, name),
                timeout_s,
            )
        except ConnectionLostError as error:
            self.tell(name, error)

    def tell(self, name: str, answer: Answer) -> None:
        assert name not in self.told, f"call {name} gets two results"
        self.told[name] = (answer, self.world.now_ns)

    def send_many(self, name: str) -> None:
        """Begin asynchronous calls in batches, with pauses as long as a rest. One call of each batch gets no answer."""
        for lot in range(3):
            for number in range(FIRST_COUNT):
                self.begin(f"{name}{lot}.{number}", LONG_S, b"x")
            self.pause()
            self.begin(f"{name}{lot}.mute", self.draw.choice(SHORT_S), MUTE)
            self.pause()

    def pause(self) -> None:
        pause_s = self.draw.choice(PAUSES_S)
        if pause_s:
            self.world.wait([], "a pause", pause_s)

    def send_and_wait(self, name: str) -> None:
        for number in range(4):
            self.pause()
            each = f"{name}{number}"
            self.begun_ns[each] = (self.world.now_ns, LONG_S)
            try:
                answer: Answer = self.client.call(RequestCode.SEND_MESSAGE_V2, body=b"x", timeout_s=LONG_S)
            except (AnswerTimeoutError, ConnectionLostError) as error:
                answer = error
            self.tell(each, answer)

    def main(self) -> None:
        listener = self.network.bind("server", HOST, PORT)
        listener.listen()
        self.client = RemotingClient(self.runtime, HOST, PORT)
        server = self.world.spawn("server", lambda: serve(listener.accept()[0]))
        actors = [self.world.spawn(name, partial(self.send_many, name)) for name in ("a", "b")]
        actors.append(self.world.spawn("c", partial(self.send_and_wait, "c")))
        if self.is_closing:
            actors.append(self.world.spawn("close", self.client.close))
        for actor in actors:
            SimulatedThread(self.world, actor).join()
        self.world.wait([], "what is forgotten", LONG_S + 1.0)
        self.client.close()
        SimulatedThread(self.world, server).join()

    def play(self) -> None:
        self.world.run(self.main)
        assert all(actor.done for actor in self.world.actors)
        self.look()

    # -- checks after a run ------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Check that each answered call ends soon after its begin, and each other call once, soon after its timeout."""
        assert self.told.keys() == self.begun_ns.keys(), f"without a result: {self.begun_ns.keys() - self.told.keys()}"
        for name, (answer, told_ns) in self.told.items():
            begun_ns, timeout_s = self.begun_ns[name]
            took_s = (told_ns - begun_ns) / 1e9
            if isinstance(answer, ConnectionLostError):
                assert self.is_closing, f"call {name}: {answer}"
                continue
            is_mute = timeout_s < LONG_S
            assert isinstance(answer, AnswerTimeoutError) is is_mute, f"call {name} got {answer}"
            late_s = took_s - (timeout_s if is_mute else 0.0)
            assert 0.0 <= late_s <= PROMPT_S, f"call {name} gets its result {late_s:.3f} s late"


SEEDS: Final = 100
"""The number of runs of a quick test, which takes a second. Each injected fault fails one of these runs."""
SEEDS_LONG: Final = 4_000


def test_a_resting_reader_keeps_no_call_waiting() -> None:
    stages: list[Stage] = []

    def make(seed: int) -> Stage:
        stages.append(Stage(seed))
        return stages[-1]

    assert first_fault(range(SEEDS), make) is None
    assert sum(stage.gathered_count for stage in stages) > SEEDS


@pytest.mark.long
def test_a_resting_reader_keeps_no_call_waiting_in_many_runs() -> None:
    assert first_fault(range(SEEDS, SEEDS_LONG), Stage) is None
