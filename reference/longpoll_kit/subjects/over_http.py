"""A long-polling service over HTTP, whose requests and answers `http_description` describes."""

from __future__ import annotations

import base64
import http.client
import json
from typing import Any, Final
from urllib.parse import quote, urlsplit

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import closed_on_error, local_process
from longpoll_kit.subjects.http_description import Contract, Service

ACCEPTED: Final = range(200, 300)
SHOWN_MAX: Final = 200
PUBLISH_HINT: Final = "if the service takes JSON, give the name of the message in the file's `publish_body`"
ANSWER_HINT: Final = "name the places of these values in the file's `messages`, `body` and `position`"
POLL_HINT: Final = "list a status that means no messages in the file's `nothing`"


class HttpSubject(LongPollSubject):
    """The service at a URL. Each request uses its own connection."""

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
        """Send a message. Raises ServiceError if the service refuses the message."""
        self.publish_keyed(queue, "", body)

    def publish_keyed(self, queue: str, key: str, body: bytes) -> None:
        """Send a message with a key. The request template contains `{key}`."""
        name = self._service.publish_body
        sent = json.dumps({name: self._encoded(body)}).encode() if name else body
        self._read(self._sent(self._service.publish, sent, queue=queue, key=key), PUBLISH_HINT)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[http.client.HTTPConnection, Any]:
        """Send a poll."""
        at = self._service.first if position is None else position
        named = {"queue": queue, "position": str(at), "wait_ms": str(timeout_ms), "wait_s": f"{timeout_ms / 1000:g}"}
        return self._sent(self._service.poll, None, **named), at

    def finish_poll(self, handle: tuple[http.client.HTTPConnection, Any]) -> Polled:
        """Read the answer."""
        connection, at = handle
        content = self._read(connection, POLL_HINT)
        if not content:
            return Polled()
        try:
            return self._polled(json.loads(content), at)
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            what = f"{self._url} answered a poll with {content[:SHOWN_MAX]!r}, which this file does not describe"
            raise ServiceError(f"{what} ({type(error).__name__}: {error}); {ANSWER_HINT}") from error

    def _polled(self, answer: Any, at: Any) -> Polled:
        messages = _found(answer, self._service.messages) or []
        bodies = [self._decoded(_found(message, self._service.body)) for message in messages]
        if self.semantics == "consuming" or not bodies:
            return Polled(bodies)
        told = self._service.position
        return Polled(bodies, position_next=_found(answer, told) if told else int(at) + len(bodies))

    def _encoded(self, body: bytes) -> str:
        return base64.b64encode(body).decode() if self._service.encoding == "base64" else body.decode()

    def _decoded(self, body: str) -> bytes:
        return base64.b64decode(body) if self._service.encoding == "base64" else body.encode()

    def _sent(self, template: str, body: bytes | None, **values: str) -> http.client.HTTPConnection:
        method, _, path = template.partition(" ")
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", quote(value, safe=""))
        connection = self._kind(self._host)
        with closed_on_error(connection):
            kind = {"Content-Type": "application/json"} if body and self._service.publish_body else {}
            connection.request(method, self._prefix + path, body, {**kind, **self._service.headers})
        return connection

    def _read(self, connection: http.client.HTTPConnection, hint: str) -> bytes:
        """Return the content of a response; empty for a response without messages."""
        try:
            answer = connection.getresponse()
            content = answer.read()
        finally:
            connection.close()
        if answer.status in self._service.nothing:
            return b""
        if answer.status not in ACCEPTED:
            what = f"{self._url} answered {answer.status} {answer.reason}: {content[:SHOWN_MAX]!r}"
            raise ServiceError(f"{what}; {hint}")
        return content


def _found(told: Any, where: str) -> Any:
    """Return the value at a path of names, such as `result.items`."""
    for name in where.split(".") if where else ():
        told = told[name]
    return told
