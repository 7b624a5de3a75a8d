"""A long-polling service in a few lines, in memory, and the faults that the kit must find in it.

`Feed` is read by offset and `TakeQueue` is consumed; each fault is one of them with one method written wrongly.
"""

from __future__ import annotations

import base64
import http.client
import itertools
import json
import shutil
import socket
import subprocess
import threading
import time
import weakref
from collections import defaultdict
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from attrs import define, field

from longpoll_kit.subject import LongPollSubject, Polled, Semantics

MESSAGES_MAX = 3
"""Most messages of one answer."""


@define(eq=False)
class Poll:
    """A poll that waits, or waited."""

    queue: str
    offset: int
    timeout_ms: int
    is_cancelled: bool = False
    woken: threading.Event = field(factory=threading.Event)
    received: float = field(factory=time.monotonic)

    def left_s(self) -> float:
        return self.received + self.timeout_ms / 1000 - time.monotonic()


class Feed:
    """Queues that are read by offset."""

    semantics: Semantics = "offsets"

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.queues: dict[str, list[bytes]] = defaultdict(list)
        self.polls: weakref.WeakSet[Poll] = weakref.WeakSet()

    def publish(self, queue: str, body: bytes) -> None:
        """Append a message and wake all waiting polls."""
        with self.changed:
            self.queues[queue].append(body)
            self.changed.notify_all()

    def poll(self, poll: Poll) -> list[bytes]:
        """The messages that there are for a poll, or will be by its deadline."""
        with self.changed:
            self.polls.add(poll)
            self.changed.wait_for(lambda: poll.is_cancelled or self.has_some(poll), poll.left_s())
            return [] if poll.is_cancelled else self.answer(poll)

    def has_some(self, poll: Poll) -> bool:
        """Whether a poll would be answered with messages; asked with the lock held, as is `answer`."""
        return len(self.queues[poll.queue]) > poll.offset

    def answer(self, poll: Poll) -> list[bytes]:
        return self.queues[poll.queue][poll.offset :][:MESSAGES_MAX]

    def cancel(self, poll: Poll) -> None:
        with self.changed:
            poll.is_cancelled = True
            self.changed.notify_all()

    def restart(self) -> None:
        for poll in list(self.polls):
            self.cancel(poll)


class TakeQueue(Feed):
    """Queues of which each message goes to one poll."""

    semantics: Semantics = "consuming"

    def has_some(self, poll: Poll) -> bool:
        """Whether anything is there to be taken."""
        return bool(self.queues[poll.queue])

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        taken, queue[:] = queue[:MESSAGES_MAX], queue[MESSAGES_MAX:]
        return taken


class LooksThenWaits(Feed):
    """The lost wakeup: a message between the look and the wait wakes no poll."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: dict[str, list[Poll]] = defaultdict(list)

    def publish(self, queue: str, body: bytes) -> None:
        """Append a message and wake all polls on the list."""
        self.queues[queue].append(body)
        for poll in self.waiting.pop(queue, []):
            poll.woken.set()

    def poll(self, poll: Poll) -> list[bytes]:
        """Look; if there is nothing, go on the list and wait."""
        if not self.has_some(poll):
            self.polls.add(poll)
            self.waiting[poll.queue].append(poll)
            poll.woken.wait(poll.left_s())
        return [] if poll.is_cancelled else self.answer(poll)

    def cancel(self, poll: Poll) -> None:
        poll.is_cancelled = True
        poll.woken.set()


class SlowToHold(LooksThenWaits):
    """The same where the way from the look to the list is long, as through a database."""

    def has_some(self, poll: Poll) -> bool:
        """Look, and take 5 ms to tell."""
        found = super().has_some(poll)
        poll.woken.wait(0.005)
        return found


class NotifiesThenAppends(LooksThenWaits):
    """The reverse: a poll is notified of a message that is not there yet."""

    def publish(self, queue: str, body: bytes) -> None:
        """Wake all polls on the list, then append."""
        for poll in self.waiting.pop(queue, []):
            poll.woken.set()
        self.queues[queue].append(body)

    def poll(self, poll: Poll) -> list[bytes]:
        """Wait again when it was woken for nothing; go on the list before the look."""
        self.polls.add(poll)
        self.waiting[poll.queue].append(poll)
        while not self.has_some(poll) and not poll.is_cancelled and poll.left_s() > 0:
            poll.woken.wait(poll.left_s())
            poll.woken.clear()
        return [] if poll.is_cancelled else self.answer(poll)


class RepeatsItself(Feed):
    """Every answer has its first message twice."""

    def answer(self, poll: Poll) -> list[bytes]:
        found = super().answer(poll)
        return found[:1] + found


class WakesOne(Feed):
    """A message wakes one of those that wait for it."""

    def publish(self, queue: str, body: bytes) -> None:
        """Append a message and wake one poll."""
        with self.changed:
            self.queues[queue].append(body)
            self.changed.notify()


class NeverWakes(Feed):
    """Polls look when they come and when their time is up."""

    def publish(self, queue: str, body: bytes) -> None:
        with self.changed:
            self.queues[queue].append(body)


class Late(Feed):
    """A poll waits for twice its time."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms *= 2
        return super().poll(poll)


class Early(Feed):
    """A poll waits for half its time."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms //= 2
        return super().poll(poll)


class GivesUpOnOthers(Feed):
    """Whatever is published ends every wait."""

    def poll(self, poll: Poll) -> list[bytes]:
        with self.changed:
            self.polls.add(poll)
            if not self.has_some(poll) and not poll.is_cancelled:
                self.changed.wait(poll.left_s())
            return [] if poll.is_cancelled else self.answer(poll)


class BeginsOneBefore(Feed):
    """The last message of an answer comes again."""

    def answer(self, poll: Poll) -> list[bytes]:
        return self.queues[poll.queue][max(poll.offset - 1, 0) :][:MESSAGES_MAX] if self.has_some(poll) else []


class LeavesOneOut(Feed):
    """Of a full answer one message is missing."""

    def answer(self, poll: Poll) -> list[bytes]:
        found = super().answer(poll)
        return [found[0], found[2]] if len(found) == MESSAGES_MAX else found


class MixesQueues(Feed):
    """Queues whose names end alike are one."""

    def publish(self, queue: str, body: bytes) -> None:
        super().publish(queue[:-1] + "0", body)

    def poll(self, poll: Poll) -> list[bytes]:
        poll.queue = poll.queue[:-1] + "0"
        return super().poll(poll)


class ForgetsOnRestart(Feed):
    """Acknowledged messages are gone after a restart."""

    def restart(self) -> None:
        super().restart()
        with self.changed:
            self.queues.clear()


class TakesAfterCancel(TakeQueue):
    """A cancelled poll waits on, and takes a message that no client gets."""

    def poll(self, poll: Poll) -> list[bytes]:
        """Wait; when it was cancelled, drop what was taken."""
        with self.changed:
            self.changed.wait_for(lambda: self.has_some(poll), poll.left_s())
            taken = self.answer(poll)
        return [] if poll.is_cancelled else taken

    def cancel(self, poll: Poll) -> None:
        poll.is_cancelled = True


class DropsAtCancel(TakeQueue):
    """A cancel takes off the queue what its poll would have been given."""

    def cancel(self, poll: Poll) -> None:
        super().cancel(poll)
        with self.changed:
            del self.queues[poll.queue][:1]


class GivesToAll(TakeQueue):
    """Two polls that wait are given the same message."""

    def answer(self, poll: Poll) -> list[bytes]:
        """Look, let another one look, and take."""
        taken = self.queues[poll.queue][:MESSAGES_MAX]
        self.changed.release()
        self.changed.acquire()
        self.queues[poll.queue] = [each for each in self.queues[poll.queue] if each not in taken]
        return taken


class TakesLastFirst(TakeQueue):
    """The newest message goes first."""

    def answer(self, poll: Poll) -> list[bytes]:
        queue = self.queues[poll.queue]
        return [queue.pop()] if queue else []


class AnswersNothingAtTimes(TakeQueue):
    """A poll that finds many messages returns none."""

    def answer(self, poll: Poll) -> list[bytes]:
        return super().answer(poll) if len(self.queues[poll.queue]) < MESSAGES_MAX else []


class NeverEndsAMillisecond(Feed):
    """A wait of less than 2 ms is rounded down to 0, which means no deadline."""

    def poll(self, poll: Poll) -> list[bytes]:
        if poll.timeout_ms == 1:
            poll.timeout_ms = 3_600_000
        return super().poll(poll)


class DropsWhatIsBuffered(Feed):
    """A queue has room for 128 messages that were not read; what comes then is dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.read: dict[str, int] = defaultdict(int)

    def publish(self, queue: str, body: bytes) -> None:
        if len(self.queues[queue]) - self.read[queue] < 128:
            super().publish(queue, body)

    def answer(self, poll: Poll) -> list[bytes]:
        self.read[poll.queue] = max(self.read[poll.queue], poll.offset)
        return super().answer(poll)


class TakesMoreThanItGives(TakeQueue):
    """An answer has at most 100,000 bytes; what was taken beyond them is gone."""

    def answer(self, poll: Poll) -> list[bytes]:
        taken = super().answer(poll)
        while sum(map(len, taken)) > 100_000:
            taken.pop()
        return taken


class CutsBodies(Feed):
    """A request has at most 32 KiB; the rest is not read."""

    def publish(self, queue: str, body: bytes) -> None:
        super().publish(queue, body[: 1 << 15])


class AnswersEarly(Feed):
    """A correct service whose polls may end at any time with nothing, and are then sent again."""

    def poll(self, poll: Poll) -> list[bytes]:
        poll.timeout_ms //= 2
        return super().poll(poll)


class InMemory(LongPollSubject):
    """A service of this module as a subject."""

    durable = True

    def __init__(self, service: Feed) -> None:
        self.service = service
        self.semantics = service.semantics

    def publish(self, queue: str, body: bytes) -> None:
        self.service.publish(queue, body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Poll:
        """Make a poll; it is received when it is waited for."""
        return Poll(queue, position or 0, timeout_ms)

    def finish_poll(self, handle: Poll) -> Polled:
        bodies = self.service.poll(handle)
        return Polled(bodies, position_next=handle.offset + len(bodies))

    def cancel(self, handle: Poll) -> None:
        self.service.cancel(handle)

    def restart(self) -> None:
        self.service.restart()


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


SERVER: Final = shutil.which("redis-server")
PATIENCE_S: Final = 10.0


class Connection:
    """A connection that speaks RESP, Redis's protocol."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect(str(path))
        self.file = self.socket.makefile("rb")

    def send(self, *words: bytes) -> None:
        self.socket.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(word), word) for word in words))

    def reply(self) -> Any:
        """Read a reply: an int, bytes, a list or None; raises OSError for an error or an end."""
        line = self.file.readline()
        kind, rest = line[:1], line[1:-2]
        if kind in b"+":
            return rest
        if kind == b":":
            return int(rest)
        if kind == b"$":
            return None if rest == b"-1" else self.file.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        raise OSError(f"Redis said {line!r}")

    def call(self, *words: bytes) -> Any:
        """Send a command and read its reply."""
        self.send(*words)
        return self.reply()

    def close(self) -> None:
        self.file.close()
        self.socket.close()


class RedisServer:
    """A server on a socket in a separate directory, with a command log; `stop` ends it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "socket"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it serves."""
        assert SERVER is not None
        words = ["--port", "0", "--unixsocket", str(self.path), "--dir", str(self.directory), "--appendonly", "yes"]
        words += ["--save", ""]
        self.process = subprocess.Popen([SERVER, *words], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert any("ready to accept connections" in line for line in self.process.stdout)

    def stop(self) -> None:
        """End it in order, which ends every connection."""
        self.process.terminate()
        self.process.communicate(timeout=PATIENCE_S)


class RedisSubject(LongPollSubject):
    """A server's lists as queues. Restarts are in order; it keeps its lists in its log."""

    semantics = "consuming"
    durable = True
    wait_min_ms = 1  # BLPOP takes 0 for ever

    def __init__(self, server: RedisServer) -> None:
        self.server = server
        self.process_id = server.process.pid

    def publish(self, queue: str, body: bytes) -> None:
        self.call(b"RPUSH", queue.encode(), body)

    def call(self, *words: bytes) -> Any:
        """Run a command on a new connection."""
        connection = Connection(self.server.path)
        try:
            return connection.call(*words)
        finally:
            connection.close()

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Connection, bytes]:
        """BLPOP, by a client whose id is known."""
        connection = Connection(self.server.path)
        number: int = connection.call(b"CLIENT", b"ID")
        connection.send(b"BLPOP", queue.encode(), b"%f" % (timeout_ms / 1000))
        return connection, b"%d" % number

    def finish_poll(self, handle: tuple[Connection, bytes]) -> Polled:
        """Read its reply: the list's name and a message, or nothing."""
        try:
            found = handle[0].reply()
        finally:
            handle[0].close()
        return Polled(found[1:] if found else ())

    def cancel(self, handle: tuple[Connection, bytes]) -> None:
        """CLIENT UNBLOCK, until it waits no more: a poll that Redis has not read yet is not blocked yet."""
        while not self.call(b"CLIENT", b"UNBLOCK", handle[1]):
            listed: bytes = self.call(b"CLIENT", b"LIST", b"ID", handle[1])
            if not listed or (b"cmd=blpop" in listed and b"flags=b" not in listed):
                return

    def restart(self) -> None:
        self.server.stop()
        self.server.start()
        self.process_id = self.server.process.pid
