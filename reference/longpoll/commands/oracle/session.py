"""The oracle's requests and answers, one JSON object per line, and the sessions that check them.

A session checks one run against the specification and writes its history. A rejected step does not change the session's
states, but it goes into the history too, so that the judge finds it. An invalid request gets an `error` and changes no
session.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any, Final

import msgspec
from attrs import define, field, frozen

from longpoll_judge.step_reader import StepReader, contradiction, model_of, reader_of
from longpoll_spec.engines.conform import Checker, Follower, Refusal
from longpoll_spec.engines.python import Packed, Question, question
from longpoll_spec.errors import EngineLimitError, OutputError, SpecUserError, UserError, not_known
from longpoll_spec.history import FORMAT_VERSION, META_FILE, Event, Law, Meta, Source
from longpoll_spec.model import ACTION_NAMES, Model, Property, SeenStep
from longpoll_spec.policy import Policy
from longpoll_spec.specification import properties_of
from longpoll_spec.tables import with_table
from longpoll_spec.terms import Bool, all_of, any_of

REASONS_MAX: Final = 5
"""A rejection gives the reasons for at most this many states, because hidden steps may lead to thousands."""
STATES_SHOWN_MAX: Final = 20
"""The maximum number of states in one answer."""
KNOWN_MAX: Final = 50_000
"""The maximum number of states whose violated properties are cached."""
NOTHING: Final = frozenset[str]()
BATCH_BYTES: Final = 1 << 18
"""The bytes of events that are written to a history at once."""


@frozen
class Refused:
    """Why the specification rejects a step in one of the possible states."""

    action: str
    false: Sequence[str]
    """The false parts of the step's guard, in words."""
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
    closing: dict[str, list[tuple[str, Bool]]] = field(factory=dict)
    """Maps a step's label to pairs of a property and a condition: the step violates the property if the condition is
    true in the state before the step."""
    _is_well: Bool = field(init=False)
    _broken: dict[Packed, frozenset[str]] = field(factory=dict)
    _may_break: dict[str, Bool] = field(factory=dict)
    """Maps a step's label to the disjunction of the conditions in `closing`. The disjunction is false for most steps.
    """
    _questions: dict[Bool, Question] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Build the model; raises `SpecUserError` for an unknown name."""
        self.model = model_of(self.policy.name, self.law)
        unknown = [name for name in self.law.hidden if name.partition("(")[0] not in ACTION_NAMES]
        if unknown:
            raise SpecUserError(not_known("action", unknown[0], ACTION_NAMES))
        self.checker = Checker(self.model, frozenset(self.law.hidden))
        self.reader = reader_of(self.model)
        self.always = tuple(item for item in properties_of(self.model) if item.kind == "always")
        self._is_well = all_of(item.here for item in self.always)
        for item in self.always:
            for label, condition in item.closing:
                self.closing.setdefault(label, []).append((item.name, condition))
        self._may_break = {label: any_of(condition for _, condition in found) for label, found in self.closing.items()}

    def _holds(self, term: Bool, state: Packed) -> bool:
        """Whether a term is true in a state. A term is compiled at its first use, because most terms are never used."""
        ask = self._questions.get(term)
        if ask is None:
            ask = self._questions[term] = question(self.model, term)
        return ask(state)

    def broken_in(self, state: Packed) -> frozenset[str]:
        """Return the properties that a state violates, from a cache if possible."""
        found = self._broken.get(state)
        if found is None:
            if len(self._broken) >= KNOWN_MAX:
                self._broken.clear()
            wrong = () if self._holds(self._is_well, state) else self.always
            found = frozenset(item.name for item in wrong if not self._holds(item.here, state))
            self._broken[state] = found
        return found

    def broken_by(self, label: str, state: Packed) -> frozenset[str]:
        """Return the properties that a step from a state violates."""
        may_break = self._may_break.get(label)
        if may_break is None or not self._holds(may_break, state):
            return NOTHING
        return frozenset(name for name, condition in self.closing[label] if self._holds(condition, state))


@define
class Session:
    """One run. Invariant: `moment_ns` is the time of the last step, and times increase."""

    name: str
    beside: CompiledSpecification
    history: HistoryFile | None = None
    steps: int = 0
    refused_count: int = 0
    broken_ever: set[str] = field(factory=set)
    """The properties that all possible runs violated."""
    doubtful: set[str] = field(factory=set)
    """The properties that a possible run violated; later steps may have ruled out that run."""
    broken: frozenset[str] = frozenset()
    """The properties that the last step violated; empty if the step was rejected."""
    is_lost: bool = False
    """Whether a step was rejected or could not be followed, so that the state is unknown."""
    moment_ns: int = 0
    _follower: Follower = field(init=False)

    def __attrs_post_init__(self) -> None:
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
        """Return the properties that the last step, or the state after it, violates; updates `doubtful`."""
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

        A verdict is `unknown` if only some possible run violated the property, or if the state is unknown.
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
        """End the history and return its directory; the text is empty if no history is recorded."""
        return "" if self.history is None else self.history.close(self.next_moment_ns())


_encoder = msgspec.json.Encoder()


@define
class HistoryFile:
    """Writes the reported steps into a new history, which the judge can read.

    Invariant: `_sequence` is the number of the next event.
    """

    directory: Path
    source: str
    _part: IO[bytes] = field(init=False)
    _buffer: bytearray = field(factory=bytearray)
    _sequence: int = 0

    @classmethod
    def begin(cls, directory: Path, source: str, beside: CompiledSpecification) -> HistoryFile:
        """Create the directory and its `meta.json`; raises `OutputError` if that fails or the directory exists."""
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
        """Add an event with the next number."""
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
    """The number of lines that got an error."""

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
        """Return the summary as one line, with unknown properties and errors only if there are any."""
        parts = [f"{self.steps} steps, {self.refused} rejected", f"violated properties: {_names(self.broken)}"]
        if self.unknown:
            parts.append(f"unknown: {_names(self.unknown)}")
        if self.mistakes:
            parts.append(f"invalid lines: {self.mistakes}")
        return "; ".join(parts)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


LINE_MAX: Final = 1 << 16
"""The longest line, in bytes; a longer line gets an error and is skipped."""
SESSIONS_MAX: Final = 10_000
"""The maximum number of open sessions of all clients together."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of sessions, which are also directory names."""
FIRST: Final = "main"
"""The session of a request that names no session."""
ACTORS_MAX: Final = 64
"""The maximum length of a request's `actors`, in characters."""
NUMBER_MAX: Final = 1 << 60
REQUESTS: Final = ("did", "may", "state", "properties", "close")


class RequestError(UserError):
    """A line is not a valid request. The message describes a valid request."""


@with_table
class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A decoded line of the session's input."""

    do: str
    session: str = FIRST
    id: int | str | None = None
    step: str = ""
    request: int | None = None
    actors: str = ""
    queue: int = -1
    queue_offset: int = -1
    visible_end: int = -1
    offset: int = -1


_decoder = msgspec.json.Decoder(Request)


@define
class Oracle:
    """Answers lines. Invariant: `sessions` contains the open sessions by name."""

    beside: CompiledSpecification
    histories: Path | None = None
    """The directory of the sessions' histories; None to record none."""
    sessions: dict[str, Session] = field(factory=dict)
    total: Total = field(factory=Total)

    def answer(self, line: bytes) -> bytes:
        """The answer to a line, without a line feed."""
        request: Request | None = None
        try:
            request = _request(line)
            found: dict[str, Any] = self._answered(request)
        except UserError as error:
            self.total.mistakes += 1
            found = {"error": str(error)}
        if request is not None and request.id is not None:
            found["id"] = request.id
        return _encoder.encode(found)

    def _answered(self, request: Request) -> dict[str, Any]:
        if request.do not in REQUESTS:
            raise RequestError(not_known("request", request.do, REQUESTS))
        session = self.sessions.get(request.session) or self._opened(request.session)
        match request.do:
            case "did":
                return _did(session, request)
            case "may":
                return {"may": session.may()}
            case "state":
                return {"possible": session.possible_count, "states": session.states()}
            case "properties":
                return {"properties": session.verdicts()}
            case _:
                return self._closed(session)

    def _opened(self, name: str) -> Session:
        if NAME.fullmatch(name) is None:
            raise RequestError("a session's name must have 1 to 64 letters and digits, and after the first also _ . -")
        if len(self.sessions) >= SESSIONS_MAX:
            raise RequestError(f"the limit of {SESSIONS_MAX} open sessions is reached; close one")
        history = None if self.histories is None else HistoryFile.begin(self.histories / name, name, self.beside)
        self.sessions[name] = Session(name, self.beside, history)
        return self.sessions[name]

    def _closed(self, session: Session) -> dict[str, Any]:
        del self.sessions[session.name]
        self.total.add(session)
        history = session.close()
        told = {"history": history} if history else {}
        return {"steps": session.steps, "refused": session.refused_count, **told}

    def close(self) -> None:
        """Close all open sessions."""
        while self.sessions:
            self._closed(next(iter(self.sessions.values())))

    def too_long(self) -> bytes:
        """Return the answer to a line that is too long."""
        self.total.mistakes += 1
        return _encoder.encode({"error": f"a line must have at most {LINE_MAX} bytes"})


def _request(line: bytes) -> Request:
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"this is not a request: {error}; write, for example, {_EXAMPLE}") from None


_EXAMPLE: Final = '{"do": "did", "step": "hold", "request": 0}'


def _did(session: Session, request: Request) -> dict[str, Any]:
    refused = session.did(request.step, _event(session, request))
    found: dict[str, Any] = {
        "legal": not refused,
        "possible": session.possible_count,
        "broken": sorted(session.broken),
    }
    if refused:
        found["why"] = [
            {"action": each.action, "false": each.false}
            | ({"contradicted": each.contradicted} if each.contradicted else {})
            for each in refused
        ]
    return found


def _event(session: Session, request: Request) -> Event:
    """Convert the step to an event of a history; raises `RequestError` if a history cannot represent it."""
    actors = request.actors if request.request is None else str(request.request)
    if len(actors) > ACTORS_MAX or (request.request is not None and request.actors):
        raise RequestError(f"write either `request`, a number, or `actors`, with at most {ACTORS_MAX} characters")
    numbers = (request.queue, request.queue_offset, request.visible_end, request.offset)
    if any(not -1 <= number < NUMBER_MAX for number in numbers):
        raise RequestError("queues and offsets must be numbers from 0 to 2^60 - 1")
    now = session.next_moment_ns()
    return Event(
        event=request.step,
        after_ns=now,
        before_ns=now,
        source=session.name,
        sequence=0,
        actors=actors,
        queue=request.queue,
        queue_offset=request.queue_offset,
        visible_end=request.visible_end,
        offset=request.offset,
    )
