"""One session: the law beside one run, and the history that is left of it.

A step that the law refuses is written to the history like any other, so that a judge finds it too; the session stays
where it was. Leaves out the lines (`requests`) and where they come from (`doors`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from attrs import define, field, frozen

from longpoll_judge.rules.law_steps import StepReader, false_told, model_of, reader_of
from longpoll_spec.engines.conform import Checker, Follower, Refusal
from longpoll_spec.engines.python.compile import Packed, Question, question
from longpoll_spec.errors import EngineLimitError, OutputError, SpecUserError, not_known
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Law, Meta, Source
from longpoll_spec.law import properties_of
from longpoll_spec.model import ACTION_NAMES, Model, Property, SeenStep
from longpoll_spec.policy import Policy
from longpoll_spec.terms import Bool, all_of, any_of

REASONS_MAX: Final = 5
"""Most states of which a refusal is told; of hidden steps there may be thousands."""
STATES_SHOWN_MAX: Final = 20
"""Most states that are shown at once."""
KNOWN_MAX: Final = 50_000
"""Most states of which is remembered what they break."""
NOTHING: Final = frozenset[str]()
BATCH_BYTES: Final = 1 << 18
"""Of events, before they are written to a history."""


@frozen
class Refused:
    """A step that the law does not allow, in one of the states in which the run may be."""

    action: str
    false: Sequence[str]
    """The parts of its guard that are false, in words."""
    contradicted: Sequence[str]
    """What was told of the state after it and is not so."""


@define
class LawBeside:
    """What all sessions share: the law of one policy, compiled as far as it was asked for."""

    policy: Policy
    law: Law
    model: Model = field(init=False)
    checker: Checker = field(init=False)
    reader: StepReader = field(init=False)
    always: tuple[Property, ...] = field(init=False)
    closing: dict[str, list[tuple[str, Question]]] = field(factory=dict)
    """Label -> properties that the step may break, each with what is true of the state before it then."""
    _is_well: Question = field(init=False)
    _questions: list[tuple[str, Question]] = field(init=False)
    _broken: dict[Packed, frozenset[str]] = field(factory=dict)
    _may_break: dict[str, Question] = field(factory=dict)
    """Label -> whether one of `closing` is true: most steps break nothing, and are asked one question."""

    def __attrs_post_init__(self) -> None:
        """Put the law together; raises `SpecUserError` where there is none such."""
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
        """The properties that a state breaks, remembered for the states that came last."""
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
    """One run. Invariant: `moment_ns` is that of the last step, and every later one is greater."""

    name: str
    beside: LawBeside
    history: HistoryFile | None = None
    steps: int = 0
    refused_count: int = 0
    broken_ever: set[str] = field(factory=set)
    """The properties that the run broke, whichever of the possible runs it is."""
    doubtful: set[str] = field(factory=set)
    """The properties that one of the possible runs broke, and some that later steps ruled out may be among these."""
    broken: frozenset[str] = frozenset()
    """What the last step broke; nothing if it was refused."""
    is_lost: bool = False
    """Whether a step was refused, or could not be followed: nobody knows in which state the run went on."""
    moment_ns: int = 0
    _follower: Follower = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Begin in the law's first state."""
        self._follower = Follower(self.beside.checker)

    def did(self, step: str, told: Event) -> tuple[Refused, ...]:
        """Take a step, or say why the law refuses it.

        Raises `SpecUserError` for a step that the law does not have, and `EngineLimitError` where more is possible than
        is followed.
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
        return Refused(refusal.action, false_told(self.beside.model, refusal), wrong)

    def next_moment_ns(self) -> int:
        """A moment after that of every step before."""
        return max(time.time_ns(), self.moment_ns + 1)

    def _broken(self) -> frozenset[str]:
        """The properties that the step just taken, or the state after it, breaks; what it may break is remembered."""
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
        """Each property: `broken` by the run so far, whichever it is, `unknown` or `holds`.

        It is unknown where one of the runs that were possible broke it, and where the run is lost.
        """
        return {item.name: self._verdict(item.name) for item in self.beside.always}

    def _verdict(self, name: str) -> str:
        if name in self.broken_ever:
            return "broken"
        return "unknown" if self.is_lost or name in self.doubtful else "holds"

    def may(self) -> tuple[str, ...]:
        """What may come next."""
        return self._follower.may()

    @property
    def possible_count(self) -> int:
        """In how many states the run may be."""
        return len(self._follower.possible)

    def states(self) -> list[dict[str, Any]]:
        """Some of the possible states, each variable with its value or the word for it."""
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
        """End the history, if one is written; its directory."""
        return "" if self.history is None else self.history.close(self.next_moment_ns())


_encoder = msgspec.json.Encoder()


@define
class HistoryFile:
    """A history of steps as it is written. Invariant: `_sequence` is the number of the next event."""

    directory: Path
    source: str
    _part: IO[bytes] = field(init=False)
    _buffer: bytearray = field(factory=bytearray)
    _sequence: int = 0

    @classmethod
    def begin(cls, directory: Path, source: str, beside: LawBeside) -> HistoryFile:
        """Make the directory and its `meta.json`; raises `OutputError` where that cannot be, or is there."""
        made = cls(directory, source)
        try:
            directory.mkdir(parents=True)
            clock = Source(name=source, clock="unix")
            meta = Meta(format_version=FORMAT_VERSION, sources=[clock], policy=beside.policy.name, law=beside.law)
            (directory / META_FILE).write_bytes(_encoder.encode(meta))
            made._part = (directory / "part-00000.ndjson").open("wb")
        except OSError as error:
            raise OutputError(f"cannot write {directory}: {error.strerror}") from error
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
            raise OutputError(f"cannot write {self.directory}: {error.strerror}") from error
        self._buffer.clear()

    def close(self, now_ns: int) -> str:
        """Write what is left, and the last event; the directory."""
        self.put(Event(event="source_stopped", after_ns=now_ns, before_ns=now_ns, source=self.source, sequence=0))
        self._write()
        self._part.close()
        return str(self.directory)


@define
class Total:
    """What is said of all sessions that are closed."""

    steps: int = 0
    refused: int = 0
    broken: set[str] = field(factory=set)
    unknown: set[str] = field(factory=set)
    """Properties of which a session does not know whether they are broken."""
    mistakes: int = 0
    """Lines that were answered with an error."""

    def add(self, session: Session) -> None:
        """Count a session."""
        self.steps += session.steps
        self.refused += session.refused_count
        verdicts = session.verdicts()
        self.broken.update(name for name, verdict in verdicts.items() if verdict == "broken")
        self.unknown.update(name for name, verdict in verdicts.items() if verdict == "unknown")

    def fields(self) -> dict[str, Any]:
        """It as an object."""
        return {
            "steps": self.steps,
            "refused": self.refused,
            "broken": sorted(self.broken),
            "unknown": sorted(self.unknown),
            "mistakes": self.mistakes,
        }

    def told(self) -> str:
        """It as a line; what is unknown and the mistakes only where there are any."""
        parts = [f"{self.steps} steps, {self.refused} refused", f"properties broken: {_names(self.broken)}"]
        if self.unknown:
            parts.append(f"unknown: {_names(self.unknown)}")
        if self.mistakes:
            parts.append(f"lines that were answered with an error: {self.mistakes}")
        return "; ".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
