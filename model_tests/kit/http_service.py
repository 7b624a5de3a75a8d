"""The services of `services` behind HTTP, as `http.server` serves them, and their subject, which is a plain client.

POST   /queues/NAME                          publish the body
GET    /queues/NAME?offset=&timeout_ms=&id=  poll: 200 with one chunk of base64 a message, or 204
DELETE /polls/ID                             cancel a poll
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from model_tests.kit.services import Feed, Poll

from longpoll_kit.subject import LongPollSubject, Polled

Handle = tuple[http.client.HTTPConnection, str, int]
"""A connection, the poll's id, and the offset that it asks for."""


class HttpService:
    """A service of `services` on a separate port, until `stop`."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.polls: dict[str, Poll] = {}
        handler = type("Handler", (Handler,), {"service": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class Handler(BaseHTTPRequestHandler):
    """One request."""

    service: HttpService

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.service.feed.publish(self.path.removeprefix("/queues/"), body)
        self.answer([])

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        asked = dict(parse_qsl(url.query))
        poll = Poll(url.path.removeprefix("/queues/"), int(asked["offset"]), int(asked["timeout_ms"]))
        poll = self.service.polls.setdefault(asked["id"], poll)
        self.answer(self.service.feed.poll(poll))

    def do_DELETE(self) -> None:
        """Cancel; a poll that comes only later is cancelled when it comes."""
        poll = self.service.polls.setdefault(self.path.removeprefix("/polls/"), Poll("", 0, 0))
        self.service.feed.cancel(poll)
        self.answer([])

    def answer(self, bodies: list[bytes]) -> None:
        content = json.dumps([base64.b64encode(body).decode() for body in bodies]).encode() if bodies else b""
        self.send_response(200 if bodies else 204)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
        """Say nothing."""


class HttpSubject(LongPollSubject):
    """A service behind HTTP, seen by its clients."""

    ids = itertools.count()
    """Of polls. No two subjects of a service share one: a poll whose id was cancelled before is over at once."""

    def __init__(self, service: HttpService) -> None:
        self.port = service.port
        self.semantics = service.feed.semantics

    def send(self, method: str, path: str, body: bytes | None = None) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body)
        return connection

    def call(self, method: str, path: str, body: bytes | None = None) -> None:
        """Send a request and have it answered."""
        connection = self.send(method, path, body)
        assert connection.getresponse().status == 204
        connection.close()

    def publish(self, queue: str, body: bytes) -> None:
        self.call("POST", f"/queues/{queue}", body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Handle:
        number, offset = f"{next(self.ids)}", position or 0
        asked = f"/queues/{queue}?offset={offset}&timeout_ms={timeout_ms}&id={number}"
        return self.send("GET", asked), number, offset

    def finish_poll(self, handle: Handle) -> Polled:
        connection, _number, offset = handle
        content = connection.getresponse().read()
        connection.close()
        bodies = [base64.b64decode(each) for each in json.loads(content)] if content else []
        return Polled(bodies, position_next=offset + len(bodies))

    def cancel(self, handle: Handle) -> None:
        self.call("DELETE", f"/polls/{handle[1]}")
