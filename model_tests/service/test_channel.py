"""The outbox: what is told in one pass leaves together, and the beginning of a long row does not wait for its end."""

from __future__ import annotations

from typing import Any, cast

import pytest

from longpoll_broker.service import channel as subject
from longpoll_broker.service.channel import CHANNEL_COUNT, FLUSH_COUNT, FLUSH_COUNT_MAX, Channel, Outbox, Parts


class Sink:
    """A channel that notes how many commands each flush sends, and its name in a common order of flushes."""

    def __init__(self, name: str = "", order: list[str] | None = None) -> None:
        self.name = name
        self.order = order if order is not None else []
        self.waiting = 0
        self.flushed: list[int] = []

    def write(self, _parts: Parts) -> None:
        """Queue a command."""
        self.waiting += 1

    def flush(self) -> None:
        """Send what waits."""
        self.flushed.append(self.waiting)
        self.order.append(self.name)
        self.waiting = 0


def _row(count: int, channel_count: int = 1) -> list[int]:
    """Answer so many on some channels in turn; how many left in each part of the first."""
    sinks: Any = [Sink() for _ in range(channel_count)]
    outbox = Outbox()
    for number in range(count):
        outbox.write_in_row(cast("Channel", sinks[number % channel_count]), (b"",))
    outbox.flush()
    assert all(sink.waiting == 0 for sink in sinks)
    parts: list[int] = sinks[0].flushed
    return parts


def test_a_long_row_leaves_in_parts_that_grow() -> None:
    """The first answers leave at once; later parts are long, so that system calls do not cost more than answers."""
    parts = _row(20_000, 64)

    assert [64 * part for part in parts[-4:-1]] == [FLUSH_COUNT_MAX] * 3
    assert sum(parts) == -(-20_000 // 64)
    assert _row(20_000)[:3] == [FLUSH_COUNT, 2 * FLUSH_COUNT, 4 * FLUSH_COUNT]


def _waits_for_others() -> bool:
    """Whether a connection with much to be told is told at the end, beside those that little was written to."""
    order: list[str] = []
    sinks: Any = [Sink(name, order) for name in ("early", "busy", "other")]
    outbox = Outbox()
    for sink, count in zip(sinks, (3 * FLUSH_COUNT, CHANNEL_COUNT - 1, FLUSH_COUNT), strict=True):
        outbox.write_in_row(sink, (b"",), count)
    outbox.write_in_row(sinks[1], (b"",))
    outbox.flush_busy()
    order.append("all is written")
    outbox.flush()
    assert not any(sink.waiting for sink in sinks)
    assert order.index("early") > order.index("all is written") < order.index("other")
    return order.index("busy") > order.index("all is written")


def test_a_connection_with_much_to_be_told_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told as soon as that is worth a system call, though the row's part is not full; planted: it is not."""
    monkeypatch.setattr(subject, "FLUSH_COUNT_MAX", 1000)
    monkeypatch.setattr(subject, "FLUSH_COUNT", 300)
    assert not _waits_for_others()
    monkeypatch.setattr(subject, "CHANNEL_COUNT", 10_000)
    assert _waits_for_others()


def test_who_is_woken_is_told_before_who_woke_it() -> None:
    """A send's reply is written first and leaves last."""
    order: list[str] = []
    sinks: Any = [Sink(name, order) for name in ("sender", "first", "second")]
    outbox = Outbox()
    for sink in sinks:
        outbox.write(sink, (b"",))
    outbox.flush()

    assert order == ["second", "first", "sender"]


def test_each_pass_begins_with_a_short_part() -> None:
    """A flush at the end of a pass forgets how long the last row was."""
    sink: Any = Sink()
    outbox = Outbox()
    for _ in range(2):
        for _ in range(3 * FLUSH_COUNT):
            outbox.write_in_row(cast("Channel", sink), (b"",))
        outbox.flush()

    assert sink.flushed == [FLUSH_COUNT, 2 * FLUSH_COUNT] * 2


def test_parts_that_do_not_grow_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: every part as short as the first."""
    monkeypatch.setattr(subject, "FLUSH_COUNT_MAX", FLUSH_COUNT)

    assert max(_row(20_000, 8)) == FLUSH_COUNT // 8
