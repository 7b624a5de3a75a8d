"""Simulated connections are streams: every byte once and in order, an end after the data, a cut for both sides."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from model_tests.simulate.test_world import spawn_all
from model_tests.support.simulation.network import (
    PIPE_SIZE,
    Network,
    SimulatedListener,
    SimulatedPoller,
    SimulatedSocket,
    Weather,
)
from model_tests.support.simulation.runtime import SimulatedRuntime
from model_tests.support.simulation.strategies import RandomWalk

from longpoll_runtime import Poller
from longpoll_simulation.sync import SimulatedThread
from longpoll_simulation.world import World

PORT: Final = 9876
Pair = tuple[Network, SimulatedSocket, SimulatedSocket]


class Storm(Weather):
    """Long delays, and single bytes."""

    def delay_ns(self) -> int:
        return self.random.randrange(1_000_000_000)

    def piece(self, size: int) -> int:
        return min(size, self.random.choice((1, 1, 2, 100_000)))


def pair(world: World, weather: Weather | None = None) -> Pair:
    """Create a network and both ends of a connection."""
    network = Network(world) if weather is None else Network(world, weather)
    listener = network.bind("server", "127.0.0.1", PORT)
    with pytest.raises(ConnectionRefusedError):
        network.connect("client", "127.0.0.1", PORT)
    listener.listen()
    near = network.connect("client", "127.0.0.1", PORT)
    far, _peer = listener.accept()
    return network, near, far


def in_world(scenario: Callable[[World], None], seed: int = 1) -> None:
    """Run a scenario as the first actor of a simulation."""
    world = World(RandomWalk(seed))
    world.run(lambda: scenario(world))


def read_all(sock: SimulatedSocket) -> bytes:
    """Read up to the end of the stream."""
    content, buffer = b"", bytearray(4096)
    while True:
        assert sock.wait_readable(60)
        size = sock.recv_into(buffer)
        if not size:
            return content
        content += buffer[:size]


def send_all(world: World, sock: SimulatedSocket, content: bytes) -> None:
    """Send everything, waiting for room."""
    while content:
        try:
            content = content[sock.send(content) :]
        except BlockingIOError:
            world.wait([], "room", 0.01)


def test_every_byte_comes_once_and_in_order() -> None:
    """For any delays and pieces, even if more is sent than fits."""
    content = random.Random(3).randbytes(2 * PIPE_SIZE + 17)

    def scenario(world: World) -> None:
        _network, near, far = pair(world, Storm(random=random.Random(5)))
        got: list[bytes] = []

        def sends() -> None:
            send_all(world, near, content)
            near.close()

        spawn_all(world, {"sends": sends, "reads": lambda: got.append(read_all(far))})()
        assert got == [content]

    in_world(scenario)


def test_what_was_sent_on_two_connections_may_come_in_either_order() -> None:
    firsts: set[str] = set()

    def scenario(world: World) -> None:
        network, near, far = pair(world, Storm(random=random.Random(seed)))
        listener = network.bind("server", "127.0.0.1", 1)
        listener.listen()
        second = network.connect("client", "127.0.0.1", 1)
        other, _peer = listener.accept()
        near.send(b"first")
        second.send(b"second")
        came: list[str] = []

        def waits(name: str, sock: SimulatedSocket) -> Callable[[], None]:
            def run() -> None:
                assert sock.wait_readable(5)
                came.append(name)

            return run

        spawn_all(world, {"a": waits("first", far), "b": waits("second", other)})()
        firsts.add(came[0])

    for seed in range(12):
        in_world(scenario, seed)
    assert firsts == {"first", "second"}


def test_a_send_may_take_a_part() -> None:
    """As much as the weather allows, and never more than fits."""

    def scenario(world: World) -> None:
        _network, near, _far = pair(world, Storm(random=random.Random(3)))
        sizes = {near.send(bytes(100)) for _ in range(20)}
        assert sizes == {1, 2, 100}

    in_world(scenario)


def test_sending_and_receiving_are_points() -> None:
    """Other actors may run before bytes leave and before they are read."""

    def scenario(world: World) -> None:
        network, near, far = pair(world)
        noted: list[str] = []
        world.note = lambda _actor, operation, _thing: noted.append(operation)
        near.send(b"x")
        far.recv_into(bytearray(1))
        SimulatedRuntime(network, process="p").step("make_visible")
        world.note = None
        assert noted == ["send", "receive", "make_visible"]

    in_world(scenario)


def test_an_end_follows_what_was_sent() -> None:
    """A half-closed connection: the other direction continues."""

    def scenario(world: World) -> None:
        _network, near, far = pair(world, Storm(random=random.Random(7)))
        send_all(world, near, b"question")
        near.end_sending()
        assert read_all(far) == b"question"
        send_all(world, far, b"answer")
        far.close()
        assert read_all(near) == b"answer"
        with pytest.raises(BrokenPipeError):
            near.send(b"more")

    in_world(scenario)


def test_who_closes_with_something_unread_resets() -> None:
    """As in TCP: the peer gets a reset, not an end."""

    def scenario(world: World) -> None:
        _network, near, far = pair(world)
        near.send(b"unread")
        far.close()
        with pytest.raises(ConnectionResetError):
            near.recv_into(bytearray(10))

    in_world(scenario)


def test_a_cut_is_heard_at_both_ends() -> None:
    """Data in transit is lost, and neither side gets an end."""

    def scenario(world: World) -> None:
        _network, near, far = pair(world)
        near.send(b"lost")
        near.cut()
        for sock in (near, far):
            with pytest.raises(ConnectionResetError):
                sock.recv_into(bytearray(10))
            with pytest.raises(ConnectionResetError):
                sock.send(b"x")

    in_world(scenario)


def test_nothing_is_read_where_nothing_came() -> None:
    """BlockingIOError from an empty socket, a full one, and a listener without connections."""

    def scenario(world: World) -> None:
        network, near, _far = pair(world)
        with pytest.raises(BlockingIOError):
            near.recv_into(bytearray(10))
        assert near.send(bytes(PIPE_SIZE + 1)) == PIPE_SIZE
        with pytest.raises(BlockingIOError):
            near.send(b"x")
        with pytest.raises(BlockingIOError):
            network.bind("server", "127.0.0.1", 0).accept()

    in_world(scenario)


def test_addresses_are_taken_and_given_back() -> None:
    """A port in use is refused, and so is one without a listener; a killed process releases its ports."""

    def scenario(world: World) -> None:
        network, near, far = pair(world)
        with pytest.raises(OSError, match="in use"):
            network.bind("other", "127.0.0.1", PORT)
        with pytest.raises(ConnectionRefusedError):
            network.connect("client", "127.0.0.1", 1)
        network.lose("server")
        assert far.fileno() == -1
        assert read_all(near) == b""
        assert isinstance(network.bind("other", "127.0.0.1", PORT), SimulatedListener)

    in_world(scenario)


def test_a_poller_says_what_is_ready_as_long_as_it_is() -> None:
    """Level-triggered: until it is read; for writing only on request."""

    def scenario(world: World) -> None:
        network, near, far = pair(world)
        poller: Poller = SimulatedPoller(network)
        poller.register(far, read=True, write=False, data="far")
        assert poller.poll(0) == []
        near.send(b"x")
        assert poller.poll(None) == poller.poll(0) == [("far", True, False)]
        poller.modify(far, read=True, write=True, data="far")
        assert poller.poll(0) == [("far", True, True)]
        far.recv_into(bytearray(10))
        assert poller.poll(0) == [("far", False, True)]
        poller.modify(far, read=True, write=False, data="far")
        begun_ns = world.now_ns
        assert poller.poll(1.5) == []
        assert world.now_ns - begun_ns >= 1_500_000_000
        poller.wake()
        assert poller.poll(None) == []
        near.cut()
        assert poller.poll(None) == [("far", True, False)]
        poller.unregister(far)
        with pytest.raises(FileNotFoundError):
            poller.unregister(far)
        poller.close()

    in_world(scenario)


def test_room_again_ends_a_poll_for_writing() -> None:
    """A full pipe accepts nothing, and a poll for room ends when its reader makes some."""

    def scenario(world: World) -> None:
        network, near, far = pair(world)
        poller: Poller = SimulatedPoller(network)
        poller.register(near, read=False, write=True, data="near")
        assert near.send(bytes(PIPE_SIZE)) == PIPE_SIZE
        assert poller.poll(0) == []
        world.spawn("reads", lambda: assert_read(far))
        begun_ns = world.now_ns
        assert poller.poll(60.0) == [("near", False, True)]
        assert world.now_ns - begun_ns < 1_000_000_000
        poller.close()

    def assert_read(sock: SimulatedSocket) -> None:
        assert sock.recv_into(bytearray(1)) == 1

    in_world(scenario)


def test_a_wake_ends_a_poll_of_another_actor() -> None:
    """In either order: a wake before the poll is kept for it."""

    def scenario(world: World) -> None:
        network = Network(world)
        poller = SimulatedPoller(network)

        def polls() -> None:
            assert poller.poll(None) == []

        actor = world.spawn("polls", polls)
        poller.wake()
        SimulatedThread(world, actor).join()
        assert actor.done

    for seed in range(20):
        in_world(scenario, seed)
