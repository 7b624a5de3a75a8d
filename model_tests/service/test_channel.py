"""The outbox: what is told in one pass leaves together, and the beginning of a long row does not wait for its end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from longpoll_broker.service import channel as subject
from longpoll_broker.service.channel import FLUSH_COUNT, FLUSH_COUNT_MAX, Channel, Outbox, Parts


class Sink:
    """A channel that notes how many commands each flush sends."""

    def __init__(self) -> None:
        self.waiting = 0
        self.flushed: list[int] = []

    def write(self, _parts: Parts) -> None:
        """Queue a command."""
        self.waiting += 1

    def flush(self) -> None:
        """Send what waits."""
        self.flushed.append(self.waiting)
        self.waiting = 0


def _row(count: int) -> list[int]:
    """Answer so many on one channel; how many left in each part."""
    sink: Any = Sink()
    outbox = Outbox()
    for _ in range(count):
        outbox.write(cast("Channel", sink), (b"",))
        outbox.flush_many()
    outbox.flush()
    assert sink.waiting == 0
    parts: list[int] = sink.flushed
    return parts


def test_a_long_row_leaves_in_parts_that_grow() -> None:
    """The first answers leave at once; later parts are long, so that system calls do not cost more than answers."""
    parts = _row(20_000)

    assert parts[:3] == [FLUSH_COUNT, 2 * FLUSH_COUNT, 4 * FLUSH_COUNT]
    assert max(parts) == FLUSH_COUNT_MAX
    assert sum(parts) == 20_000


def test_each_pass_begins_with_a_short_part() -> None:
    """A flush at the end of a pass forgets how long the last row was."""
    sink: Any = Sink()
    outbox = Outbox()
    for _ in range(2):
        for _ in range(3 * FLUSH_COUNT):
            outbox.write(cast("Channel", sink), (b"",))
            outbox.flush_many()
        outbox.flush()

    assert sink.flushed == [FLUSH_COUNT, 2 * FLUSH_COUNT] * 2


def test_parts_that_do_not_grow_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: every part as short as the first."""
    monkeypatch.setattr(subject, "FLUSH_COUNT_MAX", FLUSH_COUNT)

    assert max(_row(20_000)) == FLUSH_COUNT
