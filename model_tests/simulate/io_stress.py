"""A channel and a thread pool, switched between any two accesses of their code.

Channel: a seed chooses two or three writers with answers of several buffers, a loop that sends the rest when the socket
has room, and sometimes a close. The socket must get each answer once, complete and contiguous, and nothing after the
close; the rest must be watched for.

Pool: a seed chooses one or two threads with room for a few tasks, slow tasks, two or three threads that offer tasks,
and the stop. Each accepted task must either run once or be refused once as late; a rejected task does neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from attrs import define, field
from model_tests.simulate.stress import Preemption

from longpoll_broker.hold import executors
from longpoll_broker.hold.executors import PoolExecutor
from longpoll_broker.io import channel
from longpoll_broker.io.channel import Channel, Limits, Outbox
from longpoll_simulation.disk import Disk
from longpoll_simulation.files import SimulatedFiles
from longpoll_simulation.network import Network
from longpoll_simulation.runtime import SimulatedRuntime

CHANNEL_FILES: Final = (str(channel.__file__),)
LIMITS: Final = Limits(1 << 20, 1 << 20, 10, 1000)
CLOSE_SHARE: Final = 0.2


@define(eq=False)
class ChannelStage:
    """One run; also acts as the channel's loop, poller and socket.

    Invariant: `sent` has the bytes that the open socket accepted, in order.
    """

    seed: int
    preemption: Preemption = field(init=False)
    sent: bytearray = field(factory=bytearray, init=False)
    watches_write: bool = field(default=False, init=False)
    is_open: bool = field(default=True, init=False)
    given_up: bool = field(default=False, init=False)
    channel: Channel = field(init=False)
    frames: dict[str, list[bytes]] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, CHANNEL_FILES)
        stage: Any = self
        self.channel = Channel(stage, stage, ("127.0.0.1", 1), 1, stage, LIMITS, self.preemption.lock())

    # -- the loop, the poller and the socket -------------------------------------------------------------------------

    @property
    def poller(self) -> Any:
        return self

    def modify(self, _socket: object, *, read: bool, write: bool, data: object) -> None:
        """Start or stop watching the socket for room."""
        assert self.is_open, "a socket is watched after it was closed"
        self.watches_write = write

    def unregister(self, _socket: object) -> None:
        self.watches_write = False

    def close(self) -> None:
        self.is_open = False

    def close_soon(self, _channel: Channel) -> None:
        self.given_up = True

    def send(self, data: bytes) -> int:
        """Accept as many bytes as the seed says; raises BlockingIOError for none."""
        assert self.is_open, "a socket is sent to after it was closed"
        room = self.preemption.random.randint(0, len(data))
        if not room:
            raise BlockingIOError
        self.sent += bytes(data[:room])
        return room

    def send_parts(self, parts: Sequence[bytes]) -> int:
        return self.send(b"".join(map(bytes, parts)))

    # -- the actors --------------------------------------------------------------------------------------------------

    def write(self, name: str) -> None:
        """A thread that writes answers and flushes after each."""
        for frame in self.frames[name]:
            self.channel.write([frame[:1], frame[1:3], frame[3:]])
            self.channel.flush()

    def go_on(self) -> None:
        """The loop: send the rest while the socket is watched for room."""
        for _ in range(3):
            if self.watches_write:
                self.channel.flush()

    def play(self) -> None:
        """Run the actors and check the result; raises on a fault."""
        names = ["a", "b", "c"][: self.preemption.random.choice((2, 3))]
        self.frames = {name: [f"<{name * (3 + number)}{number}>".encode() for number in range(3)] for name in names}
        actors: dict[str, Callable[[], None]] = {name: partial(self.write, name) for name in names}
        actors["loop"] = self.go_on
        if self.preemption.random.random() < CLOSE_SHARE:
            actors["close"] = self.channel.close
        self.preemption.run(actors)
        assert not self.given_up, "a connection that reads is given up"
        if not self.channel.closed:
            assert self.watches_write == self.channel.unsent(), "what is left is not watched for"
        while self.watches_write:
            self.channel.flush()
        self.look()

    def look(self) -> None:
        """Check that each answer was sent once, complete, in its thread's order; only a prefix after a close."""
        text = bytes(self.sent)
        wanted = {name: list(frames) for name, frames in self.frames.items()}
        while text:
            found = [name for name, frames in wanted.items() if frames and frames[0].startswith(text[: len(frames[0])])]
            assert found, f"the socket was sent what no thread has written: {text[:12]!r}"
            frame = wanted[found[0]].pop(0)
            assert self.channel.closed or text.startswith(frame), "an answer was sent in part"
            text = text[len(frame) :]
        assert self.channel.closed or not any(wanted.values()), "an answer was never sent"


POOL_FILES: Final = (str(executors.__file__),)
LATE_MS: Final = 5
"""Maximum waiting time of a task."""
TAKES_S: Final = (0.0, 0.0, 0.002, 0.02)
"""Durations of tasks: the longest makes later tasks late."""
TASKS: Final = 3


@define(eq=False)
class PoolStage:
    """One run. Invariant: `ran` and `refused` count the outcomes of each pull."""

    seed: int
    preemption: Preemption = field(init=False)
    runtime: SimulatedRuntime = field(init=False)
    pool: PoolExecutor = field(init=False)
    taken: dict[str, bool] = field(factory=dict, init=False)
    """Whether the pool accepted each pull."""
    ran: Counter[str] = field(factory=Counter, init=False)
    refused: Counter[str] = field(factory=Counter, init=False)

    def __attrs_post_init__(self) -> None:
        self.preemption = Preemption(self.seed, POOL_FILES)
        self.runtime = SimulatedRuntime(Network(self.preemption.world), SimulatedFiles(Disk()))
        draw = self.preemption.random
        run: Any = self.run
        refuse: Any = self.refuse
        self.pool = PoolExecutor(self.runtime, run, refuse, draw.randint(1, 2), draw.choice((1, 2, 10)), LATE_MS)

    def run(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        """Run a pull, which takes some time."""
        self.ran[pull] += 1
        self.runtime.sleep(self.preemption.random.choice(TAKES_S))

    def refuse(self, pull: str, _cause: str, _outbox: Outbox) -> None:
        self.refused[pull] += 1

    def offer(self, name: str) -> None:
        for number in range(TASKS):
            pull: Any = f"{name}-{number}"
            self.taken[pull] = self.pool.submit(pull, "woken", Outbox())
            self.runtime.sleep(self.preemption.random.choice(TAKES_S[1:3]))

    def play(self) -> None:
        """Run the actors, stop the pool and check the result; raises on a fault."""
        names = "abc"[: self.preemption.random.randint(2, 3)]
        actors: dict[str, Callable[[], None]] = {name: partial(self.offer, name) for name in names}

        def all_of_it() -> None:
            self.pool.start()
            threads = [self.runtime.spawn(name, target) for name, target in actors.items()]
            for thread in threads:
                thread.join()
            self.pool.stop()

        self.preemption.run({"owner": all_of_it})
        for pull, was_taken in self.taken.items():
            ends = self.ran[pull] + self.refused[pull]
            assert ends == was_taken, f"a pull that was {'taken' if was_taken else 'not taken'} has {ends} ends"
