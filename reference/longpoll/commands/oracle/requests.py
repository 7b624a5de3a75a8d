"""The oracle's requests and answers, one JSON object per line, and their limits.

| `do`         | further fields                             | the answer has                                  |
|--------------|--------------------------------------------|-------------------------------------------------|
| `did`        | `step`; `request` or `actors`; what it saw | `legal`, `possible`, `broken`; `why` it is not  |
| `may`        |                                            | `may`                                           |
| `state`      |                                            | `possible`, `states`                            |
| `properties` |                                            | `properties`                                    |
| `close`      |                                            | `steps`, `refused`, `history`                   |

A step's observations are `queue`, `queue_offset`, `visible_end` and `offset`, as in a history of steps. A request may
name its `session`, which its first request opens, and have an `id`, a number or a text, which the answer repeats. An
invalid request gets an `error` and changes no session.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll.commands.oracle.session import CompiledSpecification, HistoryFile, Session, Total
from longpoll_spec.errors import UserError, not_known
from longpoll_spec.history import Event
from longpoll_spec.tables import with_table

LINE_MAX: Final = 1 << 16
"""Most bytes of a line; a longer one gets an error and is skipped."""
SESSIONS_MAX: Final = 10_000
"""Most open sessions of all clients."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of sessions, which are also directory names."""
FIRST: Final = "main"
"""The session of a request without one."""
ACTORS_MAX: Final = 64
"""Most characters of `actors`."""
NUMBER_MAX: Final = 1 << 60
REQUESTS: Final = ("did", "may", "state", "properties", "close")


class RequestError(UserError):
    """A line is not a valid request; the text says what to write."""


@with_table
class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One decoded line."""

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
_encoder = msgspec.json.Encoder()


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
        """The answer to a skipped line."""
        self.total.mistakes += 1
        return _encoder.encode({"error": f"a line must have at most {LINE_MAX} bytes"})


def _request(line: bytes) -> Request:
    """Decode a line; raises `RequestError`."""
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
    """The step as an event of a history; raises `RequestError` if a history cannot represent it."""
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
