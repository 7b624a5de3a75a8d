"""Members of a group that are separate Python or Java processes, and the messages that each member received.

The members' programs are `member` and `Member.java`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

LEAVE_S: Final = 60.0
REPOSITORY: Final = Path(__file__).parents[3]
JAVA_OPTIONS: Final = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")


@frozen
class Delivery:
    moment_ns: int
    """The time by the machine's monotonic clock, which all processes share."""
    member: str
    queue_id: int
    queue_offset: int
    number: int


@frozen
class Share:
    """A queue that a member got or gave up. Members in Java do not report this."""

    moment_ns: int
    member: str
    queue_id: int
    is_ours: bool


@frozen
class Java:
    """How Java's members are started."""

    class_path: str
    """The jars of the client, and the folder of `Member.class`."""
    home: Path
    """The folder for the members' logs."""


@define(eq=False)
class Told:
    """The reports of all members of a schedule. Invariant: the fields change only under `lock`."""

    lock: threading.Lock = field(factory=threading.Lock)
    deliveries: list[Delivery] = field(factory=list)
    shares: list[Share] = field(factory=list)
    numbers: set[int] = field(factory=set)
    places: set[tuple[int, int]] = field(factory=set)
    heard: set[str] = field(factory=set)
    """Members that have reported anything."""

    def note(self, member: str, line: str) -> None:
        """Parse a line of a member's output, which may be half a line of a killed member or a log line of Java."""
        if not line.startswith("[") or not line.endswith("]\n"):
            return
        moment_ns, queue_id, *rest = json.loads(line)
        with self.lock:
            self.heard.add(member)
            if len(rest) == 1:
                self.shares.append(Share(moment_ns, member, queue_id, rest[0]))
                return
            self.deliveries.append(Delivery(moment_ns, member, queue_id, rest[0], int(rest[1])))
            self.numbers.add(int(rest[1]))
            self.places.add((queue_id, rest[0]))


class Member:
    def __init__(self, name: str, command: Sequence[str], told: Told, home: Path) -> None:
        self.name = name
        self.is_killed = False
        with (home / f"{name}.out").open("wb") as errors:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self._told = told
        self._thread = threading.Thread(target=self._read, name=f"reads-{name}", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        return self._process.poll() is not None

    def leave(self) -> None:
        """Ask the member to leave in order, without waiting."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()

    def die(self) -> None:
        self.is_killed = True
        self._process.kill()

    def ended(self, deadline_s: float) -> str:
        """Wait for the member's end until a time of the monotonic clock; returns the problem, or ""."""
        try:
            code = self._process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"{self.name} did not leave"
        finally:
            self._thread.join()
            for end in (self._process.stdin, self._process.stdout):
                if end is not None and not end.closed:
                    end.close()
        return "" if self.is_killed or code == 0 else f"{self.name} ended with {code}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._told.note(self.name, line)


def python_command(name_server: str, topic: str, group: str, kind: str) -> list[str]:
    """Return the command of a member of the Python client: `push`, `loop` or `orderly`."""
    return [sys.executable, "-m", "model_tests.client.failing.member", name_server, topic, group, kind]


def java_command(java: Java, name_server: str, topic: str, group: str, kind: str) -> list[str]:
    """Return the command of a member of the Java client: `orderly`, or on threads."""
    options = [
        f"-Duser.home={java.home}",
        f"-Drocketmq.client.logRoot={java.home}",
        "-Drocketmq.client.rebalance.waitInterval=5000",
    ]
    return ["java", *JAVA_OPTIONS, *options, "-cp", java.class_path, "Member", name_server, topic, group, kind]
