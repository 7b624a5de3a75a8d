"""Redis: lists read by BLPOP and BLMOVE, streams read by XREAD and XREADGROUP.

Promised by redis.io/docs/latest/commands/blpop: a list is first in, first out, each element goes to one client, and the
client that has waited longest is served first. A timeout is in seconds or milliseconds, and 0 means to wait forever
(commands/blpop and commands/xread). Streams keep their entries.
"""

from __future__ import annotations

from typing import Any, Final

import redis

from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import MadeOnce, local_process

BODY: Final = "body"
GROUP: Final = "readers"
CONNECTIONS_MAX: Final = 10_000
"""The client's own limit of 100 connections would be too low, because all polls of a herd may begin at once."""


class RedisSubject(LongPollSubject):
    """The keys of a server as queues; `close` deletes them."""

    wait_min_ms = 1
    gone = (redis.RedisError, OSError)

    def __init__(self, url: str, mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the server does not answer."""
        self._mode = mode
        self.semantics = "offsets" if mode == "xread" else "consuming"
        self.serves_longest_waiting = mode in {"blpop", "blmove"}
        self._client: redis.Redis = redis.Redis.from_url(url, max_connections=CONNECTIONS_MAX)
        self._use = MadeOnce(self._create)
        self._client.ping()
        settings = self._client.connection_pool.connection_kwargs
        self.process_id = local_process(settings.get("host"), settings.get("port"))

    def publish(self, queue: str, body: bytes) -> None:
        """Append a message with RPUSH or XADD."""
        self._use(queue)
        if self._mode in {"blpop", "blmove"}:
            self._client.rpush(queue, body)
        else:
            self._client.xadd(queue, {BODY: body})

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> tuple[Any, int]:
        """Send the blocking command on a new connection, because a connection runs one blocking command at a time."""
        self._use(queue)
        pool = self._client.connection_pool
        # The client's own socket timeout of some seconds would end a longer wait.
        connection: Any = pool.connection_class(**pool.connection_kwargs | {"socket_timeout": None})
        connection.connect()
        connection.send_command("CLIENT", "ID")
        number = int(connection.read_response())
        connection.send_command(*self._command(queue, position, timeout_ms))
        return connection, number

    def _command(self, queue: str, position: Any, timeout_ms: int) -> tuple[object, ...]:
        match self._mode:
            case "blpop":
                return "BLPOP", queue, timeout_ms / 1000
            case "blmove":
                return "BLMOVE", queue, f"{queue}:taken", "LEFT", "RIGHT", timeout_ms / 1000
            case "xread":
                return "XREAD", "BLOCK", timeout_ms, "STREAMS", queue, position or "0-0"
        return "XREADGROUP", "GROUP", GROUP, "kit", "BLOCK", timeout_ms, "NOACK", "STREAMS", queue, ">"

    def finish_poll(self, handle: tuple[Any, int]) -> Polled:
        """Read the reply: an element, the entries of a stream, or nothing."""
        connection, _number = handle
        try:
            reply: Any = connection.read_response()
        finally:
            connection.disconnect()
        if not reply:
            return Polled()
        if self._mode == "blmove":
            return Polled([reply])
        if self._mode == "blpop":
            return Polled([reply[1]])
        (entries,) = reply.values() if isinstance(reply, dict) else [stream[1] for stream in reply]
        bodies = [dict(zip(fields[::2], fields[1::2], strict=True))[BODY.encode()] for _id, fields in entries]
        return Polled(bodies, position_next=entries[-1][0])

    def cancel(self, handle: tuple[Any, int]) -> None:
        """Send CLIENT UNBLOCK until the client is not blocked, because Redis may not have read the command yet."""
        number = handle[1]
        while not self._client.client_unblock(number):
            listed: Any = self._client.client_list(client_id=[number])
            if not listed or (listed[0]["cmd"].partition("|")[0] == self._mode and "b" not in listed[0]["flags"]):
                return

    def close(self) -> None:
        """Delete the queues, and close the connection."""
        keys = list(self._use.made)
        if keys:
            self._client.unlink(*keys, *(f"{key}:taken" for key in keys))
        self._client.close()

    def _create(self, queue: str) -> None:
        if self._mode == "xreadgroup":
            self._client.xgroup_create(queue, GROUP, id="0", mkstream=True)
