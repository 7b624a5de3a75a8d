"""A feed over HTTP with a lost wakeup: it looks, and then waits without looking again."""

import json
import threading
from collections import defaultdict
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler

from longpoll_kit.subject import LongPollSubject, Polled

QUEUES: dict[str, list[str]] = defaultdict(list)
WAITING: dict[str, list[threading.Event]] = defaultdict(list)


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        QUEUES[self.path].append(body)
        for event in WAITING.pop(self.path, []):
            event.set()
        self.answer([])

    def do_GET(self) -> None:
        path, offset, timeout_ms = self.path.split("?")
        if not QUEUES[path][int(offset) :]:
            event = threading.Event()
            event.wait(0.005)  # what a look into a database takes
            WAITING[path].append(event)
            event.wait(int(timeout_ms) / 1000)
        self.answer(QUEUES[path][int(offset) :])

    def answer(self, bodies: list[str]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(bodies).encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's
        pass


class Feed(LongPollSubject):
    semantics = "offsets"
    port = 0

    def publish(self, queue: str, body: bytes) -> None:
        self.finish_poll((self.request("POST", f"/{queue}", body), 0))

    def start_poll(self, queue: str, position: int | None, timeout_ms: int) -> tuple[HTTPConnection, int]:
        return self.request("GET", f"/{queue}?{position or 0}?{timeout_ms}"), position or 0

    def finish_poll(self, handle: tuple[HTTPConnection, int]) -> Polled:
        bodies = [body.encode() for body in json.loads(handle[0].getresponse().read())]
        return Polled(bodies, position_next=handle[1] + len(bodies))

    def request(self, method: str, path: str, body: bytes | None = None) -> HTTPConnection:
        connection = HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, body)
        return connection
