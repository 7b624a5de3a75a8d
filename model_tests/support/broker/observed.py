"""Starts a recording proxy in front of a broker, and reads the events that the proxy recorded."""

from __future__ import annotations

import socket
from pathlib import Path

import msgspec
from model_tests.support.broker.raw_client import PATIENCE_S

from longpoll_observe import Observer, observer
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import PART_GLOB, Event


def observing(broker: tuple[str, int], record_directory: Path) -> Observer:
    return Observer.start(RealRuntime(), brokers=[broker], record_directory=str(record_directory))


def events_of(directory: Path) -> list[Event]:
    """Returns the events of a history with one source, in order."""
    lines = b"".join(part.read_bytes() for part in sorted(directory.glob(PART_GLOB)))
    return msgspec.json.Decoder(Event).decode_lines(lines)


class Upstream:
    """A plain listening socket in place of a broker, with a recording proxy in front of it."""

    def __init__(self, record_directory: Path) -> None:
        self.history = record_directory
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.listening.settimeout(PATIENCE_S)
        address: tuple[str, int] = self.listening.getsockname()
        self.observer = Observer.start(RealRuntime(), brokers=[address], record_directory=str(record_directory))
        for _ in range(observer.HANDSHAKES):
            self.listening.accept()[0].close()

    def connect(self) -> tuple[socket.socket, socket.socket]:
        """Returns a client's socket to the proxy, and the socket at which the broker accepts the proxy's connection."""
        (door,) = self.observer.doors.values()
        client = socket.create_connection(door, PATIENCE_S)
        behind, _peer = self.listening.accept()
        behind.settimeout(PATIENCE_S)
        return client, behind

    def close(self) -> None:
        self.observer.stop()
        self.listening.close()
