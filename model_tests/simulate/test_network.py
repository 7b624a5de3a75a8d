"""Simulated connections behave like real connections in the order of bytes, partial reads, ends and cuts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import pytest
from model_tests.simulate.test_world import spawn_all
from model_tests.support.simulation.network import (
    Network,
    SimulatedSocket,
    Weather,
)
from model_tests.support.simulation.strategies import RandomWalk

from longpoll_simulation.world import World

PORT: Final = 9876
Pair = tuple[Network, SimulatedSocket, SimulatedSocket]


class Storm(Weather):
    """A network with long delays that delivers single bytes."""

    def delay_ns(self) -> int:
        return self.random.randrange(1_000_000_000)

    def piece(self, size: int) -> int:
        return min(size, self.random.choice((1, 1, 2, 100_000)))


def pair(world: World, weather: Weather | None = None) -> Pair:
    network = Network(world) if weather is None else Network(world, weather)
    listener = network.bind("server", "127.0.0.1", PORT)
    with pytest.raises(ConnectionRefusedError):
        network.connect("client", "127.0.0.1", PORT)
    listener.listen()
    near = network.connect("client", "127.0.0.1", PORT)
    far, _peer = listener.accept()
    return network, near, far


def in_world(scenario: Callable[[World], None], seed: int = 1) -> None:
    world = World(RandomWalk(seed))
    world.run(lambda: scenario(world))


def read_all(sock: SimulatedSocket) -> bytes:
    content, buffer = b"", bytearray(4096)
    while True:
        assert sock.wait_readable(60)
        size = sock.recv_into(buffer)
        if not size:
            return content
        content += buffer[:size]


def send_all(world: World, sock: SimulatedSocket, content: bytes) -> None:
    while content:
        try:
            content = content[sock.send(content) :]
        except BlockingIOError:
            world.wait([], "room", 0.01)


def test_data_on_two_connections_may_arrive_in_either_order() -> None:
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


def test_the_end_of_a_stream_follows_its_data() -> None:
    """The end of a stream arrives after its data, and the other side can still send."""

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


def test_closing_with_unread_bytes_resets_the_connection() -> None:
    """As in TCP, closing a connection with unread bytes sends a reset instead of an end."""

    def scenario(world: World) -> None:
        _network, near, far = pair(world)
        near.send(b"unread")
        far.close()
        with pytest.raises(ConnectionResetError):
            near.recv_into(bytearray(10))

    in_world(scenario)


def test_a_cut_is_noticed_at_both_ends() -> None:
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
