"""etcd: a key as a queue and each put as a message, read by a watch with etcd3gw through the JSON gateway.

Promised by etcd.io/docs/v3.5/learning/api_guarantees (watch APIs): a watch from a revision gets every later event of
its key, in order and once, unless the history was compacted. A watch has no deadline; the client ends it. Mode `newest`
reads the key and then watches from the next revision, as most programs do.
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
    """A poll: the open response of a watch, or the value that was present before the poll."""

    answer: requests.Response | None = None
    found: Polled | None = None


class EtcdSubject(LongPollSubject):
    """The keys of a server; `close` deletes them."""

    gone = (requests.RequestException, etcd3gw.exceptions.Etcd3Exception)
    durable = True

    def __init__(self, url: str, mode: str) -> None:
        """Connect. Raises one of the exceptions in `gone` if the server does not answer."""
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
            # The timeout begins when the server has confirmed the watch.
            answer.raw.connection.sock.settimeout(max(1, timeout_ms) / 1_000)
        return Watch(answer)

    def finish_poll(self, handle: Watch) -> Polled:
        """Read the first events, or return after the deadline; the client keeps the deadline, because etcd has none."""
        if handle.found is not None or handle.answer is None:
            return handle.found or Polled()
        try:
            # Each line is one response, even if the line arrives in several chunks.
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
        """Disconnect the watch."""
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
    """The puts in one response of a watch. Raises ServiceError if the server has ended the watch."""
    result = line.get("result", {})
    if "error" in line or result.get("canceled"):
        raise ServiceError(f"the server ended a watch: {line.get('error') or result.get('cancel_reason')}")
    return [event for event in result.get("events", ()) if event.get("type", "PUT") == "PUT"]
