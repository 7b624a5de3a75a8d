"""A line of JSON as a request, and its answer as another: what the oracle is asked, and its limits.

| `do`         | further fields                             | the answer has                                  |
|--------------|--------------------------------------------|-------------------------------------------------|
| `did`        | `step`; `request` or `actors`; what it saw | `legal`, `possible`, `broken`; `why` it is not  |
| `may`        |                                            | `may`                                           |
| `state`      |                                            | `possible`, `states`                            |
| `properties` |                                            | `properties`                                    |
| `close`      |                                            | `steps`, `refused`, `history`                   |

What a step saw is `queue`, `queue_offset`, `visible_end` and `offset`, as in a history of steps.
Each may have `session`, a name; the session begins where it is named first. `id`, a number or a text, comes back in the
answer. What cannot be answered has `error`, a sentence, and every session goes on as it was.

Leaves out where lines come from (`doors`) and what a session is (`session`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import msgspec
from attrs import define, field

from longpoll.commands.oracle.session import HistoryFile, LawBeside, Session, Total
from longpoll_spec.errors import UserError, not_known
from longpoll_spec.history import Event
from longpoll_spec.tables import with_table

LINE_MAX: Final = 1 << 16
"""Bytes of a line; a longer one is an error, and what follows is read as before."""
SESSIONS_MAX: Final = 10_000
"""Sessions at a time, of all that ask."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""Names of sessions, which are names of directories too."""
FIRST: Final = "main"
"""The session of a request that names none."""
ACTORS_MAX: Final = 64
"""Characters of `actors`."""
NUMBER_MAX: Final = 1 << 60
REQUESTS: Final = ("did", "may", "state", "properties", "close")


class RequestError(UserError):
    """A line asks for nothing that there is; the text says what to write."""


@with_table
class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line, read."""

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
    """Answers lines. Invariant: `sessions` has those that are open, by name."""

    beside: LawBeside
    histories: Path | None = None
    """Where each session leaves its history, in a directory of its name; None for none."""
    sessions: dict[str, Session] = field(factory=dict)
    total: Total = field(factory=Total)

    def answer(self, line: bytes) -> bytes:
        """The answer to a line, without its end."""
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
            raise RequestError("a session's name has 1 to 64 letters, digits, or any of _ . - after the first")
        if len(self.sessions) >= SESSIONS_MAX:
            raise RequestError(f"{SESSIONS_MAX} sessions are open, which is all there may be: close one")
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
        """Close every session that is open."""
        while self.sessions:
            self._closed(next(iter(self.sessions.values())))

    def too_long(self) -> bytes:
        """The answer to a line that is too long, which is not read."""
        self.total.mistakes += 1
        return _encoder.encode({"error": f"a line has at most {LINE_MAX} bytes"})


def _request(line: bytes) -> Request:
    """A line, read; raises `RequestError`."""
    try:
        return _decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise RequestError(f"this is no request: {error}; write for instance {_EXAMPLE}") from None


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
    """The step as an event of a history; raises `RequestError` for what a history cannot say."""
    actors = request.actors if request.request is None else str(request.request)
    if len(actors) > ACTORS_MAX or (request.request is not None and request.actors):
        raise RequestError(f"write either `request`, a number, or `actors`, at most {ACTORS_MAX} characters")
    numbers = (request.queue, request.queue_offset, request.visible_end, request.offset)
    if any(not -1 <= number < NUMBER_MAX for number in numbers):
        raise RequestError("a queue and offsets are numbers from 0 on, below 2 to the 60th")
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
