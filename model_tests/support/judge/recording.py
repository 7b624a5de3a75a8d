"""A recorded history in memory that tests can change, and functions that pick one of its exchanges.

The faults that change a recording are in `faults` and `contract_faults`.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec
from attrs import define, frozen

from longpoll_judge.contract.result import Verdict
from longpoll_judge.errors import HistoryNotFoundError, JudgeUserError
from longpoll_spec.history import META_FILE, PART_GLOB, Event, Meta

MS: Final = 1_000_000
PULLS: Final = (11, 361)


class NoVictimError(JudgeUserError):
    """The history has no event to which the fault can be applied."""


class DamagedHistoryError(JudgeUserError):
    """A history cannot be read to its end."""


@define
class Recording:
    events: list[Event]
    meta: Meta | None
    damaged_tail: bytes = b""
    """Bytes that are written after the last line of the history."""

    def exchanges(self) -> Iterator[tuple[Event, Event]]:
        """Iterate over every answered pull and its answer, in the order of the answers."""
        requests = {
            (event.source, event.request): event
            for event in self.events
            if event.event == "request_received" and event.code in PULLS
        }
        for event in self.events:
            request = requests.get((event.source, event.request))
            if event.event == "answer_sent" and request is not None:
                yield request, event

    def replace(self, old: Event, *new: Event) -> None:
        """Replace an event by other events, and renumber the later events of its source."""
        at = next(place for place, event in enumerate(self.events) if event is old)
        self.events[at : at + 1] = new
        shift = len(new) - 1
        for place in range(len(self.events)) if shift else ():
            event = self.events[place]
            is_later = (
                event.source == old.source and event.sequence >= old.sequence and event is not (new or (None,))[0]
            )
            if is_later:
                self.events[place] = change(event, sequence=event.sequence + shift)

    def delay(self, event: Event, delay_ns: int) -> None:
        """Move an event to a later time, with the sequence number that its observer would have given it there."""
        self.replace(event)
        late = moved(event, delay_ns)
        mine = [place for place, one in enumerate(self.events) if one.source == event.source]
        later = [place for place in mine if self.events[place].after_ns > late.after_ns]
        place = min(later, default=mine[-1])  # The last event of a source is its end, so a moved event comes before it.
        number = self.events[place].sequence
        for other in mine:
            if self.events[other].sequence >= number:
                self.events[other] = change(self.events[other], sequence=self.events[other].sequence + 1)
        self.events.insert(place, change(late, sequence=number))


def change(event: Event, /, **fields: object) -> Event:
    return msgspec.structs.replace(event, **fields)


def lost(event: Event, count: int) -> Event:
    """Returns an event that reports lost events, in place of another event."""
    return Event(
        event="lost",
        after_ns=event.after_ns,
        before_ns=event.before_ns,
        source=event.source,
        sequence=event.sequence,
        lost_count=count,
    )


def moved(event: Event, delay_ns: int) -> Event:
    """Returns the event moved to a later time."""
    return change(event, after_ns=event.after_ns + delay_ns, before_ns=event.before_ns + delay_ns)


def deadline_ns(request: Event) -> int:
    """Returns the deadline of a pull on its source's clock."""
    return request.before_ns + max(request.timeout_ms, 0) * MS


def last_ns(recording: Recording, source: str) -> int:
    return max(event.after_ns for event in recording.events if event.source == source)


def closed_connections(recording: Recording) -> set[tuple[str, str]]:
    return {(event.source, event.connection) for event in recording.events if event.event == "connection_closed"}


def pick(recording: Recording, suits: Callable[[Event, Event], bool]) -> tuple[Event, Event]:
    """Returns the first matching exchange; raises `NoVictimError` if none matches."""
    for request, answer in recording.exchanges():
        if suits(request, answer):
            return request, answer
    raise NoVictimError("no answer of this history suits the fault; record a longer run")


def load(directory: Path) -> Recording:
    """Read a complete history; raises `HistoryNotFoundError` or `DamagedHistoryError` otherwise."""
    parts = sorted(directory.glob(PART_GLOB))
    if not parts or not (directory / META_FILE).exists():
        raise HistoryNotFoundError(f"{directory} is not a complete history: it needs {META_FILE} and {PART_GLOB}")
    decoder = msgspec.json.Decoder(Event)
    try:
        meta = msgspec.json.decode((directory / META_FILE).read_bytes(), type=Meta)
        return Recording([event for part in parts for event in decoder.decode_lines(part.read_bytes())], meta)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        raise DamagedHistoryError(
            f"{directory} is not a complete history: {error}; `longpoll judge` shows where"
        ) from error


@frozen
class Fault:
    """A fault, and the verdict and findings that the judge must report for it."""

    sentence: str
    apply: Callable[[Recording], None]
    verdict: Verdict
    properties: frozenset[str]
    """Each finding must have one of these properties, and at least one finding is needed unless this is empty."""
    clause: str = ""
    """The only clause that the fault breaks; empty if the fault may break several clauses."""


def write(directory: Path, events: Iterable[Event], meta: Meta | None, *, events_per_part: int = 100_000) -> None:
    """Write a history to a directory that does not exist yet or is empty."""
    directory.mkdir(parents=True, exist_ok=True)
    encoder = msgspec.json.Encoder()
    if meta is not None:
        (directory / META_FILE).write_bytes(encoder.encode(meta) + b"\n")
    rest = iter(events)
    for number in itertools.count():
        lines = encoder.encode_lines(itertools.islice(rest, events_per_part))
        if not lines:
            return
        (directory / f"part-{number:06}.ndjson").write_bytes(lines)
