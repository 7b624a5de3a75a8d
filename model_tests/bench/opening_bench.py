"""How long `longpoll serve` takes until it is ready: on a log of a gigabyte after a kill, and with many topics.

    python -m model_tests.bench.opening_bench [--size-mib 1024] [--body 1000] [--topics 10000] [--json]

A separate broker process writes the log, with sends as fast as it answers, and is then killed with SIGKILL. Topics of 8
queues are made by requests (17) and the broker is restarted. Then each queue is sent a message, until one is refused,
and the broker is started once more. Memory is the process's own, without mapped files.

Times are from the command to its line `ready`, with an empty broker's start for comparison. The processor time of the
process says more on a busy machine. Everything is in the page cache, as after a kill.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
from attrs import frozen
from model_tests.bench import leaving
from model_tests.bench.served import parser_of, print_json, serving, status_kib
from model_tests.support.broker.raw_client import RawClient, send_fields

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.sizes import MIB
from longpoll_runtime import Address

BURST: Final = 128
IN_FLIGHT: Final = 8
"""Bursts that are not answered yet."""
QUEUES: Final = 8
WIDE: Final = "wide"
"""The store of many queues, whose files are small."""
PATIENCE_S: Final = 600.0


class Opened(msgspec.Struct):
    """One start."""

    what: str
    ready_s: float
    processor_s: float
    messages: int = 0
    queues: int = 0
    memory_mib: float = 0.0


@frozen
class Started:
    """A broker's process that is ready."""

    address: Address
    ready_s: float
    processor_s: float
    """Processor seconds until then."""
    memory_mib: float
    """Private memory at that time."""


@contextmanager
def started(store: Path, ends: signal.Signals = signal.SIGINT) -> Iterator[Started]:
    """A broker process on a store, ended by a signal."""
    # A file of a queue of the usual size takes a megabyte of the disk with its first message.
    settings = "mappedFileSizeConsumeQueue=20000\n" if store.name == WIDE else ""
    begun_s = time.monotonic()
    with serving(store, settings=settings, ends=ends) as served:
        ready_s = time.monotonic() - begun_s
        memory_mib = status_kib(served.process.pid, "RssAnon") / 1024
        yield Started(served.address, ready_s, served.processor_s(), memory_mib)


def say(text: str) -> None:
    """Print progress."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def fill(served: Started, size: int, body: int) -> int:
    """Send until the log has grown by a size; how many messages."""
    content = b"x" * body
    properties = "UNIQ_KEY\x017F00000100002A9F000000000001E240\x02WAIT\x01true\x02"
    count = 0
    last: list[int] = []
    with RawClient(served.address) as client:
        waiting: list[list[int]] = []
        per_message = body + 200
        while count * per_message < size:
            burst = [(send_fields("Big", (count + number) % 4, properties), content) for number in range(BURST)]
            waiting.append(client.send_burst(RequestCode.SEND_MESSAGE_V2, burst))
            count += BURST
            while len(waiting) > IN_FLIGHT or (waiting and count * per_message >= size):
                last = waiting.pop(0)
                for opaque in last:
                    reply = client.reply(opaque, PATIENCE_S)
                    assert reply is not None
                    assert reply.code == 0, reply.remark
    return count


def after_a_kill(directory: Path, size_mib: int, body: int) -> Iterator[Opened]:
    """A broker is killed after its log was filled, and started again; and once more after a stop."""
    store = directory / "big"
    with started(store, signal.SIGKILL) as served:
        yield Opened("an empty store", served.ready_s, served.processor_s, memory_mib=served.memory_mib)
        say(f"writing a log of {size_mib} MiB")
        begun_s = time.monotonic()
        count = fill(served, size_mib * MIB, body)
        say(f"{count} messages in {time.monotonic() - begun_s:.0f} s; killing the broker")
    for what in ("after a kill", "after a stop"):
        with started(store) as served:
            yield Opened(
                f"a log of {size_mib} MiB, {what}", served.ready_s, served.processor_s, count, 4, served.memory_mib
            )


def make_topics(served: Started, count: int) -> None:
    """Topics of 8 queues."""
    made = {"defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES), "perm": "6"}
    made |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}
    with RawClient(served.address) as client:
        # Each is answered when it is on the disk, many at once.
        for start in range(0, count, BURST):
            names = [f"Topic{number:05}" for number in range(start, min(start + BURST, count))]
            burst = [({"topic": name} | made, b"") for name in names]
            for opaque in client.send_burst(RequestCode.UPDATE_AND_CREATE_TOPIC, burst):
                reply = client.reply(opaque, PATIENCE_S)
                assert reply is not None
                assert reply.code == 0, reply.remark


def send_to_all(served: Started, count: int) -> tuple[int, str]:
    """A message to every queue, until one is refused; how many were taken, and what was said then."""
    taken, said = 0, ""
    with RawClient(served.address) as client:
        for number in range(count):
            burst = [(send_fields(f"Topic{number:05}", queue_id), b"x" * 100) for queue_id in range(QUEUES)]
            for opaque in client.send_burst(RequestCode.SEND_MESSAGE_V2, burst):
                reply = client.reply(opaque, PATIENCE_S)
                assert reply is not None
                taken += reply.code == 0
                said = said or (f"{reply.code}: {reply.remark}" if reply.code else "")
            if said:
                break
    return taken, said


def many_topics(directory: Path, count: int) -> Iterator[Opened]:
    """Topics without messages, then with one in each queue as far as it goes."""
    store = directory / WIDE
    with started(store) as served:
        say(f"making {count} topics of {QUEUES} queues")
        begun_s = time.monotonic()
        make_topics(served, count)
        say(f"made in {time.monotonic() - begun_s:.0f} s")
    with started(store) as served:
        yield Opened(
            f"{count} topics without messages", served.ready_s, served.processor_s, 0, count * QUEUES, served.memory_mib
        )
        taken, said = send_to_all(served, count)
        say(f"a message in each of {taken} queues" + (f", and then {said}" if said else ""))
    with started(store) as served:
        yield Opened(
            f"{count} topics, after a stop", served.ready_s, served.processor_s, taken, taken, served.memory_mib
        )
    with started(store, signal.SIGKILL):
        pass
    with started(store) as served:
        yield Opened(
            f"{count} topics, after a kill", served.ready_s, served.processor_s, taken, taken, served.memory_mib
        )


def show(results: Sequence[Opened]) -> None:
    """A line for each start."""
    for each in results:
        sys.stdout.write(
            f"{each.what:44} {each.ready_s:7.2f} s   {each.processor_s:6.2f} s   {each.messages:9} messages   "
            f"{each.queues:6} queues   {each.memory_mib:6.0f} MiB\n"
        )


def main() -> int:
    """Measure, and say it."""
    parser = parser_of(__doc__)
    parser.add_argument("--size-mib", type=int, default=1024, help="of the log; 0: leave it out")
    parser.add_argument("--body", type=int, default=1000, help="bytes of each message's body")
    parser.add_argument("--topics", type=int, default=10_000, help="0: leave them out")
    parser.add_argument("--store", type=Path, help="where stores are made, a directory; a temporary one by default")
    options = parser.parse_args()
    results: list[Opened] = []
    with tempfile.TemporaryDirectory(dir=options.store) as directory:
        if options.size_mib:
            results += after_a_kill(Path(directory), options.size_mib, options.body)
        if options.topics:
            results += many_topics(Path(directory), options.topics)
    if options.json:
        print_json(results)
    else:
        show(results)
    return 0


if __name__ == "__main__":
    leaving.run(main)
