"""The cost of the recording proxy: a broker asked directly, through a byte relay, and through `longpoll observe`.

    python -m model_tests.bench.observe_bench [--rounds 2000] [--json]

Broker, relay and proxy are separate processes. The three ways alternate round by round, so a busy machine disturbs all
alike. The figure is what a way adds to the direct median: the proxy may add at most twice the relay's. On a busy
machine the processor time of relay and proxy says more. Judging: `judge_bench`.
"""

from __future__ import annotations

import argparse
import random
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from time import monotonic, perf_counter_ns

from model_tests.bench import leaving
from model_tests.bench.served import COMMAND, address_of, parser_of, print_json
from model_tests.support.broker.raw_client import RawClient, pull_fields, send_fields, send_message

from longpoll_protocol.codes import RequestCode
from longpoll_protocol.frames import Command, encode

ADDED_MAX = 2.0
"""The most that the proxy may add, as a multiple of what the bare relay adds."""
IN_FLIGHT = 64
BATCHES = 40
MESSAGES = BATCHES * IN_FLIGHT
END_S = 20.0
BODY = bytes(128)
Way = tuple[str, int]


def relay(target: Way) -> None:
    """The barest relay of bytes in Python: epoll, one read, one write; says its port and runs until it is ended."""
    poller = select.epoll()
    listening = socket.create_server(("127.0.0.1", 0))
    poller.register(listening, select.EPOLLIN)
    peers: dict[int, tuple[socket.socket, socket.socket]] = {}
    sys.stdout.write(f"ready broker={listening.getsockname()[1]}\n")
    sys.stdout.flush()
    while True:
        for descriptor, _events in poller.poll():
            if descriptor == listening.fileno():
                pair = (listening.accept()[0], socket.create_connection(target))
                for here, there in (pair, pair[::-1]):
                    here.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    peers[here.fileno()] = (here, there)
                    poller.register(here, select.EPOLLIN)
                continue
            if descriptor not in peers:
                continue
            here, there = peers[descriptor]
            content = here.recv(1 << 18)
            if content:
                there.sendall(content)
                continue
            for one in (here, there):
                poller.unregister(one)
                del peers[one.fileno()]
                one.close()


@contextmanager
def process(*command: str) -> Iterator[tuple[str, int]]:
    """A process of the bench, from its ready line to its end; the address in it, and the process' id."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        try:
            words = dict(word.split("=", 1) for word in started.stdout.readline().split()[1:])
            yield words["broker"].rsplit("@", 1)[-1], started.pid
        finally:
            started.send_signal(signal.SIGTERM)
            started.wait(END_S)


def spent_us(process_id: int) -> float:
    """The processor time of all threads of a process."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text("ascii").split()[0]) for task in tasks) / 1e3


def call(client: RawClient) -> float:
    """One small request and its answer, us."""
    begun_ns = perf_counter_ns()
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": "BENCH", "queueId": "0"})
    return (perf_counter_ns() - begun_ns) / 1e3


def wake(client: RawClient) -> float:
    """One message to a pull that is held on the same connection: from the send to the pull's answer, us."""
    offset = int(
        (client.call(RequestCode.GET_MAX_OFFSET, {"topic": "BENCH", "queueId": "1"}).ext_fields or {})["offset"]
    )
    opaque = client.send(RequestCode.PULL_MESSAGE, pull_fields("BENCH", offset, queue_id=1, timeout_ms=10_000))
    client.call(RequestCode.GET_MAX_OFFSET, {"topic": "BENCH", "queueId": "1"})
    begun_ns = perf_counter_ns()
    client.send(RequestCode.SEND_MESSAGE_V2, send_fields("BENCH", 1), BODY)
    reply = client.reply(opaque)
    assert reply is not None
    assert reply.code == 0
    return (perf_counter_ns() - begun_ns) / 1e3


def sends(client: RawClient) -> float:
    """Sends of 128 bytes, 64 in flight: us a message."""
    request = b"".join(encode(Command(RequestCode.SEND_MESSAGE_V2, 0, ext_fields=send_fields("BENCH", 2), body=BODY)))
    begun_ns = perf_counter_ns()
    for _ in range(BATCHES):
        client.send_bytes(request * (IN_FLIGHT - 1))
        client.call(RequestCode.SEND_MESSAGE_V2, send_fields("BENCH", 2), BODY)
    return (perf_counter_ns() - begun_ns) / 1e3 / MESSAGES


def measure(clients: dict[str, RawClient], work: Callable[[RawClient], float], rounds: int) -> dict[str, list[float]]:
    """Each way's figures, ascending; the ways take turns in a random order."""
    figures: dict[str, list[float]] = {name: [] for name in clients}
    order = random.Random(1)
    for number in range(rounds):
        for name in order.sample(sorted(clients), len(clients)):
            figure = work(clients[name])
            if number >= rounds // 10:
                figures[name].append(figure)
        if sys.stderr.isatty():
            sys.stderr.write(f"\r{work.__name__}: {number + 1} of {rounds}   ")
    return {name: sorted(values) for name, values in figures.items()}


def main() -> int:
    """Measure and print; exit code 1 when the proxy adds more than it may."""
    parser = parser_of(__doc__)
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--relay", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.relay:
        relay(address_of(arguments.relay))
    begun_s = monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        any_port = "127.0.0.1:0"
        broker, _broker_id = stack.enter_context(
            process(*COMMAND, "serve", "--listen", any_port, "--name-server", any_port, "--store", str(directory / "s"))
        )
        bare, bare_id = stack.enter_context(process(sys.executable, __file__, "--relay", broker))
        proxy, proxy_id = stack.enter_context(
            process(*COMMAND, "observe", "--listen", any_port, "--broker", broker, "--record", str(directory / "h"))
        )
        clients = {
            name: stack.enter_context(RawClient(address_of(text)))
            for name, text in (("direct", broker), ("bare relay", bare), ("observe", proxy))
        }
        send_message(clients["direct"], "BENCH", BODY)
        results = {}
        ids = {"bare relay": bare_id, "observe": proxy_id}
        for work, rounds, units in ((call, arguments.rounds, 1), (wake, arguments.rounds, 1), (sends, 20, MESSAGES)):
            before_us = {name: spent_us(process_id) for name, process_id in ids.items()}
            rows = summary(measure(clients, work, rounds))
            for name, process_id in ids.items():
                rows[name]["processor"] = (spent_us(process_id) - before_us[name]) / (rounds * units)
            results[work.__name__] = rows
    if arguments.json:
        print_json({"us": results, "seconds": monotonic() - begun_s})
    else:
        show(results)
    added = [result["observe"]["added_ratio"] for name, result in results.items() if name != "sends"]
    return 0 if max(added) <= ADDED_MAX else 1


def summary(figures: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Of each way p50, p99 and what it adds to the direct way; of the proxy also that as a multiple of the relay's."""
    middle = {name: median(values) for name, values in figures.items()}
    added = {name: value - middle["direct"] for name, value in middle.items()}
    return {
        name: {
            "p50": middle[name],
            "p99": values[int(0.99 * (len(values) - 1))],
            "added": added[name],
            "added_ratio": added[name] / max(added["bare relay"], 1e-9),
        }
        for name, values in figures.items()
    }


def show(results: dict[str, dict[str, dict[str, float]]]) -> None:
    """A table, us."""
    sys.stdout.write(f"\n{'us':8}{'way':12}{'p50':>9}{'p99':>9}{'added':>9}{'x relay':>9}{'processor':>11}\n")
    for work, ways in results.items():
        for name, row in ways.items():
            sys.stdout.write(
                f"{work:8}{name:12}{row['p50']:9.1f}{row['p99']:9.1f}{row['added']:9.1f}{row['added_ratio']:9.2f}"
                f"{row.get('processor', 0):11.1f}\n"
            )


if __name__ == "__main__":
    leaving.run(main)
