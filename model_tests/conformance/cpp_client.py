"""Tests a broker with a real RocketMQ client, PyPI `rocketmq` 0.4.4 (C++ core), and checks the messages.

The client runs in its own process, `cpp_client_child`.
"""

from __future__ import annotations

import importlib.util
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from longpoll_client.errors import ClientError
from longpoll_spec.errors import UserError

CHILD: Final = Path(__file__).with_name("cpp_client_child.py")
HOLD_MS: Final = 15_000
"""How long this client lets its pulls be held."""
TAIL_SIZE: Final = 2000

Progress = Callable[[str, int], None]
"""Gets a part ("send", "consume", "single") and the number of its messages done."""


class RealClientMissingError(UserError):
    """The real client cannot run here; the text says why and what to do."""


@frozen
class RealClientReport:
    """The result of a real client's run."""

    sent: int
    received: int
    missing: tuple[str, ...] = field(repr=False)
    """Bodies that never came."""
    repeated: tuple[str, ...] = field(repr=False)
    """Bodies delivered more than once from one log position. A group is promised each message at least once."""
    sent_again: tuple[str, ...] = field(repr=False)
    """Bodies at several log positions: the client resends messages that are not acknowledged in time."""
    stored_twice: tuple[str, ...] = field(repr=False)
    """Bodies at several log positions with one birth time: the client writes a new time on each send, so one send was
    stored twice.
    """
    wrong_labels: tuple[str, ...] = field(repr=False)
    """Bodies delivered with another tag, key or property."""
    out_of_order: tuple[str, ...] = field(repr=False)
    """Bodies delivered after a later message of their queue."""
    single_ms: tuple[float, ...] = field(repr=False)
    """For each message to a waiting consumer: ms from the call of send to the consumer's callback."""

    @property
    def single_ms_median(self) -> float:
        """The median of `single_ms`; infinite if empty."""
        return statistics.median(self.single_ms) if self.single_ms else float("inf")

    @property
    def single_ms_max(self) -> float:
        """The largest of `single_ms`; infinite if empty."""
        return max(self.single_ms, default=float("inf"))

    @property
    def is_right(self) -> bool:
        """Whether every message came once, with its labels, in its queue's order, and before a hold could end."""
        return not self.is_wrong and not self.repeated

    @property
    def is_wrong(self) -> bool:
        """Whether the run shows a fault: a message missing, stored twice, changed, overtaken or late."""
        wrong = (self.missing, self.stored_twice, self.wrong_labels, self.out_of_order)
        return any(wrong) or self.single_ms_max >= HOLD_MS

    def as_json(self) -> dict[str, Any]:
        """The report as one JSON object."""
        return {
            "sent": self.sent,
            "received": self.received,
            "missing": len(self.missing),
            "repeated": len(self.repeated),
            "sent_again": len(self.sent_again),
            "stored_twice": len(self.stored_twice),
            "wrong_labels": len(self.wrong_labels),
            "out_of_order": len(self.out_of_order),
            "single_count": len(self.single_ms),
            "single_ms_median": round(self.single_ms_median, 3),
            "single_ms_max": round(self.single_ms_max, 3),
            "is_right": self.is_right,
        }


def why_missing() -> str | None:
    """Why the real client cannot run here; None when it can."""
    if platform.machine() != "x86_64" or platform.system() != "Linux":
        return f"its wheel exists only for x86-64 Linux, but this host is {platform.machine()} {platform.system()}"
    if importlib.util.find_spec("rocketmq") is None:
        return f"it is not installed: {sys.executable} -m pip install rocketmq==0.4.4"
    return None


def run_real_client(
    name_server: str,
    *,
    topic: str = "longpoll-real-client",
    group: str = "longpoll-real-client",
    count: int = 2000,
    single_count: int = 50,
    wait_s: float = 60.0,
    progress: Progress | None = None,
) -> RealClientReport:
    """Send `count` messages with tags, keys and properties and consume them; then single ones, waiting for each.

    `topic` and `group` must be new to the broker; each part may take `wait_s` seconds. Raises RealClientMissingError if
    the client cannot run here, ClientError if it failed.
    """
    reason = why_missing()
    if reason is not None:
        raise RealClientMissingError(f"the real RocketMQ client cannot run: {reason}")
    with tempfile.TemporaryDirectory(prefix="longpoll-real-client-") as home:
        output = _run_child(
            [name_server, topic, group, str(count), str(single_count), str(wait_s)],
            home,
            wait_s,
            single_count,
            progress,
        )
    return make_report(output["sent"], output["received"], count, output["born_ms"])


def _run_child(
    arguments: list[str], home: str, wait_s: float, single_count: int, progress: Progress | None
) -> dict[str, Any]:
    """Run the child to its end and return its last line."""
    environment = {"HOME": home, "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    last: dict[str, Any] = {}
    # Standard error goes to a file: a full pipe would block the child.
    with (
        Path(home, "stderr").open("w+") as errors,
        subprocess.Popen(
            [sys.executable, str(CHILD), *arguments],
            # The pipe closes when this process ends, which ends the child too.
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            cwd=home,
            text=True,
        ) as child,
    ):
        assert child.stdout is not None
        guard = threading.Timer(wait_s * (3 + single_count), child.kill)
        guard.start()
        try:
            for line in child.stdout:
                if not line.startswith("{"):
                    continue
                last = json.loads(line)
                if progress is not None and "progress" in last:
                    progress(last["progress"], last["done"])
            code = child.wait()
        finally:
            guard.cancel()
            if child.poll() is None:
                child.kill()
        if "sent" not in last:
            errors.seek(0)
            said = " ".join(errors.read()[-TAIL_SIZE:].split())
            raise ClientError(
                f"the real RocketMQ client ended with code {code} before its report: {said or 'silently'}"
            )
    return last


def make_report(
    sent: list[tuple[str, str, int]],
    received: list[tuple[str, str, int, int, int]],
    count: int,
    born_ms: Sequence[int] = (),
) -> RealClientReport:
    """Evaluate a run: `sent` holds (body, labels, begin_ns), `received` (body, labels, queue, offset, arrival_ns).

    Arrivals are in order; the first `count` sent were the bulk, the others single ones. `born_ms` are the birth times
    in the received messages, in the same order, if known.
    """
    arrivals: dict[str, int] = {}
    labels = {body: text for body, text, _begin_ns in sent}
    wrong_labels, out_of_order = [], []
    last_offset: dict[int, int] = {}
    for body, text, queue_id, queue_offset, arrival_ns in received:
        arrivals.setdefault(body, arrival_ns)
        if labels.get(body) != text:
            wrong_labels.append(body)
        if queue_offset < last_offset.get(queue_id, -1):
            out_of_order.append(body)
        last_offset[queue_id] = max(queue_offset, last_offset.get(queue_id, -1))
    places = Counter((body, queue, offset) for body, _labels, queue, offset, _arrival_ns in received)
    bodies = Counter(body for body, _queue, _offset in places)
    births = {(body, queue, offset): at for (body, _text, queue, offset, _), at in zip(received, born_ms, strict=False)}
    born = Counter((place[0], at) for place, at in births.items())
    stored_twice = dict.fromkeys(body for (body, _at), number in born.items() if number > 1)
    single = sent[count:]
    return RealClientReport(
        sent=len(sent),
        received=len(received),
        missing=tuple(body for body, _labels, _begin_ns in sent if body not in arrivals),
        repeated=tuple(body for (body, _queue, _offset), number in places.items() if number > 1),
        sent_again=tuple(body for body, number in bodies.items() if number > 1 and body not in stored_twice),
        stored_twice=tuple(stored_twice),
        wrong_labels=tuple(wrong_labels),
        out_of_order=tuple(out_of_order),
        single_ms=tuple((arrivals[body] - begin_ns) / 1e6 for body, _labels, begin_ns in single if body in arrivals),
    )
