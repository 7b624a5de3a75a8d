"""Compares polling at fixed rates, RocketMQ's short polling, and long polling on our broker.

    python -m model_tests.bench.polling_bench [--messages 60] [--idle-s 5] [--json] [--write docs/figures/polling.json]

For each kind of polling a new `longpoll serve` process has one consumer of eight queues and one producer that sends at
random times. The bench measures the time from the call of send until the consumer has the message, the number of pulls,
and the broker's processor time. The pulls and the processor time are also measured without messages. The exit code is 1
unless long polling is faster than every fixed rate and has fewer pulls while idle. `--write` saves the figures, the
machine's name and every latency for the table of docs/polling.md (`python -m docs.site.figures`).

`broker_bench` measures many consumers. Other load on the machine changes the latencies, but not the number of pulls and
the processor time.
"""

from __future__ import annotations

import random
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter_ns

import msgspec
from attrs import field, frozen
from model_tests.bench import leaving
from model_tests.bench.served import machine, parser_of, print_json, processor_s, serving
from rich.console import Console
from rich.table import Table

from longpoll_client import Admin, Producer
from longpoll_client.errors import ClientError
from longpoll_client.link.exchange import Answer
from longpoll_client.messages import decode_messages
from longpoll_client.remoting import RemotingClient
from longpoll_protocol.codes import PullSysFlag, RequestCode, ResponseCode
from longpoll_protocol.headers import PullMessageRequestHeader, PullMessageResponseHeader
from longpoll_runtime.real import RealRuntime

RUNTIME = RealRuntime()
QUEUE_COUNT = 8
TOPIC = "polled"
HOLD_MS = 15_000
PAUSES_S = (0.05, 0.25)
PATIENCE_S = 30.0


@frozen
class Way:
    name: str
    period_s: float | None = field(default=None)
    """The period in seconds in which all queues are polled without being held; None if pulls are held and repeated at
    once."""
    options: tuple[str, ...] = field(default=())
    settings: str = field(default="")


LOOKED_AT = "long polling, log looked at every 1 ms"
NOTIFIED = "long polling"
WAYS = (
    Way("every 1 s", 1.0),
    Way("every 100 ms", 0.1),
    Way("every 10 ms", 0.01),
    Way("short polling", options=("--policy", "rocketmq-4.9"), settings="longPollingEnable=false\n"),
    Way(LOOKED_AT, options=("--knob", "notify=dispatcher_poll")),
    Way(NOTIFIED),
)


class Result(msgspec.Struct):
    way: str
    latency_ms_median: float
    latency_ms_p99: float
    latency_ms_max: float
    pulls_per_s: float
    """Pulls per second while messages were being sent."""
    cpu_percent: float
    """The broker's share of one core while messages were being sent, in percent."""
    idle_pulls_per_s: float
    idle_cpu_percent: float
    latencies_ms: list[float]


class Figures(msgspec.Struct):
    command: str
    machine: dict[str, str]
    messages: int
    results: list[Result]


@contextmanager
def polled(way: Way) -> Iterator[tuple[str, int]]:
    with (
        tempfile.TemporaryDirectory(prefix="longpoll-polling-") as home,
        serving(Path(home, "store"), way.options, settings=way.settings, ends=signal.SIGTERM) as served,
    ):
        yield "{}:{}".format(*served.name_server), served.process.pid


class Consumer:
    def __init__(self, way: Way, address: str) -> None:
        self._way = way
        host, port = address.split(":")
        self._client = RemotingClient(RUNTIME, host, int(port))
        self._offsets = [0] * QUEUE_COUNT
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._poll, daemon=True)
        self.pull_count = 0
        self.latencies_ms: list[float] = []

    def start(self) -> None:
        if self._way.period_s is None:
            for queue_id in range(QUEUE_COUNT):
                self._pull(queue_id)
        else:
            self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._way.period_s is not None:
            self._thread.join()
        self._client.close()

    def _poll(self) -> None:
        assert self._way.period_s is not None
        while not self._stopping.wait(self._way.period_s):
            for queue_id in range(QUEUE_COUNT):
                self._pull(queue_id)

    def _pull(self, queue_id: int) -> None:
        is_held = self._way.period_s is None
        flags = PullSysFlag.SUBSCRIPTION | (PullSysFlag.SUSPEND if is_held else PullSysFlag(0))
        with self._lock:
            self.pull_count += 1
            offset = self._offsets[queue_id]
        header = PullMessageRequestHeader(
            consumer_group="polling",
            topic=TOPIC,
            queue_id=queue_id,
            queue_offset=offset,
            max_msg_nums=32,
            sys_flag=int(flags),
            commit_offset=0,
            suspend_timeout_millis=HOLD_MS,
            sub_version=0,
            subscription="*",
        )
        self._client.call_async(
            RequestCode.PULL_MESSAGE, header, callback=self._answered(queue_id), timeout_s=PATIENCE_S
        )

    def _answered(self, queue_id: int) -> Callable[[Answer], None]:
        def take(answer: Answer) -> None:
            now_ns = perf_counter_ns()
            if isinstance(answer, ClientError) or self._stopping.is_set():
                return
            header = PullMessageResponseHeader.decode(answer.ext_fields)
            found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
            with self._lock:
                # Two polls of a queue may be in flight and return the same message; only its first delivery counts.
                fresh = [message for message in found if message.queue_offset >= self._offsets[queue_id]]
                self.latencies_ms += [(now_ns - int(message.body)) / 1e6 for message in fresh]
                self._offsets[queue_id] = max(self._offsets[queue_id], header.next_begin_offset)
            if self._way.period_s is None:
                self._pull(queue_id)

        return take


def measure(way: Way, message_count: int, idle_s: float, seed: int) -> Result:
    chance = random.Random(seed)
    with polled(way) as (name_server, process_id):
        with Admin(name_server) as admin:
            admin.create_topic(TOPIC, QUEUE_COUNT)
            (address,) = admin.masters().values()
        consumer = Consumer(way, address)
        consumer.start()
        pause = threading.Event()
        idle = _spent(consumer, process_id, lambda: pause.wait(idle_s))
        with Producer(name_server) as producer:

            def send() -> None:
                for _number in range(message_count):
                    pause.wait(chance.uniform(*PAUSES_S))
                    queue_id = chance.randrange(QUEUE_COUNT)
                    producer.send(TOPIC, b"%d" % perf_counter_ns(), queue_id=queue_id)
                deadline_ns = perf_counter_ns() + int(PATIENCE_S * 1e9)
                while len(consumer.latencies_ms) < message_count:
                    assert perf_counter_ns() < deadline_ns, f"{way.name}: {len(consumer.latencies_ms)} messages came"
                    pause.wait(0.005)

            busy = _spent(consumer, process_id, send)
        consumer.stop()
    found = sorted(consumer.latencies_ms)
    return Result(
        way=way.name,
        latency_ms_median=median(found),
        latency_ms_p99=found[(99 * len(found) - 1) // 100],
        latency_ms_max=found[-1],
        pulls_per_s=busy[0],
        cpu_percent=busy[1],
        idle_pulls_per_s=idle[0],
        idle_cpu_percent=idle[1],
        latencies_ms=[round(each, 3) for each in found],
    )


def _spent(consumer: Consumer, process_id: int, act: Callable[[], object]) -> tuple[float, float]:
    """Return the consumer's pulls per second and the broker's percentage of a core during an action."""
    began_ns, began_cpu_s, began_count = perf_counter_ns(), processor_s(process_id), consumer.pull_count
    act()
    seconds = (perf_counter_ns() - began_ns) / 1e9
    return (consumer.pull_count - began_count) / seconds, 100 * (processor_s(process_id) - began_cpu_s) / seconds


def is_long_polling_best(results: Sequence[Result]) -> bool:
    best = next(result for result in results if result.way == NOTIFIED)
    others = [result for result in results if result.way not in {NOTIFIED, LOOKED_AT}]
    return all(
        best.latency_ms_median < other.latency_ms_median and best.idle_pulls_per_s < other.idle_pulls_per_s
        for other in others
    )


def show(results: Sequence[Result]) -> None:
    grid = Table(title="One consumer of eight queues", title_justify="left")
    for column in ("way", "median ms", "p99 ms", "max ms", "pulls/s", "broker CPU %", "idle pulls/s", "idle CPU %"):
        grid.add_column(column, justify="left" if column == "way" else "right")
    for result in results:
        figures = msgspec.structs.astuple(result)[1:-1]
        grid.add_row(result.way, *(f"{figure:,.1f}" for figure in figures))
    Console(width=120).print(grid)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--messages", type=int, default=60)
    parser.add_argument("--idle-s", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", type=Path, help="keep the figures in this file")
    options = parser.parse_args()
    results = [measure(way, options.messages, options.idle_s, options.seed) for way in WAYS]
    if options.write is not None:
        command = f"python -m model_tests.bench.polling_bench --messages {options.messages} --idle-s {options.idle_s:g}"
        figures = Figures(command, machine(), options.messages, results)
        options.write.write_bytes(msgspec.json.format(msgspec.json.encode(figures), indent=1) + b"\n")
    if options.json:
        print_json({"results": results})
    else:
        show(results)
    return 0 if is_long_polling_best(results) else 1


if __name__ == "__main__":
    leaving.run(main)
