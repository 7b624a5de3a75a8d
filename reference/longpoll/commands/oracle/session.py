"""One session: checks one run against the specification and writes its history.

A rejected step goes into the history like any other, so that the judge finds it too; it does not change the session's
states. The lines are in `requests`, the input and output in `connections`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from attrs import define, field, frozen

from longpoll_judge.rules.conformance import StepReader, contradiction, model_of, reader_of
from longpoll_spec.engines.conform import Checker, Follower, Refusal
from longpoll_spec.engines.python.compile import Packed, Question, question
from longpoll_spec.errors import EngineLimitError, OutputError, SpecUserError, not_known
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Law, Meta, Source
from longpoll_spec.model import ACTION_NAMES, Model, Property, SeenStep
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of
from longpoll_spec.terms import Bool, all_of, any_of

REASONS_MAX: Final = 5
"""Most states for which a rejection gives reasons; hidden steps may lead to thousands."""
STATES_SHOWN_MAX: Final = 20
"""Most states in one answer."""
KNOWN_MAX: Final = 50_000
"""Most states whose broken properties are cached."""
NOTHING: Final = frozenset[str]()
BATCH_BYTES: Final = 1 << 18
"""Bytes of events per write to a history."""


@frozen
class Refused:
    """Why the specification rejects a step in one of the possible states."""

    action: str
    false: Sequence[str]
    """The false parts of its guard, in words."""
    contradicted: Sequence[str]
    """Observations of the program that contradict the state after the step."""


@define
class CompiledSpecification:
    """The specification of one policy, shared by all sessions and compiled on demand."""

    policy: Policy
    law: Law
    model: Model = field(init=False)
    checker: Checker = field(init=False)
    reader: StepReader = field(init=False)
    always: tuple[Property, ...] = field(init=False)
    closing: dict[str, list[tuple[str, Question]]] = field(factory=dict)
    """Label -> the properties that the step may break, each with the condition on the state before it."""
    _is_well: Question = field(init=False)
    _questions: list[tuple[str, Question]] = field(init=False)
    _broken: dict[Packed, frozenset[str]] = field(factory=dict)
    _may_break: dict[str, Question] = field(factory=dict)
    """Label -> whether any condition in `closing` is true; one question suffices for most steps."""

    def __attrs_post_init__(self) -> None:
        """Build the model; raises `SpecUserError` for an unknown name."""
        self.model = model_of(self.policy.name, self.law)
        unknown = [name for name in self.law.hidden if name.partition("(")[0] not in ACTION_NAMES]
        if unknown:
            raise SpecUserError(not_known("action", unknown[0], ACTION_NAMES))
        self.checker = Checker(self.model, frozenset(self.law.hidden))
        self.reader = reader_of(self.model)
        self.always = tuple(item for item in properties_of(self.model) if item.kind == "always")
        self._is_well = question(self.model, all_of(item.here for item in self.always))
        self._questions = [(item.name, question(self.model, item.here)) for item in self.always]
        conditions: dict[str, list[Bool]] = {}
        for item in self.always:
            for label, condition in item.closing:
                conditions.setdefault(label, []).append(condition)
                self.closing.setdefault(label, []).append((item.name, question(self.model, condition)))
        self._may_break = {label: question(self.model, any_of(found)) for label, found in conditions.items()}

    def broken_in(self, state: Packed) -> frozenset[str]:
        """The properties that a state breaks, with a cache."""
        found = self._broken.get(state)
        if found is None:
            if len(self._broken) >= KNOWN_MAX:
                self._broken.clear()
            well = self._is_well(state)
            found = NOTHING if well else frozenset(name for name, ask in self._questions if not ask(state))
            self._broken[state] = found
        return found

    def broken_by(self, label: str, state: Packed) -> frozenset[str]:
        """The properties that a step from a state breaks."""
        may_break = self._may_break.get(label)
        if may_break is None or not may_break(state):
            return NOTHING
        return frozenset(name for name, ask in self.closing[label] if ask(state))


@define
class Session:
    """One run. Invariant: `moment_ns` is the time of the last step, and times increase."""

    name: str
    beside: CompiledSpecification
    history: HistoryFile | None = None
    steps: int = 0
    refused_count: int = 0
    broken_ever: set[str] = field(factory=set)
    """The properties that all possible runs broke."""
    doubtful: set[str] = field(factory=set)
    """The properties that a possible run broke; later steps may have ruled that run out."""
    broken: frozenset[str] = frozenset()
    """The properties that the last step broke; empty if it was rejected."""
    is_lost: bool = False
    """Whether a step was rejected or could not be followed, so that the state is unknown."""
    moment_ns: int = 0
    _follower: Follower = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Start in the model's initial state."""
        self._follower = Follower(self.beside.checker)

    def did(self, step: str, told: Event) -> tuple[Refused, ...]:
        """Take a step; returns the reasons if the specification rejects it.

        Raises `SpecUserError` for an unknown step, and `EngineLimitError` for too many possible states.
        """
        if step not in self.beside.reader.by_name:
            raise SpecUserError(not_known("step", step, self.beside.reader.by_name))
        seen = self._seen(told)
        try:
            refusals = self._follower.did(seen)
        except EngineLimitError:
            self.is_lost = True
            raise
        self.moment_ns = told.after_ns
        self.steps += 1
        self.refused_count += bool(refusals)
        self.is_lost |= bool(refusals)
        if self.history is not None:
            self.history.put(told)
        self.broken = frozenset() if refusals else self._broken()
        return tuple(self._refused(each) for each in refusals[:REASONS_MAX])

    def _seen(self, told: Event) -> SeenStep:
        return self.beside.reader.step(
            {
                "event": told.event,
                "actors": told.actors,
                "queue": told.queue,
                "queue_offset": told.queue_offset,
                "visible_end": told.visible_end,
                "offset": told.offset,
                "after_ns": told.after_ns,
                "before_ns": told.before_ns,
            }
        )

    def _refused(self, refusal: Refusal) -> Refused:
        wrong = [f"{name} is {value}, not {seen}" for name, value, seen in refusal.contradicted]
        return Refused(refusal.action, contradiction(self.beside.model, refusal), wrong)

    def next_moment_ns(self) -> int:
        """A time after every earlier step."""
        return max(time.time_ns(), self.moment_ns + 1)

    def _broken(self) -> frozenset[str]:
        """The properties that the last step, or the state after it, breaks; updates `doubtful`."""
        follower = self._follower
        after = [*map(self.beside.broken_in, follower.possible)]
        by = [self.beside.broken_by(*step) for step in follower.taken]
        found = frozenset.intersection(*after) | frozenset.intersection(*by)
        self.broken_ever |= found
        if self.beside.checker.unseen or len(after) > 1 or len(by) > 1:
            between = map(self.beside.broken_in, follower.between)
            self.doubtful.update(*filter(None, (*after, *by, *between)))
        return found

    def verdicts(self) -> dict[str, str]:
        """The verdict of each property: `broken` by all possible runs, `unknown` or `holds`.

        It is unknown if one possible run broke it, or if the state is unknown.
        """
        return {item.name: self._verdict(item.name) for item in self.beside.always}

    def _verdict(self, name: str) -> str:
        if name in self.broken_ever:
            return "broken"
        return "unknown" if self.is_lost or name in self.doubtful else "holds"

    def may(self) -> tuple[str, ...]:
        """The actions that the specification allows next."""
        return self._follower.may()

    @property
    def possible_count(self) -> int:
        """The number of possible states."""
        return len(self._follower.possible)

    def states(self) -> list[dict[str, Any]]:
        """Some possible states, with each variable's value or label."""
        variables = self.beside.model.variables
        shown = list(self._follower.possible)[:STATES_SHOWN_MAX]
        return [
            {
                each.name: bool(value) if each.truth else each.labels[value] if each.labels else value
                for each, value in zip(variables, state, strict=True)
            }
            for state in shown
        ]

    def close(self) -> str:
        """End the history and return its directory; empty without a history."""
        return "" if self.history is None else self.history.close(self.next_moment_ns())


_encoder = msgspec.json.Encoder()


@define
class HistoryFile:
    """Writes a history of steps. Invariant: `_sequence` is the number of the next event."""

    directory: Path
    source: str
    _part: IO[bytes] = field(init=False)
    _buffer: bytearray = field(factory=bytearray)
    _sequence: int = 0

    @classmethod
    def begin(cls, directory: Path, source: str, beside: CompiledSpecification) -> HistoryFile:
        """Create the directory and its `meta.json`; raises `OutputError` if it exists or cannot be created."""
        made = cls(directory, source)
        try:
            directory.mkdir(parents=True)
            clock = Source(name=source, clock="unix")
            meta = Meta(format_version=FORMAT_VERSION, sources=[clock], policy=beside.policy.name, law=beside.law)
            (directory / META_FILE).write_bytes(_encoder.encode(meta))
            made._part = (directory / "part-00000.ndjson").open("wb")
        except OSError as error:
            raise OutputError(f"cannot write {directory}: {error.strerror}; choose a new directory") from error
        now = time.time_ns()
        made.put(Event(event="source_started", after_ns=now, before_ns=now, source=source, sequence=0))
        return made

    def put(self, event: Event) -> None:
        """Add an event, numbered as the next one."""
        numbered = msgspec.structs.replace(event, source=self.source, sequence=self._sequence)
        self._sequence += 1
        self._buffer += _encoder.encode(numbered)
        self._buffer += b"\n"
        if len(self._buffer) >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        try:
            self._part.write(self._buffer)
            self._part.flush()
        except OSError as error:
            raise OutputError(f"cannot write {self.directory}: {error.strerror}; use another disk or path") from error
        self._buffer.clear()

    def close(self, now_ns: int) -> str:
        """Write the last event and the rest of the buffer; returns the directory."""
        self.put(Event(event="source_stopped", after_ns=now_ns, before_ns=now_ns, source=self.source, sequence=0))
        self._write()
        self._part.close()
        return str(self.directory)


@define
class Total:
    """The summary of all closed sessions."""

    steps: int = 0
    refused: int = 0
    broken: set[str] = field(factory=set)
    unknown: set[str] = field(factory=set)
    """Properties that are undecided in a session."""
    mistakes: int = 0
    """Lines that got an error."""

    def add(self, session: Session) -> None:
        """Count a session."""
        self.steps += session.steps
        self.refused += session.refused_count
        verdicts = session.verdicts()
        self.broken.update(name for name, verdict in verdicts.items() if verdict == "broken")
        self.unknown.update(name for name, verdict in verdicts.items() if verdict == "unknown")

    def fields(self) -> dict[str, Any]:
        """The summary as JSON fields."""
        return {
            "steps": self.steps,
            "refused": self.refused,
            "broken": sorted(self.broken),
            "unknown": sorted(self.unknown),
            "mistakes": self.mistakes,
        }

    def told(self) -> str:
        """The summary as one line; unknown properties and errors only if there are any."""
        parts = [f"{self.steps} steps, {self.refused} rejected", f"violated properties: {_names(self.broken)}"]
        if self.unknown:
            parts.append(f"unknown: {_names(self.unknown)}")
        if self.mistakes:
            parts.append(f"invalid lines: {self.mistakes}")
        return "; ".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
