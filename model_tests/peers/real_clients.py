"""Builds the real Java, Go, Node and C++ clients once, runs each as a process with a scenario, and checks its results.

The tree has no downloaded files: packages come through each language's package manager and are pinned by `go.sum`,
`package-lock.json` and `pyproject.toml`.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from attrs import frozen
from model_tests.conformance.java_broker import JavaUnavailableError, resolve

HERE: Final = Path(__file__).parent
MAKE_READY_S: Final = 300.0
TAGS: Final = ("red", "green", "blue")
Client = Callable[[Sequence[str], Sequence[str]], list[str]]
"""A function that returns the command for a client's arguments and for options of its virtual machine."""


class ClientUnavailableError(Exception):
    """A client cannot be built or run here; the text gives the reason."""


@frozen
class Received:
    body: str
    tag: str
    key: str
    number: str
    queue_id: int
    queue_offset: int
    reconsume_times: int


def java(directory: Path) -> Client:
    try:
        class_path = resolve(directory)
    except JavaUnavailableError as error:
        raise ClientUnavailableError(str(error)) from None
    source = str(HERE / "java" / "Peer.java")
    log = f"-Drocketmq.client.logRoot={directory}"

    java = ["java", "-Xmx512m", f"-Duser.home={directory}", log]
    return lambda arguments, options: [*java, *options, "-cp", class_path, source, *arguments]


def go(directory: Path) -> Client:
    _need("go")
    program = str(directory / "peer")
    make_ready(["go", "build", "-mod=readonly", "-buildvcs=false", "-o", program, "."], HERE / "go")
    return lambda arguments, _options: [program, *arguments]


def node(directory: Path) -> Client:
    _need("node", "npm")
    for name in ("package.json", "package-lock.json", "peer.js"):
        shutil.copy(HERE / "node" / name, directory)
    make_ready(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"], directory)
    return lambda arguments, options: ["node", *options, str(directory / "peer.js"), *arguments]


def cpp(directory: Path) -> Client:
    if importlib.util.find_spec("rocketmq") is None:
        raise ClientUnavailableError("rocketmq==0.4.4 is not installed; its wheel exists for x86-64 Linux only")
    program = ["env", f"HOME={directory}", sys.executable, str(HERE / "cpp" / "peer.py")]
    return lambda arguments, _options: [*program, *arguments]


CLIENTS: Final = {"java": java, "go": go, "node": node, "cpp": cpp}


def _need(*programs: str) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise ClientUnavailableError(f"no {' and no '.join(missing)} on PATH")


def make_ready(command: list[str], directory: Path) -> None:
    try:
        done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=MAKE_READY_S, check=False)
    except subprocess.TimeoutExpired:
        raise ClientUnavailableError(f"{' '.join(command[:2])} took over {MAKE_READY_S:g} s") from None
    if done.returncode:
        raise ClientUnavailableError(f"{' '.join(command[:2])} failed: {done.stderr[-500:]}")


def play(
    client: Client,
    name_server: str,
    topic: str,
    story: str,
    count: int,
    *,
    expected: int | None = None,
    sql: str = "-",
    account: tuple[str, str] = ("-", "-"),
    options: Sequence[str] = (),
    then: Callable[[], object] = lambda: None,
) -> list[Received]:
    """Let a client send `count` messages and consume them; returns its lines in order. Fails if a message is missing.

    The client's input ends only after all messages and `then`, because its listener prints a message before the broker
    gets the listener's result. A repeated delivery of the same message is not counted.
    """
    wanted = count if expected is None else expected
    command = client([name_server, topic, f"{topic}-{story}", story, str(count), sql, *account], options)
    received: list[Received] = []
    tries: set[tuple[str, int]] = set()
    with (
        tempfile.TemporaryFile("w+") as complaint,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=complaint, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if not line.startswith("["):
                    continue
                received.append(Received(*json.loads(line)))
                tries.add((received[-1].number, received[-1].reconsume_times))
                if len(tries) == wanted and not process.stdin.closed:
                    then()
                    process.stdin.close()
            code = process.wait()
        finally:
            process.kill()
        complaint.seek(0)
        said = f"code {code} after {len(received)}: {complaint.read()[-2000:]}"
    assert code == 0, said
    assert len(tries) >= wanted, said
    return received


def refused(client: Client, name_server: str, topic: str, *account: str, options: Sequence[str] = ()) -> str:
    command = client([name_server, topic, "G", "bulk", "1", "-", *account], options)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return done.stdout + done.stderr


def faults(received: Sequence[Received], numbers: Sequence[int]) -> set[str]:
    """Return the faults in a client's lines about the messages `numbers`, each sent once to one of 8 queues."""
    found = set()
    times = Counter(int(message.number) for message in received)
    if set(times) != set(numbers):
        found.add("lost or strange")
    if any(count > 1 for count in times.values()):
        found.add("repeated")
    last: dict[int, int] = {}
    for message in received:
        number = int(message.number)
        if (message.body, message.tag, message.key) != (f"message-{number}", TAGS[number % 3], f"key-{number}"):
            found.add("changed")
        if message.queue_offset <= last.get(message.queue_id, -1):
            found.add("out of order")
        last[message.queue_id] = message.queue_offset
    if len(last) != 8 and len(numbers) >= 100:
        found.add("not through 8 queues")
    return found
