"""A recording proxy in front of a broker, and the events that it recorded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from longpoll_observe import Observer
from longpoll_runtime.real import RealRuntime
from longpoll_spec.history import PART_GLOB, Event


def observing(broker: tuple[str, int], record_directory: Path) -> Observer:
    """A proxy before one broker; it is stopped at the end of a `with`."""
    return Observer.start(RealRuntime(), brokers=[broker], record_directory=str(record_directory))


def events_of(directory: Path) -> list[Event]:
    """Every event of a history that one source wrote, in order."""
    lines = b"".join(part.read_bytes() for part in sorted(directory.glob(PART_GLOB)))
    return msgspec.json.Decoder(Event).decode_lines(lines)
