"""A long poll over HTTP, from a description of its requests and answers in a TOML file."""

from __future__ import annotations

import base64
import http.client
import json
from pathlib import Path
from typing import Annotated, Any, Final, Literal
from urllib.parse import quote, urlsplit

import msgspec

from longpoll_kit.errors import ServiceError, SubjectError
from longpoll_kit.subject import LongPollSubject, MessageOrder, Polled, Semantics
from longpoll_kit.subjects.addresses import closed_on_error, local_process

Request = Annotated[str, msgspec.Meta(pattern="^[A-Z]+ /")]
"""The method and path of a request, separated by a space."""
ACCEPTED: Final = range(200, 300)
SHOWN_MAX: Final = 200


class Contract(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The attributes of `longpoll.LongPollSubject` that the file may declare."""

    semantics: Semantics = "offsets"
    order: MessageOrder = "total"
    redelivery_ms: int | None = None
    visible_ms: int = 0
    serves_longest_waiting: bool = False
    wait_unit_ms: int = 1
    wait_min_ms: int = 0
    wait_max_ms: int | None = None
    client_ends_wait: bool = False
    polls_max: int | None = None
    body_max: int | None = None


class Service(Contract, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to publish and to poll; the file has these names."""

    publish: Request
    """The request that publishes, such as `POST /{queue}`; its body is the message."""
    poll: Request
    """The request that polls, such as `GET /{queue}?offset={position}&timeout_ms={wait_ms}`; `{wait_s}`: seconds."""
    first: str = "0"
    """The position of a queue's first message."""
    messages: str = ""
    """The path of the message list in the JSON answer, such as `result.items`; empty if the answer is the list."""
    body: str = ""
    """The path of the body in a message; empty if the message is the body."""
    position: str = ""
    """The path of the next position in the answer; if empty, each message advances the position by 1."""
    encoding: Literal["text", "base64"] = "text"
    """The encoding of each body in the answer."""
    nothing: tuple[int, ...] = (204, 304)
    """The HTTP status codes of answers without messages."""


def read(file: Path) -> Service:
    """Read a description; raises SubjectError for a mistake in it, OSError."""
    try:
        return msgspec.toml.decode(file.read_bytes(), type=Service)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SubjectError(f"{file}: {error}; docs/kit.md describes the file") from None


class HttpSubject(LongPollSubject):
    """The service at a URL; each request has its own connection."""

    gone = (OSError, http.client.HTTPException)

    def __init__(self, url: str, service: Service) -> None:
        split = urlsplit(url)
        kind = http.client.HTTPSConnection if split.scheme == "https" else http.client.HTTPConnection
        self._url, self._kind, self._host, self._prefix = url, kind, split.netloc, split.path.rstrip("/")
        self._service = service
        port = split.port or (443 if split.scheme == "https" else 80)
        self.process_id = local_process(split.hostname, port)
        vars(self).update({name: getattr(service, name) for name in Contract.__struct_fields__})
        connection = kind(split.netloc)
        connection.connect()
        connection.close()

    def publish(self, queue: str, body: bytes) -> None:
        """Send a message; raises ServiceError if it is refused."""
        self._read(self._sent(self._service.publish, body, queue=queue))

    def publish_keyed(self, queue: str, key: str, body: bytes) -> None:
        """Send a message with a key, where the template has `{key}`."""
        self._read(self._sent(self._service.publish, body, queue=queue, key=key))

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[http.client.HTTPConnection, Any]:
        """Send a poll."""
        at = self._service.first if position is None else position
        named = {"queue": queue, "position": str(at), "wait_ms": str(timeout_ms), "wait_s": f"{timeout_ms / 1000:g}"}
        return self._sent(self._service.poll, None, **named), at

    def finish_poll(self, handle: tuple[http.client.HTTPConnection, Any]) -> Polled:
        """Read the answer."""
        connection, at = handle
        content = self._read(connection)
        if not content:
            return Polled()
        answer = json.loads(content)
        messages = _found(answer, self._service.messages) or []
        bodies = [self._decoded(_found(message, self._service.body)) for message in messages]
        if self.semantics == "consuming" or not bodies:
            return Polled(bodies)
        told = self._service.position
        return Polled(bodies, position_next=_found(answer, told) if told else int(at) + len(bodies))

    def _decoded(self, body: str) -> bytes:
        return base64.b64decode(body) if self._service.encoding == "base64" else body.encode()

    def _sent(self, template: str, body: bytes | None, **values: str) -> http.client.HTTPConnection:
        method, _, path = template.partition(" ")
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        connection = self._kind(self._host)
        with closed_on_error(connection):
            connection.request(method, self._prefix + path, body)
        return connection

    def _read(self, connection: http.client.HTTPConnection) -> bytes:
        """Return the content of an answer; empty for an answer without messages."""
        try:
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status in self._service.nothing:
            return b""
        if answer.status not in ACCEPTED:
            raise ServiceError(
                f"{self._url} answered {answer.status} {answer.reason}: {content[:SHOWN_MAX]!r}; list a "
                "status that means no messages in the file's `nothing`"
            )
        return content


def _found(told: Any, where: str) -> Any:
    """The value at a path of names, such as `result.items`."""
    for name in where.split(".") if where else ():
        told = told[name]
    return told
