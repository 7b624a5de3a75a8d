"""Fakes and helpers for tests of the broker's services."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from longpoll_broker.io.channel import Outbox, Parts
from longpoll_protocol.frames import Command, Connection
from longpoll_runtime.real import RealRuntime


class ShiftedRuntime(RealRuntime):
    """A real runtime whose clocks a test advances, so that no test waits for an hour."""

    ahead_ms = 0
    """How many ms the wall clock is ahead of the real clock."""
    gone_ms = 0
    """How many ms the monotonic clock is ahead of the real clock."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        really_ns = self.monotonic_ns
        self.monotonic_ns: Callable[[], int] = lambda: really_ns() + self.gone_ms * 1_000_000

    def unix_ms(self) -> int:
        return super().unix_ms() + self.ahead_ms


class Noting:
    """Accepts any call, and records its method's name and its arguments."""

    def __init__(self) -> None:
        self.notes: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *words: self.notes.append((name, *words) if words else name)

    def told(self) -> list[Any]:
        """Returns the calls that were recorded since the last use of `told`."""
        notes, self.notes = self.notes, []
        return notes


class HeldLock:
    """A lock for a single thread that shows whether it is held."""

    is_held = False

    def __enter__(self) -> None:
        assert not self.is_held
        self.is_held = True

    def __exit__(self, *_error: object) -> None:
        self.is_held = False


def reasons(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Returns the reasons in the log's events of this name."""
    told = [getattr(record, "longpoll_fields", {}) for record in caplog.records]
    return [each["reason"] for each in told if each.get("event") == event]


def decoded(parts: Parts) -> Command:
    """Returns the command that these buffers encode."""
    connection = Connection()
    connection.receive_data(b"".join(map(bytes, parts)))
    command = connection.next_event()
    assert isinstance(command, Command)
    return command


class Box(Outbox):
    """An outbox that keeps all replies."""

    __slots__ = ("replies",)

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[Command] = []

    def write(self, channel: Any, parts: Parts, count: int = 1) -> None:
        self.replies.append(decoded(parts))

    def write_in_herd(self, channel: Any, parts: Parts, count: int = 1) -> None:
        self.replies.append(decoded(parts))


def fields_of(reply: Command) -> dict[str, str]:
    assert reply.ext_fields is not None
    return reply.ext_fields
