"""beanstalkd: tubes as queues, read by `reserve-with-timeout` of greenstalk.

Promised by doc/protocol.txt of beanstalkd: jobs of one priority leave a tube first in, first out; waits are whole
seconds; a reserved job becomes ready again if its client does not delete it within its time to run (TTR), or if the
client's connection closes. A job has at most 65,535 bytes unless the server is started with `-z`.
"""

from __future__ import annotations

import socket
import threading
from contextlib import ExitStack, suppress
from typing import Any, Final

import greenstalk
from attrs import define

from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import address_of, closed_on_error, local_process

PORT: Final = 11_300
TTR_S: Final = 3


@define(eq=False)
class Reserve:
    """A poll with its own connection, which keeps a job reserved until the job is deleted."""

    connection: socket.socket
    client: Any
    wait_s: int
    lock: Any
    job: Any = None
    is_cancelled: bool = False


class BeanstalkdSubject(LongPollSubject):
    """The tubes of a server; `close` empties them, because an empty tube without clients is deleted."""

    semantics = "consuming"
    redelivery_ms = TTR_S * 1_000
    wait_unit_ms = 1_000
    body_max = 65_535
    gone = (OSError, greenstalk.Error)

    def __init__(self, url: str, _mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the server does not answer."""
        self._address = address_of(url, PORT)
        self.process_id = local_process(*self._address)
        self._writers: dict[str, list[Any]] = {}
        self._open: set[Reserve] = set()
        socket.create_connection(self._address).close()

    def publish(self, queue: str, body: bytes) -> None:
        """Put a job."""
        idle = self._writers.setdefault(queue, [])
        with closed_on_error(idle.pop() if idle else self._connect(queue)[1]) as writer:
            writer.put(body, ttr=TTR_S)
        idle.append(writer)

    def start_poll(self, queue: str, position: None, timeout_ms: int) -> Reserve:  # noqa: ARG002 - a tube has none
        """Open a connection that watches the tube."""
        reserve = Reserve(*self._connect(queue), timeout_ms // 1_000, threading.Lock())
        self._open.add(reserve)
        return reserve

    def finish_poll(self, handle: Reserve) -> Polled:
        """Reserve a job. If none arrives, close the connection."""
        try:
            job = handle.client.reserve(handle.wait_s)
        except greenstalk.TimedOutError:
            job = None
        with handle.lock:
            # Drop the job of a cancelled poll, because the server takes the job back when the connection closes.
            handle.job = None if handle.is_cancelled else job
        if handle.job is None:
            self._end(handle)
            return Polled()
        return Polled([handle.job.body])

    def acknowledge(self, handle: Reserve) -> None:
        """Delete the job, unless its time to run is over."""
        with suppress(greenstalk.NotFoundError):
            handle.client.delete(handle.job)
        self._end(handle)

    def cancel(self, handle: Reserve) -> None:
        """Disconnect, unless the connection has reserved a job."""
        with handle.lock:
            handle.is_cancelled = handle.job is None
            if handle.is_cancelled:
                with suppress(OSError):  # The connection may already be closed.
                    handle.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Empty the tubes, and close the connections."""
        for reserve in list(self._open):
            self._end(reserve)
        with ExitStack() as closing:
            writers = [each for idle in self._writers.values() for each in idle]
            for writer in writers:
                closing.callback(writer.close)
            for writer in writers:
                with suppress(greenstalk.TimedOutError):
                    while True:
                        writer.delete(writer.reserve(0))

    def _connect(self, tube: str) -> tuple[socket.socket, Any]:
        """Return a connection, and its client which uses and watches a tube."""
        with closed_on_error(socket.create_connection(self._address)) as connection:
            client = greenstalk.Client(connection, None)
        with closed_on_error(client):
            client.use(tube)
            client.watch(tube)
            client.ignore("default")
        return connection, client

    def _end(self, reserve: Reserve) -> None:
        """Close the connection of a poll. If its job was not deleted, the server makes the job ready again."""
        self._open.discard(reserve)
        reserve.client.close()
