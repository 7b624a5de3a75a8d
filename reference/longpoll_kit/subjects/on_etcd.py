"""etcd: a key as a queue, each put a message, read by a watch through etcd3gw and the gateway that it speaks to.

Promised by etcd.io/docs/v3.5/learning/api_guarantees (watch APIs): a watch from a revision gets every later event of
its key, in order and once, unless the history was compacted. A watch has no deadline of its own; the client ends it.
Mode `newest` is how most programs use it: read the key, and watch from the next revision.
"""

from __future__ import annotations

import base64
import json
import socket
from collections.abc import Mapping
from typing import Any, Final

import etcd3gw
import requests
from attrs import define

from longpoll_kit.errors import ServiceError
from longpoll_kit.subject import LongPollSubject, Polled
from longpoll_kit.subjects.addresses import address_of, closed_on_error, local_process

PORT: Final = 2_379
CALL_S: Final = 10
CHUNK: Final = 65_536


@define(eq=False)
class Watch:
    """A poll: the open answer of a watch, or the value that was there before it."""

    answer: requests.Response | None = None
    found: Polled | None = None


class EtcdSubject(LongPollSubject):
    """The keys of a server; `close` deletes them."""

    gone = (requests.RequestException, etcd3gw.exceptions.Etcd3Exception)
    durable = True

    def __init__(self, url: str, mode: str) -> None:
        """Connect; raises one of `gone`."""
        host, port = address_of(url, PORT)
        self.semantics = "newest" if mode == "newest" else "offsets"
        self._client = etcd3gw.client(host, port)
        self._client.status()
        self.process_id = local_process(host, port)
        self._keys: set[str] = set()

    def publish(self, queue: str, body: bytes) -> None:
        """Put a value."""
        self._keys.add(queue)
        self._client.put(queue, body)

    def start_poll(self, queue: str, position: Any, timeout_ms: int) -> Watch:
        """Begin a watch from the revision after `position`, and wait until the server has confirmed it."""
        known = position or 0
        if self.semantics == "newest":
            found = self._client.get(queue, metadata=True)
            if found and int(found[0][1]["mod_revision"]) > known:
                return Watch(found=Polled([found[0][0]], position_next=int(found[0][1]["mod_revision"])))
        create = {"key": base64.b64encode(queue.encode()).decode(), "start_revision": known + 1}
        begun = requests.post(
            self._client.get_url("/watch"), json={"create_request": create}, stream=True, timeout=CALL_S
        )
        with closed_on_error(begun) as answer:
            answer.raise_for_status()
            answer.raw.connection.sock.settimeout(max(1, timeout_ms) / 1_000)  # the wait begins when the watch is there
        return Watch(answer)

    def finish_poll(self, handle: Watch) -> Polled:
        """Read the first events; the deadline is the client's."""
        if handle.found is not None or handle.answer is None:
            return handle.found or Polled()
        try:
            # A line is one response, even where it comes in several parts.
            for line in handle.answer.iter_lines(CHUNK):
                events = _events(json.loads(line)) if line else []
                if events:
                    bodies = [base64.b64decode(event["kv"].get("value", "")) for event in events]
                    return Polled(bodies, position_next=int(events[-1]["kv"]["mod_revision"]))
        except requests.ConnectionError as error:
            if "Read timed out" not in str(error):
                raise
        finally:
            handle.answer.close()
        return Polled()

    def cancel(self, handle: Watch) -> None:
        """Break the connection off."""
        if handle.answer is not None and handle.answer.raw.connection is not None:
            handle.answer.raw.connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Delete the keys."""
        try:
            for key in self._keys:
                self._client.delete(key)
        finally:
            self._client.session.close()


def _events(line: Mapping[str, Any]) -> list[Any]:
    """The puts of one response of a watch; raises ServiceError if the server has ended it."""
    result = line.get("result", {})
    if "error" in line or result.get("canceled"):
        raise ServiceError(f"the server ended a watch: {line.get('error') or result.get('cancel_reason')}")
    return [event for event in result.get("events", ()) if event.get("type", "PUT") == "PUT"]
